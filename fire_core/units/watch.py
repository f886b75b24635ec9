"""Measure every unit's activation during forward passes, by hooks on the layers that read it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fire_core.polar.steps import working_dtype
from fire_core.units.graph import Consumer, Units, weight


def mean_magnitude(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the mean absolute value over `dims`, in float32."""
    # One pass, no copy of x; float64 is not narrowed before it is summed.
    total: Tensor = torch.linalg.vector_norm(x, ord=1, dim=list(dims), dtype=working_dtype(x))
    return (total * (total.numel() / max(1, x.numel()))).float()


def peak(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the largest value over `dims`, or 0 if that is larger, in float32."""
    return x.amax(dim=list(dims)).float().clamp(min=0)


_OWN_PASSES: list[None] = []  # one entry for each block of `own_pass` that is open


@contextlib.contextmanager
def own_pass() -> Iterator[None]:
    """Mark the forward passes within this block as a method's own, so that watches of training passes ignore them."""
    _OWN_PASSES.append(None)
    try:
        yield
    finally:
        _OWN_PASSES.pop()


def is_trained(layer: nn.Module) -> bool:
    """Return whether a pass through the layer now is a training pass: in training mode, and not a method's own."""
    return layer.training and not _OWN_PASSES


def dims_without_units(layer: nn.Module, x: Tensor) -> list[int]:
    """Return all dimensions of a layer's activations except that of the units.

    Args:
        layer: a linear layer or a convolution.
        x: its input or output, (batch, ..., units), or of a convolution ([batch,] units, ...).
    """
    of_units = x.ndim - (weight(layer).ndim - 1 if isinstance(layer, _ConvNd) else 1)
    return [dim for dim in range(x.ndim) if dim != of_units]


class Watch:
    """A statistic of every unit's activation in the last forward pass; the activations themselves are not stored.

    Args:
        graph: the units.
        reduce: (activations, all dimensions but the channels') -> one number for each channel, (channels,).
        only_training: ignore layers in evaluation mode, and passes that are a method's own.

    A pass without samples (an empty batch, an expert without tokens) is not measured.
    """

    def __init__(
        self, graph: list[Units], reduce: Callable[[Tensor, Sequence[int]], Tensor], only_training: bool = True
    ) -> None:
        self.graph, self.reduce, self.only_training = graph, reduce, only_training
        self.samples = 0  # in the last pass that had some
        self.saw_pass = False
        # For each group of units: consumer -> statistic of the units as this consumer read them, (units,)
        self._statistics: list[dict[nn.Module, Tensor]] = [{} for _ in graph]

    @contextlib.contextmanager
    def on(self) -> Iterator[Watch]:
        """Measure the passes within this block, by hooks that are removed at its end."""
        with contextlib.ExitStack() as hooks:
            for units, statistics in zip(self.graph, self._statistics, strict=True):
                for consumer in units.consumers:
                    if consumer.probed:
                        hook = self._measuring_hook(consumer, statistics)
                        hooks.callback(consumer.layer.register_forward_pre_hook(hook).remove)
            yield self

    def _measuring_hook(
        self, consumer: Consumer, statistics: dict[nn.Module, Tensor]
    ) -> Callable[[nn.Module, tuple[Tensor]], None]:
        """Return a hook that stores the statistic of the units that a layer reads in a pass.

        Args:
            consumer: the layer, and which of its inputs each unit is.
            statistics: where the statistic goes: layer -> (units,).
        """
        columns = consumer.columns

        def measure(layer: nn.Module, inputs: tuple[Tensor]) -> None:
            if layer is not consumer.layer:  # a copy of the model, whose layers have this hook as well
                return
            if self.only_training and not is_trained(layer):
                return
            with torch.no_grad():
                self.saw_pass = True
                x = inputs[0].detach()
                dims = dims_without_units(layer, x)
                if any(x.shape[dim] == 0 for dim in dims):
                    return
                per_channel = self.reduce(x, dims)  # (channels,)
                statistics[layer] = per_channel if columns is None else per_channel[columns].mean(-1)  # (units,)
                self.samples = len(x)

        return measure

    def read(self, skip_unused: bool = False) -> list[Tensor]:
        """Return the statistic of each group of units, the mean over its consumers, (units,).

        Args:
            skip_unused: leave out groups whose layers no pass has used, instead of raising.

        Raises:
            RuntimeError: no forward pass was measured by this watch yet, or none went through some layer.
        """
        if not any(self._statistics):
            raise RuntimeError(
                "no pass with samples was seen; a network that torch.compile compiled before the hooks were put on "
                "does not run them"
            )
        if not skip_unused:
            for units, statistics in zip(self.graph, self._statistics, strict=True):
                if not statistics:
                    layer = units.consumers[0].layer
                    raise RuntimeError(f"no sample went through {layer}, which reads units that are to be measured")
        return [torch.stack(list(statistics.values())).mean(0) for statistics in self._statistics if statistics]
