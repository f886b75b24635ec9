"""Building new optimizers of the same class and options as a given one, on other parameters, and letting them step."""

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

from fire_core.weights import distributed
from fire_core.weights.generators import restored_generators
from fire_core.weights.optimizers import attributes_of, held_optimizers, with_inner

SIZES = (5, 7, 3, 2)  # lengths of a stand-in's dimensions; all differ, so a state's shape shows what each is for
STAND_INS_PER_KIND = 2  # for parameters of one kind in a group; with two, a buffer that they share can be seen
# How steps are taken: after a backward pass; with a closure; with the graph kept for second derivatives.
MODES = ("plain", "closure", "graph")
OPTION_TYPES = (bool, int, float, str, tuple)  # of an attribute that may hold an argument of the constructor
# Entries that learning-rate schedulers of torch write into the groups of an optimizer.
SCHEDULER_ENTRIES = {"initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum"}


class CannotBuildError(Exception):
    """No new optimizer of the class can be built; the message says why."""


class Builder:
    """Builds new optimizers of the same class and options as a given one.

    Args:
        optimizer: the given optimizer, which is not changed. If it is a wrapper, the optimizers inside are built anew
            too.

    Attributes:
        parts: the optimizer and those that it holds.
        options: names of the arguments of their constructors; group entries of these names are no records of training.
        records: names of the group entries that record training and so are not passed to a new optimizer.
        passes_options_alone: whether a build first tries to pass on only the group entries in `options`; it does
            until `records` is known.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.parts = list(with_inner(optimizer))
        self.options = {name for part in self.parts for name in arguments_of(type(part))}
        self.records: set[str] = set()
        self.passes_options_alone = True

    def build(self, stand_ins: Mapping[int, Tensor]) -> Optimizer:
        """Build a new optimizer on stand-ins for the given one's parameters.

        Args:
            stand_ins: from the `id` of a parameter to its stand-in; parameters without one are left out.

        Raises:
            CannotBuildError: the constructor needs a value that is not known, or raises an error.
        """
        filters: list[Callable[[str], bool]] = [  # which group entries to pass on, by name
            lambda name: name not in self.records,
            lambda name: name not in self.records | SCHEDULER_ENTRIES,
        ]
        if self.passes_options_alone:  # not the only way: a class may need entries that are no arguments, as use_muon
            filters.insert(0, lambda name: name in self.options)
        failure: Exception | None = None
        for passes in filters:
            with without_side_effects():
                try:
                    new: Optimizer = self._build(self.optimizer, stand_ins, passes)
                    if any(group.get("train_mode") for group in self.optimizer.param_groups):
                        new.train()  # type: ignore[attr-defined]  # of schedule-free optimizers
                except Exception as error:  # whatever a foreign class may raise
                    failure = error
                    continue
            if [type(part) for part in with_inner(new)] == [type(part) for part in self.parts]:
                return new
        reason = str(failure).partition("\n")[0] if failure else "a new one holds other optimizers"
        raise CannotBuildError(reason or type(failure).__name__) from failure

    def _build(self, optimizer: Optimizer, stand_ins: Mapping[int, Tensor], passes: Callable[[str], bool]) -> Any:
        """Call the constructor of an optimizer's class with what the optimizer shows of its arguments.

        Args:
            optimizer: the given optimizer or, in a recursion, one that it holds.
            stand_ins: from the `id` of a parameter to its stand-in.
            passes: whether a group entry of this name is passed on.

        Raises:
            CannotBuildError: the value of an argument without a default is not known.
            Exception: whatever the constructor raises.
        """
        groups = [
            {key: copy.deepcopy(value) for key, value in group.items() if key != "params" and passes(key)}
            | {"params": [stand_ins[id(p)] for p in group["params"] if id(p) in stand_ins]}
            for group in optimizer.param_groups
        ]
        inner, attributes = held_optimizers(optimizer), attributes_of(optimizer)
        defaults = getattr(optimizer, "defaults", {})
        # Some classes keep options as attributes, or as attributes of an object.
        objects = [attributes, *(vars(value) for value in attributes.values() if hasattr(value, "__dict__"))]
        values: dict[str, Any] = {}  # of arguments whose values are certain
        likely_values: dict[str, Any] = {}  # of arguments that have an attribute of the same name
        for position, (name, argument) in enumerate(arguments_of(type(optimizer)).items()):
            wrapped = inner.get(name, inner.get(f"_{name}"))
            if wrapped is None and position == 0 and name != "params" and len(inner) == 1:
                (wrapped,) = inner.values()
            if wrapped is not None:  # a wrapper that is given its parameters takes a class after them, as SAM does
                values[name] = type(wrapped) if "params" in values else self._build(wrapped, stand_ins, passes)
            elif name == "params" or position == 0:
                values[name] = groups
            elif name == "defaults":  # the class inherits the constructor of torch's base class
                values[name] = copy.deepcopy(defaults)
            elif name in defaults:
                values[name] = copy.deepcopy(defaults[name])
            elif candidates := [held[name] for held in objects if isinstance(held.get(name), OPTION_TYPES)]:
                likely_values[name] = candidates[0]
            elif argument.default is argument.empty:
                raise CannotBuildError(f"the value of its argument {name} is not known")
        try:
            return type(optimizer)(**values, **likely_values)
        except Exception:  # an attribute of the same name need not be what the constructor took
            accepted: dict[str, Any] = {}
            for name, value in likely_values.items():
                with suppress(Exception):
                    type(optimizer)(**values, **accepted, **{name: value})
                    accepted[name] = value
            return type(optimizer)(**values, **accepted)


def arguments_of(kind: type) -> dict[str, inspect.Parameter]:
    """Return the arguments of a class's constructor by name.

    If the constructor takes `**keywords`, the optional arguments of its parents' constructors are among them.
    """
    arguments: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__:
        constructor: Any = vars(base).get("__init__")
        if constructor is None or base is object:
            continue
        own = list(inspect.signature(constructor).parameters.values())[1:]  # without `self`
        named = [argument for argument in own if argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)]
        if arguments:  # of a parent, whose required arguments the child passes itself
            named = [argument for argument in named if argument.default is not argument.empty]
        for argument in named:
            arguments.setdefault(argument.name, argument)
        if all(argument.kind is not argument.VAR_KEYWORD for argument in own):
            break
    return arguments


def stand_ins_for(parts: Iterable[Optimizer], chosen: set[int]) -> dict[int, Tensor]:
    """Make small parameters that stand for those of optimizers: in each group a few for every kind of parameter.

    A kind is a number of dimensions, dtype, device, whether the parameter is trained and whether it is to be reset.

    Args:
        parts: the optimizers.
        chosen: `id` of each parameter that is to be reset.

    Returns:
        From the `id` of a parameter to its stand-in; most parameters of a large model have none.
    """
    stand_ins: dict[int, Tensor] = {}
    draw = torch.Generator().manual_seed(0)
    for part in parts:
        for group in part.param_groups:
            counts: Counter[Any] = Counter()
            for p in group["params"]:
                kind = p.ndim, p.dtype, p.device, p.requires_grad, id(p) in chosen
                counts[kind] += 1
                if counts[kind] <= STAND_INS_PER_KIND and id(p) not in stand_ins:
                    shape = [SIZES[dimension % len(SIZES)] for dimension in range(p.ndim)]
                    numbers = torch.randn(shape, generator=draw, dtype=torch.float32, device="cpu")
                    stand_ins[id(p)] = _parameter(numbers.to(p.device, p.dtype), p)
    return stand_ins


def copies_of(stand_ins: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Return a copy of each parameter, under the same key."""
    return {key: _parameter(p.detach().clone(), p) for key, p in stand_ins.items()}


