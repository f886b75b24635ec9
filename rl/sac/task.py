"""What is fixed before the first step of a SAC run: options, the task, sizes, how many steps."""

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Any

import torch
from omegaconf import MISSING, DictConfig, OmegaConf

from fire_core.harness.options.build import build
from fire_core.harness.options.cli import CONF
from fire_core.harness.options.config import Trunk, resolve_device, set_up_torch
from fire_core.harness.options.errors import ConfigError
from fire_core.harness.options.tables import register
from fire_core.harness.run.identity import identity, without
from fire_core.harness.training import seeding
from fire_core.harness.training.plasticity import LEVELS
from fire_core.methods import Method, Net
from rl.common.boundary import check_boundary
from rl.common.memory import check_fits
from rl.sac.control import Control, Worker, time_limit
from rl.sac.networks import Actor, Critics, Networks
from rl.sac.update import Temperature, Update, adamw, discount


@dataclass
class Boundary:
    """What starts anew at the midpoint, beside what the method does to the weights of actor and critics."""

    optimizer: str = "new"  # new, forget (what the method changed), keep
    temperature: str = "keep"  # new, keep
    target: str = "keep"  # copy (of the critics as the method left them), keep
    statistics: str = "keep"  # of observations: new, keep


@dataclass
class SacConfig(Trunk):
    """Options of `rl.sac`; `conf/sac.yaml` fills them in."""

    program: str = "sac"
    method: Any = MISSING
    env: Any = MISSING
    networks: Any = MISSING
    boundary: Boundary = field(default_factory=Boundary)
    env_steps: int = MISSING  # of the whole run, over all environments, repeats counted
    num_envs: int = 1
    random_steps: int = 5000  # decisions taken at random, in each run's beginning; then learning begins
    updates: int = 2  # for each decision (of all environments together)
    batch_size: int = 256
    replay_size: int = 1_000_000
    lr: float = 1e-4
    weight_decay: float = 1e-2
    temperature: float = 0.01  # at the start
    target_entropy: float = -0.5  # times the number of actions
    gamma: float | None = None  # null: from the episodes' length in decisions
    tau: float = 0.005
    normalize_observations: bool = True
    eval_every: int = MISSING  # environment steps
    eval_episodes: int = 10
    metrics: str = "cheap"  # of plasticity at the midpoint: off, cheap, full
    precision: str = "float32"  # float32, bfloat16 (within residual blocks)
    compile: bool | None = None  # torch.compile the update; null: on a GPU
    cuda_graph: bool | None = None  # replay the update as one CUDA graph; null: on a GPU


CHOICES = {
    "boundary.optimizer": ("new", "forget", "keep"),
    "boundary.temperature": ("new", "keep"),
    "boundary.target": ("copy", "keep"),
    "boundary.statistics": ("new", "keep"),
    "metrics": LEVELS,
    "precision": ("float32", "bfloat16"),
    "on_nan": ("stop",),
}
AT_LEAST = {"env_steps": 1, "num_envs": 1, "random_steps": 1, "updates": 1, "batch_size": 1, "replay_size": 1}
AT_LEAST |= {"eval_every": 1, "eval_episodes": 1}
register("sac", SacConfig, "scale", "budget/sac", "budget/sac_networks", "tuned/sac")


