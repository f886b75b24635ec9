"""Reset what an optimizer has stored about given parameters.

After a projection the momentum of a weight belongs to a place where the weight no longer is. The paper starts a new
optimizer at each phase; inside a run, only the state of the projected weights is stale, and only that is reset here.

Of the optimizers of torch it is known what they keep. Of all others it is learnt from a new one (`as_new`), and after
the reset stand-ins have to step as those of a new optimizer do; if they do not, a warning says so.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.errors import FireWarning
from fire_core.weights import distributed
from fire_core.weights.as_new import (
    ABSENT,
    MASTER,
    Contents,
    Knowledge,
    Rehearsal,
    not_as_new,
    same,
    state_of,
    steps_differ,
    what_differs,
)
from fire_core.weights.new_optimizer import Builder, CannotBuildError, copies_of, quiet, steps_without_states
from fire_core.weights.optimizers import attributes_of, held_optimizers, optimizers_of, parameters_of, with_inner

Rows = Tensor | slice | Sequence[int]
# State of torch's optimizers that has the weight's shape and does not begin at zero: by name the group's option ...
_FIRST_VALUES = {"sum": "initial_accumulator_value", "step_size": "lr"}  # of Adagrad and Rprop
_WEIGHTS = {"ax"}  # ... or a copy of the weight: ASGD's average
# The same of optimizers of which no new one can be built: schedule-free's, and slow weights.
_COPIES = {
    "z",
    "lookahead_slow_buff",
    "slow_param",
    "slow_params",
    "slow_buffer",
    "slow_momentum",
    "cached_params",
    "ax",
}


def reset_optimizer_state(
    optimizers: Optimizer | Iterable[Optimizer],
    params: Iterable[Tensor],
    rows: Rows | None = None,
    dim: int = 0,
    *,
    verify: bool = False,
) -> int:
    """Make optimizers treat parameters as if they had never seen them; all other state stays as it is.

    The next step then changes these parameters exactly as a new optimizer with the same settings would, step counters
    and bias correction included. Works with every optimizer of `torch.optim` in its foreach, fused and capturable
    variants, with the optimizers inside a wrapper or a chain (Lookahead, accelerate, Lightning, Megatron's chained
    ones), and with optimizers of other packages: a new one of the same class is built on small stand-ins, which shows
    what its constructor makes and what its steps change, and the reset is rehearsed on them. A `FireWarning` says
    where the steps after it are not those of a new optimizer, as where a counter belongs to a whole group of which only
    some parameters are reset; and where no new one can be built, so that state is set to zero in place.

    With `rows`, only these rows of the state (moments, slow weights) get their first values: for methods that replace
    single units. The step counter belongs to the whole parameter and is kept. A parameter with state that has no such
    rows (8 bits, factored, a preconditioner), or whose first value does not show, is reset whole, which a
    `FireWarning` says.

    Args:
        optimizers: one optimizer or several; a parameter that an optimizer does not hold is passed over.
        params: the parameters, tied ones once or twice alike.
        rows: index, boolean mask or slice along `dim`, the same for all `params`; None for the whole state.
        dim: the dimension that `rows` counts along: 0 for the outputs of a layer, 1 for its inputs.
        verify: build a new optimizer of the same kind beside each, on copies of the parameters, and warn of what is not
            as in the new one: states, entries of groups, attributes, or the change of a parameter by two steps on the
            same gradients. Takes the memory of the parameters and states three times.

    Returns:
        How many (optimizer, parameter) states were reset.

    Raises:
        TypeError: not optimizers, or not a list of parameters (a module, one bare tensor, names).
        ValueError: `rows` that a parameter does not have; `verify` with `rows`, whose other rows are not new.
    """
    if verify and rows is not None:
        raise ValueError("verify compares whole parameters with those of a new optimizer: not with rows=")
    optimizers, unique = optimizers_of(optimizers), _parameters(params)
    reset = StateReset(optimizers)
    if rows is None:
        reset.whole(unique.values())
    else:
        reset.rows(unique.values(), rows, dim)
    notes = list(reset.notes)
    if verify:
        if not reset.count and any(part.state for part in with_inner(*optimizers)):
            notes.append("the optimizers keep nothing of these parameters: if they train copies, give the copies too")
        notes += [line for optimizer in optimizers for line in _verified(optimizer, set(unique))]
    for note in dict.fromkeys(notes):
        warnings.warn(note, FireWarning, stacklevel=2)
    return reset.count


def _verified(optimizer: Optimizer, chosen: set[int]) -> list[str]:
    """Lines on what an optimizer still knows of parameters; of a wrapper that cannot be built, on what is inside."""
    if not parameters_of([optimizer]) & chosen:
        return []
    try:
        return not_as_new(optimizer, chosen, Rehearsal(optimizer, chosen))
    except CannotBuildError as error:
        if inner := held_optimizers(optimizer).values():
            return [line for part in inner for line in _verified(part, chosen)]
        return [f"{type(optimizer).__name__}: no new one can be built to compare with ({error})"]


@dataclass(frozen=True, eq=False)
class Unit:
    """What is reset together: an optimizer that no other one wraps, or a wrapper and what it holds.

    Attributes:
        parts: the optimizer and those that it holds.
        builder: of new ones; None for an optimizer of torch, and where none can be built.
        knowledge: of each part, with a builder.
        rehearsal: where whole parameters are to be reset, with a builder.
        problem: why none can be built; empty otherwise.
    """

    parts: list[Optimizer]
    builder: Builder | None = None
    knowledge: Sequence[Knowledge] = ()
    rehearsal: Rehearsal | None = None
    problem: str = ""


# What was learnt of optimizers for resets of rows, which some methods do at every step; and for which parameters.
_LEARNT: WeakKeyDictionary[Optimizer, tuple[object, list[Knowledge]]] = WeakKeyDictionary()


class StateReset:
    """Resets the states of parameters in optimizers, in one or several calls.

    Args:
        optimizers: all that train the parameters.

    Attributes:
        notes: what the caller must know, in order and once each.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = optimizers
        self.notes: dict[str, None] = {}
        self._states: set[tuple[int, int]] = set()

    @property
    def count(self) -> int:
        """How many (optimizer, parameter) states were reset, in whole or in part."""
        return len(self._states)

    @torch.no_grad()
    def whole(self, params: Iterable[Tensor]) -> None:
        """Reset whole parameters."""
        chosen = {id(p) for p in params}
        for optimizer in self.optimizers:
            for unit in _units(optimizer, chosen):
                with torch.inference_mode(False):  # else training could not write to what is new
                    self._reset_unit(unit, chosen, id(optimizer))

    @torch.no_grad()
    def rows(self, params: Iterable[Tensor], rows: Rows, dim: int = 0) -> None:
        """Reset rows of parameters along `dim`; see `reset_optimizer_state`.

        Raises:
            ValueError: rows that a parameter does not have; nothing is changed.
        """
        unique = _parameters(params)
        if not isinstance(rows, slice):
            rows = rows if isinstance(rows, Tensor) else torch.tensor(rows, device="cpu")
            rows = rows if rows.numel() else rows.long()  # [] is float
        for p in unique.values():
            _check_rows(rows, p, dim)
        for optimizer in self.optimizers:
            for unit in _units(optimizer, set(unique), rows=True):
                with torch.inference_mode(False):
                    for number, part in enumerate(unit.parts):
                        for index, group in enumerate(part.param_groups):
                            for p in group["params"]:
                                if id(p) in unique and state_of(part, p):
                                    self._states.add((id(optimizer), id(p)))
                                    self._reset_rows(unit, number, index, p, rows, dim)

    def _reset_unit(self, unit: Unit, chosen: set[int], owner: int) -> None:
        had = {id(p) for part in unit.parts for p in _with_state(part)}
        problem, parameters = unit.problem, parameters_by_id(unit.parts, chosen)
        if unit.builder is not None and unit.rehearsal is not None:
            try:
                kept = _rehearsed(unit.rehearsal, chosen)
                _reset_learnt(unit.parts, unit.builder, unit.knowledge, parameters)
                self._note_what_is_left(unit.parts, unit.rehearsal, chosen, kept)
            except CannotBuildError as error:
                problem = str(error)
        for part in unit.parts:
            if problem:
                self._reset_blindly(part, chosen, problem)
            elif unit.builder is None:
                _reset_known(part, chosen)
        # Of all its parameters LBFGS keeps one history, under the first.
        shared = set() if problem else had - {id(p) for part in unit.parts for p in _with_state(part)}
        self._states |= {(owner, key) for key in (had & chosen) | shared}

    def _note_what_is_left(
        self, parts: Sequence[Optimizer], rehearsal: Rehearsal, chosen: set[int], kept: Sequence[str]
    ) -> None:
        name = type(parts[0]).__name__
        records, lines = _left_in_groups(parts, rehearsal, chosen)
        if rehearsal.failure:
            lines.append(
                f"takes no step on stand-ins ({rehearsal.failure}), so that it is not known what its steps change: "
                "what it keeps outside of the states of the parameters stays"
            )
        if what := dict.fromkeys([*kept, *records]):
            lines.append(
                f"keeps {', '.join(what)}, so that its next steps are not those of a new one: it belongs to several "
                "parameters of which only some were reset, or no reset reaches it. Reset all parameters of the group, "
                "put those to change into a group of their own, or build a new optimizer"
            )
        self.notes |= dict.fromkeys(f"{name} {line}" for line in lines)

    def _reset_blindly(self, part: Optimizer, chosen: set[int], problem: str) -> None:
        """Reset an optimizer of which no new one can be built, so that its next step finds what it needs."""
        makes_states_anew = steps_without_states(part, chosen)
        for group in part.param_groups:
            for p in group["params"]:
                state: Any = part.state.get(p) if id(p) in chosen else None
                if makes_states_anew and isinstance(state, dict) and MASTER not in state:
                    del part.state[p]
                    continue
                if not isinstance(state, dict):
                    _zeroed(state)
                    continue
                for key, value in state.items():
                    if key != MASTER:
                        is_copy = key in _COPIES and isinstance(value, Tensor) and value.shape == p.shape
                        state[key] = value.copy_(p) if is_copy else _zeroed(value)
        self.notes[
            f"{type(part).__name__} was reset without knowing what a new one holds ({problem}): the states of the "
            f"parameters are {'gone' if makes_states_anew else 'zero'} now, and what it keeps elsewhere, as in its "
            "groups, stays. Build a new optimizer instead"
        ] = None

    def _reset_rows(self, unit: Unit, number: int, index: int, p: Tensor, rows: Tensor | slice, dim: int) -> None:
        """Give rows of a parameter's state their first values; where that cannot be done, reset the state whole."""
        part = unit.parts[number]
        state = {key: value for key, value in state_of(part, p).items() if key != MASTER}
        single = {key for key, value in state.items() if _is_single(value)}
        first = _first_rows(unit, number, index, p)
        without_rows = [key for key in state if key not in single and key not in first]
        if without_rows:
            problem = unit.problem
            if unit.builder is not None:
                try:
                    _reset_learnt(unit.parts, unit.builder, unit.knowledge, {id(p): p})
                except CannotBuildError as error:
                    problem = str(error)
            if problem:
                self._reset_blindly(part, {id(p)}, problem)
            elif unit.builder is None:
                _reset_known(part, {id(p)})
            self.notes[
                f"{type(part).__name__} keeps {without_rows[0]}, which no part of a weight can be reset in: "
                "all of it was"
            ] = None
            return
        for key, beginning in first.items():
            value = state[key]
            # writing to rows of a DTensor would write to a copy
            gathered = distributed.full(value).clone() if distributed.is_sharded(value) else value
            if isinstance(beginning, Tensor):
                beginning = distributed.full(beginning).detach().to(gathered.dtype).transpose(0, dim)
                is_mask = isinstance(rows, Tensor) and rows.dtype == torch.bool
                beginning = beginning if is_mask else beginning[rows]
            fill_rows_(gathered, rows, beginning, dim)
            if gathered is not value:
                distributed.write_(value, gathered)


