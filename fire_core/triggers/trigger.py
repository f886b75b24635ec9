"""What every trigger has, and how triggers combine."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

from torch import Tensor, nn

from fire_core.methods.protocol import Net

SEARCH = 100_000  # steps that `Both` looks at for one at which schedules coincide
Metrics = Mapping[str, Tensor | float | None]


@dataclass(frozen=True)
class Firing:
    """That a trigger fired.

    Attributes:
        step: after which optimizer step.
        trigger: which one, in one word ("every", "plateau", ...); of several, joined by "&" or "|".
        reason: in words, for a log.
        numbers: what it measured, by name.
    """

    step: int
    trigger: str
    reason: str
    numbers: dict[str, float] = field(default_factory=dict)


class Trigger:
    """Says after which steps to act.

    A loop calls `ask` after each optimizer step, and acts where the answer is a `Firing`. Under distributed training
    all processes must ask; what is measured is averaged over them, so that all get the same answer.

    Attributes:
        name: in one word.
        last: the last step that was asked about.
        missed: what was due at the run's last step, where nothing fires. Comes first if training goes on after all.
        momentary: whether its condition holds at single steps alone, which `earliest` gives exactly.
    """

    name: ClassVar[str]
    momentary = False
    FIELDS: ClassVar[tuple[str, ...]] = ("last",)  # of the state

    def __init__(self) -> None:
        self.last: int | None = None
        self.missed: Firing | None = None
        self._started = False
        self._total: int | None = None

    # ------------------------------------------------------------------------------------------- what a loop calls

    def start(
        self,
        model: nn.Module | Net | None = None,
        /,
        *,
        metrics: Collection[str] | None = None,
        total_steps: int | None = None,
        after: int = 0,
        probe: Callable[[], object] | None = None,
    ) -> None:
        """Check before the first step that the trigger can work in this run. Without this call the first `ask` does it.

        Args:
            model: what is trained.
            metrics: names of all numbers that the loop will give to `ask`; None: not known, and not checked.
            total_steps: of the run. A trigger that cannot fire before is refused. At the last step none fires, because
                nothing would be trained after it; if training is extended later, what was due there comes at the first
                step.
            after: steps made before the first one that the loop will ask about.
            probe: passes a fixed batch through the model. Triggers that look at activations then use it, in evaluation
                mode and without gradients, instead of the training's own passes: for a compiled model, and for numbers
                that compare over time.

        Raises:
            ValueError: the trigger can never fire, follows a metric that the loop does not give, or cannot measure
                this model.
        """
        self.prepare(as_net(model), metrics, probe)
        if total_steps is not None and self.missed is None and self.earliest(after) >= total_steps:
            asked = f" from step {after + 1} on" if after else ""
            raise ValueError(f"{self} cannot fire within {total_steps} steps{asked}")
        self._started, self._total = True, total_steps

    def ask(
        self, step: int, model: nn.Module | Net | None = None, /, **metrics: Tensor | float | None
    ) -> Firing | None:
        """Whether to act now. To be called once after each optimizer step, before gradients are set to zero.

        Args:
            step: optimizer steps made so far, 1 after the first. Steps may be left out; a step that was asked about
                gives None.
            model: what is trained; triggers that follow step numbers or metrics alone do not need it.
            metrics: numbers of this step, such as the loss. Tensors stay on their device and are read only when a
                measurement is due. None: no new value in this step.

        Returns:
            A `Firing`, after which the trigger takes it that the caller acts; or None.

        Raises:
            TypeError: the step is no whole number, the model no module.
            ValueError: the step lies before the last one; or see `start`.
        """
        if not hasattr(step, "__index__"):
            raise TypeError(f"ask(step, model): the step is a whole number and comes first, got {type(step).__name__}")
        net = as_net(model)
        if not self._started:
            self.start(net, metrics=tuple(metrics))
        last = step - 1 if self.last is None else self.last
        if step < last:
            raise ValueError(
                f"{self} was asked about step {last} and now about {step}: steps must not go back. Each run needs a "
                "new trigger (hook, callback); to act between two runs, call fire_(model, optimizer=...)"
            )
        if step == last:
            return None
        firing = self.look(last, step, net, metrics)
        self.last = step
        if firing is None and self.missed is not None:
            missed = self.missed
            firing = replace(missed, step=step, reason=f"{missed.reason}, put off: step {missed.step} was the last one")
        if firing is None:
            return None
        if self._total is not None and step >= self._total:
            self.missed = self.missed or firing
            return None
        self.missed = None
        self.acted(step)
        return firing

    def numbers(self) -> dict[str, float]:
        """What was measured last, by the trigger's name; empty before the first measurement."""
        return {}

    def needs(self) -> set[str]:
        """The metrics that it follows."""
        return set()

    def state_dict(self) -> dict[str, Any]:
        """What a resume needs: dicts and lists of numbers and strings.

        Of metrics given as tensors, it reads what has added up.

        Under distributed training each process has its own, as it has its own losses.
        """
        missed = {} if self.missed is None else {"missed": asdict(self.missed)}
        return {name: getattr(self, name) for name in self.FIELDS} | missed

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        for name in self.FIELDS:
            setattr(self, name, state[name])
        self.missed = Firing(**state["missed"]) if "missed" in state else None

    def __and__(self, other: Trigger) -> Trigger:
        return Both.of(self, other)

    def __or__(self, other: Trigger) -> Trigger:
        return Either.of(self, other)

    # --------------------------------------------------------------------------------- what a kind of trigger defines

    def look(self, last: int, step: int, net: Net | None, metrics: Metrics) -> Firing | None:
        """Whether the condition holds after `step`, when it was looked at after `last` before."""
        raise NotImplementedError

    def acted(self, step: int) -> None:
        """Note that the caller acts after this step, for this trigger's or another reason."""

    def prepare(self, net: Net | None, metrics: Collection[str] | None, probe: Callable[[], object] | None) -> None:
        """The kind's own part of `start`."""

    def earliest(self, after: int = 0) -> float:
        """The first step after `after` at which it might fire, if it is asked about the steps from there on."""
        return after + 1


