"""Continual vision (the paper's figure 2, and streams of tasks): `python -m vision.train method=base,fire -m`.

A stream of phases; a method acts at each boundary between two, and may act within them. Read from `main` down.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import hydra
import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from fire_core.harness.options.cli import CONF, run_program
from fire_core.harness.options.errors import TrainingError
from fire_core.harness.run.execute import Program, execute
from fire_core.harness.run.folder import Run
from fire_core.harness.training import seeding
from fire_core.harness.training.boundary import act_after_row, act_at_boundary
from fire_core.harness.training.loop import Loop
from fire_core.harness.training.measure import check_finite
from fire_core.harness.training.plasticity import plasticity
from fire_core.methods import Context
from fire_core.weights.optimizer_state import parts_of, set_rate_factor
from vision.data.order import arrival_order
from vision.learner import Learner, new_optimizer
from vision.schedule import reference, warmup
from vision.task import Task, compiled, on_device

PROBE = 256  # images on which plasticity is measured
SHOWN = ("phase", "epoch", "train/loss", "train/accuracy", "test/accuracy")  # beside the progress bar
SUMMARY = ("train/", "test/", "online/", "task_end/")  # of the last row, what the run's summary takes
WHOLE_PASS = 64 << 20  # bytes; the images of a pass over the data that take no more are put in order at once


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="vision")
def main(config: DictConfig) -> float:
    """Train one configuration to its end; returns the benchmark's headline, which `hydra/sweeper=optuna` optimises."""
    return execute(config, PROGRAM)


def train(task: Task, run: Run, state: dict[str, Any] | None, stop: int | None = None) -> dict[str, Any]:
    """Train from `state` (None: from the start) up to phase `stop` (None: to the end).

    Returns:
        The run's summary.
    """
    config, learner = task.config, Learner.new(task)
    if state is not None:
        learner.load_state_dict(task, state)
    title = f"{config.method['name']} seed {config.seed}"
    write_checkpoint = functools.partial(save, task, learner, run)
    with Loop(learner, run, task.total_steps, title, config.progress) as loop:
        for index, phase in enumerate(task.phases[:stop]):
            if index < learner.phase:
                continue
            if index > learner.phase or learner.optimizer is None:
                begin_phase(task, learner, index, run)
            assert learner.optimizer is not None
            acts, steps = task.method_acts_in(index), phase.steps(config.batch_size)
            if config.compile and (acts or learner.forward is learner.model):
                learner.forward = compiled(learner.model, config.cuda_graph)
            with learner.method.watch(learner.net) if acts else contextlib.nullcontext():
                for images, labels in batches(task, index, start=learner.phase_step):
                    set_rate_factor(learner.optimizer, rate_factor(task, learner))
                    train_step(task, learner, images, labels, acts)
                    learner.phase_step += 1
                    learner.step += 1
                    loop.advance()

                    if learner.phase_step % phase.steps_per_epoch(config.batch_size) == 0:
                        loop.read_clock()
                        learner.row = make_row(task, learner)
                        if acts:
                            last = learner.step == task.total_steps
                            act_after_row(learner, learner.net, make_context(task, learner), last)
                        run.log(learner.row)
                        loop.show(**{key: learner.row[key] for key in SHOWN if key in learner.row})
                    loop.end_step(write_checkpoint, ended=learner.phase_step == steps)
    final = {key: value for key, value in learner.row.items() if key.startswith(SUMMARY)}
    return {**final, "steps": learner.step, "seconds": learner.seconds}


PROGRAM = Program(Task.from_config, train, groups=("benchmark", "dataset"))


def save(task: Task, learner: Learner, run: Run) -> None:
    """Write a checkpoint, unless a weight is not finite."""
    check_finite(learner.step, learner.loss_sum, *learner.model.state_dict().values())
    run.checkpoint(learner.step, learner.state_dict())


