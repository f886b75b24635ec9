"""Language models through a sequence of phases: `python -m language.train method=base,fire -m`.

In streams (`benchmark=permuted_text`, `domains`) each phase is a new task and the method acts at each boundary: the
default. In the paper's figure 3 (`benchmark=continual_pretraining`) phase 0 overfits a small corpus and keeps
checkpoints; phase 1 starts from one of them, a method acts, and training goes on with a larger corpus mixed in. Under
torchrun, rank 0 keeps the run folder and sends
the others what to train. Read from `main` down.
"""

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import hydra
import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fire_core.triggers import Firing
from fire_core.weights.optimizers import hold_all, set_rate_factor
from harness.config.cli import run_program
from harness.config.groups import CONF
from harness.config.trigger import acts_at_boundaries
from harness.run.checkpoint import loading
from harness.run.execute import Program, execute
from harness.run.folder import Run
from harness.training import seeding
from harness.training.boundary import act_after_row, act_at_boundary
from harness.training.firing import ask, start
from harness.training.loop import Loop
from harness.training.measure import check_finite
from language.learner import Learner
from language.phase import (
    BothSides,
    make_context,
    make_row,
    pass_probe,
    save,
)
from language.process_group import leave
from language.task import Task, micro_batches, open_data
from language.trained import load


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="language")
def main(config: DictConfig) -> float:
    """Train one configuration to its end; returns the benchmark's headline, which `hydra/sweeper=optuna` minimises."""
    return execute(config, PROGRAM)


@contextlib.contextmanager
def processes(task: Task) -> Iterator[bool]:
    """Yields True on rank 0, which keeps the run folder; the others first train whatever rank 0 trains, to its end."""
    if task.group.rank == 0:
        yield True
        task.group.broadcast(None)  # there is no more
    else:
        while (order := task.group.broadcast()) is not None:
            train(task, None, **order)
        yield False


def train(task: Task, run: Run | None, state: dict[str, Any] | None, stop: int | None = None) -> dict[str, Any]:
    """Train from `state` (None: from the start) up to phase `stop` (None: to the end).

    All processes run this loop, each on batches of its own. Rank 0 has the `run` and tells the others what to train.

    Returns:
        The run's summary.
    """
    config, group = task.config, task.group
    if group.rank == 0:
        group.broadcast({"state": state, "stop": stop})
    learner = Learner.new(task)
    if state is not None:
        with loading():
            learner.load_state_dict(task, state)
            if len(sums := state.get("rank_sums", ())) == group.size:  # added up as if nothing had been
                learner.loss_sum, learner.seen = sums[group.rank].clone(), learner.seen // group.size
            elif group.rank > 0:
                learner.clear_sums()  # rank 0 has the sums over all
    start(task, learner, None if config.compile == "off" else pass_probe)
    weights = "" if task.benchmark.new_tasks else f" from {task.start}"
    title = f"{config.method['name']}{weights} seed {config.seed}"
    write_checkpoint = functools.partial(save, task, learner, run)
    shown = config.progress and group.rank == 0
    with Loop(learner, run, task.total_steps, title, shown, group.maximum) as loop:
        for index in range(learner.phase, stop or len(task.phases)):
            if index > learner.phase or not learner.optimizers:
                begin_phase(task, learner, index, run)
            phase, acts, end = task.phases[index], task.method_acts_in(index), task.phase_end(index)
            with learner.method.watch(learner.net) if acts else contextlib.nullcontext():
                while learner.step < end:
                    set_rate_factor(learner.optimizer, task.rate_factor(index, learner.phase_step))
                    batch = micro_batches(task, index, learner.phase_step)
                    loss = train_step(task, learner, batch, acts)
                    learner.phase_step += 1
                    learner.step += 1
                    loop.advance()

                    ended = learner.step == end
                    if ended or learner.phase_step % phase.rows_every == 0:
                        loop.read_clock()
                        with loop.evaluation():
                            learner.row = make_row(task, learner)
                            if acts:
                                last = learner.step == task.total_steps
                                act_after_row(learner, make_context(task, learner, "row"), last)
                        if run is not None:
                            run.log(learner.row)
                        loop.show(phase=index, loss=learner.row["train/loss"], val=learner.row["val/loss"])
                    if task.asks_in(index) and (firing := ask(learner, learner.step, loss=loss)):
                        with loop.evaluation():
                            act(task, learner, run, firing)
                    if index == 0 and not task.benchmark.new_tasks:
                        keep_weights(task, learner)
                    loop.end_step(write_checkpoint, ended)
    return learner.summary()


