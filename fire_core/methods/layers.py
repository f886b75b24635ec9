"""Input, hidden and output layers of a network, for methods that treat them differently."""

from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fire_core.methods.protocol import Net
from fire_core.weights.layout import resolve


def linear_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Linear layers and convolutions by name, in the order of registration, shared ones once."""
    return {name: m for name, m in module.named_modules() if isinstance(m, (nn.Linear, _ConvNd))}


def input_layers(module: nn.Module) -> set[nn.Module]:
    """The layer that reads the network's input: the first one registered; none where an embedding comes before it."""
    for layer in module.modules():
        if isinstance(layer, nn.Embedding):
            return set()
        if isinstance(layer, (nn.Linear, _ConvNd)):
            return {layer}
    return set()


def output_layers(module: nn.Module) -> set[nn.Module]:
    """The layers whose outputs are the network's: those of its heads, of a head with several layers the last one.

    A network without anything that is called a head has one output layer: the last one registered.
    """
    layers = linear_layers(module)
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


def hidden_layers(module: nn.Module) -> list[nn.Module]:
    """All linear layers and convolutions but the output layers, in the order of registration."""
    last = output_layers(module)
    return [layer for layer in linear_layers(module).values() if layer not in last]


def hidden_layers_of(net: Net) -> list[nn.Module]:
    """Those of all networks."""
    return [layer for root in net.modules.values() for layer in hidden_layers(root)]


def matrices(layers: Iterable[nn.Module]) -> list[Tensor]:
    """Each layer's weight as a matrix (d_out, d_in k_h k_w), shared ones once; a vector stays one.

    Linear layers in parallel (n, d_out, d_in) give n matrices.
    """
    found: dict[Tensor, nn.Module] = {}
    for layer in layers:
        assert isinstance(layer.weight, Tensor)
        found[layer.weight] = layer
    parts: list[Tensor] = []
    for weight, layer in found.items():
        parallel = isinstance(layer, nn.Linear) and weight.ndim == 3
        parts += [part if part.ndim == 1 else part.flatten(1) for part in (weight.unbind() if parallel else [weight])]
    return parts
