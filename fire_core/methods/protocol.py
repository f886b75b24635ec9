"""The interface between methods and trainers: what a method is given, and at which points of training it may act."""

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
from fire_core.weights.distributed import local
from fire_core.weights.overlap import overlaps_itself
from fire_core.weights.undo import unchanged_on_error

# Two forms of a method: as its own authors wrote it (original), and as the FIRE authors' code does it (fire_paper).
Variant = Annotated[str, one_of("original", "fire_paper")]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Weights = dict[str, Tensor]  # name -> parameter or buffer, as a module's state_dict


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by their names in `state_dict()`, without what `get_extra_state` gives.

    Extra state is of any type, and only its module knows what may be done with it.
    """
    return {name: x for name, x in module.state_dict().items() if isinstance(x, Tensor) and not _is_extra_state(name)}


def load_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy numbers into parameters and persistent buffers in place; extra state stays.

    Raises:
        RuntimeError: the names or shapes are not those of the module.
    """
    numbers = {name: x for name, x in tensors.items() if not _is_extra_state(name)}
    missing, unexpected = module.load_state_dict(numbers, strict=False)
    if wrong := [*(name for name in missing if not _is_extra_state(name)), *unexpected]:
        raise RuntimeError(f"the weights to load and those of {type(module).__name__} differ in {wrong[0]}")


def _is_extra_state(name: str) -> bool:
    """Return whether this is torch's name for what a module's `get_extra_state` returns."""
    return name.rpartition(".")[2] == "_extra_state"


@dataclass
class Net:
    """The networks of a run.

    Attributes:
        modules: the networks that are trained, by name (`{"model": ...}`; `{"actor": ..., "critic": ...}`).
        init: the `state_dict` (parameters and buffers) of each network at the start of the run, by the same names.
        layout: name of the layout that says which weights a projection touches (see `fire_core.weights.layout`).
        targets: target networks (slowly updated copies), by the name of the network that they follow.
    """

    modules: dict[str, nn.Module]
    init: dict[str, Weights]
    layout: str = "all"
    targets: dict[str, nn.Module] = field(default_factory=dict)

    @classmethod
    def of(cls, modules: dict[str, nn.Module], layout: str = "all") -> "Net":
        """Return a `Net` of these networks that takes copies of their present weights as the initial ones."""
        init = {
            name: {key: x.detach().clone() for key, x in tensors_of(module).items()} for name, module in modules.items()
        }
        return cls(modules, init, layout)

    def parameters(self, spared: Collection[Tensor] = ()) -> Iterator[nn.Parameter]:
        """Yield every parameter of every network except `spared`, shared ones once."""
        seen: set[Tensor] = set(spared)
        for module in self.modules.values():
            for parameter in module.parameters():
                if parameter not in seen:
                    seen.add(parameter)
                    yield parameter

    def buffers(self) -> list[Tensor]:
        """Return the buffers of all networks, shared ones once, without expanded ones, into which nobody can write."""
        buffers = dict.fromkeys(buffer for module in self.modules.values() for buffer in module.buffers())
        return [buffer for buffer in buffers if not overlaps_itself(local(buffer))]

    def spared_or_shared(self, name: str, spared: Collection[Tensor] = ()) -> list[nn.Parameter]:
        """Return the parameters of the network `name` that a method must not change when it acts on that network.

        These are the `spared` ones and those that it shares with a network that comes before it (a common body), on
        which the method has acted already.
        """
        untouchable = set(spared)
        for module in itertools.takewhile(lambda module: module is not self.modules[name], self.modules.values()):
            untouchable.update(module.parameters())
        return [parameter for parameter in self.modules[name].parameters() if parameter in untouchable]

    def unchanged_on_error(self, optimizers: Iterable[torch.optim.Optimizer] = ()) -> AbstractContextManager[None]:
        """Return a context that gives weights, buffers and optimizers their old contents back if its block fails.

        Args:
            optimizers: those that the block may change before an error; see `fire_core.weights.undo`.
        """
        return unchanged_on_error([*self.parameters(), *self.buffers()], optimizers)

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        """Set all networks to training or evaluation mode within this block, and restore their modes after it."""
        modules = [module for root in self.modules.values() for module in root.modules()]
        modes = [module.training for module in modules]
        # Some layers do more than set the flag, as to merge an adapter. Without these the flags are written directly,
        # as an agent changes the mode in each step, and `train` takes as long as the pass of a small network.
        if all(type(module).train is nn.Module.train for module in modules):
            for module in modules:
                vars(module)["training"] = training
            try:
                yield
            finally:
                for module, was_training in zip(modules, modes, strict=True):
                    vars(module)["training"] = was_training
            return
        for root in self.modules.values():
            root.train(training)
        try:
            yield
        finally:
            for root in self.modules.values():
                root.train(modes[modules.index(root)])
            for module, was_training in zip(modules, modes, strict=True):
                module.training = was_training


