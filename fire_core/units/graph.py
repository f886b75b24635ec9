"""Hidden units of a network: who makes them, who normalises them, who reads them.

A weight matrix does not tell which of its rows belong to which column of another one: a residual stream has several
producers and several readers, a flattened map gives each channel many columns, and in a transformer the layer that
runs next is seldom the one that reads. So a model says it itself, in a method `unit_graph()` that returns a list of
`Units`; methods that score and recycle units (ReDo, CBP, SNR) know nothing else of it. For a model that says nothing,
`fire_core.units.trace` finds what can be found.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer

from fire_core.weights.optimizer_state import reset_optimizer_state
from fire_core.weights.topology import unwrap


@dataclass(frozen=True)
class Producer:
    """A linear layer or convolution whose output row `start + j` is (a summand of) unit j."""

    layer: nn.Module
    start: int = 0


@dataclass(frozen=True)
class Consumer:
    """A linear layer or convolution that reads unit j.

    Attributes:
        layer: the reader.
        columns: (units, k) which of its inputs hold each unit; None: input j holds unit j.
        probed: whether its input is looked at; False where another consumer reads the same tensor.
    """

    layer: nn.Module
    columns: Tensor | None = None
    probed: bool = True


@dataclass(frozen=True)
class Units:
    """Units that are interchangeable: permuting them, with their rows and columns, leaves the function alone.

    (The values of an attention layer: within their head.)

    Attributes:
        name: for state and messages, unique within a graph.
        count: how many.
        producers: all layers that write them; several for a residual stream.
        consumers: all layers that read them. A unit's activation is what they see: after norm and nonlinearity.
        norms: batch norms with an entry for each unit between the two.
    """

    name: str
    count: int
    producers: tuple[Producer, ...]
    consumers: tuple[Consumer, ...]
    norms: tuple[nn.Module, ...] = ()


def between(name: str, producer: nn.Module, consumer: nn.Module, norm: nn.Module | None = None) -> Units:
    """The units from one layer to the next; a linear layer may read a flattened map of a convolution."""
    count, inputs = len(weight(producer)), weight(consumer).shape[1]
    if inputs % count:
        raise ValueError(f"{name}: {count} units do not divide the {inputs} inputs of their consumer")
    columns = None if inputs == count else torch.arange(inputs).view(count, -1)
    return Units(name, count, (Producer(producer),), (Consumer(consumer, columns),), () if norm is None else (norm,))


def unit_graph(modules: Mapping[str, nn.Module], say: bool = False) -> list[Units]:
    """The units that the modules declare; those of a module that declares none are read off a trace of it.

    Args:
        modules: by name.
        say: in the log, what a trace left out.

    Raises:
        ValueError: a module has neither a `unit_graph()` nor a `forward` that can be traced, or there are no units.
    """
    from fire_core.units.trace import traced_units  # which needs this module

    roots = [unwrap(module) for module in modules.values()]
    users = Counter(id(p) for root in roots for p in root.parameters())
    shared = {key for key, count in users.items() if count > 1}
    graph: list[Units] = []
    for root in roots:
        declare = getattr(root, "unit_graph", None)
        graph += traced_units(root, shared, say) if declare is None else declare()
    if not graph:
        kinds = ", ".join(type(unwrap(module)).__name__ for module in modules.values())
        raise ValueError(
            f"no hidden units of {kinds} are declared or can be traced: give it a method unit_graph() "
            "(see fire_core.units.graph), or take one of this project's own models"
        )
    return graph


def weight(layer: nn.Module) -> Tensor:
    """A layer's weight, (outputs, inputs, ...)."""
    found = layer.weight
    assert isinstance(found, Tensor)
    return found


# ------------------------------------------------------------------------------------------------------- observation


def mean_magnitude(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Mean absolute value over `dims`, in float32."""
    total: Tensor = torch.linalg.vector_norm(x, ord=1, dim=list(dims), dtype=torch.float32)  # one pass, no copy of x
    return total * (total.numel() / x.numel())


def peak(x: Tensor, dims: Sequence[int]) -> Tensor:
    """The largest value over `dims`, and 0 at least."""
    return x.amax(dim=list(dims)).float().clamp(min=0)


class Watch:
    """What the last forward pass showed of every unit; of the activations themselves nothing is kept.

    Args:
        graph: the units.
        reduce: (activations, all dimensions but the units') -> a number for each unit, (inputs of the consumer,).
        only_training: look away while a layer is in evaluation mode.
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
        columns = None if consumer.columns is None else consumer.columns.to(weight(consumer.layer).device)

        def look(layer: nn.Module, inputs: tuple[Tensor]) -> None:
            if self.only_training and not layer.training:
                return
            with torch.no_grad():
                x = inputs[0].detach()
                channel = x.ndim - (layer.weight.ndim - 1 if isinstance(layer, _ConvNd) else 1)
                value = self.reduce(x, [d for d in range(x.ndim) if d != channel])  # (inputs,)
                seen[layer] = value if columns is None else value[columns].mean(1)  # (units,)
                self.samples = len(x)

        return look

    def read(self) -> list[Tensor]:
        """For each group of units a (units,) tensor, the mean over its consumers.

        Raises:
            RuntimeError: nothing has passed since the hooks are on.
        """
        if not all(self._seen):
            raise RuntimeError(
                "no pass was seen: a network that torch.compile compiled before the hooks were put on does not run them"
            )
        return [
            next(iter(seen.values())) if len(seen) == 1 else torch.stack(list(seen.values())).mean(0)
            for seen in self._seen
        ]


# --------------------------------------------------------------------------------------------------------- recycling


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

    The units then add nothing to the network's output and learn at once, for their incoming weights are alive. What
    optimizers remember of exactly these rows and columns is forgotten. Outgoing weights of all groups are zeroed after
    the drawing, so that a row drawn for a unit of the next layer does not bring one back.

    Args:
        chosen: groups of units, each with the indices (k,) of those to recycle.
        draw: for the incoming weights.
        generator: on the CPU.
        optimizers: those that hold the weights.
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
