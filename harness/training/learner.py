"""The state of a run in training, which is what a checkpoint holds: the base class of every program's learner."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fire_core.methods import Method, Net
from fire_core.triggers import Trigger
from fire_core.weights.optimizers import hold_all, parameters_of
from harness.config.build import build
from harness.training import seeding
from harness.training.measure import Meter

State = dict[str, Any]


@dataclass(kw_only=True)
class LearnerBase:
    """Everything that changes while a run trains, and so everything that a checkpoint holds.

    A program's learner adds the names of its own attributes to PLAIN (numbers, tensors, and dicts and lists of these),
    PARTS (objects with a `state_dict`) and GENERATORS (`torch.Generator`s); saving and loading follow from these.

    Attributes:
        net: the networks that are trained, with their target networks.
        method: the method that may act on the networks.
        method_meter: counts the seconds of the method's work within phases since the last row.
        trigger: decides after which steps the method acts; None: it acts at boundaries, or never.
        optimizers: the optimizers of the current phase by name; empty before the first phase begins.
        not_optimized: parameters that `renew_optimizers` of this class made the optimizers without, as frozen ones, and
            whether they were trainable then.
        phase: number of the current phase, from 0.
        phase_step: steps made in this phase, in the unit of `step`.
        step: steps made in the run, in the unit in which rows count `step`.
        seconds: training time of all processes that have worked on the run.
        row: the newest row; it is logged once the method has acted after it.
    """

    net: Net
    method: Method
    method_meter: Meter
    trigger: Trigger | None = None
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    not_optimized: list[tuple[nn.Parameter, bool]] = field(default_factory=list)
    phase: int = 0
    phase_step: int = 0
    step: int = 0
    seconds: float = 0.0
    row: dict[str, Any] = field(default_factory=dict)

    PLAIN: ClassVar[tuple[str, ...]] = ("phase", "phase_step", "step", "seconds", "row")
    PARTS: ClassVar[tuple[str, ...]] = ()
    GENERATORS: ClassVar[tuple[str, ...]] = ()
    # The prefixes of the numbers that go from the last row into the summary of a finished run.
    SUMMARY: ClassVar[tuple[str, ...]] = ("train/", "test/", "val/", "online/", "task_end/", "stability/")

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The only optimizer, in a program that has one, once the first phase has begun."""
        (optimizer,) = self.optimizers.values()
        return optimizer

    @property
    def optimizer_parts(self) -> list[torch.optim.Optimizer]:
        """The optimizers that hold state: the parts of a combined optimizer, and every other one itself."""
        return [part for optimizer in self.optimizers.values() for part in getattr(optimizer, "parts", [optimizer])]

    def renew_optimizers(self, task: Any) -> None:
        """Begin the phase with a new optimizer: the method's if it acts in this phase, else the configured one."""

        def default(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            groups = self.parameter_groups(list(parameters))
            optimizer: torch.optim.Optimizer = build("optimizer", task.config.optimizer, params=groups)
            return optimizer

        if task.method_acts_in(self.phase):
            self.optimizers = {"model": self.method.optimizer(self.net, default)}
        else:
            self.optimizers = {"model": default(self.net.modules["model"].parameters())}
        held = parameters_of(self.optimizer_parts)
        self.not_optimized = [(p, p.requires_grad) for p in self.net.parameters() if id(p) not in held]

    def may_keep_optimizers(self, task: Any) -> bool:
        """Return whether the phase that begins can go on with the optimizers of the one before.

        It cannot where a method has put in or unfrozen parameters that they do not hold, or where the method's own
        optimizer is used from this phase on.
        """
        left_out = {id(p) for p, was_trainable in self.not_optimized if p.requires_grad == was_trainable}
        parameters = (parameter for parameter in self.net.parameters() if id(parameter) not in left_out)
        begins = task.method_acts_in(self.phase) and not task.method_acts_in(self.phase - 1)
        if not self.optimizers or (begins and self.method.overrides("optimizer")):
            return False
        return hold_all(self.optimizer_parts, parameters)

    @staticmethod
    def parameter_groups(parameters: list[nn.Parameter]) -> list[Any]:
        """Return what the optimizer is built with: the parameters, or groups of them that have options of their own."""
        return parameters

    def summary(self) -> dict[str, Any]:
        """Return the summary of a finished run: the last row's numbers with a prefix of SUMMARY, `steps`, `seconds`."""
        final = {key: value for key, value in self.row.items() if key.startswith(self.SUMMARY)}
        return {**final, "steps": self.step, "seconds": self.seconds}

    def state_dict(self) -> State:
        """Return everything that a resume needs, as nested dicts of plain values and tensors (for `Run.checkpoint`)."""
        trigger = self.trigger
        return {
            "modules": {name: module.state_dict() for name, module in self.net.modules.items()},
            "targets": {name: module.state_dict() for name, module in self.net.targets.items()},
            "init": self.net.init,
            "method": self.method.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "trigger": trigger and {"kind": str(trigger), "state": trigger.state_dict()},
            "rng": seeding.rng_state(),
            **{key: getattr(self, key) for key in self.PLAIN},
            **{key: getattr(self, key).state_dict() for key in self.PARTS},
            **{key: getattr(self, key).get_state() for key in self.GENERATORS},
        }

    def load_state_dict(self, task: Any, state: State) -> None:
        """Load what `state_dict` of a learner of the same task returned; training then goes on as if uninterrupted."""
        for key in self.PLAIN:
            setattr(self, key, state[key])
        self.load_networks(state)
        for key in self.PARTS:
            getattr(self, key).load_state_dict(state[key])
        self.renew_optimizers(task)
        # Making its optimizer may have begun the method's state anew. Otherwise the optimizer may use this very state.
        if state["method"] is not None and not is_equal(self.method.state_dict(), state["method"]):
            self.method.load_state_dict(state["method"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        for key in self.GENERATORS:
            getattr(self, key).set_state(state[key].cpu())
        seeding.set_rng_state(state["rng"])
        if self.trigger is not None and state["trigger"] is not None:  # None: a shared first phase, see `load_networks`
            self.trigger.load_state_dict(state["trigger"]["state"])

    def load_networks(self, state: State) -> None:
        """Load the networks' weights and the method's state.

        A method may have changed a network's shape (new units, new layers). Its own state tells which, so it is loaded
        first and rebuilds these shapes before the weights are put in.
        """
        self.net.init = state["init"]
        if state["method"] is not None:  # None: a shared first phase, which another method's run may have trained
            self.method.load_state_dict(state["method"])
            self.method.reshape(self.net)
        for modules, states in ((self.net.modules, state["modules"]), (self.net.targets, state["targets"])):
            for name, module in modules.items():
                module.load_state_dict(states[name])


def is_equal(one: Any, other: Any) -> bool:
    """Return whether two states, nested dicts and sequences of tensors and plain values, hold the same values."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(is_equal, one, other))
    return type(one) is type(other) and bool(one == other)
