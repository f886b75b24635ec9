"""What is fixed before the first step of a DQN run: options, checks, sizes."""

from dataclasses import dataclass, field
from typing import Any

import torch
from omegaconf import MISSING, DictConfig, OmegaConf
from torch import nn

from fire_core.harness.options.build import build
from fire_core.harness.options.cli import CONF
from fire_core.harness.options.config import Trunk, resolve_device, set_up_torch
from fire_core.harness.options.errors import ConfigError
from fire_core.harness.options.tables import register
from fire_core.harness.run.identity import identity, without
from fire_core.harness.training.plasticity import LEVELS
from fire_core.methods import Net
from rl.common.boundary import check_boundary
from rl.common.memory import check_fits
from rl.dqn.episodes import Episodes
from rl.dqn.frames import FrameReplay


@dataclass
class Epsilon:
    """Exploration: from `start` linearly to `end` within this fraction of all steps, after `learning_starts`."""

    start: float = 1.0
    end: float = 0.01
    fraction: float = 0.1


@dataclass
class Replay:
    """The frame replay: rows (an episode of T transitions takes T + 1) and where they are kept."""

    capacity: int = MISSING
    device: str = "auto"  # auto (that of the networks), cpu, cuda
    segment: int = 1024  # rows of a segment on disk


@dataclass
class Evaluation:
    """How often, for how many agent steps, how greedily and in how many environments at once."""

    every: int = MISSING
    steps: int = MISSING
    num_envs: int = 8
    epsilon: float = 0.001


@dataclass
class Boundary:
    """What becomes of the optimizer and the target network at the midpoint, beside what the method does to weights."""

    optimizer: str = "keep"  # keep, forget (what the method changed), new
    target: str = "act"  # act, follow (act, then take over what was projected), copy (of the network), keep


@dataclass
class DQNConfig(Trunk):
    """Options of `rl.dqn`; `conf/dqn.yaml` fills them in. Steps are the agent's (4 frames), of all environments."""

    program: str = "dqn"
    method: Any = MISSING
    env: Any = MISSING
    model: Any = MISSING
    optimizer: Any = MISSING
    num_envs: int = 4
    total_steps: int = MISSING
    midpoint: int = MISSING  # where the method acts
    updates_per_step: float = 1.0
    learning_starts: int = MISSING
    target_every: int = MISSING  # steps between two copies to the target network
    batch_size: int = 32
    lr: float = 6.25e-5
    gamma: float = 0.99
    reward_clip: bool = True  # learn from the signs of rewards; returns are reported raw
    exploration: str = "each"  # each environment explores by itself, or shared: all at once, as in the reference
    epsilon: Epsilon = field(default_factory=Epsilon)
    replay: Replay = field(default_factory=Replay)
    boundary: Boundary = field(default_factory=Boundary)
    eval: Evaluation = field(default_factory=Evaluation)
    log_every: int = MISSING  # steps between two rows; an epoch for methods that count in those
    metrics: str = "cheap"  # of plasticity at the midpoint: off, cheap, full
    precision: str = "float32"  # float32, bfloat16 (autocast)
    memory_format: str = "channels_last"  # of filters: channels_last, contiguous
    compile: str = "off"  # off, default, reduce-overhead (CUDA graphs), max-autotune


CHOICES = {
    "boundary.optimizer": ("keep", "forget", "new"),
    "boundary.target": ("act", "follow", "copy", "keep"),
    "exploration": ("each", "shared"),
    "metrics": LEVELS,
    "precision": ("float32", "bfloat16"),
    "memory_format": ("channels_last", "contiguous"),
    "compile": ("off", "default", "reduce-overhead", "max-autotune"),
    "on_nan": ("stop",),
}
POSITIVE = ("num_envs", "total_steps", "midpoint", "target_every", "batch_size", "lr", "log_every", "eval.every")
POSITIVE += ("eval.steps", "eval.num_envs", "updates_per_step", "replay.segment")
FRACTIONS = ("gamma", "epsilon.start", "epsilon.end", "epsilon.fraction", "eval.epsilon")
register("dqn", DQNConfig, "scale", "budget/dqn", "tuned/dqn")


