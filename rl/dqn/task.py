"""What is fixed before the first step of a DQN run: options, environment, network, phases."""

import contextlib
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import torch
from omegaconf import MISSING, DictConfig, OmegaConf
from torch import nn

from fire_core.methods import Method, Net
from fire_core.ranges import Count, Positive, Share, Width, one_of, within
from fire_core.triggers import Trigger
from harness.config.build import build
from harness.config.checks import Group, OptionalGroup, check_method, check_optimizer, check_options
from harness.config.config import Trunk, autocast, resolve_device, set_up_torch
from harness.config.errors import ConfigError
from harness.config.memory import check_fits, check_network_fits
from harness.config.tables import register
from harness.config.trigger import acts_at_boundaries, build_trigger, check_trigger
from harness.run.identity import identity, without
from harness.training import seeding
from harness.training.learner import check_learner
from harness.training.plasticity import LEVELS
from rl.common.boundary import METRICS, Boundary, check_boundary
from rl.common.continual import ContinualControl, check_acts
from rl.common.phases import Phase, split
from rl.dqn.changing import Changing
from rl.dqn.episodes import Episodes
from rl.dqn.frames import FrameReplay

Envs = Annotated[int, within(1, 1024)]  # environments at once


@dataclass
class Epsilon:
    """Exploration: from `start` linearly to `end` within this fraction of all steps, after `learning_starts`."""

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
    """How often, for how many agent steps, how greedily and in how many environments at once."""

    every: Count = MISSING
    steps: Count = MISSING
    num_envs: Envs = 8
    epsilon: Share = 0.001
    episodes: Envs | None = None  # so many whole ones, whatever their length; null: those that end within `steps`


@dataclass
class DQNBoundary(Boundary):
    """What restarts at a boundary."""

    target: Annotated[str, one_of("copy", "keep", "act", "follow")] = MISSING


@dataclass
class DQNConfig(Trunk):
    """Options of `rl.dqn`; `conf/dqn.yaml` fills them in. Steps are the agent's (4 frames), of all environments."""

    program: Annotated[str, one_of("dqn")] = "dqn"
    method: Group = MISSING
    env: Group = MISSING
    model: Group = MISSING
    optimizer: Group = MISSING
    benchmark: OptionalGroup = None  # a stream of tasks; null: two halves in one environment
    num_envs: Envs = 4
    total_steps: Count = MISSING
    midpoint: Count = MISSING  # where the method acts
    updates_per_step: Annotated[float, within(0, 1000, open_low=True)] = 1.0
    learning_starts: Count = MISSING
    target_every: Count = MISSING  # steps between two copies to the target network
    batch_size: Width = 32
    lr: Positive = 6.25e-5
    gamma: Share = 0.99
    reward_clip: bool = True  # learn from the signs of rewards; returns are reported raw
    on_nan: Annotated[str, one_of("stop")] = "stop"
    # Each environment draws its own exploration, or shared: one draw for all, as in the reference.
    exploration: Annotated[str, one_of("each", "shared")] = "each"
    epsilon: Epsilon = field(default_factory=Epsilon)
    replay: Replay = field(default_factory=Replay)
    boundary: DQNBoundary = field(default_factory=DQNBoundary)
    eval: Evaluation = field(default_factory=Evaluation)
    log_every: Count = MISSING  # steps between two rows; an epoch for methods that count in those
    metrics: Annotated[str, one_of(*LEVELS)] = "cheap"  # of plasticity at the midpoint
    precision: Annotated[str, one_of("float32", "bfloat16")] = "float32"  # bfloat16: autocast
    memory_format: Annotated[str, one_of("channels_last", "contiguous")] = "channels_last"  # of filters
    # reduce-overhead: CUDA graphs.
    compile: Annotated[str, one_of("off", "default", "reduce-overhead", "max-autotune")] = "off"


GROUPS = ("scale", "cache", "budget/dqn", "budget/continual", "budget/exceptions", "tuned/dqn", "boundary")
register("dqn", DQNConfig, *GROUPS, presets=("fig4a", "agents"), envs=("dqn",))


