"""Soft actor-critic on humanoids (the paper's figure 4b): `python -m rl.sac method=base,fire -m`.

Two phases of equal length in one task; a method acts between them. Read from `main` down.
"""

import functools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import hydra
import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.optim import AdamW, Optimizer

from fire_core.harness import seeding
from fire_core.harness.boundary import act_after_epoch, act_at_boundary
from fire_core.harness.build import build
from fire_core.harness.cli import Outcome, job, run_program
from fire_core.harness.config import identity
from fire_core.harness.console import progress_bar, show
from fire_core.harness.life import live
from fire_core.harness.measure import Meter, check_finite
from fire_core.harness.plasticity import plasticity
from fire_core.harness.run import Run
from fire_core.harness.signals import Preemption
from fire_core.methods import Context, Method, Net
from rl.control import Statistics, Stepped, Workers, evaluate
from rl.sac_task import Task
from rl.sac_update import NAMES, Batch, CudaGraph, Temperature, Update, compiled, critic_loss, squash
from rl.simba import Actor, Critics, part, plain_critic
from rl.transitions import Transitions

log = logging.getLogger(__name__)
PROBE = 512  # transitions on which plasticity is measured


@hydra.main(version_base="1.3", config_path="../conf", config_name="sac")
def main(config: DictConfig) -> float:
    """Train one configuration, unless that is already done; go on where it was interrupted.

    Returns:
        The final evaluation return, which `hydra/sweeper=optuna` maximises.
    """
    with job(config) as outcome:
        summary = run_one(config, outcome)
        outcome.result = f"return {summary['eval/return']:.1f} in {summary['seconds']:.1f} s"
    return float(summary["eval/return"])


def run_one(config: DictConfig, outcome: Outcome) -> dict[str, Any]:
    """Take the run to its end from wherever it stands; its summary."""
    task = Task.from_config(config)
    whole: Any = OmegaConf.to_container(config, resolve=True)
    what = identity(whole)
    return live(
        config,
        outcome,
        functools.partial(train, task),
        groups=("env",),
        what=what,
        # Methods act from the midpoint on, and what restarts there does not shape what comes before it.
        first={key: value for key, value in what.items() if key not in ("method", "boundary")},
        headline="eval/return",
        device=task.device,
        total_steps=task.phase_ends[-1],
    )


