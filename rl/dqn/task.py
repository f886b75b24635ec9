"""Everything about a DQN run that is fixed before its first step: options, environments, network, phases."""

import contextlib
from dataclasses import dataclass, field
from typing import Annotated

import torch
from omegaconf import MISSING, DictConfig, OmegaConf
from torch import nn

from fire_core.methods import Net
from fire_core.methods.protocol import Weights, tensors_of
from fire_core.ranges import Count, Positive, Share, Width, one_of, within
from harness.config.build import build
from harness.config.checks import Group, check_optimizer, check_options, check_outputs
from harness.config.config import autocast, resolve_device, set_up_torch
from harness.config.errors import ConfigError, first_line
from harness.config.given import idle_beside, idle_layout, refuse_idle
from harness.config.groups import register
from harness.config.memory import check_fits
from harness.training import seeding
from rl.common.boundary import Boundary
from rl.common.continual import ContinualControl, Phase, fill_lengths, split
from rl.common.task import AgentConfig, AgentTask, build_benchmark, build_method, idle_beside_sequence
from rl.dqn.changing import Changing
from rl.dqn.episodes import Emulator, Episodes
from rl.dqn.frames import FrameReplay

Envs = Annotated[int, within(1, 1024)]  # number of environments that step together


@dataclass
class Epsilon:
    """Exploration: the chance of a random action goes linearly from `start` to `end` after `learning_starts`.

    It takes this fraction of all steps. In a stream it takes this fraction of each task's steps; if boundaries are
    hidden, of the first task's alone.
    """

    start: Share = 1.0
    end: Share = 0.01
    fraction: Annotated[float, within(0, 1, open_low=True)] = 0.1


@dataclass
class Replay:
    """The frame replay: its number of rows (an episode of T transitions takes T + 1), and where they are stored."""

    capacity: Count = MISSING
    device: str = "auto"  # auto (that of the networks), cpu, cuda
    segment: Count = 1024  # rows of a segment on disk


@dataclass
class Evaluation:
    """How often, how greedily and in how many environments the agent is evaluated.

    Complete episodes count: those that begin within `steps` agent steps, or a number of `episodes`.
    """

    every: Count = MISSING
    steps: Count = MISSING
    num_envs: Envs = 8
    epsilon: Share = 0.001
    episodes: Envs | None = None  # number of episodes, one in each environment; null counts by `steps`


@dataclass
class DQNBoundary(Boundary):
    """What restarts at a boundary; conf/boundary describes the values."""

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
    tuned: str = "auto"  # the setting whose tuned values the method takes, a file of conf/tuned


register("dqn", DQNConfig)


