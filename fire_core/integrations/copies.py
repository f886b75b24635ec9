"""Averaged copies and target networks: what a method changed is changed in them too."""

from collections.abc import Mapping

from torch import Tensor, nn

from fire_core.weights.topology import clean_name

Copy = nn.Module | Mapping[str, Tensor]  # AveragedModel, timm's ModelEmaV3, a target network; or tensors by name


def named_weights(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by the names that they have in the bare module, tied ones once."""
    return {clean_name(name): t for part in (module.named_parameters(), module.named_buffers()) for name, t in part}


def weights_of(copy: Copy, model: nn.Module) -> dict[str, Tensor]:
    """The weights of a copy by the model's names.

    Raises:
        TypeError: it is no copy.
        ValueError: nothing in it has the name and shape of one of the model's weights.
    """
    if not isinstance(copy, nn.Module | Mapping):
        raise TypeError(f"copies holds a {type(copy).__name__}: each is a module, or tensors by name")
    tensors = named_weights(copy) if isinstance(copy, nn.Module) else copy
    named = {_bare(clean_name(name)): tensor for name, tensor in tensors.items()}
    own = named_weights(model).items()
    matched = {
        name: named[_bare(name)] for name, t in own if _bare(name) in named and named[_bare(name)].shape == t.shape
    }
    if not matched:
        raise ValueError(f"copies: a {type(copy).__name__} has no weight with a name and shape of the model's")
    return matched


def _bare(name: str) -> str:
    """Without the names that wrappers of whole models put in front: AveragedModel, ModelEmaV3, DataParallel."""
    return name.removeprefix("module.").removeprefix("module.")
