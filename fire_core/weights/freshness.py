"""Whether an optimizer is as a new one: nothing in it is left of earlier training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from fire_core.weights.as_new import Rehearsal, not_as_new
from fire_core.weights.masters import Masters, find_masters
from fire_core.weights.new_optimizer import CannotBuildError
from fire_core.weights.optimizers import held_optimizers, optimizers_of, parameters_of


@dataclass(frozen=True)
class Freshness:
    """What optimizers hold that new ones would not; it is true where there is nothing.

    Attributes:
        problems: a line for each thing: a state, a step counter, an entry of a group, an attribute, a step that differs
            from a new optimizer's, a master copy that is not its weight.
    """

    problems: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        return "as new" if self else "\n".join(self.problems)


def is_fresh(
    optimizers: Optimizer | Iterable[Optimizer], model: nn.Module | None = None, masters: Masters | None = None
) -> Freshness:
    """Compare optimizers with new ones of their class and options.

    A new optimizer is built beside each on copies of the parameters, and both take two steps on the same gradients; so
    first values that are not zero, as Adagrad's sums, Rprop's step sizes and NAdam's product, are what the class makes
    them. State of zeros counts as none. Nothing that is given changes. Takes the memory of the parameters and states
    three times.

    Args:
        optimizers: one optimizer or several, those inside a wrapper too.
        model: with it, master copies of half-precision weights are compared with the weights, after rounding.
        masters: parameter name -> its master, where the optimizer does not say.

    Returns:
        What is not as new; where no new optimizer can be built, a line says so.

    Raises:
        TypeError: not optimizers.
    """
    parts = optimizers_of(optimizers)
    lines = [line for optimizer in parts for line in _problems_of(optimizer)]
    if model is not None:
        names = {id(p): name for name, p in model.named_parameters()}
        try:
            copies = find_masters(model, parts, masters)
        except ValueError as error:
            lines.append(str(error))
        else:
            lines += [
                f"the master copy of {names[id(copy.weight)]} is not the weight" for copy in copies if not copy.agrees()
            ]
    return Freshness(tuple(dict.fromkeys(lines)))


def assert_fresh(
    optimizers: Optimizer | Iterable[Optimizer], model: nn.Module | None = None, masters: Masters | None = None
) -> None:
    """Raise an AssertionError that says what is left of earlier training, if anything is; see `is_fresh`."""
    freshness = is_fresh(optimizers, model, masters)
    if not freshness:
        raise AssertionError(f"the optimizer is not as new:\n{freshness}")


def _problems_of(optimizer: Optimizer) -> list[str]:
    """Lines on what an optimizer still knows; of a wrapper that cannot be built anew, on what is inside."""
    held = parameters_of([optimizer])
    if not held:
        return []
    try:
        return not_as_new(optimizer, held, Rehearsal(optimizer, held))
    except CannotBuildError as error:
        if inner := held_optimizers(optimizer).values():
            return [line for part in inner for line in _problems_of(part)]
        return [f"{type(optimizer).__name__}: no new one can be built to compare with ({error})"]
