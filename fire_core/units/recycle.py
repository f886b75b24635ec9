"""Recycle units in place: new incoming weights, outgoing weights of zero, no history in the optimizer.

Which units are recycled is decided where the weights are. On a GPU a list of them would have to be waited for, so there
a mask says which, every unit is drawn anew, and what the mask does not mark stays as it is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.units.graph import Units, weight
from fire_core.weights.optimizer_state import reset_optimizer_state

# (layer, shape, generator, of the CPU or of the layer's device) -> new entries of this shape for its weight or bias
Draw = Callable[[nn.Module, Sequence[int], torch.Generator], Tensor]


NEW_NORM = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}  # a norm's entries at the start


def resample(values: Tensor, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Entries of `values` in a tensor of `shape`, drawn with replacement by a CPU generator.

    Of a weight at initialisation these follow the distribution that its initialiser drew from, whichever it was; of an
    orthogonal one they have its entries' distribution, but are independent.
    """
    index = torch.randint(values.numel(), tuple(shape), generator=generator, device=generator.device)
    return values.flatten()[sent(index, values.device)]


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; a GPU takes it when it gets there, and nobody waits."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def at_hand(device: torch.device) -> bool:
    """Whether the numbers of tensors there can be had at once."""
    return device.type == "cpu"


class InitialDraw:
    """Draws new weights from the distribution of a layer's own weights at the start of the run.

    Args:
        modules: the networks by name.
        init: their weights at the start, by the same names.
    """

    def __init__(self, modules: Mapping[str, nn.Module], init: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.initial: dict[nn.Module, Tensor] = {}
        for key, root in modules.items():
            for name, layer in root.named_modules():
                if (found := init[key].get(f"{name}.weight" if name else "weight")) is not None:
                    self.initial[layer] = found

    def __call__(self, layer: nn.Module, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        return resample(self.initial[layer], shape, generator)


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

    Args:
        chosen: groups of units, each with the indices (k,) of those to recycle.
        draw: for the incoming weights.
        generator: on the CPU.
        optimizers: those that train the weights.
    """
    chosen, optimizers = list(chosen), list(optimizers)
    for units, index in chosen:
        for producer in units.producers:
            redraw_rows_(producer.layer, index + producer.start, draw, generator, optimizers)
        for norm in units.norms:
            for name, value in NEW_NORM.items():
                if (tensor := getattr(norm, name, None)) is not None:
                    tensor[index] = value
                    reset_optimizer_state(optimizers, [tensor], index)
    for units, index in chosen:
        for consumer in units.consumers:
            columns = index if consumer.columns is None else sent(consumer.columns, index.device)[index].flatten()
            weight(consumer.layer)[:, columns] = 0
            reset_optimizer_state(optimizers, [weight(consumer.layer)], columns, dim=1)


def recycle_masked_(
    graph: Iterable[Units],
    masks: Iterable[Tensor],
    draw: Draw,
    generator: torch.Generator,
    optimizers: Iterable[Optimizer] = (),
) -> None:
    """`recycle_` for the units that a (units,) boolean mask marks in each group; the other arguments are the same.

    On a CPU it is `recycle_`. Elsewhere nothing is waited for (`recycle_where_`).
    """
    marked = list(zip(graph, masks, strict=True))
    if not all(at_hand(mask.device) for _, mask in marked):
        recycle_where_(marked, draw, generator, optimizers)
        return
    chosen = [(units, mask.nonzero().flatten()) for units, mask in marked]
    recycle_([(units, index) for units, index in chosen if len(index)], draw, generator, optimizers)


@torch.no_grad()
def recycle_where_(
    marked: Iterable[tuple[Units, Tensor]],
    draw: Draw,
    generator: torch.Generator,
    optimizers: Iterable[Optimizer] = (),
) -> None:
    """As `recycle_`, with masks (units,) in the place of indices: no number is read from the device.

    It draws for every unit, on the device, from a generator that the given one seeds: the same distribution as that of
    `recycle_`, other numbers.
    """
    marked, optimizers = list(marked), list(optimizers)
    local: dict[torch.device, torch.Generator] = {}
    for units, mask in marked:
        for producer in units.producers:
            kernel, bias = weight(producer.layer), producer.layer.bias
            if kernel.device not in local:
                local[kernel.device] = generator_on(kernel.device, generator)
            rows = slice(producer.start, producer.start + units.count)
            new = draw(producer.layer, kernel[rows].shape, local[kernel.device]).to(kernel)
            kernel[rows] = torch.where(mask.view(-1, *[1] * (kernel.ndim - 1)), new, kernel[rows])
            if isinstance(bias, Tensor):
                bias[rows].masked_fill_(mask, 0)
            whole = padded(mask, producer.start, len(kernel))
            reset_optimizer_state(optimizers, [t for t in (kernel, bias) if isinstance(t, Tensor)], whole)
        for norm in units.norms:
            for name, value in NEW_NORM.items():
                if (tensor := getattr(norm, name, None)) is not None:
                    tensor.masked_fill_(mask, value)
                    reset_optimizer_state(optimizers, [tensor], mask)
    for units, mask in marked:
        for consumer in units.consumers:
            kernel = weight(consumer.layer)
            inputs = mask
            if consumer.columns is not None:
                inputs = mask.new_zeros(kernel.shape[1])
                columns = sent(consumer.columns, mask.device)
                inputs[columns] = mask[:, None].expand(columns.shape)
            kernel.masked_fill_(inputs.view(1, -1, *[1] * (kernel.ndim - 2)), 0)
            reset_optimizer_state(optimizers, [kernel], inputs, dim=1)


def generator_on(device: torch.device, generator: torch.Generator) -> torch.Generator:
    """A generator of a device that this one seeds; on its own device itself."""
    if device == generator.device:
        return generator
    return torch.Generator(device).manual_seed(int(torch.randint(2**62, (), generator=generator)))


def padded(mask: Tensor, start: int, length: int) -> Tensor:
    """A mask of some rows as one of all, (length,)."""
    whole = mask.new_zeros(length)
    whole[start : start + len(mask)] = mask
    return whole


@torch.no_grad()
def redraw_rows_(
    layer: nn.Module,
    rows: Tensor,
    draw: Draw,
    generator: torch.Generator,
    optimizers: Iterable[Optimizer] = (),
    draw_bias: bool = False,
) -> None:
    """Redraw the incoming weights of some of a layer's outputs; redraw their biases too, or set them to zero."""
    kernel = weight(layer)
    kernel[rows] = draw(layer, (len(rows), *kernel.shape[1:]), generator).to(kernel)
    bias = layer.bias
    if isinstance(bias, Tensor):
        bias[rows] = draw(layer, (len(rows),), generator).to(bias) if draw_bias else 0.0
    reset_optimizer_state(optimizers, [t for t in (kernel, bias) if isinstance(t, Tensor)], rows)
