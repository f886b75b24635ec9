"""What a new optimizer of the same class holds, learnt by building one and letting it step.

Names do not tell what a reset has to do: `k` counts steps in schedule-free optimizers and is an option of Ranger; `d`
is an estimate of Prodigy. So a new optimizer with the same options is built on small stand-ins for the parameters. A
reset puts into the state what the new one's constructor puts there. Group entries and attributes that the new one's
steps change, and that are no arguments of its constructor, are records of training; all others are options and stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.weights.new_optimizer import (
    MODES,
    SCHEDULER_ENTRIES,
    Builder,
    CannotBuildError,
    copies_of,
    deep_copy,
    stand_ins_for,
    take_steps,
    twin_key,
    without_side_effects,
)
from fire_core.weights.optimizers import attributes_of, held_optimizers, parameters_of, with_inner

# Key of the float32 copy of a weight in the state of TransformerEngine's FusedAdam: a weight, which no reset forgets.
MASTER_KEY = "master_param"
# Steps that stand-ins are trained for: Prodigy's estimate changes at the second, slow weights often at the sixth.
STEPS = 7
ABSENT = object()  # stands for the value of an entry that does not exist, such as one that the first step makes


@dataclass(frozen=True, eq=False)
class Contents:
    """Copies of what an optimizer holds besides the states of its parameters.

    Attributes:
        groups: the entries of each group, without the parameters.
        attributes: attributes by name, without those that every optimizer of torch has.
        common: entries of the state that belong to no single parameter, by key.
    """

    groups: list[dict[str, Any]]
    attributes: dict[str, Any]
    common: dict[Any, Any]

    @classmethod
    def of(cls, optimizer: Optimizer) -> Contents:
        """Copy what an optimizer holds now."""
        groups = [
            {key: deep_copy(v) for key, v in group.items() if key != "params"} for group in optimizer.param_groups
        ]
        ignored = _standard_attributes() | {name.partition("[")[0] for name in held_optimizers(optimizer)}
        attributes = {
            name: deep_copy(value)
            for name, value in attributes_of(optimizer).items()
            if name not in ignored and not _holds_weights(value)
        }
        common = {key: deep_copy(value) for key, value in optimizer.state.items() if not isinstance(key, Tensor)}
        return cls(groups, attributes, common)


@cache
def _standard_attributes() -> set[str]:
    """Return the names of attributes that torch's base class, a scheduler or accelerate puts into an optimizer."""
    plain = Optimizer([nn.Parameter(torch.zeros(1, device="cpu"))], {})
    return {*vars(plain), "step", "_opt_called", "_step_count", "_is_accelerate_prepared"}


@dataclass(eq=False)
class Knowledge:
    """What stand-ins have shown of one optimizer: of a wrapper without what it wraps, or of a wrapped one.

    Attributes:
        constructs: whether its constructor makes state for parameters.
        first: what a new one holds.
        records: names of the group entries that steps change and that are no options.
        attributes: names of the attributes that steps change.
        common: keys of the state that belong to no single parameter and that steps change.
        shaped: from (index of the group, number of dimensions of a parameter, key in its state) to whether the value
            has the shape of the parameter. Keys whose values are single numbers are left out.
        beginnings: from the same to the first value of that piece of state, a number or "weight" for a copy of the
            weight. It has only those pieces that steps with gradients of zero do not change, since others do not show
            their first values.
    """

    constructs: bool
    first: Contents
    records: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    common: set[Any] = field(default_factory=set)
    shaped: dict[tuple[int, int, Any], bool] = field(default_factory=dict)
    beginnings: dict[tuple[int, int, Any], float | str] = field(default_factory=dict)


