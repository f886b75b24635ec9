"""Continual pre-training (the paper's figure 3): `python -m language.train method=base,fire -m`.

Phase 0 overfits a small corpus and keeps checkpoints; phase 1 starts from one of them, a method acts, and training goes
on with a larger corpus mixed in. Alone or under torchrun: rank 0 keeps the run folder and tells the others what to do.
Read from `main` down.
"""

import contextlib
import functools
import logging
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import hydra
import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fire_core.harness.options.build import build
from fire_core.harness.options.cli import CONF, Outcome, job, run_program
from fire_core.harness.run.execute import live
from fire_core.harness.run.folder import Run
from fire_core.harness.training import seeding
from fire_core.harness.training.boundary import act_after_epoch, act_at_boundary
from fire_core.harness.training.console import progress_bar, show
from fire_core.harness.training.measure import Meter, check_finite, total_dfi
from fire_core.harness.training.signals import Preemption
from fire_core.methods import Context, Method, Net
from fire_core.weights.distributed import full, local
from fire_core.weights.optimizer_state import parts_of, set_rate_factor
from language.model import GPT
from language.process_group import Team, leave
from language.schedule import learning_rate
from language.sharded import gathered, shard_, spread
from language.speed import NextTokenLoss, flops_per_token, peak_flops
from language.task import Task, build_model, draw, first_phase_shape

log = logging.getLogger(__name__)


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="language")
def main(config: DictConfig) -> float:
    """Train one configuration, unless that is already done; go on where it was interrupted.

    Returns:
        The final validation loss, which `hydra/sweeper=optuna` minimises; NaN on ranks other than 0.
    """
    with job(config) as outcome:
        team = Team.join(config.device)
        if team.rank > 0:
            logging.getLogger("language").setLevel(logging.ERROR)
        task = Task.from_config(config, team)
        if team.rank > 0:
            follow(task)
            outcome.state = "done"
            return math.nan
        summary = run_one(task, outcome)
        team.share(None)
        outcome.result = f"validation loss {summary['val/loss']:.4f} in {summary['seconds']:.1f} s"
    return float(summary["val/loss"])


def run_one(task: Task, outcome: Outcome) -> dict[str, Any]:
    """Take the run to its end from wherever it stands; its summary."""
    config, what = task.config, task.identity()
    shared = task.first_phase == 0 and not task.method_acts_in(0)
    return live(
        config,
        outcome,
        functools.partial(train, task),
        groups=("benchmark", "dataset"),
        what=what,
        first=first_phase_shape(what) if shared else None,
        headline="val/loss",
        device=task.device,
        total_steps=task.total_steps,
    )


