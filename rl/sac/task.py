"""What is fixed before the first step of a SAC run: options, environment, networks, phases."""

import contextlib
import functools
from dataclasses import dataclass, field, replace
from typing import Annotated

from omegaconf import MISSING, DictConfig, OmegaConf
from torch import nn

from fire_core.methods import Net
from fire_core.methods.protocol import Weights, tensors_of
from fire_core.ranges import Count, Decay, NonNegative, Positive, Width, one_of, within
from harness.config.build import build
from harness.config.checks import Group, check_options
from harness.config.config import resolve_device, set_up_torch
from harness.config.errors import ConfigError
from harness.config.given import refuse_idle
from harness.config.groups import register
from harness.config.memory import check_fits
from harness.training import seeding
from rl.common.boundary import Boundary
from rl.common.continual import ContinualControl, Phase, fill_lengths, split
from rl.common.task import AgentConfig, AgentTask, build_benchmark, build_method, idle_beside_sequence
from rl.sac.control import Control, decisions_at_most
from rl.sac.networks import Networks
from rl.sac.workers import Tasks, Worker


@dataclass
class SacBoundary(Boundary):
    """Options of what restarts at a boundary: those of all agents, and SAC's temperature and statistics."""

    temperature: Annotated[str, one_of("auto", "new", "keep")] = "auto"
    statistics: Annotated[str, one_of("auto", "new", "keep")] = "auto"  # of observations

    @property
    def restarts_networks(self) -> bool:
        """Whether something restarts where a trigger fires, whatever the method does."""
        return super().restarts_networks or self.temperature == "new"


@dataclass
class SacConfig(AgentConfig):
    """Options of `rl.sac`; `conf/sac.yaml` fills them in."""

    program: Annotated[str, one_of("sac")] = "sac"
    networks: Group = MISSING
    boundary: SacBoundary = field(default_factory=SacBoundary)
    env_steps: Count = MISSING  # over all environments, repeats counted; of a stream 0: tasks times steps
    num_envs: Annotated[int, within(1, 1024)] = 1
    random_steps: Count = 5000  # decisions taken at random while the replay begins to fill; then learning begins
    updates: Annotated[int, within(1, 1000)] = 2  # for each decision (of all environments together)
    batch_size: Width = 256
    replay_size: Count = 1_000_000
    lr: Positive = 1e-4
    weight_decay: NonNegative = 1e-2
    temperature: Positive = 0.01  # at the start
    target_entropy: float = -0.5  # times the number of actions
    gamma: Decay | None = None  # null: from the episodes' length in decisions
    tau: Annotated[float, within(0, 1, open_low=True)] = 0.005
    normalize_observations: bool = True
    eval_every: Count = MISSING  # environment steps
    eval_episodes: Annotated[int, within(1, 1000)] = 10
    precision: Annotated[str, one_of("float32", "bfloat16")] = "float32"  # bfloat16: within residual blocks


register("sac", SacConfig)


