"""The context around the training loop of every program: clock, progress bar, signals and checkpoints."""

import contextlib
import logging
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Self

from harness.config.errors import TrainingError
from harness.process.console import progress_bar, show
from harness.process.signals import Preemption
from harness.run.folder import Run
from harness.training.estimate import Estimate
from harness.training.learner import LearnerBase

log = logging.getLogger(__name__)
MAX_SAVING_SHARE = 0.02  # of the time, spent on checkpoints within a phase (unless every_seconds=0 asks for each step)
RECENT_SAVES = 3  # the median of their durations counts, so that a single slow save does not
MAX_PAUSE = 20  # times `every_seconds`: the longest time between two checkpoints, however slow saves are


def _one_rank(*numbers: int) -> list[int]:
    """Return the largest of each number over the ranks of a run that has one rank: the numbers themselves."""
    return list(numbers)


class Loop:
    """Context around a training loop; it also logs once how long the run will take.

    In each step the caller increments `learner.step`, calls `advance`, evaluates within `evaluation`, and ends with
    `end_step`. It calls `read_clock` before a row is logged.

    Args:
        learner: its `step` is shown in the bar, and its `seconds` are kept up to date.
        run: writes the checkpoints; None in a process that keeps no run folder.
        total_steps: steps of the whole run.
        title: text before the progress bar.
        shown: whether a progress bar is printed.
        max_over_ranks: returns the largest of each given number over all ranks of the run, so that all ranks save and
            leave at the same step.
    """

    def __init__(
        self,
        learner: LearnerBase,
        run: Run | None,
        total_steps: int,
        title: str,
        shown: bool = True,
        max_over_ranks: Callable[..., list[int]] = _one_rank,
    ) -> None:
        self.learner, self.run, self.total_steps = learner, run, total_steps
        self.max_over_ranks = max_over_ranks
        self._preemption = Preemption()
        self._save_seconds: list[float] = []  # of the newest RECENT_SAVES
        self._bar = progress_bar(total_steps, learner.step, title, shown)
        if learner.step or learner.phase:
            # Resumed, or without a first phase: a long act at a boundary may come first, before there is work to save.
            self._preemption.at_once = self._leave

    def __enter__(self) -> Self:
        self._began = time.monotonic() - self.learner.seconds
        self._estimate = Estimate(self.total_steps, self.learner.step)
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self._preemption)
        self._stack.enter_context(self._bar)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._preemption.at_once = None  # a reference cycle would keep the learner, and its replay, in memory
        self._stack.__exit__(*exception)

    def advance(self, steps: int = 1) -> None:
        """Note that steps were made: move the bar, and let a signal from now on wait for `end_step`, which saves them.

        Call it after each step, before `end_step`. It does not change `learner.step`, which the caller counts.
        """
        self._preemption.at_once = None
        self._bar.update(steps)

    def show(self, **numbers: object) -> None:
        """Show the newest numbers beside the bar."""
        show(self._bar, **numbers)

    def read_clock(self) -> None:
        """Bring `learner.seconds` up to date."""
        self.learner.seconds = time.monotonic() - self._began

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Context around evaluations and other work of a step that is no training and may take long.

        After a signal it may still finish within `harness.process.signals.PATIENCE` seconds, and then the step is saved
        with it. If it takes longer the process leaves without a checkpoint, since half an evaluation cannot be saved;
        the run resumes from the checkpoint before.

        Raises:
            SystemExit: the process was asked to stop and this took too long.
        """
        with self._preemption.limited_after_signal(self._leave):
            yield

    def end_step(self, save: Callable[[], None], ended: bool) -> None:
        """End a step: write a checkpoint if one is due or the phase ends, and leave if a signal asked for it.

        Between the end of a phase and the next step a signal leaves at once; the resumed run repeats the act at the
        boundary.

        If the disk is full within a phase, this checkpoint is skipped and a resume starts from the one before. The
        checkpoint that ends a phase must be written before the next phase begins.

        Args:
            save: writes a checkpoint.
            ended: whether the phase ends with this step.

        Raises:
            TrainingError: the phase has ended and there is no room for its checkpoint.
            SystemExit: the process was asked to stop; its work is saved.
        """
        if self.run is not None and (estimate := self._estimate.after(self.learner.step)):
            log.info(estimate)
        due, received = self.max_over_ranks(
            self.run is not None and self.run.checkpoint_due, self._preemption.received or 0
        )
        if ended or due or received:
            self.read_clock()
            self._write(save, ended)
            (received,) = self.max_over_ranks(self._preemption.received or 0)  # it may have come during a long save
        if received:
            self._leave(signal.Signals(received))
        if ended:
            self._preemption.at_once = self._leave
            if self._preemption.received:  # between the last look and this moment
                self._leave()
            if self.run is not None and self.learner.step >= self.total_steps:
                self._warn_of_idle_method()

    def _warn_of_idle_method(self) -> None:
        """Warn at the end of a run whose method has never come to act, so that nobody takes it for a result of it."""
        if reason := self.learner.method.idle_reason():
            log.warning("a method has never acted in %s (%s)", self.run.folder if self.run else "", reason)

    def _leave(self, received: signal.Signals | None = None) -> NoReturn:
        """Log which signal stopped the run, and exit; `received` is another rank's where this one has received none."""
        stopped_by = received or self._preemption.received
        name = stopped_by.name if stopped_by else "a signal"
        log.warning("%sstopped by %s at step %d", self._folder(after=": "), name, self.learner.step)
        self._preemption.leave()

    def _write(self, save: Callable[[], None], ended: bool) -> None:
        """Save, and set the time of the next checkpoint so that slow saves take a small share of the time."""
        began = time.monotonic()
        if self.run is not None:
            self.run.next_checkpoint = began + self.run.every_seconds
        try:
            save()
        except OSError as error:
            reason, step = error.strerror or str(error), self.learner.step
            if ended:
                raise TrainingError(
                    f"cannot write the checkpoint that ends phase {self.learner.phase}{self._folder(' in ')} "
                    f"({reason}): make room and start the same command again, it resumes from the last checkpoint"
                ) from error
            log.warning("no checkpoint at step %d%s: %s", step, self._folder(" in "), reason)
        if self.run is not None and self.run.every_seconds:  # a save that fails may take long, too
            now = time.monotonic()
            self._save_seconds = [*self._save_seconds, now - began][-RECENT_SAVES:]
            usual = statistics.median_low(self._save_seconds)
            pause = min(usual / MAX_SAVING_SHARE, MAX_PAUSE * self.run.every_seconds)
            self.run.next_checkpoint = max(self.run.next_checkpoint, now + pause)

    def _folder(self, before: str = "", after: str = "") -> str:
        """Return the run folder between two texts for a message; empty in a process that keeps no folder."""
        return "" if self.run is None else f"{before}{self.run.folder}{after}"