@dataclass
class Learner:
    """All that changes while training, which is all that a checkpoint holds."""

    net: Net
    method: Method
    temperature: Temperature
    replay: Transitions
    statistics: Statistics
    workers: Workers
    generator: torch.Generator  # of action noise, noise within updates and the choice of transitions
    agent: Update = field(init=False)  # the networks' update, with the optimizers
    update: Callable[[Batch, Tensor, tuple[Tensor, Tensor]], Tensor] = field(init=False)  # the same, made fast
    method_meter: Meter = field(init=False)  # of the method's work since the last row
    phase: int = 0
    step: int = 0  # decisions, of all environments together
    updates: int = 0
    seconds: float = 0.0  # of training, over all processes that worked on the run
    waited: float = 0.0  # of these, for environments
    sums: Tensor = field(init=False)  # over the updates since the last row, of what `NAMES` says
    counted: int = 0  # these updates
    returns: list[float] = field(default_factory=list)  # of training episodes that ended since the last row
    boundary: dict[str, float] = field(default_factory=dict)  # rides on the first row of the phase
    row: dict[str, Any] = field(default_factory=dict)  # the last one logged

    PLAIN = ("phase", "step", "updates", "seconds", "waited", "sums", "counted", "returns", "boundary", "row")
    PARTS = ("temperature", "replay", "statistics", "workers")

    @classmethod
    def new(cls, task: Task) -> "Learner":
        """Networks at their initial weights, an empty replay, environments at their first step."""
        seed = task.config.seed
        seeding.seed_everything(seeding.derive(seed, "init"))
        net = Net.of({"actor": task.actor(), "critic": task.critics()}, "sac")
        net.targets["critic"] = task.critics().requires_grad_(False)
        net.targets["critic"].load_state_dict(net.modules["critic"].state_dict())
        learner = cls(
            net,
            build("method", task.config.method),
            Temperature(task.config.temperature).to(task.device),
            Transitions(task.config.replay_size, task.observations, task.actions, task.device),
            Statistics(task.observations, task.config.normalize_observations),
            Workers(task.control, task.config.num_envs, seed),
            seeding.generator(seed, "stream", 0),
        )
        learner.method_meter = Meter(task.device)
        learner.clear_sums(task.device)
        learner.prepare(task)
        return learner

    def prepare(self, task: Task) -> None:
        """New optimizers and a fast update for the networks as they are now."""
        target = self.net.targets["critic"]
        assert isinstance(target, Critics)
        self.agent = task.agent(self.net, target, self.temperature)
        self.agent.penalty = self.penalty if self.phase > 0 and self.method.acts_within_phases else None
        self.make_fast(task)

    def make_fast(self, task: Task) -> None:
        """Compile and record the update, where that is asked for."""
        cuda = task.device.type == "cuda"
        compile_it = cuda if task.config.compile is None else task.config.compile
        self.update = compiled(self.agent) if compile_it else self.agent
        if cuda and task.config.cuda_graph is not False:
            self.update = CudaGraph(self.update)

    def penalty(self, name: str) -> Tensor | None:
        """The method's, of one network."""
        if name not in self.net.modules:
            return None
        with self.method_meter:
            return self.method.penalty(Net({name: self.net.modules[name]}, {name: self.net.init[name]}, "sac"))

    def clear_sums(self, device: torch.device) -> None:
        """Start counting for the next row."""
        self.sums, self.counted, self.returns, self.waited = torch.zeros(len(NAMES), device=device), 0, [], 0.0

    @property
    def actor(self) -> Actor:
        """The policy."""
        return self.agent.actor

    def state_dict(self) -> dict[str, Any]:
        """For `Run.checkpoint`."""
        return {
            "modules": {name: module.state_dict() for name, module in self.net.modules.items()},
            "targets": {name: module.state_dict() for name, module in self.net.targets.items()},
            "init": self.net.init,
            "method": self.method.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.agent.optimizers.items()},
            "rng": seeding.rng_state(),
            "generator": self.generator.get_state(),
            **{key: getattr(self, key).state_dict() for key in self.PARTS},
            **{key: getattr(self, key) for key in self.PLAIN},
        }

    def load_state_dict(self, task: Task, state: dict[str, Any]) -> None:
        """Go on from `state_dict`'s state."""
        self.net.init = state["init"]
        for key in self.PLAIN:
            setattr(self, key, state[key])
        if state["method"] is not None:  # None: from a first phase that another method's run may have trained
            self.method.load_state_dict(state["method"])
            self.method.reshape(self.net)
        for name, module in self.net.modules.items():
            module.load_state_dict(state["modules"][name])
        for name, module in self.net.targets.items():
            module.load_state_dict(state["targets"][name])
        for key in self.PARTS:
            getattr(self, key).load_state_dict(state[key])
        self.prepare(task)
        for name, optimizer in self.agent.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        seeding.set_rng_state(state["rng"])
        self.generator.set_state(state["generator"].cpu())


