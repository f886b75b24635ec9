"""What a new optimizer of the same class holds, learnt by building one and letting it step.

Names do not tell what a reset has to do: `k` counts steps in schedule-free and is an option of Ranger, `d` is what
Prodigy has estimated. So a new optimizer with the same options is built on small stand-ins for the parameters. What its
constructor puts into the state is what a reset puts there. The entries of its groups and the attributes that its steps
change, and that are no arguments of its constructor, are records of training; all others are options and stay.
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
    OF_SCHEDULERS,
    Builder,
    copied,
    copies_of,
    quiet,
    stand_ins_for,
    take_steps,
    twin_key,
)
from fire_core.weights.optimizers import attributes_of, held_optimizers, with_inner

MASTER = "master_param"  # where TransformerEngine's FusedAdam keeps the float32 copy of a weight: no state to forget
STEPS = 7  # that stand-ins are trained for: Prodigy's estimate moves at the second, slow weights often at the sixth
ABSENT = object()  # in place of the first value of an entry that the first step makes


@dataclass(frozen=True, eq=False)
class Contents:
    """What an optimizer holds beside the states of its parameters, copied.

    Attributes:
        groups: the entries of each group, but for the parameters.
        attributes: those that not every optimizer of torch has, by name.
        common: entries of the state that belong to no parameter, by key.
    """

    groups: list[dict[str, Any]]
    attributes: dict[str, Any]
    common: dict[Any, Any]

    @classmethod
    def of(cls, optimizer: Optimizer) -> Contents:
        """What an optimizer holds now."""
        groups = [{key: copied(v) for key, v in group.items() if key != "params"} for group in optimizer.param_groups]
        ignored = _of_every_optimizer() | {name.partition("[")[0] for name in held_optimizers(optimizer)}
        attributes = {
            name: copied(value)
            for name, value in attributes_of(optimizer).items()
            if name not in ignored and not _holds_weights(value)
        }
        common = {key: copied(value) for key, value in optimizer.state.items() if not isinstance(key, Tensor)}
        return cls(groups, attributes, common)


@cache
def _of_every_optimizer() -> set[str]:
    """Names of the attributes that torch's base class makes, and those that a learning-rate scheduler puts there."""
    plain = Optimizer([nn.Parameter(torch.zeros(1, device="cpu"))], {})
    return {*vars(plain), "step", "_opt_called", "_step_count"}


@dataclass(eq=False)
class Knowledge:
    """What stand-ins have shown of one optimizer: of a wrapper alone, or of what it wraps alone.

    Attributes:
        constructs: whether its constructor makes state for parameters.
        first: what a new one holds.
        records: names of the group entries that steps change, and that are no options.
        attributes: names of the attributes that steps change.
        common: keys of the state that belong to no parameter, and that steps change.
        shaped: (group, dimensions of a parameter, key of its state) -> whether the value holds a number for each of the
            parameter's, by the shapes of stand-ins; keys of single numbers are not in it.
        beginnings: (group, dimensions, key) -> the first value of such a piece of state, a number or "weight", where
            it shows: where a gradient of zero leaves it as it is.
    """

    constructs: bool
    first: Contents
    records: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    common: set[Any] = field(default_factory=set)
    shaped: dict[tuple[int, int, Any], bool] = field(default_factory=dict)
    beginnings: dict[tuple[int, int, Any], float | str] = field(default_factory=dict)


