"""The base class of triggers, what a firing says, and how triggers combine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from fire_core.methods.protocol import Net

Metrics = Mapping[str, Tensor | float | None]  # name -> the step's value; None: no new value in this step


@dataclass(frozen=True)
class Firing:
    """A trigger's answer that it is time to act.

    Attributes:
        step: the optimizer step after which it fired.
        trigger: the trigger in one word ("every", "plateau", ...); several are joined by "|".
        reason: the reason in words, for a log.
        numbers: what the trigger measured, by name.
    """

    step: int
    trigger: str
    reason: str
    numbers: dict[str, float] = field(default_factory=dict)


class Trigger:
    """Says after which steps to act.

    A loop calls `ask` after each optimizer step, and acts where the answer is a `Firing`. Under distributed training
    all processes must ask; what is measured is averaged over them, so that all get the same answer.

    A new kind of trigger defines `look`, and `acted`, `prepare`, `earliest` and `needs` where it needs to.

    Attributes:
        name: the kind of trigger in one word.
        last: the last step that was asked about.
    """

    name: ClassVar[str]
    FIELDS: ClassVar[tuple[str, ...]] = ("last",)  # names of the attributes that make up the state

    def __init__(self) -> None:
        self.last: int | None = None
        self._started = False
        self._total: int | None = None

    def __str__(self) -> str:
        return type(self).__name__

    # ------------------------------------------------------------------------------------------- what a loop calls

    def start(
        self,
        model: nn.Module | Net | None = None,
        /,
        *,
        metrics: Collection[str] | None = None,
        total_steps: int | None = None,
        after: int | None = None,
        probe: Callable[[], object] | None = None,
    ) -> None:
        """Check before the first step that the trigger can work in this run. Without this call the first `ask` does it.

        Args:
            model: the model that is trained.
            metrics: names of all numbers that the loop will give to `ask`; None if they are not known, and then they
                are not checked.
            total_steps: steps of the run; a new trigger that cannot fire within them is refused. The trigger does not
                fire at the last step, because nothing would be trained after an action. If training is extended later,
                what was due at that step fires at the first step of the extension.
            after: steps that were made before the loop begins to ask. What is due after them counts at the first `ask`,
                however late it comes. None if that is not known; the first `ask` then considers its own step alone.
            probe: passes a fixed batch through the model. Triggers that measure activations then call it, in evaluation
                mode and without gradients, instead of measuring passes of training. Give it for a compiled model, or to
                get numbers that can be compared over time.

        Raises:
            ValueError: the trigger can never fire, follows a metric that the loop does not give, or cannot measure
                this model.
        """
        if metrics is not None:
            self.check_metrics(metrics)
        self.prepare(as_net(model), metrics, probe)
        if total_steps is not None and self.last is None and self.earliest(after or 0) >= total_steps:
            asked = f" from step {after + 1} on" if after else ""
            raise ValueError(f"{self} cannot fire within {total_steps} steps{asked}: nothing fires at the last one")
        if self.last is None:
            self.last = after
        self._started, self._total = True, total_steps

    def ask(
        self, step: int, model: nn.Module | Net | None = None, /, **metrics: Tensor | float | None
    ) -> Firing | None:
        """Return a `Firing` if it is time to act. Call it after each optimizer step, before gradients are set to zero.

        Args:
            step: optimizer steps made so far, 1 after the first. Steps may be left out; asking again about the same
                step returns None.
            model: the model that is trained; triggers that follow step numbers or metrics alone do not need it.
            metrics: numbers of this step, such as the loss. Tensors stay on their device and are read only when a
                measurement is due. None stands for no new value in this step.

        Returns:
            A `Firing`, upon which the trigger assumes that the caller acts; or None.

        Raises:
            ValueError: the step lies before the last one; or see `start`.
        """
        net = as_net(model)
        if not self._started:
            self.start(net, metrics=tuple(metrics))
        last = step - 1 if self.last is None else self.last
        if step < last:
            raise ValueError(
                f"{self} was asked about step {last} and now about {step}: steps must not go back. Each run needs a "
                "new trigger (hook, callback); to act between two runs, call fire_(model, optimizer=...)"
            )
        if step == last or (self._total is not None and step >= self._total):
            return None
        firing = self.look(last, step, net, metrics)
        self.last = step
        if firing is not None:
            self.acted(step)
        return firing

    def needs(self) -> set[str]:
        """Return the names of the metrics that the trigger follows."""
        return set()

    def close(self) -> None:
        """Take off the hooks that the trigger has put on the model, if a measurement is due; call it after training."""

    def check_metrics(self, metrics: Collection[str]) -> None:
        """Check that a loop which gives these metrics gives all that the trigger follows.

        Raises:
            ValueError: it does not; the message names the first that is missing.
        """
        if missing := sorted(set(self.needs()).difference(metrics)):
            given = ", ".join(metrics) or "none"
            raise ValueError(f"{type(self).__name__}: there is no metric {missing[0]!r}; metrics of this loop: {given}")

    def state_dict(self) -> dict[str, Any]:
        """Return what a resume needs: dicts and lists of numbers and strings.

        Sums of metrics that were given as tensors are read from their device. Under distributed training each process
        has a state of its own, because it has its own losses.
        """
        return {name: getattr(self, name) for name in self.FIELDS}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name in self.FIELDS:
            setattr(self, name, state[name])

    def __or__(self, other: Trigger) -> Trigger:
        return Either(self, other) if isinstance(other, Trigger) else NotImplemented

    # --------------------------------------------------------------------------------- what a kind of trigger defines

    def look(self, last: int, step: int, net: Net | None, metrics: Metrics) -> Firing | None:
        """Return a `Firing` if the condition holds after `step`.

        Args:
            last: the step of the call before; the steps between it and `step` were not asked about.
            step: optimizer steps made so far.
            net: the networks; None if the loop gives no model.
            metrics: numbers of this step.
        """
        raise NotImplementedError

    def acted(self, step: int) -> None:
        """Note that the caller acts after this step, whether because of this trigger or another one."""

    def prepare(self, net: Net | None, metrics: Collection[str] | None, probe: Callable[[], object] | None) -> None:
        """Make the checks of `start` that this kind of trigger needs; see there for the arguments and errors."""

    def earliest(self, after: int = 0) -> float:
        """Return the first step after `after` at which the trigger might fire, if it is asked from there on."""
        return after + 1


class Either(Trigger):
    """Fires when one of several triggers does: `a | b`. Each of them is told of every action, whichever fired."""

    def __init__(self, *triggers: Trigger) -> None:
        super().__init__()
        self.parts: list[Trigger] = []
        for trigger in triggers:
            self.parts += trigger.parts if isinstance(trigger, Either) else [trigger]

    def __str__(self) -> str:
        return f"({' | '.join(map(str, self.parts))})"

    def look(self, last: int, step: int, net: Net | None, metrics: Metrics) -> Firing | None:
        for part in self.parts:
            part.last = self.last
        firings = [firing for part in self.parts if (firing := part.look(last, step, net, metrics)) is not None]
        if not firings:
            return None
        numbers = {name: value for firing in firings for name, value in firing.numbers.items()}
        names = "|".join(firing.trigger for firing in firings)
        return Firing(step, names, " and ".join(firing.reason for firing in firings), numbers)

    def acted(self, step: int) -> None:
        for part in self.parts:
            part.acted(step)

    def prepare(self, net: Net | None, metrics: Collection[str] | None, probe: Callable[[], object] | None) -> None:
        for part in self.parts:
            part.prepare(net, metrics, probe)

    def earliest(self, after: int = 0) -> float:
        return min(part.earliest(after) for part in self.parts)

    def close(self) -> None:
        for part in self.parts:
            part.close()

    def needs(self) -> set[str]:
        return {name for part in self.parts for name in part.needs()}

    def check_metrics(self, metrics: Collection[str]) -> None:
        for part in self.parts:
            part.check_metrics(metrics)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(saved)


def as_net(model: nn.Module | Net | None) -> Net | None:
    """Wrap a bare model in a `Net` named "model"; a `Net` and None are returned as they are."""
    return Net({"model": model}, {}) if isinstance(model, nn.Module) else model