@dataclass(kw_only=True)
class Task(AgentTask):
    """What is fixed before the first step of a SAC run; what changes is in `Learner`.

    Attributes:
        config: the run's options.
        control: the control task that `env=` names.
        observations: length of an observation; in a stream, of a padded one.
        actions: length of an action.
        gamma: discount per decision.
        networks: sizes of the networks.
        modules: a template of actor and critics at their initial weights: learners copy it.
        tasks: the environments of a stream, None without a stream.
    """

    config: SacConfig
    control: Control
    observations: int
    actions: int
    gamma: float
    networks: Networks
    modules: dict[str, nn.Module]
    tasks: Tasks | None

    @classmethod
    def from_config(cls, config: DictConfig, trains: bool = True) -> "Task":
        """Check the options, build networks and method; nothing is written.

        Args:
            config: the program's options.
            trains: whether the agent will be trained. One that is only played needs no room for transitions.

        Raises:
            ConfigError: an option is out of its range, a package is absent, or the method cannot work here.
        """
        benchmark = build_benchmark(config)
        if benchmark is not None:
            fill_lengths(config, env_steps=benchmark.total_steps)
        check_options(config)
        for option in ("batch_size", "num_envs"):
            if config.replay_size < config[option]:
                raise ConfigError(f"replay_size={config.replay_size} must be at least {option}={config[option]}")
        device = resolve_device(config.device)
        set_up_torch(device, config.threads, config.deterministic)
        control: Control = build("env", config.env, Control)
        networks: Networks = build("networks", config.networks, Networks)
        networks = replace(networks, bfloat16=config.precision == "bfloat16")
        phases = phases_of(config, benchmark, control.action_repeat)
        tasks = None if benchmark is None else Tasks(benchmark, control, config.seed)
        if tasks is None:
            with contextlib.closing(control.make()) as env:
                sizes = env.size, env.action_size
                decisions = decisions_at_most(env, control.action_repeat)
        else:
            sizes, decisions = (tasks.size, tasks.actions), tasks.decisions
        gamma = discount(decisions) if config.gamma is None else config.gamma
        if trains:
            check_fits("replay_size", config.replay_size, 4 * (2 * sizes[0] + sizes[1] + 2), device)
        method, trigger = build_method(config, benchmark)
        options = OmegaConf.to_object(config)
        assert isinstance(options, SacConfig)
        network = f"networks={config.networks.name}"
        seeding.seed_everything(seeding.derive(config.seed, "init"))
        modules = build_modules(networks, control, *sizes)
        task = cls(
            config=options,
            device=device,
            trains=trains,
            control=control,
            observations=sizes[0],
            actions=sizes[1],
            gamma=gamma,
            phases=phases,
            networks=networks,
            modules=modules,
            method=method,
            trigger=trigger,
            benchmark=benchmark,
            tasks=tasks,
        )
        task.check_method(Net(modules, {}, "sac"), network)
        idle = idle_beside_sequence(config, benchmark)
        if not config.normalize_observations:
            idle["boundary.statistics"] = "with normalize_observations=false, which reads no statistics"
        refuse_idle(idle)
        return task

    def new_networks(self, *seed_names: object) -> dict[str, Weights]:
        """Return the weights of actor and critics built as at the start of the run, but from a seed of these names."""
        with seeding.seeded(self.config.seed, "init", *seed_names):
            modules = build_modules(self.networks, self.control, self.observations, self.actions)
        return {name: tensors_of(module) for name, module in modules.items()}

    @property
    def reads_optimizer(self) -> bool:
        """Whether something is trained with `lr=`, whatever optimizer the method brings: the temperature always is."""
        return True

    @property
    def steps_before_trigger(self) -> int:
        """Decisions before the first one with updates, which is the first that the trigger is asked about."""
        return steps_before_updates(self.config)

    @property
    def eval_every(self) -> int:
        """Decisions from one row to the next."""
        envs = self.config.num_envs
        return int(max(1, self.config.eval_every // (self.control.action_repeat * envs)) * envs)

    @functools.cached_property
    def eval_envs(self) -> list[Worker]:
        """The environments for evaluation, made on first use; every evaluation plays the same episodes."""
        seeds = [seeding.derive(self.config.seed, "evaluation", i) for i in range(self.config.eval_episodes)]
        return [Worker(self.control, seed, tasks=self.tasks) for seed in seeds]

    def close(self) -> None:
        """Close the environments of evaluations, which may hold OpenGL; the next evaluation makes new ones."""
        for worker in self.__dict__.pop("eval_envs", []):
            worker.close()


def open_environment(config: DictConfig) -> None:
    """Make and close one environment, unless it is Gymnasium's, to check that its package works here.

    Raises:
        ConfigError: its package is not installed, or does not work here.
    """
    control: Control = build("env", config.env, Control)
    if control.suite != "gymnasium":
        control.make().close()


def build_modules(networks: Networks, control: Control, observations: int, actions: int) -> dict[str, nn.Module]:
    """Build `actor`, `critic0` and, for clipped double Q, `critic1` at fresh weights, on the CPU."""
    modules: dict[str, nn.Module] = {"actor": networks.actor(observations, actions)}
    for name in ("critic0", "critic1") if control.twin else ("critic0",):
        modules[name] = networks.critic(observations, actions, name)
    return modules


def discount(steps: float) -> float:
    """Return gamma for episodes of at most `steps` decisions: 1 - 5 / steps, within 0.95 and 0.995."""
    fifth = steps / 5
    return min(max((fifth - 1) / fifth, 0.95), 0.995)


def steps_before_updates(config: SacConfig | DictConfig) -> int:
    """Return the decisions before the first one with updates: whole turns of all environments."""
    turns: int = -(-config.random_steps // config.num_envs)
    return turns * int(config.num_envs)


def phases_of(config: DictConfig, benchmark: ContinualControl | None, repeat: int) -> list[Phase]:
    """Return the phases, in decisions: the tasks of a stream, or the two halves of a run without one.

    Each phase is a multiple of the number of environments, since all of them decide equally often.

    Args:
        config: the run's options.
        benchmark: the stream, or None.
        repeat: environment steps per decision.

    Raises:
        ConfigError: a phase is too short for learning to start.
    """
    envs = config.num_envs
    if benchmark is None:
        option, total = "env_steps", config.env_steps // (repeat * envs)
        phases = split(total // 2 * envs, total * envs)
    else:
        option, turns = "benchmark.steps", benchmark.phases("env_steps", config.env_steps, repeat * envs)
        phases = split(*(phase.end * envs for phase in turns))
    if phases[0].end <= steps_before_updates(config):
        given = config.env_steps if benchmark is None else benchmark.steps
        raise ConfigError(
            f"{option}={given} makes phases of {phases[0].end} decisions: they must be longer than "
            f"random_steps={config.random_steps}"
        )
    return phases
