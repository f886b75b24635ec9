"""What is fixed before the first step of a DQN run: options, environment, network, phases."""

import contextlib
from dataclasses import dataclass, field
from typing import Annotated

import torch
from omegaconf import MISSING, DictConfig, OmegaConf
from torch import nn

from fire_core.methods import Net
from fire_core.methods.protocol import Weights
from fire_core.ranges import Count, Positive, Share, Width, one_of, within
from harness.config.build import build
from harness.config.checks import Group, check_optimizer, check_options
from harness.config.config import autocast, resolve_device, set_up_torch
from harness.config.errors import ConfigError
from harness.config.given import idle_beside, refuse_idle
from harness.config.groups import register
from harness.config.memory import check_fits
from harness.training import seeding
from rl.common.boundary import Boundary
from rl.common.continual import ContinualControl, Phase, fill_lengths, split
from rl.common.task import AgentConfig, AgentTask, build_benchmark, build_method
from rl.dqn.changing import Changing
from rl.dqn.episodes import Emulator, Episodes
from rl.dqn.frames import FrameReplay

Envs = Annotated[int, within(1, 1024)]  # environments at once


@dataclass
class Epsilon:
    """Exploration: from `start` linearly to `end` within this fraction of all steps, after `learning_starts`.

    In a stream, of one task's steps; where boundaries are hidden only in the first task.
    """

    start: Share = 1.0
    end: Share = 0.01
    fraction: Annotated[float, within(0, 1, open_low=True)] = 0.1


@dataclass
class Replay:
    """The frame replay: rows (an episode of T transitions takes T + 1) and where they are kept."""

    capacity: Count = MISSING
    device: str = "auto"  # auto (that of the networks), cpu, cuda
    segment: Count = 1024  # rows of a segment on disk


@dataclass
class Evaluation:
    """How often, how greedily and in how many environments at once the agent is evaluated.

    Whole episodes count: those that begin within `steps` agent steps, or `episodes` of them.
    """

    every: Count = MISSING
    steps: Count = MISSING
    num_envs: Envs = 8
    epsilon: Share = 0.001
    episodes: Envs | None = None  # so many, one in each environment; null: by `steps`


@dataclass
class DQNBoundary(Boundary):
    """What restarts at a boundary."""

    target: Annotated[str, one_of("auto", "copy", "keep", "act", "follow")] = "auto"


@dataclass
class DQNConfig(AgentConfig):
    """Options of `rl.dqn`; `conf/dqn.yaml` fills them in. Steps are the agent's (4 frames), of all environments."""

    program: Annotated[str, one_of("dqn")] = "dqn"
    model: Group = MISSING
    optimizer: Group = MISSING
    num_envs: Envs = 4
    total_steps: Count = MISSING  # of a stream 0: tasks times steps
    midpoint: Count = MISSING  # where the method acts
    updates_per_step: Annotated[float, within(0, 1000, open_low=True)] = 1.0
    learning_starts: Count = MISSING
    target_every: Count = MISSING  # steps between two copies to the target network
    batch_size: Width = 32
    lr: Positive = 6.25e-5
    gamma: Share = 0.99
    reward_clip: bool = True  # learn from the signs of rewards; returns are reported raw
    # Each environment draws its own exploration, or shared: one draw for all, as in the reference.
    exploration: Annotated[str, one_of("each", "shared")] = "each"
    epsilon: Epsilon = field(default_factory=Epsilon)
    replay: Replay = field(default_factory=Replay)
    boundary: DQNBoundary = field(default_factory=DQNBoundary)
    eval: Evaluation = field(default_factory=Evaluation)
    # Steps between two rows; an epoch for methods that count in those. Of a stream 0: a quarter of a task.
    log_every: Count = MISSING
    precision: Annotated[str, one_of("float32", "bfloat16")] = "float32"  # bfloat16: autocast
    tuned: str = "auto"  # whose tuned values the method takes: conf/tuned


register("dqn", DQNConfig)