class Rehearsal:
    """Builds and trains an optimizer of the same class on stand-ins, to learn how the given one has to be reset.

    Args:
        optimizer: the given optimizer, which is not changed.
        chosen: `id` of each parameter that is to be reset.
        rows: whether to learn the first values of the state too, which a reset of single rows needs.

    Attributes:
        builder: builds new optimizers.
        parts: the given optimizer and those that it holds.
        stand_ins: from the `id` of a parameter to its stand-in.
        knowledge: what was learnt of each part.
        trained: an optimizer of the same class after some steps on `copies`; None if it takes no steps.
        copies: the parameters of `trained`, by the `id` of the parameters that they stand for.
        options: names of group entries that are arguments of a constructor and that no step changes.
        mode: how it takes steps, one of `MODES`.
        failure: why it takes no steps; "" if it does.

    Raises:
        CannotBuildError: no new optimizer can be built.
    """

    def __init__(self, optimizer: Optimizer, chosen: set[int], rows: bool = False) -> None:
        self.builder = Builder(optimizer)
        self.parts = self.builder.parts
        self.stand_ins = stand_ins_for(self.parts, chosen)
        self.mode, self.failure = MODES[0], ""
        self.trained, self.copies, snapshots = self._train()
        self._learn_records(snapshots)
        self.builder.passes_options_alone = False
        entries = {name for part in self.parts for group in part.param_groups for name in group}
        if entries - self.builder.options - self.builder.records - SCHEDULER_ENTRIES - {"params"}:
            needs_entries = self.trained is None
            self.trained, self.copies, again = self._train()  # with the user's own entries in the groups
            if needs_entries:
                snapshots = again
                self._learn_records(snapshots)
        new = self.builder.build(copies_of(self.stand_ins))
        self.knowledge = [Knowledge(any(_states(part)), Contents.of(part)) for part in with_inner(new)]
        if self.trained is None:
            return
        parts = with_inner(self.trained)
        for known, part, (before, *later) in zip(self.knowledge, parts, zip(*snapshots, strict=True), strict=True):
            known.records = self.builder.records
            for after in later:
                known.attributes |= differing_keys(before.attributes, after.attributes)
                known.common |= differing_keys(before.common, after.common)
            for place, p, value in _states(part):
                if isinstance(value, Tensor) and value.numel() > 1:
                    known.shaped[place] = value.shape == p.shape and known.shaped.get(place, True)
        if rows:
            self._learn_beginnings()

    def _learn_records(self, snapshots: list[list[Contents]]) -> None:
        """Learn from the snapshots of `_train` which group entries steps change; the others are options."""
        changed: set[str] = set()
        for before, *later in zip(*snapshots, strict=True):  # for each part
            for after in later:
                for group_before, group_after in zip(before.groups, after.groups, strict=True):
                    changed |= differing_keys(group_before, group_after)
        self.builder.records = changed - self.builder.options
        self.options = self.builder.options - changed

    def _train(self) -> tuple[Optimizer | None, dict[int, Tensor], list[list[Contents]]]:
        """Build a new optimizer and let it take `STEPS` steps, in the first mode in which it can.

        Returns:
            The optimizer, its parameters by the `id` of those that they stand for, and three snapshots of the contents
            of its parts: before its steps, after the first (a counter may come back to 0) and after all. None and
            nothing if it takes no steps in any mode.
        """
        failures = []
        for mode in MODES:
            copies = copies_of(self.stand_ins)
            new = self.builder.build(copies)
            snapshots = [[Contents.of(part) for part in with_inner(new)]]
            with without_side_effects():
                try:
                    for count in (1, STEPS - 1):
                        take_steps(new, copies.values(), count, 0, mode)
                        snapshots.append([Contents.of(part) for part in with_inner(new)])
                except Exception as error:  # whatever a foreign class may raise
                    failures.append(f"{type(error).__name__}: {error}".partition("\n")[0])
                    continue
            self.mode, self.failure = mode, ""
            return new, copies, snapshots
        self.failure = failures[0]
        return None, {}, []

    def _learn_beginnings(self) -> None:
        """Find the first values of those pieces of state that gradients of zero do not change."""
        copies = copies_of(self.stand_ins)
        new = self.builder.build(copies)
        starts = {id(copies[key]): p.detach() for key, p in self.stand_ins.items()}
        states: list[dict[Any, Tensor]] = []  # after `STEPS` steps, and after one more
        with without_side_effects(), suppress(Exception):
            for count in (STEPS, 1):
                take_steps(new, copies.values(), count, 0, self.mode, pull=0.0)
                states.append(
                    {
                        (number, *place, id(p)): value.clone()
                        for number, part in enumerate(with_inner(new))
                        for place, p, value in _states(part)
                        if isinstance(value, Tensor)
                    }
                )
        if len(states) < 2:  # a step has failed
            return
        unclear = set()
        for (number, *rest, p_id), value in states[0].items():
            place = tuple(rest)
            later, start = states[1].get((number, *rest, p_id)), starts[p_id]
            beginning: float | str | None = None
            if later is not None and value.shape == start.shape and value.is_floating_point():
                beginning = _beginning(value.float(), later.float(), start.float())
            known = self.knowledge[number].beginnings
            if beginning is None or known.get(place, beginning) != beginning:
                unclear.add((number, place))
            else:
                known[place] = beginning
        for number, place in unclear:
            self.knowledge[number].beginnings.pop(place, None)


