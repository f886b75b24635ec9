"""The methods, one file each, and the protocol between them and the trainers.

To add one: a class derived from `Method` in a file here (or anywhere importable), a yaml in `conf/method/` that names
it in `_target_`, and a test. Named here are the protocol and the methods that act at a boundary, which
`fire_core.integrations` take; all others are imported from their files. Rivals since 2023 that the figures of the FIRE
paper lack stand in `contrib`.
"""

import importlib
import warnings
from types import ModuleType

from fire_core.methods.chain import Chain
from fire_core.methods.contrib.fuse import Fuse
from fire_core.methods.dash import Dash
from fire_core.methods.fire import Fire
from fire_core.methods.full_reset import FullReset
from fire_core.methods.optimizer_reset import OptimizerReset
from fire_core.methods.protocol import BoundaryReport, Context, Method, Net
from fire_core.methods.random_isometry import RandomIsometry
from fire_core.methods.snp import ShrinkAndPerturb

__all__ = [
    "BoundaryReport",
    "Chain",
    "Context",
    "Dash",
    "Fire",
    "FullReset",
    "Fuse",
    "Method",
    "Net",
    "OptimizerReset",
    "RandomIsometry",
    "ShrinkAndPerturb",
]

# Files that stood here in version 0.2: a `_target_` of a run of then still names them.
MOVED = frozenset(
    "adamo c_chain cpr fuse hare_tortoise l2_er nap regrama spectral swr trac upgd weight_clipping".split()  # noqa: SIM905
)


def __getattr__(name: str) -> ModuleType:
    if name not in MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = f"{__name__}.contrib.{name}"
    warnings.warn(f"{__name__}.{name} is now {new}; version 0.4 will not know its old name", DeprecationWarning, 2)
    return importlib.import_module(new)
