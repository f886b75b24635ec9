"""Give what an optimizer holds about parameters the values that it has in a new optimizer."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from fire_core.weights.as_new import ABSENT, MASTER_KEY, Contents, Knowledge, state_of
from fire_core.weights.nested import nested_tensors
from fire_core.weights.new_optimizer import Builder, copies_of
from fire_core.weights.optimizers import attributes_of, with_inner


def reset_as_learnt(
    parts: Sequence[Optimizer], builder: Builder, knowledge: Sequence[Knowledge], parameters: Mapping[int, Tensor]
) -> None:
    """Reset parameters in optimizers as stand-ins have shown.

    Args:
        parts: an optimizer and those that it holds: the user's, or the trained one of a rehearsal.
        builder: builds new optimizers of that class.
        knowledge: what was learnt of each part.
        parameters: the parameters of `parts` that are to be reset, by the `id` of the user's parameters.

    Raises:
        CannotBuildError: no new optimizer can be built on copies of these parameters.
    """
    firsts = [known.first for known in knowledge]
    new: list[Optimizer | None] = [None for _ in parts]
    twins: dict[int, Tensor] = {}
    if any(known.constructs or _has_large_tensors(known) for known in knowledge):
        copies = copies_of(parameters)
        new = [*with_inner(builder.build(copies))]
        firsts = [Contents.of(part) for part in new if part is not None]
        twins = {id(p): copies[key] for key, p in parameters.items()}
    ids = {id(p) for p in parameters.values()}
    for part, known, first, new_part in zip(parts, knowledge, firsts, new, strict=True):
        is_whole = []
        for group in part.param_groups:
            with_state = [p for p in group["params"] if state_of(part, p)] or group["params"]
            is_whole.append(all(id(p) in ids for p in with_state))
            for p in group["params"]:
                if id(p) in ids and state_of(part, p):
                    _renew_state(part, p, state_of(new_part, twins[id(p)]) if new_part is not None else {})
        twin_pairs = [(p, twins.get(id(p))) for p in parameters.values()]
        by_parameter = {
            *(key for key in known.common if _renew_by_parameter(part.state[key], new_part, key, twin_pairs)),
            *(
                name
                for name in known.attributes
                if _renew_by_parameter(getattr(part, name, None), new_part, name, twin_pairs)
            ),
        }
        for group, new_group, group_is_whole in zip(part.param_groups, first.groups, is_whole, strict=True):
            if group_is_whole:
                for name in known.records:
                    _renew(group, name, new_group)
        if all(is_whole):
            for key in known.common - by_parameter:
                _renew(part.state, key, first.common)
            for name in known.attributes - by_parameter:
                value = first.attributes.get(name, ABSENT)
                if value is ABSENT:
                    delattr(part, name)
                else:
                    setattr(part, name, _renewed(getattr(part, name, ABSENT), value))


def _has_large_tensors(known: Knowledge) -> bool:
    """Return whether a new optimizer holds tensors of more than one number outside of the parameters' states.

    Only tensors that steps change count. On stand-ins they have other sizes, so a new one must be built on full copies.
    """
    firsts = [first.get(name) for first in known.first.groups for name in known.records]
    firsts += [known.first.attributes.get(name) for name in known.attributes]
    firsts += [known.first.common.get(key) for key in known.common]
    return any(tensor.numel() > 1 for first in firsts for tensor in nested_tensors(first))


def _renew_state(part: Optimizer, p: Tensor, new: Mapping[Any, Any]) -> None:
    """Give the state of a parameter its first values.

    Args:
        part: the optimizer.
        p: a parameter for which it keeps a state.
        new: the state in a new optimizer, as `state_of` returns it.
    """
    state: Any = part.state[p]
    if not isinstance(state, dict):
        if None in new:
            part.state[p] = _renewed(state, new[None])
        else:
            del part.state[p]
        return
    for key in [*state, *(key for key in new if key not in state)]:
        if key != MASTER_KEY:
            # The master keeps the state from being removed, and an optimizer takes one that is not empty for complete.
            if MASTER_KEY in state and key not in new:
                state[key] = zeroed(state[key])
            else:
                _renew(state, key, new)
    if not state:
        del part.state[p]


def _renew_by_parameter(
    held: Any, new_part: Optimizer | None, name: Any, pairs: Iterable[tuple[Tensor, Tensor | None]]
) -> bool:
    """Give the entries of parameters their first values in a mapping whose keys are parameters or their `id`s.

    Args:
        held: an attribute of an optimizer, or a piece of its state that belongs to no single parameter.
        new_part: a new optimizer with the same attribute or piece of state; None: first values are not needed.
        name: name of the attribute, or key of the piece of state.
        pairs: the parameters that are reset, each with its counterpart in the new optimizer.

    Returns:
        Whether `held` is such a mapping.
    """
    if not isinstance(held, dict):
        return False
    for kind in (Tensor, int):  # one after the other: comparing a tensor with a number compares each element
        keys = {key if kind is int else id(key) for key in held if isinstance(key, kind)}
        chosen = [(p, q) for p, q in pairs if id(p) in keys]
        new: Any = {} if new_part is None else attributes_of(new_part).get(name) or new_part.state.get(name) or {}
        new_keys = {key if kind is int else id(key) for key in new if isinstance(key, kind)}
        for p, q in chosen:
            key, new_key = (id(p), id(q)) if kind is int else (p, q)
            if id(q) in new_keys:
                held[key] = _renewed(held[key], new[new_key])
            else:
                del held[key]
        if chosen:
            return True
    return any(isinstance(key, Tensor) for key in held)


def _renew(held: Any, key: Any, first: Mapping[Any, Any]) -> None:
    """Give an entry of a mapping its value in `first`, or remove it if it is not there: the first step makes it."""
    if key in first:
        held[key] = _renewed(held.get(key), first[key])
    else:
        held.pop(key, None)


def _renewed(old: Any, new: Any) -> Any:
    """Return a value equal to `new`, in the memory of `old` if type, dtype and shape are the same."""
    if isinstance(old, Tensor) and isinstance(new, Tensor):
        if old.shape == new.shape and old.dtype == new.dtype and type(old) is type(new):
            return old.copy_(new)
        return new.detach().clone()
    if type(old) is type(new) and isinstance(old, list | tuple) and len(old) == len(new):
        renewed = [_renewed(a, b) for a, b in zip(old, new, strict=True)]
        return renewed if isinstance(old, list) else tuple(renewed)
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        old.update({key: _renewed(old[key], new[key]) for key in old})
        return old
    return copy.deepcopy(new)


def zeroed(value: Any) -> Any:
    """Return a value of a state with its numbers set to zero, in place if possible; other objects stay as they are."""
    if isinstance(value, Tensor):
        return value.zero_()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return type(value)(0)
    if isinstance(value, dict):
        value.update({key: zeroed(part) for key, part in value.items()})
    elif isinstance(value, list):
        value[:] = map(zeroed, value)
    elif type(value) is tuple:
        return tuple(map(zeroed, value))
    return value
