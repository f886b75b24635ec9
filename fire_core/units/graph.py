"""Hidden units of a network: which layers write them, normalise them and read them.

A weight matrix does not show which of its rows belong to which columns of another one: a residual stream has several
producers and several readers, a flattened map gives each channel many columns, and in a transformer the layer that
runs next is seldom the reader. So a model declares its units in a method `unit_graph()` that returns a list of `Units`;
methods that score and recycle units (ReDo, CBP, SNR) use nothing else. `fire_core.units.trace` collects them, and reads
those of a model that declares none off a trace.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


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
        probed: whether its input is measured; False where another consumer reads the same tensor.
    """

    layer: nn.Module
    columns: Tensor | None = None
    probed: bool = True


@dataclass(frozen=True)
class Units:
    """Units that are interchangeable: permuting them, with their rows and columns, does not change the function.

    (The values of an attention layer: within their head.)

    Attributes:
        name: for state and messages, unique within a graph.
        count: how many.
        producers: all layers that write them; several for a residual stream.
        consumers: all layers that read them. A unit's activation is what they see: after norm and nonlinearity.
        norms: batch norms and layer norms with an entry for each unit between the two.
    """

    name: str
    count: int
    producers: tuple[Producer, ...]
    consumers: tuple[Consumer, ...]
    norms: tuple[nn.Module, ...] = ()


def between(
    name: str, producer: nn.Module, consumer: nn.Module, norm: nn.Module | None = None, copies: int = 1
) -> Units:
    """The units from one layer to the next; a linear layer may read a flattened map of a convolution.

    Args:
        name: see `Units`.
        producer: the first layer.
        consumer: the next one.
        norm: between the two.
        copies: features of each unit, first those of all units, then the next ones (`fire_core.activations`).

    Raises:
        ValueError: the consumer's inputs are no multiple of the features.
    """
    count, inputs = len(weight(producer)), weight(consumer).shape[1]
    if inputs % (count * copies):
        raise ValueError(f"{name}: {count * copies} units do not divide the {inputs} inputs of their consumer")
    columns = (
        None
        if inputs == count
        else torch.arange(inputs, device="cpu").view(copies, count, -1).transpose(0, 1).flatten(1)
    )
    return Units(name, count, (Producer(producer),), (Consumer(consumer, columns),), () if norm is None else (norm,))


def weight(layer: nn.Module) -> Tensor:
    """A layer's weight, (outputs, inputs, ...)."""
    found = layer.weight
    assert isinstance(found, Tensor)
    return found