class Rehearsal:
    """What stand-ins show of an optimizer and of those that it holds.

    Args:
        optimizer: stays as it is.
        chosen: `id` of each parameter that is to be reset.
        rows: whether the first values of single rows of the state are wanted.

    Attributes:
        builder: of new ones.
        parts: the optimizer and those that it holds.
        knowledge: of each part.
        trained: one of the same class that has taken some steps, on `copies`; None where it takes none.
        copies: its parameters, by the `id` of those that they stand for.
        options: names of group entries that are arguments of a constructor and that no step changes.
        mode: how it steps, one of `MODES`.
        failure: why it takes no steps; empty if it does.

    Raises:
        CannotBuildError: no new one can be built.
    """

    def __init__(self, optimizer: Optimizer, chosen: set[int], rows: bool = False) -> None:
        self.builder = Builder(optimizer)
        self.parts = self.builder.parts
        self.stand_ins = stand_ins_for(self.parts, chosen)
        self.mode, self.failure = MODES[0], ""
        self.trained, self.copies, moments = self._train()
        changed: set[str] = set()
        for before, *later in zip(*moments, strict=True):
            for after in later:
                for then, now in zip(before.groups, after.groups, strict=True):
                    changed |= differing(then, now)
        self.builder.records = changed - self.builder.options
        self.options = self.builder.options - changed
        self.builder.passes_options_alone = False
        given = {name for part in self.parts for group in part.param_groups for name in group} - self.builder.options
        if given - self.builder.records - OF_SCHEDULERS - {"params"}:
            self.trained, self.copies, _ = self._train()  # again, with what the user gave beside options
        new = self.builder.build(copies_of(self.stand_ins))
        self.knowledge = [Knowledge(any(_states(part)), Contents.of(part)) for part in with_inner(new)]
        if self.trained is None:
            return
        parts = with_inner(self.trained)
        for known, part, (before, *later) in zip(self.knowledge, parts, zip(*moments, strict=True), strict=True):
            known.records = self.builder.records
            for after in later:
                known.attributes |= differing(before.attributes, after.attributes)
                known.common |= differing(before.common, after.common)
            for place, p, value in _states(part):
                if isinstance(value, Tensor) and value.numel() > 1:
                    known.shaped[place] = value.shape == p.shape and known.shaped.get(place, True)
        if rows:
            self._see_beginnings()

    def _train(self) -> tuple[Optimizer | None, dict[int, Tensor], list[list[Contents]]]:
        """A new one after some steps, in the first mode in which it steps; its parameters; and what its parts held.

        That is before its steps, after the first one (a counter may come back to 0), and after all.
        """
        failures = []
        for mode in MODES:
            copies = copies_of(self.stand_ins)
            new = self.builder.build(copies)
            moments = [[Contents.of(part) for part in with_inner(new)]]
            with quiet():
                try:
                    for count in (1, STEPS - 1):
                        take_steps(new, copies.values(), count, 0, mode)
                        moments.append([Contents.of(part) for part in with_inner(new)])
                except Exception as error:  # whatever a foreign class may raise
                    failures.append(f"{type(error).__name__}: {error}".partition("\n")[0])
                    continue
            self.mode = mode
            return new, copies, moments
        self.failure = failures[0]
        return None, {}, []

    def _see_beginnings(self) -> None:
        """Find the first values of state that gradients of zero leave as it is."""
        copies = copies_of(self.stand_ins)
        new = self.builder.build(copies)
        starts = {id(copies[key]): p.detach() for key, p in self.stand_ins.items()}
        held: list[dict[Any, Tensor]] = []
        with quiet(), suppress(Exception):
            for count in (STEPS, 1):
                take_steps(new, copies.values(), count, 0, self.mode, pull=0.0)
                held.append(
                    {
                        (number, *place, id(p)): value.clone()
                        for number, part in enumerate(with_inner(new))
                        for place, p, value in _states(part)
                        if isinstance(value, Tensor)
                    }
                )
        if len(held) < 2:
            return
        unclear = set()
        for (number, *rest, p_id), value in held[0].items():
            place = tuple(rest)
            later, start = held[1].get((number, *rest, p_id)), starts[p_id]
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
    """The first value of a piece of state, from what it was after some steps and one more without a gradient."""
    if torch.equal(value, later) and bool((value == value.flatten()[0]).all()):
        return float(value.flatten()[0])
    # A copy of the weight, which may have shrunk by weight decay.
    near = all(float((held - start).norm()) < 0.1 * float(start.norm()) for held in (value, later))
    return "weight" if near else None


def _states(optimizer: Optimizer) -> Iterator[tuple[tuple[int, int, Any], Tensor, Any]]:
    """Every piece of state of every parameter: (group, dimensions, key), the parameter, the value."""
    for index, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            for key, value in state_of(optimizer, p).items():
                yield (index, p.ndim, key), p, value


def state_of(optimizer: Optimizer, p: Tensor) -> dict[Any, Any]:
    """What an optimizer keeps of a parameter, by name; what is no mapping, under None."""
    state: Any = optimizer.state.get(p)
    if state is None or isinstance(state, dict):
        return state or {}
    return {None: state}


def same(a: Any, b: Any) -> bool:
    """Whether two pieces of what optimizers hold are equal; true for objects of which that is not known."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(_numbers(a), _numbers(b))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if any(isinstance(key, Tensor) for key in (*a, *b)):  # by parameters, of which each has its own
            return len(a) == len(b) and all(same(x, y) for x, y in zip(a.values(), b.values(), strict=True))
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if any(value is None or isinstance(value, bool | int | float | str | Tensor | set) for value in (a, b)):
        return type(a) is type(b) and bool(a == b)
    return (a is ABSENT) == (b is ABSENT)


def _holds_weights(value: Any) -> bool:
    """Whether lists hold tensors that are trained, and no record: DeepSpeed's wrappers keep weights and copies so."""
    if isinstance(value, list | tuple):
        return any(_holds_weights(part) for part in value)
    return isinstance(value, Tensor) and value.requires_grad


def _is_zero(value: object) -> bool:
    return not bool(value.any()) if isinstance(value, Tensor) else not value