PROGRAM = Program(Task.from_config, train, groups=("benchmark", "dataset"), load=load, processes=processes)


def keep_weights(task: Task, learner: Learner) -> None:
    """In phase 0: keep the weights if they are the best yet, or if this iteration is a chosen one."""
    if learner.row and learner.row["step"] == learner.step:
        best = learner.kept.get("best", {"val/loss": math.inf})["val/loss"]
        if learner.row["val/loss"] < best:
            learner.keep("best")
    if learner.phase_step in task.config.benchmark["checkpoints"]:
        learner.keep(str(learner.phase_step))


def begin_phase(task: Task, learner: Learner, index: int, run: Run | None) -> None:
    """Take up the weights to start from, let the method act, measure what it did, start a new optimizer if due."""
    seeding.seed_everything(seeding.derive(task.config.seed, "phase", index))
    if index > 0:
        learner.start_iteration = learner.phase_step
        if (kept := learner.kept.get(str(task.start))) is not None:
            learner.start_iteration = kept["iteration"]
            with torch.no_grad():
                for name, parameter in learner.model.named_parameters():
                    parameter.copy_(kept["weights"][name])
        learner.kept = {}
        learner.phase, learner.phase_step = index, 0
        if acts_at_boundaries(task.config.trigger):
            act(task, learner, run)
    if not (task.benchmark.keeps_optimizer and hold_all(learner.optimizer_parts, learner.net.parameters())):
        learner.renew_optimizers(task)
    learner.clear_sums()


def act(task: Task, learner: Learner, run: Run | None, firing: Firing | None = None) -> None:
    """Let the method act before the phase that begins, or where the trigger fired, and measure what it did.

    Where a trigger fired the optimizer stays, with what the method leaves of its state.
    """
    measure = BothSides(task, learner, firing=firing is not None)
    act_at_boundary(
        task,
        learner,
        make_context(task, learner, "firing" if firing else "boundary"),
        run,
        measure=measure,
        level=task.config.metrics,
        afterwards=lambda: task.group.broadcast_(list(learner.model.parameters())),
        also=measure.between,
        firing=firing,
    )


def train_step(task: Task, learner: Learner, batch: Sequence[tuple[Tensor, Tensor]], acts: bool) -> Tensor:
    """One optimizer step on this process's micro-batches; `acts`: with the method's penalty and hooks around the step.

    Returns:
        The loss of the last micro-batch, on the device.
    """
    config, optimizer, forward, scaler = task.config, learner.optimizer, learner.forward, learner.scaler
    optimizer.zero_grad(set_to_none=True)
    for number, (inputs, targets) in enumerate(batch, 1):
        last = number == len(batch)  # gradients travel once a step
        alone = isinstance(forward, DistributedDataParallel) and not last
        with forward.no_sync() if alone else contextlib.nullcontext():
            with task.autocast():
                loss = forward(inputs, targets)
            scaler.scale(loss / len(batch)).backward()
        learner.loss_sum += loss.detach()
        learner.seen += 1
    if acts:
        with learner.method_meter:
            if (penalty := learner.method.penalty(learner.net)) is not None:
                scaler.scale(penalty).backward()  # the same on every rank, after gradients have been averaged
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(learner.model.parameters(), config.grad_clip or math.inf)
    if task.device.type == "cpu" and not scaler.is_enabled():  # on a GPU, reading each norm would make it wait
        check_finite(learner.step, norm)
    if acts:
        with learner.method_meter:
            context = make_context(task, learner, "step", loss.detach())
            learner.method.before_step(learner.net, context)
    scaler.step(optimizer)
    scaler.update()
    if acts:
        with learner.method_meter:
            learner.method.after_step(learner.net, context)
    detached: Tensor = loss.detach()
    return detached


if __name__ == "__main__":
    run_program(main, "language", open_data)
    leave()
