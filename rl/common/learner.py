"""What the learners of both agents have."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from fire_core.methods import Net
from fire_core.triggers import Firing
from harness.training.firing import ask
from harness.training.learner import LearnerBase
from rl.common.continual import Returns
from rl.common.replay_store import Ring


@dataclass(kw_only=True)
class AgentLearner(LearnerBase):
    """All that changes while an agent trains. Steps are decisions, those of all environments counted.

    Attributes:
        replay: its transitions; a checkpoint holds the names of the segments on disk (`rl.common.checkpoint`).
        updates: optimizer steps of each network.
        returns: of training episodes that ended since the last row.
        of_tasks: of training episodes, in a stream of tasks.
    """

    replay: Ring
    updates: int = 0
    returns: list[float] = field(default_factory=list)
    of_tasks: Returns = field(default_factory=Returns)

    PLAIN = (*LearnerBase.PLAIN, "updates", "returns", "begins")
    PARTS: ClassVar[tuple[str, ...]] = ("of_tasks",)

    @property
    def begins(self) -> list[int]:
        """The first row of each environment that may be drawn from the replay."""
        return self.replay.begins

    @begins.setter
    def begins(self, rows: list[int]) -> None:
        self.replay.begins = list(rows)

    def decisions(self, task: Any) -> int:
        """How many were made since the replay began to fill."""
        return self.phase_step if task.empties_replay else self.step

    def close(self) -> None:
        """End the threads and close the environments."""
        raise NotImplementedError


def ask_trigger(learner: AgentLearner, seen: Net, loss: Tensor | None) -> Firing | None:
    """What a run's trigger says after a step; None too if there is no trigger.

    Args:
        learner: of the run.
        seen: the networks that the trigger measures.
        loss: of the step's last update; None: there was none.
    """
    if not learner.updates:
        return None
    fresh = learner.row if learner.row.get("step") == learner.step else {}
    return ask(learner, learner.step, seen, loss=loss, **{"return": fresh.get("train/return")})
