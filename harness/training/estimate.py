"""How long a run will take, in one line of its log; for the first job of a sweep also how long all of them will."""

import logging
import math
import os
import time
from collections.abc import Callable

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from harness.run.workers import number_of_workers

log = logging.getLogger(__name__)
SWEEP_JOBS = "FIRE_SWEEP_JOBS"  # number of jobs of the sweep that this process works for
SECONDS, SHARE = 10.0, 0.02  # seen of a run before something is said of it
OFF = 1.4  # factor by which a later estimate differs from what was said, so that it is said again


class Estimate:
    """Says after some steps how long a run takes, and again where that was wrong.

    Only the newer half of the time is looked at: an agent's first decisions are made without updates, and a network is
    compiled in its first step. All steps of the run count, whatever the lengths of its phases, and steps that were
    taken from a checkpoint or from a shared first phase take no time any more.

    Args:
        total_steps: of the whole run.
        first_step: from which this process goes on; 0 in a new run.
        clock: seconds, as `time.monotonic`.
    """

    def __init__(self, total_steps: int, first_step: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total_steps, self.first_step, self.clock = total_steps, first_step, clock
        self.began = clock()
        self._marks = [(0.0, first_step)]  # seconds and step, at which the time had doubled
        self._next = SECONDS / 4
        self._said: float | None = None  # seconds in all, from the start of this process

    def after(self, step: int) -> str | None:
        """Return what is to be said after a step; mostly nothing."""
        seconds = self.clock() - self.began
        if seconds < self._next:
            return None
        self._next = 2 * seconds
        since, step_then = self._marks[-1]
        self._marks.append((seconds, step))
        seen = step - self.first_step
        left = self.total_steps - step
        if seconds < SECONDS or seen < SHARE * self.total_steps or step <= step_then or left <= 0:
            return None
        in_all = seconds + left * (seconds - since) / (step - step_then)
        if self._said is not None and 1 / OFF < in_all / self._said < OFF:
            return None
        first, self._said = self._said is None, in_all
        if self.first_step:
            return f"about {in_words(in_all)} more for this run, from step {self.first_step:,} of {self.total_steps:,}"
        return f"about {in_words(in_all)} for this run{of_sweep(in_all) if first else ''}"


def of_sweep(seconds: float) -> str:
    """Return how long the jobs of a sweep take if all are as long as this one; nothing outside of its first job.

    Args:
        seconds: of this one.
    """
    number = int(os.environ.get(SWEEP_JOBS, "0"))
    if number < 2 or not HydraConfig.initialized() or HydraConfig.get().mode != RunMode.MULTIRUN:
        return ""
    config = HydraConfig.get()
    launcher, at_once = str(config.launcher.get("_target_")).rpartition(".")[2], 1
    if launcher == "CoresLauncher":
        at_once, _ = number_of_workers("hydra.launcher.n_jobs", config.launcher.n_jobs)
    elif launcher != "BasicLauncher":
        return ""  # on a cluster: how many run at once is not known here
    if config.job.num != 0:
        return ""
    in_all = in_words(math.ceil(number / at_once) * seconds)
    return f", {in_all} for all {number} jobs of the sweep if they are alike"


def in_words(seconds: float) -> str:
    """Return a duration such as `2 min 10 s` or `3 h 20 min`."""
    if seconds < 100:
        return f"{round(seconds)} s"
    minutes, rest = divmod(round(seconds / 10) * 10, 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {rest} s" if rest and minutes < 10 else "")
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h" + (f" {minutes} min" if minutes and hours < 10 else "")
