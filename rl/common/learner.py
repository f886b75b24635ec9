"""What the learners of both agents have."""

from dataclasses import dataclass, field
from typing import Any

from fire_core.harness.training.loop import Progress
from rl.common.continual import Returns
from rl.common.replay_store import Ring


@dataclass(kw_only=True)
class AgentLearner(Progress):
    """All that changes while an agent trains.

    Attributes:
        replay: its transitions.
        updates: optimizer steps of each network.
        returns: of training episodes that ended since the last row.
        of_tasks: of training episodes, in a stream of tasks.
    """

    replay: Ring
    updates: int = 0
    returns: list[float] = field(default_factory=list)
    of_tasks: Returns = field(default_factory=Returns)

    def load_state_dict(self, task: Any, state: dict[str, Any]) -> None:
        """Restore a state of the learner of this task; the replay must be loaded."""
        raise NotImplementedError

    def close(self) -> None:
        """End the threads and close the environments."""
        raise NotImplementedError
