"""What a parameter is for, read from its place in the model: its module, the modules around it, its other names.

Names of layers and classes decide only the role of a layer: which of three equal projections is the query, and which
layer is the head.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import UninitializedParameter

from fire_core.weights.adapters import adapter_lock

# Names of layers with a single projection: q, to_q, q_proj, W_Q, w_qs, query_proj, add_q_proj, toqueries, ...
_SINGLE_PROJECTION = re.compile(
    r"(?:w_?|(?:to|c|fc|lin|linear|proj|project|projection|add|pos)_|to(?=quer|key|val))?(q|quer(?:y|ie)|k|key|v|value)s?"
    r"(?:_(?:proj|projection|lin|linear|layer|net|head|proj_weight|b_proj|global))?",
    re.IGNORECASE,
)
# Names of layers with several projections, by these projections.
_FUSED = {
    "qkv": "qkv c_attn qkv_proj to_qkv Wqkv wqkv c_qkv in_proj_weight in_proj_bias query_key_value att_proj qkv_linear "
    "qkvs",
    "kv": "kv to_kv kv_proj c_kv kv_b_proj",
    "qk": "qk",
}
FUSED = {name: parts for parts, names in _FUSED.items() for name in names.split()}  # {"Wqkv": "qkv", ...}
# Classes of transformers that hold one layer of a block each, in BERT and similar models.
_BERT = re.compile(r"(?:(Self|Attention)Output|Intermediate|Output)$")
_HEAD = {"head", "heads", "lm_head", "classifier", "predictor"}
_SB3_HEAD = re.compile(r"action_net|value_net|q_net|mu|log_std|qf\d+|quantile_net")
_ROUTER = re.compile(r"Router|MoE\w*Gate|TopKGat|TopkGat")
_WEIGHTS = ("weight", "weight_mu")  # the second is that of a noisy layer

# Attributes in which torch's wrappers (compile, activation checkpointing, FSDP1) keep the module inside.
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside the wrappers of DistributedDataParallel, compile, activation checkpointing and FSDP."""
    while not isinstance(model, torch.jit.ScriptModule):
        inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else None
        for attribute in _WRAPPERS:
            inner = model._modules.get(attribute, inner)
        if inner is None:
            return model
        model = inner
    return model


def clean_name(name: str) -> str:
    """Return a parameter's name without the parts that the wrappers of `unwrap` put into it."""
    for attribute in _WRAPPERS:
        name = name.replace(f"{attribute}.", "")
    return name


