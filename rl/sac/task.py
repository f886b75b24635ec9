"""What is fixed before the first step of a SAC run: options, environment, networks, phases."""

import functools
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

import torch
from omegaconf import MISSING, DictConfig, OmegaConf
from torch import nn

from fire_core.methods import Method, Net
from fire_core.ranges import Count, Decay, NonNegative, Positive, Width, one_of, within
from fire_core.triggers import Trigger
from harness.config.build import build
from harness.config.checks import Group, OptionalGroup, check_method, check_options
from harness.config.config import Trunk, resolve_device, set_up_torch
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
from rl.sac.control import Control, time_limit
from rl.sac.networks import Networks, plain_critic
from rl.sac.update import discount
from rl.sac.workers import Tasks, Worker


@dataclass
class SacBoundary(Boundary):
    """What restarts at a boundary."""

    temperature: Annotated[str, one_of("new", "keep")] = MISSING
    statistics: Annotated[str, one_of("new", "keep")] = MISSING  # of observations

    @property
    def restarts_networks(self) -> bool:
        """Whether something restarts where a trigger fires, whatever the method does."""
        return super().restarts_networks or self.temperature == "new"


@dataclass
class SacConfig(Trunk):
    """Options of `rl.sac`; `conf/sac.yaml` fills them in."""

    program: Annotated[str, one_of("sac")] = "sac"
    method: Group = MISSING
    env: Group = MISSING
    networks: Group = MISSING
    benchmark: OptionalGroup = None  # a stream of tasks; null: two halves in one environment
    boundary: SacBoundary = field(default_factory=SacBoundary)
    env_steps: Count = MISSING  # of the whole run, over all environments, repeats counted
    num_envs: Annotated[int, within(1, 1024)] = 1
    random_steps: Count = 5000  # decisions taken at random, in each run's beginning; then learning begins
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
    on_nan: Annotated[str, one_of("stop")] = "stop"
    eval_every: Count = MISSING  # environment steps
    eval_episodes: Annotated[int, within(1, 1000)] = 10
    metrics: Annotated[str, one_of(*LEVELS)] = "cheap"  # of plasticity at the midpoint
    precision: Annotated[str, one_of("float32", "bfloat16")] = "float32"  # bfloat16: within residual blocks
    compile: bool | None = None  # torch.compile the update; null: on a GPU
    cuda_graph: bool | None = None  # replay the update as one CUDA graph; null: on a GPU


REFUSED = (
    "has a hook ({hook}) that rl.sac has no place for (docs/methods.md says why); it runs methods that act at the "
    "midpoint, by a penalty, after a step or after a row, such as full_reset, snp, pi, fire, redo and l2init"
)
NO_PLACE = {hook: REFUSED.format(hook=hook) for hook in ("optimizer", "watch", "before_step")}
GROUPS = ("scale", "cache", "budget/sac", "budget/continual", "budget/exceptions", "boundary")
register("sac", SacConfig, *GROUPS, presets=("fig4b", "agents"), envs=("dqn",))  # to say whose they are