class Combined(Trigger):
    """Several triggers asked together. An action counts for all of them: cool-downs and baselines begin anew."""

    sign: ClassVar[str]

    def __init__(self, parts: Sequence[Trigger]) -> None:
        super().__init__()
        self.parts = list(parts)
        self.momentary = all(part.momentary for part in self.parts)

    @classmethod
    def of(cls, *triggers: Trigger) -> Trigger:
        """The combination; one of its own kind within it is taken apart, so that a | b | c has three parts."""
        for trigger in triggers:
            if not isinstance(trigger, Trigger):
                raise TypeError(f"a trigger combines with triggers, not with {type(trigger).__name__}")
        return cls([part for trigger in triggers for part in (trigger.parts if type(trigger) is cls else [trigger])])

    def __str__(self) -> str:
        return "(" + f" {self.sign} ".join(map(str, self.parts)) + ")"

    def acted(self, step: int) -> None:
        for part in self.parts:
            part.acted(step)

    def prepare(self, net: Net | None, metrics: Collection[str] | None, probe: Callable[[], object] | None) -> None:
        for part in self.parts:
            part.prepare(net, metrics, probe)

    def numbers(self) -> dict[str, float]:
        return {name: value for part in self.parts for name, value in part.numbers().items()}

    def needs(self) -> set[str]:
        return {name for part in self.parts for name in part.needs()}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(saved)

    def _joined(self, step: int, firings: list[Firing]) -> Firing:
        numbers = {name: value for firing in firings for name, value in firing.numbers.items()}
        name = self.sign.join(firing.trigger for firing in firings)
        return Firing(step, name, " and ".join(firing.reason for firing in firings), numbers)


class Either(Combined):
    """Fires when one of its parts does: `a | b`."""

    sign = "|"

    def look(self, last: int, step: int, net: Net | None, metrics: Metrics) -> Firing | None:
        firings = [firing for part in self.parts if (firing := part.look(last, step, net, metrics)) is not None]
        return self._joined(step, firings) if firings else None

    def earliest(self, after: int = 0) -> float:
        return min(part.earliest(after) for part in self.parts)


class Both(Combined):
    """Fires when the conditions of all its parts hold: `a & b`.

    `At` and `Every` hold at their steps alone; what is measured holds until the next measurement. So
    `Every(1000) & Dormancy(above=0.3)` looks at every thousandth step whether the last measurement lay above 0.3.
    """

    sign = "&"

    def look(self, last: int, step: int, net: Net | None, metrics: Metrics) -> Firing | None:
        firings = [part.look(last, step, net, metrics) for part in self.parts]  # all look, whatever the first one says
        held = [firing for firing in firings if firing is not None]
        return self._joined(step, held) if len(held) == len(firings) else None

    def earliest(self, after: int = 0) -> float:
        step = max(part.earliest(after) for part in self.parts)
        exact = [part for part in self.parts if part.momentary]
        for _ in range(SEARCH):  # for a step at which all of these hold
            if (
                not math.isfinite(step)
                or (following := max((p.earliest(int(step) - 1) for p in exact), default=step)) == step
            ):
                break
            step = following
        return step


def as_net(model: nn.Module | Net | None) -> Net | None:
    """A model as the trainers hold it.

    Raises:
        TypeError: something else.
    """
    if not isinstance(model, nn.Module | Net | None):
        raise TypeError(f"the model of a trigger is a module, got {type(model).__name__}")
    return Net({"model": model}, {}) if isinstance(model, nn.Module) else model
