"""Continual pre-training (the paper's figure 3): `python -m language.train method=base,fire -m`.

Phase 0 overfits a small corpus and keeps checkpoints; phase 1 starts from one of them, a method acts, and training goes
on with a larger corpus mixed in. Under torchrun, rank 0 keeps the run folder and sends the others what to train.
Read from `main` down.
"""

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import Any, cast

import hydra
import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fire_core.harness.options.cli import CONF, run_program
from fire_core.harness.options.trigger import acts_at_boundaries
from fire_core.harness.run.checkpoint import DamagedStateError, loading
from fire_core.harness.run.execute import Program, execute
from fire_core.harness.run.folder import Run
from fire_core.harness.training import seeding
from fire_core.harness.training.boundary import act_after_row, act_at_boundary
from fire_core.harness.training.firing import ask, start
from fire_core.harness.training.loop import Loop
from fire_core.harness.training.measure import check_finite
from fire_core.methods import Context
from fire_core.triggers import Firing
from fire_core.weights.distributed import full, local
from fire_core.weights.optimizer_state import parts_of, set_rate_factor
from language.learner import Learner, new_optimizer
from language.process_group import leave
from language.schedule import learning_rate
from language.sharded import gathered
from language.speed import Pace
from language.task import METRICS, Task, batch_at


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="language")
def main(config: DictConfig) -> float:
    """Train one configuration to its end; returns the validation loss, which `hydra/sweeper=optuna` minimises."""
    return execute(config, PROGRAM)


@contextlib.contextmanager
def processes(task: Task) -> Iterator[bool]:
    """Yields True on rank 0, which keeps the run folder; the others first train whatever rank 0 trains, to its end."""
    if task.group.rank == 0:
        yield True
        task.group.broadcast(None)  # there is no more
    else:
        while (order := task.group.broadcast()) is not None:
            with contextlib.suppress(DamagedStateError):  # rank 0 goes back to the checkpoint before
                train_together(task, None, **order)
        yield False


def train(task: Task, run: Run, state: dict[str, Any] | None, stop: int | None = None) -> dict[str, Any]:
    """On rank 0: train from `state` (None: from the start) up to phase `stop` (None: to the end).

    Returns:
        The run's summary.
    """
    task.group.broadcast({"state": state, "stop": stop})
    return train_together(task, run, state, stop)


PROGRAM = Program(Task.from_config, train, groups=("benchmark", "dataset"), processes=processes)


def train_together(task: Task, run: Run | None, state: dict[str, Any] | None, stop: int | None) -> dict[str, Any]:
    """The training loop; `run` is None on ranks other than 0."""
    config, group, learner = task.config, task.group, Learner.new(task)
    if state is not None:
        with loading():
            learner.load_state_dict(task, state)
    title = f"{config.method.name} from {task.start} seed {config.seed}"
    write_checkpoint = functools.partial(save, task, learner, run)
    probe = functools.partial(pass_probe, task, learner) if config.compile else None
    start(learner, metrics=METRICS, total_steps=task.total_steps, after=task.steps_before_trigger, probe=probe)
    pace = Pace(learner.model, task.tokens_per_step, task.device, config.precision, group.size)
    shown = config.progress and group.rank == 0
    with Loop(learner, run, task.total_steps, title, shown, group.maximum) as loop:
        for index in range(learner.phase, stop or len(task.phases)):
            if index > learner.phase or learner.optimizer is None:
                begin_phase(task, learner, index, run)
                pace.restart()
            assert learner.optimizer is not None
            phase, acts = task.phases[index], task.method_acts_in(index)
            with learner.method.watch(learner.net) if acts else contextlib.nullcontext():
                while learner.phase_step < phase.length.steps:
                    set_rate_factor(learner.optimizer, rate_factor(task, learner))
                    loss = train_step(task, learner, acts)
                    learner.phase_step += 1
                    learner.step += 1
                    pace.steps += 1
                    loop.advance()

                    ended = learner.phase_step == phase.length.steps
                    if ended or learner.phase_step % phase.rows_every == 0:
                        learner.row = make_row(task, learner, pace)
                        loop.read_clock()
                        learner.row["seconds"] = round(learner.seconds, 3)
                        if acts:
                            last = learner.step == task.total_steps
                            act_after_row(learner, learner.net, make_context(task, learner), last)
                        if run is not None:
                            run.log(learner.row)
                        loop.show(
                            phase=index,
                            loss=learner.row["train/loss"],
                            val=learner.row["val/loss"],
                            tokens=f"{learner.row['tokens_per_second']:.0f}/s",
                            mfu=f"{learner.row['mfu']:.0%}",
                        )
                        pace.restart()
                    if task.asks_in(index) and (firing := ask(learner, learner.step, loss=loss)):
                        act(task, learner, run, firing=firing)
                    if index == 0:
                        keep_weights(task, learner)
                    loop.end_step(write_checkpoint, ended)
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
    whole = task.group.sum_(learner.loss_sum.clone())
    state = learner.state_dict() | {"loss_sum": whole, "seen": learner.seen * task.group.size}
    if task.sharded:
        state = gathered(state)
    if run is not None:
        run.checkpoint(learner.step, state)


