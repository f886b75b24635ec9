"""The values of the reading of source code: tensors that say which layers' outputs they carry."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from fire_core.weights.syntax_trees import Function

Part = tuple[tuple[Any, Any], ...]  # how a part was taken: (where, which of the parts), cut after cut; () for all

FEATURES, SHARE, OTHER, MIXED = "F", "f", "o", "m"  # kinds of axes: of all features, of a part of them
PLAIN_TYPES = (int, float, str, bool, bytes, type(None))


@dataclass(frozen=True)
class Note:
    """An operation by which a part of a layer's output was combined with another tensor.

    Attributes:
        key: `id` of the layer's weight.
        part: the part of the layer's output.
        call: number of the output that was cut; None if parts of several outputs were added.
        operation: the operation, with the number of the other tensor.
    """

    key: int
    part: Part
    call: int | None
    operation: tuple[Any, ...]


Notes = frozenset[Note]


@dataclass(frozen=True)
class SideBySide:
    """Whole outputs of layers that were joined along their features.

    Attributes:
        dim: the dimension along which they lie, as the code counts it.
        outputs: (`id` of the weight, number of features) of each, in order.
    """

    dim: int
    outputs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Flow:
    """A tensor that carries outputs of layers.

    Attributes:
        origins: (`id` of the weight, part of the output) of each layer whose outputs it carries.
        axes: the kinds of its last axes; None if they are not known.
        is_open: whether an unknown number of other axes comes before them.
        notes: what parts were combined with, which does not count before the result is used.
        calls: (weight, number of the output that was cut) of its parts.
        is_stacked: whether parts are side by side along a new axis, so that a view would put them together again.
        is_joined: whether other tensors stand beside the layer's output in it.
        side_by_side: which outputs it consists of, if it is nothing but whole outputs of layers that were joined.
        steps: the names of the functions of each number by itself that it went through since the layer.
        is_sample: whether one place was taken along its first axis, of which it is not known what the next one is.
        number: a number that equal expressions share; 0 if it has none yet.
    """

    origins: frozenset[tuple[int, Part]]
    axes: tuple[str, ...] | None = (FEATURES,)
    is_open: bool = True
    notes: Notes = frozenset()
    calls: frozenset[tuple[int, int]] = frozenset()
    is_stacked: bool = False
    is_joined: bool = False
    side_by_side: SideBySide | None = None
    steps: frozenset[str] = frozenset()
    is_sample: bool = False
    number: int = field(default=0, compare=False)


class Unknown:
    """A value of which nothing is known, except perhaps the number of its axes if it is a tensor.

    Like a `Flow` it has a number and may carry notes: the scores of an attention carry a note that queries met keys.
    `is_constant` says that it is a buffer or a vector of parameters of a module, `is_scalar` that it is a single number
    of these.
    """

    def __init__(
        self,
        axes: int | None = None,
        notes: Notes = frozenset(),
        number: int = 0,
        is_constant: bool = False,
        is_scalar: bool = False,
    ) -> None:
        self.axes, self.notes, self.number, self.is_stacked = axes, notes, number, False
        self.is_constant, self.is_scalar = is_constant, is_scalar


@dataclass(frozen=True)
class Shape:
    """The shape of a tensor, `x.shape`, or a slice at its beginning or end."""

    tensor: Any


@dataclass(frozen=True)
class Size:
    """A number that is not known: the length of an axis of a tensor, or what was computed from it."""

    axis: int | None = None


@dataclass(frozen=True)
class Rest:
    """In a tuple, the place of an unknown number of values."""


@dataclass(frozen=True)
class Parts:
    """The result of `chunk`, `split` or a similar function, if the number of parts is not known."""

    flow: Flow
    where: Any
    axis: int | None


class SameParts(Parts):
    """The parts of a cut along an axis that holds no features: each carries what the tensor carries."""

    def __init__(self, flow: Flow) -> None:
        super().__init__(flow, None, -1)


class UnboundParts(Parts):
    """The parts that `unbind` returns, which no longer have the axis."""


@dataclass(frozen=True)
class Weight:
    """A layer's own weight, or a tensor computed from it.

    Attributes:
        key: `id` of the weight.
        part: which of its rows.
        changed: where it was changed before any product, as `file:line`; "" if it was not.
        is_copy: whether it is a copy, so that what is written to it does not reach the layer's weight.
        is_turned: whether its last two axes have changed places.
    """

    key: int
    part: Part = ()
    changed: str = ""
    is_copy: bool = field(default=False, compare=False)
    is_turned: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class BoundMethod:
    """A method of a module, tensor or other value, before it is called."""

    instance: Any
    name: str


@dataclass(frozen=True)
class Inner:
    """A function defined within another function, with the variables that it sees."""

    node: Function
    names: dict[str, Any] = field(compare=False)
    context: FunctionContext = field(compare=False)


@dataclass(frozen=True)
class Partial:
    """A function with its first arguments, as `functools.partial` makes it within a forward pass."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(compare=False)


