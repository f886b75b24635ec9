"""Match the weights of averaged models and target networks with the model's, so that they can be changed with it."""

import itertools
from collections.abc import Iterable, Mapping

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
    weights = named_weights(model)
    names = matching_names(weights, tensors)
    matched = {name: tensors[other] for name, other in names.items() if tensors[other].shape == weights[name].shape}
    if not matched:
        raise ValueError(f"copies: a {type(copy).__name__} has no weight with a name and shape of the model's")
    return matched


def matching_names(names: Iterable[str], others: Iterable[str]) -> dict[str, str]:
    """Return for each of a model's names the one that the same weight has in a copy, which may be wrapped otherwise.

    A model may have a part called `module`, so it is not known from one name whether "module." is that of a wrapper:
    the prefixes are taken with which most names match.

    Args:
        names: names of the model.
        others: names of the copy.
    """
    own = {clean_name(name): name for name in names}
    by_clean_name = {clean_name(name): name for name in others}
    matched: dict[str, str] = {}
    for of_model, of_copy in itertools.product(WRAPPERS, WRAPPERS):
        pairs = {
            name: by_clean_name[of_copy + cleaned.removeprefix(of_model)]
            for cleaned, name in own.items()
            if cleaned.startswith(of_model) and of_copy + cleaned.removeprefix(of_model) in by_clean_name
        }
        if len(pairs) > len(matched):
            matched = pairs
    return matched