class Surroundings:
    """Answers questions about the modules around the layers of one model.

    Answers are cached for each module, so the time to read a model grows as its number of layers, also if many of them
    are children of one module.

    Args:
        model: a model without wrappers.

    Attributes:
        hidden: the layers whose output goes to another layer, as far as the source of the forward passes tells; empty
            before it is read.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.hidden: set[nn.Module] = set()
        self._layers: dict[nn.Module, tuple[nn.Module, ...]] = {}
        self._positions: dict[nn.Module, dict[nn.Module, int]] = {}
        self._readers: dict[nn.Module, dict[int, int]] = {}
        self._attends: dict[nn.Module, bool] = {}
        self._classes: dict[nn.Module, Counter[type]] = {}
        self._followers: dict[nn.Module, dict[nn.Module, nn.Module]] = {}
        self._experts: dict[nn.Module, list[LikeModules]] = {}

    def layers(self, module: nn.Module) -> tuple[nn.Module, ...]:
        """Return the linear layers that are children of a module, directly or through a Sequential, in their order."""
        if module not in self._layers:
            self._layers[module] = tuple(dense_children(module))
        return self._layers[module]

    def position(self, module: nn.Module, layer: nn.Module) -> int | None:
        """Return the index of a layer in `layers(module)`; None if it is not there."""
        if module not in self._positions:
            indexed = reversed([*enumerate(self.layers(module))])  # of a layer that occurs twice, the first index stays
            self._positions[module] = {other: i for i, other in indexed}
        return self._positions[module].get(layer)

    def last_reader(self, module: nn.Module, inputs: int) -> int | None:
        """Return the index in `layers(module)` of the last layer with this number of inputs; None if there is none."""
        if module not in self._readers:
            self._readers[module] = {input_count(layer): i for i, layer in enumerate(self.layers(module))}
        return self._readers[module].get(inputs)

    def attends(self, module: nn.Module) -> bool:
        """Return `attends(module)`, cached."""
        if module not in self._attends:
            self._attends[module] = attends(module)
        return self._attends[module]

    def sibling_count(self, module: nn.Module, kind: type) -> int:
        """Return how many children of a module are of exactly this class, not of a subclass."""
        if module not in self._classes:
            self._classes[module] = Counter(map(type, module.children()))
        return self._classes[module][kind]

    def follower(self, module: nn.Module, child: nn.Module) -> nn.Module | None:
        """Return the module that follows a child of a Sequential; None for the last."""
        if module not in self._followers:
            self._followers[module] = dict(pairwise(module.children()))
        return self._followers[module].get(child)

    def experts(self, module: nn.Module) -> list[LikeModules]:
        """Return the groups of like modules among a module's children: experts, or blocks in a row."""
        if module not in self._experts:
            self._experts[module] = list(_alike_children(module))
        return self._experts[module]

    @cached_property
    def layer_counts(self) -> Counter[nn.Module]:
        """Return for each module the number of linear layers and convolutions in it, itself included."""
        counts: Counter[nn.Module] = Counter()
        for module in reversed([*self.model.modules()]):  # children before their parents
            counts[module] = is_layer(module) + sum(counts[child] for child in module.children())
        return counts

    @cached_property
    def networks(self) -> set[nn.Module]:
        """Return the model and, if it only wraps others, these: one, or several of one class (student and teacher)."""
        networks, possible_wrappers = {self.model}, [self.model]
        while possible_wrappers:
            children = [child for child in possible_wrappers.pop().children() if self.layer_counts[child]]
            if len({type(child) for child in children}) == 1 and not any(map(is_layer, children)):
                possible_wrappers += [child for child in children if child not in networks]
                networks |= {*children}
        return networks

    @cached_property
    def output_layers(self) -> set[nn.Module]:
        """Return the layers that networks themselves name as their last ones.

        These are `get_classifier()` in timm, `get_output_embeddings()` in transformers, and the output networks of
        policies in stable-baselines3.
        """
        outputs: set[nn.Module] = set()
        for module in self.model.modules():
            for getter in ("get_classifier", "get_output_embeddings"):
                if not callable(getattr(module, getter, None)):
                    continue
                try:
                    named = getattr(module, getter)()
                except Exception:  # any error of a class that has no such layer
                    continue
                outputs |= {layer for layer in (named if isinstance(named, tuple) else (named,)) if layer is not None}
            package = type(module).__module__.partition(".")[0]
            if package in ("stable_baselines3", "sb3_contrib") and type(module).__name__ != "MlpExtractor":
                named = [child for name, child in module.named_children() if _SB3_HEAD.fullmatch(name)]
                outputs |= {layer for child in named for layer in last_layer(child)}
        return outputs


class LikeModules(NamedTuple):
    """Modules of one class among the children of a module.

    Attributes:
        module_count: number of these modules.
        inputs: number of inputs of the first; 0 for a stack of raw weights, where it is not known.
        are_experts: whether they are called experts.
    """

    module_count: int
    inputs: int
    are_experts: bool


def _alike_children(module: nn.Module) -> Iterator[LikeModules]:
    """Yield the groups of like modules in a module: lists of them, stacks of raw weights, and numbered experts."""
    numbered = []
    for name, child in module.named_children():
        is_called_expert = "expert" in name.lower() or "expert" in type(child).__name__.lower()
        parts = list(child.children()) if isinstance(child, (nn.ModuleList, nn.ModuleDict)) else []
        if (
            len(parts) > 1
            and len({type(part) for part in parts}) == 1
            and (first := _first_layer(parts[0])) is not None
        ):
            yield LikeModules(len(parts), input_count(first), is_called_expert)
        elif is_called_expert:
            numbered += [child] if _first_layer(child) is not None else []
            stacks = [p for p in child._parameters.values() if p is not None and p.ndim == 3]
            yield from (LikeModules(len(stack), 0, True) for stack in stacks)
    if len(numbered) > 1 and (first := _first_layer(numbered[0])) is not None:
        yield LikeModules(len(numbered), input_count(first), True)


