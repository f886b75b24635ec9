"""What a method sees of a trainer, and when it is asked to act."""

import copy
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from fire_core.ranges import one_of
from fire_core.reinit.report import Report

# Two forms of a method: as its own authors wrote it, and as the FIRE authors' code does it.
Variant = Annotated[str, one_of("original", "fire_paper")]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Weights = dict[str, Tensor]  # of a module, by name: parameters and buffers


@dataclass
class Net:
    """The networks of a run.

    Attributes:
        modules: what is trained, by name (`{"model": ...}`; `{"actor": ..., "critic": ...}`).
        init: for each module its `state_dict` (parameters and buffers) at the start of the run.
        layout: which weights a projection touches, by name (see `fire_core.weights.layout`).
        targets: target networks (slowly updated copies), by their module's name, where training has such.
    """

    modules: dict[str, nn.Module]
    init: dict[str, Weights]
    layout: str = "all"
    targets: dict[str, nn.Module] = field(default_factory=dict)

    @classmethod
    def of(cls, modules: dict[str, nn.Module], layout: str = "all") -> "Net":
        """Networks as they are now, with copies of their weights as the initial ones."""
        init = {
            name: {key: x.detach().clone() for key, x in module.state_dict().items() if isinstance(x, Tensor)}
            for name, module in modules.items()
        }
        return cls(modules, init, layout)

    def parameters(self, spared: Collection[Tensor] = ()) -> Iterator[nn.Parameter]:
        """Every parameter of every module but those that are spared, shared ones once."""
        seen: set[Tensor] = set(spared)
        for module in self.modules.values():
            for parameter in module.parameters():
                if parameter not in seen:
                    seen.add(parameter)
                    yield parameter

    def left_alone(self, name: str, spared: Collection[Tensor] = ()) -> list[nn.Parameter]:
        """Parameters of a module that are spared, or that an act on an earlier module has changed: a common body."""
        seen = set(spared)
        for module in itertools.takewhile(lambda module: module is not self.modules[name], self.modules.values()):
            seen.update(module.parameters())
        return [parameter for parameter in self.modules[name].parameters() if parameter in seen]

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        """All modules in training or evaluation mode within this block, and as they were after it."""
        before = {module: module.training for root in self.modules.values() for module in root.modules()}
        for root in self.modules.values():
            root.train(training)
        try:
            yield
        finally:
            for module, was in before.items():
                module.training = was


@dataclass
class Context:
    """When a method acts, and what it may use.

    Attributes:
        phase: the phase about to begin (at a boundary) or running, from 0.
        step: optimizer steps since the start of the run.
        generator: CPU generator for the method's own draws, seeded by run, purpose and phase.
        batches: the next phase's training batches `(inputs, targets)`, one pass.
        chunks: the next phase's training data in the order in which they came, oldest first, in pieces of the size of
            the first phase's data; each piece in batches, unshuffled. None where the trainer has no such order.
        last_tested: (n) -> the last n samples of the phase's test data, in batches. None where there are none.
        step_loss: after a step, the task's mean loss of that step, on the device, without a gradient.
        loss: mean loss of the task for a batch.
        optimizers: those of the phase that ends; a method resets their state of the weights that it changes.
        new_networks: builds each module of `Net` anew, as at the start of the run but from a seed of this boundary or
            firing, and gives their weights by the module's name; the same each time that it is called. None where the
            trainer cannot build them.
        spared: parameters that an act must not change: in a chain, those that another of its methods trains in a way of
            its own; in the loops of others, those to keep.
    """

    phase: int
    step: int
    generator: torch.Generator
    batches: Callable[[], Iterator[tuple[Tensor, Tensor]]] | None = None
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    chunks: Callable[[], Iterator[Iterator[tuple[Tensor, Tensor]]]] | None = None
    last_tested: Callable[[int], Iterator[tuple[Tensor, Tensor]]] | None = None
    step_loss: Tensor | None = None
    new_networks: Callable[[], dict[str, Weights]] | None = None
    spared: frozenset[Tensor] = frozenset()