def _units(optimizer: Optimizer, chosen: set[int], rows: bool = False) -> Iterator[Unit]:
    """An optimizer, and what it holds, as what is reset together; nothing if it holds none of the chosen parameters."""
    if not parameters_of([optimizer]) & chosen:
        return
    parts = list(with_inner(optimizer))
    if all(type(part).__module__.startswith(("torch.optim.", "fire_core.")) for part in parts):
        yield from (Unit([part]) for part in parts)
        return
    kinds = [{(p.ndim, p.dtype, p.device) for p in group["params"]} for part in parts for group in part.param_groups]
    learnt = _LEARNT.get(optimizer) if rows and isinstance(optimizer, Optimizer) else None
    if learnt is not None and learnt[0] == kinds:
        builder = Builder(optimizer)
        builder.records, builder.passes_options_alone = learnt[1][0].records, False
        yield Unit(parts, builder, learnt[1])
        return
    try:
        rehearsal = Rehearsal(optimizer, chosen, rows)
        yield Unit(parts, rehearsal.builder, rehearsal.knowledge, rehearsal)
        # Other first values than zero and the weight are options, which may change.
        beginnings = [first for known in rehearsal.knowledge for first in known.beginnings.values()]
        if rows and isinstance(optimizer, Optimizer) and all(first in (0.0, "weight") for first in beginnings):
            _LEARNT[optimizer] = kinds, rehearsal.knowledge
    except CannotBuildError as error:
        inner = list(held_optimizers(optimizer).values())
        for part in inner:
            yield from _units(part, chosen, rows)
        if not inner or (optimizer.state and all(optimizer.state is not part.state for part in inner)):
            yield Unit([optimizer], problem=f"none can be built: {error}")


