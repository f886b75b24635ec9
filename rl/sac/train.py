"""Soft actor-critic on humanoids (the paper's figure 4b): `python -m rl.sac method=base,fire -m`.

Two phases of equal length in one task; a method acts between them. Read from `main` down.
"""

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Any

import hydra
import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor
from torch.optim import Optimizer

from fire_core.harness.options.cli import CONF
from fire_core.harness.run.execute import Program, execute
from fire_core.harness.run.folder import Run
from fire_core.harness.training import seeding
from fire_core.harness.training.boundary import act_after_row, act_at_boundary
from fire_core.harness.training.loop import Loop
from fire_core.harness.training.measure import check_finite, weight_numbers
from fire_core.harness.training.plasticity import plasticity
from fire_core.methods import Context, Net
from rl.common.replay_store import RingStore
from rl.sac.control import Statistics, Stepped, evaluate
from rl.sac.learner import Learner, apart
from rl.sac.task import Task
from rl.sac.transitions import of
from rl.sac.update import NAMES, Batch, Temperature, critic_loss, normalised, squash

PROBE = 512  # transitions on which plasticity is measured


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="sac")
def main(config: DictConfig) -> float:
    """Train one configuration to its end; returns the final return, which `hydra/sweeper=optuna` maximises."""
    return execute(config, PROGRAM)


