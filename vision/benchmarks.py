"""Benchmarks turn a data set into a sequence of phases. Here are those of the paper's figure 2, rows a to c.

Streams in which each phase is a new task are in `vision.streams`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from torch import Tensor

from fire_core.ranges import Count, checked, within
from harness.config.errors import ConfigError
from vision.data import ImageData
from vision.data.splits import class_phases, sample_phases, warm_start_phases

NO_SAMPLES = np.arange(0)


@dataclass(frozen=True)
class Phase:
    """The samples that are trained on and tested on, and for how long.

    Indices may be given as any sequence of whole numbers, such as a list or a tensor.

    Attributes:
        train: indices into the training set.
        test: indices into the test set; empty if the benchmark has nothing to test on.
        epochs: displayed epochs, each of which ends with a row of the log.
        passes_per_epoch: passes over `train` in one displayed epoch.
        change: makes the phase's data set from the run's, for example by drawing other labels; None if the phase uses
            the run's data set.
        unseen: indices of the test images of classes that have not come yet. With them, accuracy on all classes is
            measured too. None if the benchmark has no such classes.
        change_images: what `change` does to images, uint8 (n, C, H, W), for those that a loaded network is asked about;
            None if it leaves images as they are.

    Raises:
        ValueError: indices are no whole numbers in one dimension.
    """

    train: np.ndarray
    test: np.ndarray
    epochs: int
    passes_per_epoch: int = 1
    change: Callable[[ImageData], ImageData] | None = None
    unseen: np.ndarray | None = None
    change_images: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        for name in ("train", "test", "unseen"):
            if (given := getattr(self, name)) is not None:
                indices = np.asarray(given)
                if not indices.size:
                    indices = NO_SAMPLES  # numpy takes an empty list for floats
                if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
                    raise ValueError(
                        f"a phase's {name} must hold indices, whole numbers in one dimension; got {indices.dtype} of "
                        f"shape {indices.shape}"
                    )
                object.__setattr__(self, name, indices.astype(np.int64, copy=False))  # the class is frozen

    def steps_per_pass(self, batch_size: int) -> int:
        """Return the optimizer steps of one pass over the data; the last batch may be smaller.

        If a single image is left over it joins the batch before it, because batch norm cannot take the variance of one.
        """
        batches = -(-len(self.train) // batch_size)
        single_image_left = batches > 1 and len(self.train) % batch_size == 1
        return batches - single_image_left

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return the optimizer steps of one displayed epoch."""
        return self.passes_per_epoch * self.steps_per_pass(batch_size)

    def steps(self, batch_size: int) -> int:
        """Return the optimizer steps of the whole phase."""
        return self.epochs * self.steps_per_epoch(batch_size)


class Benchmark(ABC):
    """A sequence of phases, and the rules of training in them.

    Attributes:
        methods_from_phase: the first phase within which methods act.
        new_tasks: whether each phase is a new task. If so, rows also have averages over the run so far
            (`vision.phase.averages`).
        keeps_optimizer: whether the optimizer's state survives a boundary, unless a method resets it.
        needs_classes: whether labels must be classes; False if they are numbers.
        headline: name of the number in a run's summary that is shown and returned.
    """

    methods_from_phase = 0
    new_tasks = False
    keeps_optimizer = False
    needs_classes = True
    headline = "test/accuracy"

    @abstractmethod
    def phases(self, data: ImageData, epochs: int, seed: int) -> list[Phase]:
        """Return the phases on this data set.

        Args:
            data: the data set.
            epochs: displayed epochs of each phase.
            seed: seed of the run.

        Raises:
            ConfigError: the data set is too small, or of another kind.
            ValueError: the data set is too small for an option, whose name begins the message.
        """


class WarmStart(Benchmark):
    """Phase 0 trains on a random `ratio` per cent of the data, phase 1 on all; both are tested on the whole test set.

    Phase 0 makes 100 // ratio times as many passes, so that both phases take equally many optimizer steps.

    Args:
        ratio: per cent of the training set in phase 0; a divisor of 100.
        methods_from_phase: the first phase within which methods act: 1 as in the FIRE paper, 0 as the methods' authors
            do it.
    """

    @checked
    def __init__(
        self, ratio: Annotated[int, within(1, 100)] = 10, methods_from_phase: Annotated[int, within(0, 1)] = 0
    ) -> None:
        if 100 % ratio:
            raise ValueError(f"ratio={ratio} must divide 100: phase 0 makes as many steps as phase 1 by whole passes")
        self.ratio, self.methods_from_phase = ratio, methods_from_phase

    def phases(self, data: ImageData, epochs: int, seed: int) -> list[Phase]:
        """Return the two phases; see `Benchmark.phases`."""
        splits = warm_start_phases(len(data.train_labels), len(data.test_labels), self.ratio, seed)
        passes = (100 // self.ratio, 1)
        return [Phase(train, test, epochs, n) for (train, test), n in zip(splits, passes, strict=True)]


class Continual(Benchmark):
    """Phase i trains on the first (i+1)/chunks of a fixed permutation of the data; all phases have the whole test set.

    Args:
        chunks: number of phases.
    """

    @checked
    def __init__(self, chunks: Count = 10) -> None:
        self.chunks = chunks

    def phases(self, data: ImageData, epochs: int, seed: int) -> list[Phase]:
        """Return `chunks` phases, each of which adds training images; see `Benchmark.phases`."""
        available = len(data.train_labels)
        if self.chunks > available:
            raise ConfigError(
                f"benchmark.chunks={self.chunks} is more than the {available} training images of the data set"
            )
        splits = sample_phases(available, len(data.test_labels), self.chunks, seed)
        return [Phase(train, test, epochs) for train, test in splits]


class ClassIncremental(Benchmark):
    """Phase i trains on all samples of the first (i+1)/chunks of the permuted classes.

    It is tested on the classes seen so far (`test/accuracy`) and on all classes of the data set (`test/accuracy_all`).

    Args:
        chunks: number of phases; at most the number of classes.
    """

    @checked
    def __init__(self, chunks: Count = 20) -> None:
        self.chunks = chunks

    def phases(self, data: ImageData, epochs: int, seed: int) -> list[Phase]:
        """Return `chunks` phases, each of which adds classes; see `Benchmark.phases`."""
        train_labels, test_labels = data.train_labels.numpy(), data.test_labels.numpy()
        classes = int(train_labels.max()) + 1
        if self.chunks > classes:
            raise ConfigError(f"benchmark.chunks={self.chunks} is more than the {classes} classes of the data set")
        splits = class_phases(train_labels, test_labels, self.chunks, seed)
        all_test_images = np.arange(len(test_labels))
        return [Phase(train, test, epochs, unseen=np.setdiff1d(all_test_images, test)) for train, test in splits]
