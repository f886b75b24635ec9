"""Input, hidden and output layers of a network, for methods that treat them differently."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fire_core.methods.protocol import Net
from fire_core.ranges import one_of
from fire_core.units.graph import weight
from fire_core.weights.layout import PRESETS, resolve


def preset(option: str, value: Any) -> str | None:
    """What is wrong with the name of a layout; one's own mapping is checked on the network."""
    return one_of(*PRESETS)(option, value) if isinstance(value, str) else None


ChosenLayout = Annotated[str | Mapping[str, str] | None, preset]  # None: the network's own


Layer = nn.Linear | _ConvNd


def linear_layers(module: nn.Module) -> dict[str, Layer]:
    """Linear layers and convolutions by name, in the order of registration, shared ones once."""
    return {name: m for name, m in module.named_modules() if isinstance(m, Layer)}


def layers_of(net: Net) -> list[Layer]:
    """All linear layers and convolutions of all networks."""
    return [layer for root in net.modules.values() for layer in linear_layers(root).values()]


def check_plain(net: Net, layers: Iterable[Layer]) -> None:
    """For a method that writes into the weights and biases of these layers.

    Raises:
        ValueError: one is no parameter: a layer that computes it from others would lose what is written there.
    """
    names = {layer: name for root in net.modules.values() for name, layer in linear_layers(root).items()}
    for layer in layers:
        if not all(isinstance(part, nn.Parameter | None) for part in (layer.weight, layer.bias)):
            name = names[layer] or type(layer).__name__
            raise ValueError(f"{name} is parametrised: its weight or bias is no parameter that can be changed")


def input_layers(module: nn.Module) -> set[Layer]:
    """The layer that reads the network's input: the first one registered; none where another module reads it."""
    for layer in module.modules():
        if isinstance(layer, (nn.Embedding, nn.RNNBase, nn.MultiheadAttention)):
            return set()
        if isinstance(layer, Layer):
            return {layer}
    return set()


# Of networks whose layers were looked through: these, and the output layers among them. Penalties ask at each step.
_OUTPUTS = WeakKeyDictionary[nn.Module, tuple[list[Layer], set[Layer]]]()


def output_layers(module: nn.Module) -> set[Layer]:
    """The layers whose outputs are the network's: those of its heads, of a head with several layers the last one.

    A network without anything that is called a head has one output layer: the last one registered.
    """
    if isinstance(module, Layer):
        return {module}
    layers = linear_layers(module)
    known, found = _OUTPUTS.get(module, ([], set[Layer]()))
    if known != [*layers.values()]:
        found = _output_layers(module, layers)
        _OUTPUTS[module] = [*layers.values()], found
    return found


def _output_layers(module: nn.Module, layers: Mapping[str, Layer]) -> set[Layer]:
    heads = {entry.parameter for entry in resolve(module, "all") if entry.role == "head"}
    named = {name: layer for name, layer in layers.items() if layer.weight in heads}
    if not named:
        return set(list(layers.values())[-1:])
    last = {}  # of each Sequential; a layer outside of one counts alone
    for name, layer in named.items():
        parent = name.rpartition(".")[0]
        inside = isinstance(module.get_submodule(parent), nn.Sequential)
        last[parent if inside else name] = layer
    return set(last.values())


def hidden_layers(module: nn.Module) -> list[Layer]:
    """All linear layers and convolutions but the output layers, in the order of registration."""
    last = output_layers(module)
    return [layer for layer in linear_layers(module).values() if layer not in last]


def hidden_layers_of(net: Net) -> list[Layer]:
    """Those of all networks."""
    return [layer for root in net.modules.values() for layer in hidden_layers(root)]


def matrices(layers: Iterable[nn.Module]) -> list[Tensor]:
    """Each layer's weight as a matrix (d_out, d_in k_h k_w), shared ones once; a vector stays one."""
    distinct = dict.fromkeys(weight(layer) for layer in layers)
    return [W if W.ndim == 1 else W.flatten(1) for W in distinct]


def norms(tensors: Iterable[Tensor]) -> Tensor:
    """The Euclidean norm of each of n tensors, (n,)."""
    # One kernel launch for all tensors on a GPU. The public get_total_norm uses it too, but gives their common norm.
    return torch.stack(torch._foreach_norm(tuple(tensors)))