def begin_phase(task: Task, learner: Learner, index: int, run: Run | None = None) -> None:
    """Let the method act at the boundary before phase `index`, measure what it did, and start a new optimizer."""
    config = task.config
    seeding.seed_everything(seeding.derive(config.seed, "phase", index))
    learner.phase, learner.phase_step = index, 0
    if index > 0:
        act_at_boundary(
            learner,
            make_context(task, learner),
            name=config.method["name"],
            device=task.device,
            run=run,
            measure=functools.partial(measure, task, learner),
            level=config.metrics,
        )
    if learner.optimizer is None or not (task.benchmark.keeps_optimizer and optimizes(learner)):
        learner.optimizer = new_optimizer(task, learner, index)
    learner.clear_sums()


def optimizes(learner: Learner) -> bool:
    """Whether the optimizer holds every parameter; a method may have put in new ones."""
    assert learner.optimizer is not None
    held = {id(p) for group in learner.optimizer.param_groups for p in group["params"]}
    return all(id(p) in held for p in learner.net.parameters())


def measure(task: Task, learner: Learner) -> dict[str, float]:
    """Test accuracy, that on the task before, and how plastic the network is on the first images."""
    images, labels = task.probe(learner.phase, PROBE)
    numbers = plasticity(learner.net, lambda: task.loss(learner.model(images), labels), task.config.metrics)
    numbers |= {key.replace("/", "_"): value for key, value in evaluate(task, learner).items()}
    if task.benchmark.new_tasks and task.classifies:
        numbers["previous_accuracy"] = accuracy_on(task, learner, learner.phase - 1)
    return numbers


def train_step(task: Task, learner: Learner, images: Tensor, labels: Tensor, acts: bool) -> None:
    """One optimizer step; `acts`: with the method's penalty and its hook after the step."""
    config, optimizer = task.config, learner.optimizer
    assert optimizer is not None
    kept = [(buffer, buffer.clone()) for buffer in learner.model.buffers()] if config.on_nan == "skip" else []
    with task.autocast():
        logits = learner.forward(images)
        loss = task.loss(logits, labels)
    total, penalty = loss.detach(), None
    if acts:
        with learner.method_meter:
            penalty = learner.method.penalty(learner.net)
        total = total if penalty is None else total + penalty.detach()
    checks = task.device.type == "cpu" or config.on_nan == "skip"  # on a GPU, reading each loss would make it wait
    if checks and not is_finite(learner, total, config.on_nan):
        return restore(kept)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if penalty is not None:  # on its own, so that its time is the method's
        with learner.method_meter:
            penalty.backward()
    trained = [p for group in optimizer.param_groups for p in group["params"]]  # quicker than a walk through modules
    norm = nn.utils.clip_grad_norm_(trained, config.grad_clip or math.inf)
    if checks and not is_finite(learner, norm, config.on_nan):
        return restore(kept)
    optimizer.step()
    if acts:
        with learner.method_meter:
            learner.method.after_step(learner.net, make_context(task, learner))
    with torch.no_grad():
        learner.loss_sum += loss.detach() * len(labels)
        if task.classifies:
            learner.correct += (logits.argmax(1) == labels).sum()
        learner.seen += len(labels)


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
        yield task.train_batch(index, order[here]) if whole is None else (whole[0][here], whole[1][here])


def pass_order(task: Task, index: int, number: int) -> Tensor:
    """The training samples of phase `index` in the order of its pass `number`: a permutation of its own seed."""
    generator = seeding.generator(task.config.seed, "order", index, number)
    samples = torch.from_numpy(task.phases[index].train)
    return samples[torch.randperm(len(samples), generator=generator)].to(task.device)


