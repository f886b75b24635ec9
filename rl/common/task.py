"""The part of the task that both agents share: options, phases, and what restarts when."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

import torch
from omegaconf import MISSING, DictConfig

from fire_core.methods import Method, Net
from fire_core.ranges import one_of
from fire_core.triggers import Trigger
from harness.config.build import build
from harness.config.checks import Group, OptionalGroup, check_method
from harness.config.config import Compile, ProgramConfig
from harness.config.errors import ConfigError
from harness.config.given import refuse_idle
from harness.config.trigger import acts_at_boundaries, build_trigger, check_trigger
from harness.run.identity import ENVIRONMENT_NAMES, identity, without
from harness.training.plasticity import LEVELS
from rl.common.boundary import Boundary, check_boundary, settle_boundary
from rl.common.continual import ContinualControl, Phase


@dataclass
class AgentConfig(ProgramConfig):
    """Options of both agents."""

    method: Group = MISSING
    env: Group = MISSING
    benchmark: OptionalGroup = None  # a stream of tasks; null: two halves in one environment
    boundary: Boundary = MISSING
    metrics: Annotated[str, one_of(*LEVELS)] = "cheap"  # of plasticity at the midpoint
    compile: Compile = "off"  # the networks


@dataclass(kw_only=True)
class AgentTask:
    """Everything about a run that is fixed before its first step; what changes is in the `Learner`.

    Attributes:
        config: the options, as a plain dataclass, because reading a DictConfig takes as long as a small operation.
        device: device of the networks.
        phases: two halves of the run, or the tasks of a stream.
        benchmark: a stream of tasks; None if the run has two halves in one environment.
        method: the method, before the run. A template, like the trigger: learners copy it.
        trigger: the trigger, before the run; None if the method acts at boundaries.
        trains: whether the agent will be trained; if not, it is only played.
    """

    config: AgentConfig
    device: torch.device
    phases: list[Phase]
    benchmark: ContinualControl | None
    method: Method
    trigger: Trigger | None
    trains: bool = True

    # Numbers that triggers can follow: the loss of each step, and in each row the mean return of training episodes.
    METRICS: ClassVar[tuple[str, ...]] = ("loss", "return")

    @property
    def is_stream(self) -> bool:
        """Whether the run is a stream of tasks; if not, it has two phases in one environment."""
        return self.benchmark is not None

    @property
    def headline(self) -> str:
        """Name of the number in the summary that is shown and returned."""
        return "task/return" if self.is_stream else "eval/return"

    @property
    def guessed(self) -> float | None:
        """The score of guessing; None, because the return of random actions is not known."""
        return None

    @property
    def scores(self) -> tuple[str, ...]:
        """Numbers of the row that ends a phase by which a search may choose, the usual one first."""
        stream = ("task/return", "online/return") if self.is_stream else ()
        return (*stream, "eval/return", "train/return")

    @property
    def total_steps(self) -> int:
        """The step of the run at its end."""
        return self.phase_end(len(self.phases) - 1)

    def phase_end(self, index: int) -> int:
        """Return the step of the run at which phase `index` ends; if that is within a decision of all, the next one."""
        return self.phases[index].end

    def asks_in(self, index: int) -> bool:
        """Return whether the trigger is asked within phase `index`: in each, if there is a trigger."""
        return self.trigger is not None

    @property
    def steps_before_trigger(self) -> int:
        """Steps before the first step with updates, which is the first that the trigger is asked about."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """Return everything that shapes the run's numbers."""
        return identity(asdict(self.config))

    def first_phase_identity(self) -> dict[str, Any] | None:
        """Return the part of the identity that shapes the first phase; None if its result cannot be shared.

        Runs of several methods share the first half, as methods act from the midpoint on. With a trigger, or within the
        tasks of a stream, a method may act from the start.
        """
        shared = not self.method_acts_in(0) and not self.asks_in(0)
        metrics = () if self.is_stream else ("metrics",)  # a stream's first task has them in its rows
        return without(self.identity(), ("method", "boundary", "trigger", *metrics)) if shared else None

    def method_acts_in(self, index: int) -> bool:
        """Return whether the method's hooks are called within phase `index`; in the first half no method's are."""
        return self.method.acts_within_phases and (index > 0 or self.is_stream)

    def method_optimizes(self, index: int) -> bool:
        """Return whether the method may choose the optimizer of phase `index`.

        It may after a boundary at which optimizers are new and, where boundaries are hidden, from the start.
        """
        return (index > 0 or self.hides_boundaries) and self.config.boundary.optimizer == "new"

    @property
    def knows_boundaries(self) -> bool:
        """Whether the agent is told where each task of a stream starts."""
        return self.benchmark is not None and self.benchmark.known

    @property
    def hides_boundaries(self) -> bool:
        """Whether the agent is not told where the tasks of its stream start."""
        return self.benchmark is not None and not self.benchmark.known

    @property
    def restarts_at_boundaries(self) -> bool:
        """Whether `boundary` applies between two phases: at the midpoint if methods act there, and at known tasks."""
        return acts_at_boundaries(self.config.trigger) if self.benchmark is None else self.benchmark.known

    @property
    def empties_replay(self) -> bool:
        """Whether each phase starts with an empty replay, so that learning waits until it has filled."""
        return self.restarts_at_boundaries and self.config.boundary.replay == "new"

    def check_method(self, net: Net, network: str) -> None:
        """Check that method, trigger, boundary options and networks fit together.

        Args:
            net: the networks as the method gets them, whatever their weights.
            network: the option that names them, for messages.

        Raises:
            ConfigError: they do not, with the reason.
        """
        config, method, name = self.config, self.method, self.config.method["name"]
        check_method(method, net, name=name, network=network)
        check_boundary(method, name, optimizer=config.boundary.optimizer, target=config.boundary.target)
        at_boundaries = acts_at_boundaries(config.trigger)
        if at_boundaries and self.hides_boundaries and method.overrides("at_boundary"):
            raise ConfigError(
                f"benchmark.boundaries=hidden: method={name} cannot act at them; say when it acts, such as "
                "trigger=every"
            )
        brings_optimizer = method.overrides("optimizer")
        if brings_optimizer and not (at_boundaries or self.hides_boundaries):
            raise ConfigError(
                f"method={name} brings an optimizer of its own at the midpoint: it needs trigger=boundary"
            )
        check_trigger(
            config.trigger,
            self.trigger,
            method,
            net,
            name=name,
            metrics=self.METRICS,
            after=self.steps_before_trigger,
            total_steps=self.total_steps,
            restarts=config.boundary.restarts_networks,
        )
        if not self.restarts_at_boundaries:
            uses_boundary_options = self.trigger is not None or brings_optimizer
            idle = ("boundary.replay", "boundary.statistics") if uses_boundary_options else ("boundary",)
            refuse_idle(dict.fromkeys(idle, "where boundaries restart nothing"))


def build_benchmark(config: AgentConfig | DictConfig) -> ContinualControl | None:
    """Build the stream of tasks of `benchmark=`; None if there is none."""
    stream: ContinualControl | None = None
    if config.benchmark is not None:
        stream = build("benchmark", config.benchmark, ContinualControl)
    return stream


def idle_beside_sequence(config: DictConfig, benchmark: ContinualControl | None) -> dict[str, str]:
    """Return the option that names the environment, for `refuse_idle`, if a stream never comes to that environment."""
    if benchmark is None or not benchmark.sequence:
        return {}
    named = [
        option
        for option in ENVIRONMENT_NAMES
        if config.env.get(option, benchmark.sequence[0]) not in benchmark.sequence
    ]
    return {f"env.{option}": f"beside benchmark.sequence=[{','.join(benchmark.sequence)}]" for option in named}


def build_method(config: DictConfig, benchmark: ContinualControl | None) -> tuple[Method, Trigger | None]:
    """Build the method and its trigger, and replace the `boundary` options that are `auto`, which depend on it."""
    method = build("method", config.method, Method)
    settle_boundary(config, method, benchmark is not None and benchmark.known)
    return method, build_trigger(config.trigger)