@dataclass
class Task:
    """What is fixed before the first step; everything else is a `Learner`."""

    config: SacConfig  # plain, as a look into a DictConfig takes as long as a small operation
    device: torch.device
    control: Control
    networks: Networks
    observations: int
    actions: int
    gamma: float
    phases: list[Phase]
    modules: dict[str, nn.Module]  # actor and critics at their initial weights; they and the method are not trained:
    method: Method  # learners take copies
    trigger: Trigger | None  # as these
    tasks: Tasks | None  # of a stream

    @classmethod
    def from_config(cls, config: DictConfig) -> "Task":
        """Check the options, build networks and method; nothing is written.

        Raises:
            ConfigError: an option is out of its range, a package is absent, or the method cannot work here.
        """
        check_options(config)
        for option in ("batch_size", "num_envs"):
            if config.replay_size < config[option]:
                raise ConfigError(f"replay_size={config.replay_size} must be at least {option}={config[option]}")
        device = resolve_device(config.device)
        if config.cuda_graph and device.type != "cuda":
            raise ConfigError("cuda_graph=true needs device=cuda")
        set_up_torch(device, config.threads, config.deterministic)
        control: Control = build("env", config.env, Control)
        networks: Networks = build("networks", config.networks, Networks)
        networks = replace(networks, bfloat16=config.precision == "bfloat16")
        env = control.make()
        try:
            sizes = int(env.observation_space.shape[0]), int(env.action_space.shape[0])
            gamma = discount(time_limit(env) / control.action_repeat) if config.gamma is None else config.gamma
        finally:
            env.close()
        envs, repeat = config.num_envs, control.action_repeat * config.num_envs
        decisions = config.env_steps // repeat * envs
        benchmark: ContinualControl | None = None
        tasks, phases = None, split(decisions // envs // 2 * envs, decisions)
        if config.benchmark is not None:
            benchmark = build("benchmark", config.benchmark, ContinualControl)
            phases = benchmark.phases("env_steps", config.env_steps, repeat)
            phases = split(*(phase.end * envs for phase in phases))
            tasks = Tasks(benchmark, control, config.seed)
            sizes = tasks.size, sizes[1]
            if benchmark.steps // repeat <= config.random_steps // envs:
                raise ConfigError(
                    f"benchmark.steps={benchmark.steps} must be more than random_steps={config.random_steps} in "
                    "steps of the environment"
                )
        elif decisions // envs // 2 <= config.random_steps // envs:
            raise ConfigError(
                f"env_steps={config.env_steps} are {decisions} decisions; the first half must be more than "
                f"random_steps={config.random_steps}"
            )
        check_fits("replay_size", config.replay_size, 4 * (2 * sizes[0] + sizes[1] + 2), device)
        options = OmegaConf.to_object(config)
        assert isinstance(options, SacConfig)
        method = build("method", config.method, Method)
        network = f"networks={config.networks.name}"
        twins = 2 if control.twin else 1
        check_network_fits(network, lambda: networks.actor(*sizes), device)
        check_network_fits(network, lambda: networks.critics(*sizes, twins), device)
        seeding.seed_everything(seeding.derive(config.seed, "init"))
        actor, critics = networks.actor(*sizes), networks.critics(*sizes, twins)
        name, boundary = config.method.name, config.boundary
        alone = Net({"actor": actor, "critic": plain_critic(critics, 0)}, {}, "sac")
        check_method(method, alone, name=name, network=network, without=NO_PLACE)
        check_boundary(method, name, optimizer=boundary.optimizer, target=boundary.target)
        modules = {"actor": actor, "critic": critics}
        check_acts(benchmark, method, name, acts_at_boundaries(options.trigger))
        trigger = build_trigger(options.trigger)
        task = cls(options, device, control, networks, *sizes, gamma, phases, modules, method, trigger, tasks)
        check_trigger(
            options.trigger,
            trigger,
            method,
            alone,
            name=name,
            metrics=METRICS,
            after=task.steps_before_trigger,
            total_steps=task.total_steps,
            restarts=options.boundary.restarts_networks,
        )
        return task

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise a ValueError for a state whose networks are others."""
        check_learner(state, self.modules, self.method, self.trigger, self.trigger is not None, state["step"])

    def identity(self) -> dict[str, Any]:
        """What shapes the run's numbers."""
        what = identity(asdict(self.config))
        return what if self.tasks else without(what, ("benchmark",))  # as before there were streams

    def first_phase_identity(self) -> dict[str, Any] | None:
        """The part of it that shapes the first phase: methods act from the midpoint on, and are measured there.

        With a trigger, or within the tasks of a stream, they may act from the start, and nothing is shared.
        """
        if self.trigger is not None or self.method_acts_in(0):
            return None
        later = {"method", "boundary", "metrics", "trigger"} | ({"cuda_graph"} if self.device.type == "cpu" else set())
        return without(self.identity(), later)

    @property
    def total_steps(self) -> int:
        """Decisions of the whole run, those of all environments."""
        return self.phases[-1].end

    @property
    def steps_before_trigger(self) -> int:
        """Decisions before the first with updates, about which a trigger is asked first."""
        return -(-self.config.random_steps // self.config.num_envs) * self.config.num_envs

    def method_acts_in(self, index: int) -> bool:
        """Whether the method shapes what happens within phase `index`; the first half is shared by all methods."""
        return self.method.acts_within_phases and (index > 0 or self.tasks is not None)

    @property
    def headline(self) -> str:
        """The number of the summary that is shown and returned."""
        return "eval/return" if self.tasks is None else "task/return"

    @property
    def restarts_at_boundaries(self) -> bool:
        """Whether `boundary` applies between two phases: at the midpoint if methods act there, and at known tasks."""
        return acts_at_boundaries(self.config.trigger) if self.tasks is None else self.tasks.benchmark.known

    @property
    def empties_replay(self) -> bool:
        """Whether each phase starts with an empty replay, so that learning starts anew."""
        return self.restarts_at_boundaries and self.config.boundary.replay == "new"

    @property
    def eval_every(self) -> int:
        """Decisions from one row to the next."""
        envs = self.config.num_envs
        return int(max(1, self.config.eval_every // (self.control.action_repeat * envs)) * envs)

    @property
    def compiles(self) -> bool:
        """Whether updates are compiled."""
        return self.device.type == "cuda" if self.config.compile is None else self.config.compile

    @property
    def records(self) -> bool:
        """Whether updates are recorded as a CUDA graph."""
        return self.device.type == "cuda" and self.config.cuda_graph is not False

    @functools.cached_property
    def eval_envs(self) -> list[Worker]:
        """Environments for evaluation; their episodes are the same each time."""
        seeds = [seeding.derive(self.config.seed, "evaluation", i) for i in range(self.config.eval_episodes)]
        return [Worker(self.control, seed, tasks=self.tasks) for seed in seeds]

    def close(self) -> None:
        """Close the environments of evaluations, which may hold OpenGL; the next evaluation makes new ones."""
        for worker in self.__dict__.pop("eval_envs", []):
            worker.close()
