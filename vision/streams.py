"""Streams in which each phase is a new task: where networks lose plasticity most.

A task's data are made when its phase begins, from the run's seed and the phase's number alone, so that a resume makes
the same. Methods act from the first phase on, and the optimizer's state survives a boundary unless a method resets it:
the baseline does not know of the boundary.
"""

import functools
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from fire_core.ranges import Count, Share, checked, within
from harness.config.errors import ConfigError
from harness.training import seeding
from vision.benchmarks import Benchmark, Phase
from vision.data import ImageData
from vision.data.bits import BitData

NONE = np.arange(0)  # no test set
Tasks = Annotated[int, within(1, 100_000)]  # a list of phases is made of them
Examples = Annotated[int, within(1, 10_000_000)]  # made at once


class RandomLabels(Benchmark):
    """The same images in each task, with labels drawn anew (Lyle et al. 2023; Kumar et al. 2023).

    The labels say nothing of the images, so there is nothing to test: the score is the training accuracy in the last
    epoch of a task, averaged over tasks.

    Args:
        tasks: number of tasks.
        samples: training images, drawn once from the run's seed.
        share: of these images, how many a new task draws a label for; the others keep theirs. The draw may give an
            image the label that it has.
    """

    new_tasks = True
    keeps_optimizer = True
    headline = "task_end/accuracy"

    @checked
    def __init__(self, tasks: Tasks = 20, samples: Count = 1200, share: Share = 1.0) -> None:
        self.tasks, self.samples, self.share = tasks, samples, share

    def phases(self, data: ImageData, epochs: int, seed: int) -> list[Phase]:
        """A phase a task."""
        chosen = choose(data, self.samples, seed)
        redraw = functools.partial(draw_labels, chosen=chosen, share=self.share, seed=seed)
        return [Phase(chosen, NONE, epochs, change=functools.partial(redraw, task=task)) for task in range(self.tasks)]


class Permuted(Benchmark):
    """The same images in each task, with their pixels in another order, the same for all images of a task.

    Args:
        tasks: number of tasks.
        samples: training images, drawn once from the run's seed; null: all.
        online: each image is seen once in a task, and the score is the average online accuracy: that of the predictions
            before each update (Kumar et al. 2023; Dohare et al. 2024). Otherwise the score is the test accuracy at the
            end of a task, averaged over tasks.
        share: of an image's pixels, how many a new task moves; the others stay where the task before has them. Of two
            pixels it is a swap; one pixel alone has nowhere to go, so that nothing changes.
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
        """A phase a task."""
        if self.online and epochs != 1:
            raise ConfigError(f"benchmark.online=true sees each image once in a task: epochs must be 1, got {epochs}")
        chosen = choose(data, self.samples, seed)
        test = NONE if self.online else np.arange(len(data.test_labels))
        # A task's images are few: those that are used, in their order.
        train = np.arange(len(chosen))
        permute = functools.partial(permute_pixels, chosen=chosen, tested=len(test) > 0, share=self.share, seed=seed)
        return [Phase(train, test, epochs, change=functools.partial(permute, task=task)) for task in range(self.tasks)]


class SlowlyChangingRegression(Benchmark):
    """Input bits of which some change slowly, and the output of a fixed random network as target.

    Of the m input bits the first `flipping` stay as they are during a task; at its end one of them, drawn at random,
    flips. The others are drawn anew for each example. Each example is seen once; the score is the mean squared error of
    the predictions before each update (Dohare et al., "Loss of plasticity in deep continual learning", Nature 2024,
    Methods; arXiv 2306.13812).

    Args:
        tasks: number of tasks.
        every: examples of a task.
        flipping: input bits that stay as they are during a task.
        flips: `one`: as in the paper; `all`: each of the slow bits is redrawn, as in its public code's configurations.
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
        """A phase a task."""
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
                NONE,
                epochs,
                change=functools.partial(draw_bits, slow=bits, every=self.every, seed=seed, task=task),
            )
            for task, bits in enumerate(slow)
        ]


