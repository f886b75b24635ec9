"""A new optimizer of the class and options of one that is given, on other parameters, and steps of it."""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.weights.generators import kept_generators
from fire_core.weights.optimizers import attributes_of, held_optimizers, with_inner

SIZES = (5, 7, 3, 2)  # of a stand-in's dimensions: all different, so that a shape tells what a piece of state is for
ALIKE = 2  # stand-ins for parameters of one kind in a group: one buffer for several shows
# How steps are taken: after a backward pass; by a closure; with the graph kept for second derivatives.
MODES = ("plain", "closure", "graph")
OPTION = (bool, int, float, str, tuple)  # what an argument is that an optimizer keeps as an attribute
OF_SCHEDULERS = {"initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum"}  # entries of a group


class CannotBuildError(Exception):
    """No new optimizer of the class can be built; the message says why."""


class Builder:
    """Builds new optimizers of the class and options of one that is given.

    Args:
        optimizer: stays as it is. Around what it holds, a wrapper's new one is built too.

    Attributes:
        parts: the optimizer and those that it holds.
        options: names of the arguments of their constructors, which are no records of training whatever they hold.
        records: names of the group entries that a new one must not be given.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.parts = list(with_inner(optimizer))
        self.options = {name for part in self.parts for name in arguments_of(type(part))}
        self.records: set[str] = set()
        self.passes_options_alone = True  # until it is known what the records are

    def build(self, stand_ins: Mapping[int, Tensor]) -> Optimizer:
        """A new optimizer on stand-ins for its parameters.

        Args:
            stand_ins: `id` of a parameter -> what stands for it; parameters without one are left out.

        Raises:
            CannotBuildError: with the reason.
        """
        ways: list[Callable[[str], bool]] = [
            lambda name: name not in self.records,
            lambda name: name not in self.records | OF_SCHEDULERS,
        ]
        if self.passes_options_alone:  # a class may insist on entries that are no arguments, as use_muon
            ways.insert(0, lambda name: name in self.options)
        failure: Exception | None = None
        for passes in ways:
            with quiet():
                try:
                    new: Optimizer = self._build(self.optimizer, stand_ins, passes)
                    if any(group.get("train_mode") for group in self.optimizer.param_groups):
                        new.train()  # type: ignore[attr-defined]  # schedule-free's
                except Exception as error:  # whatever a foreign class may raise
                    failure = error
                    continue
            if [type(part) for part in with_inner(new)] == [type(part) for part in self.parts]:
                return new
        reason = str(failure).partition("\n")[0] if failure else "a new one holds other optimizers"
        raise CannotBuildError(reason or type(failure).__name__) from failure

    def _build(self, optimizer: Optimizer, stand_ins: Mapping[int, Tensor], passes: Callable[[str], bool]) -> Any:
        groups = [
            {key: copy.deepcopy(value) for key, value in group.items() if key != "params" and passes(key)}
            | {"params": [stand_ins[id(p)] for p in group["params"] if id(p) in stand_ins]}
            for group in optimizer.param_groups
        ]
        inner, attributes = held_optimizers(optimizer), attributes_of(optimizer)
        defaults = getattr(optimizer, "defaults", {})
        # Some keep options as attributes, or in an object of such.
        objects = [attributes, *(vars(value) for value in attributes.values() if hasattr(value, "__dict__"))]
        values: dict[str, Any] = {}
        kept: dict[str, Any] = {}
        for position, (name, argument) in enumerate(arguments_of(type(optimizer)).items()):
            wrapped = inner.get(name, inner.get(f"_{name}"))
            if wrapped is None and position == 0 and name != "params" and len(inner) == 1:
                (wrapped,) = inner.values()
            if wrapped is not None:  # after the parameters a wrapper takes the class, as SAM does
                values[name] = type(wrapped) if "params" in values else self._build(wrapped, stand_ins, passes)
            elif name == "params" or position == 0:
                values[name] = groups
            elif name == "defaults":  # the class has the constructor of all optimizers
                values[name] = copy.deepcopy(defaults)
            elif name in defaults:
                values[name] = copy.deepcopy(defaults[name])
            elif candidates := [held[name] for held in objects if isinstance(held.get(name), OPTION)]:
                kept[name] = candidates[0]
            elif argument.default is argument.empty:
                raise CannotBuildError(f"the value of its argument {name} is not known")
        try:
            return type(optimizer)(**values, **kept)
        except Exception:  # an attribute of the same name need not be what the constructor took
            accepted: dict[str, Any] = {}
            for name, value in kept.items():
                with suppress(Exception):
                    type(optimizer)(**values, **accepted, **{name: value})
                    accepted[name] = value
            return type(optimizer)(**values, **accepted)


def arguments_of(kind: type) -> dict[str, inspect.Parameter]:
    """The arguments of a class's constructor by name, with those that it passes on as keywords to its parents'."""
    arguments: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__:
        constructor: Any = vars(base).get("__init__")
        if constructor is None or base is object:
            continue
        given = list(inspect.signature(constructor).parameters.values())[1:]
        named = [argument for argument in given if argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)]
        if arguments:  # a parent's: what it needs, the child gives it
            named = [argument for argument in named if argument.default is not argument.empty]
        for argument in named:
            arguments.setdefault(argument.name, argument)
        if all(argument.kind is not argument.VAR_KEYWORD for argument in given):
            break
    return arguments


def stand_ins_for(parts: Iterable[Optimizer], chosen: set[int]) -> dict[int, Tensor]:
    """Small parameters that stand for those of optimizers, by `id`: in each group a few of every kind.

    Args:
        parts: the optimizers.
        chosen: `id` of each parameter that is to be reset; these and the others are of two kinds.
    """
    stand_ins: dict[int, Tensor] = {}
    draw = torch.Generator().manual_seed(0)
    for part in parts:
        for group in part.param_groups:
            counts: Counter[Any] = Counter()
            for p in group["params"]:
                kind = p.ndim, p.dtype, p.device, p.requires_grad, id(p) in chosen
                counts[kind] += 1
                if counts[kind] <= ALIKE and id(p) not in stand_ins:
                    shape = [SIZES[dimension % len(SIZES)] for dimension in range(p.ndim)]
                    numbers = torch.randn(shape, generator=draw, dtype=torch.float32, device="cpu")
                    stand_ins[id(p)] = _parameter(numbers.to(p.device, p.dtype), p)
    return stand_ins


def copies_of(stand_ins: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Copies of parameters by the same keys."""
    return {key: _parameter(p.detach().clone(), p) for key, p in stand_ins.items()}


