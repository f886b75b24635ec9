"""The hidden units of a network that does not declare them, read off a symbolic trace of its forward pass.

The trace (`torch.fx`) says which layer really reads what which layer writes, through skips, concatenations and
flattened maps. Units that flow into what is not understood (grouped convolutions, attention, layer norm over the
channels, reshapes) are left alone rather than guessed at.
"""

from __future__ import annotations

import functools
import logging
import operator
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx import Node, Tracer
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from fire_core.units import Consumer, Producer, Units

log = logging.getLogger(__name__)

# Names of functions, methods and modules, in lower case without underscores. Of one number each, so a unit stays one:
ELEMENTWISE = {
    "relu", "relu6", "leakyrelu", "elu", "selu", "celu", "gelu", "silu", "mish", "tanh", "sigmoid", "softplus",
    "hardtanh", "hardswish", "hardsigmoid", "logsigmoid", "dropout", "dropout1d", "dropout2d", "dropout3d",
    "alphadropout", "featurealphadropout", "identity", "contiguous", "clone", "stochasticdepth", "clamp", "abs",
    "square", "sqrt",
}  # fmt: skip
# Within one channel each:
POOLS = {f"{adaptive}{kind}pool{d}d" for adaptive in ("", "adaptive") for kind in ("avg", "max") for d in (1, 2, 3)}
SHAPES = {"shape", "ndim", "dtype", "device"}  # attributes that do not look at the numbers


LAYERS = (nn.Linear, _ConvNd, _BatchNorm)


@dataclass(eq=False)
class _Stream:
    """Units that some layers write; `into` once another stream turned out to be the same."""

    count: int
    producers: list[Producer] = field(default_factory=list)
    consumers: list[Consumer] = field(default_factory=list)
    norms: list[nn.Module] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    opaque: bool = False
    into: _Stream | None = None

    def root(self) -> _Stream:
        """The stream that this one has become."""
        return self if self.into is None else self.into.root()

    def join(self, other: _Stream) -> None:
        """Be one with another stream of as many units."""
        one, two = self.root(), other.root()
        if one is not two:
            two.into = one
            one.opaque |= two.opaque
            for key in ("producers", "consumers", "norms", "names"):
                getattr(one, key).extend(getattr(two, key))


@dataclass
class _Flow:
    """What the channels of a tensor hold: streams one after the other.

    Attributes:
        streams: in the order of the channels.
        last: channels are the last dimension, not the second one.
    """

    streams: tuple[_Stream, ...]
    last: bool

    @property
    def counts(self) -> list[int]:
        """Units of each stream."""
        return [stream.count for stream in self.streams]