@dataclass
class Task:
    """What is fixed before the first step; everything else is a `Learner`."""

    config: DictConfig
    device: torch.device
    replay_device: torch.device
    actions: int
    frame: tuple[int, ...]
    dtype: torch.dtype
    stack: int
    method_acts_within: bool

    @classmethod
    def from_config(cls, config: DictConfig) -> "Task":
        """Check the options; nothing is written.

        Raises:
            ConfigError: an option is out of its range, or the replay does not fit into memory.
        """
        if "game" not in config.env:
            games = sorted(f.stem for f in (CONF / "env").glob("*.yaml") if "rl.sac.control." not in f.read_text())
            raise ConfigError(f"env={config.env.name} has no discrete actions; accepted: {', '.join(games)}")
        check_options(config)
        device = resolve_device(config.device)
        set_up_torch(device, config.threads, config.deterministic)
        replay_device = device if config.replay.device == "auto" else resolve_device(config.replay.device)
        probe = make_env(config, 1, "check")
        emulator = probe.emulator
        method = build("method", config.method)
        check_boundary(method, config.method.name, **config.boundary)
        task = cls(
            config,
            device,
            replay_device,
            emulator.actions,
            emulator.frame,
            emulator.dtype,
            emulator.stack,
            method.acts_within_phases,
        )
        probe.close()
        if config.replay.capacity < config.num_envs * (task.stack + 2):
            raise ConfigError(f"replay.capacity={config.replay.capacity} is too small for num_envs={config.num_envs}")
        each = FrameReplay.bytes_each(task.frame, task.dtype)
        check_fits("replay.capacity", config.replay.capacity, each, replay_device)
        try:
            method.check(Net({"q": task.build_network()}, {}))
        except ValueError as error:
            raise ConfigError(
                f"method={config.method.name} cannot work with model={config.model.name}: {error}"
            ) from error
        build("optimizer", config.optimizer, params=[nn.Parameter(torch.zeros(1))])
        return task

    def build_network(self) -> nn.Module:
        """A Q-network at fresh weights."""
        options = {key: value for key, value in self.config.model.items() if key != "layout"}
        observation = (self.stack, *self.frame)
        network: nn.Module = build("model", options, actions=self.actions, observation=observation)
        layout = torch.channels_last if self.config.memory_format == "channels_last" else torch.contiguous_format
        return network.to(self.device, memory_format=layout)

    def build_replay(self) -> FrameReplay:
        """An empty replay."""
        config = self.config
        return FrameReplay(
            config.replay.capacity, config.num_envs, self.frame, self.dtype, self.stack, self.replay_device
        )

    def autocast(self) -> torch.autocast:
        """bfloat16 where it is asked for."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16")

    def method_acts_in(self, phase: int) -> bool:
        """Whether the method shapes what happens within `phase`: the first half is all methods' own."""
        return self.method_acts_within and phase > 0

    @property
    def total_steps(self) -> int:
        """Agent steps of the whole run."""
        return int(self.config.total_steps)

    def identity(self) -> dict[str, Any]:
        """What shapes the run's numbers."""
        options: Any = OmegaConf.to_container(self.config, resolve=True)
        return identity(options)

    def first_phase_identity(self) -> dict[str, Any] | None:
        """The part of it that shapes the first half."""
        return without(self.identity(), ("method", "boundary", "metrics"))

    @property
    def ends(self) -> tuple[int, int]:
        """The step at which each half ends."""
        return self.config.midpoint, self.config.total_steps


def check_options(config: DictConfig) -> None:
    """Whether numbers are in their ranges.

    Raises:
        ConfigError: with the option and what it accepts.
    """
    for option in POSITIVE:
        if not OmegaConf.select(config, option) > 0:
            raise ConfigError(f"{option} must be positive, got {OmegaConf.select(config, option)}")
    for option, accepted in CHOICES.items():
        if (value := OmegaConf.select(config, option)) not in accepted:
            raise ConfigError(f"{option}={value} is unknown; accepted: {', '.join(accepted)}")
    if config.midpoint >= config.total_steps:
        raise ConfigError(f"midpoint={config.midpoint} must come before total_steps={config.total_steps}")
    if config.epsilon.fraction <= 0:
        raise ConfigError(f"epsilon.fraction must be positive, got {config.epsilon.fraction}")
    if config.learning_starts >= config.midpoint:
        raise ConfigError(f"learning_starts={config.learning_starts} must come before midpoint={config.midpoint}")
    if config.learning_starts < config.num_envs:
        raise ConfigError(f"learning_starts must be at least num_envs={config.num_envs}, got {config.learning_starts}")
    for option in FRACTIONS:
        if not 0 <= OmegaConf.select(config, option) <= 1:
            raise ConfigError(f"{option} must be in [0, 1], got {OmegaConf.select(config, option)}")


def make_env(config: DictConfig, envs: int, purpose: str) -> Episodes:
    """`envs` environments of `env=`, whose random numbers are those of this purpose."""
    episodes: Episodes = build("env", config.env, envs=envs, seed=config.seed, purpose=purpose)
    return episodes