def _parameter(numbers: Tensor, like: Tensor) -> nn.Parameter:
    new = nn.Parameter(numbers, requires_grad=like.requires_grad)
    vars(new).update(vars(like))  # an optimizer may read there what a parameter is for
    return new


def take_steps(
    optimizer: Optimizer, parameters: Iterable[Tensor], count: int, seed: int, mode: str, pull: float = 1.0
) -> None:
    """Some steps on the gradients of pull/2 |p - target|^2, with drawn targets; raises whatever the optimizer does.

    Args:
        optimizer: changes the parameters.
        parameters: get gradients; the optimizer's other parameters have none.
        count: how many steps.
        seed: of the targets, and of what the optimizer draws itself.
        mode: one of `MODES`.
        pull: 0 for gradients of zero.
    """
    draw = torch.Generator().manual_seed(seed)
    pairs = []
    for p in parameters:
        if p.requires_grad:
            offset = torch.randn(p.shape, generator=draw, dtype=torch.float32, device="cpu")
            pairs.append((p, p.detach() + offset.to(p.device, p.dtype)))

    def closure() -> Tensor:
        with torch.enable_grad():
            for p, _ in pairs:
                p.grad = None
            squares = [(p - target).square().sum().float() for p, target in pairs]
            loss = pull / 2 * torch.stack([square.to(squares[0].device) for square in squares]).sum()
            loss.backward(create_graph=mode == "graph")
        return loss

    if not pairs:
        return
    torch.manual_seed(seed)
    step: Any = optimizer.step
    for _ in range(count):
        closure()
        if mode == "closure":
            step(closure)
        else:
            step()
    for p, _ in pairs:
        p.grad = None


def copied(value: Any, twins: Mapping[int, Tensor] | None = None) -> Any:
    """A copy of what an optimizer holds, without histories; what cannot be copied, as a lock, as it is.

    Args:
        value: whatever it is.
        twins: `id` of a parameter -> what stands for it in the copy.
    """
    twins = {} if twins is None else twins
    if isinstance(value, Tensor):
        return twins.get(id(value), value.detach().clone())
    if type(value) in (list, tuple, set):
        return type(value)(copied(part, twins) for part in value)
    if type(value) is dict:
        return {twin_key(key, twins): copied(part, twins) for key, part in value.items()}
    try:
        return copy.deepcopy(value, dict(twins))
    except Exception:  # whatever a foreign class may raise
        return value


def twin_key(key: Any, twins: Mapping[int, Tensor]) -> Any:
    """A key of a mapping; of a parameter, what stands for it."""
    return twins.get(id(key), key)


def steps_without_states(optimizer: Optimizer, chosen: set[int]) -> bool:
    """Whether an optimizer that cannot be built makes the states of its parameters at its first step.

    A clone is tried that no constructor has seen, on stand-ins for the parameters and without their states.

    Args:
        optimizer: stays as it is.
        chosen: `id` of each parameter that is to be reset.
    """
    for mode in MODES:
        stand_ins = stand_ins_for([optimizer], chosen)
        with quiet():
            try:
                clone: Any = object.__new__(type(optimizer))
                for name, value in attributes_of(optimizer).items():
                    if name not in ("state", "param_groups") and not isinstance(value, nn.Module):
                        # without hooks, which are the user's and would act
                        setattr(clone, name, OrderedDict() if name.endswith("_hooks") else copied(value, stand_ins))
                clone.state = defaultdict(dict)
                clone.param_groups = [
                    {key: copied(value) for key, value in group.items() if key != "params"}
                    | {"params": [stand_ins[id(p)] for p in group["params"] if id(p) in stand_ins]}
                    for group in optimizer.param_groups
                ]
                take_steps(clone, stand_ins.values(), 2, 0, mode)
            except Exception:  # whatever a foreign class may raise
                continue
        return any(clone.state.values()) and all(bool(p.isfinite().all()) for p in stand_ins.values())
    return False


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings, compilation and hooks of all optimizers; with the caller's random numbers kept as they are."""
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    of_torch = vars(sys.modules[Optimizer.__module__])
    hooks = [of_torch.get(f"_global_optimizer_{when}_hooks", {}) for when in ("pre", "post")]
    registered = [dict(by_number) for by_number in hooks]  # those of every optimizer are the user's, and would act
    try:
        for by_number in hooks:
            by_number.clear()
        with warnings.catch_warnings(), eager, kept_generators(), torch.inference_mode(False), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        for by_number, before in zip(hooks, registered, strict=True):
            by_number.update(before)