def parameters_by_id(parts: Iterable[Optimizer], chosen: set[int]) -> dict[int, Tensor]:
    """Those parameters of optimizers whose `id` is chosen."""
    every = (p for part in parts for group in part.param_groups for p in group["params"])
    return {id(p): p for p in every if id(p) in chosen}


def _with_state(part: Optimizer) -> list[Tensor]:
    return [p for group in part.param_groups for p in group["params"] if state_of(part, p)]


def _parameters(params: Iterable[Tensor]) -> dict[int, Tensor]:
    if isinstance(params, nn.Module):
        raise TypeError("params is a module: give its parameters, module.parameters()")
    if isinstance(params, Tensor):
        raise TypeError("params is one tensor, over whose rows a loop would go: give a list, [parameter]")
    several = list(params)
    for p in several:
        if not isinstance(p, Tensor):
            raise TypeError(f"params holds {p!r}, which is no parameter: give tensors, as in model.parameters()")
    return {id(p): p for p in several}


def _check_rows(rows: Tensor | slice, p: Tensor, dim: int) -> None:
    held = p.shape[dim] if dim < p.ndim else 0
    if isinstance(rows, slice):
        fits = dim < p.ndim
    elif rows.dtype == torch.bool:
        fits = rows.shape == (held,)
    else:  # those on a GPU would have to be waited for
        fits = not rows.is_floating_point() and (
            rows.device.type != "cpu" or all(-held <= row < held for row in rows.flatten().tolist())
        )
    if not fits:
        raise ValueError(f"rows: a parameter of shape {tuple(p.shape)} lacks some of them along dim={dim}")


