"""The hidden units of a run's networks: those that a model declares, else those read off a trace of its forward pass.

The symbolic trace (`torch.fx`, in training mode) says which layer reads what which layer writes, through skips and
flattened maps. Units that flow into what is not understood (concatenations, grouped convolutions, attention, layer
norm, other reshapes) are left out rather than guessed, and so are those of layers that are called twice, share a
weight, or are more than torch's own layers. Inputs are taken to be batches of vectors or of maps.
"""

from __future__ import annotations

import copy
import inspect
import logging
import operator
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.fx import Node, Tracer
from torch.nn.modules.conv import _ConvNd

from fire_core.units.graph import Consumer, Producer, Units, weight
from fire_core.weights.topology import is_linear, unwrap

log = logging.getLogger(__name__)

# Names of functions, methods and modules, in lower case without underscores. Of one number each, so a unit stays one:
ELEMENTWISE = {
    "relu", "relu6", "leakyrelu", "elu", "selu", "celu", "gelu", "silu", "mish", "tanh", "sigmoid", "softplus",
    "softsign", "hardtanh", "hardswish", "hardsigmoid", "logsigmoid", "dropout", "dropout1d", "dropout2d", "dropout3d",
    "alphadropout", "featurealphadropout", "identity", "contiguous", "clone", "detach", "float", "stochasticdepth",
    "clamp", "abs", "neg", "square", "sqrt", "exp", "erf",
}  # fmt: skip
# Within one channel each; the digit says for maps of how many dimensions:
SPATIAL = {f"{adaptive}{kind}pool{d}d" for adaptive in ("", "adaptive") for kind in ("avg", "max") for d in (1, 2, 3)}
SPATIAL |= {f"{kind}pad{d}d" for kind in ("zero", "constant", "reflection", "replication") for d in (1, 2, 3)}
BINARY = {"add", "iadd", "sub", "isub", "mul", "imul", "div", "truediv"}
ARGUMENTS = {"flatten": ("input", "start_dim", "end_dim"), "mean": ("input", "dim", "keepdim")}
SHAPES = {"shape", "ndim", "dtype", "device"}  # attributes that do not depend on the numbers
LAYERS = {nn.Linear: 0, nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}  # dimensions of a map that they take; 0: vectors
NORMS = {nn.BatchNorm1d: (0, 1), nn.BatchNorm2d: (2,), nn.BatchNorm3d: (3,)}


def unit_graph(modules: Mapping[str, nn.Module], say: bool = False) -> list[Units]:
    """The units that the modules declare; those of a module that declares none are read off a trace of it.

    Args:
        modules: by name.
        say: in the log, what a trace left out.

    Raises:
        ValueError: a module has neither a `unit_graph()` nor a `forward` that can be traced, or there are no units.
    """
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
    return [replace(units, consumers=tuple(map(_on_device, units.consumers))) for units in graph]


def _on_device(consumer: Consumer) -> Consumer:
    """The same, its columns where its weight is: no step has to send them there."""
    if consumer.columns is None:
        return consumer
    return replace(consumer, columns=consumer.columns.to(weight(consumer.layer).device, non_blocking=True))


@dataclass(eq=False)
class _Stream:
    """Units of which not all may be known yet: the names of the layers that write them, and the rest of `Units`."""

    count: int
    producers: list[str]
    consumers: list[Consumer] = field(default_factory=list)
    norms: list[nn.Module] = field(default_factory=list)
    opaque: bool = False


class _Flow(NamedTuple):
    """What the channels of a tensor hold: a stream, in a map of some dimensions, or (0) in vectors, maybe flattened."""

    stream: _Stream
    dims: int
    flat: bool = False