def train(task: Task, run: Run, state: dict[str, Any] | None, stop: int | None = None) -> dict[str, Any]:
    """Train from `state` (None: from the start) up to phase `stop` (None: to the end).

    Returns:
        The run's summary.
    """
    config, every = task.config, max(1, task.config.eval_every // task.repeat)
    learner = Learner.new(task)
    if state is not None:
        learner.load_state_dict(task, state)
    began = time.monotonic() - learner.seconds

    title = f"{config.method.name} seed {config.seed}"
    total = task.phase_ends[-1]
    with Preemption() as preemption, progress_bar(total, learner.step, title, config.progress) as bar:
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
                learner.step += 1
                bar.update()

                if learner.step % every == 0 or learner.step == end:
                    learner.seconds = time.monotonic() - began
                    log_row(task, run, learner)
                    show(bar, phase=learner.phase, **{"eval/return": learner.row["eval/return"]})
                ended = learner.step == end
                if ended or run.checkpoint_due or preemption.received:
                    learner.seconds = time.monotonic() - began
                    check_finite(learner.step, learner.sums, *learner.net.parameters())
                    run.checkpoint(learner.step, learner.state_dict())
                if preemption.received:
                    log.warning("%s: stopped by %s at step %d", run.folder, preemption.received.name, learner.step)
                    preemption.leave()
    learner.workers.close()
    return {"eval/return": learner.row["eval/return"], "steps": learner.step, "seconds": learner.seconds}


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
    mean, scale = learner.statistics.tensors(task.device)
    x = (torch.from_numpy(observations).to(task.device) - mean) * scale
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
        learner.sums += learner.update(Batch(*(x[i] for x in drawn)), noise[i], statistics)
    learner.counted += count
    learner.updates += count


def remember(learner: Learner, stepped: list[Stepped]) -> None:
    """Put what the environments did into the replay."""
    rows = Batch(
        np.stack([s.before for s in stepped]),
        np.stack([s.action for s in stepped]),
        np.array([s.reward for s in stepped], np.float32),
        np.array([s.terminated for s in stepped], np.float32),
        np.stack([s.following for s in stepped]),
    )
    learner.replay.add(Batch(*(torch.from_numpy(column) for column in rows)))
    learner.returns += [s.ended[0] for s in stepped if s.ended is not None]


def begin_phase(task: Task, run: Run, learner: Learner, index: int) -> None:
    """Let the method act at the midpoint, let start anew what the configuration says, measure what that did."""
    seeding.seed_everything(seeding.derive(task.config.seed, "phase", index))
    learner.generator = seeding.generator(task.config.seed, "stream", index)
    learner.phase = index
    learner.boundary = act_at_boundary(
        learner.net,
        learner.method,
        make_context(task, learner, learner.net),
        name=task.config.method.name,
        device=task.device,
        measure=lambda: measure(task, learner),
        run=run,
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
    if how.optimizer == "keep":
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
        **learner.boundary,
    }
    learner.clear_sums(task.device)
    learner.boundary = {}
    if learner.phase > 0 and learner.method.acts_within_phases:
        net, optimizers = apart(learner)
        context = make_context(task, learner, net, optimizers)
        learner.row |= act_after_epoch(net, learner.method, context, learner.method_meter, learner.row)
    run.log(learner.row)


# ------------------------------------------------------------------------------------------- what methods look at


def apart(learner: Learner) -> tuple[Net, list[Optimizer]]:
    """The actor and each critic by itself, and optimizers of theirs: views into the batched tensors, for methods that
    look at single units."""
    critics, own = learner.agent.critic, learner.agent.optimizers["critic"]
    plain = {f"critic{i}": plain_critic(critics, i) for i in range(critics.n)}
    optimizers = [learner.agent.optimizers["actor"]]
    for i, critic in enumerate(plain.values()):
        optimizer = AdamW(critic.parameters())
        for view, whole in zip(critic.parameters(), critics.parameters(), strict=True):
            state = own.state.get(whole, {})
            optimizer.state[view] = {
                key: part(value, i, critics.n) if value.shape == whole.shape else value for key, value in state.items()
            }
        optimizers.append(optimizer)
    return Net({"actor": learner.net.modules["actor"], **plain}, {}, "sac"), optimizers


def make_context(task: Task, learner: Learner, net: Net, optimizers: list[Optimizer] | None = None) -> Context:
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
        optimizers=list(learner.agent.optimizers.values()) if optimizers is None else optimizers,
    )


@torch.no_grad()
def look(task: Task, learner: Learner, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Normalised observations with their actions, (size, o + a), and the critics' targets, (size,)."""
    batch = Batch(*(x[0] for x in learner.replay.sample(1, size, generator)))
    mean, scale = learner.statistics.tensors(task.device)
    noise = torch.randn(size, task.actions, generator=generator).to(task.device)
    y = learner.agent.target_values(batch, (batch.next_observation - mean) * scale, noise)
    return torch.cat([(batch.observation - mean) * scale, batch.action], 1), y


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
    return plasticity(net, lambda: probe_loss(task, net, inputs, targets), task.config.metrics)


if __name__ == "__main__":
    run_program(main, "sac")