# ------------------------------------------------------------------------------------------- of optimizers of torch


def _reset_known(part: Optimizer, chosen: set[int]) -> None:
    """Reset parameters in an optimizer of torch: all make their state at the first step, but for Adagrad."""
    for group in part.param_groups:
        held = [p for p in group["params"] if part.state.get(p)]
        mine = [p for p in held if id(p) in chosen]
        if isinstance(part, torch.optim.LBFGS) and any(id(p) in chosen for p in group["params"]):
            mine = held
        for p in mine:
            state = part.state[p]
            # A captured CUDA graph holds the addresses of these tensors, so they stay and become zero.
            captured = group.get("capturable") and set(state) <= {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
            if isinstance(part, torch.optim.Adagrad):
                state["step"].zero_()
                state["sum"].fill_(group["initial_accumulator_value"])
            elif captured or MASTER in state:
                state.update({key: _zeroed(value) for key, value in state.items() if key != MASTER})
            else:
                del part.state[p]


def _zeroed(value: Any) -> Any:
    """Numbers set to zero, in place where that can be; words, flags and other objects as they are."""
    if isinstance(value, Tensor):
        return value.zero_()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return type(value)(0)
    if isinstance(value, dict):
        value.update({key: _zeroed(part) for key, part in value.items()})
    elif isinstance(value, list):
        value[:] = map(_zeroed, value)
    elif type(value) is tuple:
        return tuple(map(_zeroed, value))
    return value


# ------------------------------------------------------------------------------------------ of optimizers of others


def _rehearsed(rehearsal: Rehearsal, chosen: set[int]) -> list[str]:
    """Reset the trained stand-ins, and let them step beside a new optimizer.

    Returns:
        What it keeps that a new one has otherwise, if its steps are not those of a new one; else nothing.

    Raises:
        CannotBuildError: its next step would fail.
    """
    if rehearsal.trained is None:
        return []
    copies = rehearsal.copies
    trained = list(with_inner(rehearsal.trained))
    mine = {key: p for key, p in copies.items() if key in chosen}
    _reset_learnt(trained, rehearsal.builder, rehearsal.knowledge, mine)
    fresh = copies_of(copies)
    new = rehearsal.builder.build(fresh)
    pairs = {key: (copies[key], fresh[key]) for key in copies}
    ours = [pairs[key] for key in copies if key in chosen]
    kept = what_differs(rehearsal.trained, new, ours, rehearsal.options)
    try:
        different = steps_differ(rehearsal.trained, new, pairs.values(), {id(p) for p, _ in ours}, rehearsal.mode)
    except Exception as error:  # whatever a foreign class may raise
        raise CannotBuildError(f"its next step would fail: {type(error).__name__}: {error}") from error
    return kept or ["something outside of its groups and states"] if different else []


def _left_in_groups(parts: Sequence[Optimizer], rehearsal: Rehearsal, chosen: set[int]) -> tuple[list[str], list[str]]:
    """What is not as new in the groups of parameters that were reset.

    Returns:
        Records of training, such as counters, which may show themselves later than in two steps; and lines on entries
        that are no arguments and have another value than at first, though no step was seen to change them.
    """
    records: list[str] = []
    lines: list[str] = []
    for part, known in zip(parts, rehearsal.knowledge, strict=True):
        defaults = getattr(part, "defaults", {})
        unknown = defaults.keys() - rehearsal.builder.options - rehearsal.builder.records - {"train_mode"}
        for group, first in zip(part.param_groups, known.first.groups, strict=True):
            if any(id(p) in chosen for p in group["params"]):
                for key in known.records & group.keys():
                    if _is_single(group[key]) and not same(group[key], first.get(key, ABSENT)):
                        records.append(f"{key} of a group")
                for key in unknown & group.keys():
                    if not same(group[key], defaults[key]):
                        lines.append(f"has {key}={group[key]!r} in a group, a new one {defaults[key]!r}: it stays")
    return sorted(set(records)), sorted(set(lines))


def _reset_learnt(
    parts: Sequence[Optimizer], builder: Builder, knowledge: Sequence[Knowledge], parameters: Mapping[int, Tensor]
) -> None:
    """Reset parameters in optimizers as stand-ins have shown that it is done.

    Args:
        parts: an optimizer and those that it holds: those of the builder, or trained stand-ins.
        builder: of new ones.
        knowledge: of each part.
        parameters: what is to be reset, by the `id` of the parameters of the builder's optimizer.

    Raises:
        CannotBuildError: no new one can be built on copies of these parameters.
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
            held = [p for p in group["params"] if state_of(part, p)] or group["params"]
            is_whole.append(all(id(p) in ids for p in held))
            for p in group["params"]:
                if id(p) in ids and state_of(part, p):
                    _renew_state(part, p, state_of(new_part, twins[id(p)]) if new_part is not None else {})
        twin_pairs = [(p, twins.get(id(p))) for p in parameters.values()]
        by_parameter = {
            *(key for key in known.common if _renew_by_parameter(part.state[key], new_part, key, twin_pairs)),
            *(n for n in known.attributes if _renew_by_parameter(getattr(part, n, None), new_part, n, twin_pairs)),
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
    """Whether a new one keeps tensors as large as parameters outside of their states, where steps change them."""
    firsts = [first.get(name) for first in known.first.groups for name in known.records]
    firsts += [known.first.attributes.get(name) for name in known.attributes]
    firsts += [known.first.common.get(key) for key in known.common]
    return any(tensor.numel() > 1 for first in firsts for tensor in _tensors_in(first))


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for part in inside:
        yield from _tensors_in(part)


def _renew_state(part: Optimizer, p: Tensor, new: Mapping[Any, Any]) -> None:
    state: Any = part.state[p]
    if not isinstance(state, dict):
        if None in new:
            part.state[p] = _renewed(state, new[None])
        else:
            del part.state[p]
        return
    for key in [*state, *(key for key in new if key not in state)]:
        if key != MASTER:
            if MASTER in state and key not in new:  # a state that is not empty is taken for complete
                state[key] = _zeroed(state[key])
            else:
                _renew(state, key, new)
    if not state:
        del part.state[p]


def _renew_by_parameter(
    held: Any, new_part: Optimizer | None, name: Any, pairs: Iterable[tuple[Tensor, Tensor | None]]
) -> bool:
    """Give the entries of parameters their first values in a mapping by parameter, or by `id` of a parameter.

    Args:
        held: an attribute of an optimizer, or a part of its state that belongs to no parameter.
        new_part: a new optimizer, with the same attribute or part of the state.
        name: of the attribute, or key in the state.
        pairs: parameters that are reset, and those of the new optimizer.

    Returns:
        Whether it is such a mapping.
    """
    if not isinstance(held, dict):
        return False
    for kind in (Tensor, int):  # a tensor and a number are not compared: that would be done element by element
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
    """Give an entry its first value; one that the first step makes is removed."""
    if key in first:
        held[key] = _renewed(held.get(key), first[key])
    else:
        held.pop(key, None)


def _renewed(old: Any, new: Any) -> Any:
    """The new value, in the old one's memory where it has its shape."""
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


# ------------------------------------------------------------------------------------------------------------- rows


def _is_single(value: object) -> bool:
    """Whether a piece of state is one number, a word or a flag, which belongs to the whole parameter."""
    if isinstance(value, Tensor):
        return value.numel() == 1
    return not isinstance(value, list | tuple | dict | set)


def _first_rows(unit: Unit, number: int, index: int, p: Tensor) -> dict[Any, Tensor | float]:
    """The first values of the pieces of state that hold a number for each of the weight's, where they are known."""
    part = unit.parts[number]
    state = {key: value for key, value in state_of(part, p).items() if key != MASTER and _has_rows(value, p)}
    if unit.builder is None:
        options = part.param_groups[index]
        if unit.problem:
            return {}
        return {key: p if key in _WEIGHTS else options.get(_FIRST_VALUES.get(key, ""), 0.0) for key in state}
    known = unit.knowledge[number]
    shaped = [key for key in state if known.shaped.get((index, p.ndim, key))]
    first: dict[Any, Tensor | float] = {}
    for key in shaped:
        beginning = known.beginnings.get((index, p.ndim, key))
        if beginning is not None:
            first[key] = p if isinstance(beginning, str) else beginning
    if known.constructs:
        copies = copies_of({id(p): p})
        with quiet():
            new = list(with_inner(unit.builder.build(copies)))[number]
        first |= {key: value for key, value in state_of(new, copies[id(p)]).items() if key in shaped}
    return first


def _has_rows(value: object, p: Tensor) -> bool:
    """Whether a piece of state has the weight's shape, in plain numbers."""
    if not isinstance(value, Tensor) or value.numel() == 1:
        return False
    is_plain = type(value) in (Tensor, nn.Parameter) or distributed.is_sharded(value)
    return value.shape == p.shape and value.is_floating_point() and is_plain


def fill_rows_(tensor: Tensor, rows: Tensor | slice, value: Tensor | float, dim: int = 0) -> None:
    """Write a value to rows along `dim`, in place.

    Args:
        tensor: what is written to.
        rows: index, slice, or a boolean mask, with which no number is read from the device.
        value: a number; beside an index, rows; beside a mask, a tensor of the whole shape.
        dim: the dimension that `rows` counts along.
    """
    front = tensor.transpose(0, dim)
    if isinstance(rows, Tensor) and rows.dtype == torch.bool:
        front.copy_(torch.where(rows.to(tensor.device).view(-1, *[1] * (tensor.ndim - 1)), value, front))
    elif isinstance(rows, Tensor) and not isinstance(value, Tensor):
        front.index_fill_(0, rows, value)  # an assignment would send the number to the device, and wait
    else:
        front[rows] = value