@dataclass
class Task:
    """What is fixed before the first step; everything else is a `Learner`."""

    config: DQNConfig  # plain, as a look into a DictConfig takes as long as a small operation
    device: torch.device
    replay_device: torch.device
    actions: int
    frame: tuple[int, ...]
    dtype: torch.dtype
    stack: int
    phases: list[Phase]
    model: nn.Module  # the Q-network at its initial weights; it and the method are not trained: learners take copies
    method: Method
    trigger: Trigger | None  # never asked either
    benchmark: ContinualControl | None

    @classmethod
    def from_config(cls, config: DictConfig) -> "Task":
        """Check the options, build network and method; nothing is written.

        Raises:
            ConfigError: an option is out of its range, or these things do not fit together or into memory.
        """
        check_options(config)
        benchmark = build_benchmark(config)
        if benchmark is None:
            check_schedule(config)
            phases = split(config.midpoint, config.total_steps)
        else:
            phases = benchmark.phases("total_steps", config.total_steps)
            check_task_length(config)
        device = resolve_device(config.device)
        set_up_torch(device, config.threads, config.deterministic)
        replay_device = device if config.replay.device == "auto" else resolve_device(config.replay.device)
        options = OmegaConf.to_object(config)
        assert isinstance(options, DQNConfig)
        probe = make_env(options, 1, "check")
        emulator = probe.emulator
        probe.close()
        method = build("method", config.method, Method)
        check_boundary(method, config.method.name, optimizer=config.boundary.optimizer, target=config.boundary.target)
        observation = (emulator.stack, *emulator.frame)
        network = f"model={config.model.name}"
        check_network_fits(network, lambda: build_network(options, emulator.actions, observation), device)
        seeding.seed_everything(seeding.derive(config.seed, "init"))
        task = cls(
            options,
            device,
            replay_device,
            emulator.actions,
            emulator.frame,
            emulator.dtype,
            emulator.stack,
            phases,
            build_network(options, emulator.actions, observation),
            method,
            build_trigger(options.trigger),
            benchmark,
        )
        if config.replay.capacity < config.num_envs * (task.stack + 2):
            raise ConfigError(f"replay.capacity={config.replay.capacity} is too small for num_envs={config.num_envs}")
        each = FrameReplay.bytes_each(task.frame, task.dtype)
        check_fits("replay.capacity", config.replay.capacity, each, replay_device)
        net, name = Net({"q": task.model}, {}), config.method.name
        check_method(method, net, name=name, network=network)
        check_acts(benchmark, method, name, acts_at_boundaries(options.trigger))
        check_trigger(
            options.trigger,
            task.trigger,
            method,
            net,
            name=name,
            metrics=METRICS,
            after=task.steps_before_trigger,
            total_steps=task.total_steps,
            restarts=options.boundary.restarts_networks,
        )
        if not acts_at_boundaries(options.trigger) and method.overrides("optimizer"):
            raise ConfigError(
                f"method={name} brings an optimizer of its own at the midpoint: it needs trigger=boundary"
            )
        check_optimizer(config.optimizer)
        return task

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise a ValueError for a state whose networks are others."""
        check_learner(state, {"q": self.model}, self.method, self.trigger, self.trigger is not None, state["step"])

    def identity(self) -> dict[str, Any]:
        """What shapes the run's numbers."""
        what = identity(asdict(self.config))
        if self.config.eval.episodes is None:  # as before there was the option
            what["eval"] = without(what["eval"], ("episodes",))
        return what if self.benchmark else without(what, ("benchmark",))  # as before there were streams

    def first_phase_identity(self) -> dict[str, Any] | None:
        """The part of it that shapes the first phase: methods act from the midpoint on, and are measured there.

        With a trigger, or within the tasks of a stream, they may act from the start, and nothing is shared.
        """
        shared = self.trigger is None and not self.method_acts_in(0)
        return without(self.identity(), ("method", "boundary", "metrics", "trigger")) if shared else None

    @property
    def headline(self) -> str:
        """The number of the summary that is shown and returned."""
        return "eval/return" if self.benchmark is None else "task/return"

    @property
    def total_steps(self) -> int:
        """Agent steps of the whole run, over all environments."""
        return self.phases[-1].end

    @property
    def steps_before_trigger(self) -> int:
        """Agent steps before the first with updates, about which a trigger is asked first."""
        return (self.config.learning_starts // self.config.num_envs + 1) * self.config.num_envs

    def method_acts_in(self, index: int) -> bool:
        """Whether the method shapes what happens within phase `index`; the first half is shared by all methods."""
        return self.method.acts_within_phases and (index > 0 or self.benchmark is not None)

    @property
    def knows_boundaries(self) -> bool:
        """Whether the agent is told where each task of a stream starts."""
        return self.benchmark is not None and self.benchmark.known

    @property
    def restarts_at_boundaries(self) -> bool:
        """Whether `boundary` applies between two phases: at the midpoint if methods act there, and at known tasks."""
        return acts_at_boundaries(self.config.trigger) if self.benchmark is None else self.benchmark.known

    @property
    def empties_replay(self) -> bool:
        """Whether each phase starts with an empty replay, so that learning starts anew."""
        return self.restarts_at_boundaries and self.config.boundary.replay == "new"

    def new_replay(self) -> FrameReplay:
        """An empty replay."""
        config = self.config
        return FrameReplay(
            config.replay.capacity, config.num_envs, self.frame, self.dtype, self.stack, self.replay_device
        )

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """bfloat16 where it is asked for."""
        return autocast(self.device, self.config.precision)


def check_schedule(config: DictConfig) -> None:
    """Whether learning starts and the midpoint comes when they can.

    Raises:
        ConfigError: with the option and what it accepts.
    """
    if config.midpoint >= config.total_steps:
        raise ConfigError(f"midpoint={config.midpoint} must come before total_steps={config.total_steps}")
    if -(-config.midpoint // config.num_envs) * config.num_envs >= config.total_steps:
        raise ConfigError(
            f"midpoint={config.midpoint} in steps of num_envs={config.num_envs} must come before "
            f"total_steps={config.total_steps}"
        )
    if config.learning_starts >= config.midpoint - config.num_envs:
        raise ConfigError(
            f"learning_starts={config.learning_starts} must come before midpoint={config.midpoint}, by more than "
            f"num_envs={config.num_envs}"
        )
    if config.learning_starts < config.num_envs:
        raise ConfigError(f"learning_starts must be at least num_envs={config.num_envs}, got {config.learning_starts}")


def check_task_length(config: DictConfig) -> None:
    """Whether learning starts within each task.

    Raises:
        ConfigError: with the option and what it accepts.
    """
    steps = config.benchmark.steps
    if steps % config.num_envs:
        raise ConfigError(f"benchmark.steps={steps} must be a multiple of num_envs={config.num_envs}")
    if not config.num_envs <= config.learning_starts < steps - config.num_envs:
        raise ConfigError(
            f"learning_starts={config.learning_starts} must be at least num_envs={config.num_envs} and less than "
            f"benchmark.steps={steps} less num_envs"
        )


def build_benchmark(config: DQNConfig | DictConfig) -> ContinualControl | None:
    """The stream of tasks of `benchmark=`; None: there is none, as in runs of before there were streams."""
    node = getattr(config, "benchmark", None)
    found: ContinualControl | None = None if node is None else build("benchmark", node, ContinualControl)
    return found


def build_network(config: DQNConfig | DictConfig, actions: int, observation: tuple[int, ...]) -> nn.Module:
    """The Q-network of `model=` at fresh weights, on the CPU."""
    options = {key: value for key, value in config.model.items() if key != "layout"}
    network: nn.Module = build("model", options, nn.Module, actions=actions, observation=observation)
    if config.memory_format == "channels_last":
        network.to(memory_format=torch.channels_last)
    return network


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
    return Episodes(emulator, config.seed, purpose, several[0].sticky, several[0].life_loss)
