"""The hidden units of a network that does not declare them, read off a symbolic trace of its forward pass.

The trace (`torch.fx`) says which layer really reads what which layer writes, through skips, concatenations and
flattened maps. Units that flow into what is not understood (grouped convolutions, attention, layer norm over the
channels, reshapes) are left out rather than guessed, and so are those of layers that are called twice, share a
weight, or are more than torch's own layers. Inputs are taken to be batches of vectors or of maps.
"""

from __future__ import annotations

import copy
import inspect
import logging
import operator
import random
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.fx import Node, Tracer
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from fire_core.units.graph import Consumer, Producer, Units

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
SHAPES = {"shape", "ndim", "dtype", "device"}  # attributes that do not depend on the numbers
PLAIN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = {nn.BatchNorm1d: (2, 3, None), nn.BatchNorm2d: (4,), nn.BatchNorm3d: (5,)}  # ranks that they take


@dataclass(eq=False)
class _Stream:
    """Units that some layers write; `into` is the stream that it was merged into.

    Layers and norms are known by their names.
    """

    count: int
    producers: list[str] = field(default_factory=list)
    consumers: list[tuple[str, torch.Tensor, bool]] = field(default_factory=list)  # layer, columns, probed
    norms: list[str] = field(default_factory=list)
    opaque: bool = False
    into: _Stream | None = None

    def root(self) -> _Stream:
        """The stream into which this one has been merged."""
        return self if self.into is None else self.into.root()

    def join(self, other: _Stream) -> None:
        """Merge with another stream of as many units."""
        one, two = self.root(), other.root()
        if one is not two:
            two.into = one
            one.opaque |= two.opaque
            one.producers += two.producers
            one.consumers += two.consumers
            one.norms += two.norms


@dataclass(frozen=True)
class _Flow:
    """What the channels of a tensor hold.

    Attributes:
        streams: one after the other in the order of the channels.
        last: channels are the last dimension, not the second one.
        rank: dimensions of the tensor, None if unknown.
        flat: each unit may have several neighbouring columns.
    """

    streams: tuple[_Stream, ...]
    last: bool
    rank: int | None
    flat: bool = False

    @property
    def counts(self) -> list[int]:
        """Units of each stream."""
        return [stream.count for stream in self.streams]


