"""The methods of S runs within a phase: all at once where they can, else each by itself."""

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from fire_core.harness.stacked.module import stacked_net
from fire_core.harness.stacked.network import StackedNetworks
from fire_core.harness.stacked.optimizer import (
    SeparateOptimizers,
    StackedAdam,
    StackedOptimizer,
    Steps,
    can_step_together,
)
from fire_core.harness.training.measure import Meter
from fire_core.methods import Context, Method, Net
from fire_core.methods.stack import join, part_of
from fire_core.weights.optimizer_state import parts_of

AsSeed = Callable[[int], contextlib.AbstractContextManager[None]]


class Acting(Protocol):
    """What is needed of a run's learner."""

    net: Net
    method: Method
    method_meter: Meter
    optimizer: torch.optim.Optimizer | None


class SeparateMethods:
    """Each run's method acts by itself, on its own networks.

    Args:
        learners: of the runs.
        going: the places of the runs that go on.
        moment: a run's context by its place, after a step with its loss.
        as_seed: a context in which torch draws what the run would draw alone.
    """

    def __init__(
        self,
        learners: Sequence[Acting],
        going: Callable[[], list[int]],
        moment: Callable[[int, Tensor | None], Context],
        as_seed: AsSeed,
    ) -> None:
        self.learners, self.going, self.moment, self.as_seed = learners, going, moment, as_seed
        self.has_penalty, self.has_step = (learners[0].method.overrides(hook) for hook in ("penalty", "after_step"))
        self.touches_optimizer = self.has_step  # it may replace what the optimizer keeps

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """The methods' contexts around the steps of a phase."""
        with contextlib.ExitStack() as stack:
            for i in self.going():
                stack.enter_context(self.learners[i].method.watch(self.learners[i].net))
            yield

    def add_penalties(self) -> Tensor | None:
        """Add the gradients of the penalties; the penalties, (S,)."""
        if not self.has_penalty:
            return None
        terms = torch.zeros(len(self.learners))
        for i in self.going():
            learner = self.learners[i]
            with self.as_seed(i), learner.method_meter:
                term = learner.method.penalty(learner.net)
                if term is not None:
                    term.backward()
                    terms[i] = term.detach()
        return terms

    def after_step(self, losses: Tensor) -> None:
        """The hook after an optimizer step, with the losses (S,)."""
        for i in self.going() if self.has_step else ():
            learner = self.learners[i]
            with self.as_seed(i), learner.method_meter:
                learner.method.after_step(learner.net, self.moment(i, losses[i].detach()))

    def optimizer(self) -> StackedOptimizer | None:
        """The methods' own optimizers as one, if they have such.

        Raises:
            ValueError: they have made different numbers of steps.
        """
        return None

    def share_time(self) -> None:
        """Nothing to do: each run's time is measured."""

    def write_back(self) -> None:
        """Nothing to do: each method holds its own state."""

    def read_again(self) -> None:
        """Nothing to do."""


class StackedMethod(SeparateMethods):
    """One method that acts on the networks of all runs at once; see `Method.stacks`.

    Args:
        networks: the stacked networks, by their module's name.
        others: see `SeparateMethods`.

    Raises:
        ValueError: the methods' states differ in more than tensors.
    """

    def __init__(
        self,
        learners: Sequence[Acting],
        going: Callable[[], list[int]],
        moment: Callable[[int, Tensor | None], Context],
        as_seed: AsSeed,
        networks: Mapping[str, StackedNetworks],
    ) -> None:
        super().__init__(learners, going, moment, as_seed)
        self.networks = networks
        self.net = stacked_net([learner.net for learner in learners], networks)
        self.method = copy.deepcopy(learners[0].method)
        self.meter = Meter(next(self.net.parameters()).device)
        self.touches_optimizer = False
        self.no_draws = torch.Generator()
        self.read_again()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        with self.method.watch(self.net):
            for key, networks in self.networks.items():
                networks.watch(self.net.modules[key])
            try:
                yield
            finally:
                for networks in self.networks.values():
                    networks.watch(None)

    def add_penalties(self) -> Tensor | None:
        if not self.has_penalty:
            return None
        with self.meter:
            terms = self.method.penalty(self.net)
            if terms is None:
                return None
            terms.sum().backward()
            return terms.detach()

    def after_step(self, losses: Tensor) -> None:
        if not self.has_step:
            return
        moments: dict[int, Context] = {}

        def moment(i: int) -> Context:
            if i not in moments:  # once, as its draws go on from one method of a chain to the next
                moments[i] = self.moment(i, losses[i].detach())
            return moments[i]

        with self.meter:
            self.method.after_step(self.net, Context(0, 0, self.no_draws, step_loss=losses.detach(), part=moment))

    def optimizer(self) -> StackedOptimizer | None:
        if not self.method.overrides("optimizer"):
            return None
        singles = [learner.optimizer for learner in self.learners if learner.optimizer is not None]
        own = self.learners[0].method.optimizer(self.learners[0].net, _no_default)
        if [type(part) for part in parts_of(own)] != [type(part) for part in parts_of(singles[0])]:
            return None  # the trainer's own still, as before a first boundary
        return StackedOptimizer(singles, self.method.optimizer(self.net, _no_default), self.as_seed)

    def share_time(self) -> None:
        """Give each run its part of the time since the last call."""
        seconds = self.meter.take() / len(self.learners)
        for learner in self.learners:
            learner.method_meter.add(seconds)

    def write_back(self) -> None:
        """Bring the single methods up to date."""
        state = self.method.state_dict()
        for place, learner in enumerate(self.learners):
            learner.method.load_state_dict(part_of(state, place))

    def read_again(self) -> None:
        """Take over the states of the single methods."""
        self.method.load_state_dict(join([learner.method.state_dict() for learner in self.learners]))


def _no_default(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    raise AssertionError("a method that has an optimizer of its own wraps none of the trainer's")


def can_act_at_once(method: Method, *networks: StackedNetworks) -> bool:
    """Whether `StackedMethod` may act on these networks."""
    trained = all(parameter.requires_grad for each in networks for parameter in each.models[0].parameters())
    return method.can_stack() and all(each.layers is not None for each in networks) and trained


def choose_methods(
    learners: Sequence[Acting],
    going: Callable[[], list[int]],
    moment: Callable[[int, Tensor | None], Context],
    as_seed: AsSeed,
    networks: Mapping[str, StackedNetworks],
) -> SeparateMethods:
    """The methods for the steps of a phase in which they act; see `StackedMethod` for the arguments."""
    if can_act_at_once(learners[0].method, *networks.values()):
        with contextlib.suppress(ValueError):  # where their states differ
            return StackedMethod(learners, going, moment, as_seed, networks)
    return SeparateMethods(learners, going, moment, as_seed)


def choose_optimizer(
    learners: Sequence[Acting], networks: StackedNetworks, methods: SeparateMethods | None, as_seed: AsSeed
) -> Steps:
    """How the optimizers make their steps in a phase.

    Args:
        learners: of the runs.
        networks: what the optimizers train.
        methods: of a phase in which they act.
        as_seed: a context in which torch draws what the run would draw alone.
    """
    optimizers = [learner.optimizer for learner in learners if learner.optimizer is not None]
    with contextlib.suppress(ValueError):
        if methods is not None and (own := methods.optimizer()) is not None:
            return own
    if can_step_together(optimizers[0]) and not (methods is not None and methods.touches_optimizer):
        return StackedAdam(optimizers, networks)
    return SeparateOptimizers(optimizers, as_seed)
