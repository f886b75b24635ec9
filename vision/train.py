"""Continual vision (the paper's figure 2): `python -m vision.train method=base,fire -m`.

A stream of phases; a method acts at each boundary between two, and may act within them. Read from `main` down.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import hydra
import torch
import torch.nn.functional as F
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
from vision.task import Task, compiled

PROBE = 256  # test images on which plasticity is measured
SHOWN = ("phase", "epoch", "train/loss", "test/accuracy")  # beside the progress bar


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="vision")
def main(config: DictConfig) -> float:
    """Train one configuration to its end; returns the final test accuracy, which `hydra/sweeper=optuna` maximises."""
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
                        loop.show(**{key.split("/")[-1]: learner.row[key] for key in SHOWN})
                    loop.end_step(write_checkpoint, ended=learner.phase_step == steps)
    final = {key: learner.row[key] for key in ("train/loss", "train/accuracy", "test/accuracy")}
    return {**final, "steps": learner.step, "seconds": learner.seconds}


PROGRAM = Program(Task.from_config, train, groups=("benchmark", "dataset"), headline="test/accuracy")


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
    learner.optimizer = new_optimizer(task, learner, index)
    learner.clear_sums()


def measure(task: Task, learner: Learner) -> dict[str, float]:
    """Test accuracy, and how plastic the network is on the first test images."""
    images, labels = task.test_batch(torch.arange(min(PROBE, len(task.data.test_labels)), device=task.device))
    numbers = plasticity(learner.net, lambda: F.cross_entropy(learner.model(images), labels), task.config.metrics)
    return {"test_accuracy": evaluate(task, learner)["test/accuracy"], **numbers}


def train_step(task: Task, learner: Learner, images: Tensor, labels: Tensor, acts: bool) -> None:
    """One optimizer step; `acts`: with the method's penalty and its hook after the step."""
    config, optimizer = task.config, learner.optimizer
    assert optimizer is not None
    kept = [(buffer, buffer.clone()) for buffer in learner.model.buffers()] if config.on_nan == "skip" else []
    with task.autocast():
        logits = learner.forward(images)
        loss = F.cross_entropy(logits, labels)
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
        learner.correct += (logits.argmax(1) == labels).sum()
        learner.seen += len(labels)


def batches(task: Task, index: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """The phase's remaining batches from step `start` on: each pass is a permutation of its own seed."""
    phase, size = task.phases[index], task.config.batch_size
    per_pass = phase.steps_per_pass(size)
    samples = torch.from_numpy(phase.train)
    order = samples
    for step in range(start, phase.steps(size)):
        number, batch = divmod(step, per_pass)
        if batch == 0 or step == start:
            generator = seeding.generator(task.config.seed, "order", index, number)
            order = samples[torch.randperm(len(samples), generator=generator)].to(task.device)
        end = len(order) if batch == per_pass - 1 else (batch + 1) * size
        yield task.train_batch(order[batch * size : end])


def one_pass(task: Task, index: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of the phase's first pass, for methods that look at the data before it."""
    return itertools.islice(batches(task, index), task.phases[index].steps_per_pass(task.config.batch_size))


def chunks(task: Task, index: int) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
    """The phase's data as they came, oldest first, in pieces of the first phase's size; each piece in its batches."""
    order = torch.from_numpy(arrival_order([phase.train for phase in task.phases[: index + 1]])).to(task.device)
    for piece in order.split(len(task.phases[0].train)):
        picks = list(piece.split(task.config.batch_size))
        if len(picks) > 1 and len(picks[-1]) == 1:  # batch norm in train mode has no variance of one
            picks[-2:] = [torch.cat(picks[-2:])]
        yield map(task.train_batch, picks)


def last_tested(task: Task, index: int, number: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The last images of the phase's test set, in batches."""
    chosen = torch.from_numpy(task.phases[index].test[-number:]).to(task.device)
    for pick in chosen.split(task.config.eval_batch_size):
        yield task.test_batch(pick)


@torch.inference_mode()
def evaluate(task: Task, learner: Learner) -> dict[str, float]:
    """Accuracy on the phase's test set, in evaluation mode."""
    chosen = torch.from_numpy(task.phases[learner.phase].test).to(task.device)
    correct = torch.zeros((), device=task.device)
    with learner.net.mode(training=False):
        for pick in chosen.split(task.config.eval_batch_size):
            images, labels = task.test_batch(pick)
            with task.autocast():
                logits = learner.model(images)
            correct += (logits.argmax(1) == labels).sum()
    return {"test/accuracy": correct.item() / len(chosen)}


def make_row(task: Task, learner: Learner) -> dict[str, Any]:
    """The row that ends a displayed epoch."""
    check_finite(learner.step, learner.loss_sum)
    if learner.seen == 0:
        raise TrainingError(f"every step of the epoch before step {learner.step} was skipped (on_nan=skip): lower lr=")
    assert learner.optimizer is not None
    phase, earlier = task.phases[learner.phase], task.phases[: learner.phase]
    row = {
        "step": learner.step,
        "phase": learner.phase,
        "epoch": sum(p.epochs for p in earlier) + learner.phase_step // phase.steps_per_epoch(task.config.batch_size),
        "train/loss": learner.loss_sum.item() / learner.seen,
        "train/accuracy": learner.correct.item() / learner.seen,
        **evaluate(task, learner),
        "lr": learner.optimizer.param_groups[0]["lr"],
        "seconds": round(learner.seconds, 3),
    }
    learner.clear_sums()
    return row


def make_context(task: Task, learner: Learner) -> Context:
    """The moment, as a method sees it."""

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with task.autocast():
            return F.cross_entropy(learner.model(images), labels)

    return Context(
        phase=learner.phase,
        step=learner.step,
        generator=seeding.generator(task.config.seed, "method", learner.phase, learner.phase_step),
        batches=functools.partial(one_pass, task, learner.phase),
        loss=loss,
        optimizers=parts_of(learner.optimizer),
        chunks=functools.partial(chunks, task, learner.phase),
        last_tested=functools.partial(last_tested, task, learner.phase),
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