class _Reader:
    """Walks through a trace and notes who writes and reads each stream.

    Args:
        model: in the mode that is traced; its Python attributes may change.
        shared: ids of parameters that are used elsewhere too.
    """

    def __init__(self, model: nn.Module, shared: Set[int]) -> None:
        self.modules = dict(model.named_modules())
        defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(model.forward).parameters.items()
            if parameter.default is not parameter.empty
        }
        self.graph = Tracer().trace(model, concrete_args=defaults)
        self.flows: dict[Node, _Flow | None] = {}
        self.flattened: set[Node] = set()  # of unknown content, but two dimensions
        self.streams: list[_Stream] = []
        self.looked_at: set[tuple[_Stream, Node]] = set()
        calls = Counter(str(node.target) for node in self.graph.nodes if node.op == "call_module")
        twice = {id(self.modules[name]) for name, count in calls.items() if count > 1}
        read = {str(node.target) for node in self.graph.nodes if node.op == "get_attr"}
        seen = {id(getattr(self.modules[n.rpartition(".")[0]], n.rpartition(".")[2], None)) for n in read}
        owners = Counter(id(p) for module in set(self.modules.values()) for p in module.parameters(recurse=False))
        bad = {key for key, count in owners.items() if count > 1} | shared | seen
        self.closed = {
            name
            for name, m in self.modules.items()
            if id(m) in twice
            or "forward" in vars(m)
            or m._forward_hooks
            or any(id(tensor) in bad for tensor in (*m.parameters(recurse=False), *m.buffers(recurse=False)))
            or {key for key, _ in m.named_parameters()} - {"weight", "bias"}  # a gain of each unit, say
        }

    def read(self) -> list[_Stream]:
        """All streams whose writers and readers are all known."""
        for node in self.graph.nodes:
            self.flows[node] = self.step(node)
        roots = {stream.root(): None for stream in self.streams}
        return [stream for stream in roots if not stream.opaque and stream.producers and stream.consumers]

    def step(self, node: Node) -> _Flow | None:
        """What a node's value holds, None if that is not known."""
        if "out" in node.kwargs:
            return self.close(node)
        if node.op == "call_module":
            name = str(node.target)
            module = self.modules[name]
            if type(module) in PLAIN or type(module) in NORMS:
                if name in self.closed or node.kwargs:
                    return self.close(node)
                return self.norm(node, name) if type(module) in NORMS else self.layer(node, name)
            if isinstance(module, nn.Flatten):
                return self.flatten(node, (module.start_dim, module.end_dim))
            return self.passed(node, type(module).__name__)
        if node.op in ("call_function", "call_method"):
            return self.function(node, getattr(node.target, "__name__", str(node.target)))
        return self.close(node)

    def close(self, node: Node) -> _Flow | None:
        """Mark every stream that flows into a node as not understood; None."""
        for source in node.all_input_nodes:
            flow = self.flows[source]
            for stream in flow.streams if flow is not None else ():
                stream.root().opaque = True
        return None

    def source(self, node: Node) -> _Flow | None:
        """The flow into a node of one tensor."""
        inputs = node.all_input_nodes
        return self.flows[inputs[0]] if len(inputs) == 1 else None

    def layer(self, node: Node, name: str) -> _Flow | None:
        module = self.modules[name]
        assert isinstance(module, (nn.Linear, _ConvNd))
        if isinstance(module, _ConvNd) and module.groups > 1:
            return self.close(node)
        dense, flow, inputs = isinstance(module, nn.Linear), self.source(node), module.weight.shape[1]
        rank = None if dense else module.weight.ndim
        if flow is not None:
            total = sum(flow.counts)
            fits = inputs % total == 0 if flow.flat else inputs == total
            if not fits or flow.last != dense or (not dense and flow.rank != rank):
                self.close(node)
            else:
                self.consume(node, name, flow, inputs // total)
        if dense:
            rank = flow.rank if flow is not None else 2 if node.all_input_nodes[0] in self.flattened else None
        made = _Stream(len(module.weight), [name])
        self.streams.append(made)
        return _Flow((made,), last=dense, rank=rank)

    def consume(self, node: Node, name: str, flow: _Flow, each: int) -> None:
        start = 0
        for stream in flow.streams:
            columns = torch.arange(start, start + stream.count * each).view(stream.count, each)
            key = (stream.root(), node.all_input_nodes[0])
            stream.root().consumers.append((name, columns, key not in self.looked_at))
            self.looked_at.add(key)
            start += stream.count * each

    def norm(self, node: Node, name: str) -> _Flow | None:
        flow, module = self.source(node), self.modules[name]
        assert isinstance(module, _BatchNorm)
        if flow is None or flow.counts != [module.num_features] or flow.rank not in NORMS[type(module)]:
            return self.close(node)
        if flow.last != (flow.rank in (2, None)):  # of (N, T, C) it would normalise T
            return self.close(node)
        flow.streams[0].root().norms.append(name)
        return flow

    def flatten(self, node: Node, dims: tuple[object, object]) -> _Flow | None:
        if dims != (1, -1):
            return self.close(node)
        self.flattened.add(node)
        flow = self.flows[node.all_input_nodes[0]]
        if flow is None or (flow.last and flow.rank != 2):  # of (N, T, C) each channel's columns are not contiguous
            return self.close(node)
        return flow if flow.last else _Flow(flow.streams, last=True, rank=2, flat=True)

    def passed(self, node: Node, name: str) -> _Flow | None:
        flow, name = self.source(node), name.replace("_", "").lower()
        if flow is None:
            return self.close(node)
        if name in ELEMENTWISE:
            return flow
        if not flow.last and (name == "upsample" or (name in SPATIAL and flow.rank == int(name[-2]) + 2)):
            return flow
        return self.close(node)

    def function(self, node: Node, name: str) -> _Flow | None:
        rest = node.args[1:]
        if name in ("size", "dim", "numel") or (name == "getattr" and rest[0] in SHAPES):
            return None
        if name.rstrip("_") in BINARY:
            return self.combined(node)
        if name in ("cat", "concat"):
            return self.concatenated(node, _bound(node, ("tensors", "dim")))
        if name == "flatten":
            given = _bound(node, ("input", "start_dim", "end_dim"))
            return self.flatten(node, (given.get("start_dim", 0), given.get("end_dim", -1)))
        if name in ("view", "reshape") and len(rest) == 2 and rest[1] == -1 and _is_batch(rest[0], node.args[0]):
            return self.flatten(node, (1, -1))
        if name == "mean":
            return self.mean(node, _bound(node, ("input", "dim", "keepdim")))
        return self.passed(node, name)

    def mean(self, node: Node, given: dict[str, Any]) -> _Flow | None:
        flow, dims = self.source(node), given.get("dim")
        if flow is None or flow.last or flow.rank is None or not isinstance(dims, (tuple, list)) or "dtype" in given:
            return self.close(node)
        if {d % flow.rank for d in dims} != set(range(2, flow.rank)):
            return self.close(node)
        return flow if given.get("keepdim") else _Flow(flow.streams, last=True, rank=2)

    def combined(self, node: Node) -> _Flow | None:
        flows = [self.flows[source] for source in node.all_input_nodes]
        first = flows[0]
        if first is None:
            return self.close(node)
        for other in flows[1:]:
            if other is None or replace(other, streams=()) != replace(first, streams=()):
                return self.close(node)
            if first.counts != other.counts:
                return self.close(node)
            for one, two in zip(first.streams, other.streams, strict=True):
                one.join(two)
        return first

    def concatenated(self, node: Node, given: dict[str, Any]) -> _Flow | None:
        flows = [self.flows[source] for source in node.all_input_nodes]
        listed, dim = given.get("tensors"), given.get("dim", 0)
        known = [flow for flow in flows if flow is not None and not flow.flat]
        whole = isinstance(listed, (tuple, list)) and len(listed) == len(flows) == len(known)
        if not whole or len({(flow.last, flow.rank) for flow in known}) != 1:
            return self.close(node)
        last, rank = known[0].last, known[0].rank
        if dim not in ((-1, 1) if rank == 2 else (-1,) if last else (1,)):
            return self.close(node)
        return _Flow(tuple(stream for flow in known for stream in flow.streams), last, rank)


def _bound(node: Node, names: tuple[str, ...]) -> dict[str, Any]:
    """A call's arguments by name."""
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def _is_batch(number: object, tensor: object) -> bool:
    """Whether a node is the batch size: `x.size(0)`, `x.size()[0]` or `x.shape[0]` of this tensor or of an input."""
    if not isinstance(number, Node):
        return False
    looked, first = number, number.target == "size" and number.args[1:] == (0,)
    if number.target is operator.getitem and number.args[1] == 0 and isinstance(number.args[0], Node):
        looked = number.args[0]
        first = looked.target == "size" and len(looked.args) == 1
        first |= looked.target is getattr and looked.args[1:] == ("shape",)
    source = looked.args[0] if looked.args else None
    return first and (source is tensor or (isinstance(source, Node) and source.op == "placeholder"))


def _looked_through(model: nn.Module, shared: Set[int], training: bool) -> dict[object, _Stream]:
    """The streams in one mode, by what they consist of; `model` itself and the random numbers stay as they are.

    Raises:
        ValueError: the forward pass draws random numbers to decide what to do.
    """
    same = {id(p): p for p in model.parameters()}  # not copied
    with torch.random.fork_rng(devices=[]):
        drawn, chance = torch.get_rng_state(), random.getstate()
        streams = _Reader(copy.deepcopy(model, same).train(training), shared).read()
        if not torch.equal(drawn, torch.get_rng_state()) or chance != random.getstate():
            random.setstate(chance)
            raise ValueError("its forward pass draws random numbers")
    found: dict[object, _Stream] = {}
    for stream in streams:
        read = frozenset((name, tuple(columns.flatten().tolist())) for name, columns, _ in stream.consumers)
        found[stream.count, frozenset(stream.producers), read, frozenset(stream.norms)] = stream
    return found


def _units(stream: _Stream, modules: dict[str, nn.Module]) -> Units:
    """A stream as units of these modules; what one layer reads of it at several places is one consumer."""
    reads: dict[str, tuple[torch.Tensor, bool]] = {}
    for name, columns, probed in stream.consumers:
        earlier, before = reads.get(name, (columns[:, :0], False))
        reads[name] = (torch.cat([earlier, columns], 1), before or probed)
    consumers = []
    for name, (columns, probed) in reads.items():
        same = columns.shape[1] == 1 and len(columns) == modules[name].get_parameter("weight").shape[1]
        consumers.append(Consumer(modules[name], None if same else columns, probed))
    producers = tuple(Producer(modules[name]) for name in stream.producers)
    norms = tuple(modules[name] for name in stream.norms)
    return Units(" + ".join(stream.producers), stream.count, producers, tuple(consumers), norms)


def traced_units(model: nn.Module, shared: Set[int] = frozenset(), say: bool = False) -> list[Units]:
    """The units of a network whose `forward` can be traced, as far as all who write and read them are known.

    They are the same in training and evaluation mode.

    Args:
        model: stays as it is.
        shared: ids of parameters that are used outside of it too.
        say: in one line of the log, which layers' outputs are none, where that is more than the last layer.

    Raises:
        ValueError: the network cannot be traced.
    """
    kind = type(model).__name__
    try:
        evaluating, training = (_looked_through(model, shared, mode) for mode in (False, True))
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"{kind} does not declare its units and cannot be traced ({reason}): give it a method unit_graph() "
            "(see fire_core.units.graph)"
        ) from error
    modules = dict(model.named_modules())
    graph = [_units(stream, modules) for what, stream in training.items() if what in evaluating]
    writers = {producer.layer for units in graph for producer in units.producers}
    layers = {name: m for name, m in modules.items() if isinstance(m, (nn.Linear, _ConvNd))}
    without = [name for name, layer in layers.items() if layer not in writers]
    if say and graph and len(without) > 1:
        shown = ", ".join(without[:4]) + (", ..." if len(without) > 4 else "")
        groups = f"{len(graph)} group{'s' * (len(graph) > 1)}"
        log.info(
            f"units of {kind} by tracing: {groups}; {len(without)} of {len(layers)} layers are left alone: {shown}"
        )
    return graph