@dataclass
class BoundaryReport:
    """What a method did at a boundary.

    Attributes:
        numbers: for the log, by name without prefix.
        weights: of a method that projects: `fire_`'s report of each module, by the module's name. If they hold the DfI
            and SFE of all weight matrices, the trainer does not measure these again.
        measuring: seconds of the call that went into measuring; they are not counted as the method's.
    """

    numbers: dict[str, float] = field(default_factory=dict)
    weights: dict[str, Report] = field(default_factory=dict)
    measuring: float = 0.0

    def __str__(self) -> str:
        """The numbers, and a table of each module's weights below its name."""
        numbers = [f"{name} {value:.4g}" for name, value in self.numbers.items()]
        return "\n".join([*numbers, *(f"{name}:\n{report}" for name, report in self.weights.items())])


class Saved:
    """Something whose attributes `FIELDS` go into a checkpoint."""

    FIELDS: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, Any]:
        """What a resume needs: nested dicts and lists of tensors, numbers and strings."""
        values = {name: getattr(self, name) for name in self.FIELDS}
        return {name: value.state_dict() if isinstance(value, Saved) else value for name, value in values.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name in self.FIELDS:
            if isinstance(part := getattr(self, name), Saved):
                part.load_state_dict(state[name])
            else:
                setattr(self, name, copy.deepcopy(state[name]))


class Method(Saved):
    """Base class and the method `base`: every hook does nothing.

    A wrong option is a ValueError when a method is made, networks that it cannot work on are one in `check`.

    Attributes:
        follows_gradients: whether it acts at a boundary by gradients of the loss, which a target network does not have.
        builds_networks: whether it needs newly built networks at a boundary.
        acts_on_optimizer_alone: whether all that it does at a boundary is to the optimizers' state. Programs refuse it
            where a boundary brings a new optimizer anyway.
        restarts: what a boundary of an agent does to `optimizer`, `temperature` and `target`, where the method needs
            something else than all others have (`boundary.*` of `rl`).
    """

    restarts: Mapping[str, str] = {}
    acts_on_optimizer_alone = False
    follows_gradients = False
    builds_networks = False

    def check(self, net: Net) -> None:
        """Check the networks before a run begins.

        Raises:
            ValueError: the method cannot work on them.
        """

    def idle_options(self) -> dict[str, str]:
        """Options that differ from their defaults but have no effect, each with the option that makes it idle."""
        return {}

    def overrides(self, hook: str) -> bool:
        """Whether the method does something in this hook."""
        return getattr(type(self), hook) is not getattr(Method, hook)

    @property
    def acts_within_phases(self) -> bool:
        """Whether any hook but `at_boundary` does something.

        These hooks are called in phases in which the benchmark lets methods act. A first phase in which they are is
        not shared with other methods.
        """
        return any(map(self.overrides, ("optimizer", "watch", "penalty", "before_step", "after_step", "after_epoch")))

    def at_boundary(self, net: Net, context: Context) -> dict[str, float] | BoundaryReport:
        """Act between two phases, in place.

        Returns:
            Numbers for the log, by name without prefix; or a report. DfI and SFE need not be among them: the trainer
            measures every method by the same rule, outside the method's time.
        """
        return {}

    def optimizer(self, net: Net, default: MakeOptimizer) -> torch.optim.Optimizer:
        """The optimizer of the phase that begins; `default` makes the trainer's own for given parameters."""
        return default(net.parameters())

    def owned(self, net: Net) -> Iterable[nn.Parameter]:
        """Weights that its optimizer trains in a way of its own, which other methods of a chain may spare."""
        return ()

    def watch(self, net: Net) -> AbstractContextManager[None]:
        """Around the training steps of a phase: hooks that a method registers are removed at its end."""
        return nullcontext()

    def penalty(self, net: Net) -> Tensor | None:
        """A term to add to the loss of the current step."""
        return None

    def before_step(self, net: Net, context: Context) -> None:
        """Act right before an optimizer step; gradients are those of the step."""

    def after_step(self, net: Net, context: Context) -> None:
        """Act after an optimizer step, in place; gradients are still those of the step."""

    def after_epoch(self, net: Net, context: Context) -> dict[str, float]:
        """Act after a displayed epoch and its evaluation, in place.

        Returns:
            Numbers for the epoch's row, by name without prefix.
        """
        return {}

    def forget_weights(self) -> None:
        """Drop copies of earlier weights: another method of a chain has changed the networks at a boundary."""

    def reshape(self, net: Net) -> None:
        """Insert into newly built networks the modules that this method has added.

        Called on a resume, after `load_state_dict` and before the networks' own weights are loaded.
        """
