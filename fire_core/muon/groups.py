"""Which parameters of a model Muon trains, and how each divides into matrices.

muon, adam = muon_groups(model)
optimizers = SplitMuon(muon, lr=0.02), torch.optim.AdamW(adam, lr=3e-4)
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from fire_core.errors import FireWarning
from fire_core.methods.layers import input_layers, output_layers
from fire_core.muon.cuts import cut_of
from fire_core.weights.entry import Entry
from fire_core.weights.layout import listed
from fire_core.weights.matrices import matrices
from fire_core.weights.output_layers import networks_within, parts_of
from fire_core.weights.topology import (
    RAW,
    Surroundings,
    input_count,
    is_layer,
    is_named_table,
    numberless,
    output_count,
    unwrap,
)

MOST_CHANNELS = 4  # of what a convolution reads that no layer made: gray, stereo, colours, colours and depth
NOT_HIDDEN = ("head", "embedding", "router", "fused", "changed", "unused", "other")


class MuonGroups(NamedTuple):
    """The parameters of a model, for two optimizers.

    Attributes:
        muon: groups for `SplitMuon`: hidden matrices, with how each is cut.
        adam: all other trainable parameters, for AdamW, say: embeddings, heads, input layers, biases, norms.
    """

    muon: list[dict[str, Any]]
    adam: list[nn.Parameter]


def muon_groups(model: nn.Module, **options: Any) -> MuonGroups:
    """Return the trainable parameters of a model in two lists: groups for `SplitMuon`, and those of another optimizer.

    Each group has `params`, and `cuts`: how these divide into matrices, which only `SplitMuon` reads.
    Muon is for hidden layers. Left to the other optimizer: heads, embeddings, routers, the layer that reads the
    network's input where no embedding comes before it, vectors, and weights that look fused and are not known
    (`matrices(model).warnings` says how to declare them).

    Args:
        model: any module.
        **options: of `resolve`, as for `matrices`: `blocks=`, `transposed=`, `example=`, `strict=True`.

    Returns:
        `muon, adam`.

    Raises:
        TypeError: `model` is no module.
        ValueError: an option that `resolve` refuses, or no hidden matrix.

    Warns:
        FireWarning: raw parameters that may be stacks of matrices, or weights in doubt, go to the other optimizer. Not
            of tables of positions or tokens, which their names tell.
    """
    read = matrices(model, **options)
    blocks, outside = entries_by_parameter(read), outside_layers(model, read)
    raw = [e.name for e in read if e.reason == RAW and min(e.shape) > 1 and not is_named_table(e.name)]
    lines = [line for line in read.warnings if "raw parameters" not in line]
    if raw:
        lines.append(
            f"raw parameters are left to the other optimizer: {listed(raw)}. If they hold matrices that Muon should "
            "train, say how they are stored: blocks={name: (rows,)}, and transposed=name for (d_in, d_out)"
        )
    for line in lines:
        warnings.warn(line, FireWarning, stacklevel=2)
    groups: dict[tuple[Any, ...], list[nn.Parameter]] = {}
    rest = []
    for parameter in (p for p in model.parameters() if p.requires_grad):
        entries = blocks.get(parameter, [])
        if is_hidden(parameter, entries, outside):
            groups.setdefault(tuple(map(cut_of, entries)), []).append(parameter)
        else:
            rest.append(parameter)
    if not groups:
        why = f": {read.unread[0]}" if read.unread else ""
        raise ValueError(f"the model has no hidden matrix that Muon could train{why}")
    return MuonGroups([{"params": parameters, "cuts": cut} for cut, parameters in groups.items()], rest)


def tower_inputs(model: nn.Module) -> set[Any]:
    """Return the layers that read pixels or other raw inputs, in each tower of a model with several (CLIP, critics).

    The number of inputs of such a layer is neither the number of outputs of another layer nor a multiple of it, as that
    of a flattened map is. Of convolutions those with at most four inputs count, of linear layers the first of each part
    of the model.
    """
    layers = [module for module in unwrap(model).modules() if is_layer(module)]
    output_sizes = {output_count(layer) for layer in layers} | {
        module.embedding_dim for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
    }
    wrapped = [network.module for network in networks_within(unwrap(model))]
    parts = [*wrapped, *(part.module for network in (unwrap(model), *wrapped) for part in parts_of(network))]
    first_layers = {next((layer for layer in part.modules() if is_layer(layer)), None) for part in parts}
    input_layers_of_towers = set()
    for layer in layers:
        inputs = input_count(layer)
        is_first = layer in first_layers if isinstance(layer, nn.Linear) else inputs <= MOST_CHANNELS
        if is_first and not any(inputs % size == 0 for size in output_sizes if size > 1):
            input_layers_of_towers.add(layer)
    return input_layers_of_towers


def entries_by_parameter(read: Iterable[Entry]) -> dict[Tensor, list[Entry]]:
    """Return the matrices of each parameter, in their order: several where it is fused."""
    entries: dict[Tensor, list[Entry]] = {}
    for entry in read:
        entries.setdefault(entry.parameter, []).append(entry)
    return entries


def outside_layers(model: nn.Module, read: Iterable[Entry]) -> dict[int, str]:
    """Return which layers are not hidden: `id` of the weight -> "an input layer" or "an output layer".

    Of a network without anything that is called a head the output layer is the convolution whose output it returns,
    else the layer that scores a vocabulary, else the last one registered. A body has none: a network whose last layer
    ends a numbered block, if such blocks recur or parameters outside of the block come after it.

    Args:
        model: any module.
        read: its matrices.
    """
    put_out: dict[int, str] = {}
    last: set[Any] = set()
    if any(entry.role == "head" for entry in read):
        last = set(output_layers(model))
    elif not (put_out := {id(entry.parameter): "an output layer" for entry in read if entry.is_put_out}):
        last = vocabulary_layers(model) or {layer for layer in last_layers(model) if not _is_in_body(model, layer)}
    outside = dict.fromkeys(_weight_ids(input_layers(model) | tower_inputs(model)), "an input layer")
    # A layer that recurs in numbered blocks, such as the keys of all cross-attentions, is hidden whatever it reads.
    readers = {entry.name: id(entry.parameter) for entry in read if entry.reads_input}
    counts = Counter(map(numberless, readers))
    outside |= {key: "an input layer" for name, key in readers.items() if counts[numberless(name)] == 1}
    return outside | put_out | dict.fromkeys(_weight_ids(last), "an output layer")


def _weight_ids(layers: Iterable[nn.Module]) -> set[int]:
    """Return the `id`s of the layers' weights. A parametrised one is left out: computing it may change buffers."""
    weights = [layer._parameters.get("weight") for layer in layers]
    return {id(weight) for weight in weights if weight is not None}