@dataclass
class Learner:
    """All that changes while training, which is all that a checkpoint holds."""

    net: Net
    method: Method
    forward: nn.Module  # the loss of a batch: compiled and replicated as asked for
    phase: int = 0
    phase_step: int = 0  # optimizer steps made in this phase
    step: int = 0  # optimizer steps made in the run
    seconds: float = 0.0  # of training, over all processes that worked on the run
    optimizer: torch.optim.Optimizer | None = None
    method_meter: Meter = field(init=False)  # of the method's work within phases, since the last row
    loss_sum: Tensor = field(init=False)  # of this process's batches since the last row
    seen: int = 0
    kept: dict[str, dict[str, Any]] = field(default_factory=dict)  # weights of phase 0: best, and at chosen iterations
    boundary: dict[str, float] = field(default_factory=dict)  # rides on the first row of the phase
    row: dict[str, Any] = field(default_factory=dict)  # the last one logged

    PLAIN = ("phase", "phase_step", "step", "seconds", "loss_sum", "seen", "kept", "boundary", "row")

    @classmethod
    def new(cls, task: Task) -> "Learner":
        """The network at its initial weights and the method, before the first step."""
        seeding.seed_everything(seeding.derive(task.config.seed, "init"))
        model = build_model(task.config, task.vocab_size).to(task.device)
        if task.sharded:
            shard_(model, task.device, task.team.size)
        else:
            task.team.same_(list(model.parameters()))
        forward: Any = NextTokenLoss(model)
        if task.config.compile:
            forward = torch.compile(forward)
        if task.team.size > 1 and not task.sharded:
            forward = DistributedDataParallel(forward, broadcast_buffers=False, gradient_as_bucket_view=True)
        net = Net.of({"model": model}, task.config.model.get("layout", "all"))
        learner = cls(net, build("method", task.config.method), forward, phase=task.first_phase)
        learner.method_meter = Meter(task.device)
        learner.clear_sums()
        return learner

    def clear_sums(self) -> None:
        """Start counting for the next row."""
        self.loss_sum, self.seen = torch.zeros((), device=next(self.model.parameters()).device), 0

    @property
    def model(self) -> GPT:
        """The network itself."""
        model = self.net.modules["model"]
        assert isinstance(model, GPT)
        return model

    def keep(self, name: str) -> None:
        """Keep the weights as they are now, for phase 1 to start from."""
        weights = {key: p.detach().clone() for key, p in self.model.named_parameters()}  # the tied matrix once
        self.kept[name] = {"weights": weights, "iteration": self.phase_step, "val/loss": self.row.get("val/loss")}

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

    def load_state_dict(self, state: dict[str, Any], rank: int) -> None:
        """Go on from `state_dict`'s state, which is rank 0's; the optimizer must be built."""
        assert self.optimizer is not None
        state = spread(state, self.model, self.optimizer)
        self.model.load_state_dict(state["model"])
        self.net.init["model"] = state["init"]
        if state["method"] is not None:  # None: from a first phase that another method's run may have trained
            self.method.load_state_dict(state["method"])
        self.optimizer.load_state_dict(state["optimizer"])
        seeding.set_rng_state(state["rng"])
        for key in self.PLAIN:
            setattr(self, key, state[key])
        if rank > 0:
            self.loss_sum, self.seen = torch.zeros_like(self.loss_sum), 0  # rank 0 saved everyone's


def follow(task: Task) -> None:
    """On ranks other than 0: train whatever rank 0 trains, until it has no more."""
    while (order := task.team.share()) is not None:
        work(task, None, **order)


def train(task: Task, run: Run, state: dict[str, Any] | None, stop: int | None = None) -> dict[str, Any]:
    """On rank 0: train from `state` (None: from the start) up to phase `stop` (None: to the end).

    Returns:
        The run's summary.
    """
    task.team.share({"state": state, "stop": stop})
    return work(task, run, state, stop)


def work(task: Task, run: Run | None, state: dict[str, Any] | None, stop: int | None) -> dict[str, Any]:
    """The training loop; `run` is None on ranks other than 0."""
    team, config = task.team, task.config
    title = f"{config.method.name} from {task.start} seed {config.seed}"
    learner = Learner.new(task)
    if state is not None:
        learner.optimizer = new_optimizer(task, learner, state["phase"])
        learner.load_state_dict(state, team.rank)
    began = time.monotonic() - learner.seconds
    pace = Pace(task)

    with (
        Preemption() as preemption,
        progress_bar(task.total_steps, learner.step, title, config.progress and team.rank == 0) as bar,
    ):
        for index in range(learner.phase, stop or len(task.phases)):
            if index > learner.phase or learner.optimizer is None:
                begin_phase(task, learner, index, run)
                pace.restart()
            phase, acts = task.phases[index], task.method_acts_in(index)
            with learner.method.watch(learner.net) if acts else contextlib.nullcontext():
                while learner.phase_step < phase.length.steps:
                    set_rate_factor(learner.optimizer, rate_factor(task, learner))
                    train_step(task, learner, acts)
                    learner.phase_step += 1
                    learner.step += 1
                    pace.steps += 1
                    bar.update()

                    ended = learner.phase_step == phase.length.steps
                    if ended or learner.phase_step % phase.rows_every == 0:
                        learner.row = make_row(task, learner, pace)
                        learner.row["seconds"] = learner.seconds = round(time.monotonic() - began, 3)
                        if acts:
                            learner.row |= act_after_epoch(
                                learner.net,
                                learner.method,
                                make_context(task, learner),
                                learner.method_meter,
                                learner.row,
                            )
                        if run is not None:
                            run.log(learner.row)
                        show(
                            bar,
                            phase=index,
                            loss=learner.row["train/loss"],
                            val=learner.row["val/loss"],
                            tokens=f"{learner.row['tokens_per_second']:.0f}/s",
                            mfu=f"{learner.row['mfu']:.0%}",
                        )
                        pace.restart()
                    if index == 0:
                        keep_weights(task, learner)
                    signal, due = team.largest(preemption.received or 0, run is not None and run.checkpoint_due)
                    if ended or due or signal:
                        learner.seconds = time.monotonic() - began
                        save(task, learner, run)
                    if signal:
                        log.warning("stopped by signal %d at step %d", signal, learner.step)
                        preemption.leave()
    final = {key: value for key, value in learner.row.items() if key.startswith(("train/", "val/"))}
    return {**final, "steps": learner.step, "seconds": learner.seconds}