def draw_labels(data: ImageData, chosen: np.ndarray, share: float, seed: int, task: int) -> ImageData:
    """The data set with training labels drawn uniformly from all classes: `share` of the chosen ones in each task."""
    count, redrawn = len(data.train_labels), round(share * len(chosen))

    def drawn(at: int) -> Tensor:
        return torch.randint(data.num_classes, (count,), generator=seeding.generator(seed, "labels", at))

    if redrawn == len(chosen):
        labels = drawn(task)
    else:
        labels = drawn(0)
        for at in range(1, task + 1):  # from the first task on, so that a resume makes the same
            order = torch.randperm(len(chosen), generator=seeding.generator(seed, "redrawn labels", at))
            pick = torch.from_numpy(chosen)[order[:redrawn]]
            labels[pick] = drawn(at)[pick]
    return replace(data, train_labels=labels.to(data.train_labels.device))


def pixel_order(pixels: int, share: float, seed: int, task: int) -> Tensor:
    """Where each pixel of a task's images is taken from: in each task `share` of the places pass theirs on in a ring.

    With all of them a task's order is drawn anew, whatever the order before.
    """
    moved = round(share * pixels)
    if moved == pixels:
        return torch.randperm(pixels, generator=seeding.generator(seed, "pixels", task))
    order = torch.randperm(pixels, generator=seeding.generator(seed, "pixels", 0))
    for at in range(1, task + 1):
        ring = torch.randperm(pixels, generator=seeding.generator(seed, "moved pixels", at))[:moved]
        order[ring] = order[ring.roll(1)]
    return order


def permute_pixels(data: ImageData, chosen: np.ndarray, tested: bool, share: float, seed: int, task: int) -> ImageData:
    """The chosen training images, and the test images where these are tested, with their pixels in another order.

    All channels of a pixel stay together, so that the statistics that normalise the images remain right.
    """
    order = pixel_order(data.train_images[0, 0].numel(), share, seed, task).to(data.train_images.device)

    def permuted(images: Tensor) -> Tensor:
        return images.flatten(2)[:, :, order].view_as(images)

    pick = torch.from_numpy(chosen).to(data.train_images.device)
    return replace(
        data,
        train_images=permuted(data.train_images[pick]),
        train_labels=data.train_labels[pick],
        test_images=permuted(data.test_images) if tested else data.test_images,
    )


def slow_bits(tasks: int, flipping: int, flips: str, generator: torch.Generator) -> Tensor:
    """The slow bits of each task, (tasks, flipping) uint8: between two tasks one of them flips, or all are redrawn."""
    if flips == "all":
        return torch.randint(2, (tasks, flipping), dtype=torch.uint8, generator=generator)
    bits = torch.randint(2, (flipping,), dtype=torch.uint8, generator=generator)
    flipped = torch.randint(flipping, (tasks,), generator=generator)
    change = torch.zeros(tasks, flipping, dtype=torch.int64)
    change[range(1, tasks), flipped[1:]] = 1
    return (bits + change.cumsum(0)).remainder(2).to(torch.uint8)


def draw_bits(data: ImageData, slow: Tensor, every: int, seed: int, task: int) -> ImageData:
    """A task's examples: its slow bits, the others drawn for each example, and the targets of the run's network."""
    assert isinstance(data, BitData)
    return data.examples(
        slow, every, target=seeding.generator(seed, "target"), bits=seeding.generator(seed, "bits", task)
    )


def choose(data: ImageData, samples: int | None, seed: int) -> np.ndarray:
    """Training images, drawn once for the whole run.

    Raises:
        ConfigError: there are not as many.
    """
    there = len(data.train_labels)
    if samples is None:
        return np.arange(there)
    if samples > there:
        raise ConfigError(
            f"benchmark.samples={samples} is more than the {there} training images; benchmark.samples=null takes all"
        )
    order: np.ndarray = torch.randperm(there, generator=seeding.generator(seed, "samples")).numpy()
    return order[:samples]