def _parameter(numbers: Tensor, like: Tensor) -> nn.Parameter:
    """Return a parameter with these numbers and with the attributes of `like`."""
    new = nn.Parameter(numbers, requires_grad=like.requires_grad)
    vars(new).update(vars(like))  # an optimizer may read there what a parameter is for
    return new


def take_steps(
    optimizer: Optimizer, parameters: Iterable[Tensor], count: int, seed: int, mode: str, pull: float = 1.0
) -> None:
    """Let an optimizer take steps on the loss pull / 2 |p - target|^2 of each parameter, with random targets.

    Args:
        optimizer: the optimizer, which changes the parameters.
        parameters: those of its parameters that get gradients; the others have none.
        count: number of steps.
        seed: seed of the targets, and of random numbers that the optimizer draws itself.
        mode: how the steps are taken, one of `MODES`.
        pull: factor of the loss; 0 for gradients of zero.

    Raises:
        Exception: whatever the optimizer raises.
    """
    draw = torch.Generator().manual_seed(seed)
    pairs = []
    for p in parameters:
        if p.requires_grad:
            offset = torch.randn(p.shape, generator=draw, dtype=torch.float32, device="cpu").to(p.device, p.dtype)
            own_offset = distributed.local(distributed.shard_as(offset, p))  # of this rank's part of the weight
            pairs.append((p, distributed.local(p).detach() + own_offset))

    def closure() -> Tensor:
        with torch.enable_grad():
            for p, _ in pairs:
                p.grad = None
            squares = [(distributed.local(p) - target).square().sum().float() for p, target in pairs]
            loss = pull / 2 * torch.stack([square.to(squares[0].device) for square in squares]).sum()
            loss.backward(create_graph=mode == "graph")
        return loss

    if not pairs:
        return
    if all(p.is_cpu for p, _ in pairs):  # torch.manual_seed also formats a stack trace, for GPUs that are not in use
        torch.default_generator.manual_seed(seed)
    else:
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