@dataclass(frozen=True)
class Mapped:
    """A function that `torch.vmap` calls with each place of its arguments along their first axis."""

    function: Any


@dataclass(eq=False)
class Instance:
    """An object of a class with Python code of its own that a forward pass makes, such as a distribution."""

    kind: type
    attributes: dict[str, Any] = field(default_factory=dict)

    def held(self) -> dict[str, Any]:
        """Return its attributes without other such objects, which may hold this one."""
        return {name: value for name, value in self.attributes.items() if not isinstance(value, Instance)}


@dataclass(frozen=True)
class Super:
    """The value of `super()` in a method of `instance`, which searches the classes behind `after`."""

    instance: nn.Module | Instance
    after: type


@dataclass
class FunctionContext:
    """The function that is being read.

    Attributes:
        filename: the file with its source.
        defining_class: the class that defines it, if it is a method.
        module: the module whose method it is.
    """

    filename: str
    defining_class: type | None = None
    module: Any = None


class Place(ast.AST):
    """A place in a file, with the attributes of a syntax node that say where it is."""

    def __init__(self, where: Any) -> None:
        super().__init__()
        self.lineno = where[1] if isinstance(where, tuple) and len(where) > 1 and isinstance(where[1], int) else 0
        self.end_lineno = where[3] if isinstance(where, tuple) and len(where) > 3 else self.lineno


def callable_value(value: Any) -> bool:
    """Return whether a value of the reading can be called."""
    return (
        isinstance(value, (nn.Module, BoundMethod, Inner, Partial, Mapped))
        or inspect.isfunction(value)
        or inspect.ismethod(value)
    )


def flows_in(value: Any) -> list[Flow]:
    """Return all tensors with outputs of layers in a value, also those within tuples, lists and mappings."""
    if isinstance(value, Flow):
        return [value]
    if isinstance(value, Parts):
        return [value.flow]
    if isinstance(value, Partial):
        value = [*value.args, *value.kwargs.values()]
    if isinstance(value, Instance):
        value = value.held()
    if isinstance(value, dict):
        value = list(value.values())
    return [flow for item in value for flow in flows_in(item)] if isinstance(value, (tuple, list)) else []


def placed_flows(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Flow]]:
    """Yield all tensors with outputs of layers in a value, each after its path within tuples, lists and mappings."""
    if isinstance(value, (Flow, Parts)):
        yield path, value.flow if isinstance(value, Parts) else value
    elif isinstance(value, Partial):
        yield from placed_flows([*value.args, *value.kwargs.values()], path)
    elif isinstance(value, Instance):
        yield from placed_flows(value.held(), path)
    elif isinstance(value, (dict, tuple, list)):
        for place_in, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from placed_flows(item, (*path, place_in))


def tensors_in(value: Any) -> list[Flow | Unknown]:
    """Return all values within a value that can carry notes."""
    if isinstance(value, (Flow, Unknown)):
        return [value]
    if isinstance(value, (Parts, BoundMethod)):
        return tensors_in(value.flow if isinstance(value, Parts) else value.instance)
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in tensors_in(item)] if isinstance(value, (tuple, list)) else []


def notes_in(value: Any) -> Notes:
    """Return the notes of all tensors within a value."""
    notes = [tensor.notes for tensor in tensors_in(value)]
    return frozenset().union(*notes)


def with_notes(value: Any, notes: Notes) -> Any:
    """Return a value with `notes` added to each tensor in it."""
    if not notes:
        return value
    if isinstance(value, Flow):
        return replace(value, notes=value.notes | notes)
    if isinstance(value, Unknown):
        return Unknown(value.axes, value.notes | notes, value.number)
    return type(value)(with_notes(item, notes) for item in value) if type(value) in (tuple, list) else value


def with_step(value: Any, step: str) -> Any:
    """Return a tensor to which something more was done, number by number; any other value unchanged."""
    return replace(value, steps=value.steps | {step}) if isinstance(value, Flow) else value


