"""Input, hidden and output layers of a network, for methods that treat them differently."""

import logging
from collections.abc import Iterable, Mapping
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from fire_core.methods.protocol import Net
from fire_core.polar.steps import to_working
from fire_core.ranges import one_of
from fire_core.units.graph import weight
from fire_core.units.trace import unit_graph
from fire_core.weights.layout import PRESETS, resolve

log = logging.getLogger(__name__)


def preset(option: str, value: Any) -> str | None:
    """Check the name of a layout: return what is wrong, else None. A mapping is checked later, on the network."""
    return one_of(*PRESETS)(option, value) if isinstance(value, str) else None


ChosenLayout = Annotated[str | Mapping[str, str] | None, preset]  # None: the network's own layout


Layer = nn.Linear | _ConvNd


def named_layers(module: nn.Module) -> dict[str, Layer]:
    """Return a module's linear layers and convolutions by name, in the order of registration, shared ones once."""
    return {name: m for name, m in module.named_modules() if isinstance(m, Layer)}


def layers_of(net: Net) -> list[Layer]:
    """Return all linear layers and convolutions of all networks, in the order of registration."""
    return [layer for root in net.modules.values() for layer in named_layers(root).values()]


def check_plain(net: Net, layers: Iterable[Layer]) -> None:
    """Check that a method may write into the weights and biases of these layers.

    Raises:
        ValueError: a weight or bias is no parameter. A parametrised layer (spectral norm, weight norm) computes it from
            other tensors at each pass, so that what is written there would be lost.
    """
    names = {layer: name for root in net.modules.values() for name, layer in named_layers(root).items()}
    for layer in layers:
        if not all(isinstance(part, nn.Parameter | None) for part in (layer.weight, layer.bias)):
            name = names.get(layer) or type(layer).__name__
            raise ValueError(f"{name} is parametrised: its weight or bias is no parameter that can be changed")


def check_units(net: Net) -> None:
    """Check that a method may recycle hidden units of these networks, and log which it leaves alone.

    Raises:
        ValueError: there are no units; a layer of theirs is parametrised, is a transposed convolution or reads them in
            groups, so that its rows and columns are not those of the units; or each unit has a frozen weight, bias or
            norm.
    """
    graph = unit_graph(net.modules, log_omitted=True)
    check_plain(net, (layer for units in graph for layer in units.layers if isinstance(layer, Layer)))
    for units in graph:
        readers = [consumer.layer for consumer in units.consumers]
        if any(isinstance(layer, _ConvTransposeNd) for layer in units.layers):
            raise ValueError(f"units {units.name}: the rows of a transposed convolution's weight are its inputs")
        if any(isinstance(layer, _ConvNd) and layer.groups > 1 for layer in readers):
            raise ValueError(f"units {units.name}: a grouped convolution reads them, whose columns are not all units")
    frozen = [units.name for units in graph if units.is_frozen]
    if len(frozen) == len(graph):
        raise ValueError("no hidden unit can be changed: each has a frozen weight, bias or norm (requires_grad=False)")
    if frozen:
        log.info("hidden units with a frozen weight, bias or norm stay as they are: %s", ", ".join(frozen))


def input_layers(module: nn.Module) -> set[Layer]:
    """Return the layer that reads the network's input, which is the first one registered, as a set of one.

    The set is empty where an embedding, a recurrent or an attention module comes before it and reads the input.
    """
    for layer in module.modules():
        if isinstance(layer, (nn.Embedding, nn.RNNBase, nn.MultiheadAttention)):
            return set()
        if isinstance(layer, Layer):
            return {layer}
    return set()


# Cache of `output_layers`, since penalties ask for them at each step: all layers of a network -> its output layers.
_OUTPUT_LAYERS = WeakKeyDictionary[nn.Module, tuple[list[Layer], set[Layer]]]()


def output_layers(module: nn.Module) -> set[Layer]:
    """Return the layers whose outputs are the network's outputs: the last layer of each of its heads.

    A network without anything that is called a head has one output layer: the last one registered.
    """
    if isinstance(module, Layer):
        return {module}
    layers = named_layers(module)
    cached_layers, outputs = _OUTPUT_LAYERS.get(module, ([], set[Layer]()))
    if cached_layers != [*layers.values()]:
        outputs = _find_output_layers(module, layers)
        _OUTPUT_LAYERS[module] = [*layers.values()], outputs
    return outputs


def _find_output_layers(module: nn.Module, layers: Mapping[str, Layer]) -> set[Layer]:
    """Return the last layer of each head; without a head the last layer registered, as a set of one.

    Args:
        module: the network.
        layers: its linear layers and convolutions by name, in the order of registration.
    """
    head_weights = {entry.parameter for entry in resolve(module, "all") if entry.role == "head"}
    head_layers = {name: layer for name, layer in layers.items() if layer.weight in head_weights}
    if not head_layers:
        return set(list(layers.values())[-1:])
    last_layers = {}  # the last layer of each Sequential; a layer outside of a Sequential is a head of its own
    for name, layer in head_layers.items():
        parent = name.rpartition(".")[0]
        in_sequential = isinstance(module.get_submodule(parent), nn.Sequential)
        last_layers[parent if in_sequential else name] = layer
    return set(last_layers.values())


def hidden_layers(module: nn.Module) -> list[Layer]:
    """Return all linear layers and convolutions except the output layers, in the order of registration."""
    outputs = output_layers(module)
    return [layer for layer in named_layers(module).values() if layer not in outputs]


def hidden_layers_of(net: Net) -> list[Layer]:
    """Return the hidden layers of all networks, in the order of registration."""
    return [layer for root in net.modules.values() for layer in hidden_layers(root)]


def flattened_weights(layers: Iterable[nn.Module]) -> list[Tensor]:
    """Return each layer's weight flattened to (d_out, d_in k_h k_w), shared ones once; a 1-d weight stays a vector.

    These are not the matrices that `fire_` projects, of which a convolution has one for each position of its kernel.
    """
    distinct = dict.fromkeys(weight(layer) for layer in layers)
    return [W if W.ndim == 1 else W.flatten(1) for W in distinct]


def is_norm(module: nn.Module) -> bool:
    """Return whether a module is one of torch's norms, or one that is called so; not an activation with a weight."""
    is_torchs = isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _NormBase))
    return is_torchs or "norm" in type(module).__name__.lower()


def norms(tensors: Iterable[Tensor]) -> Tensor:
    """Return the Euclidean norm of each of n tensors, (n,), in float32 at least: its square may not fit into half."""
    # One kernel launch for all tensors on a GPU. The public get_total_norm uses it too, but returns their joint norm.
    return to_working(torch.stack(torch._foreach_norm(tuple(tensors))))