def _first_layer(module: nn.Module) -> nn.Module | None:
    """Return the first linear layer or convolution of a module; None if it has none."""
    return next((layer for layer in module.modules() if is_layer(layer)), None)


def last_layer(module: nn.Module) -> list[nn.Module]:
    """Return a list with the last linear layer or convolution of a module, or an empty one if it has none."""
    return [layer for layer in module.modules() if is_layer(layer)][-1:]


@dataclass(frozen=True)
class Use:
    """One place where a parameter occurs in a model.

    Attributes:
        name: its name there without wrappers, such as h.0.attn.c_attn.weight.
        path: the modules from the root to the one that owns it.
        attribute: its name in that module, such as weight.
        around: the surroundings of all layers of the model.
    """

    name: str
    path: tuple[nn.Module, ...]
    attribute: str
    around: Surroundings = field(repr=False, compare=False)

    @cached_property
    def owner(self) -> nn.Module:
        """Return the module that has the parameter."""
        return self.path[-1]

    @cached_property
    def is_raw(self) -> bool:
        """Return whether its owner is no linear layer or convolution, as in nn.MultiheadAttention."""
        return not is_layer(self.owner)

    @cached_property
    def place(self) -> tuple[str, nn.Module]:
        """Return the name of the layer, or of a raw parameter, and the module that holds it.

        A Sequential and an adapter around the layer are skipped: the layer `to_out.0` has the name to_out.
        """
        if self.is_raw:
            return self.attribute, self.owner
        parts, level = self.name.split(".")[:-1], len(self.path) - 1
        while level > 1 and (isinstance(self.path[level - 1], nn.Sequential) or parts[level - 1] == "base_layer"):
            level -= 1
        return (parts[level - 1], self.path[level - 1]) if level else ("", self.owner)


def uses_of(model: nn.Module) -> list[tuple[Tensor, list[Use]]]:
    """Return every parameter of a model once, in the order of `named_parameters()`, with all places where it occurs.

    Args:
        model: a model without wrappers around it; there may be some within.

    Raises:
        ValueError: a lazy layer has no shape yet.
    """
    uses: dict[int, tuple[Tensor, list[Use]]] = {}
    around = Surroundings(model)
    # A wrapper and the module inside it have the same name here, of which the one inside comes last and stays. A shared
    # module occurs under each of its names.
    modules = {clean_name(f"{key}.").strip("."): m for key, m in model.named_modules(remove_duplicate=False)}
    for name, module in modules.items():
        path = (model, *(modules[prefix] for prefix in prefixes([name]) if prefix))
        for attribute, parameter in module._parameters.items():
            full = f"{name}.{attribute}" if name else attribute
            if isinstance(parameter, UninitializedParameter):
                raise ValueError(f"{full} has no shape yet: run the lazy model once first")
            if parameter is not None:
                uses.setdefault(id(parameter), (parameter, []))[1].append(Use(full, path, attribute, around))
    return list(uses.values())


EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
MANY_DIMENSIONS = "a raw kernel or stack of more than three dimensions: not supported; split it into 3-D parameters"


def padding_row(uses: Iterable[Use]) -> int | None:
    """Return the `padding_idx` of the embedding that uses a weight; None if there is none."""
    rows = [u.owner.padding_idx for u in uses if isinstance(u.owner, EMBEDDINGS) and u.attribute == "weight"]
    return next((row for row in rows if row is not None), None)


def words(text: str) -> set[str]:
    """Return the words of a text as a set; it makes long lists of names readable."""
    return set(text.split())


