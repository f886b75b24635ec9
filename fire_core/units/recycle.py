"""Recycle units in place: new incoming weights, outgoing weights of zero, no history in the optimizer."""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.units.graph import Units, weight
from fire_core.weights.optimizer_state import reset_optimizer_state


def uniform(shape: Sequence[int], fan_in: int, generator: torch.Generator) -> Tensor:
    """Uniform in +-1/sqrt(fan_in): torch's default initialisation of linear layers and convolutions."""
    return (torch.rand(*shape, generator=generator) * 2 - 1) / math.sqrt(fan_in)


def he_normal(shape: Sequence[int], fan_in: int, generator: torch.Generator) -> Tensor:
    """Normal with variance 2 / fan_in (He et al., arXiv 1502.01852)."""
    return torch.randn(*shape, generator=generator) * math.sqrt(2 / fan_in)


Draw = Callable[[Sequence[int], int, torch.Generator], Tensor]


@torch.no_grad()
def recycle_(
    chosen: Iterable[tuple[Units, Tensor]],
    draw: Draw,
    generator: torch.Generator,
    optimizers: Iterable[Optimizer] = (),
    draw_bias: bool = False,
) -> None:
    """Make units new, in place: incoming weights drawn, norm entries as at the start, outgoing weights zero.

    The units then add nothing to the network's output and can learn from the next step on, because their incoming
    weights are not zero. Optimizer state of exactly these rows and columns is reset. Outgoing weights of all groups
    are zeroed after all drawing, because drawing a row for a unit of the next layer would undo a zero in it.

    Args:
        chosen: groups of units, each with the indices (k,) of those to recycle.
        draw: for the incoming weights.
        generator: on the CPU.
        optimizers: those that train the weights.
        draw_bias: draw biases too, rather than zero them.
    """
    chosen, optimizers = list(chosen), list(optimizers)
    for units, index in chosen:
        for producer in units.producers:
            redraw_rows_(producer.layer, index + producer.start, draw, generator, optimizers, draw_bias)
        for norm in units.norms:
            for name, value in (("weight", 1), ("bias", 0), ("running_mean", 0), ("running_var", 1)):
                if (tensor := getattr(norm, name, None)) is not None:
                    tensor[index] = value
                    reset_optimizer_state(optimizers, [tensor], index)
    for units, index in chosen:
        for consumer in units.consumers:
            columns = index if consumer.columns is None else consumer.columns.to(index.device)[index].flatten()
            weight(consumer.layer)[:, columns] = 0
            reset_optimizer_state(optimizers, [weight(consumer.layer)], columns, dim=1)


def recycle_masked_(
    graph: Iterable[Units],
    masks: Iterable[Tensor],
    draw: Draw,
    generator: torch.Generator,
    optimizers: Iterable[Optimizer] = (),
    draw_bias: bool = False,
) -> None:
    """`recycle_` for the units that a (units,) boolean mask marks in each group; the other arguments are the same."""
    chosen = [(units, mask.nonzero().flatten()) for units, mask in zip(graph, masks, strict=True)]
    recycle_([(units, index) for units, index in chosen if len(index)], draw, generator, optimizers, draw_bias)


@torch.no_grad()
def redraw_rows_(
    layer: nn.Module,
    rows: Tensor,
    draw: Draw,
    generator: torch.Generator,
    optimizers: Iterable[Optimizer] = (),
    draw_bias: bool = False,
) -> None:
    """Draw the incoming weights of some of a layer's outputs anew."""
    kernel = weight(layer)
    fan_in = kernel[0].numel()
    kernel[rows] = draw((len(rows), *kernel.shape[1:]), fan_in, generator).to(kernel)
    bias = layer.bias
    if isinstance(bias, Tensor):
        bias[rows] = draw((len(rows),), fan_in, generator).to(bias) if draw_bias else 0.0
    reset_optimizer_state(optimizers, [t for t in (kernel, bias) if isinstance(t, Tensor)], rows)