@dataclass
class Context:
    """The moment at which a method acts, and what the trainer gives it to work with.

    Attributes:
        phase: number of the phase that is about to begin (at a boundary) or runs, counted from 0.
        step: optimizer steps since the start of the run.
        generator: CPU generator for the method's own draws. The programs make a new one for each moment, seeded by run,
            phase and step: acts at one moment, as those at a boundary and before the first step, draw alike. One for a
            firing has a seed of its own.
        batches: returns an iterator over the next phase's training batches `(inputs, targets)`, for one pass.
        chunks: returns an iterator over the next phase's training data in the order in which they came, oldest first,
            in chunks of the size of the first phase's data; each chunk is an iterator over unshuffled batches. None
            where the trainer has no such order.
        last_tested: (n) -> the last n samples of the phase's test data, in batches. None where there are none.
        step_loss: after a step, the task's mean loss of that step, a scalar on the device, without a gradient.
        loss: (inputs, targets) -> mean loss of the task for a batch, a scalar.
        optimizers: the optimizers of the phase that ends; a method resets their state of the weights that it changes.
        new_networks: builds each network of `Net` anew, as at the start of the run but from a seed of this boundary or
            firing, and returns their weights by the network's name; the same at each call. None where the trainer
            cannot build them.
        spared: parameters that a method must not change: in a chain, those that another of its methods trains in a way
            of its own; in the loops of others, those that the user asked to keep.
        trainable_only: whether methods keep frozen weights (`requires_grad=False`) as they are.
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
    trainable_only: bool = True
    _state_of_draws: Tensor | None = field(default=None, init=False, repr=False)

    def own_draws(self) -> torch.Generator:
        """Return a generator for the draws of an act, which begins alike each time that this context is asked.

        So an act on a target network, with the same context, draws as that on the trained network. The context's
        generator moves on, so that an act with another context draws anew.
        """
        if self._state_of_draws is None:
            self._state_of_draws = self.generator.get_state()
            torch.rand(1, generator=self.generator, device="cpu")
        return torch.Generator().set_state(self._state_of_draws)

    def spared_or_frozen(self, net: Net) -> frozenset[Tensor]:
        """Return the parameters that a method must not change: the spared ones, and frozen ones if they are kept."""
        frozen = (p for p in net.parameters() if self.trainable_only and not p.requires_grad)
        return self.spared.union(frozen)


@dataclass
class BoundaryReport:
    """What a method did at a boundary.

    Attributes:
        numbers: numbers for the log, by name without prefix.
        weights: `fire_`'s report of each network, by the network's name; empty if the method does not project. If the
            reports hold the DfI and SFE of all weight matrices, the trainer does not measure these again.
        measuring: seconds of the call that went into measuring; they are not counted as the method's time.
        changed: how many weights are others than before, as hooks and callbacks count them; None in a trainer.
    """

    numbers: dict[str, float] = field(default_factory=dict)
    weights: dict[str, Report] = field(default_factory=dict)
    measuring: float = 0.0
    changed: int | None = None

    def __str__(self) -> str:
        """Return the numbers, and a table of each module's weights below its name; without one, how many changed."""
        numbers = [f"{name} {value:.4g}" for name, value in self.numbers.items()]
        if self.changed is not None and not self.weights:
            numbers.append(f"{self.changed} weights changed")
        return "\n".join([*numbers, *(f"{name}:\n{report}" for name, report in self.weights.items())])


