"""Match the weights of averaged models and target networks with the model's, so that they can be changed with it."""

import itertools
from collections.abc import Mapping

from torch import Tensor, nn

from fire_core.weights.topology import clean_name

# What wrappers of whole models put before names: none, AveragedModel or DataParallel, both.
WRAPPERS = ("", "module.", "module.module.")
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
    by_name = {clean_name(name): tensor for name, tensor in tensors.items()}
    weights = named_weights(model)
    matched: dict[str, Tensor] = {}
    # A model may have a part called `module`, so it is not known from one name whether "module." is that of a wrapper.
    for of_model, of_copy in itertools.product(WRAPPERS, WRAPPERS):
        inner = {name: name.removeprefix(of_model) for name in weights if name.startswith(of_model)}
        pairs = {name: by_name.get(of_copy + name_inside) for name, name_inside in inner.items()}
        found = {name: x for name, x in pairs.items() if x is not None and x.shape == weights[name].shape}
        if len(found) > len(matched):
            matched = found
    if not matched:
        raise ValueError(f"copies: a {type(copy).__name__} has no weight with a name and shape of the model's")
    return matched


def bare_name(name: str) -> str:
    """Return a parameter's name without what wrappers add to it: compiled models, AveragedModel, DataParallel, ..."""
    return clean_name(name).removeprefix("module.").removeprefix("module.")