def keep_weights(task: Task, learner: Learner) -> None:
    """In phase 0: keep the weights if they are the best yet, or if this iteration is a chosen one."""
    if learner.row and learner.row["step"] == learner.step:
        best = learner.kept.get("best", {"val/loss": math.inf})["val/loss"]
        if learner.row["val/loss"] < best:
            learner.keep("best")
    if learner.phase_step in task.config.benchmark.checkpoints:
        learner.keep(str(learner.phase_step))


def save(task: Task, learner: Learner, run: Run | None) -> None:
    """Write a checkpoint of what all processes know together."""
    check_finite(learner.step, learner.loss_sum, *(local(p) for p in learner.model.parameters()))
    whole = task.team.sum_(learner.loss_sum.clone())
    state = learner.state_dict() | {"loss_sum": whole, "seen": learner.seen * task.team.size}
    if task.sharded:
        state = gathered(state)
    if run is not None:
        run.checkpoint(learner.step, state)


def begin_phase(task: Task, learner: Learner, index: int, run: Run | None) -> None:
    """Take up the weights to start from, let the method act, measure what it did, start a new optimizer."""
    config = task.config
    seeding.seed_everything(seeding.derive(config.seed, "phase", index))
    if index > 0:
        started_from = learner.phase_step
        if (kept := learner.kept.get(str(task.start))) is not None:
            started_from = kept["iteration"]
            with torch.no_grad():
                for name, parameter in learner.model.named_parameters():
                    parameter.copy_(kept["weights"][name])
        learner.kept = {}
        learner.phase, learner.phase_step = index, 0
        learner.boundary = act_at_boundary(
            learner.net,
            learner.method,
            make_context(task, learner),
            name=config.method.name,
            device=task.device,
            measure=lambda: {"dfi": total_dfi(learner.net), "val_loss": evaluate(task, learner)["val/loss"]},
            run=run,
            afterwards=None if task.sharded else lambda: task.team.same_(list(learner.model.parameters())),
        )
        learner.boundary["boundary/start_iteration"] = started_from
    learner.optimizer = new_optimizer(task, learner, index)
    learner.clear_sums()