def _beginning(value: Tensor, later: Tensor, start: Tensor) -> float | str | None:
    """Return the first value of a piece of state, a number or "weight"; None if it does not show.

    Args:
        value: the state after some steps with gradients of zero.
        later: the state after one more such step.
        start: the weight before all steps.
    """
    if torch.equal(value, later) and bool((value == value.flatten()[0]).all()):
        return float(value.flatten()[0])
    # A copy of the weight is not exactly the weight: weight decay may have shrunk it.
    is_near_weight = all(float((state - start).norm()) < 0.1 * float(start.norm()) for state in (value, later))
    return "weight" if is_near_weight else None


def _states(optimizer: Optimizer) -> Iterator[tuple[tuple[int, int, Any], Tensor, Any]]:
    """Yield every piece of state of every parameter of an optimizer, without those that it wraps.

    Yields:
        (index of the group, number of dimensions of the parameter, key), the parameter, the value.
    """
    for index, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            for key, value in state_of(optimizer, p).items():
                yield (index, p.ndim, key), p, value


def state_of(optimizer: Optimizer, p: Tensor) -> dict[Any, Any]:
    """Return the state that an optimizer keeps for a parameter, by key; a state that is no mapping is under None."""
    state: Any = optimizer.state.get(p)
    if state is None or isinstance(state, dict):
        return state or {}
    return {None: state}


