"""The parts of a phase around its steps: batches, evaluation, rows of the log, and what methods are given."""

import contextlib
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fire_core.methods import Context
from fire_core.triggers import Firing
from harness.training import seeding
from harness.training.boundary import At, seed_of_new_networks
from harness.training.firing import ask
from harness.training.measure import check_finite
from harness.training.plasticity import plasticity
from vision.data.augment import crop_and_flip
from vision.learner import Learner
from vision.task import Task, on_device

PROBE = 256  # images on which plasticity is measured
MAX_SHUFFLED_BYTES = 64 << 20  # a pass whose float32 images take no more is shuffled in one copy, which is faster


@contextlib.contextmanager
def no_denormals() -> Iterator[None]:
    """Within this block, flush numbers below 1e-38 to zero, in this thread and those that torch starts from it.

    Adam's moments of a dead unit shrink at each step until they are denormal. A CPU is a hundred times slower with such
    numbers, although they move no weight. The setting is restored after the block, as other code may need denormals.
    """
    flushed_before = not (torch.tensor(1e-40) * 1).item()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed_before)


def measure(task: Task, learner: Learner) -> dict[str, float]:
    """Measure the network before or after a method acts, as far as `metrics=` asks for it.

    Returns:
        Measures of plasticity on the first images of the test set (all classes of it, also those that have not come
        yet), or of the training set if nothing is tested; test scores; and in streams accuracy on the task before.
    """
    if task.config.metrics in ("off", "weights"):
        return {}
    images, labels = task.probe(learner.phase, PROBE)
    numbers = plasticity(learner.net, lambda: task.loss(learner.model(images), labels), task.config.metrics)
    numbers |= {key.replace("/", "_"): value for key, value in evaluate(task, learner).items()}
    if task.benchmark.new_tasks and task.classifies and learner.phase > 0:
        numbers["previous_accuracy"] = accuracy_on(task, learner, learner.phase - 1)
    return numbers


def pass_probe(task: Task, learner: Learner) -> None:
    """Pass the first training images of the phase through the network, for a trigger that measures activations."""
    first_images = on_device(task.phases[learner.phase].train[:PROBE], task.device)
    learner.model(task.train_batch(learner.phase, first_images)[0])