def one_pass(task: Task, index: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of the phase's first pass, for methods that look at the data before it."""
    return itertools.islice(batches(task, index), task.phases[index].steps_per_pass(task.config.batch_size))


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
    """Accuracy on the phase's test set, if it has one, and on the whole test set where classes are still to come."""
    phase = task.phases[learner.phase]
    if not len(phase.test):
        return {}
    correct = count_correct(task, learner, learner.phase, phase.test)
    accuracy = {"test/accuracy": correct / len(phase.test)}
    if phase.unseen is not None:
        correct += count_correct(task, learner, learner.phase, phase.unseen)
        accuracy["test/accuracy_all"] = correct / (len(phase.test) + len(phase.unseen))
    return accuracy


def accuracy_on(task: Task, learner: Learner, index: int) -> float:
    """Accuracy in evaluation mode on the test set of phase `index`, or on its training set where it has no test set."""
    phase = task.phases[index]
    if len(phase.test):
        return count_correct(task, learner, index, phase.test) / len(phase.test)
    return count_correct(task, learner, index, phase.train, training_set=True) / len(phase.train)


@torch.inference_mode()
def count_correct(task: Task, learner: Learner, index: int, chosen: np.ndarray, training_set: bool = False) -> float:
    """How many of these images of phase `index` are classified correctly, in evaluation mode."""
    correct = torch.zeros((), device=task.device)
    batch = task.train_batch if training_set else task.test_batch
    with learner.net.mode(training=False):
        for pick in on_device(chosen, task.device).split(task.config.eval_batch_size) if len(chosen) else ():
            images, labels = batch(index, pick)
            with task.autocast():
                logits = learner.model(images)
            correct += (logits.argmax(1) == labels).sum()
    return correct.item()


def make_row(task: Task, learner: Learner) -> dict[str, Any]:
    """The row that ends a displayed epoch."""
    check_finite(learner.step, learner.loss_sum)
    if learner.seen == 0:
        raise TrainingError(f"every step of the epoch before step {learner.step} was skipped (on_nan=skip): lower lr=")
    assert learner.optimizer is not None
    phase, earlier = task.phases[learner.phase], task.phases[: learner.phase]
    row: dict[str, Any] = {
        "step": learner.step,
        "phase": learner.phase,
        "epoch": sum(p.epochs for p in earlier) + learner.phase_step // phase.steps_per_epoch(task.config.batch_size),
        "train/loss": learner.loss_sum.item() / learner.seen,
        **({"train/accuracy": learner.correct.item() / learner.seen} if task.classifies else {}),
        **evaluate(task, learner),
        "lr": learner.optimizer.param_groups[0]["lr"],
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


def make_context(task: Task, learner: Learner) -> Context:
    """The moment, as a method sees it."""

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with task.autocast():
            return task.loss(learner.model(images), labels)

    return Context(
        phase=learner.phase,
        step=learner.step,
        generator=seeding.generator(task.config.seed, "method", learner.phase, learner.phase_step),
        batches=functools.partial(one_pass, task, learner.phase),
        loss=loss,
        optimizers=parts_of(learner.optimizer),
        chunks=functools.partial(chunks, task, learner.phase),
        last_tested=functools.partial(last_tested, task, learner.phase)
        if len(task.phases[learner.phase].test)
        else None,
    )


def rate_factor(task: Task, learner: Learner) -> float:
    """Of the base learning rate, for the coming step."""
    phase, size, fraction = task.phases[learner.phase], task.config.batch_size, task.config.warmup
    if task.config.schedule == "warmup":
        return warmup(learner.phase_step, phase.steps(size), fraction)
    earlier = sum(p.epochs for p in task.phases[: learner.phase])
    number = learner.phase_step // phase.steps_per_pass(size)
    return reference(number, phase.epochs, phase.passes_per_epoch, earlier, fraction)


def is_finite(learner: Learner, value: Tensor, on_nan: str) -> bool:
    """Whether the step goes on with this loss or gradient norm; raises unless such steps are to be skipped."""
    if math.isfinite(value.item()):
        return True
    if on_nan == "stop":
        check_finite(learner.step, value)
    return False


def restore(kept: list[tuple[Tensor, Tensor]]) -> None:
    """Undo what the forward pass of a step that is skipped did to buffers (the statistics of batch norm)."""
    for buffer, old in kept:
        buffer.copy_(old)


if __name__ == "__main__":
    run_program(main, "vision")