def are_equal(a: Any, b: Any) -> bool:
    """Return whether two values that optimizers hold are equal.

    Two objects of a class that is not known here count as equal. NaN equals NaN.
    """
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(_numbers(a), _numbers(b))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(are_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if any(isinstance(key, Tensor) for key in (*a, *b)):  # parameters, which differ between two optimizers
            return len(a) == len(b) and all(are_equal(x, y) for x, y in zip(a.values(), b.values(), strict=True))
        return a.keys() == b.keys() and all(are_equal(a[key], b[key]) for key in a)
    if any(value is None or isinstance(value, bool | int | float | str | Tensor | set) for value in (a, b)):
        return type(a) is type(b) and bool(a == b)
    return (a is ABSENT) == (b is ABSENT)


def _holds_weights(value: Any) -> bool:
    """Return whether a value is a trained tensor or a list with one, as DeepSpeed's wrappers keep weights."""
    if isinstance(value, list | tuple):
        return any(_holds_weights(part) for part in value)
    return isinstance(value, Tensor) and value.requires_grad


def _is_zero(value: object) -> bool:
    """Return whether a value of a state is zero, false or empty, so that it counts as no state."""
    return not bool(value.any()) if isinstance(value, Tensor) else not value


def _numbers(tensor: Tensor) -> Tensor:
    """Return a tensor without NaN, so that a comparison finds NaN equal to NaN."""
    return tensor.detach().nan_to_num() if tensor.is_floating_point() else tensor


def differing_keys(first: Mapping[Any, Any], second: Mapping[Any, Any]) -> set[Any]:
    """Return the keys whose values differ between two mappings, or that one of them lacks."""
    return {key for key in {*first, *second} if not are_equal(first.get(key, ABSENT), second.get(key, ABSENT))}


# ------------------------------------------------------------------------------------------- comparing with a new one


def list_differences(
    used: Optimizer, new: Optimizer, pairs: Iterable[tuple[Tensor, Tensor]], options: set[str]
) -> list[str]:
    """Return the names of everything that two optimizers of one class hold differently.

    Args:
        used: the optimizer that was trained.
        new: a new one.
        pairs: pairs of a parameter of `used` and its counterpart in `new`. The states of these are compared, and the
            groups that hold at least one of them.
        options: names of group entries that are not compared.

    Returns:
        Such as "k of a group", "exp_avg of a weight" or "total" (an attribute), sorted, each once.
    """
    twins = {id(p): q for p, q in pairs}
    names: list[str] = []
    for part, other in zip(with_inner(used), with_inner(new), strict=True):
        contents, fresh = Contents.of(part), Contents.of(other)
        for group, entries, new_entries in zip(part.param_groups, contents.groups, fresh.groups, strict=True):
            if any(id(p) in twins for p in group["params"]):
                differing = differing_keys(entries, new_entries) - options - SCHEDULER_ENTRIES
                names += [f"{key} of a group" for key in differing]
        names += [str(name) for name in differing_keys(contents.attributes, fresh.attributes)]
        names += [str(key) for key in differing_keys(contents.common, fresh.common)]
        for group in part.param_groups:
            for p in group["params"]:
                if id(p) in twins:
                    differing = differing_keys(_training_state(part, p), _training_state(other, twins[id(p)]))
                    names += [f"{key or 'the state'} of a weight" for key in differing]
    return sorted(set(names))


def _training_state(optimizer: Optimizer, p: Tensor) -> dict[Any, Any]:
    """Return the state of a parameter without its master copy and without zeros."""
    state = state_of(optimizer, p)
    return {key: value for key, value in state.items() if key != MASTER_KEY and not _is_zero(value)}


def changed_differently(
    used: Optimizer, new: Optimizer, pairs: Iterable[tuple[Tensor, Tensor]], compared: set[int], mode: str
) -> list[Tensor]:
    """Return the parameters that two optimizers of one class change differently in two steps on the same gradients.

    Args:
        used: the optimizer that was trained, on the first parameters of the pairs.
        new: a new one, on the second parameters of the pairs.
        pairs: pairs of parameters with equal values, all of which get gradients.
        compared: `id` of each first parameter whose change is compared.
        mode: how the steps are taken, one of `MODES`.

    Returns:
        The first parameters of those pairs whose changes differ by more than rounding.

    Raises:
        Exception: whatever the optimizers raise.
    """
    pairs = list(pairs)
    starts = [p.detach().clone() for p, _ in pairs]
    with without_side_effects():
        take_steps(used, (p for p, _ in pairs), 2, 1, mode)
        take_steps(new, (q for _, q in pairs), 2, 1, mode)
    different = []
    for start, (p, q) in zip(starts, pairs, strict=True):
        if id(p) in compared:
            used_step, new_step = ((end.detach() - start).double().nan_to_num(1e30) for end in (p, q))
            rounding = 4 * torch.finfo(p.dtype).eps * float(start.double().norm())
            if float((used_step - new_step).norm()) > 1e-3 * float(new_step.norm()) + rounding:
                different.append(p)
    return different


def compare_with_new(optimizer: Optimizer, chosen: set[int] | None = None) -> list[str]:
    """Return a line for each difference of an optimizer from a new one.

    If no new wrapper can be built, the optimizers inside it are compared instead.

    Args:
        optimizer: the optimizer; neither it nor its parameters are changed.
        chosen: `id` of each parameter that the differences are to concern; None: all parameters of the optimizer.
    """
    parameters = parameters_of([optimizer])
    if chosen is None:
        chosen = set(parameters)
    if chosen.isdisjoint(parameters):
        return []
    try:
        return differences_from_new(optimizer, chosen, Rehearsal(optimizer, chosen))
    except CannotBuildError as error:
        inner = held_optimizers(optimizer).values()
        if inner:
            return [line for part in inner for line in compare_with_new(part, chosen)]
        return [f"{type(optimizer).__name__}: no new one can be built to compare with ({error})"]


def differences_from_new(optimizer: Optimizer, params: set[int], rehearsal: Rehearsal) -> list[str]:
    """Compare an optimizer with a new one.

    Args:
        optimizer: the optimizer; neither it nor its parameters are changed.
        params: `id` of each parameter whose state and steps are compared.
        rehearsal: the rehearsal of this optimizer.

    Returns:
        A line for each thing that the optimizer still knows of these parameters and a new one would not; or a line
        that says why they cannot be compared.
    """
    name = type(optimizer).__name__
    parameters = {id(p): p for part in rehearsal.parts for group in part.param_groups for p in group["params"]}
    copies, others = copies_of(parameters), copies_of(parameters)
    try:
        used, new = rehearsal.builder.build(copies), rehearsal.builder.build(others)
        for part, twin in zip(rehearsal.parts, with_inner(used), strict=True):
            _carry_over(part, twin, copies)
    except Exception as error:  # whatever a foreign class may raise
        return [f"{name}: no new one can be built to compare with ({type(error).__name__}: {error})"]
    pairs = [(copies[key], others[key]) for key in parameters if key in params]
    lines = [f"{name} keeps {difference}" for difference in list_differences(used, new, pairs, rehearsal.options)]
    try:
        different = changed_differently(used, new, pairs, {id(p) for p, _ in pairs}, rehearsal.mode)
    except Exception as error:  # whatever a foreign class may raise
        return [*lines, f"{name}: no step can be compared ({type(error).__name__}: {error})"]
    lines += [f"{name} takes another step than a new one for a weight of shape {tuple(p.shape)}" for p in different]
    return list(dict.fromkeys(lines))


def _carry_over(part: Optimizer, twin: Optimizer, copies: Mapping[int, Tensor]) -> None:
    """Copy all that an optimizer holds into a new one on copies of its parameters.

    Args:
        part: the optimizer.
        twin: the new one, which is changed.
        copies: from the `id` of a parameter of `part` to its copy in `twin`.
    """
    for group, new_group in zip(part.param_groups, twin.param_groups, strict=True):
        new_group.update({key: deep_copy(value, copies) for key, value in group.items() if key != "params"})
    twin.state.clear()
    for key, value in part.state.items():
        twin.state[twin_key(key, copies)] = deep_copy(value, copies)
    for name in Contents.of(part).attributes:
        setattr(twin, name, deep_copy(getattr(part, name), copies))
