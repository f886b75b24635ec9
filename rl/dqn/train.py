"""DQN on Atari (the paper's figure 4a): `python -m rl.dqn method=base,fire -m`.

An agent is trained to the midpoint, a method acts on its networks, and it is trained on. Read from `main` down; the
formulae are in `rl.dqn.update`, the environments in `rl.dqn.atari`, the replay in `rl.dqn.frames`.
"""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor

from fire_core.harness.options.cli import CONF
from fire_core.harness.run.execute import Program, execute
from fire_core.harness.run.folder import Run
from fire_core.harness.training import seeding
from fire_core.harness.training.boundary import act_after_row, act_at_boundary
from fire_core.harness.training.loop import Loop
from fire_core.harness.training.measure import check_finite
from fire_core.harness.training.plasticity import plasticity
from fire_core.methods import Context
from rl.common.boundary import forgetful, next_optimizer, update_targets
from rl.common.evaluation import epsilon_greedy, evaluate
from rl.common.replay_store import RingStore
from rl.dqn.learner import Learner, best_actions, on_device, targets_of, td_batch
from rl.dqn.task import Task, make_env
from rl.dqn.update import chosen, epsilon, huber

PROBE = 256  # transitions on which plasticity is measured
BATCHES = 16  # that a method may look at, at the midpoint or after an epoch


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="dqn")
def main(config: DictConfig) -> float:
    """Train one configuration to its end; returns the final return, which `hydra/sweeper=optuna` maximises."""
    return execute(config, PROGRAM)


def train(task: Task, run: Run, state: dict[str, Any] | None, stop: int | None = None) -> dict[str, Any]:
    """Train from `state` (None: from the start) up to phase `stop` (None: to the end).

    Returns:
        The run's summary.
    """
    config = task.config
    learner = Learner.new(task)
    store = RingStore(run.folder / "replay", config.replay.segment)
    if state is not None:
        load_replay(config, store, learner, state)
        learner.load_state_dict(state)
    title = f"{config.method.name} seed {config.seed}"
    write_checkpoint = functools.partial(save, run, store, learner)
    with (
        contextlib.closing(store),
        contextlib.closing(learner),
        Loop(learner, run, task.total_steps, title, config.progress) as loop,
    ):
        for index, end in list(enumerate(task.ends))[:stop]:
            if index < learner.phase:
                continue
            if index > learner.phase or learner.optimizer is None:
                begin_phase(learner, index, run)
            acts = task.method_acts_in(index)
            with learner.method.watch(learner.net) if acts else contextlib.nullcontext():
                while learner.step < end:
                    one_step(learner, store, acts)
                    loop.advance(config.num_envs)
                    due = functools.partial(crossed, learner.step, config.num_envs)
                    ended = learner.step >= end
                    if ended or due(config.log_every) or due(config.eval.every):
                        loop.read_clock()
                        learner.row = make_row(learner, with_evaluation=ended or due(config.eval.every))
                        if acts:
                            last = learner.step >= task.total_steps
                            act_after_row(learner, learner.net, make_context(learner), last)
                        run.log(learner.row)
                        loop.show(**{"phase": index, "return": learner.evaluated.get("eval/return", float("nan"))})
                    loop.end_step(write_checkpoint, ended)
    return {**learner.evaluated, "steps": learner.step, "updates": learner.updates, "seconds": learner.seconds}


PROGRAM = Program(Task.from_config, train, groups=("env",), headline="eval/return")


def one_step(learner: Learner, store: RingStore, acts: bool) -> None:
    """A step of every environment, and while they make it the updates that are due."""
    config, env, replay = learner.task.config, learner.env, learner.replay
    if learner.step == 0:
        replay.start(torch.arange(env.envs), env.begin())
    actions = act(learner, acts)
    env.send(actions)
    before = learner.step
    learner.step += config.num_envs
    if before >= config.learning_starts:
        count = int(learner.step * config.updates_per_step) - int(before * config.updates_per_step)
        if count:
            update(learner, count, acts)
        if crossed(learner.step, config.num_envs, config.target_every):
            learner.target.load_state_dict(learner.q.state_dict())
    step = env.recv()
    replay.append(step.frames, actions, step.rewards, step.terminated)
    if len(step.ended):
        replay.start(step.ended, step.first)
        learner.returns += step.returns
    store.follow(replay)


def act(learner: Learner, acts: bool) -> Tensor:
    """Epsilon-greedy actions for what the environments show, (envs,)."""
    config, env = learner.task.config, learner.env
    told = config.epsilon
    rate = epsilon(learner.step, told.start, told.end, told.fraction * config.total_steps, config.learning_starts)
    best = torch.zeros(env.envs, dtype=torch.int64) if rate >= 1 else best_actions(learner, env.observations, acts)
    return epsilon_greedy(best, env.emulator.actions, rate, learner.exploring, config.exploration == "shared")


