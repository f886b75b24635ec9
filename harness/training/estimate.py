"""Estimate how long a run will take, as one line of its log; the first job of a sweep also says it for the sweep."""

import logging
import math
import os
import time
from collections.abc import Callable

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from harness.process.workers import number_of_workers

log = logging.getLogger(__name__)
SWEEP_JOBS = "FIRE_SWEEP_JOBS"  # number of jobs of the sweep that this process works for
FIRST_AFTER_SECONDS, FIRST_AFTER_SHARE = 10.0, 0.02  # time, and share of the steps, before the first estimate
REPEATED_IF_OFF_BY = 1.4  # factor between a new estimate and the one that was logged


class Estimate:
    """Estimates after some steps how long a run will take, and again if the first estimate was wrong.

    The speed is measured over the newer half of the time alone: an agent makes its first decisions without updates, and
    a network is compiled in its first step. All steps of the run count, whatever the lengths of its phases. Steps that
    come from a checkpoint or from a shared first phase take no more time.

    Args:
        total_steps: steps of the whole run.
        first_step: the step from which this process goes on; 0 in a new run.
        clock: returns seconds, as `time.monotonic` does.
    """

    def __init__(self, total_steps: int, first_step: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total_steps, self.first_step, self.clock = total_steps, first_step, clock
        self.began = clock()
        self._mark = (0.0, first_step)  # (seconds, step) when the elapsed time had last doubled
        self._next_mark = FIRST_AFTER_SECONDS / 4
        self._logged: float | None = None  # the last estimate: seconds of this process from start to end

    def after(self, step: int) -> str | None:
        """Return the line to log after a step; None after most steps."""
        seconds = self.clock() - self.began
        if seconds < self._next_mark:
            return None
        self._next_mark = 2 * seconds
        seconds_at_mark, step_at_mark = self._mark
        self._mark = (seconds, step)
        steps_made = step - self.first_step
        steps_left = self.total_steps - step
        too_early = seconds < FIRST_AFTER_SECONDS or steps_made < FIRST_AFTER_SHARE * self.total_steps
        if too_early or step <= step_at_mark or steps_left <= 0:
            return None
        total = seconds + steps_left * (seconds - seconds_at_mark) / (step - step_at_mark)
        if self._logged is not None and 1 / REPEATED_IF_OFF_BY < total / self._logged < REPEATED_IF_OFF_BY:
            return None
        is_first, self._logged = self._logged is None, total
        if self.first_step:
            return f"about {in_words(total)} more for this run, from step {self.first_step:,} of {self.total_steps:,}"
        return f"about {in_words(total)} for this run{sweep_estimate(total) if is_first else ''}"


def sweep_estimate(seconds: float) -> str:
    """Return how long all jobs of a sweep take if each takes as long as this one.

    Args:
        seconds: how long this job takes.

    Returns:
        Empty outside of a sweep, in jobs after the first, and on a cluster.
    """
    number = int(os.environ.get(SWEEP_JOBS, "0"))
    if number < 2 or not HydraConfig.initialized() or HydraConfig.get().mode != RunMode.MULTIRUN:
        return ""
    config = HydraConfig.get()
    launcher, at_once = str(config.launcher.get("_target_")).rpartition(".")[2], 1
    if launcher == "CoresLauncher":
        at_once, _ = number_of_workers("hydra.launcher.n_jobs", config.launcher.n_jobs)
    elif launcher != "BasicLauncher":
        return ""  # a cluster, whose scheduler alone knows how many jobs run at once
    if config.job.num != 0:
        return ""
    duration = in_words(math.ceil(number / at_once) * seconds)
    return f", {duration} for all {number} jobs of the sweep if they are alike"


def in_words(seconds: float) -> str:
    """Return a duration such as `2 min 10 s` or `3 h 20 min`."""
    if seconds < 100:
        return f"{round(seconds)} s"
    minutes, rest = divmod(round(seconds / 10) * 10, 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {rest} s" if rest and minutes < 10 else "")
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h" + (f" {minutes} min" if minutes and hours < 10 else "")
