"""The first phase does not depend on the method: train it once, start every method from it.

An entry of the cache is a run folder of its own, named by the hash of what shapes the first phase, so it is locked,
checkpointed and resumed like any run: many processes at once train it once, and one that is killed in the middle leaves
its work to the next.
"""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fire_core.harness.config import digest
from fire_core.harness.run import Run

log = logging.getLogger(__name__)
FORMAT = 1  # raise it when a change to the trainers changes what a first phase computes


def shared_first_phase(
    cache: Path,
    name: str,
    shape: dict[str, Any],
    config_yaml: str,
    train: Callable[[Run], dict[str, Any]],
    device: torch.device | str = "cpu",
    every_seconds: float = 60.0,
) -> tuple[dict[str, Any], str]:
    """The trainer's state after the first phase and the rows that it logged, trained here only if nobody has.

    Args:
        cache: folder of the cache.
        name: readable part of the entry's name.
        shape: the part of the config that shapes the first phase (without the method and the later phases).
        config_yaml: the whole config, for the reader of the entry.
        train: trains the first phase within the given run (resuming it) and returns the summary that marks it done.
        device: where the state's tensors go.
        every_seconds: between checkpoints while training.

    Returns:
        The state, as the trainer's last checkpoint in the entry holds it, and the text of the entry's metrics.jsonl.
    """
    shape = {"format": FORMAT, **shape}
    entry = Run(
        cache / f"{name}-{digest(shape, 12)}",
        shape,
        config_yaml,
        every_seconds=every_seconds,
        keep=1,
        wait=True,
    )
    with entry:
        if (summary := entry.done) is not None:
            if state := entry.newest_state(device):
                log.info("first phase taken from %s: %.1f s saved", entry.folder, summary["seconds"])
                return state["trainer"], (entry.folder / "metrics.jsonl").read_text()
            log.warning("first phase in %s is damaged: training it again", entry.folder)
            (entry.folder / "DONE").unlink()
            shutil.rmtree(entry.folder / "checkpoints", ignore_errors=True)
        log.info("training the first phase, shared through %s", entry.folder)
        entry.finish(train(entry))
        state = entry.newest_state(device)
        assert state is not None, "the first phase ends with a checkpoint"
        return state["trainer"], (entry.folder / "metrics.jsonl").read_text()