class _Reader:
    """Walks through a trace of a copy and notes who writes and reads each stream.

    Args:
        model: stays as it is.
        shared: ids of parameters that are used elsewhere too.
    """

    def __init__(self, model: nn.Module, shared: Set[int]) -> None:
        self.modules = dict(model.named_modules())
        parameters = inspect.signature(model.forward).parameters.items()
        defaults = {name: p.default for name, p in parameters if p.default is not p.empty}
        clone = copy.deepcopy(model, {id(p): p for p in model.parameters()})  # parameters are not copied
        with torch.random.fork_rng(devices=[]):
            self.graph = Tracer().trace(clone.train(), concrete_args=defaults)
        self.flows: dict[Node, _Flow | None] = {}
        self.streams: list[_Stream] = []
        self.probed: set[Node] = set()  # tensors that a consumer reads: another one reads the same
        called = [self.modules[str(node.target)] for node in self.graph.nodes if node.op == "call_module"]
        read = [str(node.target).rpartition(".") for node in self.graph.nodes if node.op == "get_attr"]
        owned = [p for module in set(self.modules.values()) for p in module.parameters(recurse=False)]
        self.bad = {id(getattr(self.modules[owner], name, None)) for owner, _, name in read} | shared
        self.bad |= {key for key, count in Counter(map(id, [*called, *owned])).items() if count > 1}

    def read(self) -> list[Units]:
        """The units whose writers and readers are all known."""
        for node in self.graph.nodes:
            asked = node.op == "call_method" and node.target in ("size", "dim", "numel")
            asked |= node.target is getattr and node.args[1] in SHAPES
            self.flows[node] = None if asked else self.follow(node)
            if self.flows[node] is None and not asked:
                self.close(node)
        return [
            Units(
                " + ".join(stream.producers),
                stream.count,
                tuple(Producer(self.modules[name]) for name in stream.producers),
                tuple(stream.consumers),
                tuple(stream.norms),
            )
            for stream in self.streams
            if not stream.opaque and stream.consumers
        ]

    def close(self, node: Node) -> None:
        """Mark every stream that flows into a node as not understood."""
        for flow in filter(None, map(self.flows.get, node.all_input_nodes)):
            flow.stream.opaque = True

    def closed(self, module: nn.Module) -> bool:
        """Whether a layer is called or used elsewhere too, or does more than torch's own, as with a gain."""
        tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        more = {key for key, _ in module.named_parameters()} - {"weight", "bias"}
        if more or "forward" in vars(module) or module._forward_hooks:
            return True
        return any(id(thing) in self.bad for thing in (module, *tensors))

    def follow(self, node: Node) -> _Flow | None:
        """What a node's value holds, None if that is not known."""
        sources = [self.flows[source] for source in node.all_input_nodes]
        source = sources[0] if len(sources) == 1 else None
        if node.op == "call_module":
            module = self.modules[str(node.target)]
            if type(module) in LAYERS or type(module) in NORMS:
                if self.closed(module) or node.kwargs:
                    return None
                return self.norm(module, source) if type(module) in NORMS else self.layer(node, source)
            name, given = type(module).__name__, dict(vars(module))
        elif node.op in ("call_function", "call_method") and "out" not in node.kwargs:
            name = getattr(node.target, "__name__", str(node.target))
            given = dict(zip(ARGUMENTS.get(name, ()), node.args, strict=False)) | dict(node.kwargs)
        else:
            return None
        name = name.replace("_", "").lower()
        if name in BINARY:
            return self.combined(sources)
        if name in ("view", "reshape") and len(node.args) == 3 and node.args[2] == -1 and _is_batch(*node.args[:2]):
            name, given, source = "flatten", {"start_dim": 1}, sources[0]
        return None if source is None else passed(source, name, given)

    def layer(self, node: Node, source: _Flow | None) -> _Flow | None:
        module = self.modules[str(node.target)]
        assert isinstance(module, (nn.Linear, _ConvNd))
        dims, inputs = LAYERS[type(module)], module.weight.shape[1]
        if isinstance(module, _ConvNd) and module.groups > 1:
            return None
        if source is not None:
            each = inputs // source.stream.count if source.flat else 1
            if source.dims == dims and each * source.stream.count == inputs:
                columns = None if each == 1 else torch.arange(inputs, device="cpu").view(-1, each)
                tensor = node.all_input_nodes[0]
                source.stream.consumers.append(Consumer(module, columns, tensor not in self.probed))
                self.probed.add(tensor)
            else:
                self.close(node)
        self.streams.append(_Stream(len(module.weight), [str(node.target)]))
        return _Flow(self.streams[-1], dims)

    def norm(self, module: Any, source: _Flow | None) -> _Flow | None:
        if source is None or source.flat or source.dims not in NORMS[type(module)]:
            return None
        source.stream.norms.append(module)
        return source if source.stream.count == module.num_features else None

    def combined(self, sources: list[_Flow | None]) -> _Flow | None:
        """A sum or product, number by number, of streams that become one."""
        known = [flow for flow in sources if flow is not None]
        if len(known) < len(sources) or len({(flow.stream.count, *flow[1:]) for flow in known}) != 1:
            return None
        one = known[0].stream
        for other in {id(flow.stream): flow.stream for flow in known if flow.stream is not one}.values():
            one.opaque |= other.opaque
            one.producers += other.producers
            one.consumers += other.consumers
            one.norms += other.norms
            self.streams.remove(other)
            for node, flow in self.flows.items():
                if flow is not None and flow.stream is other:
                    self.flows[node] = flow._replace(stream=one)
        return known[0]


