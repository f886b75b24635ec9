"""The life of a run: configuration, folder, checkpoints, first phases, tracker. `load` gives a trained one back."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.trained.load import load as load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    """`harness.load`, which is imported when it is asked for: figures need neither torch nor Hydra."""
    if name == "load":
        from harness.trained.load import load

        return load
    raise AttributeError(f"module 'harness' has no attribute {name!r}")