@dataclass(kw_only=True)
class Task(AgentTask):
    """What is fixed before the first step; everything else is a `Learner`.

    Attributes:
        config: as of all tasks.
        replay_device: where frames are kept.
        emulator: closed; it tells the actions and the frames.
        model: the Q-network at its initial weights, of which learners take copies.
    """

    config: DQNConfig
    replay_device: torch.device
    emulator: Emulator
    model: nn.Module

    @classmethod
    def from_config(cls, config: DictConfig) -> "Task":
        """Check the options, build network and method; nothing is written.

        Raises:
            ConfigError: an option is out of its range, or these things do not fit together or into memory.
        """
        benchmark = build_benchmark(config)
        if benchmark is not None:
            fill_lengths(config, total_steps=benchmark.total_steps, log_every=max(1, benchmark.steps // 4))
        check_options(config)
        check_optimizer(config.optimizer)
        check_schedule(config, benchmark)
        device = resolve_device(config.device)
        set_up_torch(device, config.threads, config.deterministic)
        method, trigger = build_method(config, benchmark)
        options = OmegaConf.to_object(config)
        assert isinstance(options, DQNConfig)
        with contextlib.closing(make_env(options, 1, "check")) as probe:
            emulator = probe.emulator
        network = f"model={config.model.name}"
        seeding.seed_everything(seeding.derive(config.seed, "init"))
        task = cls(
            config=options,
            device=device,
            replay_device=device if config.replay.device == "auto" else resolve_device(config.replay.device),
            emulator=emulator,
            phases=phases_of(config, benchmark),
            model=build_network(options, emulator),
            method=method,
            trigger=trigger,
            benchmark=benchmark,
        )
        if benchmark is None and task.empties_replay:
            after = config.total_steps - config.midpoint - config.num_envs
            if config.learning_starts >= after:
                raise ConfigError(
                    f"learning_starts={config.learning_starts} must be less than {after} after the midpoint too"
                )
        if config.replay.capacity < config.num_envs * (emulator.stack + 2):
            raise ConfigError(f"replay.capacity={config.replay.capacity} is too small for num_envs={config.num_envs}")
        each = FrameReplay.bytes_each(emulator.frame, emulator.dtype)
        check_fits("replay.capacity", config.replay.capacity, each, task.replay_device)
        task.check_method(Net({"q": task.model}, {}), network)
        idle = idle_beside(method, config) if task.method_optimizes(0) else {}
        if config.eval.episodes is not None:
            idle |= dict.fromkeys(("eval.steps", "eval.num_envs"), f"beside eval.episodes={config.eval.episodes}")
        refuse_idle(idle | ({} if benchmark is None else {"midpoint": "in a stream of tasks"}))
        return task

    @property
    def steps_before_trigger(self) -> int:
        """Steps before the first with updates, about which a trigger is asked first."""
        return (self.config.learning_starts // self.config.num_envs + 1) * self.config.num_envs

    def new_networks(self, *moment: object) -> dict[str, Weights]:
        """The weights of a Q-network built as at the start of the run, from a seed of this moment."""
        with seeding.seeded(self.config.seed, "init", *moment):
            return {"q": build_network(self.config, self.emulator).state_dict()}

    def new_replay(self) -> FrameReplay:
        """An empty replay."""
        config, seen = self.config, self.emulator
        return FrameReplay(
            config.replay.capacity, config.num_envs, seen.frame, seen.dtype, seen.stack, self.replay_device
        )

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """bfloat16 where it is asked for."""
        return autocast(self.device, self.config.precision)


def phases_of(config: DictConfig, benchmark: ContinualControl | None) -> list[Phase]:
    """Two halves, or the tasks of a stream."""
    if benchmark is None:
        return split(config.midpoint, config.total_steps)
    return benchmark.phases("total_steps", config.total_steps)


def check_schedule(config: DictConfig, benchmark: ContinualControl | None) -> None:
    """Whether phases end where all environments have made a step, and learning starts within each.

    Raises:
        ConfigError: with the option and what it accepts.
    """
    envs, waits = config.num_envs, config.learning_starts
    if benchmark is None:
        option, length = "midpoint", config.midpoint
        if -(-length // envs) * envs >= config.total_steps:
            raise ConfigError(
                f"midpoint={length} in steps of num_envs={envs} must come before total_steps={config.total_steps}"
            )
    else:
        option, length = "benchmark.steps", benchmark.steps
        if length % envs:
            raise ConfigError(f"benchmark.steps={length} must be a multiple of num_envs={envs}")
    if not envs <= waits < length - envs:
        raise ConfigError(
            f"learning_starts={waits} must be at least num_envs={envs} and less than {option}={length} less num_envs"
        )


def build_network(config: DQNConfig | DictConfig, emulator: Emulator) -> nn.Module:
    """The Q-network of `model=` at fresh weights, on the CPU, for the observations and actions of an emulator."""
    options = {key: value for key, value in config.model.items() if key != "layout"}
    sizes = {"actions": emulator.actions, "observation": (emulator.stack, *emulator.frame)}
    network: nn.Module = build("model", options, nn.Module, **sizes)
    return network.to(memory_format=torch.channels_last)


def make_env(config: DQNConfig | DictConfig, envs: int, purpose: str) -> Episodes:
    """`envs` environments of `env=`, whose random numbers are those of this purpose."""

    def one(**game: str) -> Episodes:
        made: Episodes = build("env", {**config.env, **game}, Episodes, envs=envs, seed=config.seed, purpose=purpose)
        return made

    benchmark = build_benchmark(config)
    if benchmark is None:
        return one()
    several = [one(game=name) for name in benchmark.sequence] if benchmark.sequence else [one()]
    names = benchmark.sequence or [str(config.env["name"])]
    emulator = Changing(benchmark, names, [episodes.emulator for episodes in several], config.seed)
    return Episodes(emulator, config.seed, purpose, several[0].sticky)
