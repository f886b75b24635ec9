"""The phases of an agent's training: one environment, and boundaries between steps at which a method acts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """A part of the training.

    Attributes:
        start: the learner's `step` at which it begins.
        end: and at which it ends.
    """

    start: int
    end: int


def split(*ends: int) -> list[Phase]:
    """Phases that follow each other and end at these steps."""
    return [Phase(start, end) for start, end in zip((0, *ends), ends, strict=False)]
