"""Averaged copies and target networks: what a method changed is changed in them too."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from fire_core.weights.distributed import local
from fire_core.weights.topology import clean_name

# A module (AveragedModel, timm's ModelEmaV3, a target network), tensors by name, or in the order of the model's
# parameters; or a function that gives one of these, or None as long as there is none.
Copy = nn.Module | Mapping[str, Tensor] | Sequence[Tensor]
Source = Copy | Callable[[], Copy | None]


def copies_of(copies: Sequence[Source]) -> list[Source]:
    """The copies that a user gives, as a list.

    Raises:
        TypeError: one copy where a list of them is expected, or something that is no copy.
    """
    if not isinstance(copies, Sequence):
        raise TypeError(f"copies={type(copies).__name__}: give a list, copies=[...]")
    for source in copies:
        if isinstance(source, Tensor) or not (isinstance(source, (nn.Module, Mapping, Sequence)) or callable(source)):
            raise TypeError(
                f"copies holds a {type(source).__name__}: each is a module, tensors by name or in order, or a function "
                "that gives one of these; copies=[[...]] for a list of tensors"
            )
    return list(copies)


def named_weights(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by the names that they have in the bare module, tied ones once."""
    return {clean_name(name): t for part in (module.named_parameters(), module.named_buffers()) for name, t in part}


def weights_of(source: Source, model: nn.Module) -> dict[str, Tensor]:
    """The weights of a copy by the model's names; none while there is no copy.

    Raises:
        ValueError: nothing in it has the name and shape of one of the model's weights.
    """
    found = source if isinstance(source, (nn.Module, Mapping, Sequence)) else source()
    if found is None:
        return {}
    if isinstance(found, nn.Module):
        named = named_weights(found)
    elif isinstance(found, Mapping):
        named = {clean_name(name): tensor for name, tensor in found.items()}
    else:
        named = _in_order(found, model)
    wanted = {_bare(name): name for name in named_weights(model)}
    shapes = {name: tensor.shape for name, tensor in named_weights(model).items()}
    matched = {wanted[key]: tensor for name, tensor in named.items() if (key := _bare(name)) in wanted}
    matched = {name: tensor for name, tensor in matched.items() if tensor.shape == shapes[name]}
    if not matched:
        raise ValueError(f"copies: a {type(found).__name__} has no weight with a name and shape of the model's")
    return matched


def _bare(name: str) -> str:
    """Without the names that wrappers of whole models put in front: AveragedModel, ModelEmaV3, DataParallel."""
    return name.removeprefix("module.").removeprefix("module.")


def _in_order(tensors: Sequence[Tensor], model: nn.Module) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    for names in (list(named), [name for name, p in named.items() if p.requires_grad]):
        if len(names) == len(tensors):
            return {clean_name(name): tensor for name, tensor in zip(names, tensors, strict=True)}
    raise ValueError(f"copies: {len(tensors)} tensors, and the model has {len(named)} parameters")


@torch.no_grad()
def write(new: Mapping[str, Tensor], names: set[str], copy: Mapping[str, Tensor]) -> None:
    """Give a copy the new values of the named weights."""
    for name in names & copy.keys():
        copy[name].copy_(new[name])


def changed(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> set[str]:
    """Names of the weights whose numbers on this rank are not what they were."""
    return {name for name, old in before.items() if not torch.equal(local(old), local(after[name]))}