@dataclass
class Task:
    """What is fixed before the first step; everything else is a `Learner`."""

    config: DictConfig
    device: torch.device
    control: Control
    networks: Networks
    observations: int
    actions: int
    gamma: float
    phase_ends: list[int]  # decisions (of all environments together) after which each phase ends

    @classmethod
    def from_config(cls, config: DictConfig) -> "Task":
        """Check the options; nothing is written.

        Raises:
            ConfigError: an option is out of its range, a package is absent, or the method cannot work here.
        """
        check(config)
        device = resolve_device(config.device)
        set_up_torch(device, config.threads, config.deterministic)
        if "suite" not in config.env:
            tasks = sorted(f.stem for f in (CONF / "env").glob("*.yaml") if "rl.sac.control." in f.read_text())
            raise ConfigError(f"env={config.env.name} is no task for rl.sac; accepted: {', '.join(tasks)}")
        control: Control = build("env", config.env)
        networks: Networks = build("networks", config.networks)
        env = control.make()
        try:
            sizes = int(env.observation_space.shape[0]), int(env.action_space.shape[0])
            gamma = discount(time_limit(env) / control.action_repeat) if config.gamma is None else config.gamma
        finally:
            env.close()
        decisions = config.env_steps // (control.action_repeat * config.num_envs)
        if decisions // 2 <= config.random_steps // config.num_envs:
            raise ConfigError(
                f"env_steps={config.env_steps} are {decisions} decisions; the first half must be more than "
                f"random_steps={config.random_steps}"
            )
        check_fits("replay_size", config.replay_size, 4 * (2 * sizes[0] + sizes[1] + 2), device)
        networks = dataclasses.replace(networks, bfloat16=config.precision == "bfloat16")
        task = cls(config, device, control, networks, *sizes, gamma, [decisions // 2, decisions])
        check_method(build("method", config.method), task)
        return task

    @property
    def total_steps(self) -> int:
        """Decisions of the whole run."""
        return self.phase_ends[-1]

    def identity(self) -> dict[str, Any]:
        """What shapes the run's numbers."""
        options: Any = OmegaConf.to_container(self.config, resolve=True)
        return identity(options)

    def first_phase_identity(self) -> dict[str, Any] | None:
        """The part of it that shapes the first half: methods, what restarts and what is measured come after it."""
        later = {"method", "boundary", "metrics"} | ({"cuda_graph"} if self.device.type == "cpu" else set())
        return without(self.identity(), later)

    @property
    def repeat(self) -> int:
        """Environment steps for each decision of all environments together."""
        return int(self.control.action_repeat * self.config.num_envs)

    def actor(self) -> Actor:
        """A new actor."""
        return self.networks.actor(self.observations, self.actions).to(self.device)

    def critics(self) -> Critics:
        """New critics: two where the task asks for clipped double Q."""
        return self.networks.critics(self.observations, self.actions, 2 if self.control.twin else 1).to(self.device)

    def agent(self, net: Net, target: Critics, temperature: Temperature) -> Update:
        """The update of these networks, with new optimizers."""
        config = self.config
        actor, critic = net.modules["actor"], net.modules["critic"]
        assert isinstance(actor, Actor)
        assert isinstance(critic, Critics)
        optimizers = {
            "actor": adamw(actor.parameters(), config.lr, config.weight_decay),
            "critic": adamw(critic.parameters(), config.lr, config.weight_decay),
            "temperature": adamw(temperature.parameters(), config.lr, 0.0),
        }
        entropy = config.target_entropy * self.actions
        return Update(actor, critic, target, temperature, optimizers, self.gamma, config.tau, entropy)

    @functools.cached_property
    def judges(self) -> list[Worker]:
        """Environments for evaluation; their episodes are the same each time."""
        seeds = [seeding.derive(self.config.seed, "evaluation", i) for i in range(self.config.eval_episodes)]
        return [Worker(self.control, seed) for seed in seeds]


def check(config: DictConfig) -> None:
    """Look at single options.

    Raises:
        ConfigError: one is out of its range.
    """
    for option, least in AT_LEAST.items():
        if config[option] < least:
            raise ConfigError(f"{option} must be at least {least}, got {config[option]}")
    for option in ("lr", "temperature", "tau"):
        if not config[option] > 0:
            raise ConfigError(f"{option} must be positive, got {config[option]}")
    if config.tau > 1:
        raise ConfigError(f"tau must be in (0, 1], got {config.tau}")
    if config.weight_decay < 0:
        raise ConfigError(f"weight_decay must be at least 0, got {config.weight_decay}")
    if config.checkpoint.keep < 1:
        raise ConfigError(f"checkpoint.keep must be at least 1, got {config.checkpoint.keep}")
    if config.cuda_graph and resolve_device(config.device).type != "cuda":
        raise ConfigError("cuda_graph=true needs device=cuda")
    if config.gamma is not None and not 0 <= config.gamma < 1:
        raise ConfigError(f"gamma must be in [0, 1), got {config.gamma}")
    for option in ("batch_size", "num_envs"):
        if config.replay_size < config[option]:
            raise ConfigError(f"replay_size={config.replay_size} must be at least {option}={config[option]}")
    for option, accepted in CHOICES.items():
        group, _, key = option.rpartition(".")
        value = config[group][key] if group else config[key]
        if value not in accepted:
            raise ConfigError(f"{option}={value} is unknown; accepted: {', '.join(accepted)}")


def check_method(method: Method, task: Task) -> None:
    """See whether the method can work in this trainer.

    Raises:
        ConfigError: it chooses the optimizer, acts after every step, or wants a loss between two data sets.
    """
    name = task.config.method.name
    for hook in ("optimizer", "watch", "after_step"):
        if getattr(type(method), hook) is not getattr(Method, hook):
            raise ConfigError(
                f"method={name} works at every optimizer step ({hook}), which rl.sac has no place for; it runs "
                "base, full_reset, snp, pi, fire, fire_exact, redo, l2init and parseval"
            )
    check_boundary(method, name, optimizer=task.config.boundary.optimizer, target=task.config.boundary.target)
    plain = Net({"actor": task.actor(), "critic": task.networks.critics(task.observations, task.actions, 0)}, {}, "sac")
    try:
        method.check(plain)
    except ValueError as error:
        raise ConfigError(f"method={name} cannot work with networks={task.config.networks.name}: {error}") from error
