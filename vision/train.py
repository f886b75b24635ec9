"""Continual vision (the paper's figure 2, and streams of tasks): `python -m vision.train method=base,fire -m`.

A run is a stream of phases. A method acts at each boundary between two phases, and may act within them. Read the file
from `main` down.
"""

import contextlib
import functools
from typing import Any

import hydra
import torch
from omegaconf import DictConfig
from torch import Tensor, nn

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
from vision.graph import GraphedStep
from vision.learner import Learner
from vision.phase import (
    ask_trigger,
    batches,
    make_context,
    make_row,
    measure,
    no_denormals,
    pass_probe,
)
from vision.task import Task, compiled, open_data
from vision.trained import load

SHOWN = ("phase", "epoch", "train/loss", "train/accuracy", "test/accuracy")  # numbers shown at the progress bar


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="vision")
def main(config: DictConfig) -> float:
    """Train one configuration and return the benchmark's headline, the number that `hydra/sweeper=optuna` optimises."""
    return execute(config, PROGRAM)


def train(task: Task, run: Run, state: dict[str, Any] | None, stop: int | None = None) -> dict[str, Any]:
    """Train from a checkpoint's state to the end of phase `stop - 1`; no method acts at the boundary after it.

    Args:
        task: the task of the run.
        run: the run's folder.
        state: of a checkpoint of this run, or of the shared first phase; None starts the run.
        stop: number of the phase before which to stop; None trains to the end.

    Returns:
        The run's summary.

    Raises:
        Diverged: the loss is not finite.
        TrainingError: a checkpoint that ends a phase could not be written.
        SystemExit: a signal asked the process to stop, and the state is saved; see `Loop`.
    """
    config, learner = task.config, Learner.new(task)
    if state is not None:
        with loading():
            learner.load_state_dict(task, state)
    start(task, learner, None if config.compile == "off" else pass_probe)
    title = f"{config.method['name']} seed {config.seed}"
    write_checkpoint = functools.partial(learner.save, run)
    with Loop(learner, run, task.total_steps, title, config.progress) as loop, no_denormals():
        for index in range(learner.phase, stop or len(task.phases)):
            if index > learner.phase or not learner.optimizers:
                begin_phase(task, learner, index, run)
            phase, acts, end = task.phases[index], task.method_acts_in(index), task.phase_end(index)
            if config.compile != "off" and (acts or learner.forward is learner.model):
                learner.forward = compiled(learner.model, config.compile)
            graphed: GraphedStep | None = None
            with learner.method.watch(learner.net) if acts else contextlib.nullcontext():
                for batch in batches(task, index, start=learner.phase_step):
                    set_rate_factor(learner.optimizer, task.rate_factor(index, learner.phase_step))
                    if config.cuda_graph and len(batch[1]) == config.batch_size:
                        graphed = graphed or GraphedStep(task, learner, train_step, batch)
                        loss = graphed(batch)
                    else:
                        loss = train_step(task, learner, batch, acts)
                    learner.phase_step += 1
                    learner.step += 1
                    loop.advance()

                    ended = learner.step == end
                    if learner.phase_step % phase.steps_per_epoch(config.batch_size) == 0:
                        loop.read_clock()
                        with loop.evaluation():
                            learner.row = make_row(task, learner)
                            if acts:
                                last = learner.step == task.total_steps
                                act_after_row(learner, make_context(task, learner, "row"), last)
                        run.log(learner.row)
                        loop.show(**{key: learner.row[key] for key in SHOWN if key in learner.row})
                    if firing := ask_trigger(task, learner, loss):
                        with loop.evaluation():
                            act(task, learner, run, firing)
                    loop.end_step(write_checkpoint, ended)
    return learner.summary()


PROGRAM = Program(Task.from_config, train, groups=("benchmark", "dataset"), load=load)


def begin_phase(task: Task, learner: Learner, index: int, run: Run | None) -> None:
    """Let the method act at the boundary before phase `index`, measure what it did, and start a new optimizer."""
    config = task.config
    seeding.seed_everything(seeding.derive(config.seed, "phase", index))
    learner.phase, learner.phase_step = index, 0
    if index > 0 and acts_at_boundaries(config.trigger):
        act(task, learner, run)
    if not (task.benchmark.keeps_optimizer and learner.may_keep_optimizers(task)):
        learner.renew_optimizers(task)
    learner.clear_sums()


def act(task: Task, learner: Learner, run: Run | None, firing: Firing | None = None) -> None:
    """Let the method act before the phase that begins, or because the trigger fired, and measure what it did.

    If the trigger fired, the optimizer goes on with the state that the method leaves it.
    """
    act_at_boundary(
        task,
        learner,
        make_context(task, learner, "firing" if firing else "boundary"),
        run,
        measure=functools.partial(measure, task, learner),
        level=task.config.metrics,
        firing=firing,
    )


def train_step(task: Task, learner: Learner, batch: tuple[Tensor, Tensor], acts: bool) -> Tensor:
    """Make one optimizer step.

    Args:
        task: the task of the run.
        learner: the learner.
        batch: images (b, C, H, W) and labels (b,).
        acts: whether to add the method's penalty and call its hooks around the step.

    Returns:
        The task's loss, a scalar on the device.
    """
    config, optimizer, (images, labels) = task.config, learner.optimizer, batch
    with task.autocast():
        logits = learner.forward(images)
        loss = task.loss(logits, labels)
    on_cpu = task.device.type == "cpu"  # on a GPU, reading a loss or a norm at each step would make it wait
    if on_cpu:
        check_finite(learner.step, loss.detach())
    # Faster than going through the modules, and than zero_grad, which matters for small networks.
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter in trained:
        parameter.grad = None
    loss.backward()
    if acts:
        with learner.method_meter:
            if (penalty := learner.method.penalty(learner.net)) is not None:
                if on_cpu:
                    check_finite(learner.step, penalty.detach())
                penalty.backward()  # a backward of its own, so that its time is counted as the method's
    if config.grad_clip is not None:
        norm = nn.utils.clip_grad_norm_(trained, config.grad_clip)
        if on_cpu:  # without clipping, a gradient that is not finite shows in the next step's loss
            check_finite(learner.step, norm)
    if acts:
        with learner.method_meter:
            context = make_context(task, learner, "step", loss.detach())
            learner.method.before_step(learner.net, context)
    optimizer.step()
    if acts:
        with learner.method_meter:
            learner.method.after_step(learner.net, context)
    with torch.no_grad():
        learner.loss_sum += loss.detach() * len(labels)
        if task.classifies:
            learner.correct += (logits.argmax(1) == labels).sum()
        learner.seen += len(labels)
    return loss.detach()


if __name__ == "__main__":
    run_program(main, "vision", open_data)
