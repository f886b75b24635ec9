"""The life of one run: skip it if it is done, go on where it was interrupted, start from a shared first phase."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from fire_core.harness.options.build import build
from fire_core.harness.options.cli import Outcome
from fire_core.harness.options.config import check_name, digest
from fire_core.harness.run.first_phase import shared_first_phase
from fire_core.harness.run.folder import Run

log = logging.getLogger(__name__)
Train = Callable[[Run, dict[str, Any] | None, int | None], dict[str, Any]]


def live(
    config: DictConfig,
    outcome: Outcome,
    train: Train,
    *,
    groups: tuple[str, ...],
    what: dict[str, Any],
    first: dict[str, Any] | None,
    headline: str,
    device: torch.device,
    total_steps: int,
) -> dict[str, Any]:
    """Open the run's folder and take the run to its end; the summary, also of a run that was done before.

    Args:
        config: the program's options.
        outcome: is told how the run ended.
        train: `train(run, state, stop)` trains from `state` (None: from the start) up to phase `stop` (None: to the
            end), within `run`, and returns a summary; its state has `step` and `method`.
        groups: options whose names begin the folder's name, such as ("benchmark", "dataset").
        what: the run's identity (see `fire_core.harness.options.config.identity`).
        first: the part of it that shapes the first phase; None: the first phase is not shared.
        headline: the number of the summary that is told.
        device: where the state's tensors go.
        total_steps: of the whole run.

    Raises:
        ConfigError: a name in `groups` cannot be part of a path, or another process holds the run.
        TrainingError: training cannot go on, or its end could not be written.
    """
    *kind, method = [check_name(f"{group}.name", str(config[group].name)) for group in (*groups, "method")]
    label = f"{'-'.join(kind)}-{method}-s{config.seed}"
    folder = Path(config.paths.runs) / config.program / f"{label}-{digest(what)}"
    yaml = OmegaConf.to_yaml(config, resolve=True)
    every, keep = config.checkpoint.every_seconds, config.checkpoint.keep
    with Run(folder, what, yaml, build("tracker", config.tracker), every, keep, total_steps=total_steps) as run:
        if (summary := run.done) is not None:
            log.info("%s is done: %s %.4f", folder, headline, summary[headline])
            outcome.state = "skipped"
            return summary
        state = run.resume(device)
        if state is not None:
            log.info("%s goes on from step %d", folder, state["step"])
        elif config.cache.enabled and first is not None:
            label = f"{config.program}-{'-'.join(kind)}-s{config.seed}"

            def first_phase(entry: Run) -> dict[str, Any]:
                return train(entry, _of_no_method(entry.resume(device)), 1)

            shared = shared_first_phase(Path(config.cache.dir), label, first, yaml, first_phase, device, every)
            if shared is not None:
                state, rows = _of_no_method(shared[0]), shared[1]
                run.append_rows(rows)
        summary = train(run, state, None)
        run.finish(summary)
        log.info("%s: %s %.4f", folder, headline, summary[headline])
        outcome.state = "done"
        return summary


def _of_no_method(state: dict[str, Any] | None) -> dict[str, Any] | None:
    """A state of a shared first phase, which another method's run may have trained, or begun."""
    return None if state is None else {**state, "method": None}