def prefixes(names: Iterable[str]) -> Iterator[str]:
    """Yield the beginnings of dotted names: a, a.b and a.b.weight for `a.b.weight`."""
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[: i + 1]) for i in range(len(parts)))


RAW = "a raw parameter: which of its dimensions is in and which out is unknown; include it (and transposed=)"
# Raw parameters that are tables of vectors, by their last name: pos_embed, relative_position_bias_table, cls_token.
_TABLE = re.compile(
    r"(.*_)?(pos(ition(al)?)?(_?(emb|embed|embeds|embeddings?|encodings?|enc|bias|table|h|w))*"
    r"|emb|embed|embeds|embeddings?|tokens?|registers)"
)


def is_named_table(name: str) -> bool:
    """Return whether a raw parameter's name says that it is a table of vectors, such as embeddings of positions."""
    return _TABLE.fullmatch(name.rpartition(".")[2].lower()) is not None


FLAT_SHARD = "a flat shard (FSDP1): wrap with fully_shard (FSDP2), whose weights keep their shape"
# Why parameters of these roles are kept unless a selector names them.
REASONS = {
    "embedding": "an embedding: a table of vectors, not a map; include= takes it, or the layout word embedding",
    "depthwise": "a depthwise convolution: its matrices are m x 1; the layout word depthwise takes it",
    "router": "a router: the size of its logits says how sharply experts are chosen; the layout word router takes it",
    "adapter": "an adapter's factor: what counts is the product of its factors; the layout word adapter takes it",
    "other": RAW,
}


class Classification(NamedTuple):
    """The `kind` and `role` of a parameter, see `Entry`, and why it is kept if no selector names it ("": it is not)."""

    kind: str
    role: str
    reason: str


def classify(use: Use, parameter: Tensor, tied: bool) -> Classification:
    """Return what a parameter is for, by its place in the model.

    Args:
        use: its place; of a tied parameter, the place where it is the weight of a layer.
        parameter: the parameter.
        tied: whether at another place it is a raw parameter or the weight of an embedding.
    """
    if locked := lock_of(use, parameter):
        return Classification("locked", "other", locked)
    owner, role = use.owner, role_of(use, tied)
    stacked = owner._parameters.get(use.attribute.removesuffix("_bias")) if use.is_raw else None
    is_bias = parameter.ndim < 2 or (stacked is not None and stacked.ndim == parameter.ndim + 1)
    # The bias of a stack of layers has more dimensions than one: (n, 1, d_out).
    is_bias |= use.attribute in ("bias", "bias_mu") and not use.is_raw
    if not is_bias and isinstance(owner, _ConvNd) and use.attribute in _WEIGHTS:
        kind = "conv_transpose" if isinstance(owner, _ConvTransposeNd) else "conv"
        return Classification(kind, role, REASONS.get(role, ""))
    if is_bias or parameter.ndim > 3:
        reason = "a bias, a scale or another vector: no matrix" if is_bias else MANY_DIMENSIONS
        return Classification("vector", role, reason)
    if role == "other" and isinstance(owner, nn.Bilinear):
        return Classification("matrix", role, "bilinear: include it to project the (in1, in2) matrix of each output")
    if role == "other" and not use.is_raw:
        reason = f"{use.attribute} is not the layer's weight but beside it (a noise scale, an adapter, a gain)"
        return Classification("matrix", role, reason)
    return Classification("matrix", role, REASONS.get(role, ""))


# Convolutions of timm that normalise their weight in each forward pass.
_STANDARDISED = re.compile(r"(Std|ScaledStd|WS|WeightStandardized)Conv2d(Same)?")


