"""What surrounds the training loop of every program: clock, progress bar, signals, checkpoints."""

import contextlib
import logging
import signal as signals
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Self

from harness.config.errors import TrainingError
from harness.run.folder import Run
from harness.training.console import progress_bar, show
from harness.training.estimate import Estimate
from harness.training.learner import LearnerBase
from harness.training.signals import Preemption

log = logging.getLogger(__name__)
SHARE = 0.02  # of the time, which checkpoints within a phase take at most, unless one is asked for after each step
RECENT = 3  # saves whose median says how long one takes, so that one that hung by chance does not decide
MOST = 20  # times `every_seconds`: the next checkpoint is never further away, however slow saves are


def _alone(*numbers: int) -> list[int]:
    return list(numbers)


class Loop:
    """Context around a training loop.

    It logs once how long the run will take.

    Args:
        learner: whose `step` is shown and whose `seconds` are kept.
        run: where checkpoints go; None in a process that keeps no run folder.
        total_steps: of the whole run.
        title: beside the progress bar.
        shown: whether there is a bar.
        largest: the largest of each number over the processes of the run, so that all act alike.
    """

    def __init__(
        self,
        learner: LearnerBase,
        run: Run | None,
        total_steps: int,
        title: str,
        shown: bool = True,
        largest: Callable[..., list[int]] = _alone,
    ) -> None:
        self.learner, self.run, self.largest, self.total_steps = learner, run, largest, total_steps
        self._preemption = Preemption()
        self._took: list[float] = []  # seconds of the last saves
        self._bar = progress_bar(total_steps, learner.step, title, shown)
        if learner.step or learner.phase:  # resumed, or without a first phase: the next may begin with a long act
            self._preemption.at_once = self._leave

    def __enter__(self) -> Self:
        self._began = time.monotonic() - self.learner.seconds
        self._estimate = Estimate(self.total_steps, self.learner.step)
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self._preemption)
        self._stack.enter_context(self._bar)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._preemption.at_once = None  # a circle would keep the learner, and its replay, in memory
        self._stack.__exit__(*exception)

    def advance(self, steps: int = 1) -> None:
        """Move the bar on: a step was made."""
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
        """Around what a step does beside training: rows, measurements, acts of triggers. They may take long.

        One that ends soon after a signal is waited for, and the step is saved with it. A longer one is left: nothing is
        saved, as half of it cannot be, and the run resumes from the checkpoint before.

        Raises:
            SystemExit: the process was asked to stop and this took too long.
        """
        with self._preemption.at_most(self._leave):
            yield

    def end_step(self, save: Callable[[], None], ended: bool) -> None:
        """At the end of each step: write a checkpoint where one belongs, and leave if a signal asks for it.

        Between a phase's end and the next step a signal leaves at once: the act at the boundary is made again.

        On a full disk within a phase the checkpoint is skipped; a resume then starts from the one before.
        The end of a phase must be on the disk before the next one begins.

        Args:
            save: writes a checkpoint.
            ended: whether the phase ends with this step.

        Raises:
            TrainingError: the phase has ended and there is no room for its checkpoint.
            SystemExit: the process was asked to stop; its work is saved.
        """
        if self.run is not None and (estimate := self._estimate.after(self.learner.step)):
            log.info(estimate)
        due, signal = self.largest(self.run is not None and self.run.checkpoint_due, self._preemption.received or 0)
        if ended or due or signal:
            self.read_clock()
            self._write(save, ended)
        if signal:
            self._leave(signal)
        if ended:
            self._preemption.at_once = self._leave

    def _leave(self, signal: int | None = None) -> NoReturn:
        name = signals.Signals(signal or self._preemption.received or 0).name
        log.warning("%sstopped by %s at step %d", self._folder(after=": "), name, self.learner.step)
        self._preemption.leave()

    def _write(self, save: Callable[[], None], ended: bool) -> None:
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
            return
        if self.run is not None and self.run.every_seconds:
            now = time.monotonic()
            self._took = [*self._took, now - began][-RECENT:]
            usual = sorted(self._took)[(len(self._took) - 1) // 2]
            pause = min(usual / SHARE, MOST * self.run.every_seconds)
            self.run.next_checkpoint = max(self.run.next_checkpoint, now + pause)

    def _folder(self, before: str = "", after: str = "") -> str:
        return "" if self.run is None else f"{before}{self.run.folder}{after}"