def deep_copy(value: Any, twins: Mapping[int, Tensor] | None = None) -> Any:
    """Return a copy of something that an optimizer holds; tensors are detached from their autograd history.

    Args:
        value: any object. One that cannot be copied, such as a lock, is returned itself.
        twins: from the `id` of a parameter to what replaces it in the copy.
    """
    twins = {} if twins is None else twins
    if isinstance(value, Tensor):
        return twins.get(id(value), value.detach().clone())
    if type(value) in (list, tuple, set):
        return type(value)(deep_copy(part, twins) for part in value)
    if type(value) is dict:
        return {twin_key(key, twins): deep_copy(part, twins) for key, part in value.items()}
    try:
        return copy.deepcopy(value, dict(twins))
    except Exception:  # whatever a foreign class may raise
        return value


def twin_key(key: Any, twins: Mapping[int, Tensor]) -> Any:
    """Return the key of a mapping for the copy: the replacement of a parameter, any other key itself."""
    return twins.get(id(key), key)


def steps_without_states(optimizer: Optimizer, chosen: set[int]) -> bool:
    """Return whether an optimizer that cannot be built makes the missing states of its parameters at its next step.

    This is tried on a clone, made without its constructor, on stand-ins for the parameters and without their states.

    Args:
        optimizer: the optimizer, which is not changed.
        chosen: `id` of each parameter that is to be reset.
    """
    for mode in MODES:
        stand_ins = stand_ins_for([optimizer], chosen)
        with without_side_effects():
            try:
                clone: Any = object.__new__(type(optimizer))
                for name, value in attributes_of(optimizer).items():
                    if name not in ("state", "param_groups") and not isinstance(value, nn.Module):
                        # The hooks are left out: they are the user's, and a step of the clone would call them.
                        setattr(clone, name, OrderedDict() if name.endswith("_hooks") else deep_copy(value, stand_ins))
                clone.state = defaultdict(dict)
                clone.param_groups = [
                    {key: deep_copy(value) for key, value in group.items() if key != "params"}
                    | {"params": [stand_ins[id(p)] for p in group["params"] if id(p) in stand_ins]}
                    for group in optimizer.param_groups
                ]
                take_steps(clone, stand_ins.values(), 2, 0, mode)
            except Exception:  # whatever a foreign class may raise
                continue
        return any(clone.state.values()) and all(bool(p.isfinite().all()) for p in stand_ins.values())
    return False


@contextmanager
def without_side_effects() -> Iterator[None]:
    """Let optimizers be built and step within this block without the caller noticing.

    Warnings, compilation and the hooks that torch calls for all optimizers are off. At the end the hooks and the random
    generators are as they were.
    """
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    torch_module = vars(sys.modules[Optimizer.__module__])
    hooks = [torch_module.get(f"_global_optimizer_{when}_hooks", {}) for when in ("pre", "post")]
    registered = [dict(by_number) for by_number in hooks]
    try:
        for by_number in hooks:
            by_number.clear()
        with warnings.catch_warnings(), eager, restored_generators(), torch.inference_mode(False), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        for by_number, before in zip(hooks, registered, strict=True):
            by_number.update(before)
