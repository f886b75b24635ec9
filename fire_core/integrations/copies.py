"""Match the weights of averaged models and target networks with the model's, so that they can be changed with it."""

from collections.abc import Mapping

from torch import Tensor, nn

from fire_core.weights.topology import clean_name

Copy = nn.Module | Mapping[str, Tensor]  # AveragedModel, timm's ModelEmaV3, a target network; or tensors by name


def named_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by the names that they have in the bare module, tied ones under each name."""
    parameters = module.named_parameters(remove_duplicate=False)
    return {clean_name(name): tensor for name, tensor in [*parameters, *module.named_buffers(remove_duplicate=False)]}


def weights_of(copy: Copy, model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a copy that match the model's in name and shape, by the model's names.

    Raises:
        TypeError: the copy is neither a module nor a mapping from names to tensors.
        ValueError: no weight of the copy has the name and shape of one of the model's.
    """
    if not isinstance(copy, nn.Module | Mapping):
        raise TypeError(f"copies holds a {type(copy).__name__}: each is a module, or tensors by name")
    tensors = named_weights(copy) if isinstance(copy, nn.Module) else copy
    by_bare_name = {_bare_name(clean_name(name)): tensor for name, tensor in tensors.items()}
    matched = {}
    for name, weight in named_weights(model).items():
        copied = by_bare_name.get(_bare_name(name))
        if copied is not None and copied.shape == weight.shape:
            matched[name] = copied
    if not matched:
        raise ValueError(f"copies: a {type(copy).__name__} has no weight with a name and shape of the model's")
    return matched


def _bare_name(name: str) -> str:
    """Remove the prefixes of wrappers of whole models: AveragedModel, ModelEmaV3, DataParallel."""
    return name.removeprefix("module.").removeprefix("module.")
