"""DQN on Atari (the paper's figure 4a): `python -m rl.dqn method=base,fire -m`.

An agent is trained to the midpoint, a method acts on its networks, and it is trained on. Read from `main` down; the
formulae are in `rl.dqn_update`, the environments in `rl.atari`, the replay in `rl.frames`.
"""

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from fire_core.harness import seeding
from fire_core.harness.boundary import act_after_epoch, act_at_boundary
from fire_core.harness.build import build
from fire_core.harness.cli import Outcome, job, run_program
from fire_core.harness.config import identity
from fire_core.harness.console import progress_bar, show
from fire_core.harness.errors import TrainingError
from fire_core.harness.life import live
from fire_core.harness.measure import Meter, check_finite
from fire_core.harness.plasticity import plasticity
from fire_core.harness.run import Run
from fire_core.harness.signals import Preemption
from fire_core.methods import Context, Method, Net
from rl.boundary import build_method, forgetful, next_optimizer, update_targets
from rl.dqn_task import Task, make_env
from rl.dqn_update import chosen, epsilon, huber, td_target
from rl.evaluation import epsilon_greedy, evaluate
from rl.frames import Batch, FrameReplay
from rl.store import RingStore

log = logging.getLogger(__name__)
PROBE = 256  # transitions on which plasticity is measured
BATCHES = 16  # that a method may look at, at the midpoint or after an epoch


