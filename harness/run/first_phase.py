"""The first phase does not depend on the method: train it once, start every method from it.

An entry of the cache is a run folder of its own, named by the hash of what shapes the first phase, so it is locked,
checkpointed and resumed like any run: many processes at once train it once, and if one is killed, the next
continues its work.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from harness.config.errors import TrainingError
from harness.run.files import reading
from harness.run.folder import CheckFiles, Run
from harness.run.identity import digest

log = logging.getLogger(__name__)


def shared_first_phase(
    cache: Path,
    name: str,
    phase_identity: dict[str, Any],
    config_yaml: str,
    train: Callable[[Run], dict[str, Any]],
    device: torch.device | str = "cpu",
    every_seconds: float = 60.0,
    check_files: CheckFiles | None = None,
) -> tuple[dict[str, Any], str]:
    """Return the trainer's state after the first phase, and the phase's rows; train it here if the cache lacks it.

    One process trains the entry, and all others wait for it. A damaged entry is trained again.

    Args:
        cache: folder of the cache.
        name: readable part of the entry's name.
        phase_identity: the part of the run's identity that the first phase depends on, without the method and the later
            phases; it includes the program's NUMERICS.
        config_yaml: the resolved config of the run that trains the entry, for people who look into the cache.
        train: trains the first phase within the given run (resuming it) and returns the summary that marks it done. It
            must write a checkpoint at the phase's end, since the state is read back from there.
        device: the device of the state's tensors.
        every_seconds: seconds between checkpoints while training.
        check_files: see `harness.run.folder.Run`.

    Returns:
        The trainer's state from the entry's last checkpoint, with the entry's folder as `origin`; and the text of the
        entry's metrics.jsonl.

    Raises:
        TrainingError: training cannot continue, or there is no room in the cache for the phase's end.
    """
    folder = cache / f"{name}-{digest(phase_identity, 12)}"
    with Run(
        folder,
        phase_identity,
        config_yaml,
        every_seconds=every_seconds,
        keep=1,
        wait=True,
        option="paths.cache",
        check_files=check_files,
    ) as entry:
        if entry.done is not None:
            if cached := _read(entry, device):
                log.info("first phase taken from %s: %.1f s saved", folder, cached[0]["seconds"])
                return cached
            log.warning("first phase in %s is damaged: training it again", folder)
        log.info("training the first phase, shared through %s", folder)
        summary = train(entry)
        if (trained := _read(entry, device)) is None:
            missing = FileNotFoundError(folder / "checkpoints")
            raise TrainingError(f"{folder} was removed under way: start the same command again") from missing
        entry.finish(summary)
        return trained


def _read(entry: Run, device: torch.device | str) -> tuple[dict[str, Any], str] | None:
    """Return the state and the rows of a finished entry; None if either is damaged."""
    state = entry.newest_state(device)
    if state is None:
        return None
    with reading(entry.folder):
        rows = (entry.folder / "metrics.jsonl").read_bytes()
    if state["metrics_bytes"] != len(rows):  # an older checkpoint, as the last is damaged
        return None
    return {**state["trainer"], "origin": str(entry.folder)}, rows.decode()