def lock_of(use: Use, parameter: Tensor) -> str:
    """Return why a parameter's numbers are not the matrix that its module multiplies with; "" if they are."""
    owner, name, kind = use.owner, use.attribute, type(parameter)
    if isinstance(owner, torch.jit.ScriptModule):
        return "inside a TorchScript module, whose code is compiled: act first, and script it afterwards"
    layer, dtype = type(owner).__name__, str(parameter.dtype).removeprefix("torch.")
    description = dtype if kind.__name__ in ("Parameter", "Tensor") else f"{kind.__name__} of {dtype}"
    packed = hasattr(kind, "__tensor_flatten__") and not hasattr(parameter, "device_mesh")
    packed |= kind.__module__.startswith("bitsandbytes")
    if packed or not (parameter.is_floating_point() or parameter.is_complex()):
        return f"quantised or packed ({description}): its numbers are codes"
    if parameter.dtype.itemsize == 1:
        return f"{description}: eight bits hold no isometry, and its scale lies elsewhere"
    if getattr(parameter, "_is_flat_param", False) or _is_part_of_flat_shard(use, parameter):
        return FLAT_SHARD
    if isinstance(owner, nn.Linear) and name == "weight" and parameter.ndim < 2:
        return "the weight of a linear layer, in one dimension: flattened or divided by a wrapper, or no matrix"
    if name == "weight" and _STANDARDISED.fullmatch(layer):
        return f"{layer} standardises its weight in each forward pass"
    if layer == "ParametrizationList":
        by = ", ".join(type(child).__name__ for child in owner.children())
        return f"parametrised by {by}: the module computes its weight from it"
    masks = [b for key, b in owner._buffers.items() if "mask" in key and b is not None and b.shape == parameter.shape]
    if name == "weight" and masks:
        return f"{layer} multiplies its weight with a mask first"
    base = name.removesuffix("_orig")
    if base != name and (f"{base}_mask" in owner._buffers or f"{base}_u" in owner._buffers):
        return "pruned or spectrally normed: the module computes its weight from it"
    pair = {f"{name[:-2]}_g", f"{name[:-2]}_v"}
    sizes = [part.numel() for key in sorted(pair) if (part := owner._parameters.get(key)) is not None]
    if name[-2:] in ("_g", "_v") and len(sizes) == 2 and sizes[0] < sizes[1]:
        return "weight norm: the module computes its weight g v / |v| from it"
    return adapter_lock(use.path, use.attribute) if parameter.ndim > 1 else ""


def _is_part_of_flat_shard(use: Use, parameter: Tensor) -> bool:
    """Return whether a weight is a view of an FSDP1 shard (`use_orig_params=True`), in which it has lost its shape.

    Torch marks all that it flattens, biases too, and the marks stay while `summon_full_params` gives shapes back.
    """
    owner = use.owner
    holds_matrices = isinstance(
        owner, nn.Linear | _ConvNd | nn.Embedding | nn.Bilinear | nn.MultiheadAttention | nn.RNNBase | nn.RNNCellBase
    )
    holds_matrices |= type(owner).__name__ == "Conv1D"  # of transformers
    is_flattened = bool(getattr(parameter, "_fsdp_flattened", False))
    return is_flattened and parameter.ndim < 2 and holds_matrices and "weight" in use.attribute


def numberless(name: str) -> str:
    """Return a dotted name with a star for each number: layers that differ by their number alone have one such name."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def is_layer(module: nn.Module) -> bool:
    """Return whether a module is a linear layer or a convolution."""
    return isinstance(module, _ConvNd) or is_dense(module)


def own_class(module: nn.Module) -> type[nn.Module]:
    """Return the class of a module as it was built: `fully_shard` replaces it by a subclass of its own."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # if nobody has imported it, no module is one of its
    if fsdp is None or not isinstance(module, fsdp.FSDPModule):
        return type(module)
    return next(kind for kind in type(module).__mro__ if not issubclass(kind, fsdp.FSDPModule))