def _numbers(tensor: Tensor) -> Tensor:
    return tensor.detach().nan_to_num() if tensor.is_floating_point() else tensor


def differing(some: Mapping[Any, Any], others: Mapping[Any, Any]) -> set[Any]:
    """Keys whose values are not the same, or that one of two mappings lacks."""
    return {key for key in {*some, *others} if not same(some.get(key, ABSENT), others.get(key, ABSENT))}


# ------------------------------------------------------------------------------------- beside a new one, after a reset


def what_differs(
    used: Optimizer, new: Optimizer, pairs: Iterable[tuple[Tensor, Tensor]], options: set[str]
) -> list[str]:
    """What two optimizers of one class hold differently.

    Args:
        used: one.
        new: the other.
        pairs: parameters of both whose states are compared; groups that hold none of them are passed over.
        options: names of group entries that are not compared.

    Returns:
        "k of a group", "exp_avg of a weight", "total", ..., each once.
    """
    twins = {id(p): q for p, q in pairs}
    names: list[str] = []
    for part, other in zip(with_inner(used), with_inner(new), strict=True):
        contents, fresh = Contents.of(part), Contents.of(other)
        for group, mine, its in zip(part.param_groups, contents.groups, fresh.groups, strict=True):
            if any(id(p) in twins for p in group["params"]):
                names += [f"{key} of a group" for key in differing(mine, its) - options - OF_SCHEDULERS]
        names += [str(name) for name in differing(contents.attributes, fresh.attributes)]
        names += [str(key) for key in differing(contents.common, fresh.common)]
        for group in part.param_groups:
            for p in group["params"]:
                if id(p) in twins:
                    mine, its = (
                        {key: value for key, value in state.items() if key != MASTER and not _is_zero(value)}
                        for state in (state_of(part, p), state_of(other, twins[id(p)]))
                    )
                    names += [f"{key or 'the state'} of a weight" for key in differing(mine, its)]
    return sorted(set(names))


def steps_differ(
    used: Optimizer, new: Optimizer, pairs: Iterable[tuple[Tensor, Tensor]], compared: set[int], mode: str
) -> list[Tensor]:
    """Which parameters two optimizers of one class change differently in two steps on the same gradients.

    Args:
        used: one, on the first parameters of the pairs.
        new: the other, on the second.
        pairs: parameters of equal values, all of which get gradients.
        compared: `id` of each first parameter whose change is compared.
        mode: one of `MODES`.

    Returns:
        First parameters of pairs.

    Raises:
        Exception: whatever the optimizers raise.
    """
    pairs = list(pairs)
    starts = [p.detach().clone() for p, _ in pairs]
    with quiet():
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


def not_as_new(optimizer: Optimizer, params: set[int], rehearsal: Rehearsal) -> list[str]:
    """A line for each thing that an optimizer still knows of parameters, and a new one would not.

    Args:
        optimizer: neither it nor its parameters are changed.
        params: `id` of each parameter.
        rehearsal: of this optimizer.
    """
    name = type(optimizer).__name__
    held = {id(p): p for part in rehearsal.parts for group in part.param_groups for p in group["params"]}
    copies, others = copies_of(held), copies_of(held)
    try:
        used, new = rehearsal.builder.build(copies), rehearsal.builder.build(others)
        for part, twin in zip(rehearsal.parts, with_inner(used), strict=True):
            _carry_over(part, twin, copies)
    except Exception as error:  # whatever a foreign class may raise
        return [f"{name}: no new one can be built to compare with ({type(error).__name__}: {error})"]
    pairs = [(copies[key], others[key]) for key in held if key in params]
    lines = [f"{name} keeps {what}" for what in what_differs(used, new, pairs, rehearsal.options)]
    try:
        different = steps_differ(used, new, pairs, {id(p) for p, _ in pairs}, rehearsal.mode)
    except Exception as error:  # whatever a foreign class may raise
        return [*lines, f"{name}: no step can be compared ({type(error).__name__}: {error})"]
    lines += [f"{name} takes another step than a new one for a weight of shape {tuple(p.shape)}" for p in different]
    return list(dict.fromkeys(lines))


def _carry_over(part: Optimizer, twin: Optimizer, copies: Mapping[int, Tensor]) -> None:
    """Give a new optimizer on copies of the parameters all that another one holds."""
    for group, new_group in zip(part.param_groups, twin.param_groups, strict=True):
        new_group.update({key: copied(value, copies) for key, value in group.items() if key != "params"})
    twin.state.clear()
    for key, value in part.state.items():
        twin.state[twin_key(key, copies)] = copied(value, copies)
    for name in Contents.of(part).attributes:
        setattr(twin, name, copied(getattr(part, name), copies))