@hydra.main(version_base="1.3", config_path="../conf", config_name="dqn")
def main(config: DictConfig) -> float:
    """Train one configuration, unless that is already done; go on where it was interrupted.

    Returns:
        The final return, which `hydra/sweeper=optuna` maximises.
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
        first={key: value for key, value in what.items() if key != "method"},
        headline="eval/return",
        device=task.device,
        total_steps=config.total_steps,
    )


@dataclass
class Learner:
    """All that changes while training, which is all that a checkpoint holds."""

    task: Task
    net: Net
    method: Method
    replay: FrameReplay
    phase: int = 0
    step: int = 0  # agent steps made, over all environments
    updates: int = 0  # of the network
    seconds: float = 0.0  # of training, over all processes that worked on the run
    optimizer: torch.optim.Optimizer | None = None
    loss_sum: Tensor = field(init=False)  # since the last row, as the next three
    value_sum: Tensor = field(init=False)  # mean value of the actions that were taken
    updates_since: int = 0
    returns: list[float] = field(default_factory=list)
    boundary: dict[str, float] = field(default_factory=dict)  # rides on the first row of the phase
    row: dict[str, Any] = field(default_factory=dict)  # the last one logged
    evaluated: dict[str, float] = field(default_factory=dict)  # the last evaluation

    PLAIN = ("phase", "step", "updates", "seconds", "updates_since", "returns", "boundary", "row", "evaluated")

    def __post_init__(self) -> None:
        config = self.task.config
        self.env = make_env(config, config.num_envs, "train")
        self.exploring = seeding.generator(config.seed, "exploration")
        self.sampling = seeding.generator(config.seed, "replay")
        self.meter = Meter(self.task.device)  # of the method's work within a phase
        # A second core works out the targets of coming updates; it adds in the same order as the first would.
        alone = self.task.device.type != "cpu" or config.compile != "off"
        self.helper = None if alone else ThreadPoolExecutor(1, thread_name_prefix="targets")
        self.clear_sums()
        self.build_functions()

    @classmethod
    def new(cls, task: Task) -> "Learner":
        """Networks at their initial weights and the method, before the first step."""
        seeding.seed_everything(seeding.derive(task.config.seed, "init"))
        q, target = task.build_network(), task.build_network()
        target.load_state_dict(q.state_dict())
        net = Net.of({"q": q}, task.config.model.layout)
        net.targets["q"] = target
        return cls(task, net, build_method(task.config.method), task.build_replay())

    @property
    def q(self) -> nn.Module:
        """The network that is trained and acts."""
        return self.net.modules["q"]

    @property
    def target(self) -> nn.Module:
        """The network that the targets come from."""
        return self.net.targets["q"]

    def build_functions(self) -> None:
        """The three passes through the networks, compiled if asked for; anew when a method has changed modules."""
        task, gamma = self.task, self.task.config.gamma

        def greedy(observations: Tensor) -> Tensor:  # (envs, stack, ...) -> (envs,)
            with torch.no_grad(), task.autocast():
                return self.q(observations).argmax(1)

        def bootstrap(observations: Tensor, rewards: Tensor, terminated: Tensor) -> Tensor:
            with task.autocast():
                return td_target(self.target, observations, rewards, terminated, gamma)

        def values(observations: Tensor, actions: Tensor) -> Tensor:
            with task.autocast():
                return chosen(self.q, observations, actions)

        self.greedy, self.bootstrap, self.values = greedy, bootstrap, values
        if task.config.compile != "off":
            torch.compiler.reset()
            wrap: Any = functools.partial(torch.compile, mode=task.config.compile, dynamic=False)
            self.greedy, self.bootstrap, self.values = wrap(greedy), wrap(bootstrap), wrap(values)

    def close(self) -> None:
        """End the threads."""
        self.env.close()
        if self.helper is not None:
            self.helper.shutdown()

    def clear_sums(self) -> None:
        """Start counting for the next row."""
        device = self.task.device
        self.loss_sum, self.value_sum = torch.zeros((), device=device), torch.zeros((), device=device)
        self.updates_since, self.returns = 0, []

    def state_dict(self) -> dict[str, Any]:
        """For `Run.checkpoint`, less the replay, which `rl.store` keeps."""
        assert self.optimizer is not None
        return {
            "q": self.q.state_dict(),
            "target": self.target.state_dict(),
            "init": self.net.init["q"],
            "method": self.method.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "env": self.env.state_dict(),
            "exploring": self.exploring.get_state(),
            "sampling": self.sampling.get_state(),
            "rng": seeding.rng_state(),
            "loss_sum": self.loss_sum,
            "value_sum": self.value_sum,
            **{key: getattr(self, key) for key in self.PLAIN},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`'s state; the replay must be loaded."""
        self.net.init["q"] = state["init"]
        for key in (*self.PLAIN, "loss_sum", "value_sum"):
            setattr(self, key, state[key])
        if state["method"] is not None:  # None: from a first phase that another method's run may have trained
            self.method.load_state_dict(state["method"])
            self.method.reshape(self.net)
        self.q.load_state_dict(state["q"])
        self.target.load_state_dict(state["target"])
        self.optimizer = self.new_optimizer()
        self.optimizer.load_state_dict(state["optimizer"])
        self.exploring.set_state(state["exploring"].cpu())
        self.sampling.set_state(state["sampling"].cpu())
        seeding.set_rng_state(state["rng"])
        if self.step < self.task.config.total_steps and not self.env.load_state_dict(state["env"]):
            log.warning("this version of the emulator does not repeat its episodes: new ones begin")
            self.replay.start(torch.arange(self.env.envs), self.env.begin())

    def new_optimizer(self) -> torch.optim.Optimizer:
        """An optimizer of the kind that this phase has."""
        anew = self.phase > 0 and self.task.config.method.boundary.optimizer == "new"
        return self.method.optimizer(self.net, self.default) if anew else self.default(self.net.parameters())

    def default(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The trainer's own optimizer."""
        optimizer: torch.optim.Optimizer = build("optimizer", self.task.config.optimizer, params=list(parameters))
        return optimizer


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
    began = time.monotonic() - learner.seconds
    title = f"{config.method.name} seed {config.seed}"
    with (
        contextlib.closing(store),
        contextlib.closing(learner),
        Preemption() as preemption,
        progress_bar(config.total_steps, learner.step, title, config.progress) as bar,
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
                    bar.update(config.num_envs)
                    due = functools.partial(crossed, learner.step, config.num_envs)
                    ended = learner.step >= end
                    if ended or due(config.log_every) or due(config.eval.every):
                        learner.seconds = time.monotonic() - began
                        learner.row = make_row(learner, with_evaluation=ended or due(config.eval.every))
                        if acts:
                            learner.row |= act_after_epoch(
                                learner.net, learner.method, make_context(learner), learner.meter, learner.row
                            )
                        run.log(learner.row)
                        show(bar, **{"phase": index, "return": learner.evaluated.get("eval/return", float("nan"))})
                    if ended or run.checkpoint_due or preemption.received:
                        learner.seconds = time.monotonic() - began
                        check_finite(learner.step, learner.loss_sum, *learner.q.state_dict().values())
                        save(run, store, learner)
                    if preemption.received:
                        log.warning("%s: stopped by %s at step %d", run.folder, preemption.received.name, learner.step)
                        preemption.leave()
    return {**learner.evaluated, "steps": learner.step, "updates": learner.updates, "seconds": learner.seconds}


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


def best_actions(learner: Learner, observations: Tensor, acts: bool = True) -> Tensor:
    """Actions of the largest value, on the CPU; `acts`: a method watches training passes, so this must be none."""
    with learner.net.mode(training=False) if acts else contextlib.nullcontext():
        best: Tensor = learner.greedy(observations.to(learner.task.device, non_blocking=True))
    return best.cpu()


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
            with learner.meter:
                penalty = learner.method.penalty(learner.net)
                if penalty is not None:
                    penalty.backward()
        optimizer.step()
        learner.updates += 1
        if acts:
            with learner.meter:
                learner.method.after_step(learner.net, make_context(learner))
        learner.loss_sum += loss.detach()
        learner.value_sum += values.detach().mean()
    learner.updates_since += count


def targets_of(learner: Learner, batch: Batch) -> list[Callable[[], Tensor]]:
    """The targets (batch_size,) of each update, to be asked for when they are needed.

    The target network stands still between two steps. So a GPU takes all in one pass, and on a CPU the helper is ahead.
    """
    size, inputs = learner.task.config.batch_size, (batch.frames[:, 1:], batch.rewards, batch.terminated)
    if learner.helper is None:
        parts = learner.bootstrap(*inputs).split(size)
        return [functools.partial(Tensor.detach, part) for part in parts]
    split = zip(*(part.split(size) for part in inputs), strict=True)
    return [learner.helper.submit(learner.bootstrap, *part).result for part in split]


def on_device(learner: Learner, batch: Batch) -> Batch:
    """The transitions where the networks are, with the rewards that are learnt from."""
    batch = Batch(*(part.to(learner.task.device, non_blocking=True) for part in batch))
    return batch._replace(rewards=batch.rewards.sign()) if learner.task.config.reward_clip else batch


def td_batch(learner: Learner, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Frames (B, stack + 1, ...), actions (B,) and targets (B,) on the device."""
    batch = on_device(learner, batch)
    return batch.frames, batch.actions, learner.bootstrap(batch.frames[:, 1:], batch.rewards, batch.terminated)


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
    options, context = config.method.boundary, make_context(learner)
    context.optimizers = forgetful(learner.optimizer, options.optimizer)
    learner.boundary = act_at_boundary(
        learner.net,
        learner.method,
        context,
        name=config.method.name,
        device=learner.task.device,
        measure=functools.partial(measure, learner),
        run=run,
        with_spectra=config.metrics != "off",
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
        **learner.boundary,
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
    learner.boundary = {}
    return row


def save(run: Run, store: RingStore, learner: Learner) -> None:
    """Write a checkpoint with its replay; a full disk costs the checkpoint, not the run, unless it ends a phase."""
    finished = learner.step >= learner.task.config.total_steps  # then nobody samples any more
    state = learner.state_dict()
    try:
        manifest = {"written": [], "segments": []} if finished else store.save(learner.replay)
    except OSError as error:
        if learner.step >= learner.task.ends[learner.phase]:
            raise TrainingError(f"no room for the replay in {store.folder}: {error.strerror or error}") from error
        log.warning("no checkpoint at step %d in %s: %s", learner.step, run.folder, error.strerror or error)
        run.postpone()
        return
    if run.checkpoint(learner.step, {**state, "replay": manifest}):
        store.committed(manifest, keep=1 if finished else run.keep)


def load_replay(config: DictConfig, store: RingStore, learner: Learner, state: dict[str, Any]) -> None:
    """Fill the replay; a run that begins with a shared first phase takes its segments from there."""
    if state["step"] < config.total_steps:
        shared = [Path(state["origin"]) / "replay"] if "origin" in state else []
        store.load(learner.replay, state["replay"], shared)


if __name__ == "__main__":
    run_program(main, "dqn")