def vocabulary_layers(model: nn.Module) -> set[Any]:
    """Return the one linear layer that scores a vocabulary, as a set; the set is empty if there is none, or several.

    The layer lies outside of all blocks, and its weight has as many rows and columns as an embedding.
    """
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    tables = {(embedding.num_embeddings, embedding.embedding_dim) for embedding in embeddings}
    named = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    scores = [(name, layer) for name, layer in named if (layer.out_features, layer.in_features) in tables]
    if len(scores) != 1 or any(part.isdigit() for part in scores[0][0].split(".")):
        return set()  # as many outputs as positions, say
    return {scores[0][1]}


def last_layers(model: nn.Module) -> set[Any]:
    """Return the last linear layer or convolution of a model; of several networks of one class in it, that of each."""
    networks = Surroundings(unwrap(model)).networks
    innermost = [network for network in networks if not any(child in networks for child in network.children())]
    layers_at_the_end = set()
    for network in innermost:
        layers = [module for module in network.modules() if is_layer(module)]
        if layers:
            layers_at_the_end.add(layers[-1])
    return layers_at_the_end


def _is_in_body(model: nn.Module, layer: nn.Module) -> bool:
    """Return whether a layer ends a numbered block of a body, whose outputs a next such block could read.

    It does if blocks with such a layer recur, or if a parameter outside of the block comes after it, as a last norm's.
    """
    layers = {name: module for name, module in model.named_modules() if is_layer(module)}
    name = next(key for key, module in layers.items() if module is layer)
    numbered = [i for i, part in enumerate(name.split(".")[:-1]) if part.isdigit()]
    if not numbered:
        return False
    block = ".".join(name.split(".")[: numbered[-1] + 1]) + "."
    first = next(module for key, module in layers.items() if key.startswith(block))
    if input_count(first) != output_count(layer):
        return False
    sizes = {key: (output_count(module), input_count(module)) for key, module in layers.items()}
    like_layers = [key for key in layers if numberless(key) == numberless(name) and sizes[key] == sizes[name]]
    parameters = [key for key, _ in model.named_parameters()]
    positions = [i for i, key in enumerate(parameters) if key.startswith(f"{name}.")]
    after = parameters[positions[-1] + 1 :] if positions else []
    return len(like_layers) > 1 or any(not key.startswith(block) for key in after)


def is_hidden(parameter: Tensor, entries: Iterable[Entry], outside: Mapping[int, str]) -> bool:
    """Return whether a parameter holds hidden matrices alone, which Muon is for.

    Args:
        parameter: a parameter of the model.
        entries: its entries in the result of `entries_by_parameter`; none for a parameter without matrices.
        outside: the result of `outside_layers`.
    """
    entries = list(entries)
    are_hidden = all(entry.role not in NOT_HIDDEN and min(entry.shape) > 1 for entry in entries)
    return bool(entries) and are_hidden and id(parameter) not in outside
