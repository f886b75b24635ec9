"""Reset what an optimizer has stored about given parameters.

After a projection the momentum of a weight belongs to the values before it. The paper starts a new optimizer at each
phase. Within a run only the state of the projected weights is stale, and only that is reset here.

What the optimizers of torch and of this package store is known. For all others it is learnt from a new optimizer
(`as_new`). The reset is then rehearsed on small stand-ins, which have to step as those of a new optimizer do; a warning
says if they do not.
"""

from __future__ import annotations

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
    MASTER_KEY,
    Knowledge,
    Rehearsal,
    are_equal,
    changed_differently,
    compare_with_new,
    list_differences,
    state_of,
)
from fire_core.weights.new_optimizer import (
    Builder,
    CannotBuildError,
    copies_of,
    steps_without_states,
    without_side_effects,
)
from fire_core.weights.optimizers import held_optimizers, optimizers_of, parameters_of, with_inner
from fire_core.weights.renewal import reset_as_learnt, zeroed

Rows = Tensor | slice | Sequence[int]
# State of torch's optimizers that does not begin at zero. From its name to the option of the group that is its first
# value, in Adagrad, Rprop and ASGD; and to the first value itself, in NAdam and ASGD.
_OPTION_OF_FIRST_VALUE = {"sum": "initial_accumulator_value", "step_size": "lr", "eta": "lr"}
_FIRST_VALUES = {"mu_product": 1.0, "mu": 1.0}
_COPIES_OF_WEIGHT = {"ax"}  # states that begin as a copy of the weight: ASGD's average
# States that begin as a copy of the weight in optimizers of which no new one can be built: those of schedule-free
# optimizers, and slow weights.
_COPIES_IN_UNKNOWN = {
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
    and bias correction included. It works with every optimizer of `torch.optim` in its foreach, fused and capturable
    variants, with the optimizers inside a wrapper or a chain (Lookahead, accelerate, Lightning, Megatron's chained
    optimizers), and with optimizers of other packages. For these, a new optimizer of the same class is built on small
    stand-ins for the parameters. It shows what the constructor makes and what steps change, and the reset is rehearsed
    on it. A `FireWarning` says if the steps after the reset are not those of a new optimizer, for example because a
    counter belongs to a whole group of which only some parameters are reset; and if no new optimizer can be built, so
    that the state is set to zero in place.

    There are two exceptions. LBFGS has one history of all its parameters, which is reset as a whole, with a
    `FireWarning`. Master copies of weights that stand in the state (`master_param`) are kept.

    With `rows`, only these rows of the state (moments, slow weights) get their first values, for methods that replace
    single units. The step counter belongs to the whole parameter and is kept. If a parameter has state without such
    rows (8 bits, factored, a preconditioner), or the first values cannot be learnt, its whole state is reset, and a
    `FireWarning` says so.

    Args:
        optimizers: one optimizer or several; a parameter that an optimizer does not hold is ignored there.
        params: the parameters; a tied one may be listed once or several times.
        rows: index, boolean mask or slice along `dim`, the same for all `params`; None: reset the whole state.
        dim: the dimension that `rows` counts along: 0 for the outputs of a layer, 1 for its inputs.
        verify: build a new optimizer of the same class for each, on copies of the parameters, and warn of every
            difference from it: states, entries of groups, attributes, and the change of a parameter by two steps on the
            same gradients. This takes three times the memory of the parameters and states.

    Returns:
        How many (optimizer, parameter) states were reset. Parameters without a state do not count, nor does what an
        optimizer of another package keeps outside its `state`, which is reset too. A `FireWarning` says if the
        optimizers hold none of the parameters; of half-precision parameters only with `verify`, since their optimizers
        may hold copies in float32.

    Raises:
        TypeError: `optimizers` holds something that is no optimizer, or `params` is no list of parameters (a module,
            one bare tensor, names).
        ValueError: a parameter does not have these `rows`; or `verify` is given with `rows`, although the other rows
            are not new.
    """
    if verify and rows is not None:
        raise ValueError("verify compares whole parameters with those of a new optimizer: not with rows=")
    optimizers, parameters = optimizers_of(optimizers), _parameters(params)
    reset = StateReset(optimizers)
    if rows is None:
        reset.whole(parameters.values())
    else:
        reset.rows(parameters.values(), rows, dim)
    notes = list(reset.notes)
    # Half-precision weights may be trained through float32 copies, whose state the caller resets by itself.
    of_none = not parameters_of(optimizers) & set(parameters) and all(p.dtype.itemsize > 2 for p in parameters.values())
    if (
        not reset.count
        and (verify or (parameters and of_none and rows is None))
        and any(part.state for part in with_inner(*optimizers))
    ):
        notes.append(
            "the optimizers keep nothing of these parameters: they train others, such as those of a model that was "
            "replaced; if they train copies of these, give the copies too"
        )
    if verify:
        notes += [line for optimizer in optimizers for line in compare_with_new(optimizer, set(parameters))]
    for note in dict.fromkeys(notes):
        warnings.warn(note, FireWarning, stacklevel=2)
    return reset.count


@dataclass(frozen=True, eq=False)
class ResetUnit:
    """Optimizers that are reset together: one that no other wraps, or a wrapper with those that it holds.

    Attributes:
        parts: the optimizer and those that it holds.
        builder: builds new ones; None for an optimizer of torch or of this package, and if no new one can be built.
        knowledge: what was learnt of each part; empty without a builder.
        rehearsal: the rehearsal of a reset of whole parameters; None without a builder, or for a reset of rows whose
            knowledge was cached.
        problem: why no new one can be built; "" otherwise.
    """

    parts: list[Optimizer]
    builder: Builder | None = None
    knowledge: Sequence[Knowledge] = ()
    rehearsal: Rehearsal | None = None
    problem: str = ""


# What was learnt of optimizers for resets of rows, which some methods do at every step; with it the kinds of their
# parameters, for which it is valid.
_KNOWLEDGE_CACHE: WeakKeyDictionary[Optimizer, tuple[object, list[Knowledge]]] = WeakKeyDictionary()


class StateReset:
    """Resets the states of parameters in optimizers, in one or several calls.

    Args:
        optimizers: all optimizers that train the parameters.

    Attributes:
        notes: lines for warnings, each once, as the keys of a dictionary in the order in which they arose.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = optimizers
        self.notes: dict[str, None] = {}
        self._states: set[tuple[int, int]] = set()

    @property
    def count(self) -> int:
        """Return the number of (optimizer, parameter) states that were reset so far, wholly or in part."""
        return len(self._states)

    @torch.no_grad()
    def whole(self, params: Iterable[Tensor]) -> None:
        """Reset the whole states of parameters."""
        chosen = {id(p) for p in params}
        for optimizer in self.optimizers:
            for unit in _reset_units(optimizer, chosen):
                # Training could not write to tensors made in inference mode. Leaving that mode allows gradients.
                with torch.inference_mode(False), torch.no_grad():
                    self._reset_unit(unit, chosen, id(optimizer))

    @torch.no_grad()
    def rows(self, params: Iterable[Tensor], rows: Rows, dim: int = 0) -> None:
        """Reset rows of the states of parameters; the arguments are those of `reset_optimizer_state`.

        Raises:
            ValueError: a parameter does not have these rows; nothing is changed.
        """
        parameters = _parameters(params)
        if not isinstance(rows, slice):
            rows = rows if isinstance(rows, Tensor) else torch.tensor(rows, device="cpu")
            rows = rows if rows.numel() else rows.long()  # an empty list makes a float tensor
        for p in parameters.values():
            _check_rows(rows, p, dim)
        for optimizer in self.optimizers:
            for unit in _reset_units(optimizer, set(parameters), rows=True):
                with torch.inference_mode(False), torch.no_grad():
                    for number, part in enumerate(unit.parts):
                        for index, group in enumerate(part.param_groups):
                            for p in group["params"]:
                                if id(p) in parameters and state_of(part, p):
                                    self._states.add((id(optimizer), id(p)))
                                    self._reset_rows(unit, number, index, p, rows, dim)

    def _reset_unit(self, unit: ResetUnit, chosen: set[int], owner: int) -> None:
        """Reset whole parameters in the optimizers of a unit, and note what stays.

        Args:
            unit: the optimizers.
            chosen: `id` of each parameter.
            owner: `id` of the optimizer that the caller named, for the count.
        """
        had_state = {id(p) for part in unit.parts for p in _with_state(part)}
        problem, parameters = unit.problem, parameters_by_id(unit.parts, chosen)
        if unit.builder is not None and unit.rehearsal is not None:
            try:
                kept = _rehearse(unit.rehearsal, chosen)
                reset_as_learnt(unit.parts, unit.builder, unit.knowledge, parameters)
                self._note_what_is_left(unit.parts, unit.rehearsal, chosen, kept)
            except Exception as error:  # whatever a foreign class may raise, when weights may have changed already
                problem = _reason(error)
        for part in unit.parts:
            if problem:
                self._reset_blindly(part, chosen, problem)
            elif unit.builder is None:
                if isinstance(part, torch.optim.LBFGS) and parameters_of([part]) - chosen and had_state:
                    self.notes["LBFGS keeps one history of all its parameters: it was reset for all of them"] = None
                _reset_known(part, chosen)
        # LBFGS keeps one history for all its parameters, in the state of the first.
        shared = set() if problem else had_state - {id(p) for part in unit.parts for p in _with_state(part)}
        self._states |= {(owner, key) for key in (had_state & chosen) | shared}

    def _note_what_is_left(
        self, parts: Sequence[Optimizer], rehearsal: Rehearsal, chosen: set[int], kept: Sequence[str]
    ) -> None:
        """Note what a reset could not make new, so that the next steps are not those of a new optimizer.

        Args:
            parts: the optimizers that were reset.
            rehearsal: their rehearsal.
            chosen: `id` of each parameter that was reset.
            kept: what `_rehearse` returned.
        """
        name = type(parts[0]).__name__
        records, lines = _left_in_groups(parts, rehearsal, chosen)
        if rehearsal.failure:
            lines.append(
                f"takes no step on stand-ins ({rehearsal.failure}), so that it is not known what its steps change: "
                "what it keeps outside of the states of the parameters stays"
            )
        if left := dict.fromkeys([*kept, *records]):
            lines.append(
                f"keeps {', '.join(left)}, so that its next steps are not those of a new one: it belongs to several "
                "parameters of which only some were reset, or no reset reaches it. Reset all parameters of the group, "
                "put those to change into a group of their own, or build a new optimizer"
            )
        self.notes |= dict.fromkeys(f"{name} {line}" for line in lines)

    def _reset_blindly(self, part: Optimizer, chosen: set[int], problem: str) -> None:
        """Reset an optimizer of which no new one can be built: remove the states, or set them to zero in place.

        They are removed only if a clone has shown that the next step makes them again.

        Args:
            part: the optimizer, without those that it wraps.
            chosen: `id` of each parameter.
            problem: why no new one can be built.
        """
        makes_states_anew = steps_without_states(part, chosen)
        for group in part.param_groups:
            for p in group["params"]:
                state: Any = part.state.get(p) if id(p) in chosen else None
                if makes_states_anew and isinstance(state, dict) and MASTER_KEY not in state:
                    del part.state[p]
                    continue
                if not isinstance(state, dict):
                    zeroed(state)
                    continue
                for key, value in state.items():
                    if key != MASTER_KEY:
                        is_copy = key in _COPIES_IN_UNKNOWN and isinstance(value, Tensor) and value.shape == p.shape
                        state[key] = value.copy_(p) if is_copy else zeroed(value)
        self.notes[
            f"{type(part).__name__} was reset without knowing what a new one holds ({problem}): the states of the "
            f"parameters are {'gone' if makes_states_anew else 'zero'} now, and what it keeps elsewhere, as in its "
            "groups, stays. Build a new optimizer instead"
        ] = None

    def _reset_rows(self, unit: ResetUnit, number: int, index: int, p: Tensor, rows: Tensor | slice, dim: int) -> None:
        """Give rows of a parameter's state their first values; if these are not known, reset its whole state.

        Args:
            unit: the optimizers.
            number: index in `unit.parts` of the one that holds the parameter.
            index: index of the parameter's group.
            p: the parameter.
            rows: index, boolean mask or slice.
            dim: the dimension that `rows` counts along.
        """
        part = unit.parts[number]
        state = {key: value for key, value in state_of(part, p).items() if key != MASTER_KEY}
        single = {key for key, value in state.items() if _is_single(value)}
        first = _first_values(unit, number, index, p)
        without_rows = [key for key in state if key not in single and key not in first]
        if without_rows:
            problem = unit.problem
            if unit.builder is not None:
                try:
                    reset_as_learnt(unit.parts, unit.builder, unit.knowledge, {id(p): p})
                except Exception as error:  # whatever a foreign class may raise, when weights may have changed already
                    problem = _reason(error)
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
            # A DTensor is gathered first, because writing to its rows would write to a copy.
            gathered = distributed.full(value).clone() if distributed.is_sharded(value) else value
            if isinstance(beginning, Tensor):
                beginning = distributed.full(beginning).detach().to(gathered.dtype).transpose(0, dim)
                is_mask = isinstance(rows, Tensor) and rows.dtype == torch.bool
                beginning = beginning if is_mask else beginning[rows]
            fill_rows_(gathered, rows, beginning, dim)
            if gathered is not value:
                distributed.write_(value, gathered)


def _reset_units(optimizer: Optimizer, chosen: set[int], rows: bool = False) -> Iterator[ResetUnit]:
    """Yield the units in which an optimizer, and those that it holds, are reset.

    Args:
        optimizer: the optimizer; if it holds none of the chosen parameters, nothing is yielded.
        chosen: `id` of each parameter that is to be reset.
        rows: whether single rows are to be reset.
    """
    if not parameters_of([optimizer]) & chosen:
        return
    # accelerate's wrapper has no state of its own: it shows that of the optimizer inside.
    if type(optimizer).__module__.startswith("accelerate."):
        for part in held_optimizers(optimizer).values():
            yield from _reset_units(part, chosen, rows)
        return
    parts = [*with_inner(optimizer)]
    if all(type(part).__module__.startswith(("torch.optim.", "fire_core.")) for part in parts):
        yield from (ResetUnit([part]) for part in parts)
        return
    kinds = [{(p.ndim, p.dtype, p.device) for p in group["params"]} for part in parts for group in part.param_groups]
    cached = _KNOWLEDGE_CACHE.get(optimizer) if rows and isinstance(optimizer, Optimizer) else None
    if cached is not None and cached[0] == kinds:
        knowledge = cached[1]
        builder = Builder(optimizer)
        builder.records, builder.passes_options_alone = knowledge[0].records, False
        yield ResetUnit(parts, builder, knowledge)
        return
    try:
        rehearsal = Rehearsal(optimizer, chosen, rows)
    except Exception as error:  # whatever a foreign class may raise, when weights may have changed already
        inner = list(held_optimizers(optimizer).values())
        for part in inner:
            yield from _reset_units(part, chosen, rows)
        if not inner or (optimizer.state and all(optimizer.state is not part.state for part in inner)):
            yield ResetUnit([optimizer], problem=f"none can be built: {_reason(error)}")
        return
    yield ResetUnit(parts, rehearsal.builder, rehearsal.knowledge, rehearsal)
    # First values other than zero and the weight come from options, which may change, so they are not cached.
    beginnings = [first for known in rehearsal.knowledge for first in known.beginnings.values()]
    if rows and isinstance(optimizer, Optimizer) and all(first in (0.0, "weight") for first in beginnings):
        _KNOWLEDGE_CACHE[optimizer] = kinds, rehearsal.knowledge


def _reason(error: Exception) -> str:
    """Return in one line why nothing can be learnt of an optimizer."""
    first_line = str(error).partition("\n")[0]
    return first_line if isinstance(error, CannotBuildError) else f"{type(error).__name__}: {first_line}"


def parameters_by_id(parts: Iterable[Optimizer], chosen: set[int]) -> dict[int, Tensor]:
    """Return the parameters of optimizers whose `id` is in `chosen`, by that `id`."""
    parameters = (p for part in parts for group in part.param_groups for p in group["params"])
    return {id(p): p for p in parameters if id(p) in chosen}


def _with_state(part: Optimizer) -> list[Tensor]:
    """Return the parameters for which an optimizer keeps a state."""
    return [p for group in part.param_groups for p in group["params"] if state_of(part, p)]


def _parameters(params: Iterable[Tensor]) -> dict[int, Tensor]:
    """Return parameters by their `id`, each once.

    Raises:
        TypeError: `params` is a module or a single tensor, or holds something that is no tensor.
    """
    if isinstance(params, nn.Module):
        raise TypeError("params is a module: give its parameters, module.parameters()")
    if isinstance(params, Tensor):
        raise TypeError("params is one tensor, over whose rows a loop would go: give a list, [parameter]")
    as_list = list(params)
    for p in as_list:
        if not isinstance(p, Tensor):
            raise TypeError(f"params holds {p!r}, which is no parameter: give tensors, as in model.parameters()")
    return {id(p): p for p in as_list}


def _check_rows(rows: Tensor | slice, p: Tensor, dim: int) -> None:
    """Check that a parameter has these rows along a dimension.

    Raises:
        ValueError: it has not, or an index is no whole number.
    """
    count = p.shape[dim] if dim < p.ndim else 0
    if isinstance(rows, slice):
        fits = dim < p.ndim
    elif rows.dtype == torch.bool:
        fits = rows.shape == (count,)
    else:  # an index on a GPU is not read, since that would wait for the device
        fits = not rows.is_floating_point() and (
            rows.device.type != "cpu" or all(-count <= row < count for row in rows.flatten().tolist())
        )
    if not fits:
        raise ValueError(f"rows: a parameter of shape {tuple(p.shape)} lacks some of them along dim={dim}")


# --------------------------------------------------------------------------------- optimizers of torch and this package


def _reset_known(part: Optimizer, chosen: set[int]) -> None:
    """Reset the parameters with these `id`s in an optimizer of torch or of this package.

    The states are removed, since all of these optimizers but Adagrad make them at the first step.
    """
    for group in part.param_groups:
        with_state = [p for p in group["params"] if part.state.get(p)]
        to_reset = [p for p in with_state if id(p) in chosen]
        if isinstance(part, torch.optim.LBFGS) and any(id(p) in chosen for p in group["params"]):
            to_reset = with_state  # its one history is of all parameters together
        for p in to_reset:
            state = part.state[p]
            if isinstance(part, torch.optim.Adagrad) or group.get("capturable"):
                _renew_in_place(state, group)
            elif MASTER_KEY in state:
                state.update({key: zeroed(value) for key, value in state.items() if key != MASTER_KEY})
            else:
                del part.state[p]


def _renew_in_place(state: dict[str, Any], group: Mapping[str, Any]) -> None:
    """Give the tensors of a parameter's state the values that they have in a new optimizer of torch, in place.

    A captured CUDA graph holds the addresses of these tensors.
    """
    for key, value in state.items():
        if not isinstance(value, Tensor) or key == MASTER_KEY:
            continue
        first = group[_OPTION_OF_FIRST_VALUE[key]] if key in _OPTION_OF_FIRST_VALUE else _FIRST_VALUES.get(key, 0.0)
        if isinstance(first, Tensor):  # a rate that a captured graph reads
            value.copy_(first)
        else:
            value.fill_(first)


# ------------------------------------------------------------------------------------------ optimizers of others


def _rehearse(rehearsal: Rehearsal, chosen: set[int]) -> list[str]:
    """Reset the trained stand-ins of a rehearsal, and compare their next steps with those of a new optimizer.

    Args:
        rehearsal: the rehearsal; its `trained` optimizer is changed.
        chosen: `id` of each parameter that is to be reset.

    Returns:
        If the steps differ, the names of what the reset optimizer holds differently from a new one; else nothing.

    Raises:
        CannotBuildError: its next step would fail.
    """
    if rehearsal.trained is None:
        return []
    copies = rehearsal.copies
    trained = list(with_inner(rehearsal.trained))
    to_reset = {key: p for key, p in copies.items() if key in chosen}
    reset_as_learnt(trained, rehearsal.builder, rehearsal.knowledge, to_reset)
    fresh = copies_of(copies)
    new = rehearsal.builder.build(fresh)
    pairs = {key: (copies[key], fresh[key]) for key in copies}
    reset_pairs = [pairs[key] for key in to_reset]
    kept = list_differences(rehearsal.trained, new, reset_pairs, rehearsal.options)
    try:
        compared = {id(p) for p in to_reset.values()}
        different = changed_differently(rehearsal.trained, new, pairs.values(), compared, rehearsal.mode)
    except Exception as error:  # whatever a foreign class may raise
        raise CannotBuildError(f"its next step would fail: {type(error).__name__}: {error}") from error
    return kept or ["something outside of its groups and states"] if different else []


def _left_in_groups(parts: Sequence[Optimizer], rehearsal: Rehearsal, chosen: set[int]) -> tuple[list[str], list[str]]:
    """Return what is not as new in the groups of parameters that were reset.

    Args:
        parts: the optimizers that were reset.
        rehearsal: their rehearsal.
        chosen: `id` of each parameter that was reset.

    Returns:
        Names of records of training, such as counters, whose effect two steps may not show; and lines on entries that
        are no arguments of a constructor and do not have their first value, although no step was seen to change them.
    """
    records: list[str] = []
    lines: list[str] = []
    for part, known in zip(parts, rehearsal.knowledge, strict=True):
        defaults = getattr(part, "defaults", {})
        unknown = defaults.keys() - rehearsal.builder.options - rehearsal.builder.records - {"train_mode"}
        for group, first in zip(part.param_groups, known.first.groups, strict=True):
            if any(id(p) in chosen for p in group["params"]):
                for key in known.records & group.keys():
                    if _is_single(group[key]) and not are_equal(group[key], first.get(key, ABSENT)):
                        records.append(f"{key} of a group")
                for key in unknown & group.keys():
                    if not are_equal(group[key], defaults[key]):
                        lines.append(f"has {key}={group[key]!r} in a group, a new one {defaults[key]!r}: it stays")
    return sorted(set(records)), sorted(set(lines))


# ------------------------------------------------------------------------------------------------------------- rows


def _is_single(value: object) -> bool:
    """Return whether a piece of state is one number, a text or a flag, which belongs to the whole parameter."""
    if isinstance(value, Tensor):
        return value.numel() == 1
    return not isinstance(value, list | tuple | dict | set)


def _first_values(unit: ResetUnit, number: int, index: int, p: Tensor) -> dict[Any, Tensor | float]:
    """Return the first values of those pieces of a parameter's state that have its shape, if they are known.

    Args:
        unit: the optimizers.
        number: index in `unit.parts` of the one that holds the parameter.
        index: index of the parameter's group.
        p: the parameter.

    Returns:
        From the key of a piece of state to its first value, a number or a tensor of the parameter's shape.
    """
    part = unit.parts[number]
    state = {key: value for key, value in state_of(part, p).items() if key != MASTER_KEY and _has_rows(value, p)}
    first: dict[Any, Tensor | float] = {}
    if unit.builder is None:
        options = part.param_groups[index]
        if unit.problem:
            return {}
        for key in state:
            option = _OPTION_OF_FIRST_VALUE.get(key, "")
            first[key] = p if key in _COPIES_OF_WEIGHT else options.get(option, 0.0)
        return first
    known = unit.knowledge[number]
    shaped = [key for key in state if known.shaped.get((index, p.ndim, key))]
    for key in shaped:
        beginning = known.beginnings.get((index, p.ndim, key))
        if beginning is not None:
            first[key] = p if isinstance(beginning, str) else beginning
    if known.constructs:
        copies = copies_of({id(p): p})
        with without_side_effects():
            new = list(with_inner(unit.builder.build(copies)))[number]
        first |= {key: value for key, value in state_of(new, copies[id(p)]).items() if key in shaped}
    return first


def _has_rows(value: object, p: Tensor) -> bool:
    """Return whether a piece of state is a plain tensor of floating-point numbers with the parameter's shape."""
    if not isinstance(value, Tensor) or value.numel() == 1:
        return False
    is_plain = type(value) in (Tensor, nn.Parameter) or distributed.is_sharded(value)
    return value.shape == p.shape and value.is_floating_point() and is_plain


def fill_rows_(tensor: Tensor, rows: Tensor | slice, value: Tensor | float, dim: int = 0) -> None:
    """Write a value to rows of a tensor, in place.

    Args:
        tensor: the tensor to write to.
        rows: an index, a slice or a boolean mask of shape (number of rows,). With a mask nothing is read from the
            device.
        value: a number, or a tensor with `dim` moved to the front: with a mask all rows, else only those in `rows`.
        dim: the dimension that `rows` counts along.
    """
    front = tensor.transpose(0, dim)
    if isinstance(rows, Tensor) and rows.dtype == torch.bool:
        front.copy_(torch.where(rows.to(tensor.device).view(-1, *[1] * (tensor.ndim - 1)), value, front))
    elif isinstance(rows, Tensor) and not isinstance(value, Tensor):
        front.index_fill_(0, rows, value)  # an assignment would copy the number to the device, and wait
    else:
        front[rows] = value
