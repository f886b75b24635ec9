"""The part of the learner that both agents share."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fire_core.triggers import Firing
from harness.run.folder import Run
from harness.training.firing import ask
from harness.training.learner import LearnerBase
from harness.training.measure import check_finite
from rl.common.continual import Returns
from rl.common.replay_store import Ring, RingStore
from rl.common.task import AgentTask


@dataclass(kw_only=True)
class AgentLearner(LearnerBase):
    """The state of an agent's run. Steps are decisions, counted over all environments.

    Attributes:
        replay: the transitions; a checkpoint holds the names of their segments on disk (`save`).
        updates: optimizer steps of each network.
        sums: sums of the numbers of each update since the last row.
        counted: number of updates since the last row.
        returns: returns of the training episodes that ended since the last row.
        task_returns: returns of training episodes in a stream of tasks.
    """

    replay: Ring
    sums: Tensor
    updates: int = 0
    counted: int = 0
    returns: list[float] = field(default_factory=list)
    task_returns: Returns = field(default_factory=Returns)

    PLAIN = (*LearnerBase.PLAIN, "updates", "sums", "counted", "returns")
    PARTS: ClassVar[tuple[str, ...]] = ("task_returns",)

    def decisions(self, task: AgentTask) -> int:
        """Return how many decisions have been made since the replay began to fill."""
        return self.phase_step if task.empties_replay else self.step

    def clear_sums(self) -> None:
        """Set the sums to zero for the next row."""
        self.sums, self.counted, self.returns = torch.zeros_like(self.sums), 0, []

    def summary(self) -> dict[str, Any]:
        """Return the summary of the run: evaluations, scores, steps and time."""
        evaluated = {key: value for key, value in self.row.items() if key.startswith("eval/")}
        counts = {"steps": self.step, "updates": self.updates, "seconds": self.seconds}
        return {**evaluated, **self.task_returns.summary(), **counts}

    def load_state_dict(self, task: Any, state: dict[str, Any]) -> None:
        """Restore what `state_dict` of a learner of this task returned; the replay must be loaded before."""
        if "of_tasks" in state:  # the older name of `task_returns`, in checkpoints of the same numerics
            state = {**state, "task_returns": state["of_tasks"]}
        super().load_state_dict(task, state)

    def save(self, task: AgentTask, run: Run, replay_store: RingStore) -> None:
        """Write the replay's new segments, then a checkpoint that names them, and remove segments that none names.

        A finished run keeps no replay, because nothing is sampled from it any more.

        Raises:
            Diverged: a weight is not finite.
            OSError: the disk is full; the last checkpoint stays as it was (`harness.training.loop` says what follows).
        """
        check_finite(self.step, self.sums, *self.net.parameters())
        finished = self.step >= task.total_steps
        manifest: dict[str, Any] = {"written": [], "segments": []} if finished else replay_store.save(self.replay)
        run.checkpoint(self.step, {**self.state_dict(), "replay": manifest})
        replay_store.remove_unneeded(manifest, keep=1 if finished else run.keep)

    def load_replay(self, replay_store: RingStore, state: dict[str, Any]) -> None:
        """Fill the empty replay; segments of a shared first phase are read from its folder, `state["origin"]`.

        Raises:
            TrainingError: a segment is missing or damaged.
        """
        if state["replay"]["segments"]:
            origin = Path(state["origin"]) / "replay" if "origin" in state else None
            replay_store.load(self.replay, state["replay"], origin)

    def close(self) -> None:
        """End the threads and close the environments."""
        raise NotImplementedError


def start_row(task: AgentTask, learner: AgentLearner) -> dict[str, Any]:
    """Return the numbers that the rows of both agents have."""
    check_finite(learner.step, learner.sums)
    row: dict[str, Any] = {
        "step": learner.step,
        "phase": learner.phase,
        "updates": learner.updates,
        "seconds": round(learner.seconds, 3),
    }
    if learner.returns:
        row["train/return"] = float(np.mean(learner.returns))
    if task.is_stream:
        phase = task.phases[learner.phase]
        row |= learner.task_returns.log_row(phase.end - phase.start, learner.step >= phase.end)
    return row


def ask_trigger(task: AgentTask, learner: AgentLearner, loss: Tensor | None) -> Firing | None:
    """Ask the run's trigger after a step; None if it does not fire, or is not asked because nothing was learned yet.

    Args:
        task: the task of the run.
        learner: the learner.
        loss: loss of the step's last update; None if there was none.
    """
    if not (learner.updates and task.asks_in(learner.phase)):
        return None
    new_row = learner.row if learner.row.get("step") == learner.step else {}
    return ask(learner, loss=loss, **{"return": new_row.get("train/return")})
