"""The first phase does not depend on the method: train it once, start every method from it.

An entry of the cache is a run folder of its own, named by the hash of what shapes the first phase, so it is locked,
checkpointed and resumed like any run: many processes at once train it once, and if one is killed, the next
continues its work.
"""

import hashlib
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fire_core.harness.run import NUMERICS
from fire_core.harness.run.folder import Run
from fire_core.harness.run.identity import digest
from fire_core.harness.run.lock import NoLocks

log = logging.getLogger(__name__)


def shared_first_phase(
    cache: Path,
    name: str,
    shape: dict[str, Any],
    config_yaml: str,
    train: Callable[[Run], dict[str, Any]],
    device: torch.device | str = "cpu",
    every_seconds: float = 60.0,
) -> tuple[dict[str, Any], str] | None:
    """The trainer's state after the first phase and the rows that it logged, trained here if not in the cache.

    Args:
        cache: folder of the cache.
        name: readable part of the entry's name.
        shape: the part of the identity that shapes the first phase (without the method and the later phases).
        config_yaml: the whole config, for the reader of the entry.
        train: trains the first phase within the given run (resuming it) and returns the summary that marks it done.
        device: where the state's tensors go.
        every_seconds: between checkpoints while training.

    Returns:
        The state, as the trainer's last checkpoint in the entry holds it, with the entry's folder as `origin`, and the
        text of the entry's metrics.jsonl.
        None if the cache's file system has no locks: nothing can be shared there safely.

    Raises:
        TrainingError: training cannot continue, or there is no room in the cache for the phase's end.
    """
    shape = {**shape, "numerics": NUMERICS}
    folder = cache / f"{name}-{digest(shape, 12)}"
    try:
        with Run(folder, shape, config_yaml, every_seconds=every_seconds, keep=1, wait=True) as entry:
            if (summary := entry.done) is not None:
                if found := _read(entry, summary, device):
                    log.info("first phase taken from %s: %.1f s saved", folder, summary["seconds"])
                    return found
                log.warning("first phase in %s is damaged: training it again", folder)
                (folder / "DONE").unlink()
                shutil.rmtree(folder / "checkpoints", ignore_errors=True)
            log.info("training the first phase, shared through %s", folder)
            summary = train(entry)
            summary["metrics_sha256"] = _metrics_digest(folder)
            found = _read(entry, summary, device)
            assert found is not None, "the first phase ends with a checkpoint"
            entry.finish(summary)
            return found
    except NoLocks as error:
        log.warning("%s has no locks (%s): the first phase is not shared; choose another cache.dir=", cache, error)
        return None


def _read(entry: Run, summary: dict[str, Any], device: torch.device | str) -> tuple[dict[str, Any], str] | None:
    """State and rows of a finished entry, None if either is damaged."""
    state = entry.newest_state(device)
    if state is None or _metrics_digest(entry.folder) != summary.get("metrics_sha256"):
        return None
    rows = (entry.folder / "metrics.jsonl").read_text()
    if state["metrics_bytes"] != len(rows.encode()):  # an older checkpoint: the last could not be written
        return None
    return {**state["trainer"], "origin": str(entry.folder)}, rows


def _metrics_digest(folder: Path) -> str:
    metrics = folder / "metrics.jsonl"
    return hashlib.sha256(metrics.read_bytes() if metrics.exists() else b"").hexdigest()