def passed(source: _Flow, name: str, given: Mapping[str, Any]) -> _Flow | None:
    """Through a function or module, in lower case without underscores, that leaves each channel to itself."""
    dims = source.dims
    if name == "flatten":  # from (1, -1) on each unit may have several neighbouring columns; of (N, T, C) it has not
        between = given.get("start_dim", 0), given.get("end_dim", -1)
        return _Flow(source.stream, 0, flat=True) if between == (1, -1) and (dims or source.flat) else None
    if name == "mean":  # over all of a map
        over = given.get("dim")
        if not dims or not isinstance(over, (tuple, list)) or "dtype" in given:
            return None
        if {d % (dims + 2) for d in over} != set(range(2, dims + 2)):
            return None
        return source if given.get("keepdim") else _Flow(source.stream, 0)
    spatial = dims > 0 and (name == "upsample" or (name in SPATIAL and dims == int(name[-2])))
    return source if spatial or name in ELEMENTWISE else None


def _is_batch(tensor: object, number: object) -> bool:
    """Whether a node is the batch size, `x.size(0)` or `x.shape[0]` of this tensor or of an input."""
    if not isinstance(number, Node):
        return False
    first = number.target == "size" and number.args[1:] == (0,)
    if number.target is operator.getitem and number.args[1] == 0 and isinstance(number.args[0], Node):
        number = number.args[0]
        first = number.target is getattr and bool(number.args[1] == "shape")
    source = number.args[0] if number.args else None
    return first and (source is tensor or (isinstance(source, Node) and source.op == "placeholder"))


def traced_units(model: nn.Module, shared: Set[int] = frozenset(), say: bool = False) -> list[Units]:
    """The units of a network whose `forward` can be traced, as far as all who write and read them are known.

    Args:
        model: stays as it is.
        shared: ids of parameters that are used outside of it too.
        say: in one line of the log, which layers' outputs are none, where that is more than the last layer.

    Raises:
        ValueError: the network cannot be traced.
    """
    kind = type(model).__name__
    try:
        graph = _Reader(model, shared).read()
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"{kind} does not declare its units and cannot be traced ({reason}): give it a method unit_graph() "
            "(see fire_core.units.graph)"
        ) from error
    written = {producer.layer for units in graph for producer in units.producers}
    layers = {name: module for name, module in model.named_modules() if is_linear(module)}
    without = [name for name, layer in layers.items() if layer not in written]
    if say and graph and len(without) > 1:
        shown = ", ".join(without[:4]) + (", ..." if len(without) > 4 else "")
        log.info(f"units of {kind} by tracing: {len(without)} of {len(layers)} layers are left alone: {shown}")
    return graph
