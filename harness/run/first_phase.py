"""The first phase does not depend on the method: train it once, start every method from it.

An entry of the cache is a run folder of its own, named by the hash of what shapes the first phase, so it is locked,
checkpointed and resumed like any run: many processes at once train it once, and if one is killed, the next
continues its work.
"""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from harness.config.errors import ConfigError, TrainingError
from harness.run.folder import Run
from harness.run.identity import digest
from harness.run.lock import NoLocks

log = logging.getLogger(__name__)
ATTEMPTS = 3  # a cache that someone removes under way costs time; in the end a run trains its first phase itself


def shared_first_phase(
    cache: Path,
    name: str,
    shape: dict[str, Any],
    config_yaml: str,
    train: Callable[[Run], dict[str, Any]],
    device: torch.device | str = "cpu",
    every_seconds: float = 60.0,
    check: Callable[[dict[str, Any]], None] | None = None,
) -> tuple[dict[str, Any], str] | None:
    """The trainer's state after the first phase and the rows that it logged, trained here if not in the cache.

    Args:
        cache: folder of the cache.
        name: readable part of the entry's name.
        shape: the part of the identity that shapes the first phase (without the method and the later phases); it
            holds the program's NUMERICS.
        config_yaml: the whole config, for the reader of the entry.
        train: trains the first phase within the given run (resuming it) and returns the summary that marks it done.
        device: where the state's tensors go.
        every_seconds: between checkpoints while training.
        check: raises an exception for a trainer's state that cannot be one of the entry.

    Returns:
        The state, as the trainer's last checkpoint in the entry holds it, with the entry's folder as `origin`, and the
        text of the entry's metrics.jsonl.
        None if the cache's file system has no locks: nothing can be shared there safely.

    Raises:
        TrainingError: training cannot continue, or there is no room in the cache for the phase's end.
    """
    folder = cache / f"{name}-{digest(shape, 12)}"
    for _ in range(ATTEMPTS):
        entry = Run(folder, shape, config_yaml, every_seconds=every_seconds, keep=1, wait=True, check=check)
        try:
            with entry:
                if found := _take_or_train(entry, train, device):
                    return found
            log.warning("first phase in %s lost its checkpoint under way", folder)
        except NoLocks as error:
            log.warning(
                "%s has no locks (%s): the first phase is not shared; choose another paths.cache=", cache, error
            )
            return None
        except (ConfigError, TrainingError, OSError) as error:
            if not entry.removed:
                raise
            log.warning("%s was removed under way (%s): training the first phase again", folder, error)
    log.warning("the first phase is not shared: %s cannot be relied upon", folder)
    return None


def _take_or_train(
    entry: Run, train: Callable[[Run], dict[str, Any]], device: torch.device | str
) -> tuple[dict[str, Any], str] | None:
    """State and rows of an entry, which is finished first if need be; None if it lost its checkpoint since."""
    if entry.done is not None:
        if taken := _read(entry, device):
            log.info("first phase taken from %s: %.1f s saved", entry.folder, taken[0]["seconds"])
            return taken
        log.warning("first phase in %s is damaged: training it again", entry.folder)
        empty(entry.folder)
    log.info("training the first phase, shared through %s", entry.folder)
    summary = train(entry)
    trained = _read(entry, device)
    if trained is not None:
        entry.finish(summary)
    return trained


def empty(folder: Path) -> None:
    """Remove what an entry holds, so that its first phase is trained from the start."""
    (folder / "DONE").unlink(missing_ok=True)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def _read(entry: Run, device: torch.device | str) -> tuple[dict[str, Any], str] | None:
    """State and rows of a finished entry, None if either is damaged."""
    state = entry.newest_state(device)
    if state is None:
        return None
    path = entry.folder / "metrics.jsonl"
    rows = path.read_bytes() if path.is_file() else b""
    if state["metrics_bytes"] != len(rows):  # an older checkpoint: the last could not be written
        return None
    return {**state["trainer"], "origin": str(entry.folder)}, rows.decode()
