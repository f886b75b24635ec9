"""Checkpoints of agents: the learner's state, with the names of the segments that hold its replay.

One policy for both agents. If a replay does not fit on the disk, the checkpoint is left out; at a phase's end the run
stops, see `harness.training.loop`. A finished run keeps no replay: nothing is sampled from it any more.
"""

from pathlib import Path
from typing import Any

from harness.run.folder import Run
from rl.common.learner import AgentLearner
from rl.common.replay_store import Ring, RingStore


def write(run: Run, replay_store: RingStore, learner: AgentLearner, finished: bool) -> None:
    """Write the replay's new segments, then a checkpoint that names them, then remove segments that none names.

    Args:
        run: takes the checkpoint.
        replay_store: of the run.
        learner: whose state is saved.
        finished: whether the run ends here, so that no replay is kept.

    Raises:
        OSError: there is no room; the checkpoint before is as it was.
    """
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