def is_transposed_linear(module: nn.Module) -> bool:
    """Return whether a module is a linear layer with a weight stored (d_in, d_out).

    It is one if it is GPT-2's layer of transformers, or a subclass of nn.Linear that has transposed its weight.
    """
    if isinstance(module, torch.jit.ScriptModule):  # its code is compiled, so its attributes do not tell
        return False
    weight = module._parameters.get("weight")
    if weight is None or isinstance(weight, UninitializedParameter) or weight.ndim < 2:
        return False
    if isinstance(module, nn.Linear):
        is_square = module.in_features == module.out_features
        has_transposed_shape = tuple(weight.shape[-2:]) == (module.in_features, module.out_features)
        return has_transposed_shape and not is_square
    is_conv1d = own_class(module).__name__ == "Conv1D" and weight.ndim == 2
    return is_conv1d and getattr(module, "nf", None) == weight.shape[1]


def role_of(use: Use, tied: bool) -> str:
    """Return the role of a parameter, see `Entry`; the arguments are those of `classify`."""
    owner = use.owner
    if _is_adapter(use):
        return "adapter"
    if not use.is_raw and use.attribute not in (*_WEIGHTS, "bias", "bias_mu"):
        return "other"
    if _is_router(use):
        return "router"
    if isinstance(owner, _ConvNd):
        is_depthwise = owner.groups == owner.in_channels and (owner.groups > 1 or owner.out_channels == 1)
        return "depthwise" if is_depthwise else "conv"
    if isinstance(owner, (nn.Embedding, nn.EmbeddingBag)):
        return "embedding"
    if isinstance(owner, (nn.RNNBase, nn.RNNCellBase)):
        return "recurrent"
    leaf, holder = use.place
    if use.is_raw:
        if not isinstance(owner, nn.MultiheadAttention):
            return "other"
        return projections_in_name(leaf)[:1] or "other"
    if isinstance(holder, nn.MultiheadAttention):
        return "attention_out"
    if use.around.attends(holder):
        if leaf in _HEAD:  # of a network that is one module, with its projections and its head as attributes
            return "head"
        return projections_in_name(leaf)[:1] or "attention_out"
    if any("A_log" in module._parameters for module in use.path):
        return "ssm"
    if (tied and use.attribute == "weight") or is_called_head(use):
        return "head"
    if len(use.around.layers(holder)) > 1:
        return "mlp"
    level, kind = use.path.index(holder), type(holder).__name__
    if leaf == "dense" and (part := _BERT.search(kind)):
        return "attention_out" if part[1] else "mlp"
    leaf, around = use.name.split(".")[level - 1], use.path[max(level - 1, 0)]
    if kind.endswith("Linear") or projections_in_name(leaf):  # a module around this layer alone, as in q_proj.linear
        if use.around.attends(around):
            return projections_in_name(leaf)[:1] or "attention_out"
        if use.around.sibling_count(around, type(holder)) > 1 and not isinstance(around, nn.ModuleList):
            return "mlp"
    return "dense"


def attends(module: nn.Module) -> bool:
    """Return whether a module has layers named as projections to queries and keys.

    A module whose class name ends in Attention also does if one of its parts does.
    """
    if {"q", "k"} <= {letter for name, _ in module.named_children() for letter in projections_in_name(name)}:
        return True
    if not type(module).__name__.endswith("Attention"):
        return False
    parts: list[nn.Module] = []
    for child in module.children():
        parts += child if isinstance(child, nn.ModuleList) else [child]
    return any(map(attends, parts))


def projections_in_name(name: str) -> str:
    """Return the projections that a layer of this name holds: `q` for q_proj, `qkv` for Wqkv, "" for other names."""
    match = _SINGLE_PROJECTION.fullmatch(name)
    return match[1][0].lower() if match else FUSED.get(name, "")


def _is_adapter(use: Use) -> bool:
    """Return whether a parameter is a factor of a low-rank or similar adapter, and not of the adapted layer itself."""
    names = use.name.split(".")
    if any(name.startswith("lora_") or name.endswith("_adapter_list") for name in names):
        return True
    with_adapter = [depth for depth, module in enumerate(use.path) if "base_layer" in module._modules]
    return bool(with_adapter) and names[with_adapter[-1]] != "base_layer"


