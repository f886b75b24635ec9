"""Streams in which each phase is a new task, where networks lose plasticity most.

A task's data are made when its phase begins, from the run's seed and the phase's number alone, so that a resumed run
has the same. Methods act from the first phase on. The optimizer's state survives a boundary unless a method resets it,
because the baseline must not know of boundaries.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from fire_core.ranges import Count, Share, checked, within
from harness.config.errors import ConfigError
from harness.training import seeding
from vision.benchmarks import NO_SAMPLES, Benchmark, Phase
from vision.data import ImageData
from vision.data.bits import BitData

Tasks = Annotated[int, within(1, 100_000)]  # limited, as all phases are held in a list
Examples = Annotated[int, within(1, 10_000_000)]  # limited, as all examples of a task are held in memory


class RandomLabels(Benchmark):
    """The same images in each task, with labels drawn anew (Lyle et al. 2023; Kumar et al. 2023).

    The labels say nothing of the images, so there is nothing to test: the score is the training accuracy in the last
    epoch of a task, averaged over tasks.

    Args:
        tasks: number of tasks.
        samples: number of training images, drawn once from the run's seed; null takes all.
        share: share of these images for which a new task draws a label; the others keep theirs. The draw may give an
            image the label that it has already.
    """

    new_tasks = True
    keeps_optimizer = True
    headline = "task_end/accuracy"

    @checked
    def __init__(self, tasks: Tasks = 20, samples: Count | None = 1200, share: Share = 1.0) -> None:
        self.tasks, self.samples, self.share = tasks, samples, share

    def phases(self, data: ImageData, epochs: int, seed: int) -> list[Phase]:
        """Return a phase for each task; see `Benchmark.phases`."""
        images = draw_training_images(data, self.samples, seed)
        redraw = functools.partial(draw_labels, images=images, share=self.share, seed=seed)
        return [
            Phase(images, NO_SAMPLES, epochs, change=functools.partial(redraw, task=task)) for task in range(self.tasks)
        ]


class Permuted(Benchmark):
    """The same images in each task, with their pixels in another order, the same for all images of a task.

    Args:
        tasks: number of tasks.
        samples: number of training images, drawn once from the run's seed; null takes all.
        online: show each image once in a task. The score is then the average online accuracy, that of the predictions
            before each update (Kumar et al. 2023; Dohare et al. 2024). Otherwise the score is the test accuracy at the
            end of a task, averaged over tasks.
        share: share of an image's pixels that a new task moves; the others stay where the task before has them. If
            it is a single pixel, nothing changes.
    """

    new_tasks = True
    keeps_optimizer = True

    @checked
    def __init__(
        self, tasks: Tasks = 20, samples: Count | None = None, online: bool = False, share: Share = 1.0
    ) -> None:
        self.tasks, self.samples, self.online, self.share = tasks, samples, online, share
        self.headline = "online/accuracy" if online else "task_end/accuracy"

    def phases(self, data: ImageData, epochs: int, seed: int) -> list[Phase]:
        """Return a phase for each task; see `Benchmark.phases`."""
        if self.online and epochs != 1:
            raise ConfigError(f"benchmark.online=true sees each image once in a task: epochs must be 1, got {epochs}")
        images = draw_training_images(data, self.samples, seed)
        test = NO_SAMPLES if self.online else np.arange(len(data.test_labels))
        train = np.arange(len(images))  # a task's data set holds just these images, in this order
        phases = []
        for task in range(self.tasks):
            in_order = functools.partial(with_permuted_pixels, share=self.share, seed=seed, task=task)
            change = functools.partial(permute_pixels, images=images, tested=len(test) > 0, permuted=in_order)
            phases.append(Phase(train, test, epochs, change=change, change_images=in_order))
        return phases


class SlowlyChangingRegression(Benchmark):
    """Regression from random bits, some of which change slowly, to the output of a fixed random network.

    Of the m input bits the first `flipping` are the same in all examples of a task; at its end one of them, drawn at
    random, flips. The others are drawn anew for each example. Each example is shown once; the score is the mean squared
    error of the predictions before each update (Dohare et al., "Loss of plasticity in deep continual learning", Nature
    2024, Methods; arXiv 2306.13812).

    Args:
        tasks: number of tasks.
        every: examples of a task.
        flipping: number of input bits that stay the same during a task.
        flips: what changes between tasks: `one` of the slow bits flips, as in the paper; `all` of them are redrawn, as
            in the configurations of its public code.
    """

    new_tasks = True
    keeps_optimizer = True
    needs_classes = False
    headline = "online/loss"

    @checked
    def __init__(
        self, tasks: Tasks = 100, every: Examples = 10_000, flipping: Count = 15, flips: Literal["one", "all"] = "one"
    ) -> None:
        self.tasks, self.every, self.flipping, self.flips = tasks, every, flipping, flips

    def phases(self, data: ImageData, epochs: int, seed: int) -> list[Phase]:
        """Return a phase for each task; see `Benchmark.phases`."""
        if not isinstance(data, BitData):
            raise ConfigError("benchmark=slowly_changing_regression has no images: it needs dataset=bits")
        if epochs != 1:
            raise ConfigError(
                f"benchmark=slowly_changing_regression sees an example once: epochs must be 1, got {epochs}"
            )
        if self.flipping > data.inputs:
            raise ConfigError(f"benchmark.flipping={self.flipping} is more than the {data.inputs} input bits")
        slow = slow_bits(self.tasks, self.flipping, self.flips, seeding.generator(seed, "slow bits"))
        examples = np.arange(self.every)
        return [
            Phase(
                examples,
                NO_SAMPLES,
                epochs,
                change=functools.partial(draw_bits, slow=bits, every=self.every, seed=seed, task=task),
            )
            for task, bits in enumerate(slow)
        ]


def draw_labels(data: ImageData, images: np.ndarray, share: float, seed: int, task: int) -> ImageData:
    """Return the data set of a task with random labels, drawn uniformly from all classes.

    Args:
        data: the run's data set.
        images: indices of the training images.
        share: share of these images for which each task draws a new label.
        seed: seed of the run.
        task: number of the task, from 0.
    """
    count, redrawn = len(data.train_labels), round(share * len(images))

    def labels_of_task(number: int) -> Tensor:
        return torch.randint(data.num_classes, (count,), generator=seeding.generator(seed, "labels", number))

    if redrawn == len(images):
        labels = labels_of_task(task)
    else:
        labels = labels_of_task(0)
        # All earlier tasks' changes are made again, so that a resumed run has the same labels.
        for number in range(1, task + 1):
            order = torch.randperm(len(images), generator=seeding.generator(seed, "redrawn labels", number))
            changed = torch.from_numpy(images)[order[:redrawn]]
            labels[changed] = labels_of_task(number)[changed]
    return replace(data, train_labels=labels.to(data.train_labels.device))


def pixel_order(pixels: int, share: float, seed: int, task: int) -> Tensor:
    """Return for each pixel position of a task's images the position in the original images that it shows, (pixels,).

    Each task moves the pixels at `share` of the positions, drawn at random, to one another in a ring. If it moves all,
    the task's order is drawn anew, whatever the order before.
    """
    moved = round(share * pixels)
    if moved == pixels:
        return torch.randperm(pixels, generator=seeding.generator(seed, "pixels", task))
    order = torch.randperm(pixels, generator=seeding.generator(seed, "pixels", 0))
    for number in range(1, task + 1):
        ring = torch.randperm(pixels, generator=seeding.generator(seed, "moved pixels", number))[:moved]
        order[ring] = order[ring.roll(1)]
    return order


def with_permuted_pixels(images: Tensor, share: float, seed: int, task: int) -> Tensor:
    """Return images (n, C, H, W) with their pixels in the order of a task; see `pixel_order`.

    All channels of a pixel stay together, so that the statistics that normalise the images remain valid.
    """
    order = pixel_order(images[0, 0].numel(), share, seed, task).to(images.device)
    return images.flatten(2)[:, :, order].view_as(images)


def permute_pixels(
    data: ImageData, images: np.ndarray, tested: bool, permuted: Callable[[Tensor], Tensor]
) -> ImageData:
    """Return the data set of a task, whose images have their pixels in another order.

    Args:
        data: the run's data set.
        images: indices of the training images.
        tested: whether test images are used, so that they are permuted too.
        permuted: puts the pixels of images into the task's order.
    """
    used = torch.from_numpy(images).to(data.train_images.device)
    return replace(
        data,
        train_images=permuted(data.train_images[used]),
        train_labels=data.train_labels[used],
        test_images=permuted(data.test_images) if tested else data.test_images,
    )


def slow_bits(tasks: int, flipping: int, flips: str, generator: torch.Generator) -> Tensor:
    """Return the slow bits of each task, (tasks, flipping) uint8.

    Between two tasks one of the bits flips (`flips` is "one"), or all are redrawn ("all").
    """
    if flips == "all":
        return torch.randint(2, (tasks, flipping), dtype=torch.uint8, generator=generator)
    first_bits = torch.randint(2, (flipping,), dtype=torch.uint8, generator=generator)
    flipped = torch.randint(flipping, (tasks,), generator=generator)
    change = torch.zeros(tasks, flipping, dtype=torch.int64)
    change[range(1, tasks), flipped[1:]] = 1
    return (first_bits + change.cumsum(0)).remainder(2).to(torch.uint8)


def draw_bits(data: ImageData, slow: Tensor, every: int, seed: int, task: int) -> ImageData:
    """Return a task's data set of `every` examples: its slow bits, random other bits, and the network's targets."""
    assert isinstance(data, BitData)
    return data.examples(
        slow, every, target=seeding.generator(seed, "target"), bits=seeding.generator(seed, "bits", task)
    )


def draw_training_images(data: ImageData, samples: int | None, seed: int) -> np.ndarray:
    """Return the indices of the training images of a run, drawn from its seed; all if `samples` is None.

    Raises:
        ConfigError: there are fewer than `samples`.
    """
    available = len(data.train_labels)
    if samples is None:
        return np.arange(available)
    if samples > available:
        raise ConfigError(
            f"benchmark.samples={samples} is more than the {available} training images; "
            "benchmark.samples=null takes all"
        )
    order: np.ndarray = torch.randperm(available, generator=seeding.generator(seed, "samples")).numpy()
    return order[:samples]
