"""Continual vision (the paper's figure 2): `python -m vision.train method=base,fire -m`.

A stream of phases; a method acts at each boundary between two, and may act within them. Read from `main` down.
"""

import contextlib
import functools
import itertools
import logging
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import hydra
import torch
import torch.nn.functional as F
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from fire_core.harness.options.build import build
from fire_core.harness.options.cli import CONF, Outcome, job, run_program
from fire_core.harness.options.config import identity
from fire_core.harness.options.errors import TrainingError
from fire_core.harness.run.execute import live
from fire_core.harness.run.folder import Run
from fire_core.harness.training import seeding
from fire_core.harness.training.boundary import act_after_epoch, act_at_boundary
from fire_core.harness.training.console import progress_bar, show
from fire_core.harness.training.measure import Meter, check_finite
from fire_core.harness.training.plasticity import plasticity
from fire_core.harness.training.signals import Preemption
from fire_core.methods import Context, Method, Net
from fire_core.weights.optimizer_state import parts_of, set_rate_factor
from vision.benchmarks import Phase
from vision.schedule import reference, warmup
from vision.task import Task, build_model, compiled

log = logging.getLogger(__name__)
PROBE = 256  # test images on which plasticity is measured


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="vision")
def main(config: DictConfig) -> float:
    """Train one configuration, unless that is already done; go on where it was interrupted.

    Returns:
        The final test accuracy, which `hydra/sweeper=optuna` maximises.
    """
    with job(config) as outcome:
        summary = run_one(config, outcome)
        outcome.result = f"test accuracy {summary['test/accuracy']:.4f} in {summary['seconds']:.1f} s"
    return float(summary["test/accuracy"])


def run_one(config: DictConfig, outcome: Outcome) -> dict[str, Any]:
    """Take the run to its end from wherever it stands; its summary."""
    task = Task.from_config(config)
    whole: Any = OmegaConf.to_container(config, resolve=True)
    what = identity(whole, "cuda_graph")  # which replays the same kernels
    shared = len(task.phases) > 1 and not task.method_acts_in(0)
    return live(
        config,
        outcome,
        functools.partial(train, task),
        groups=("benchmark", "dataset"),
        what=what,
        first={key: value for key, value in what.items() if key not in ("method", "metrics")} if shared else None,
        headline="test/accuracy",
        device=task.device,
        total_steps=task.total_steps,
    )


