"""Which optimizer trains which parameters, and whether by Muon, in whatever form a caller has them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.weights.masters import find_masters
from fire_core.weights.optimizers import held_optimizers, is_optimizer, parameters_of

FLAGS = ("use_muon", "is_muon")  # entries of a group that say whether Muon trains it
WORDS = ("algorithm", "kind", "optimizer", "optim", "type")  # entries whose word says who trains a group


class Holder(NamedTuple):
    """One group of parameters, and who trains it.

    Attributes:
        parameters: the parameters of the group.
        group: the group itself, with its options.
        optimizer: the optimizer itself, inside all wrappers; None where groups alone are given.
        code: Python for the list of its parameters, in the names of the call: `optimizer.param_groups[0]["params"]`.
    """

    parameters: list[Tensor]
    group: Mapping[str, Any]
    optimizer: Optimizer | None
    code: str

    def trains_by_muon(self, parameter: Tensor) -> bool:
        """Return whether Muon trains a parameter of the group.

        The optimizer's state of the parameter says it; else the group; else the class of the optimizer.
        """
        if self.optimizer is not None:
            says = self.optimizer.state.get(parameter, {})
            if isinstance(says, Mapping) and isinstance(says.get("use_muon"), bool):
                return bool(says["use_muon"])
        if (said := is_marked(self.group)) is not None:
            return said
        if self.optimizer is None:
            return True  # `_holders_of_groups` has asked whether the other groups say who trains them
        return is_muon_class(type(self.optimizer)) and parameter.ndim > 1


def is_marked(group: Mapping[str, Any]) -> bool | None:
    """Return whether a group says that Muon trains it, or that something else does (False); None if it does not say."""
    for key in FLAGS:
        if group.get(key) is not None:
            return bool(group[key])
    if group.get("use_fallback") is True:  # timm's
        return False
    for key in WORDS:
        if isinstance(group.get(key), str):
            return _is_muon_word(group[key])
    if "cuts" in group or group.get("split_sizes") is not None or group.get("param_split_fn") is not None:
        return True
    return None


def is_muon_class(kind: type) -> bool:
    """Return whether a class of optimizers is Muon or one of its kin, by its name and those of its base classes."""
    return any(_is_muon_word(base.__name__) for base in kind.__mro__)


def _is_muon_word(word: str) -> bool:
    """Return whether the name of a class or an algorithm contains "muon", or has a part that begins with "dion"."""
    return re.search(r"muon|(^|_)dion", word.lower()) is not None


def holders_of(given: Any) -> Iterator[Holder]:
    """Yield every group that is given, in whatever form, together with the optimizer that trains it.

    Raises:
        TypeError: something that is no optimizer and no group.
        ValueError: groups that do not say which of them Muon trains.
    """
    if _is_trainer(given):
        yield from _holders_of_optimizer(given, "optimizer")
    elif isinstance(given, Mapping) and "params" not in given:
        for key, optimizer in given.items():
            yield from _holders_of_optimizer(optimizer, f"optimizers[{key!r}]")
    elif isinstance(given, tuple) and len(given) == 2 and _is_muon_groups(*given):
        muon, adam = given
        for i, group in enumerate(muon):
            yield Holder(_parameters_of_group(group, i), group | {"use_muon": True}, None, f'muon[{i}]["params"]')
        yield Holder(list(adam), {"use_muon": False}, None, "adam")
    else:
        several = [given] if isinstance(given, Mapping) else given
        if isinstance(given, nn.Module | Tensor) or not isinstance(given, Iterable):
            raise TypeError(f"expected an optimizer, several, or groups of parameters, got {type(given).__name__}")
        if isinstance(several, Iterator):
            raise TypeError("expected a list: an iterator could be read only once, here")
        parts = list(several)
        if parts and all(isinstance(part, Mapping) for part in parts):
            yield from _holders_of_groups(parts)
            return
        for i, part in enumerate(parts):
            yield from _holders_of_optimizer(part, f"optimizers[{i}]")


def _is_trainer(thing: Any) -> bool:
    """Return whether a thing is an optimizer, or a wrapper with `param_groups` around optimizers, without a state."""
    return is_optimizer(thing) or (hasattr(thing, "param_groups") and bool(held_optimizers(thing)))


def _is_muon_groups(muon: Any, adam: Any) -> bool:
    """Return whether two things are what `muon_groups` returns: a list of groups, and a list of parameters."""
    if not isinstance(muon, list) or not isinstance(adam, list) or not muon:
        return False
    return all(isinstance(group, Mapping) for group in muon) and all(isinstance(p, Tensor) for p in adam)


def _holders_of_optimizer(optimizer: Any, place: str) -> Iterator[Holder]:
    """Yield the groups of an optimizer; parameters of a wrapper's inner optimizers come with the inner one alone.

    Args:
        optimizer: an optimizer of any class.
        place: Python for the optimizer, in the names of the call: `optimizers[0]`.

    Raises:
        TypeError: it is no optimizer.
    """
    if not _is_trainer(optimizer):
        hint = ""
        if isinstance(optimizer, Tensor | list | tuple):
            hint = (
                "; of parameters make groups, [{'params': muon, 'use_muon': True}, {'params': rest, 'use_muon': False}]"
            )
        kind = type(optimizer).__name__
        raise TypeError(f"{place}: expected an optimizer (with param_groups and state), got {kind}{hint}")
    visited: set[int] = set()

    def walk(part: Optimizer, path: str) -> Iterator[Holder]:
        visited.add(id(part))
        inner = {name: held for name, held in held_optimizers(part).items() if id(held) not in visited}
        below = parameters_of(inner.values())
        for name, held in inner.items():
            if id(held) not in visited:  # a wrapper may hold one under two names
                yield from walk(held, f"{path}.{name}")
        for i, group in enumerate(part.param_groups):
            parameters = [p for p in group["params"] if id(p) not in below]
            if parameters:
                yield Holder(parameters, group, part, f'{path}.param_groups[{i}]["params"]')

    yield from walk(optimizer, place)


def _holders_of_groups(groups: Sequence[Mapping[str, Any]]) -> Iterator[Holder]:
    """Yield groups that are given without their optimizer.

    Raises:
        TypeError: the parameters of a group cannot be read.
        ValueError: a group does not say whether Muon trains it. This is allowed if any group has an `algorithm`.
    """
    says = [is_marked(group) for group in groups]
    # dion and muonium take a group for Muon's unless its algorithm says otherwise; others insist on use_muon.
    by_algorithm = any("algorithm" in group for group in groups)
    if None in says and not by_algorithm:
        raise ValueError(
            f"group {says.index(None)} does not say whether Muon trains it: give the optimizer itself, or write "
            "use_muon=True or use_muon=False into each group"
        )
    for i, group in enumerate(groups):
        yield Holder(_parameters_of_group(group, i), group, None, f'groups[{i}]["params"]')


def _parameters_of_group(group: Mapping[str, Any], number: int) -> list[Tensor]:
    """Return the parameters of a group as somebody wrote it: a tensor, or several, with or without their names.

    Args:
        group: has them under `params`.
        number: the group's index, for the messages.

    Raises:
        TypeError: there are none, an iterator, which can be read only once, or something that is no tensor.
    """
    params = group.get("params")
    if isinstance(params, Tensor):
        return [params]
    if params is None or isinstance(params, Iterator) or not isinstance(params, Iterable):
        what = (
            "has no params" if params is None else f"has a {type(params).__name__} as params, which is read only once"
        )
        raise TypeError(f"group {number} {what}: give a list of parameters")
    tensors = [item[1] if isinstance(item, tuple) and len(item) == 2 else item for item in params]
    if wrong := [type(item).__name__ for item in tensors if not isinstance(item, Tensor)]:
        raise TypeError(f"group {number} holds a {wrong[0]}, which is no parameter")
    return tensors


def weights_by_master(model: nn.Module, holders: list[Holder]) -> dict[int, Tensor]:
    """Return the weight for each copy of full precision that an optimizer trains in its place, by the copy's `id`.

    There are none if all parameters of the groups are the model's, or if it is unclear which weight a copy is of. Flat
    copies of several weights are left out.
    """
    own = {id(p) for p in model.parameters()}
    if all(id(p) in own for holder in holders for p in holder.parameters):
        return {}
    optimizers = {id(holder.optimizer): holder.optimizer for holder in holders if holder.optimizer is not None}
    try:
        return {id(m.tensor): m.weight for m in find_masters(model, [*optimizers.values()]) if m.start is None}
    except ValueError:  # some are unclear: they are then foreign, and their weights missing
        return {}