def train(task: Task, run: Run, state: dict[str, Any] | None, stop: int | None = None) -> dict[str, Any]:
    """Train from `state` (None: from the start) up to phase `stop` (None: to the end).

    Returns:
        The run's summary.
    """
    config, every = task.config, max(1, task.config.eval_every // task.repeat)
    learner, store = Learner.new(task), RingStore(run.folder / "replay")
    if state is not None:
        learner.load_state_dict(task, state, store)
    title = f"{config.method.name} seed {config.seed}"
    write_checkpoint = functools.partial(save, run, learner, store, config.checkpoint.keep)
    with (
        contextlib.closing(store),
        contextlib.closing(learner.workers),
        Loop(learner, run, task.total_steps, title, config.progress) as loop,
    ):
        for index, end in enumerate(task.phase_ends[:stop]):
            if index < learner.phase:
                continue
            if index > learner.phase:
                begin_phase(task, run, learner, index)
            while learner.step < end:
                learner.workers.send(decide(task, learner))  # environments step while the networks learn
                if learner.step * config.num_envs >= config.random_steps:
                    learn(task, learner)
                before = time.monotonic()
                stepped = learner.workers.receive()
                learner.waited += time.monotonic() - before
                remember(learner, stepped)
                store.follow(learner.replay)
                learner.step += 1
                loop.advance()

                if learner.step % every == 0 or learner.step == end:
                    loop.read_clock()
                    log_row(task, run, learner)
                    loop.show(phase=learner.phase, **{"eval/return": learner.row["eval/return"]})
                loop.end_step(write_checkpoint, ended=learner.step == end)
    learner.agent.penalty = None  # the learner's own: a cycle that would keep the replay until the next collection
    return {"eval/return": learner.row["eval/return"], "steps": learner.step, "seconds": learner.seconds}


PROGRAM = Program(Task.from_config, train, groups=("env",), headline="eval/return")


def save(run: Run, learner: Learner, store: RingStore, keep: int) -> None:
    """Write a checkpoint; the replay's new segments first, which it names."""
    check_finite(learner.step, learner.sums, *learner.net.parameters())
    manifest = store.save(learner.replay)
    run.checkpoint(learner.step, learner.state_dict(manifest))
    store.committed(manifest, keep)


@torch.inference_mode()
def decide(task: Task, learner: Learner) -> np.ndarray:
    """An action in [-1, 1] for each environment, (environments, actions): random at first, then from the policy."""
    observations = learner.workers.observations
    learner.statistics.update(observations)
    shape = (len(observations), task.actions)
    if learner.step * task.config.num_envs < task.config.random_steps:
        return (torch.rand(shape, generator=learner.generator) * 2 - 1).numpy()
    noise = torch.randn(shape, generator=learner.generator)
    return policy(task, learner, observations, noise)


@torch.inference_mode()
def policy(task: Task, learner: Learner, observations: np.ndarray, noise: Tensor | None = None) -> np.ndarray:
    """The policy's actions with this noise, or its mean actions, (k, actions)."""
    x = normalised(torch.from_numpy(observations).to(task.device), learner.statistics.tensors(task.device))
    centre, log_std = learner.actor(x)
    action = torch.tanh(centre) if noise is None else squash(centre, log_std, noise.to(task.device))[0]
    return action.cpu().numpy()


def learn(task: Task, learner: Learner) -> None:
    """The updates that belong to one decision."""
    count, size = task.config.updates, task.config.batch_size
    drawn = learner.replay.sample(count, size, learner.generator)
    noise = torch.randn(count, 2, size, task.actions, generator=learner.generator).to(task.device, non_blocking=True)
    statistics = learner.statistics.tensors(task.device)
    for i in range(count):
        learner.sums += learner.update(of(drawn, i), noise[i], statistics)
    learner.counted += count
    learner.updates += count


def remember(learner: Learner, stepped: list[Stepped]) -> None:
    """Put what the environments did into the replay."""
    columns = (
        [getattr(s, name) for s in stepped] for name in ("before", "action", "reward", "terminated", "following")
    )
    learner.replay.add(Batch(*(torch.from_numpy(np.array(column, np.float32)) for column in columns)))
    learner.returns += [s.ended[0] for s in stepped if s.ended is not None]


def begin_phase(task: Task, run: Run, learner: Learner, index: int) -> None:
    """Let the method act at the midpoint, let start anew what the configuration says, measure what that did."""
    seeding.seed_everything(seeding.derive(task.config.seed, "phase", index))
    learner.generator = seeding.generator(task.config.seed, "stream", index)
    learner.phase = index
    forgetful = list(learner.agent.optimizers.values()) if task.config.boundary.optimizer == "forget" else []
    act_at_boundary(
        learner,
        make_context(task, learner, learner.net, forgetful),
        name=task.config.method.name,
        device=task.device,
        run=run,
        measure=lambda: measure(task, learner),
        level=task.config.metrics,
        afterwards=lambda: restart(task, learner),
    )
    learner.clear_sums(task.device)


def restart(task: Task, learner: Learner) -> None:
    """What starts anew at the midpoint beside the weights: `boundary` in the configuration."""
    how = task.config.boundary
    if how.temperature == "new":
        learner.temperature.load_state_dict(Temperature(task.config.temperature).state_dict())
    if how.target == "copy":
        learner.net.targets["critic"].load_state_dict(learner.net.modules["critic"].state_dict())
    if how.statistics == "new":
        learner.statistics = Statistics(task.observations, task.config.normalize_observations)
    kept = learner.agent.optimizers
    learner.prepare(task)
    if how.optimizer != "new":
        learner.agent.optimizers = kept
        learner.make_fast(task)


def log_row(task: Task, run: Run, learner: Learner) -> None:
    """Evaluate, let the method act, and write the row."""
    config = task.config
    if learner.counted:
        check_finite(learner.step, learner.sums)
    means = (learner.sums / max(learner.counted, 1)).tolist()
    results = evaluate(task.judges, functools.partial(policy, task, learner))
    returns = np.array([total for total, _ in results])
    learner.row = {
        "step": learner.step,
        "phase": learner.phase,
        "env_steps": learner.step * task.repeat,
        "updates": learner.updates,
        "eval/return": float(returns.mean()),
        "eval/return_std": float(returns.std()),
        "eval/length": float(np.mean([length for _, length in results])),
        **(dict(zip(NAMES, means, strict=True)) if learner.counted else {}),
        "train/temperature": learner.temperature().item(),
        **({"train/return": float(np.mean(learner.returns))} if learner.returns else {}),
        "lr": config.lr,
        "seconds": round(learner.seconds, 3),
        "seconds/waiting": round(learner.waited, 3),
    }
    learner.clear_sums(task.device)
    if learner.phase > 0 and learner.method.acts_within_phases:
        net, optimizers = apart(learner)
        context = make_context(task, learner, net, optimizers)
        act_after_row(learner, net, context, last=learner.step == task.total_steps)
    run.log(learner.row)


# ------------------------------------------------------------------------------------------- what methods look at


def make_context(task: Task, learner: Learner, net: Net, optimizers: list[Optimizer]) -> Context:
    """The moment, as a method sees it: inputs are (batch, observations + actions), targets the critics' y."""

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        generator = seeding.generator(task.config.seed, "look", learner.phase, learner.step)
        while True:
            yield look(task, learner, task.config.batch_size, generator)

    return Context(
        phase=learner.phase,
        step=learner.step,
        generator=seeding.generator(task.config.seed, "method", learner.phase, learner.step),
        batches=batches,
        loss=functools.partial(probe_loss, task, net),
        optimizers=optimizers,
    )


@torch.no_grad()
def look(task: Task, learner: Learner, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Normalised observations with their actions, (size, o + a), and the critics' targets, (size,)."""
    batch, statistics = of(learner.replay.sample(1, size, generator), 0), learner.statistics.tensors(task.device)
    noise = torch.randn(size, task.actions, generator=generator).to(task.device)
    y = learner.agent.target_values(batch, normalised(batch.next_observation, statistics), noise)
    return torch.cat([normalised(batch.observation, statistics), batch.action], 1), y


def probe_loss(task: Task, net: Net, inputs: Tensor, targets: Tensor) -> Tensor:
    """The critics' loss; the actor too is passed through, for whoever looks at its units."""
    observation, action = inputs.split([task.observations, task.actions], 1)
    net.modules["actor"](observation)
    critics = [module for name, module in net.modules.items() if name != "actor"]
    values = [critic(observation, action) for critic in critics]  # (n, batch), or (batch,) of each critic
    q = values[0] if values[0].ndim == 2 else torch.stack(values)
    return critic_loss(q, targets)


def measure(task: Task, learner: Learner) -> dict[str, float]:
    """How plastic the networks are, on transitions of the replay."""
    inputs, targets = look(task, learner, PROBE, seeding.generator(task.config.seed, "probe", learner.phase))
    net, _ = apart(learner)
    level = task.config.metrics
    features = plasticity(net, lambda: probe_loss(task, net, inputs, targets), level)
    return features | weight_numbers(net, level)  # of each critic by itself