@dataclass
class Learner:
    """All that changes while training, which is all that a checkpoint holds."""

    net: Net
    method: Method
    forward: nn.Module  # the network as it trains: compiled if asked for
    phase: int = 0
    phase_step: int = 0  # optimizer steps made in this phase
    step: int = 0  # optimizer steps made in the run
    seconds: float = 0.0  # of training, over all processes that worked on the run
    optimizer: torch.optim.Optimizer | None = None
    method_meter: Meter = field(init=False)  # of the method's work within phases, since the last row
    loss_sum: Tensor = field(init=False)  # of the samples since the last row, as the next two
    correct: Tensor = field(init=False)
    seen: int = field(init=False)
    boundary: dict[str, float] = field(default_factory=dict)  # rides on the first row of the phase
    row: dict[str, Any] = field(default_factory=dict)  # the last one logged

    PLAIN = ("phase", "phase_step", "step", "seconds", "loss_sum", "correct", "seen", "boundary", "row")

    @classmethod
    def new(cls, task: "Task") -> "Learner":
        """The network at its initial weights and the method, before the first step."""
        seeding.seed_everything(seeding.derive(task.config.seed, "init"))
        model = build_model(task.config, task.data).to(task.device, memory_format=task.memory_format)
        net = Net.of({"model": model}, task.config.model.get("layout", "all"))
        learner = cls(net, build("method", task.config.method), model)
        learner.method_meter = Meter(task.device)
        learner.clear_sums()
        return learner

    def clear_sums(self) -> None:
        """Start counting for the next row."""
        device = next(self.model.parameters()).device
        self.loss_sum, self.correct, self.seen = torch.zeros((), device=device), torch.zeros((), device=device), 0

    @property
    def model(self) -> nn.Module:
        """The network."""
        return self.net.modules["model"]

    def state_dict(self) -> dict[str, Any]:
        """For `Run.checkpoint`."""
        assert self.optimizer is not None
        return {
            "model": self.model.state_dict(),
            "init": self.net.init["model"],
            "method": self.method.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": seeding.rng_state(),
            **{key: getattr(self, key) for key in self.PLAIN},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`'s state; the optimizer must be built."""
        assert self.optimizer is not None
        self.model.load_state_dict(state["model"])
        self.net.init["model"] = state["init"]
        if state["method"] is not None:  # None: from a first phase that another method's run may have trained
            self.method.load_state_dict(state["method"])
        self.optimizer.load_state_dict(state["optimizer"])
        seeding.set_rng_state(state["rng"])
        for key in self.PLAIN:
            setattr(self, key, state[key])


def train(task: Task, run: Run, state: dict[str, Any] | None, stop: int | None = None) -> dict[str, Any]:
    """Train from `state` (None: from the start) up to phase `stop` (None: to the end).

    Returns:
        The run's summary.
    """
    config = task.config
    learner = Learner.new(task)
    if state is not None:
        learner.optimizer = new_optimizer(task, learner, state["phase"])
        learner.load_state_dict(state)
    began = time.monotonic() - learner.seconds

    title = f"{config.method['name']} seed {config.seed}"
    with Preemption() as preemption, progress_bar(task.total_steps, learner.step, title, config.progress) as bar:
        for index, phase in enumerate(task.phases[:stop]):
            if index < learner.phase:
                continue
            if index > learner.phase or learner.optimizer is None:
                begin_phase(task, learner, index, run)
            acts, steps = task.method_acts_in(index), phase.steps(config.batch_size)
            if config.compile and (acts or learner.forward is learner.model):
                learner.forward = compiled(learner.model, config.cuda_graph)
            steps_per_epoch = phase.passes_per_epoch * phase.steps_per_pass(config.batch_size)
            with learner.method.watch(learner.net) if acts else contextlib.nullcontext():
                for images, labels in batches(task, index, start=learner.phase_step):
                    set_rate_factor(learner.optimizer, rate_factor(task, learner))
                    train_step(task, learner, images, labels, acts)
                    learner.phase_step += 1
                    learner.step += 1
                    bar.update()

                    if learner.phase_step % steps_per_epoch == 0:
                        learner.seconds = time.monotonic() - began
                        learner.row = make_row(task, learner, phase, learner.phase_step // steps_per_epoch)
                        if acts:
                            learner.row |= act_after_epoch(
                                learner.net,
                                learner.method,
                                make_context(task, learner),
                                learner.method_meter,
                                learner.row,
                            )
                        run.log(learner.row)
                        told = ("phase", "epoch", "train/loss", "test/accuracy")
                        show(bar, **{key.split("/")[-1]: learner.row[key] for key in told})
                    ended = learner.phase_step == steps
                    if ended or run.checkpoint_due or preemption.received:
                        learner.seconds = time.monotonic() - began
                        check_finite(learner.step, learner.loss_sum, *learner.model.state_dict().values())
                        run.checkpoint(learner.step, learner.state_dict())
                    if preemption.received:
                        log.warning("%s: stopped by %s at step %d", run.folder, preemption.received.name, learner.step)
                        preemption.leave()
    final = {key: learner.row[key] for key in ("train/loss", "train/accuracy", "test/accuracy")}
    return {**final, "steps": learner.step, "seconds": learner.seconds}


def begin_phase(task: Task, learner: Learner, index: int, run: Run | None = None) -> None:
    """Let the method act at the boundary before phase `index`, measure what it did, and start a new optimizer."""
    config = task.config
    seeding.seed_everything(seeding.derive(config.seed, "phase", index))
    learner.phase, learner.phase_step = index, 0
    if index > 0:
        learner.boundary = act_at_boundary(
            learner.net,
            learner.method,
            make_context(task, learner),
            name=config.method["name"],
            device=task.device,
            measure=lambda: measure(task, learner, index),
            run=run,
            with_spectra=config.metrics != "off",
        )
    learner.optimizer = new_optimizer(task, learner, index)
    learner.clear_sums()


def measure(task: Task, learner: Learner, index: int) -> dict[str, float]:
    """Test accuracy, and how plastic the network is on the first test images."""
    images, labels = task.test_batch(torch.arange(min(PROBE, len(task.data.test_labels)), device=task.device))
    numbers = plasticity(learner.net, lambda: F.cross_entropy(learner.model(images), labels), task.config.metrics)
    return {"test_accuracy": evaluate(task, learner, index), **numbers}


def new_optimizer(task: Task, learner: Learner, index: int) -> torch.optim.Optimizer:
    """The optimizer of phase `index`; the method may choose it in phases in which it acts."""

    def default(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = build("optimizer", task.config.optimizer, params=list(parameters))
        return optimizer

    if task.method_acts_in(index):
        return learner.method.optimizer(learner.net, default)
    return default(learner.model.parameters())


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
    looks = task.device.type == "cpu" or config.on_nan == "skip"  # on a GPU, looking at each loss would make it wait
    if looks and not is_finite(learner, total, config.on_nan):
        return give_back(kept)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if penalty is not None:  # on its own, so that its time is the method's
        with learner.method_meter:
            penalty.backward()
    trained = [p for group in optimizer.param_groups for p in group["params"]]  # quicker than a walk through modules
    norm = nn.utils.clip_grad_norm_(trained, config.grad_clip or math.inf)
    if looks and not is_finite(learner, norm, config.on_nan):
        return give_back(kept)
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


@torch.inference_mode()
def evaluate(task: Task, learner: Learner, index: int) -> float:
    """Accuracy on the phase's test set, in evaluation mode."""
    chosen = torch.from_numpy(task.phases[index].test).to(task.device)
    correct = torch.zeros((), device=task.device)
    with learner.net.mode(training=False):
        for pick in chosen.split(task.config.eval_batch_size):
            images, labels = task.test_batch(pick)
            with task.autocast():
                logits = learner.model(images)
            correct += (logits.argmax(1) == labels).sum()
    return correct.item() / len(chosen)


def make_row(task: Task, learner: Learner, phase: Phase, epoch: int) -> dict[str, Any]:
    """The row that ends displayed epoch `epoch` (from 1) of the phase."""
    check_finite(learner.step, learner.loss_sum)
    if learner.seen == 0:
        raise TrainingError(f"every step of the epoch before step {learner.step} was skipped (on_nan=skip): lower lr=")
    assert learner.optimizer is not None
    row = {
        "step": learner.step,
        "phase": learner.phase,
        "epoch": sum(p.epochs for p in task.phases[: learner.phase]) + epoch,
        "train/loss": learner.loss_sum.item() / learner.seen,
        "train/accuracy": learner.correct.item() / learner.seen,
        "test/accuracy": evaluate(task, learner, learner.phase),
        "lr": learner.optimizer.param_groups[0]["lr"],
        "seconds": round(learner.seconds, 3),
        **learner.boundary,
    }
    learner.clear_sums()
    learner.boundary = {}
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


def give_back(kept: list[tuple[Tensor, Tensor]]) -> None:
    """Undo what the forward pass of a step that is skipped did to buffers (the statistics of batch norm)."""
    for buffer, old in kept:
        buffer.copy_(old)


if __name__ == "__main__":
    run_program(main, "vision")
