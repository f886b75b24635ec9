"""Language models through a sequence of phases: `python -m language.train method=base,fire -m`.

In streams (`benchmark=permuted_text`, `domains`) each phase is a new task and the method acts at each boundary: the
default. In the paper's figure 3 (`benchmark=continual_pretraining`) phase 0 overfits a small corpus and stores
checkpoints; phase 1 starts from one of them, a method acts, and training goes on with a larger corpus mixed in. Under
torchrun, rank 0 has the run folder and tells the others what to train. Read the file from `main` down.
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
from fire_core.weights.optimizers import set_rate_factor
from harness.config.groups import CONF
from harness.config.trigger import acts_at_boundaries
from harness.program.execute import Program, execute
from harness.program.start import run_program
from harness.run.checkpoint import loading
from harness.run.folder import Run
from harness.training import seeding
from harness.training.boundary import act_after_row, act_at_boundary
from harness.training.firing import start
from harness.training.loop import Loop
from harness.training.measure import check_finite
from language.learner import Learner
from language.phase import (
    BoundaryMeasurement,
    ask_trigger,
    make_context,
    make_row,
    pass_probe,
)
from language.process_group import exit_if_a_rank_fails, leave
from language.task import Task, micro_batches, open_data
from language.trained import load


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="language")
def main(config: DictConfig) -> float:
    """Train one configuration and return the benchmark's headline, the number that `hydra/sweeper=optuna` minimises."""
    return execute(config, PROGRAM)


@contextlib.contextmanager
def processes(task: Task) -> Iterator[bool]:
    """Yield True on rank 0, which has the run folder; on others, train whatever rank 0 trains and then yield False."""
    if task.group.rank == 0:
        yield True
        task.group.send_order(task.name)  # nothing more is to be trained in this job
    else:
        while (order := task.group.next_order(task.name)) is not None:
            train(task, None, **order)
        yield False


@exit_if_a_rank_fails
def train(task: Task, run: Run | None, state: dict[str, Any] | None, stop: int | None = None) -> dict[str, Any]:
    """Train from a checkpoint's state to the end of phase `stop - 1`; no method acts at the boundary after it.

    All processes run this loop, each on batches of its own. Rank 0 tells the others what to train.

    Args:
        task: the task of the run.
        run: the run's folder; None on ranks other than 0.
        state: of a checkpoint of this run, or of the shared first phase; None starts the run.
        stop: number of the phase before which to stop; None trains to the end.

    Returns:
        The run's summary.

    Raises:
        Diverged: the loss is not finite.
        TrainingError: a checkpoint that ends a phase could not be written.
        SystemExit: a signal asked the process to stop, and the state is saved; see `Loop`.
    """
    config, group = task.config, task.group
    if group.rank == 0:
        group.send_order(task.name, state=state, stop=stop)
    learner = Learner.new(task)
    if state is not None:
        with loading():
            learner.load_state_dict(task, state)
            rank_sums = state.get("rank_sums", ())
            if len(rank_sums) == group.size:  # each rank goes on with its own sum, as if the run had not stopped
                learner.loss_sum, learner.seen = rank_sums[group.rank].clone(), learner.seen // group.size
            elif group.rank > 0:  # the number of processes has changed: rank 0 goes on with the sums of all
                learner.clear_sums()
    start(task, learner, None if config.compile == "off" else pass_probe)
    start_weights = "" if task.benchmark.new_tasks else f" from {task.start}"
    title = f"{config.method['name']}{start_weights} seed {config.seed}"
    write_checkpoint = functools.partial(learner.save, task, run)
    show_progress = config.progress and group.rank == 0
    with Loop(learner, run, task.total_steps, title, show_progress, group.maximum) as loop:
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
                    if firing := ask_trigger(task, learner, loss):
                        with loop.evaluation():
                            act(task, learner, run, firing)
                    if index == 0 and not task.benchmark.new_tasks:
                        keep_weights(task, learner)
                    loop.end_step(write_checkpoint, ended)
    return learner.summary()


PROGRAM = Program(Task.from_config, train, groups=("benchmark", "dataset"), load=load, processes=processes)


def keep_weights(task: Task, learner: Learner) -> None:
    """Store the weights of phase 0 if they are the best so far, or if `benchmark.checkpoints` has this iteration."""
    if learner.row and learner.row["step"] == learner.step:
        best = learner.kept.get("best", {"val/loss": math.inf})["val/loss"]
        if learner.row["val/loss"] < best:
            learner.keep("best")
    if learner.phase_step in task.config.benchmark["checkpoints"]:
        learner.keep(str(learner.phase_step))


def begin_phase(task: Task, learner: Learner, index: int, run: Run | None) -> None:
    """Load the weights to start from, let the method act, measure what it did, and start a new optimizer if due."""
    seeding.seed_everything(seeding.derive(task.config.seed, "phase", index))
    if index > 0:
        learner.start_iteration = learner.phase_step
        if (stored := learner.kept.get(str(task.start))) is not None:
            learner.start_iteration = stored["iteration"]
            with torch.no_grad():
                for name, parameter in learner.model.named_parameters():
                    parameter.copy_(stored["weights"][name])
        learner.kept = {}
        learner.phase, learner.phase_step = index, 0
        if acts_at_boundaries(task.config.trigger):
            act(task, learner, run)
    if not (task.benchmark.keeps_optimizer and learner.may_keep_optimizers(task)):
        learner.renew_optimizers(task)
    learner.clear_sums()


def act(task: Task, learner: Learner, run: Run | None, firing: Firing | None = None) -> None:
    """Let the method act before the phase that begins, or because the trigger fired, and measure what it did.

    If the trigger fired, the optimizer goes on with the state that the method leaves it.
    """
    measurement = BoundaryMeasurement(task, learner, firing=firing is not None)
    act_at_boundary(
        task,
        learner,
        make_context(task, learner, "firing" if firing else "boundary"),
        run,
        measure=measurement.losses,
        measure_change=measurement.change,
        level=task.config.metrics,
        afterwards=lambda: task.group.broadcast_(list(learner.model.parameters())),
        firing=firing,
    )


def train_step(task: Task, learner: Learner, batch: Sequence[tuple[Tensor, Tensor]], acts: bool) -> Tensor:
    """Make one optimizer step.

    Args:
        task: the task of the run.
        learner: the learner.
        batch: this process's micro-batches, each inputs and next tokens (batch_size, block_size).
        acts: whether to add the method's penalty and call its hooks around the step.

    Returns:
        The loss of the last micro-batch, a scalar on the device.
    """
    config, optimizer, forward, scaler = task.config, learner.optimizer, learner.forward, learner.scaler
    optimizer.zero_grad(set_to_none=True)
    for number, (inputs, targets) in enumerate(batch, 1):
        # Processes exchange gradients once in a step, in the last micro-batch.
        skip_exchange = isinstance(forward, DistributedDataParallel) and number < len(batch)
        with forward.no_sync() if skip_exchange else contextlib.nullcontext():
            task.seed_dropout(learner, task.group.rank + (number - 1) * task.group.size)
            with task.autocast():
                loss = forward(inputs, targets)
            scaler.scale(loss / len(batch)).backward()
        learner.loss_sum += loss.detach()
        learner.seen += 1
    task.seed_dropout(learner, "step")  # what is drawn from here on is alike on all ranks
    if acts:
        with learner.method_meter:
            if (penalty := learner.method.penalty(learner.net)) is not None:
                scaler.scale(penalty).backward()  # the same on every rank, so it needs no averaging
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
