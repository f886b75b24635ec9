"""Recycle units in place: new incoming weights, outgoing weights of zero, no history in the optimizer.

Which units are recycled is decided where the weights are. On a GPU a list of them would have to be waited for, so there
a mask says which, every unit is drawn anew, and what the mask does not mark stays as it is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.units.graph import Units, weight
from fire_core.weights.optimizer_state import fill_rows_, reset_optimizer_state

# (layer, shape, generator, of the CPU or of the layer's device) -> new entries of this shape for its weight or bias
Draw = Callable[[nn.Module, Sequence[int], torch.Generator], Tensor]
NEW_NORM = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}  # a norm's entries at the start


def resample(values: Tensor, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Entries of `values` in a tensor of `shape`, drawn with replacement by a CPU generator.

    Of a weight at initialisation these follow the distribution that its initialiser drew from, whichever it was; of an
    orthogonal one they have its entries' distribution, but are independent.
    """
    index = torch.randint(values.numel(), tuple(shape), generator=generator, device=generator.device)
    if values.is_cuda and not index.is_cuda:  # the GPU takes it when it gets there, and nobody waits
        index = index.pin_memory()
    return values.flatten()[index.to(values.device, non_blocking=True)]


def at_hand(device: torch.device) -> bool:
    """Whether the numbers of tensors there can be had at once."""
    return device.type == "cpu"


def initial_draw(modules: Mapping[str, nn.Module], init: Mapping[str, Mapping[str, Tensor]]) -> Draw:
    """Draws new weights from the distribution of a layer's own weights at the start of the run.

    Args:
        modules: the networks by name.
        init: their weights at the start, by the same names.
    """
    initial = {
        layer: found
        for key, root in modules.items()
        for name, layer in root.named_modules()
        if (found := init[key].get(f"{name}.weight" if name else "weight")) is not None
    }
    return lambda layer, shape, generator: resample(initial[layer], shape, generator)


@torch.no_grad()
def recycle_(
    chosen: Iterable[tuple[Units, Tensor]],
    draw: Draw,
    generator: torch.Generator,
    optimizers: Iterable[Optimizer] = (),
) -> None:
    """Reinitialise units in place: draw incoming weights, reset norm entries, set biases and outgoing weights to zero.

    The units then add nothing to the network's output and can learn from the next step on, because their incoming
    weights are not zero. Optimizer state of exactly these rows and columns is reset. Outgoing weights of all groups
    are zeroed after all drawing, because drawing a row for a unit of the next layer would undo a zero in it.

    On a CPU masks become indices. Elsewhere no number is read from the device: it draws for every unit, there, from a
    generator that the given one seeds; the same distribution, other numbers.

    Args:
        chosen: groups of units, each with the indices (k,) of those to recycle, or with a (units,) boolean mask.
        draw: for the incoming weights.
        generator: on the CPU.
        optimizers: those that train the weights.
    """
    optimizers = list(optimizers)
    indexed = [
        (units, which.nonzero().flatten() if which.dtype == torch.bool and at_hand(which.device) else which)
        for units, which in chosen
    ]
    chosen = [(units, which) for units, which in indexed if len(which)]
    for units, which in chosen:
        for producer in units.producers:
            places = torch.arange(units.count, device=which.device)[:, None] + producer.start
            rows = _placed(which, places, len(weight(producer.layer)))
            redraw_rows_(producer.layer, rows, draw, generator, optimizers)
        for norm in units.norms:
            for name, value in NEW_NORM.items():
                if (tensor := getattr(norm, name, None)) is not None:
                    _renew_(tensor, which, value, optimizers)
    for units, which in chosen:
        for consumer in units.consumers:
            kernel, columns = weight(consumer.layer), consumer.columns
            inputs = which if columns is None else _placed(which, columns.to(which.device), kernel.shape[1])
            _renew_(kernel, inputs, 0, optimizers, dim=1)


@torch.no_grad()
def redraw_rows_(
    layer: nn.Module,
    rows: Tensor,
    draw: Draw,
    generator: torch.Generator,
    optimizers: Iterable[Optimizer] = (),
    draw_bias: bool = False,
) -> None:
    """Redraw the incoming weights of some of a layer's outputs; redraw their biases too, or set them to zero.

    Args:
        layer: a linear layer or convolution.
        rows: indices (k,), or a boolean mask of all outputs, with which every output is drawn and no number is read.
        draw: for the new weights.
        generator: on the CPU.
        optimizers: whose state of these rows is reset.
        draw_bias: draw the biases too.
    """
    kernel, bias = weight(layer), layer.bias
    masked = rows.dtype == torch.bool
    count, source = (len(kernel), generator_on(kernel.device, generator)) if masked else (len(rows), generator)
    _renew_(kernel, rows, draw(layer, (count, *kernel.shape[1:]), source).to(kernel, non_blocking=True), optimizers)
    if isinstance(bias, Tensor):
        _renew_(bias, rows, draw(layer, (count,), source).to(bias) if draw_bias else 0, optimizers)


def _renew_(
    tensor: Tensor, which: Tensor, value: Tensor | float, optimizers: Iterable[Optimizer], dim: int = 0
) -> None:
    """Write a value where indices or a mask along `dim` say, and let the optimizers forget what was there."""
    fill_rows_(tensor, which, value, dim)
    reset_optimizer_state(optimizers, [tensor], which, dim)


def _placed(which: Tensor, places: Tensor, length: int) -> Tensor:
    """Rows or columns of a layer from units: indices from indices, a mask (length,) from a mask; places (units, k)."""
    if which.dtype != torch.bool:
        return places[which].flatten()
    mask = which.new_zeros(length)
    mask[places] = which[:, None].expand(places.shape)
    return mask


def generator_on(device: torch.device, generator: torch.Generator) -> torch.Generator:
    """A generator of a device that this one seeds; on its own device itself."""
    if device == generator.device:
        return generator
    return torch.Generator(device).manual_seed(
        int(torch.randint(2**62, (), generator=generator, device=generator.device))
    )
