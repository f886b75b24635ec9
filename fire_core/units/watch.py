"""Measure every unit's activation during forward passes, by hooks on the layers that read it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fire_core.units.graph import Consumer, Units


def mean_magnitude(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Mean absolute value over `dims`, in float32."""
    total: Tensor = torch.linalg.vector_norm(x, ord=1, dim=list(dims), dtype=torch.float32)  # one pass, no copy of x
    return total * (total.numel() / x.numel())


def peak(x: Tensor, dims: Sequence[int]) -> Tensor:
    """The largest value over `dims`, and 0 at least."""
    return x.amax(dim=list(dims)).float().clamp(min=0)


_OWN_PASSES: list[None] = []  # one for each block of `own_pass` that is open


@contextlib.contextmanager
def own_pass() -> Iterator[None]:
    """A pass within this block is a method's own: whatever watches the passes of training does not see it."""
    _OWN_PASSES.append(None)
    try:
        yield
    finally:
        _OWN_PASSES.pop()


def is_trained(layer: nn.Module) -> bool:
    """Whether a pass through the layer is one of training."""
    return layer.training and not _OWN_PASSES


class Watch:
    """A statistic of every unit in the last forward pass; the activations themselves are not kept.

    Args:
        graph: the units.
        reduce: (activations, all dimensions but the units') -> a number for each unit, (inputs of the consumer,).
        only_training: ignore layers in evaluation mode.
    """

    def __init__(
        self, graph: list[Units], reduce: Callable[[Tensor, Sequence[int]], Tensor], only_training: bool = True
    ) -> None:
        self.graph, self.reduce, self.only_training = graph, reduce, only_training
        self.samples = 0  # in the last pass
        self._seen: list[dict[nn.Module, Tensor]] = [{} for _ in graph]

    @contextlib.contextmanager
    def on(self) -> Iterator[Watch]:
        """Hooks on the consumers within this block."""
        with contextlib.ExitStack() as hooks:
            for units, seen in zip(self.graph, self._seen, strict=True):
                for consumer in units.consumers:
                    if consumer.probed:
                        hooks.callback(consumer.layer.register_forward_pre_hook(self._hook(consumer, seen)).remove)
            yield self

    def _hook(self, consumer: Consumer, seen: dict[nn.Module, Tensor]) -> Callable[[nn.Module, tuple[Tensor]], None]:
        columns = consumer.columns

        def look(layer: nn.Module, inputs: tuple[Tensor]) -> None:
            if self.only_training and not is_trained(layer):
                return
            with torch.no_grad():
                x = inputs[0].detach()
                channel = x.ndim - (layer.weight.ndim - 1 if isinstance(layer, _ConvNd) else 1)
                value = self.reduce(x, [d for d in range(x.ndim) if d != channel])  # (inputs,)
                seen[layer] = value if columns is None else value[columns].mean(-1)  # (units,)
                self.samples = len(x)

        return look

    def read(self, unused: bool = False) -> list[Tensor]:
        """For each group of units a (units,) tensor, the mean over its consumers.

        Args:
            unused: leave out groups whose layers no pass has used, instead of raising.

        Raises:
            RuntimeError: there was no forward pass since the hooks were registered, or none through some layer.
        """
        if not any(self._seen):
            raise RuntimeError(
                "no pass was seen: a network that torch.compile compiled before the hooks were put on does not run them"
            )
        if not unused and not all(self._seen):
            missing = next(units for units, seen in zip(self.graph, self._seen, strict=True) if not seen)
            layer = missing.consumers[0].layer
            raise RuntimeError(f"no pass went through {layer}, which reads units that are to be measured")
        return [torch.stack(list(seen.values())).mean(0) for seen in self._seen if seen]