def batches(task: Task, index: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of phase `index` from its step `start` on, images (b, C, H, W) and labels (b,).

    Each pass over the data has an order of its own, seeded by run, phase and pass.
    """
    phase, size = task.phases[index], task.config.batch_size
    steps_per_pass = phase.steps_per_pass(size)
    values_per_image = task.data.train_images[:0].flatten(1).shape[1]
    shuffle_at_once = 4 * len(phase.train) * values_per_image <= MAX_SHUFFLED_BYTES
    for step in range(start, phase.steps(size)):
        number_of_pass, batch = divmod(step, steps_per_pass)
        if batch == 0 or step == start:
            order = pass_order(task, index, number_of_pass)
            shuffled = task.train_batch(index, order) if shuffle_at_once else None
        end = len(order) if batch == steps_per_pass - 1 else (batch + 1) * size
        in_batch = slice(batch * size, end)
        if shuffled is None:
            images, labels = task.train_batch(index, order[in_batch])
        else:
            images, labels = shuffled[0][in_batch], shuffled[1][in_batch]
        if task.config.augmentation == "crop_flip":
            generator = seeding.generator(task.config.seed, "augmentation", index, step)
            black = task.data.normalise_train(torch.zeros_like(task.data.mean))
            images = crop_and_flip(images, black, generator).contiguous(memory_format=task.memory_format)
        yield images, labels


def pass_order(task: Task, index: int, number_of_pass: int) -> Tensor:
    """Return the indices of the training samples of phase `index` in the order of one pass, which has its own seed."""
    generator = seeding.generator(task.config.seed, "order", index, number_of_pass)
    samples = torch.from_numpy(task.phases[index].train)
    return samples[torch.randperm(len(samples), generator=generator)].to(task.device)


def first_pass(task: Task, index: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of the first pass of phase `index`, for methods that use the data before the phase begins."""
    return itertools.islice(batches(task, index), task.phases[index].steps_per_pass(task.config.batch_size))


def arrival_order(phases: Sequence[np.ndarray]) -> np.ndarray:
    """Return each training sample of these phases (indices) once: the first phase's, then what each later one added."""
    samples = np.concatenate(phases)
    _, first_positions = np.unique(samples, return_index=True)
    return samples[np.sort(first_positions)]


def chunks(task: Task, index: int) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
    """Yield the data up to phase `index` in chunks of the first phase's size, the oldest first, each in batches.

    If the phase has another number of images than the run, they are its own, and its data alone are there.

    Raises:
        ValueError: an earlier phase had more images than this one, so that its samples are not among them.
    """
    has_own_images = len(task.data_of(index).train_labels) != len(task.data.train_labels)
    phases = task.phases[index : index + 1] if has_own_images else task.phases[: index + 1]
    samples = arrival_order([phase.train for phase in phases])
    if samples.max() >= len(task.data_of(index).train_labels):
        raise ValueError(f"phase {index} has fewer images than an earlier one, whose samples are not among them")
    order = on_device(samples, task.device)
    for chunk in order.split(len(task.phases[0].train)):
        batch_indices = list(chunk.split(task.config.batch_size))
        if len(batch_indices) > 1 and len(batch_indices[-1]) == 1:  # batch norm cannot take the variance of one image
            batch_indices[-2:] = [torch.cat(batch_indices[-2:])]
        yield map(functools.partial(task.train_batch, index), batch_indices)


def last_tested(task: Task, index: int, number: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the last `number` images of the test set of phase `index`, in batches."""
    last_images = on_device(task.phases[index].test[-number:], task.device)
    for batch_indices in last_images.split(task.config.eval_batch_size):
        yield task.test_batch(index, batch_indices)


def evaluate(task: Task, learner: Learner) -> dict[str, float]:
    """Return loss and accuracy on the phase's test set, and accuracy on all classes where some have not come yet.

    The result is empty if the phase has no test set.
    """
    phase = task.phases[learner.phase]
    if not len(phase.test):
        return {}
    correct, loss = score(task, learner, learner.phase, phase.test)
    scores = {"test/loss": loss / len(phase.test), "test/accuracy": correct / len(phase.test)}
    if phase.unseen is not None:
        correct += score(task, learner, learner.phase, phase.unseen)[0]
        scores["test/accuracy_all"] = correct / (len(phase.test) + len(phase.unseen))
    return scores


def accuracy_on(task: Task, learner: Learner, index: int) -> float:
    """Return the accuracy in evaluation mode on the test set of phase `index`, or without one on its training set."""
    phase = task.phases[index]
    samples = phase.test if len(phase.test) else phase.train
    return score(task, learner, index, samples, training_set=samples is phase.train)[0] / len(samples)


@torch.inference_mode()
def score(task: Task, learner: Learner, index: int, samples: np.ndarray, training_set: bool = False) -> list[float]:
    """Return how many images of phase `index` are classified correctly, and the sum of their losses.

    Args:
        task: the task of the run.
        learner: the learner, whose network is used in evaluation mode.
        index: number of the phase.
        samples: indices of the images.
        training_set: whether the indices are into the training set; otherwise into the test set.
    """
    sums = torch.zeros(2, device=task.device)  # correct, loss
    if not len(samples):
        return sums.tolist()
    get_batch = task.train_batch if training_set else task.test_batch
    with learner.net.mode(training=False):
        for batch_indices in on_device(samples, task.device).split(task.config.eval_batch_size):
            images, labels = get_batch(index, batch_indices)
            with task.autocast():
                logits = learner.model(images)
                sums[1] += task.loss(logits, labels) * len(labels)
            sums[0] += (logits.argmax(1) == labels).sum()
    return sums.tolist()


def make_row(task: Task, learner: Learner) -> dict[str, Any]:
    """Return the row of the log that ends a displayed epoch, and set the sums to zero."""
    check_finite(learner.step, learner.loss_sum)
    phase = task.phases[learner.phase]
    earlier_epochs = sum(earlier.epochs for earlier in task.phases[: learner.phase])
    row: dict[str, Any] = {
        "step": learner.step,
        "phase": learner.phase,
        "epoch": earlier_epochs + learner.phase_step // phase.steps_per_epoch(task.config.batch_size),
        "train/loss": learner.loss_sum.item() / learner.seen,
    }
    if task.classifies:
        row["train/accuracy"] = learner.correct.item() / learner.seen
    row |= evaluate(task, learner)
    row |= {"lr": float(learner.optimizer.param_groups[0]["lr"]), "seconds": round(learner.seconds, 3)}
    if task.benchmark.new_tasks:
        row |= averages(row, learner.row, ended=learner.phase_step == phase.steps(task.config.batch_size))
    learner.clear_sums()
    return row


def averages(row: dict[str, Any], previous_row: dict[str, Any], ended: bool) -> dict[str, float]:
    """Return averages over the run so far of a stream of tasks.

    online/accuracy is the average over all epochs of the accuracy of predictions before each update (average online
    accuracy, the area under the learning curve). task_end/accuracy is the average over the tasks that have ended of the
    accuracy in the last epoch of each, on its test set if it has one. In a regression the loss takes the place of the
    accuracy.

    Args:
        row: the new row.
        previous_row: the row before, with its averages.
        ended: whether the task has ended with the new row.
    """
    kind = "accuracy" if "train/accuracy" in row else "loss"

    def updated_average(name: str, value: float, count: int) -> float:
        previous: float = previous_row.get(name, 0.0)
        return previous + (value - previous) / count

    online, task_end = f"online/{kind}", f"task_end/{kind}"
    numbers = {online: updated_average(online, row[f"train/{kind}"], row["epoch"])}
    if ended:
        final = row.get(f"test/{kind}", row[f"train/{kind}"])
        numbers[task_end] = updated_average(task_end, final, row["phase"] + 1)
    elif task_end in previous_row:
        numbers[task_end] = previous_row[task_end]
    return numbers


def ask_trigger(task: Task, learner: Learner, loss: Tensor) -> Firing | None:
    """Ask the run's trigger after a step; None if it does not fire, or is not asked in this phase."""
    return ask(learner, loss=loss) if task.asks_in(learner.phase) else None


def make_context(task: Task, learner: Learner, at: At, step_loss: Tensor | None = None) -> Context:
    """Return what a method is given when it acts.

    Args:
        task: the task of the run.
        learner: the learner.
        at: when the method acts.
        step_loss: around a step, the task's loss of the step.
    """
    seed_names = ("firing", learner.step) if at == "firing" else ("method", learner.phase, learner.phase_step)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with task.autocast():
            return task.loss(learner.model(images), labels)

    return Context(
        phase=learner.phase,
        step=learner.step,
        generator=seeding.generator(task.config.seed, *seed_names),
        batches=functools.partial(first_pass, task, learner.phase),
        loss=loss,
        optimizers=learner.optimizer_parts,
        chunks=functools.partial(chunks, task, learner.phase),
        last_tested=functools.partial(last_tested, task, learner.phase)
        if len(task.phases[learner.phase].test)
        else None,
        step_loss=step_loss,
        new_networks=functools.partial(task.new_networks, *seed_of_new_networks(learner, at)),
    )