class Saved:
    """Base class of objects whose attributes named in `FIELDS` go into a checkpoint."""

    FIELDS: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, Any]:
        """Return what a resume needs: nested dicts and lists of tensors, numbers and strings."""
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
    """Base class of all methods. Every hook does nothing; a method overrides those that it needs.

    A wrong option raises ValueError when the method is constructed; networks on which it cannot work raise ValueError
    in `check`.

    Attributes:
        follows_gradients: whether the method uses gradients of the loss at a boundary, which a target network lacks.
        builds_networks: whether the method needs newly built networks at a boundary.
        not_combinable: why the method cannot be a part of a chain of several, as the end of the sentence "it ...";
            empty if it can.
        follows_the_optimizer: whether `after_step` takes the change of the weights since the last step for the
            optimizer's, so that no other method may have acted after the step before.
        uses_initial_weights: whether the method may read `Net.init`. If not, loops of others store no copy of the
            initial weights for it.
        needs_kept_optimizer: whether the method, or one of a chain, does nothing at a boundary but reset the
            optimizers' state. Programs refuse it where a boundary brings a new optimizer anyway.
        restarts: what becomes of an agent's `optimizer`, `temperature` and `target` at a boundary, where the method
            needs something else than the program's default (`boundary.*` of `rl`).
    """

    restarts: Mapping[str, str] = {}
    needs_kept_optimizer = False
    follows_gradients = False
    builds_networks = False
    not_combinable = ""
    follows_the_optimizer = False
    uses_initial_weights = True

    def check(self, net: Net) -> None:
        """Check the networks before a run begins.

        Raises:
            ValueError: the method cannot work on them.
        """

    def idle_options(self) -> dict[str, str]:
        """Return the options that have no effect, each with the other option that takes its effect away."""
        return {}

    @property
    def reads_layout(self) -> bool:
        """Whether the method uses `net.layout`, the network's own layout: true if its option `layout` is None.

        A method without such an option that uses `net.layout` overrides this. Where it is false, programs refuse
        `model.layout=`, which would have no effect.
        """
        return getattr(self, "layout", "") is None

    def overrides(self, hook: str) -> bool:
        """Return whether the method does something in the hook of this name."""
        return getattr(type(self), hook) is not getattr(Method, hook)

    @property
    def acts_within_phases(self) -> bool:
        """Return whether any hook besides `at_boundary` does something.

        Such hooks are called only in phases in which the benchmark lets methods act. If that includes the first phase,
        its result cannot be shared with other methods.
        """
        return any(map(self.overrides, ("optimizer", "watch", "penalty", "before_step", "after_step", "after_epoch")))

    def at_boundary(self, net: Net, context: Context) -> dict[str, float] | BoundaryReport:
        """Act between two phases, in place.

        Returns:
            Numbers for the log, by name without prefix, or a `BoundaryReport`. DfI and SFE need not be among them: the
            trainer measures every method by the same rule, outside the method's time.
        """
        return {}

    def optimizer(self, net: Net, default: MakeOptimizer) -> torch.optim.Optimizer:
        """Return the optimizer of the phase that begins.

        Args:
            net: the networks.
            default: makes the trainer's own optimizer for given parameters.
        """
        return default(net.parameters())

    def owned(self, net: Net) -> Iterable[nn.Parameter]:
        """Return the weights that the method's optimizer trains in a way of its own; a chain may spare them."""
        return ()

    def watch(self, net: Net) -> AbstractContextManager[None]:
        """Return a context for the training steps of a phase, which removes the forward hooks that it registers."""
        return nullcontext()

    def penalty(self, net: Net) -> Tensor | None:
        """Return a scalar to add to the loss of the current step, or None."""
        return None

    def before_step(self, net: Net, context: Context) -> None:
        """Act right before an optimizer step; `.grad` holds the gradients of the step."""

    def after_step(self, net: Net, context: Context) -> None:
        """Act right after an optimizer step, in place; `.grad` still holds the gradients of the step."""

    def after_epoch(self, net: Net, context: Context) -> dict[str, float]:
        """Act after each epoch that is logged, once it is evaluated, in place.

        Returns:
            Numbers for the epoch's row, by name without prefix.
        """
        return {}

    def idle_reason(self) -> str:
        """Return why the method has changed nothing so far, if its interval is longer than training was; else ""."""
        return ""

    def forget_weights(self) -> None:
        """Drop copies of earlier weights; called when another method of a chain has changed the networks."""

    def reshape(self, net: Net) -> None:
        """Insert into newly built networks the modules that this method has added.

        Called on a resume, after `load_state_dict` and before the networks' own weights are loaded.
        """
