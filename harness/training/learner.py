"""What changes while a run trains, and its checkpoint: the base of every program's learner."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from fire_core.methods import Method, Net
from fire_core.triggers import Trigger
from harness.config.build import build
from harness.training import seeding
from harness.training.measure import Meter

State = dict[str, Any]


@dataclass(kw_only=True)
class LearnerBase:
    """All that changes while a run trains, which is all that a checkpoint holds.

    A program's learner names its own parts once, in PLAIN (numbers, tensors, and dicts and lists of these), PARTS
    (what has a `state_dict`) and GENERATORS.

    Attributes:
        net: the networks that are trained, with their targets.
        method: what may act on them.
        method_meter: time of the method's work within phases since the last row.
        trigger: says after which steps the method acts; None: it acts at boundaries, or never.
        optimizers: of the phase, by name; none before the first phase begins.
        phase: the phase that is trained, from 0.
        phase_step: steps made in this phase.
        step: steps made in the run, as rows count them.
        seconds: of training, over all processes that have worked on the run.
        row: the last row logged.
    """

    net: Net
    method: Method
    method_meter: Meter
    trigger: Trigger | None = None
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    phase: int = 0
    phase_step: int = 0
    step: int = 0
    seconds: float = 0.0
    row: dict[str, Any] = field(default_factory=dict)

    PLAIN: ClassVar[tuple[str, ...]] = ("phase", "phase_step", "step", "seconds", "row")
    PARTS: ClassVar[tuple[str, ...]] = ()
    SUMMARY: ClassVar[tuple[str, ...]] = ("train/", "test/", "val/", "online/", "task_end/", "stability/")  # of a row
    GENERATORS: ClassVar[tuple[str, ...]] = ()

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """That of a program with one optimizer, once the first phase has begun."""
        (optimizer,) = self.optimizers.values()
        return optimizer

    @property
    def optimizer_parts(self) -> list[torch.optim.Optimizer]:
        """What holds the optimizers' state: the parts of a combined one, else itself."""
        return [part for held in self.optimizers.values() if held for part in getattr(held, "parts", [held])]

    def renew_optimizers(self, task: Any) -> None:
        """The learner's phase begins with a new optimizer, which the method chooses in phases in which it acts."""

        def default(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            groups = self.parameter_groups(list(parameters))
            optimizer: torch.optim.Optimizer = build("optimizer", task.config.optimizer, params=groups)
            return optimizer

        if task.method_acts_in(self.phase):
            self.optimizers = {"model": self.method.optimizer(self.net, default)}
        else:
            self.optimizers = {"model": default(self.net.modules["model"].parameters())}

    @staticmethod
    def parameter_groups(parameters: list[nn.Parameter]) -> list[Any]:
        """What the optimizer gets: the parameters, or groups of them with options of their own."""
        return parameters

    def summary(self) -> dict[str, Any]:
        """What is kept of a run that has ended."""
        final = {key: value for key, value in self.row.items() if key.startswith(self.SUMMARY)}
        return {**final, "steps": self.step, "seconds": self.seconds}

    def state_dict(self) -> State:
        """For `Run.checkpoint`."""
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
        """Go on from the state of a learner of this task."""
        for key in self.PLAIN:
            setattr(self, key, state[key])
        self.load_networks(state)
        for key in self.PARTS:
            getattr(self, key).load_state_dict(state[key])
        self.renew_optimizers(task)
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        for key in self.GENERATORS:
            getattr(self, key).set_state(state[key].cpu())
        seeding.set_rng_state(state["rng"])
        if self.trigger is not None and state["trigger"] is not None:  # None: as with the method
            self.trigger.load_state_dict(state["trigger"]["state"])

    def load_networks(self, state: State) -> None:
        """The networks of a state, with what a method has put into them, and what the method knows of them."""
        self.net.init = state["init"]
        if state["method"] is not None:  # None: from a first phase that another method's run may have trained
            self.method.load_state_dict(state["method"])
            self.method.reshape(self.net)
        for modules, states in ((self.net.modules, state["modules"]), (self.net.targets, state["targets"])):
            for name, module in modules.items():
                module.load_state_dict(states[name])
