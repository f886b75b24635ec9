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
    """A linear layer or convolution that writes units: its output row `start + j` is unit j, or a summand of it.

    Attributes:
        layer: the layer.
        start: its first row that belongs to the units.
    """

    layer: nn.Module
    start: int = 0


@dataclass(frozen=True)
class Consumer:
    """A linear layer or convolution that reads units.

    Attributes:
        layer: the layer.
        columns: (units, k), the inputs of the layer that hold each unit; None if input j holds unit j.
        probed: whether the layer's input is measured; False where another consumer reads the same tensor.
    """

    layer: nn.Module
    columns: Tensor | None = None
    probed: bool = True


@dataclass(frozen=True)
class Units:
    """A group of units that are interchangeable: permuting them, with their rows and columns, keeps the function.

    (The values of an attention layer are interchangeable within their head only.)

    Attributes:
        name: name for state and messages, unique within a graph.
        count: number of units.
        producers: all layers that write the units; several for a residual stream.
        consumers: all layers that read them. A unit's activation is what they read: after norm and nonlinearity.
        norms: batch norms and layer norms between producers and consumers, which have an entry for each unit.
    """

    name: str
    count: int
    producers: tuple[Producer, ...]
    consumers: tuple[Consumer, ...]
    norms: tuple[nn.Module, ...] = ()

    @property
    def layers(self) -> list[nn.Module]:
        """Return all layers that write or read the units, each once."""
        producers = [producer.layer for producer in self.producers]
        return list(dict.fromkeys([*producers, *(consumer.layer for consumer in self.consumers)]))

    @property
    def is_frozen(self) -> bool:
        """Return whether a layer or norm of the units has a frozen weight or bias, so that no method may change them.

        A new unit needs all of its parts: new incoming weights would change the network's output if the outgoing ones
        could not be set to zero.
        """
        return is_frozen(*self.layers, *self.norms)


def between(
    name: str, producer: nn.Module, consumer: nn.Module, norm: nn.Module | None = None, copies: int = 1
) -> Units:
    """Return the units that one layer writes and another reads; a linear layer may read a flattened convolution map.

    Args:
        name: see `Units`.
        producer: the layer that writes them.
        consumer: the layer that reads them.
        norm: the norm between the two, if there is one.
        copies: features that the activation makes of each unit (`fire_core.activations`). The inputs of the consumer
            hold the first feature of all units, then the second of all units.

    Raises:
        ValueError: there are no units, or the number of the consumer's inputs is no multiple of the features.
    """
    count, inputs = len(weight(producer)), weight(consumer).shape[1]
    if not count:
        raise ValueError(f"{name}: the producer has no outputs, and so there are no units")
    if inputs % (count * copies):
        raise ValueError(f"{name}: {count * copies} units do not divide the {inputs} inputs of their consumer")
    columns = None
    if inputs != count:
        # inputs in the order (feature, unit, position) -> for each unit, the inputs of its features and positions
        columns = torch.arange(inputs, device="cpu").view(copies, count, -1).transpose(0, 1).flatten(1)
    return Units(name, count, (Producer(producer),), (Consumer(consumer, columns),), () if norm is None else (norm,))


def is_frozen(*modules: nn.Module) -> bool:
    """Return whether one of these layers or norms has a parameter of its own with `requires_grad=False`."""
    return not all(p.requires_grad for module in modules for p in module.parameters(recurse=False))


def weight(layer: nn.Module) -> Tensor:
    """Return a layer's weight, (outputs, inputs, ...), typed as a tensor."""
    tensor = layer.weight
    assert isinstance(tensor, Tensor)
    return tensor