def is_called_head(use: Use) -> bool:
    """Return whether a parameter is of one of a network's last layers, by its name or because the network says so."""
    names = use.name.split(".")
    if _HEAD & {*names} and not _is_in_block_of_head(use, names):
        return True
    if not use.around.output_layers.isdisjoint(use.path):
        return True
    if use.owner in use.around.hidden:
        return False  # in many agents `fc` is a hidden layer
    return any(module in use.around.networks and name == "fc" for module, name in zip(use.path, names, strict=False))


def _is_in_block_of_head(use: Use, names: Sequence[str]) -> bool:
    """Return whether a parameter lies in a block of a whole network that is called a head, as CCT's `classifier` is.

    A block is one of several alike modules in a list, and has as many outputs as inputs.

    Args:
        use: the place of the parameter.
        names: the parts of its name.
    """
    start = next(depth for depth, name in enumerate(names) if name in _HEAD)
    for modules, block in pairwise(use.path[start + 1 :]):
        is_list = isinstance(modules, (nn.ModuleList, nn.Sequential)) and len(modules) > 1
        if not is_list or is_layer(block) or isinstance(block, nn.Sequential):
            continue
        first, last = _first_layer(block), last_layer(block)
        are_alike = len({type(module) for module in modules.children()}) == 1
        if are_alike and first is not None and input_count(first) == output_count(last[0]):
            return True
    return False


# Names of routers among modules in a list that is not called experts.
_GATE = re.compile(r"gate|gating|rout|switch|select|dispatch|w_?g$", re.IGNORECASE)


def has_an_output_for_each_module(use: Use) -> bool:
    """Return whether a layer has as many outputs as a list beside it has alike modules: experts, or blocks in a row."""
    if use.is_raw or isinstance(use.owner, _ConvNd):
        return False
    return any(output_count(use.owner) == experts.module_count for experts in use.around.experts(use.place[1]))


def _is_router(use: Use) -> bool:
    """Return whether a parameter scores the experts of a mixture.

    It does if its class or name says so, or if its layer has as many outputs as there are experts beside it.
    """
    if any(_ROUTER.search(type(module).__name__) for module in use.path[-3:]):
        return True
    leaf, holder = use.place
    if leaf in ("shared_expert_gate", "router", "router_gate", "routing_fn"):
        return True
    if use.is_raw or isinstance(use.owner, _ConvNd) or leaf in _HEAD:
        return False
    stacks = [p for p in holder._parameters.values() if p is not None and p.ndim > 2]  # of experts, as raw parameters
    if _GATE.search(leaf) and any(len(p) == output_count(use.owner) > 1 for p in stacks):
        return True
    child = holder._modules.get(leaf)
    for experts in use.around.experts(holder):
        last = last_layer(use.owner if child is None else child)
        fits = output_count(last[0]) == experts.module_count and experts.inputs in (0, input_count(use.owner))
        if fits and (experts.are_experts or _GATE.search(leaf)):
            return True
    is_called_gate = leaf in ("gate", "gating", "gate_network", "w_gate")
    return is_called_gate and any("expert" in name for name, _ in holder.named_children())


def dense_children(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the linear layers, without convolutions, that are children of a module directly or through Sequentials."""
    for child in module.children():
        if isinstance(child, nn.Sequential):
            yield from dense_children(child)
        elif is_dense(child):
            yield child


def is_dense(module: nn.Module) -> bool:
    """Return whether a module is a linear layer, of torch's class or of `is_transposed_linear`."""
    return isinstance(module, nn.Linear) or is_transposed_linear(module)


def output_count(layer: Any) -> int:
    """Return the number of outputs (channels) of a linear layer or convolution."""
    if isinstance(layer, nn.Linear):
        return layer.out_features
    return layer.out_channels if isinstance(layer, _ConvNd) else int(layer.weight.shape[1])


def input_count(layer: Any) -> int:
    """Return the number of inputs (channels) of a linear layer or convolution."""
    if isinstance(layer, nn.Linear):
        return layer.in_features
    return layer.in_channels if isinstance(layer, _ConvNd) else int(layer.weight.shape[0])
