"""What both agents fix before the first step in the same way: shared options, phases, what restarts when."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

import torch
from omegaconf import MISSING, DictConfig

from fire_core.methods import Method, Net
from fire_core.ranges import one_of
from fire_core.triggers import Trigger
from harness.config.build import build
from harness.config.checks import Group, OptionalGroup, check_method
from harness.config.config import Compile, Trunk
from harness.config.errors import ConfigError
from harness.config.given import refuse_idle
from harness.config.trigger import acts_at_boundaries, build_trigger, check_trigger
from harness.run.identity import identity, without
from harness.training.plasticity import LEVELS
from rl.common.boundary import Boundary, check_boundary, settle_boundary
from rl.common.continual import ContinualControl, Phase


@dataclass
class AgentConfig(Trunk):
    """Options of both agents."""

    method: Group = MISSING
    env: Group = MISSING
    benchmark: OptionalGroup = None  # a stream of tasks; null: two halves in one environment
    boundary: Boundary = MISSING
    metrics: Annotated[str, one_of(*LEVELS)] = "cheap"  # of plasticity at the midpoint
    compile: Compile = "off"  # the networks


@dataclass(kw_only=True)
class AgentTask:
    """What is fixed before the first step; everything else is a `Learner`.

    Attributes:
        config: plain, as a look into a DictConfig takes as long as a small operation.
        device: of the networks.
        phases: two halves, or a task each.
        benchmark: a stream of tasks; None: two halves in one environment.
        method: never used in training, learners take copies.
        trigger: likewise.
    """

    config: AgentConfig
    device: torch.device
    phases: list[Phase]
    benchmark: ContinualControl | None
    method: Method
    trigger: Trigger | None

    # For triggers: of each step, and of each row, the mean over training episodes that ended.
    METRICS: ClassVar[tuple[str, ...]] = ("loss", "return")

    @property
    def headline(self) -> str:
        """The number of the summary that is shown and returned."""
        return "eval/return" if self.benchmark is None else "task/return"

    @property
    def guessed(self) -> float | None:
        """None: what actions at random return is not known."""
        return None

    @property
    def scores(self) -> tuple[str, ...]:
        """Numbers of the row that ends a phase by which a search may choose, the usual one first."""
        stream = ("task/return", "online/return") if self.benchmark is not None else ()
        return (*stream, "eval/return", "train/return")

    @property
    def total_steps(self) -> int:
        """The learner's `step` at the end of the run."""
        return self.phase_end(len(self.phases) - 1)

    def phase_end(self, index: int) -> int:
        """The learner's `step` at which phase `index` ends, or the first beyond it that all environments make."""
        return self.phases[index].end

    @property
    def steps_before_trigger(self) -> int:
        """Steps before the first with updates, about which a trigger is asked first."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """What shapes the run's numbers."""
        return identity(asdict(self.config))

    def first_phase_identity(self) -> dict[str, Any] | None:
        """The part of it that shapes the first phase: methods act from the midpoint on, and are measured there.

        With a trigger, or within the tasks of a stream, they may act from the start, and nothing is shared.
        """
        shared = self.trigger is None and not self.method_acts_in(0)
        metrics = ("metrics",) if self.benchmark is None else ()  # a stream's first task has them in its rows
        return without(self.identity(), ("method", "boundary", "trigger", *metrics)) if shared else None

    def method_acts_in(self, index: int) -> bool:
        """Whether the method shapes what happens within phase `index`; the first half is shared by all methods."""
        return self.method.acts_within_phases and (index > 0 or self.benchmark is not None)

    def method_optimizes(self, index: int) -> bool:
        """Whether phase `index` has the method's own optimizer, if it brings one: after a boundary at which optimizers
        are new, and where boundaries are hidden, from the start."""
        return (index > 0 or self.hides_boundaries) and self.config.boundary.optimizer == "new"

    @property
    def knows_boundaries(self) -> bool:
        """Whether the agent is told where each task of a stream starts."""
        return self.benchmark is not None and self.benchmark.known

    @property
    def hides_boundaries(self) -> bool:
        """Whether the agent is not told of the boundaries of its stream."""
        return self.benchmark is not None and not self.benchmark.known

    @property
    def restarts_at_boundaries(self) -> bool:
        """Whether `boundary` applies between two phases: at the midpoint if methods act there, and at known tasks."""
        return acts_at_boundaries(self.config.trigger) if self.benchmark is None else self.benchmark.known

    @property
    def empties_replay(self) -> bool:
        """Whether each phase starts with an empty replay, so that learning starts anew."""
        return self.restarts_at_boundaries and self.config.boundary.replay == "new"

    def check_method(self, net: Net, network: str) -> None:
        """Refuse a method, a trigger and a boundary that do not fit together or the networks.

        Args:
            net: the networks as the method sees them, whatever their weights.
            network: the option that names them.

        Raises:
            ConfigError: with the reason.
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
        optimizes = method.overrides("optimizer")
        if optimizes and not (at_boundaries or self.hides_boundaries):
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
            fires = self.trigger is not None or optimizes
            idle = ("boundary.replay", "boundary.statistics") if fires else ("boundary",)
            refuse_idle(dict.fromkeys(idle, "where boundaries restart nothing"))


def build_benchmark(config: AgentConfig | DictConfig) -> ContinualControl | None:
    """The stream of tasks of `benchmark=`; None: there is none."""
    stream: ContinualControl | None = None
    if config.benchmark is not None:
        stream = build("benchmark", config.benchmark, ContinualControl)
    return stream


def build_method(config: DictConfig, benchmark: ContinualControl | None) -> tuple[Method, Trigger | None]:
    """The method, by which what the options leave open of `boundary` is settled, and when it acts."""
    method = build("method", config.method, Method)
    settle_boundary(config, method, benchmark is not None and benchmark.known)
    return method, build_trigger(config.trigger)
