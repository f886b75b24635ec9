"""Checkpoints of agents: the learner's state, with the names of the segments that hold its replay.

One policy for both agents. If a replay does not fit on the disk, the checkpoint is left out; at a phase's end the run
stops, see `harness.training.loop`. A finished run keeps no replay: nothing is sampled from it any more.
"""

from pathlib import Path
from typing import Any

from harness.run.folder import Run
from harness.training.measure import check_finite
from rl.common.learner import AgentLearner
from rl.common.replay_store import Ring, RingStore
from rl.common.task import AgentTask


def write(task: AgentTask, learner: AgentLearner, run: Run, replay_store: RingStore) -> None:
    """Write the replay's new segments, then a checkpoint that names them, then remove segments that none names.

    Raises:
        TrainingError: a weight is not finite.
        OSError: there is no room; the checkpoint before is as it was.
    """
    check_finite(learner.step, learner.sums, *learner.net.parameters())
    finished = learner.step >= task.total_steps
    manifest: dict[str, Any] = {"written": [], "segments": []} if finished else replay_store.save(learner.replay)
    run.checkpoint(learner.step, {**learner.state_dict(), "replay": manifest})
    replay_store.committed(manifest, keep=1 if finished else run.keep)


def load_replay(replay_store: RingStore, replay: Ring, state: dict[str, Any]) -> None:
    """Fill an empty replay; segments of a shared first phase are taken from its folder, `state["origin"]`.

    Raises:
        TrainingError: a segment is missing or damaged.
    """
    if state["replay"]["segments"]:
        replay_store.load(replay, state["replay"], Path(state["origin"]) / "replay" if "origin" in state else None)
