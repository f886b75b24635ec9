"""Triggers that fire at given steps, whatever the model does."""

import math
from collections.abc import Iterable
from typing import Any

from fire_core.methods.protocol import Net
from fire_core.ranges import Count, checked
from fire_core.triggers.trigger import Firing, Metrics, Trigger


class At(Trigger):
    """Fires after given steps; if the loop does not ask about one of them, at the next step that it asks about.

    Args:
        steps: the optimizer steps after which it fires, counted from 1.

    Raises:
        ValueError: there are no steps, or one is no whole number or lies below 1.
    """

    name = "at"

    def __init__(self, steps: int | Iterable[int]) -> None:
        super().__init__()
        given = list(steps) if isinstance(steps, Iterable) else [steps]
        if not given or not all(_is_count(step) for step in given):
            raise ValueError(f"At: steps must be at least one whole number from 1 up, got {given}")
        self.steps = sorted(map(int, given))

    def __str__(self) -> str:
        more = ", ..." if len(self.steps) > 5 else ""
        return f"At([{', '.join(map(str, self.steps[:5]))}{more}])"

    def look(self, last: int, step: int, net: Net | None, metrics: Metrics) -> Firing | None:
        due = [s for s in self.steps if last < s <= step]
        return Firing(step, self.name, f"step {due[-1]}") if due else None

    def earliest(self, after: int = 0) -> float:
        return min((step for step in self.steps if step > after), default=math.inf)


class Every(Trigger):
    """Fires after each step whose number is a multiple of `steps`.

    Args:
        steps: the period, in optimizer steps.

    Raises:
        ValueError: the period is no whole number from 1 up.
    """

    name = "every"

    @checked
    def __init__(self, steps: Count) -> None:
        super().__init__()
        self.steps = steps

    def __str__(self) -> str:
        return f"Every({self.steps})"

    def look(self, last: int, step: int, net: Net | None, metrics: Metrics) -> Firing | None:
        due = step // self.steps > last // self.steps
        return Firing(step, self.name, f"every {self.steps} steps") if due else None

    def earliest(self, after: int = 0) -> float:
        return (after // self.steps + 1) * self.steps


def _is_count(step: Any) -> bool:
    """Return whether this is a whole number from 1 up; 1e3 and an entry of a tensor are too."""
    try:
        return bool(int(step) == step and step >= 1)
    except (TypeError, ValueError, OverflowError):  # None, text and NaN, infinity
        return False
