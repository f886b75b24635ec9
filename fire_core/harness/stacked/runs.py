"""What every trainer's stack of runs has: which of them go on, and each one's random numbers."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from fire_core.harness.options.errors import TrainingError
from fire_core.harness.run.folder import Run
from fire_core.harness.training import seeding

log = logging.getLogger(__name__)


class Seeded(Protocol):
    """What is needed of a run's task."""

    @property
    def config(self) -> Any:
        """The run's options, with its `seed`."""


class StackedRuns:
    """Runs that are trained at once.

    Args:
        tasks: of the runs.
        runs: their folders, open.

    Attributes:
        failed: why a run cannot go on, by its place. Its networks stay in the stack.
        generators: of each run: the states of the global generators, seeded when its next phase begins.
        before: seconds of training that each run had before.
    """

    def __init__(self, tasks: Sequence[Seeded], runs: Sequence[Run]) -> None:
        self.runs = runs
        self.seeds = [task.config.seed for task in tasks]
        self.failed: dict[int, TrainingError] = {}
        self.generators = [seeding.rng_state() for _ in tasks]
        self.before = [0.0] * len(tasks)

    @property
    def going(self) -> list[int]:
        """The places of the runs that go on."""
        return [i for i in range(len(self.runs)) if i not in self.failed]

    def attempt(self, i: int, do: Callable[[], None]) -> None:
        """Do something for one run. If it fails, only this run ends."""
        try:
            do()
        except TrainingError as error:
            self.failed[i] = error
            self.runs[i].fail(error)
            log.warning("seed %d: %s", self.seeds[i], error)

    @contextlib.contextmanager
    def as_seed(self, i: int) -> Iterator[None]:
        """Torch draws what this run would draw alone."""
        torch.set_rng_state(self.generators[i]["torch"])
        yield
        self.generators[i]["torch"] = torch.get_rng_state()
