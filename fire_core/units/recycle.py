"""Recycle units in place: new incoming weights, outgoing weights of zero, no history in the optimizer.

On a CPU the units to recycle are a list of indices. On a GPU the host would have to wait for such a list, so there they
are a boolean mask: new weights are drawn for every unit, and only those that the mask marks are written.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.units.graph import Units, weight
from fire_core.weights.optimizer_state import fill_rows_, reset_optimizer_state

# (layer, shape, generator) -> new entries of this shape for the layer's weight or bias. The generator is one of the CPU
# or of the layer's device.
Draw = Callable[[nn.Module, Sequence[int], torch.Generator], Tensor]
NEW_NORM = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}  # the entries of a newly built norm


def resample(values: Tensor, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Draw a tensor of `shape` from the entries of `values`, with replacement.

    If `values` is a weight at initialisation, the draws follow the distribution that its initialiser drew from,
    whichever it was. The entries of an orthogonal weight depend on each other; draws from it have the same
    distribution, but are independent.

    Args:
        values: the entries to draw from, of any shape.
        shape: shape of the result.
        generator: of the CPU or of the device of `values`.

    Returns:
        A tensor of `shape` on the device of `values`.
    """
    index = torch.randint(values.numel(), tuple(shape), generator=generator, device=generator.device)
    if values.is_cuda and not index.is_cuda:  # from pinned memory the copy to the GPU does not make the host wait
        index = index.pin_memory()
    return values.flatten()[index.to(values.device, non_blocking=True)]


def is_cpu(device: torch.device) -> bool:
    """Return whether the numbers of tensors on a device can be read without waiting for it."""
    return device.type == "cpu"


def initial_draw(modules: Mapping[str, nn.Module], init: Mapping[str, Mapping[str, Tensor]]) -> Draw:
    """Return a `Draw` from the entries of a layer's own weight at the start of the run.

    Args:
        modules: the networks by name.
        init: their weights at the start of the run, by the same names.
    """
    initial: dict[nn.Module, Tensor] = {}
    for key, root in modules.items():
        for name, layer in root.named_modules():
            initial_weight = init[key].get(f"{name}.weight" if name else "weight")
            if initial_weight is not None:
                initial[layer] = initial_weight
    return lambda layer, shape, generator: resample(initial[layer], shape, generator)


@torch.no_grad()
def recycle_(
    selections: Iterable[tuple[Units, Tensor]],
    draw: Draw,
    generator: torch.Generator,
    optimizers: Iterable[Optimizer] = (),
) -> None:
    """Reinitialise units in place: draw incoming weights, reset norm entries, set biases and outgoing weights to zero.

    The units then add nothing to the network's output and can learn from the next step on, because their incoming
    weights are not zero. Optimizer state of exactly these rows and columns is reset. A group with a frozen weight, bias
    or norm (`Units.is_frozen`) stays as it is. Outgoing weights of all groups
    are zeroed after all drawing, because drawing a row for a unit of the next layer would undo a zero in it.

    On a CPU masks become indices. On other devices no number is read from the device: new weights are drawn there, for
    every unit, from a generator that the given one seeds. Their distribution is the same, the numbers differ.

    Args:
        selections: groups of units, each with the units to recycle: indices (k,) or a boolean mask (units,).
        draw: draws the incoming weights; `initial_draw` makes one that draws from initial weights.
        generator: a CPU generator.
        optimizers: the optimizers that train the weights.
    """
    optimizers = list(optimizers)
    nonempty: list[tuple[Units, Tensor]] = []
    for units, selected in selections:
        if units.is_frozen:
            continue
        if selected.dtype == torch.bool and is_cpu(selected.device):
            selected = selected.nonzero().flatten()
        if len(selected):
            nonempty.append((units, selected))
    for units, selected in nonempty:
        for producer in units.producers:
            row_of_unit = torch.arange(units.count, device=selected.device)[:, None] + producer.start
            rows = _expand(selected, row_of_unit, len(weight(producer.layer)))
            redraw_rows_(producer.layer, rows, draw, generator, optimizers)
        for norm in units.norms:
            for name, value in NEW_NORM.items():
                if (tensor := getattr(norm, name, None)) is not None:
                    _overwrite_(tensor, selected, value, optimizers)
    for units, selected in nonempty:
        for consumer in units.consumers:
            kernel, inputs = weight(consumer.layer), selected
            if consumer.columns is not None:
                inputs = _expand(selected, consumer.columns.to(selected.device), kernel.shape[1])
            _overwrite_(kernel, inputs, 0, optimizers, dim=1)


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
        rows: indices (k,) of outputs, or a boolean mask (outputs,). With a mask, weights are drawn for every output on
            the layer's device, and no number is read from the device.
        draw: draws the new weights.
        generator: a CPU generator.
        optimizers: the optimizers whose state of these rows is reset.
        draw_bias: draw the biases too instead of setting them to zero.
    """
    kernel, bias = weight(layer), layer.bias
    count = len(rows)  # of a mask: all outputs
    if rows.dtype == torch.bool:
        generator = generator_on(kernel.device, generator)
    new_rows = draw(layer, (count, *kernel.shape[1:]), generator).to(kernel, non_blocking=True)
    _overwrite_(kernel, rows, new_rows, optimizers)
    if isinstance(bias, Tensor):
        _overwrite_(bias, rows, draw(layer, (count,), generator).to(bias) if draw_bias else 0, optimizers)


def _overwrite_(
    tensor: Tensor, selected: Tensor, value: Tensor | float, optimizers: Iterable[Optimizer], dim: int = 0
) -> None:
    """Write a value at the indices or the mask along `dim`, and reset the optimizers' state there."""
    fill_rows_(tensor, selected, value, dim)
    reset_optimizer_state(optimizers, [tensor], selected, dim)


def _expand(selected: Tensor, positions: Tensor, length: int) -> Tensor:
    """Turn a selection of units into a selection of a layer's rows or columns.

    Args:
        selected: indices (k,) of units, or a boolean mask (units,).
        positions: (units, p), the rows or columns of each unit.
        length: number of the layer's rows or columns.

    Returns:
        Indices (k p,) from indices, a mask (length,) from a mask.
    """
    if selected.dtype != torch.bool:
        return positions[selected].flatten()
    mask = selected.new_zeros(length)
    mask[positions] = selected[:, None].expand(positions.shape)
    return mask


def generator_on(device: torch.device, generator: torch.Generator) -> torch.Generator:
    """Return a generator of this device, seeded by a draw from `generator`; `generator` itself if it is there."""
    if device == generator.device:
        return generator
    return torch.Generator(device).manual_seed(
        int(torch.randint(2**62, (), generator=generator, device=generator.device))
    )