def as_sample(value: Any, is_sample: bool) -> Any:
    """Return tensors of which one place along the first axis was taken, or of which all places are together again."""
    if isinstance(value, Flow):
        return altered(value, is_sample=is_sample) if value.is_open and value.is_sample != is_sample else value
    return type(value)(as_sample(item, is_sample) for item in value) if type(value) in (tuple, list) else value


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor, or may be one."""
    return isinstance(value, (Flow, Unknown, Weight, Tensor))


def share_a_layer(first: Flow, second: Flow) -> bool:
    """Return whether two tensors carry outputs of the same layer."""
    return not {key for key, _ in first.origins}.isdisjoint(key for key, _ in second.origins)


def is_complete_output(key: int, pieces: Sequence[Any], is_along: bool | None) -> bool:
    """Return whether pieces together are one whole output of a layer.

    Either each piece is another part (heads that are computed one by one), or each was computed from all parts (rotary
    positions, products of complex numbers) and there are as many along the feature axis as there were parts.

    Args:
        key: `id` of the layer's weight.
        pieces: the values that are put together.
        is_along: whether they are joined along the feature axis; None: not known.
    """
    parts_of_pieces: list[frozenset[Part]] = []
    for piece in pieces:
        noted = frozenset(note.part for note in notes_in(piece) if note.key == key)
        carried = frozenset(part for flow in flows_in(piece) for at, part in flow.origins if at == key and part)
        if noted or carried:
            parts_of_pieces.append(noted or carried)
    parts = frozenset().union(*parts_of_pieces)
    if len({note.call for note in notes_in(pieces) if note.key == key}) > 1 or is_along is False:
        return False
    are_single = all(len(part) == 1 for part in parts_of_pieces) and len(parts) == len(parts_of_pieces)
    return len(parts_of_pieces) > 1 and (are_single or (is_along is True and len(parts_of_pieces) == len(parts)))


def weights_in(value: Any) -> list[Weight]:
    """Return all weights of layers within a value."""
    if isinstance(value, Weight):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [weight for item in value for weight in weights_in(item)] if isinstance(value, (tuple, list)) else []


def altered(flow: Flow, **changes: Any) -> Flow:
    """Return a flow with other values of some attributes: another tensor, which has no number yet."""
    new: Flow = replace(flow, **{"number": 0, **changes})
    return new


def merged(flows: Sequence[Flow], notes: Notes = frozenset()) -> Flow:
    """Return one tensor that carries all that several tensors carry; parts of one output become that output again.

    Args:
        flows: the tensors.
        notes: notes besides their own.
    """
    parts: dict[int, list[Part]] = {}
    for key, part in (origin for flow in flows for origin in flow.origins):
        parts.setdefault(key, []).append(part)
    origins = frozenset((key, _common_part(of_layer)) for key, of_layer in parts.items())
    axes = flows[0].axes if len({(flow.axes, flow.is_open) for flow in flows}) == 1 else None
    if axes is None:
        axes = next((flow.axes for flow in flows if flow.axes is not None), None)
    notes = notes.union(*(flow.notes for flow in flows))
    calls = frozenset().union(*(flow.calls for flow in flows))
    steps = frozenset().union(*(flow.steps for flow in flows))
    is_joined = any(flow.is_joined for flow in flows)
    return Flow(origins, axes, flows[0].is_open, notes, calls, is_joined=is_joined, steps=steps)


def _common_part(parts: Sequence[Part]) -> Part:
    """Return the smallest part of an output that contains all of these parts."""
    shortest = min(parts, key=len)
    length = next((i for i in range(len(shortest)) if len({part[i] for part in parts}) > 1), len(shortest))
    return shortest[:length]


def have_same_origins(first: Flow, second: Flow) -> bool:
    """Return whether two tensors carry the same parts of the same layers' outputs."""
    return first.origins == second.origins


def agreed(first: Any, second: Any) -> Any:
    """Return what a variable holds after one of two branches.

    Two tensors become one that carries what both carry. Of two values of different kinds the one that can be followed
    further is taken; if neither can, and they are not equal plain values, the result is unknown.
    """
    if first is second:
        return first
    if isinstance(first, Flow) and isinstance(second, Flow):
        same = (first.axes, first.is_open) == (second.axes, second.is_open)
        return Flow(
            first.origins | second.origins,
            first.axes if same else None,
            first.is_open,
            first.notes | second.notes,
            first.calls | second.calls,
            is_joined=first.is_joined or second.is_joined,
            steps=first.steps | second.steps,
        )
    if isinstance(first, (tuple, list)) and isinstance(second, (tuple, list)) and len(first) == len(second):
        return type(first)(agreed(a, b) for a, b in zip(first, second, strict=True))
    for kind in (Flow, Parts, tuple, list, Weight, nn.Module, Inner, BoundMethod, Instance):
        for value in (first, second):
            if isinstance(value, kind):
                return value
    if isinstance(first, PLAIN_TYPES) and isinstance(second, PLAIN_TYPES) and first == second:
        return first
    return Unknown()


def copied_containers(value: Any) -> Any:
    """Return a copy of a list or mapping, to which the reading may add without changing the model; else the value."""
    if type(value) is list:
        return [copied_containers(item) for item in value]
    return {key: copied_containers(item) for key, item in value.items()} if type(value) is dict else value


def plain_or_type(value: Any) -> Any:
    """Return a value that Python can compare, or the name of its type if it stands for a tensor or an object."""
    return value if isinstance(value, PLAIN_TYPES) else type(value).__name__