class _Leaves(Tracer):
    """Traces down to torch's own layers and to what other libraries derive from them."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, LAYERS) or super().is_leaf_module(m, module_qualified_name)


class _Reader:
    """Walks through a trace and notes who writes and reads each stream."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = dict(model.named_modules())
        self.graph = _Leaves().trace(model)
        self.flows: dict[Node, _Flow | None] = {}
        self.streams: list[_Stream] = []
        self.looked_at: set[tuple[_Stream, Node]] = set()
        calls = Counter(str(node.target) for node in self.graph.nodes if node.op == "call_module")
        self.shared = {self.modules[name] for name, count in calls.items() if count > 1}

    def read(self) -> list[_Stream]:
        """All streams whose writers and readers are all known."""
        for node in self.graph.nodes:
            self.flows[node] = self.step(node)
        roots = {stream.root(): None for stream in self.streams}
        return [stream for stream in roots if not stream.opaque and stream.producers and stream.consumers]

    def step(self, node: Node) -> _Flow | None:
        """What a node's value holds, None if that is not known."""
        if node.op == "call_module":
            module = self.modules[str(node.target)]
            if isinstance(module, LAYERS):
                more = {name for name, _ in module.named_parameters()} - {"weight", "bias"}  # a gain for each unit, say
                if module in self.shared or more:
                    return self.close(node)
                return self.norm(node, module) if isinstance(module, _BatchNorm) else self.layer(node, module)
            if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1):
                return self.flatten(node)
            return self.passed(node, type(module).__name__)
        if node.op in ("call_function", "call_method"):
            return self.function(node, getattr(node.target, "__name__", str(node.target)))
        return self.close(node)

    def close(self, node: Node) -> _Flow | None:
        """Give up on all that flows into a node; None."""
        for source in node.all_input_nodes:
            flow = self.flows[source]
            for stream in flow.streams if flow is not None else ():
                stream.root().opaque = True
        return None

    def source(self, node: Node) -> _Flow | None:
        """The flow into a node of one tensor; None closes nothing."""
        first = node.all_input_nodes
        return self.flows[first[0]] if len(first) == 1 else None

    def layer(self, node: Node, module: nn.Linear | _ConvNd) -> _Flow | None:
        dense = isinstance(module, nn.Linear)
        transposed = isinstance(module, _ConvTransposeNd)
        inputs, flow = module.weight.shape[1], self.source(node)
        if isinstance(module, _ConvNd) and (module.groups > 1 or transposed):
            return self.close(node)
        if flow is not None and (flow.last != dense or inputs % sum(flow.counts)):
            self.close(node)
        elif flow is not None:
            each, start = inputs // sum(flow.counts), 0
            for stream in flow.streams:
                columns = torch.arange(start, start + stream.count * each).view(stream.count, each)
                whole = len(flow.streams) == 1 and each == 1
                key = (stream.root(), node.all_input_nodes[0])
                probed = key not in self.looked_at
                self.looked_at.add(key)
                stream.root().consumers.append(Consumer(module, None if whole else columns, probed))
                start += stream.count * each
        made = _Stream(len(module.weight), [Producer(module)], names=[str(node.target)])
        self.streams.append(made)
        return _Flow((made,), last=dense)

    def norm(self, node: Node, module: _BatchNorm) -> _Flow | None:
        flow = self.source(node)
        if flow is None or flow.counts != [module.num_features]:
            return self.close(node)
        flow.streams[0].root().norms.append(module)
        return flow

    def flatten(self, node: Node) -> _Flow | None:
        flow = self.source(node)
        if flow is None or flow.last:  # of (N, tokens, channels) the channels would be repeated, not spread
            return self.close(node)
        return _Flow(flow.streams, last=True)

    def passed(self, node: Node, name: str) -> _Flow | None:
        flow = self.source(node)
        name = name.replace("_", "").lower()
        if name in ELEMENTWISE or (name in POOLS and flow is not None and not flow.last):
            return flow
        return self.close(node)

    def function(self, node: Node, name: str) -> _Flow | None:
        rest: tuple[Any, ...] = (*node.args[1:], *node.kwargs.values())
        if name in ("size", "dim", "numel") or (name == "getattr" and rest[0] in SHAPES):
            return None
        if node.target in (operator.add, operator.iadd, operator.mul, operator.imul, torch.add, torch.mul) or (
            node.op == "call_method" and name in ("add", "add_", "mul", "mul_")
        ):
            return self.combined(node)
        if name in ("cat", "concat"):
            return self.concatenated(node, rest)
        flat = name == "flatten" and rest in ((1,), (1, -1))
        if flat or (name in ("view", "reshape") and len(rest) == 2 and rest[1] == -1):
            flow = self.flows[node.all_input_nodes[0]]
            if flow is None or flow.last:
                return self.close(node)
            return _Flow(flow.streams, last=True)
        if name == "mean" and rest and isinstance(rest[0], (tuple, list)) and set(rest[0]) in ({2, 3}, {-1, -2}):
            flow = self.source(node)
            if flow is None or flow.last:
                return self.close(node)
            kept = rest[1:] == (True,)
            return flow if kept else _Flow(flow.streams, last=True)
        return self.passed(node, name)

    def combined(self, node: Node) -> _Flow | None:
        flows = [self.flows[source] for source in node.all_input_nodes]
        numbers = sum(not isinstance(argument, Node) for argument in node.args)
        if len(flows) == 1 and numbers:  # with a number
            return flows[0]
        first = flows[0]
        for other in flows[1:]:
            if first is None or other is None or first.counts != other.counts or first.last != other.last:
                return self.close(node)
            for one, two in zip(first.streams, other.streams, strict=True):
                one.join(two)
        return first

    def concatenated(self, node: Node, rest: tuple[Any, ...]) -> _Flow | None:
        flows = [self.flows[source] for source in node.all_input_nodes]
        known = [flow for flow in flows if flow is not None]
        listed = node.args[0] if node.args else ()
        distinct = isinstance(listed, (tuple, list)) and len(listed) == len(flows)
        last = {flow.last for flow in known}
        if len(known) < len(flows) or not distinct or len(last) != 1 or rest != ((-1,) if True in last else (1,)):
            return self.close(node)
        return _Flow(tuple(stream for flow in known for stream in flow.streams), last.pop())


def traced_units(model: nn.Module) -> list[Units]:
    """The units of a network whose `forward` can be traced, as far as all who write and read them are known.

    Layers whose outputs are none are named in one line of the log.

    Raises:
        ValueError: the network cannot be traced.
    """
    kind = type(model).__name__
    try:
        reader = _Reader(model)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"{kind} does not declare its units and cannot be traced ({reason})") from error
    found = reader.read()
    graph = [Units(" + ".join(s.names), s.count, tuple(s.producers), tuple(s.consumers), tuple(s.norms)) for s in found]
    writers = {producer.layer for units in graph for producer in units.producers}
    layers = {name: m for name, m in model.named_modules() if isinstance(m, (nn.Linear, _ConvNd))}
    without = [name for name, layer in layers.items() if layer not in writers]
    if graph:
        shown = ", ".join(without[:4]) + (", ..." if len(without) > 4 else "")
        groups = f"{len(graph)} group{'s' * (len(graph) > 1)}"
        _say(f"units of {kind} by tracing: {groups}; {len(without)} of {len(layers)} layers are left alone: {shown}")
    return graph


@functools.cache
def _say(text: str) -> None:
    """To the log, once in a process: each phase looks at the units anew."""
    log.info(text)
