"""What surrounds the steps of a phase: its batches, what is measured, rows, learning rates."""

import contextlib
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fire_core.methods import Context
from harness.run.folder import Run
from harness.training import seeding
from harness.training.boundary import At, moment_of
from harness.training.measure import check_finite
from harness.training.plasticity import plasticity
from vision.data.augment import crop_and_flip
from vision.learner import Learner
from vision.task import Task, on_device

PROBE = 256  # images on which plasticity is measured
WHOLE_PASS = 64 << 20  # bytes; a pass whose images take no more is put in order at once


@contextlib.contextmanager
def no_denormals() -> Iterator[None]:
    """Within this block numbers below 1e-38 are zero, in this thread and those that torch begins in it.

    Adam's moments of a dead unit shrink in each step and stay that small for good. A CPU computes with such numbers a
    hundred times slower, while they move no weight. Not for good, as other parts of a process may need them.
    """
    was = not (torch.tensor(1e-40) * 1).item()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was)


def save(learner: Learner, run: Run) -> None:
    """Write a checkpoint, unless a weight is not finite."""
    check_finite(learner.step, learner.loss_sum, *learner.model.state_dict().values())
    run.checkpoint(learner.step, learner.state_dict())


def measure(task: Task, learner: Learner) -> dict[str, float]:
    """Test accuracy, that on the task before, and how plastic the network is on the first images; see `metrics=`."""
    if task.config.metrics in ("off", "weights"):
        return {}
    images, labels = task.probe(learner.phase, PROBE)
    numbers = plasticity(learner.net, lambda: task.loss(learner.model(images), labels), task.config.metrics)
    numbers |= {key.replace("/", "_"): value for key, value in evaluate(task, learner).items()}
    if task.benchmark.new_tasks and task.classifies and learner.phase > 0:
        numbers["previous_accuracy"] = accuracy_on(task, learner, learner.phase - 1)
    return numbers


def pass_probe(task: Task, learner: Learner) -> None:
    """Pass the first training images of the phase through the network, for a trigger that looks at activations."""
    first = on_device(task.phases[learner.phase].train[:PROBE], task.device)
    learner.model(task.train_batch(learner.phase, first)[0])


