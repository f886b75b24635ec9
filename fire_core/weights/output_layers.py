"""Which layers put out what a network is for, read off the source of its forward passes.

A name such as `head` or `classifier` says it, but many networks have none. What a forward pass returns of one layer as
it is, or only squashed, is put out by that layer. A module may wrap several networks, an actor and a critic, an encoder
and a decoder; each has its own output layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from typing import NamedTuple

from torch import Tensor, nn

from fire_core.weights.source import SourceReader
from fire_core.weights.syntax_trees import forward_of, is_torchs
from fire_core.weights.topology import input_count, is_dense, is_layer, output_count, words

# What comes after a hidden layer: an activation of such layers, a norm, the sum with what the block was given.
_HIDDEN = words(
    "norm layer_norm rms_norm batch_norm group_norm instance_norm added gated relu relu6 gelu silu mish elu selu celu "
    "leakyrelu leaky_relu prelu rrelu hardswish"
)


Sizes = tuple[tuple[int, int], ...]  # (d_out, d_in) of layers


class Network(NamedTuple):
    """A network that another module wraps: itself, and the list of modules in which it lies, if it lies in one."""

    module: nn.Module
    row: nn.Module | None


def output_weights(model: nn.Module, code: SourceReader, named: Set[int]) -> set[int]:
    """Return the `id`s of the weights of linear layers that put out what a network is for.

    Args:
        model: without wrappers.
        code: what was read of it.
        named: weights of layers that are called a head: a network with one of them has no other output layers.
    """
    if isinstance(model, nn.ModuleList):
        return set()  # of networks side by side, or of blocks in a row: nothing says so
    wrapped = list(networks_within(model))
    networks_without_head = []
    for network in wrapped or [Network(model, None)]:
        if named.isdisjoint(_weights_of(network.module)):
            networks_without_head.append(network)
    is_run = forward_of(model)[0] is not nn.Module.forward
    # What lies in networks of one list with layers of the same sizes: perhaps blocks, of which one reads another.
    modules_by_row_and_sizes: dict[tuple[int, Sizes], set[int]] = {}
    for network in wrapped:
        if network.row is not None:
            modules = {id(part) for part in network.module.modules()}
            modules_by_row_and_sizes.setdefault((id(network.row), _sizes(network.module)), set()).update(modules)
    output_keys: set[int] = set()
    for network in networks_without_head:
        siblings = modules_by_row_and_sizes.get((id(network.row), _sizes(network.module)), set())
        is_part = bool(wrapped) and is_run
        output_keys |= _output_layer_keys(network.module, code, _weights_of(network.module), is_part, siblings)
    if wrapped and is_run and networks_without_head:
        weights = set().union(*(_weights_of(network.module) for network in networks_without_head))
        output_keys |= _output_layer_keys(model, code, weights, is_part=False, siblings=set())
    return output_keys


def output_convolutions(model: nn.Module, code: SourceReader) -> set[int]:
    """Return the `id` of the weight of the convolution that puts out what a model is for, as that of a U-Net, in a set.

    Args:
        model: without wrappers.
        code: what was read of it.
    """
    convolutions = [layer for layer in model.modules() if is_layer(layer) and not is_dense(layer)]
    weights = {id(weight) for layer in convolutions if (weight := _weight(layer)) is not None}
    keys: set[int] = set()
    for flow in code.results.get(model, ()):
        origins = {key for key, _ in flow.origins}
        if len(origins) == 1 and origins <= weights and not set(flow.steps) & _HIDDEN:
            keys |= {key for key in origins if not code.is_residual(key)}
    return keys if len(keys) == 1 else set()  # a model that returns several has features for others to use


def networks_within(module: nn.Module) -> Iterator[Network]:
    """Yield the networks that a module wraps, if it only wraps networks.

    Such a module has no layers and no matrices of its own, and each part has several layers.
    """
    parts = list(parts_of(module))
    matrices = [parameter for parameter in module._parameters.values() if parameter is not None and parameter.ndim > 1]
    if matrices or not parts or any(sum(map(is_layer, part.module.modules())) < 2 for part in parts):
        return
    for part in parts:
        inside = list(networks_within(part.module)) if not isinstance(part.module, nn.Sequential) else []
        yield from inside or [part]


def parts_of(module: nn.Module) -> Iterator[Network]:
    """Yield the children of a module that have parameters; those of a list or mapping of modules in its place."""
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)) and is_torchs(type(child)):
            yield from (Network(part, child) for part, _ in parts_of(child))
        elif any(True for _ in child.parameters()):
            yield Network(child, module if isinstance(module, nn.Sequential) else None)


def _sizes(module: nn.Module) -> Sizes:
    """Return (d_out, d_in) of each linear layer and convolution, in the order of registration."""
    return tuple((output_count(layer), input_count(layer)) for layer in module.modules() if is_layer(layer))


def _weight(layer: nn.Module) -> Tensor | None:
    """Return the weight of a layer; None if it is parametrised, for computing it may change buffers."""
    return layer._parameters.get("weight")


def _weights_of(network: nn.Module) -> set[int]:
    """Return the `id`s of the weights of a network's linear layers, without those that are parametrised."""
    return {id(weight) for layer in network.modules() if is_dense(layer) and (weight := _weight(layer)) is not None}


def _output_layer_keys(
    network: nn.Module, code: SourceReader, weights: Set[int], is_part: bool, siblings: Set[int]
) -> set[int]:
    """Return the `id`s of the weights of a network's output layers.

    Args:
        network: a module.
        code: what was read of the model.
        weights: `id`s of the weights of its linear layers.
        is_part: whether another forward pass uses what it returns.
        siblings: `id`s of all modules in this and in other networks of one list with layers of the same sizes. They are
            blocks if one reads what another one returns.
    """
    output_keys: set[int] = set()
    if is_layer(network):
        return output_keys
    steps_after = {key: code.steps_after(key) for key in weights}
    layers_with_step = Counter(step for steps in steps_after.values() for step in steps)
    own_modules = {id(module) for module in network.modules()} if is_part else set()
    for flow in code.results.get(network, ()):
        keys = {key for key, _ in flow.origins}
        steps = set(flow.steps)
        if is_part:  # what the other forward pass does with the result counts too
            for key in keys:
                steps |= code.steps_after(key)
        if not keys or not keys <= weights or steps & _HIDDEN:
            continue
        is_consumed = any(code.is_consumed(key) for key in keys)
        if len(keys) > 1:  # the value and the advantages of a dueling network
            if not is_consumed:
                output_keys |= keys
            continue
        (key,) = keys
        has_shared_step = False  # whether a step of this output comes after another layer too
        for step in steps:
            other_layers = layers_with_step[step] - (1 if step in steps_after[key] else 0)
            has_shared_step = has_shared_step or other_layers > 0
        is_hidden = is_consumed and has_shared_step
        is_read_by_sibling = not (code.readers_of(key) & siblings <= own_modules)
        is_block = code.is_residual(key) or is_read_by_sibling
        if not is_hidden and not is_block:
            output_keys.add(key)
    return output_keys