def begin_phase(task: Task, learner: Learner, index: int, run: Run | None = None) -> None:
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
        if acts_at_boundaries(config.trigger):
            act(task, learner, run, {"start_iteration": started_from})
    learner.optimizer = new_optimizer(task, learner, index)
    learner.clear_sums()


def act(
    task: Task,
    learner: Learner,
    run: Run | None,
    also: dict[str, float] | None = None,
    firing: Firing | None = None,
) -> None:
    """Let the method act before the phase that begins, or where the trigger fired, and measure what it did.

    Where a trigger fired the optimizer stays, with what the method leaves of its state.
    """
    context = make_context(task, learner)
    if firing is not None:
        context.generator = seeding.generator(task.config.seed, "firing", learner.step)
    act_at_boundary(
        learner,
        context,
        name=task.config.method.name,
        device=task.device,
        run=run,
        measure=functools.partial(measure, task, learner),
        afterwards=None if task.sharded else lambda: task.group.broadcast_(list(learner.model.parameters())),
        also=also,
        firing=firing,
    )


def measure(task: Task, learner: Learner) -> dict[str, float]:
    """Validation loss, taken before and after the method acts."""
    return {"val_loss": evaluate(task, learner)["val/loss"]}


def pass_probe(task: Task, learner: Learner) -> None:
    """Pass a fixed batch of the phase through the network, for a trigger that looks at activations."""
    learner.model(*batch_at(task, learner.phase, 0, 0))


def train_step(task: Task, learner: Learner, acts: bool) -> Tensor | None:
    """One optimizer step; `acts`: with the method's penalty and its hook after the step.

    Returns:
        The loss of this process's last batch, on the device; None if the step was skipped.
    """
    config, optimizer, forward = task.config, learner.optimizer, learner.forward
    assert optimizer is not None
    optimizer.zero_grad(set_to_none=True)
    mine = range(task.group.rank, config.accumulation, task.group.size)
    for number in mine:
        inputs, targets = batch_at(task, learner.phase, learner.phase_step, number)
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
    checks = task.device.type == "cpu" or config.on_nan == "skip"  # on a GPU, reading each norm would make it wait
    if checks and not torch.isfinite(norm):
        if config.on_nan == "skip":
            return None
        check_finite(learner.step, norm)
    optimizer.step()
    if acts:
        with learner.method_meter:
            learner.method.after_step(learner.net, make_context(task, learner, loss.detach()))
    detached: Tensor = loss.detach()
    return detached


@torch.no_grad()
def evaluate(task: Task, learner: Learner) -> dict[str, float]:
    """Mean loss on the phase's held-out tokens: each corpus's, and weighted as training mixes them."""
    learner.model.eval()
    losses, weighted = {}, 0.0
    for name, rows in task.val[learner.phase].items():
        total = torch.zeros((), dtype=torch.float64)
        for batch in rows.split(task.config.batch_size)[task.group.rank :: task.group.size]:
            batch = batch.to(task.device)
            with task.autocast():
                total += learner.model(batch[:, :-1], batch[:, 1:])[1].double().cpu() * len(batch)
        losses[f"val/loss_{name}"] = task.group.sum_(total).item() / len(rows)
        weighted += task.phases[learner.phase].val[name][1] * losses[f"val/loss_{name}"]
    learner.model.train()
    if task.sharded:
        cast(Any, learner.model).reshard()  # the root stays gathered after a forward pass: writes to it would be lost
    return {"val/loss": weighted, **(losses if len(losses) > 1 else {})}


def make_row(task: Task, learner: Learner, pace: Pace) -> dict[str, Any]:
    """What is known at this step; on every rank, for all take part in the evaluation."""
    check_finite(learner.step, learner.loss_sum)  # waits for the GPU
    speed = pace.read()
    assert learner.optimizer is not None
    loss = task.group.sum_(torch.stack([learner.loss_sum.double().cpu(), torch.tensor(float(learner.seen)).double()]))
    row = {
        "step": learner.step,
        "phase": learner.phase,
        "iteration": learner.step,
        "train/loss": (loss[0] / loss[1]).item(),
        **evaluate(task, learner),
        "lr": learner.optimizer.param_groups[0]["lr"],
        "tokens": learner.step * task.tokens_per_step,
        **speed,
    }
    learner.clear_sums()
    return row


def make_context(task: Task, learner: Learner, step_loss: Tensor | None = None) -> Context:
    """The moment, as a method sees it; a pass is what comes between two rows.

    Args:
        task: what is fixed.
        learner: at this moment.
        step_loss: after a step, the loss of its last batch.
    """

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(task.phases[learner.phase].rows_every):
            for number in range(task.config.accumulation):
                yield batch_at(task, learner.phase, step, number)

    return Context(
        phase=learner.phase,
        step=learner.step,
        generator=seeding.generator(task.config.seed, "method", learner.phase, learner.phase_step),
        batches=batches,
        loss=lambda inputs, targets: learner.model(inputs, targets)[1],
        optimizers=parts_of(learner.optimizer),
        step_loss=step_loss,
    )


def rate_factor(task: Task, learner: Learner) -> float:
    """Of the base learning rate, for the coming step."""
    length = task.phases[learner.phase].length
    return learning_rate(learner.phase_step, length.warmup, length.decay, 1.0, task.config.min_lr_ratio)


if __name__ == "__main__":
    run_program(main, "language")
    leave()