def batches(task: Task, index: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """The phase's remaining batches from step `start` on: each pass is a permutation of its own seed."""
    phase, size = task.phases[index], task.config.batch_size
    per_pass = phase.steps_per_pass(size)
    at_once = 4 * len(phase.train) * task.data.train_images[:0].flatten(1).shape[1] <= WHOLE_PASS
    for step in range(start, phase.steps(size)):
        number, batch = divmod(step, per_pass)
        if batch == 0 or step == start:
            order = pass_order(task, index, number)
            whole = task.train_batch(index, order) if at_once else None
        end = len(order) if batch == per_pass - 1 else (batch + 1) * size
        here = slice(batch * size, end)
        images, labels = task.train_batch(index, order[here]) if whole is None else (whole[0][here], whole[1][here])
        if task.config.augmentation == "crop_flip":
            generator = seeding.generator(task.config.seed, "augmentation", index, step)
            images = crop_and_flip(images, task.data.normalise_train(torch.zeros_like(task.data.mean)), generator)
        yield images, labels


def pass_order(task: Task, index: int, number: int) -> Tensor:
    """The training samples of phase `index` in the order of its pass `number`: a permutation of its own seed."""
    generator = seeding.generator(task.config.seed, "order", index, number)
    samples = torch.from_numpy(task.phases[index].train)
    return samples[torch.randperm(len(samples), generator=generator)].to(task.device)


def one_pass(task: Task, index: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of the phase's first pass, for methods that look at the data before it."""
    return itertools.islice(batches(task, index), task.phases[index].steps_per_pass(task.config.batch_size))


def arrival_order(phases: Sequence[np.ndarray]) -> np.ndarray:
    """Every training sample of these phases (indices) once: the first phase's, then what each later one brought."""
    together = np.concatenate(phases)
    _, first = np.unique(together, return_index=True)
    return together[np.sort(first)]


def chunks(task: Task, index: int) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
    """The phase's data as they came, oldest first, in pieces of the first phase's size; each piece in its batches."""
    order = on_device(arrival_order([phase.train for phase in task.phases[: index + 1]]), task.device)
    for piece in order.split(len(task.phases[0].train)):
        picks = list(piece.split(task.config.batch_size))
        if len(picks) > 1 and len(picks[-1]) == 1:  # batch norm in train mode has no variance of one
            picks[-2:] = [torch.cat(picks[-2:])]
        yield map(functools.partial(task.train_batch, index), picks)


def last_tested(task: Task, index: int, number: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The last images of the phase's test set, in batches."""
    chosen = on_device(task.phases[index].test[-number:], task.device)
    for pick in chosen.split(task.config.eval_batch_size):
        yield task.test_batch(index, pick)


def evaluate(task: Task, learner: Learner) -> dict[str, float]:
    """Loss and accuracy on the phase's test set, if any; accuracy on all where classes are to come."""
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
    """Accuracy in evaluation mode on the test set of phase `index`, or on its training set where it has no test set."""
    phase = task.phases[index]
    chosen = phase.test if len(phase.test) else phase.train
    return score(task, learner, index, chosen, training_set=chosen is phase.train)[0] / len(chosen)


@torch.inference_mode()
def score(task: Task, learner: Learner, index: int, chosen: np.ndarray, training_set: bool = False) -> list[float]:
    """How many of these images of phase `index` are classified correctly, and the sum of losses."""
    sums = torch.zeros(2, device=task.device)
    batch = task.train_batch if training_set else task.test_batch
    with learner.net.mode(training=False):
        for pick in on_device(chosen, task.device).split(task.config.eval_batch_size) if len(chosen) else ():
            images, labels = batch(index, pick)
            with task.autocast():
                logits = learner.model(images)
                sums[1] += task.loss(logits, labels) * len(labels)
            sums[0] += (logits.argmax(1) == labels).sum()
    return sums.tolist()


def make_row(task: Task, learner: Learner) -> dict[str, Any]:
    """The row that ends a displayed epoch."""
    check_finite(learner.step, learner.loss_sum)
    phase, earlier = task.phases[learner.phase], task.phases[: learner.phase]
    row: dict[str, Any] = {
        "step": learner.step,
        "phase": learner.phase,
        "epoch": sum(p.epochs for p in earlier) + learner.phase_step // phase.steps_per_epoch(task.config.batch_size),
        "train/loss": learner.loss_sum.item() / learner.seen,
        **({"train/accuracy": learner.correct.item() / learner.seen} if task.classifies else {}),
        **evaluate(task, learner),
        "lr": float(learner.optimizer.param_groups[0]["lr"]),
        "seconds": round(learner.seconds, 3),
    }
    if task.benchmark.new_tasks:
        row |= averages(row, learner.row, ended=learner.phase_step == phase.steps(task.config.batch_size))
    learner.clear_sums()
    return row


def averages(row: dict[str, Any], before: dict[str, Any], ended: bool) -> dict[str, float]:
    """Averages over the run so far of a stream of tasks, from its new row and the averages in the row before.

    online/accuracy: over all epochs, of the predictions before each update (average online accuracy, the area under
    the learning curve). task_end/accuracy: over the tasks that have ended, in the last epoch of each; on its test set,
    if it has one. In a regression the loss takes the place of the accuracy.
    """
    kind = "accuracy" if "train/accuracy" in row else "loss"

    def average(name: str, value: float, number: int) -> dict[str, float]:
        last = before.get(name, 0.0)
        return {name: last + (value - last) / number}

    numbers = average(f"online/{kind}", row[f"train/{kind}"], row["epoch"])
    name = f"task_end/{kind}"
    if ended:
        return numbers | average(name, row.get(f"test/{kind}", row[f"train/{kind}"]), row["phase"] + 1)
    return numbers | ({name: before[name]} if name in before else {})


def make_context(task: Task, learner: Learner, at: At, step_loss: Tensor | None = None) -> Context:
    """What a method is told when it acts; around a step with the step's loss."""
    names = ("firing", learner.step) if at == "firing" else ("method", learner.phase, learner.phase_step)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with task.autocast():
            return task.loss(learner.model(images), labels)

    return Context(
        phase=learner.phase,
        step=learner.step,
        generator=seeding.generator(task.config.seed, *names),
        batches=functools.partial(one_pass, task, learner.phase),
        loss=loss,
        optimizers=learner.optimizer_parts,
        chunks=functools.partial(chunks, task, learner.phase),
        last_tested=functools.partial(last_tested, task, learner.phase)
        if len(task.phases[learner.phase].test)
        else None,
        step_loss=step_loss,
        new_networks=functools.partial(task.new_networks, *moment_of(learner, at)),
    )