def new_optimizer(task: Task, learner: Learner, index: int) -> torch.optim.Optimizer:
    """The optimizer of phase `index`; the method may choose it in phases in which it acts."""

    def default(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        chosen = list(parameters)
        groups = [{"params": [p for p in chosen if p.ndim > 1]}]
        if vectors := [p for p in chosen if p.ndim < 2]:
            groups.append({"params": vectors, "weight_decay": 0.0})
        optimizer: torch.optim.Optimizer = build("optimizer", task.config.optimizer, params=groups)
        return optimizer

    if task.method_acts_in(index):
        return learner.method.optimizer(learner.net, default)
    return default(learner.model.parameters())


def train_step(task: Task, learner: Learner, acts: bool) -> None:
    """One optimizer step; `acts`: with the method's penalty and its hook after the step."""
    config, optimizer, forward = task.config, learner.optimizer, learner.forward
    assert optimizer is not None
    optimizer.zero_grad(set_to_none=True)
    mine = range(task.team.rank, config.accumulation, task.team.size)
    for number in mine:
        inputs, targets = draw(task, learner.phase, learner.phase_step, number)
        alone = isinstance(forward, DistributedDataParallel) and number != mine[-1]  # gradients travel once a step
        if task.sharded:
            cast(Any, learner.model).set_requires_gradient_sync(number == mine[-1])
        with forward.no_sync() if alone else contextlib.nullcontext():
            with task.autocast():
                loss = forward(inputs, targets)
            (loss / len(mine)).backward()
        learner.loss_sum += loss.detach()
        learner.seen += 1
    if acts:
        with learner.method_meter:
            if (penalty := learner.method.penalty(learner.net)) is not None:
                penalty.backward()  # the same on every rank, after gradients have been averaged
    norm = full(nn.utils.clip_grad_norm_(learner.model.parameters(), config.grad_clip or math.inf))
    looks = task.device.type == "cpu" or config.on_nan == "skip"  # on a GPU, looking at each step would make it wait
    if looks and not torch.isfinite(norm):
        if config.on_nan == "skip":
            return
        check_finite(learner.step, norm)
    optimizer.step()
    if acts:
        with learner.method_meter:
            learner.method.after_step(learner.net, make_context(task, learner))


@torch.no_grad()
def evaluate(task: Task, learner: Learner) -> dict[str, float]:
    """Mean loss on the phase's held-out tokens: each corpus's, and weighted as training mixes them."""
    learner.model.eval()
    losses, weighted = {}, 0.0
    for name, rows in task.val[learner.phase].items():
        total = torch.zeros((), dtype=torch.float64)
        for batch in rows.split(task.config.batch_size)[task.team.rank :: task.team.size]:
            batch = batch.to(task.device)
            with task.autocast():
                total += learner.model(batch[:, :-1], batch[:, 1:])[1].double().cpu() * len(batch)
        losses[f"val/loss_{name}"] = task.team.sum_(total).item() / len(rows)
        weighted += task.phases[learner.phase].val[name][1] * losses[f"val/loss_{name}"]
    learner.model.train()
    if task.sharded:
        cast(Any, learner.model).reshard()  # the root stays gathered after a forward pass: writes to it would be lost
    return {"val/loss": weighted, **(losses if len(losses) > 1 else {})}


class Pace:
    """Tokens a second since the last row, evaluations and checkpoints left out."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.steps = 0
        self.restart()

    def restart(self) -> None:
        """Count from now."""
        self.steps, self.began = 0, time.perf_counter()

    def read(self, model: GPT) -> dict[str, float]:
        """Tokens a second over all processes, and model FLOP/s as a part of what the devices could do."""
        rate = self.steps * self.task.tokens_per_step / (time.perf_counter() - self.began)
        peak = peak_flops(self.task.device, self.task.config.precision) * self.task.team.size
        return {"tokens_per_second": round(rate, 1), "mfu": round(rate * flops_per_token(model) / peak, 4)}


def make_row(task: Task, learner: Learner, pace: Pace) -> dict[str, Any]:
    """What is known at this step; on every rank, for all take part in the evaluation."""
    check_finite(learner.step, learner.loss_sum)  # waits for the GPU
    speed = pace.read(learner.model)
    assert learner.optimizer is not None
    loss = task.team.sum_(torch.stack([learner.loss_sum.double().cpu(), torch.tensor(float(learner.seen)).double()]))
    row = {
        "step": learner.step,
        "phase": learner.phase,
        "epoch": float(learner.step),  # the horizontal axis counts iterations
        "train/loss": (loss[0] / loss[1]).item(),
        **evaluate(task, learner),
        "lr": learner.optimizer.param_groups[0]["lr"],
        "tokens": learner.step * task.tokens_per_step,
        **speed,
        **learner.boundary,
    }
    learner.clear_sums()
    learner.boundary = {}
    return row


def make_context(task: Task, learner: Learner) -> Context:
    """The moment, as a method sees it; a pass is what comes between two rows."""

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(task.phases[learner.phase].rows_every):
            for number in range(task.config.accumulation):
                yield draw(task, learner.phase, step, number)

    return Context(
        phase=learner.phase,
        step=learner.step,
        generator=seeding.generator(task.config.seed, "method", learner.phase, learner.phase_step),
        batches=batches,
        loss=lambda inputs, targets: learner.model(inputs, targets)[1],
        optimizers=parts_of(learner.optimizer),
    )


def rate_factor(task: Task, learner: Learner) -> float:
    """Of the base learning rate, for the coming step."""
    length = task.phases[learner.phase].length
    return learning_rate(learner.phase_step, length.warmup, length.decay, 1.0, task.config.min_lr_ratio)


if __name__ == "__main__":
    run_program(main, "language")
    leave()
