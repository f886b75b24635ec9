"""The hidden units of a run's networks: those that a model declares, else those read off a trace of its forward pass.

The symbolic trace (`torch.fx`, in training mode) says which layer reads what which layer writes, through skips and
flattened maps. Units that flow into what is not understood (concatenations, grouped convolutions, attention, layer
norm, other reshapes) are left out rather than guessed, and so are those of layers that are called twice, share a
weight, or are more than torch's own layers. A trace follows one way through the code: units that another branch or
method reads, as far as its source tells, are left out too, and so are those that a layer off this way could read, since
it takes as many inputs. Inputs are taken to be batches of vectors or of maps.
"""

from __future__ import annotations

import ast
import copy
import inspect
import logging
import operator
import random
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.fx import Node, Tracer
from torch.nn.modules.conv import _ConvNd

from fire_core.units.graph import Consumer, Producer, Units, weight
from fire_core.weights.overlap import overlapping
from fire_core.weights.source import SourceReader
from fire_core.weights.syntax_trees import source_of
from fire_core.weights.topology import input_count, is_layer, unwrap

log = logging.getLogger(__name__)

# Functions, methods and modules by name, in lower case without underscores.
# These act on each number by itself, so that each unit stays one unit:
ELEMENTWISE = {
    "relu", "relu6", "leakyrelu", "elu", "selu", "celu", "gelu", "silu", "mish", "tanh", "sigmoid", "softplus",
    "softsign", "hardtanh", "hardswish", "hardsigmoid", "logsigmoid", "dropout", "dropout1d", "dropout2d", "dropout3d",
    "alphadropout", "featurealphadropout", "identity", "contiguous", "clone", "detach", "float", "stochasticdepth",
    "clamp", "abs", "neg", "square", "sqrt", "exp", "erf",
}  # fmt: skip
# These act within each channel; the digit is the number of dimensions of the map:
SPATIAL = {f"{adaptive}{kind}pool{d}d" for adaptive in ("", "adaptive") for kind in ("avg", "max") for d in (1, 2, 3)}
SPATIAL |= {f"{kind}pad{d}d" for kind in ("zero", "constant", "reflection", "replication") for d in (1, 2, 3)}
BINARY = {"add", "iadd", "sub", "isub", "mul", "imul", "div", "truediv"}
ARGUMENTS = {"flatten": ("input", "start_dim", "end_dim"), "mean": ("input", "dim", "keepdim")}
SHAPES = {"shape", "ndim", "dtype", "device"}  # attributes of a tensor that do not depend on its numbers
# The spatial dimensions of the maps that a layer or norm takes; 0 stands for vectors.
LAYERS = {nn.Linear: 0, nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
NORMS = {nn.BatchNorm1d: (0, 1), nn.BatchNorm2d: (2,), nn.BatchNorm3d: (3,)}


def unit_graph(modules: Mapping[str, nn.Module], log_omitted: bool = False) -> list[Units]:
    """Return the hidden units of all networks: those that a network declares, else those read off a trace of it.

    Args:
        modules: the networks by name.
        log_omitted: log which layers a trace has left out.

    Raises:
        ValueError: a module has neither a `unit_graph()` nor a `forward` that can be traced, or there are no units.
    """
    roots = [unwrap(module) for module in modules.values()]
    networks_of_parameter = Counter(id(p) for root in roots for p in root.parameters())
    shared = {key for key, count in networks_of_parameter.items() if count > 1}
    parameters = [p for root in roots for p in root.parameters()]
    for pair in overlapping((str(at), p) for at, p in enumerate(parameters)):  # a transposed view, for example
        shared.update(id(parameters[int(at)]) for at in pair)
    graph: list[Units] = []
    for root in roots:
        declare = getattr(root, "unit_graph", None)
        graph += traced_units(root, shared, log_omitted) if declare is None else declare()
    if not graph:
        kinds = ", ".join(type(unwrap(module)).__name__ for module in modules.values())
        raise ValueError(
            f"no hidden units of {kinds} are declared or can be traced: give it a method unit_graph() "
            "(see fire_core.units.graph)"
        )
    return [replace(units, consumers=tuple(map(_with_columns_on_device, units.consumers))) for units in graph]


def _with_columns_on_device(consumer: Consumer) -> Consumer:
    """Return the consumer with its columns on the device of its weight, so that no step has to copy them there."""
    if consumer.columns is None:
        return consumer
    return replace(consumer, columns=consumer.columns.to(weight(consumer.layer).device, non_blocking=True))


@dataclass(eq=False)
class _Stream:
    """Units while the trace is being read: producers and consumers are added as they are met.

    Attributes:
        count: number of units.
        producers: names of the layers that write them.
        consumers: the layers that read them.
        norms: norms between producers and consumers.
        opaque: whether they also flow into something that is not understood, so that they are left out.
    """

    count: int
    producers: list[str]
    consumers: list[Consumer] = field(default_factory=list)
    norms: list[nn.Module] = field(default_factory=list)
    opaque: bool = False


class _Flow(NamedTuple):
    """What a tensor of the trace holds.

    Attributes:
        stream: the units in its channels.
        dims: spatial dimensions of the map; 0 for vectors.
        flat: whether the vectors are flattened maps, with several neighbouring columns for each unit.
    """

    stream: _Stream
    dims: int
    flat: bool = False


class _TraceReader:
    """Walks through a trace of a copy of a network and collects which layers write and read each stream of units.

    Args:
        model: the network, which is not changed.
        shared: ids of parameters that other networks use too.
    """

    def __init__(self, model: nn.Module, shared: Set[int]) -> None:
        self.modules = dict(model.named_modules())
        parameters = inspect.signature(model.forward).parameters.items()
        defaults = {name: p.default for name, p in parameters if p.default is not p.empty}
        clone = copy.deepcopy(model, {id(p): p for p in model.parameters()})  # parameters are not copied
        state_of_random = random.getstate()
        try:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(0)  # a network that skips layers by chance skips the same ones
                random.seed(0)
                self.graph = Tracer().trace(clone.train(), concrete_args=defaults)
        finally:
            random.setstate(state_of_random)
        self.flows: dict[Node, _Flow | None] = {}
        self.streams: list[_Stream] = []
        self.probed: set[Node] = set()  # tensors that a consumer reads; further consumers of them are not probed
        called = [self.modules[str(node.target)] for node in self.graph.nodes if node.op == "call_module"]
        accessed = [str(node.target).rpartition(".") for node in self.graph.nodes if node.op == "get_attr"]
        owned = [p for module in set(self.modules.values()) for p in module.parameters(recurse=False)]
        # ids of modules and parameters that are used more than once, or outside of their layer's own call
        self.reused = {id(getattr(self.modules[owner], name, None)) for owner, _, name in accessed} | shared
        self.reused |= {key for key, count in Counter(map(id, [*called, *owned])).items() if count > 1}
        # Layers of this trace, also those within a module that it does not enter, such as torch's attention:
        used = {part for module in called for part in module.modules()}
        used |= {self.modules[owner] for owner, _, _ in accessed}
        uncalled = [module for module in set(self.modules.values()) if is_layer(module) and module not in used]
        self.source = SourceReader(model)
        uses = self.source.uses
        keys = {id(layer): id(layer._parameters.get("weight")) for layer in uncalled}
        elsewhere = [at for at in uncalled if keys[id(at)] in uses and not uses[keys[id(at)]].is_uncalled]
        for holder in self.modules.values():  # an argument may choose another one of several modules
            if isinstance(holder, (nn.ModuleList, nn.ModuleDict)) and not used.isdisjoint(holder.modules()):
                elsewhere += [module for module in holder.modules() if module in uncalled]
        self.inputs_elsewhere = {input_count(layer) for layer in elsewhere}

    def read(self) -> list[Units]:
        """Return the units whose producers and consumers are all known."""
        for node in self.graph.nodes:
            reads_shape_only = node.op == "call_method" and node.target in ("size", "dim", "numel")
            reads_shape_only |= node.target is getattr and node.args[1] in SHAPES
            self.flows[node] = None if reads_shape_only else self.follow(node)
            if self.flows[node] is None and not reads_shape_only:
                self.mark_inputs_opaque(node)
        of_maps = {id(flow.stream) for flow in self.flows.values() if flow is not None and (flow.flat or flow.dims)}
        graph = []
        for stream in self.streams:
            if not stream.opaque and stream.consumers and not self.is_read_elsewhere(stream, id(stream) in of_maps):
                name = " + ".join(stream.producers)
                producers = tuple(Producer(self.modules[layer]) for layer in stream.producers)
                graph.append(Units(name, stream.count, producers, tuple(stream.consumers), tuple(stream.norms)))
        return graph

    def is_read_elsewhere(self, stream: _Stream, is_of_maps: bool) -> bool:
        """Return whether code off the way of this trace reads units, or has a layer that may.

        Args:
            stream: the units.
            is_of_maps: whether they are channels of maps, of which a linear layer may read all places.
        """
        for count in self.inputs_elsewhere:
            if count == stream.count or (is_of_maps and count % stream.count == 0):
                return True
        known = {id(thing) for thing in (*(consumer.layer for consumer in stream.consumers), *stream.norms)}
        layers = [weight(self.modules[name]) for name in stream.producers]
        return not all(self.source.readers_everywhere(id(layer)) <= known for layer in layers)

    def mark_inputs_opaque(self, node: Node) -> None:
        """Mark every stream that flows into a node as not understood."""
        for flow in filter(None, map(self.flows.get, node.all_input_nodes)):
            flow.stream.opaque = True

    def is_opaque(self, module: nn.Module) -> bool:
        """Return whether a layer is used elsewhere too, or does more than torch's own layer, as one with a gain."""
        tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        further_parameters = {key for key, _ in module.named_parameters()} - {"weight", "bias"}
        if further_parameters or "forward" in vars(module) or module._forward_hooks:
            return True
        if any(map(_may_change, module._forward_pre_hooks.values())):
            return True
        return any(id(thing) in self.reused for thing in (module, *tensors))

    def follow(self, node: Node) -> _Flow | None:
        """Return what a node's value holds, None if that is not known."""
        sources = [self.flows[source] for source in node.all_input_nodes]
        source = sources[0] if len(sources) == 1 else None
        if node.op == "call_module":
            module = self.modules[str(node.target)]
            if type(module) in LAYERS or type(module) in NORMS:
                if self.is_opaque(module) or node.kwargs:
                    return None
                if type(module) in NORMS:
                    return self.through_norm(module, source)
                return self.through_layer(node, source)
            if any(map(_may_change, (*module._forward_hooks.values(), *module._forward_pre_hooks.values()))):
                return None
            name, arguments = type(module).__name__, dict(vars(module))
        elif node.op in ("call_function", "call_method") and "out" not in node.kwargs:
            name = getattr(node.target, "__name__", str(node.target))
            arguments = dict(zip(ARGUMENTS.get(name, ()), node.args, strict=False)) | dict(node.kwargs)
        else:
            return None
        name = name.replace("_", "").lower()
        if name in BINARY:
            return self.merge(sources)
        if name in ("view", "reshape") and len(node.args) == 3 and node.args[2] == -1 and self.is_batch(*node.args[:2]):
            name, arguments, source = "flatten", {"start_dim": 1}, sources[0]
        return None if source is None else through_function(source, name, arguments)

    def is_batch(self, tensor: Any, number: Any) -> bool:
        """Return whether a number is the batch size of a tensor: its `size(0)` or `shape[0]`, or those of its input."""
        if not isinstance(number, Node) or not isinstance(tensor, Node):
            return False
        is_first = number.target == "size" and number.args[1:] == (0,)
        if number.target is operator.getitem and number.args[1] == 0 and isinstance(number.args[0], Node):
            number = number.args[0]
            is_first = number.target is getattr and bool(number.args[1] == "shape")
        sized = number.args[0] if number.args else None
        return is_first and isinstance(sized, Node) and self.has_batch_of(tensor, sized)

    def has_batch_of(self, tensor: Node, sized: Node) -> bool:
        """Return whether a tensor has as many samples as another one, from which it was computed sample by sample."""
        waiting, visited = [tensor], {tensor}
        while waiting:
            node = waiting.pop()
            if node is sized:
                return True
            name = str(getattr(node.target, "__name__", node.target)).replace("_", "").lower()
            if self.flows.get(node) is not None or name in ELEMENTWISE | BINARY:
                waiting += [source for source in node.all_input_nodes if source not in visited]
                visited.update(node.all_input_nodes)
        return False

    def through_layer(self, node: Node, source: _Flow | None) -> _Flow | None:
        """Add a layer as a consumer of what it reads, and return the new stream that it writes."""
        module = self.modules[str(node.target)]
        assert isinstance(module, (nn.Linear, _ConvNd))
        dims, inputs = LAYERS[type(module)], module.weight.shape[1]
        if isinstance(module, _ConvNd) and module.groups > 1:
            return None
        if source is not None:
            columns_per_unit = inputs // source.stream.count if source.flat else 1
            if source.dims == dims and columns_per_unit * source.stream.count == inputs:
                columns = None
                if columns_per_unit > 1:
                    columns = torch.arange(inputs, device="cpu").view(-1, columns_per_unit)
                tensor = node.all_input_nodes[0]
                source.stream.consumers.append(Consumer(module, columns, tensor not in self.probed))
                self.probed.add(tensor)
            else:
                self.mark_inputs_opaque(node)
        self.streams.append(_Stream(len(module.weight), [str(node.target)]))
        return _Flow(self.streams[-1], dims)

    def through_norm(self, module: Any, source: _Flow | None) -> _Flow | None:
        """Add a batch norm to the stream that it normalises, which flows on."""
        if source is None or source.flat or source.dims not in NORMS[type(module)]:
            return None
        source.stream.norms.append(module)
        return source if source.stream.count == module.num_features else None

    def merge(self, sources: list[_Flow | None]) -> _Flow | None:
        """Merge streams that are added or multiplied element by element into the first of them."""
        known = [flow for flow in sources if flow is not None]
        if len(known) < len(sources) or len({(flow.stream.count, *flow[1:]) for flow in known}) != 1:
            return None
        merged = known[0].stream
        for other in {id(flow.stream): flow.stream for flow in known if flow.stream is not merged}.values():
            merged.opaque |= other.opaque
            merged.producers += other.producers
            merged.consumers += other.consumers
            merged.norms += other.norms
            self.streams.remove(other)
            for node, flow in self.flows.items():
                if flow is not None and flow.stream is other:
                    self.flows[node] = flow._replace(stream=merged)
        return known[0]


def through_function(source: _Flow, name: str, arguments: Mapping[str, Any]) -> _Flow | None:
    """Return what is left of a flow behind a function or module that does not mix channels; None if it is not known.

    Args:
        source: the flow into it.
        name: its name, in lower case without underscores.
        arguments: its arguments besides the tensor, or its attributes, by name.
    """
    dims = source.dims
    if name == "flatten":
        # From dimension 1 to the last each unit gets several neighbouring columns. Only maps have units in dimension 1:
        # vectors of sequences, (N, T, C), have them last.
        flattened = arguments.get("start_dim", 0), arguments.get("end_dim", -1)
        return _Flow(source.stream, 0, flat=True) if flattened == (1, -1) and (dims or source.flat) else None
    if name == "mean":  # only a mean over all positions of a map is followed
        averaged = arguments.get("dim")
        if not dims or not isinstance(averaged, (tuple, list)) or "dtype" in arguments:
            return None
        if {d % (dims + 2) for d in averaged} != set(range(2, dims + 2)):
            return None
        return source if arguments.get("keepdim") else _Flow(source.stream, 0)
    is_spatial = dims > 0 and (name == "upsample" or (name in SPATIAL and dims == int(name[-2])))
    return source if is_spatial or name in ELEMENTWISE else None


def _may_change(hook: Any) -> bool:
    """Return whether a hook may change what passes it; False if its source shows that it only looks."""
    function = getattr(hook, "__func__", hook)
    if getattr(function, "__module__", "").startswith("fire_core."):  # those that measure units
        return False
    source = source_of(function)
    if source is None or isinstance(source, ast.Lambda):
        return True
    for node in ast.walk(source):
        if isinstance(node, ast.Return) and not (node.value is None or getattr(node.value, "value", "") is None):
            return True
        called = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
        if isinstance(node, ast.AugAssign) or (called.endswith("_") and not called.endswith("__")):
            return True  # what is written in place may be the tensor
        if isinstance(node, ast.Assign) and any(isinstance(target, ast.Subscript) for target in node.targets):
            return True
    return False


def traced_units(model: nn.Module, shared: Set[int] = frozenset(), log_omitted: bool = False) -> list[Units]:
    """Return the units of a network whose `forward` can be traced, those whose producers and consumers are all known.

    Args:
        model: the network, which is not changed.
        shared: ids of parameters that other networks use too.
        log_omitted: log, in one line, the layers whose outputs are no units, if there are more than the last layer.

    Raises:
        ValueError: the network cannot be traced.
    """
    kind = type(model).__name__
    try:
        graph = _TraceReader(model, shared).read()
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"{kind} does not declare its units and cannot be traced ({reason}): give it, or a subclass, a method "
            "unit_graph() (see fire_core.units.graph)"
        ) from error
    written = {producer.layer for units in graph for producer in units.producers}
    layers = {name: module for name, module in model.named_modules() if is_layer(module)}
    omitted = [name for name, layer in layers.items() if layer not in written]
    if log_omitted and graph and len(omitted) > 1:
        shown = ", ".join(omitted[:4]) + (", ..." if len(omitted) > 4 else "")
        log.info(f"units of {kind} by tracing: {len(omitted)} of {len(layers)} layers are left alone: {shown}")
    return graph
