"""Whether an optimizer is as new: whether it holds nothing from earlier training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from fire_core.weights.as_new import compare_with_new
from fire_core.weights.masters import Masters, find_masters
from fire_core.weights.optimizers import optimizers_of, parameters_of


@dataclass(frozen=True)
class Freshness:
    """What optimizers hold that new ones would not hold. It is true if there is nothing.

    Attributes:
        problems: a line for each difference: a state, a step counter, an entry of a group, an attribute, a step that
            differs from a new optimizer's, or a master copy that differs from its weight.
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

    For each optimizer, a new one is built on copies of the parameters, and both take two steps on the same gradients.
    So first values that are not zero (Adagrad's sums, Rprop's step sizes, NAdam's product) count as new. A state of
    zeros counts as none. The optimizers and the model are not changed. The comparison takes three times the memory of
    the parameters and states.

    Args:
        optimizers: one optimizer or several; optimizers inside a wrapper are compared too.
        model: if given, master copies of its half-precision weights are compared with the weights, after rounding, and
            a line says if the optimizers train none of its weights.
        masters: from the name of a parameter to its master copy, where the optimizer does not say; needs `model`.

    Returns:
        What is not as new. If no new optimizer can be built, a line says so.

    Raises:
        TypeError: `optimizers` holds something that is no optimizer.
        ValueError: `masters` is given without `model`, whose weights they are copies of.
    """
    parts = optimizers_of(optimizers)
    if masters is not None and model is None:
        raise ValueError("masters are compared with the weights of a model: give model= too")
    lines = [line for optimizer in parts for line in compare_with_new(optimizer)]
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
            if names and not copies and not parameters_of(parts) & names.keys():
                lines.append("the optimizers train none of the model's weights")
    return Freshness(tuple(dict.fromkeys(lines)))


def assert_fresh(
    optimizers: Optimizer | Iterable[Optimizer], model: nn.Module | None = None, masters: Masters | None = None
) -> None:
    """Raise an error if optimizers hold anything from earlier training. The arguments are those of `is_fresh`.

    Raises:
        AssertionError: they do; the message names each difference from new optimizers.
        TypeError: `optimizers` holds something that is no optimizer.
        ValueError: `masters` is given without `model`.
    """
    freshness = is_fresh(optimizers, model, masters)
    if not freshness:
        raise AssertionError(f"the optimizer is not as new:\n{freshness}")
