"""What changes while a run trains, and its checkpoint: the base of every program's learner."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from fire_core.methods import Method, Net
from fire_core.triggers import Trigger
from fire_core.weights.optimizer_state import parts_of
from harness.run.schema import check_weights
from harness.training import seeding
from harness.training.measure import Meter

State = dict[str, Any]
LAYOUT = 1  # of a state; a state of another layout is not resumed from


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
    GENERATORS: ClassVar[tuple[str, ...]] = ()

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """That of a program with one optimizer, once the first phase has begun."""
        (optimizer,) = self.optimizers.values()
        return optimizer

    @property
    def optimizer_parts(self) -> list[torch.optim.Optimizer]:
        """What holds the optimizers' state: the parts of a combined one, else itself."""
        return [part for optimizer in self.optimizers.values() for part in parts_of(optimizer)]

    def renew_optimizers(self, task: Any) -> None:
        """New optimizers of the kind that the learner's phase has."""
        raise NotImplementedError

    def state_dict(self) -> State:
        """For `Run.checkpoint`."""
        trigger = self.trigger
        return {
            "layout": LAYOUT,
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
        """Go on from the state of a learner of this task. The method puts its modules into the networks first."""
        self.net.init = state["init"]
        for key in self.PLAIN:
            setattr(self, key, state[key])
        if state["method"] is not None:  # None: from a first phase that another method's run may have trained
            self.method.load_state_dict(state["method"])
            self.method.reshape(self.net)
        for modules, states in ((self.net.modules, state["modules"]), (self.net.targets, state["targets"])):
            for name, module in modules.items():
                module.load_state_dict(states[name])
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


def check_learner(
    state: State, modules: Mapping[str, nn.Module], method: Method, trigger: Trigger | None, asked: bool, steps: int
) -> None:
    """Raise a ValueError for a state that a learner of these networks cannot go on from.

    Args:
        state: a learner's.
        modules: the networks of the run, by name.
        method: of the run.
        trigger: of the run.
        asked: whether the trigger is asked in the state's phase.
        steps: optimizer steps made.
    """
    if (layout := state.get("layout")) != LAYOUT:
        raise ValueError(f"written by another version of this project, with layout {layout} where {LAYOUT} is read")
    for part in ("init",) if method.overrides("reshape") else ("init", "modules", "targets"):
        for name, module in modules.items():
            if part != "targets" or name in state[part]:
                check_weights(state[part], module, name)
    saved = state["trigger"]
    if trigger is not None and (asked or saved is not None):
        if saved is None or saved["kind"] != str(trigger):
            raise ValueError(f"trigger must be the state of {trigger}, got {saved if saved is None else saved['kind']}")
        if (last := saved["state"]["last"] or 0) > steps:  # not of the run's last step, which is not looked at
            raise ValueError(f"trigger.state.last must be one of the {steps} steps made, got {last}")
