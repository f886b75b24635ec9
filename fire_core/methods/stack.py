"""What methods need that act on the networks of many runs at once (`Method.stacks`, `Net.parts`)."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fire_core.methods.protocol import Net


def norms(tensors: Iterable[Tensor], net: Net) -> Tensor:
    """The norm of each of n tensors, (n,); of those of S networks (S, n). Equal bit for bit."""
    if not net.parts:
        return torch.stack(torch._foreach_norm(tuple(tensors)))
    return torch.stack([torch.linalg.vector_norm(tensor.flatten(1), dim=1) for tensor in tensors], 1)


def total(x: Tensor, net: Net) -> Tensor:
    """The sum of all numbers, (); of each network's (S,). Equal bit for bit."""
    return x.flatten(1).sum(1) if net.parts else x.sum()


def mean(x: Tensor, net: Net) -> Tensor:
    """The mean of all numbers, (); of each network's (S,). Equal bit for bit."""
    return x.flatten(1).mean(1) if net.parts else x.mean()


def counterparts(net: Net, modules: Iterable[nn.Module]) -> list[nn.Module]:
    """The stacked modules in the place of modules of the first network."""
    own = (module for root in net.parts[0].modules.values() for module in root.modules())
    stacked = (module for root in net.modules.values() for module in root.modules())
    found = dict(zip(own, stacked, strict=True))
    return [found[module] for module in modules]


def stacked_parameters(net: Net, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """The stacked parameters in the place of parameters of the first network."""
    found = dict(zip(net.parts[0].parameters(), net.parameters(), strict=True))
    return [found[parameter] for parameter in parameters]


def over_parts(x: Tensor, like: Tensor, net: Net) -> Tensor:
    """A number of each network, (S,), as it broadcasts to tensors like `like`, (S, ...); a number alone as it is."""
    return x.view(-1, *[1] * (like.ndim - 1)) if net.parts else x


def join(states: Sequence[Any]) -> Any:
    """The state of a stack from those of its runs: tensors are stacked.

    Raises:
        ValueError: something else differs between runs.
    """
    first = states[0]
    if isinstance(first, Tensor):
        return torch.stack(list(states))
    if isinstance(first, dict):
        if any(state.keys() != first.keys() for state in states):
            raise ValueError("the methods' states have other parts")
        return {key: join([state[key] for state in states]) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(join(parts) for parts in zip(*states, strict=True))
    if any(state != first for state in states):
        raise ValueError("the methods' states differ in a number")
    return first


def part_of(state: Any, place: int) -> Any:
    """The state of one run of a stack; its tensors are views."""
    if isinstance(state, Tensor):
        return state[place]
    if isinstance(state, dict):
        return {key: part_of(value, place) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(part_of(value, place) for value in state)
    return state