def update(learner: Learner, count: int, acts: bool) -> None:
    """Make `count` updates."""
    config, optimizer = learner.task.config, learner.optimizer
    assert optimizer is not None
    batch = on_device(learner, learner.replay.sample(count * config.batch_size, learner.sampling))
    targets = targets_of(learner, batch)
    observations, actions = (part.split(config.batch_size) for part in (batch.frames[:, :-1], batch.actions))
    for i in range(count):
        values = learner.values(observations[i], actions[i])
        loss = huber(values, targets[i]())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if acts:
            with learner.method_meter:
                penalty = learner.method.penalty(learner.net)
                if penalty is not None:
                    penalty.backward()
        optimizer.step()
        learner.updates += 1
        if acts:
            with learner.method_meter:
                learner.method.after_step(learner.net, make_context(learner))
        learner.loss_sum += loss.detach()
        learner.value_sum += values.detach().mean()
    learner.updates_since += count


def crossed(step: int, by: int, every: int) -> bool:
    """Whether a multiple of `every` was reached within the last `by` steps."""
    return step // every > (step - by) // every


def begin_phase(learner: Learner, index: int, run: Run) -> None:
    """Let the method act at the boundary before phase `index` and measure what it did."""
    config = learner.task.config
    seeding.seed_everything(seeding.derive(config.seed, "phase", index))
    learner.phase = index
    if index == 0:
        learner.optimizer = learner.new_optimizer()
        return
    options, context = config.boundary, make_context(learner)
    context.optimizers = forgetful(learner.optimizer, options.optimizer)
    act_at_boundary(
        learner,
        context,
        name=config.method.name,
        device=learner.task.device,
        run=run,
        measure=functools.partial(measure, learner),
        level=config.metrics,
        afterwards=functools.partial(update_targets, learner.method, learner.net, context, options.target),
    )
    learner.optimizer = next_optimizer(
        learner.method, learner.net, learner.optimizer, options.optimizer, learner.default
    )
    learner.build_functions()


def measure(learner: Learner) -> dict[str, float]:
    """How plastic the network is on some transitions of the replay."""
    generator = seeding.generator(learner.task.config.seed, "probe", learner.phase)
    frames, actions, targets = td_batch(learner, learner.replay.sample(PROBE, generator))
    return plasticity(
        learner.net,
        lambda: huber(chosen(learner.q, frames[:, :-1], actions), targets),
        learner.task.config.metrics,
    )


def make_context(learner: Learner) -> Context:
    """The moment, as a method sees it. Its inputs are frames with the actions, since a loss needs both."""
    config = learner.task.config
    names = (config.seed, "method", learner.phase, learner.updates)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        generator = seeding.generator(*names, "batches")
        for _ in range(BATCHES):
            frames, actions, targets = td_batch(learner, learner.replay.sample(config.batch_size, generator))
            yield frames[:, :-1].clone(), torch.stack([actions.to(targets.dtype), targets], dim=1)

    def loss(observations: Tensor, told: Tensor) -> Tensor:  # told: (B, 2), actions and targets
        return huber(chosen(learner.q, observations, told[:, 0]), told[:, 1])

    return Context(
        phase=learner.phase,
        step=learner.updates,
        generator=seeding.generator(*names),
        batches=batches,
        loss=loss,
        optimizers=[] if learner.optimizer is None else list(getattr(learner.optimizer, "parts", [learner.optimizer])),
    )


def make_row(learner: Learner, with_evaluation: bool) -> dict[str, Any]:
    """The row at this step; `with_evaluation`: with returns of nearly greedy play."""
    config, told = learner.task.config, learner.task.config.epsilon
    check_finite(learner.step, learner.loss_sum)
    duration = told.fraction * config.total_steps
    row: dict[str, Any] = {
        "step": learner.step,
        "env_steps": learner.step,
        "phase": learner.phase,
        "updates": learner.updates,
        "epsilon": epsilon(learner.step, told.start, told.end, duration, config.learning_starts),
        "train/episodes": len(learner.returns),
        "seconds": round(learner.seconds, 3),
    }
    if learner.updates_since:
        row["train/loss"] = learner.loss_sum.item() / learner.updates_since
        row["train/value"] = learner.value_sum.item() / learner.updates_since
    if learner.returns:
        row["train/return"] = float(np.mean(learner.returns))
    if with_evaluation:
        env = make_env(config, config.eval.num_envs, f"eval/{learner.step}")
        with contextlib.closing(env):
            policy = functools.partial(best_actions, learner)
            learner.evaluated = evaluate(policy, env, config.eval.steps, config.eval.epsilon, config.env.game)
        row |= learner.evaluated
    learner.clear_sums()
    return row


def save(run: Run, store: RingStore, learner: Learner) -> None:
    """Write a checkpoint with its replay, which a finished run does not need any more."""
    check_finite(learner.step, learner.loss_sum, *learner.q.state_dict().values())
    finished = learner.step >= learner.task.total_steps
    manifest = {"written": [], "segments": []} if finished else store.save(learner.replay)
    run.checkpoint(learner.step, {**learner.state_dict(), "replay": manifest})
    store.committed(manifest, keep=1 if finished else run.keep)


def load_replay(config: DictConfig, store: RingStore, learner: Learner, state: dict[str, Any]) -> None:
    """Fill the replay; a run that begins with a shared first phase takes its segments from there."""
    if state["step"] < config.total_steps:
        shared = [Path(state["origin"]) / "replay"] if "origin" in state else []
        store.load(learner.replay, state["replay"], shared)