@dataclass(kw_only=True)
class Task(AgentTask):
    """Everything that is fixed before the first step; what changes while a run trains is in the `Learner`.

    Attributes:
        config: the options, see `AgentTask`.
        replay_device: device on which frames are stored.
        emulator: a closed emulator, which says the number of actions and the shape of frames.
        model: the Q-network at its initial weights. A template: learners copy it.
    """

    config: DQNConfig
    replay_device: torch.device
    emulator: Emulator
    model: nn.Module

    @classmethod
    def from_config(cls, config: DictConfig, trains: bool = True) -> "Task":
        """Check the options, build network and method; nothing is written.

        Args:
            config: the program's options.
            trains: whether the agent will be trained. One that is only played needs no room for transitions.

        Raises:
            ConfigError: an option is out of its range, or options do not fit together or into memory.
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
            replay_device=resolve_device(config.replay.device) if trains and config.replay.device != "auto" else device,
            emulator=emulator,
            trains=trains,
            phases=phases_of(config, benchmark),
            model=build_network(options, emulator),
            method=method,
            trigger=trigger,
            benchmark=benchmark,
        )
        if benchmark is None and task.empties_replay:
            second_half = config.total_steps - config.midpoint - config.num_envs
            if config.learning_starts >= second_half:
                raise ConfigError(
                    f"learning_starts={config.learning_starts} must be less than {second_half} after the midpoint too"
                )
        if config.replay.capacity < config.num_envs * (emulator.stack + 2):
            raise ConfigError(f"replay.capacity={config.replay.capacity} is too small for num_envs={config.num_envs}")
        if trains:
            bytes_of_row = FrameReplay.bytes_each(emulator.frame, emulator.dtype)
            check_fits("replay.capacity", config.replay.capacity, bytes_of_row, task.replay_device)
        task.check_network(network)
        task.check_method(Net({"q": task.model}, {}), network)
        idle = {} if task.reads_optimizer else idle_beside(method, config)
        if config.eval.episodes is not None:
            idle |= dict.fromkeys(("eval.steps", "eval.num_envs"), f"beside eval.episodes={config.eval.episodes}")
        if benchmark is not None:
            idle |= {"midpoint": "in a stream of tasks"} | idle_beside_sequence(config, benchmark)
        if config.boundary.target != "follow":  # which copies the weights of the layout
            idle |= idle_layout(config, method, trigger)
        if config.num_envs == 1:
            idle["exploration"] = "with num_envs=1, which has a draw of its own anyway"
        if config.env.get("sticky") == 0:
            idle["env.sticky_per"] = "with env.sticky=0"
        refuse_idle(idle)
        return task

    def check_network(self, network: str) -> None:
        """Check that the network takes an observation, and returns a value for each action.

        Args:
            network: how messages call the network: `model=` and its name.

        Raises:
            ConfigError: it does not, with the network's own error where there is one.
        """
        shape, actions = (1, self.emulator.stack, *self.emulator.frame), self.emulator.actions
        try:
            with torch.no_grad(), torch.random.fork_rng([]), Net({"q": self.model}, {}).mode(training=False):
                values = self.model(torch.zeros(shape, dtype=self.emulator.dtype))
        except Exception as error:
            raise ConfigError(f"{network} cannot take observations {shape}: {first_line(error)}") from error
        check_outputs(network, values, (1, actions), "a value for each action")

    @property
    def reads_optimizer(self) -> bool:
        """Whether some phase is trained by `optimizer=` and `lr=`, and not by an optimizer that the method brings."""
        return not (self.method_optimizes(0) and self.method.overrides("optimizer"))

    @property
    def steps_before_trigger(self) -> int:
        """Steps before the first step with updates, which is the first that the trigger is asked about."""
        return (self.config.learning_starts // self.config.num_envs + 1) * self.config.num_envs

    def new_networks(self, *seed_names: object) -> dict[str, Weights]:
        """Return the weights of a Q-network built as at the start of the run, but from a seed of these names."""
        with seeding.seeded(self.config.seed, "init", *seed_names):
            return {"q": tensors_of(build_network(self.config, self.emulator))}

    def new_replay(self) -> FrameReplay:
        """Return an empty replay; of a single row for each environment if the agent is only played."""
        config, emulator = self.config, self.emulator
        capacity = config.replay.capacity if self.trains else config.num_envs
        return FrameReplay(
            capacity, config.num_envs, emulator.frame, emulator.dtype, emulator.stack, self.replay_device
        )

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the network computes in the precision of `precision=`."""
        return autocast(self.device, self.config.precision)


def phases_of(config: DictConfig, benchmark: ContinualControl | None) -> list[Phase]:
    """Return the two halves of a run, or the tasks of a stream."""
    if benchmark is None:
        return split(config.midpoint, config.total_steps)
    return benchmark.phases("total_steps", config.total_steps)


def check_schedule(config: DictConfig, benchmark: ContinualControl | None) -> None:
    """Check that phases end where all environments have made a step, and that learning starts within each.

    Raises:
        ConfigError: they do not; with the option and what it accepts.
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
    """Build the Q-network of `model=` on the CPU for the observations and actions of an emulator."""
    options = {key: value for key, value in config.model.items() if key != "layout"}
    sizes = {"actions": emulator.actions, "observation": (emulator.stack, *emulator.frame)}
    network: nn.Module = build("model", options, nn.Module, **sizes)
    if any(parameter.dim() == 5 for parameter in network.parameters()):  # of a Conv3d, which has no such layout
        return network
    return network.to(memory_format=torch.channels_last)


def make_env(config: DQNConfig | DictConfig, envs: int, purpose: str) -> Episodes:
    """Make `envs` environments of `env=`, in a stream of all its environments.

    Args:
        config: the program's options.
        envs: number of environments.
        purpose: name of their stream of seeds, see `Episodes`.
    """

    def make(**game: str) -> Episodes:
        options = {**config.env, **game}
        episodes: Episodes = build("env", options, Episodes, envs=envs, seed=config.seed, purpose=purpose)
        return episodes

    benchmark = build_benchmark(config)
    if benchmark is None:
        return make()
    in_turn = [make(game=name) for name in benchmark.sequence] if benchmark.sequence else [make()]
    names = benchmark.sequence or [str(config.env["name"])]
    emulator = Changing(benchmark, names, [episodes.emulator for episodes in in_turn], config.seed)
    return Episodes(emulator, config.seed, purpose, in_turn[0].sticky)
