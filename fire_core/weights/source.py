"""What a model's code does with the output of each layer, read from the source of its forward passes.

The source is followed as Python would run it, with the model's own modules, sizes and configuration. Tensors are
replaced by values that say only which layers' outputs they carry, which part of these, and along which axis. Nothing of
the model is run.

A layer's output is *cut* if parts of it along the feature axis meet different operations: queries, keys and values, a
gate and what it gates, a mean and a variance. It is also cut if the parts meet the same operation with different
tensors: one half scales x and the other half scales y, as in `g * x + r * y`. It is not cut by a view into heads, nor
if the parts are put together again (rotary positions), nor by an index along another axis (`x[:, -1]`).

To tell different tensors apart, every tensor has a number: two tensors have the same number if the same expression of
the same tensors computes them. What a part was scaled by or added to is first recorded in a `Note` on the result. The
note counts as soon as the result is used, and is dropped if the parts are put together again.
"""

from __future__ import annotations

import ast
import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fire_core.weights.code import Function, file_of, forward_of, is_torchs, method_of, outer_names, place, source_of
from fire_core.weights.topology import is_dense, is_linear, outputs, words

Part = tuple[tuple[Any, Any], ...]  # how a part was taken: (where, which of the parts), cut after cut; () for all
Signature = set[tuple[Any, ...]]  # the operations that a part meets

MOST_NESTED = 24  # calls within each other that are followed
MOST_NODES = 200_000  # of the syntax tree, for each module from which reading starts
STRICT = False  # whether an error in reading is raised, as in the tests, or the module left to the other ways
MOST_ADDED = 8  # layers whose sum is looked at as the output of a network, not as a stream through many blocks
MOST_TURNS = 4  # of a loop over a known number of turns without modules

FEATURES, SHARE, OTHER, MIXED, UNSURE = "F", "f", "o", "m", "?"  # kinds of axes: of all features, of a part of them


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
class Flow:
    """A tensor that carries outputs of layers.

    Attributes:
        origins: (`id` of the weight, part of the output) of each layer whose outputs it carries.
        axes: the kinds of its last axes; None if they are not known.
        is_open: whether an unknown number of other axes comes before them.
        notes: what parts were combined with, which does not count before the result is used.
        calls: (weight, number of the output that was cut) of its parts.
        is_stacked: whether parts are side by side along a new axis, so that a view would put them together again.
        steps: the names of the functions of each number by itself that it went through since the layer.
        number: a number that equal expressions share; 0 if it has none yet.
    """

    origins: frozenset[tuple[int, Part]]
    axes: tuple[str, ...] | None = (FEATURES,)
    is_open: bool = True
    notes: Notes = frozenset()
    calls: frozenset[tuple[int, int]] = frozenset()
    is_stacked: bool = False
    steps: frozenset[str] = frozenset()
    number: int = field(default=0, compare=False)


class Unknown:
    """A value of which nothing is known, except perhaps the number of its axes if it is a tensor.

    Like a `Flow` it has a number and may carry notes: the scores of an attention carry a note that queries met keys.
    """

    def __init__(self, axes: int | None = None, notes: Notes = frozenset(), number: int = 0) -> None:
        self.axes, self.notes, self.number, self.is_stacked = axes, notes, number, False


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
    axis: int


@dataclass(frozen=True)
class Weight:
    """A layer's own weight, or a tensor computed from it.

    Attributes:
        key: `id` of the weight.
        part: which of its rows.
        changed: where it was changed before any product, as `file:line`; "" if it was not.
    """

    key: int
    part: Part = ()
    changed: str = ""


@dataclass(frozen=True)
class Method:
    """A method of a module or tensor, as a value before it is called."""

    owner: Any
    name: str


@dataclass(frozen=True)
class Inner:
    """A function defined within another function, with the variables that it sees."""

    node: Function
    names: dict[str, Any] = field(compare=False)
    context: Context = field(compare=False)


@dataclass(frozen=True)
class Super:
    """The value of `super()` in a method of `owner`, which searches the classes behind `after`."""

    owner: nn.Module
    after: type


@dataclass
class Context:
    """The function that is being read.

    Attributes:
        filename: the file with its source.
        owner: the class that defines it, if it is a method.
        module: the module whose method it is.
        caller: name of the class whose code called it.
    """

    filename: str
    owner: type | None = None
    module: Any = None
    caller: str = ""


@dataclass
class LayerUse:
    """What the source tells of one weight.

    Attributes:
        calls: how often its layer is called, or the weight itself multiplied.
        multiplied: how often the weight, as it is stored, is an operand of a product of matrices.
        fused_by_torch: whether torch's own code for attention or recurrent layers takes it, and so cuts it as always.
        own_forward: what the forward pass of a user's layer class does with it: "plain", "changed" or "unclear"; "" if
            the class is torch's.
        signatures: from each part of its output to the operations that the part meets.
        lines: from each part to the place where it is taken, `file:line`.
        spans: from each part to the same place as (file, first line, last line).
        changed: where the weight is changed before it is multiplied; "" if it is not.
        escapes: whether the output is used where it cannot be followed.
        holder: the class whose code calls the layer.
    """

    calls: int = 0
    multiplied: int = 0
    fused_by_torch: bool = False
    own_forward: str = ""
    signatures: dict[Part, Signature] = field(default_factory=dict)
    lines: dict[Part, str] = field(default_factory=dict)
    spans: dict[Part, tuple[str, int, int]] = field(default_factory=dict)
    changed: str = ""
    escapes: bool = False
    holder: str = ""

    @property
    def cut(self) -> list[Part]:
        """The parts of the output that meet different operations, from its first such cut; empty if there is none."""
        groups: dict[Part, dict[Part, Signature]] = {}
        for part, signature in self.signatures.items():
            for depth in range(len(part)):
                group = groups.setdefault(part[:depth], {})
                group.setdefault(part[: depth + 1], set()).update(signature)
        for group in groups.values():
            if len(group) > 1 and len({frozenset(signature) for signature in group.values()}) > 1:
                return list(group)
        return []

    @property
    def line(self) -> str:
        """Where the output is cut, as `file:line`; "" if it is not."""
        parts = self.cut
        return next((self.lines[part] for part in parts if part in self.lines), "its forward") if parts else ""

    @property
    def places(self) -> list[tuple[str, int, int]]:
        """The places where the output is cut, each as (file, first line, last line)."""
        return list(dict.fromkeys(self.spans[part] for part in self.cut if part in self.spans))


class _LimitReached(Exception):
    """The limit of what is read is reached; nothing more is read from this module."""


class SourceReader:
    """Reads the source of all forward passes of a model.

    Args:
        model: a model without wrappers.

    Attributes:
        uses: from the `id` of a weight to what the source tells of it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.uses: dict[int, LayerUse] = {}
        self.in_turn: set[nn.Module] = set()  # lists of modules that are called one after the other
        self.reads_input: set[int] = set()  # weights of layers that are given what no layer made
        self.rows: dict[int, int] = {}  # features of each layer
        self.results: dict[nn.Module, list[Flow]] = {}  # what each module returns
        self.inputs: set[int] = set()  # the numbers of what each module is given
        self.added: dict[int, set[int]] = {}  # the numbers of what was added to the output of a layer
        self._numbers: dict[tuple[Any, ...], int] = {}  # of expressions; see `number`
        for layer in filter(is_linear, model.modules()):
            weight = layer._parameters.get("weight")
            if weight is not None:
                self.rows[id(weight)] = outputs(layer)
        self._norms: set[int] = set()  # `id`s of modules
        self._entered: set[nn.Module] = set()
        self._nodes = 0
        self._depth = 0
        for module in model.modules():
            if module not in self._entered and any(True for _ in module.parameters()):
                self._nodes = MOST_NODES
                try:
                    result = self._call_module(module, [Unknown()], {}, None)
                    self._leave(result)
                except Exception:  # any code of others that is not foreseen here
                    if STRICT:
                        raise

    # ------------------------------------------------------------------------------------------------------ the notes

    def _use(self, key: int) -> LayerUse:
        """Return the record of a weight, by its `id`."""
        return self.uses.setdefault(key, LayerUse())

    def _pass_through(self, value: Any, *operation: Any) -> None:
        """Record that a value meets an operation whose result is followed further, such as an activation."""
        for path, flow in _placed_flows(value):
            for key, part in flow.origins:
                self._use(key).signatures.setdefault(part, set()).add((*operation, *path))

    def _meet(self, value: Any, *operation: Any) -> None:
        """Record that an operation uses a value, so that the notes on the value count from now on.

        Values within a tuple, list or mapping meet the operation at different places.
        """
        self._pass_through(value, *operation)
        for note in _notes_of(value):
            self._use(note.key).signatures.setdefault(note.part, set()).add(note.operation)

    def _escape(self, value: Any, *operation: Any) -> None:
        """Record that a value is used where it cannot be followed."""
        self._meet(value, *operation)
        for flow in _flows(value):
            for key, _ in flow.origins:
                self._use(key).escapes = True

    def number(self, value: Any) -> int:
        """Return the number of a value; two values share it if the same expression of the same values computes them."""
        if isinstance(value, Unknown):
            value.number = value.number or self._number_of("unknown", len(self._numbers))
            return value.number
        if isinstance(value, Flow):
            return value.number or self._number_of("flow", value.origins, value.axes)
        if isinstance(value, (tuple, list)):
            return self._number_of("several", *map(self.number, value))
        if isinstance(value, dict):
            return self._number_of("mapping", *value, *map(self.number, value.values()))
        if isinstance(value, slice):
            return self._number_of("slice", *map(self.number, (value.start, value.stop, value.step)))
        if isinstance(value, Method):
            return self._number_of("method", self.number(value.owner), value.name)
        if isinstance(value, Inner):
            return self._number_of("function", id(value.node))
        if isinstance(value, Shape):
            return self._number_of("shape", self.number(value.tensor))
        if isinstance(value, Parts):
            return self._number_of("parts", self.number(value.flow), value.where)
        if isinstance(value, (*_PLAIN, Weight, Size, Rest)):
            return self._number_of("plain", type(value).__name__, value)
        return self._number_of("object", type(value).__name__, id(value))

    def _number_of(self, *expression: Any) -> int:
        """Return the number of an expression, a new one if it was not seen before."""
        return self._numbers.setdefault(expression, len(self._numbers) + 1)

    def numbered(self, value: Any, *expression: Any) -> Any:
        """Return the value of an expression with the expression's number.

        A value that is not followed further carries the notes of the values that it was computed from.

        Args:
            value: the value of the expression.
            expression: a word for its kind, and the values in it.
        """
        if isinstance(value, Unknown) and not value.number:
            notes = _notes_of(expression)
            value.number = self._number_of(*map(self.number, expression))
            value.notes |= notes
            value.is_stacked = bool(notes) and any(part.is_stacked for part in _tensors(expression))
        elif isinstance(value, Flow) and not value.number:
            return replace(value, number=self._number_of(*map(self.number, expression)))
        return value

    def noted(self, value: Any, *operation: Any) -> Any:
        """Return a tensor with a note that its parts met an operation; any other value unchanged."""
        if not isinstance(value, Flow):
            return value
        calls = dict(value.calls)
        several = len(calls) < len(value.calls)
        notes = {Note(key, part, None if several else calls.get(key), operation) for key, part in value.origins if part}
        return replace(value, notes=value.notes | notes)

    def noted_beside(self, given: Sequence[Any], *operation: Any) -> Notes:
        """Return the notes of a call on its arguments: each tensor meets it at its position, with the other tensors."""
        notes: set[Note] = set()
        for slot, value in enumerate(given):
            if isinstance(value, Flow):
                beside = (self.number(other) for other in given if other is not value and _is_tensor(other))
                notes |= _notes_of(self.noted(value, *operation, slot, *beside))
        return frozenset(notes)

    def _leave(self, result: Any) -> None:
        """Record what a forward pass returns to a caller that is not known."""
        self._escape(result, "returned")

    def _take(self, flow: Flow, axis: int | None, which: Any, where: Any, node: ast.AST, context: Context) -> Flow:
        """Return a part of a tensor along an axis; the tensor itself if the axis holds no features."""
        if flow.axes is None or axis is None or flow.axes[axis] not in (FEATURES, SHARE, UNSURE):
            return flow
        origins = set()
        for key, part in flow.origins:
            taken = (*part, (where, which))
            use = self._use(key)
            first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
            use.lines.setdefault(taken, place(context.filename, first) if first else context.filename)
            use.spans.setdefault(taken, (context.filename, first, last))
            use.signatures.setdefault(taken, set())
            origins.add((key, taken))
        number = self.number(flow)
        calls = frozenset((key, number) for key, part in flow.origins if not part) | flow.calls
        number = self._number_of("part", number, self.number(which))
        return altered(flow, origins=frozenset(origins), calls=calls, number=number)

    # ---------------------------------------------------------------------------------------------------- the modules

    def is_consumed(self, key: int) -> bool:
        """Whether another layer, a module with parameters or a product of matrices takes the output of a layer."""
        return any(
            operation[0] in ("layer", "call") or operation[0] in _PRODUCTS or self._module_of(operation) is not None
            for operation in self._operations_of(key)
        )

    def readers_of(self, key: int) -> set[int]:
        """Return the `id`s of the modules that take the output of a layer."""
        return {operation[1] for operation in self._operations_of(key) if operation[0] in ("module", "layer")}

    def is_residual(self, key: int) -> bool:
        """Return whether the output of a layer is added to something that a module was given."""
        return not self.added.get(key, set()).isdisjoint(self.inputs)

    def steps_after(self, key: int) -> set[str]:
        """The names of activations and norms that come after a layer."""
        names: set[str] = set()
        for operation in self._operations_of(key):
            if operation[0] == "module" and operation[1] in self._norms:
                names.add("norm")
            elif operation[0] == "module" and isinstance(operation[1], str):
                names.add(operation[1].lower())
            elif _is_elementwise(str(operation[0])) and operation[0] not in _PRODUCTS:
                names.add(str(operation[0]))
        return names

    def _operations_of(self, key: int) -> list[tuple[Any, ...]]:
        return [operation for signature in self._use(key).signatures.values() for operation in signature]

    def _module_of(self, operation: tuple[Any, ...]) -> int | None:
        """The `id` of the module with parameters, no norm, that an operation is a call of."""
        is_call = operation[0] == "module" and isinstance(operation[1], int) and operation[1] not in self._norms
        return int(operation[1]) if is_call else None

    def _call_module(self, module: nn.Module, args: list[Any], kwargs: dict[str, Any], node: ast.AST | None) -> Any:
        """What a module returns; it is noted, and what it was given."""
        given = [value for value in (*args, *kwargs.values()) if _is_tensor(value)]
        self.inputs.update(map(self.number, given))
        result = self._result_of(module, args, kwargs, node)
        self.results.setdefault(module, []).extend(_flows(result))
        return result

    def _result_of(self, module: nn.Module, args: list[Any], kwargs: dict[str, Any], node: ast.AST | None) -> Any:
        self._entered.add(module)
        given = [*args, *kwargs.values()]
        if is_linear(module):
            return self._call_layer(module, args, kwargs)
        function, owner = forward_of(module)
        if is_torchs(function):
            return self._call_torch_module(module, args, kwargs, node)
        if _is_norm(module):
            self._meet(given, "module", id(module))
            self._norms.add(id(module))
            return _stepped(given[0], "norm") if given and isinstance(given[0], Flow) else Unknown(_axes_of(given[:1]))
        source = source_of(function)
        if source is None:
            self._escape(given, "module", id(module))
            return Unknown()
        notes: Notes = frozenset()
        if any(is_linear(part) for part in module.modules()):
            # What a module with layers of its own does with its input is no matter of the layer before it.
            self._escape(given, "module", id(module))
            notes = self.noted_beside(given, "module", id(module))
            args = [self._from_outside(value) for value in args]
            kwargs = {key: self._from_outside(value) for key, value in kwargs.items()}
        context = Context(file_of(function), owner, module, type(module).__name__)
        result = self._call_function(source, outer_names(function), [module, *args], kwargs, context)
        return _with_notes(result, notes)

    def _from_outside(self, value: Any) -> Any:
        """What a module with layers of its own sees of a value that other layers made."""
        return Unknown(_axes_of([value]), number=self.number(value)) if _flows(value) or _notes_of(value) else value

    def _call_layer(self, module: nn.Module, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A linear layer or a convolution: its output carries it."""
        self._meet([*args, *kwargs.values()], "layer", id(module))
        weight = module._parameters.get("weight")
        if weight is not None and not is_torchs(forward_of(module)[0]) and not _is_conv1d(module):
            self._read_own_forward(module, weight, len(args))
        if weight is None:
            return Unknown()
        given = next(iter([*args, *kwargs.values()]), None)
        if isinstance(given, Unknown):
            self.reads_input.add(id(weight))
        return self._output_of(id(weight), module, given)

    def _read_own_forward(self, module: nn.Module, weight: Tensor, count: int) -> None:
        """What the forward pass of a layer's own class does with its weight."""
        use = self._use(id(weight))
        if use.own_forward:
            return
        function, owner = forward_of(module)
        use.own_forward, source = "unclear", source_of(function)
        if source is None:
            return
        context = Context(file_of(function), owner, module, type(module).__name__)
        before = use.multiplied
        self._call_function(source, outer_names(function), [module, *[Unknown()] * max(1, count)], {}, context)
        if use.changed:
            use.own_forward = "changed"
        elif use.multiplied > before:
            use.own_forward = "plain"

    def _output_of(self, key: int, module: Any, given: Any) -> Flow:
        self._use(key).calls += 1
        if isinstance(module, _ConvNd):
            return Flow(frozenset({(key, ())}), (OTHER, FEATURES, *[OTHER] * len(module.kernel_size)), is_open=False)
        axes = _axes_of([given])
        if axes is None:
            return Flow(frozenset({(key, ())}))
        return Flow(frozenset({(key, ())}), (*[OTHER] * (axes - 1), FEATURES), is_open=False)

    def _call_torch_module(
        self, module: nn.Module, args: list[Any], kwargs: dict[str, Any], node: ast.AST | None
    ) -> Any:
        """A module of torch's own classes."""
        value = args[0] if args else next(iter(kwargs.values()), Unknown())
        name = type(module).__name__
        if isinstance(module, nn.Sequential):
            for child in module.children():
                value = self._call_module(child, [value], {}, node)
            # With a list or a mapping of modules in it, it only holds what others call.
            runs = all(forward_of(child)[0] is not nn.Module.forward for child in module.children())
            return value if runs else Unknown()
        if isinstance(module, nn.GLU):
            self._halves(value, module.dim, (id(module), "GLU"), node)
            return _stepped(value, "gated")
        if forward_of(module)[0] is nn.Module.forward:
            return Unknown()  # it cannot be called; what it holds is read by itself
        if isinstance(module, (nn.Identity, nn.Dropout, nn.modules.dropout._DropoutNd)):
            return value
        if isinstance(module, (nn.Flatten, nn.Unflatten)):
            return _without_axes(value)
        for child in module.modules():  # an encoder layer of torch: its parts are plain
            if not is_torchs(type(child)):
                continue
            self._entered.add(child)
            if is_linear(child) and (weight := child._parameters.get("weight")) is not None:
                self._use(id(weight)).calls += 1
        keeps = "activation" in type(module).__module__ or "pooling" in type(module).__module__ or _is_norm(module)
        keeps = keeps and not isinstance(module, nn.MultiheadAttention)
        note = self._pass_through if keeps else self._meet
        note([*args, *kwargs.values()], "module", id(module) if _has_parameters(module) else name)
        if _is_norm(module):
            self._norms.add(id(module))
        step = "norm" if _is_norm(module) else name.lower()
        return _stepped(value, step) if keeps else Unknown()

    def _halves(self, value: Any, dim: Any, where: Any, node: ast.AST | None, context: Context | None = None) -> None:
        """A gated linear unit takes two halves."""
        for flow in _flows(value):
            axis = _axis(flow, dim if isinstance(dim, int) else -1)
            for half in ("value", "gate"):
                spot = node if node is not None else ast.Pass()
                part = self._take(flow, axis, half, where, spot, context or Context(f"by nn.{where[1]}"))
                self._meet(part, half)

    # -------------------------------------------------------------------------------------------------- the functions

    def _call_function(
        self, node: Function, outer: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any], context: Context
    ) -> Any:
        """Return the value that a Python function returns for these arguments."""
        if self._depth >= MOST_NESTED:
            self._escape([*args, *kwargs.values()], "call", id(node))
            return Unknown()
        self._depth += 1
        try:
            return _Reading(self, node, outer, args, kwargs, context).result()
        finally:
            self._depth -= 1


# Names of functions and methods of tensors, by what they do to a layer's output.
_CUTS = {"chunk", "split", "tensor_split", "unsafe_chunk", "unsafe_split", "split_with_sizes", "unbind", "hsplit"}
_CUTS |= {"dsplit", "vsplit", "unsafe_split_with_sizes"}
_VIEWS = {"view", "reshape", "unflatten", "flatten", "permute", "transpose", "swapaxes", "swapdims", "movedim", "t"}
_VIEWS |= {"moveaxis", "squeeze", "unsqueeze", "view_as", "reshape_as", "rearrange"}
_SAME = words(
    "contiguous clone float half double bfloat16 to type type_as cuda cpu detach dropout requires_grad_ "
    "expand data expand_as neg masked_fill masked_fill_ div true_divide dropout1d dropout2d alpha_dropout "
    "feature_dropout roll pad flip negative nan_to_num repeat repeat_interleave sub sub_ rsub cast "
    "checkpoint_name div_ neg_ as_tensor constrain requires_grad interpolate pin_memory refine_names "
    "rename"
)
_CASTS = words(
    "contiguous clone float half double bfloat16 to type type_as cuda cpu detach dropout data checkpoint_name"
)
_JOINS = {"cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack", "where"}
_JOIN_AXES = {"hstack": 1, "dstack": 2, "column_stack": 1}  # along which they join, where they do not take a `dim`
_PUT_TOGETHER = {"view", "reshape", "flatten", "view_as", "reshape_as", "rearrange", "view_as_complex"}
_PRODUCTS = words(
    "matmul mm bmm einsum baddbmm addmm addbmm mv dot inner outer tensordot scaled_dot_product_attention "
    "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d bilinear chain_matmul "
    "multi_dot cdist vdot kron cross lstm gru lstm_cell gru_cell rnn_tanh rnn_relu rnn_tanh_cell "
    "rnn_relu_cell multi_head_attention_forward cosine_similarity cov ger flex_attention"
)
_TAKES_WEIGHT = {name for name in _PRODUCTS if name.startswith(("linear", "conv", "matmul", "mm", "bmm", "einsum"))}
_TAKES_WEIGHT |= {"addmm", "baddbmm", "tensordot", "inner", "mv"}
_TAKES_FUSED = {"lstm", "gru", "lstm_cell", "gru_cell", "rnn_tanh", "rnn_relu", "rnn_tanh_cell", "rnn_relu_cell"}
_TAKES_FUSED |= {"multi_head_attention_forward"}
_LOOKS = {"size", "dim", "numel", "is_floating_point", "stride", "element_size", "nelement", "ndimension", "item"}
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip
_PLAIN = (int, float, str, bool, bytes, type(None))


class _Reading:
    """The reading of one call of one function, with the values of its variables."""

    def __init__(
        self,
        reader: SourceReader,
        node: Function,
        outer: Mapping[str, Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        context: Context,
    ) -> None:
        self.reader, self.node, self.outer, self.context = reader, node, outer, context
        self.names: dict[str, Any] = {}
        self.written: dict[str, list[Any]] = {}  # from a variable's name to what was written into its tensor
        self.returned: list[Any] = []
        self._bind(node.args, list(args), dict(kwargs))

    def _bind(self, spec: ast.arguments, args: list[Any], kwargs: dict[str, Any]) -> None:
        names = [argument.arg for argument in (*spec.posonlyargs, *spec.args)]
        if any(isinstance(value, Rest) for value in args):
            args = args[: next(i for i, value in enumerate(args) if isinstance(value, Rest))]
        self.names.update(zip(names, args, strict=False))
        if spec.vararg:
            self.names[spec.vararg.arg] = (
                (*args[len(names) :], Rest()) if not args[len(names) :] else tuple(args[len(names) :])
            )
        for name in [*names, *(argument.arg for argument in spec.kwonlyargs)]:
            if name in kwargs:
                self.names[name] = kwargs.pop(name)
        if spec.kwarg:
            self.names[spec.kwarg.arg] = kwargs
        defaults = dict(zip(names[len(names) - len(spec.defaults) :], spec.defaults, strict=True))
        defaults |= {a.arg: d for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None}
        for name in [*names, *(argument.arg for argument in spec.kwonlyargs)]:
            if name not in self.names:
                value = self._of(defaults[name]) if name in defaults else Unknown()
                self.names[name] = Unknown() if value is None else value

    def result(self) -> Any:
        if isinstance(self.node, ast.Lambda):
            return self._of(self.node.body)
        self._run(self.node.body)
        if not self.returned:
            return None
        return functools.reduce(self._either, self.returned)

    # ------------------------------------------------------------------------------------------------------ statements

    def _run(self, body: Sequence[ast.stmt]) -> bool:
        """Read statements one after the other, and return whether the function certainly ends in them."""
        return any(self._statement(statement) for statement in body)

    def _statement(self, node: ast.stmt) -> bool:
        self.reader._nodes -= 1
        if self.reader._nodes < 0:
            raise _LimitReached
        match node:
            case ast.Assign():
                value = self._of(node.value)
                for target in node.targets:
                    self._assign(target, value, node)
            case ast.AnnAssign(value=ast.expr() as value):
                self._assign(node.target, self._of(value), node)
            case ast.AugAssign():
                value = self._binary(node.op, self._of(node.target), self._of(node.value), node)
                self._assign(node.target, value, node)
            case ast.Return():
                self.returned.append(None if node.value is None else self._of(node.value))
                return True
            case ast.Expr():
                self._of(node.value)
            case ast.If():
                return self._branch(node)
            case ast.For() | ast.AsyncFor():
                for value in self._turns(self._of(node.iter)):
                    self._assign(node.target, value, node)
                    self._run(node.body)
                self._run(node.orelse)
            case ast.While():
                self._of(node.test)
                self._run(node.body)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._of(item.context_expr)
                return self._run(node.body)
            case ast.Try():
                ends = self._run(node.body)
                self._run(node.finalbody)
                return ends
            case ast.Match():
                for choice in node.cases:
                    self._run(choice.body)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.names[node.name] = Inner(node, self.names, self.context)
            case ast.Raise() | ast.Break() | ast.Continue():
                return isinstance(node, ast.Raise)
            case ast.Import() | ast.ImportFrom():
                self._import(node)
        return False

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        import sys

        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            home = sys.modules.get(node.module or "" if isinstance(node, ast.ImportFrom) else alias.name)
            value = getattr(home, alias.name, None) if isinstance(node, ast.ImportFrom) else home
            self.names[name] = Unknown() if value is None else value

    def _branch(self, node: ast.If) -> bool:
        test = self._of(node.test)
        if (known := _truth(test)) is not None:
            return self._run(node.body if known else node.orelse)
        before = dict(self.names)
        ends = self._run(node.body)
        after, self.names = self.names, before
        ends_otherwise = self._run(node.orelse)
        if ends:
            return ends_otherwise
        if ends_otherwise:
            self.names = after
            return False
        for name in after.keys() | self.names.keys():
            values = [names[name] for names in (after, self.names) if name in names]
            self.names[name] = values[0] if len(values) == 1 else self._either(*values)
        return False

    def _either(self, first: Any, second: Any) -> Any:
        """Return what a variable holds after one of two branches; of two different kinds of values one is followed."""
        either = _either(first, second)
        for value in (first, second):
            is_lost = not _flows(either) or (isinstance(either, Flow) and isinstance(value, (tuple, list, dict)))
            if either is not value and is_lost:
                self.reader._escape(value, "otherwise")
        if isinstance(either, (Flow, Unknown)) and either is not first and either is not second:
            return self.reader.numbered(either, "either", first, second)
        return either

    def _turns(self, value: Any) -> list[Any]:
        """Return the values for which the body of a loop is read."""
        items = self._items(value)
        if items is None:
            return [Unknown()]
        known = [item for item in items if not isinstance(item, Rest)]
        if any(isinstance(item, nn.Module) or _holds_module(item) for item in known):
            return known
        return known[:MOST_TURNS] if known else [Unknown()] * bool(items)

    def _items(self, value: Any, count: int | None = None, node: ast.AST | None = None) -> list[Any] | None:
        """Return the items of a value that is iterated over or unpacked; None if they are not known."""
        if isinstance(value, (tuple, list)):
            return list(value)
        if isinstance(value, (nn.ModuleList, nn.Sequential)):
            return list(value.children())
        if isinstance(value, (dict, nn.ModuleDict)):
            return list(value.keys())
        if isinstance(value, (range, str)):
            return list(value)[:64]
        if isinstance(value, Parts):
            return [self._part(value, i) for i in range(count or MOST_TURNS)]
        if isinstance(value, Flow) and node is not None and count is not None:
            where = (self.context.filename, getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
            return [self._select(value, 0, i, where, node) for i in range(count)]
        if isinstance(value, Shape) and count is not None:
            if isinstance(value.tensor, Unknown):
                value.tensor.axes = count
            return self._sizes(value.tensor, count)
        return None

    def _sizes(self, tensor: Any, count: int) -> list[Any]:
        sizes: list[Any] = [Size(axis) for axis in range(count)]
        return sizes

    def _assign(self, target: ast.expr, value: Any, node: ast.AST) -> None:
        match target:
            case ast.Name():
                self.names[target.id] = value
                self.written.pop(target.id, None)
            case ast.Tuple() | ast.List():
                self._unpack(target.elts, value, node)
            case ast.Starred():
                self._assign(target.value, value, node)
            case ast.Subscript():
                base = self._of(target.value)
                if isinstance(base, (list, dict)) and isinstance(key := self._of(target.slice), (int, str)):
                    if isinstance(base, dict) or -len(base) <= int(key) < len(base):
                        base[key] = value  # type: ignore[index]
                    if not isinstance(target.value, ast.Name):
                        self.reader._escape(value, "stored", key)
                elif isinstance(target.value, ast.Name) and _is_tensor(value):
                    self._write_part(target.value.id, base, target, value)
                else:
                    self.reader._escape(value, "stored")
            case ast.Attribute():
                self.reader._escape(value, "stored", target.attr)

    def _write_part(self, name: str, base: Any, target: ast.Subscript, value: Any) -> None:
        """Read `out[..., :n] = part`: what is written to a tensor part by part is put together there."""
        pieces = self.written.setdefault(name, [])
        pieces.append(value)
        if isinstance(base, Flow) and len(pieces) == 1:
            pieces.insert(0, base)
        elif not _flows(pieces) and not _notes_of(pieces):
            return
        index = self._of(target.slice)
        self.names[name] = self._put_together(pieces, _is_along_features(index, value), is_stack=True)

    def _unpack(self, targets: Sequence[ast.expr], value: Any, node: ast.AST) -> None:
        starred = next((i for i, target in enumerate(targets) if isinstance(target, ast.Starred)), None)
        items = self._items(value, len(targets), getattr(node, "value", node))
        if items is None and starred is None and isinstance(value, Unknown):
            items = [self.reader.numbered(Unknown(), "item", value, i) for i in range(len(targets))]
        if items is not None and any(isinstance(item, Rest) for item in items):
            items = [Unknown() for _ in targets] if len(items) == 1 else None
        if items is None or (starred is None and len(items) != len(targets)):
            if _flows(value):
                self.reader._escape(value, "unpacked")
            items = [Unknown() for _ in targets]
        elif starred is not None:
            behind = len(targets) - starred - 1
            stop = len(items) - behind
            items = [*items[:starred], items[starred:stop], *items[stop:]]
        for target, item in zip(targets, items, strict=False):
            self._assign(target, item, node)

    # ----------------------------------------------------------------------------------------------------- expressions

    def _of(self, node: ast.expr) -> Any:
        """Return the value of an expression."""
        self.reader._nodes -= 1
        if self.reader._nodes < 0:
            raise _LimitReached
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self.names[node.id] if node.id in self.names else _own(self.outer.get(node.id, Unknown()))
            case ast.Attribute():
                owner = self._of(node.value)
                return self.reader.numbered(self._attribute(owner, node.attr), "attribute", owner, node.attr)
            case ast.Call():
                return self._call(node)
            case ast.Subscript():
                owner, index = self._of(node.value), self._of(node.slice)
                return self.reader.numbered(self._subscript(owner, index, node), "item", owner, index)
            case ast.Tuple() | ast.List():
                return (tuple if isinstance(node, ast.Tuple) else list)(self._listed(node.elts))
            case ast.Dict():
                keys = [None if key is None else self._of(key) for key in node.keys]
                values = [self._of(value) for value in node.values]
                return {k: v for k, v in zip(keys, values, strict=True) if isinstance(k, (str, int))}
            case ast.BinOp():
                left, right = self._of(node.left), self._of(node.right)
                return self._renumbered(self._binary(node.op, left, right, node), type(node.op).__name__, left, right)
            case ast.UnaryOp():
                return self._unary(node)
            case ast.BoolOp():
                return functools.reduce(self._either, [self._of(value) for value in node.values])
            case ast.Compare():
                return self._compare(node)
            case ast.IfExp():
                known = _truth(self._of(node.test))
                if known is not None:
                    return self._of(node.body if known else node.orelse)
                return self._either(self._of(node.body), self._of(node.orelse))
            case ast.Lambda():
                return Inner(node, self.names, self.context)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                return self._comprehension(node.generators, node.elt, node)
            case ast.DictComp():
                pairs = self._comprehension(node.generators, ast.Tuple([node.key, node.value], ast.Load()), node)
                return dict(pair if _is_key(pair) else (f"{i}", pair) for i, pair in enumerate(pairs))
            case ast.NamedExpr():
                value = self._of(node.value)
                self._assign(node.target, value, node)
                return value
            case ast.Starred() | ast.Await():
                return self._of(node.value)
            case ast.Slice():
                return slice(
                    *(None if bound is None else self._of(bound) for bound in (node.lower, node.upper, node.step))
                )
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._of(child)
        return Unknown()

    def _listed(self, nodes: Iterable[ast.expr]) -> Iterator[Any]:
        for node in nodes:
            if not isinstance(node, ast.Starred):
                yield self._of(node)
                continue
            value = self._of(node.value)
            items = self._items(value)
            if items is None and isinstance(value, (Flow, Parts)):
                items = self._items(value, 3, node.value)
            yield from [Rest()] if items is None else items

    def _renumbered(self, value: Any, *expression: Any) -> Any:
        """Return the value of an operation with a number of its own, also if it is followed as one of its operands."""
        return self.reader.numbered(altered(value) if isinstance(value, Flow) else value, *expression)

    def _comprehension(self, loops: Sequence[ast.comprehension], element: ast.expr, node: ast.AST) -> list[Any]:
        before = dict(self.names)
        results: list[Any] = []

        def turn(generators: Sequence[ast.comprehension]) -> None:
            if not generators:
                results.append(self._of(element))
                return
            items = self._of(generators[0].iter)
            known = self._items(items)
            for item in self._turns(items):
                self._assign(generators[0].target, item, node)
                for test in generators[0].ifs:
                    self._of(test)
                turn(generators[1:])
            if known is None:
                results.append(Rest())

        turn(loops)
        self.names = before
        return results

    def _compare(self, node: ast.Compare) -> Any:
        values = [self._of(node.left), *map(self._of, node.comparators)]
        if len(values) == 2 and all(isinstance(value, _PLAIN) for value in values):
            compare = _COMPARE.get(type(node.ops[0]))
            try:
                return Unknown() if compare is None else compare(*values)
            except TypeError:
                return Unknown()
        if (
            isinstance(node.ops[0], (ast.Is, ast.IsNot))
            and values[1] is None
            and isinstance(values[0], (Flow, nn.Module))
        ):
            return isinstance(node.ops[0], ast.IsNot)
        if not isinstance(node.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn)):
            for slot, value in enumerate(values):
                self.reader._meet(value, type(node.ops[0]).__name__, slot)
        return self.reader.numbered(Unknown(_axes_of(values)), type(node.ops[0]).__name__, *values)

    def _unary(self, node: ast.UnaryOp) -> Any:
        value = self._of(node.operand)
        if isinstance(value, (int, float)):
            known: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Not: operator.not_}
            return known[type(node.op)](value) if type(node.op) in known else value
        if isinstance(value, Flow):
            return value
        return self.reader.numbered(self._changed(value, node), type(node.op).__name__, value)

    def _binary(self, op: ast.operator, left: Any, right: Any, node: ast.AST) -> Any:
        values = [left, right]
        if all(isinstance(value, (int, float, str)) for value in values) and type(op) in _BINARY:
            try:
                return _BINARY[type(op)](left, right)
            except (TypeError, ZeroDivisionError, ValueError):
                return Unknown()
        if isinstance(op, ast.Add) and all(isinstance(value, (tuple, list)) for value in values):
            return type(left)([*left, *right])
        if isinstance(op, ast.Add) and any(isinstance(value, (tuple, list)) for value in values):
            return tuple(x for value in values for x in (value if isinstance(value, (tuple, list)) else [Rest()]))
        if isinstance(op, ast.Mult) and isinstance(left, list) and isinstance(right, int):
            return left * min(right, 64)
        if isinstance(op, ast.MatMult):
            return self._product("matmul", values, node)
        flows = [value for value in values if isinstance(value, Flow)]
        weights = [value for value in values if isinstance(value, Weight)]
        if weights and not flows:
            if len(weights) > 1:  # a weight and its gains, two factors: each is changed by the other
                for weight in weights:
                    self._elementwise(weight, node)
            return self._changed(weights[0], node)
        if not flows:
            sizes = any(isinstance(value, Size) for value in values)
            return Size() if sizes else Unknown(_axes_of(values))
        return self._combined(op, values, node)

    def _combined(self, op: ast.operator, values: list[Any], node: ast.AST) -> Any:
        """Return the sum or product of two values, of which at least one carries outputs of layers."""
        flows = [value for value in values if isinstance(value, Flow)]
        name = type(op).__name__
        is_sum, is_product = isinstance(op, (ast.Add, ast.Sub)), isinstance(op, (ast.Mult, ast.Div))
        if not is_sum and not is_product:
            for flow in flows:
                self.reader._pass_through(flow, name)
        elif len(flows) == 2 and _same_origins(*flows) and is_product:
            self.reader._pass_through(flows[0], "square")
        elif len(flows) == 2 and is_product and _share_a_layer(*flows):
            for side, flow in enumerate(flows):
                self.reader._meet(flow, "product", _where(node, self.context), side)
        elif len(flows) == 2 and is_sum:
            self._meet_own_sum(flows[0], flows[1], node)
        # Of two parts of one layer neither is something else for the other.
        if len(flows) == 2 and not _share_a_layer(*flows):
            first, second = flows
            flows = [self._beside(first, name, second, 0), self._beside(second, name, first, 1)]
        elif len(flows) == 1:
            side = next(i for i, value in enumerate(values) if value is flows[0])
            other = next((value for value in values if value is not flows[0]), None)
            flows = [self._beside(flows[0], name, other, side)]
        joined = _joined(flows, _notes_of(values))
        if is_product and len(flows) == 2:
            return _stepped(joined, "gated")
        return joined if is_sum or is_product else _stepped(joined, name)

    def _meet_own_sum(self, first: Flow, second: Flow, node: ast.AST) -> None:
        """Record for `x + w * (y - x)` that x meets a sum which contains x already, and y does not."""
        for flow, other in ((first, second), (second, first)):
            sums = dict(other.origins)
            if any(key in sums and part != sums[key] == part[: len(sums[key])] for key, part in flow.origins):
                self.reader._pass_through(flow, "added again", _where(node, self.context))

    def _beside(self, flow: Flow, name: str, other: Any, side: int) -> Flow:
        """A flow with the note that it was combined with another tensor; numbers leave no note."""
        if not _is_tensor(other):
            return flow
        if name in ("Add", "Sub"):
            name = "Add"
            for key, _ in flow.origins if len(flow.origins) < MOST_ADDED else ():
                self.reader.added.setdefault(key, set()).add(self.reader.number(other))
            flow = flow if isinstance(other, Flow) else _stepped(flow, "added")
        name = f"Div {side}" if name == "Div" else name
        noted: Flow = self.reader.noted(flow, name, self.reader.number(other))
        return noted

    def _changed(self, value: Any, node: ast.AST) -> Any:
        """Return a weight with the place where it was changed before any product; an unknown value for all others."""
        if isinstance(value, Weight):
            return replace(value, changed=value.changed or place(self.context.filename, getattr(node, "lineno", 0)))
        return Unknown(_axes_of([value]))

    # ------------------------------------------------------------------------------------------------------ attributes

    def _attribute(self, owner: Any, name: str) -> Any:
        if isinstance(owner, nn.Module):
            return self._attribute_of_module(owner, name)
        if isinstance(owner, Super):
            return Method(owner, name)
        if isinstance(owner, (Flow, Unknown, Weight, Parts, Size)):
            if name == "shape":
                return Shape(owner)
            if name in ("mT", "T", "mH", "H"):
                return owner if isinstance(owner, Weight) else _without_axes(owner)
            if name in ("data", "real", "imag"):
                return owner
            if name in ("dtype", "device", "ndim", "is_cuda", "requires_grad"):
                return Unknown()
            return Method(owner, name)
        if isinstance(owner, (tuple, list, dict, Shape)):
            return Method(owner, name)
        try:
            return _own(getattr(owner, name))
        except Exception:  # whatever somebody's object raises
            return Unknown()

    def _attribute_of_module(self, owner: nn.Module, name: str) -> Any:
        for held in (owner._modules, owner._parameters, owner._buffers):
            if name in held:
                value = held[name]
                if isinstance(value, nn.Parameter) and value.ndim > 1:
                    return Weight(id(value))
                return Unknown() if isinstance(value, Tensor) else value
        if name in vars(owner):
            value = vars(owner)[name]
            return Unknown() if isinstance(value, Tensor) or name == "training" else _own(value)
        function, where = method_of(owner, name)
        if isinstance(function, (property, functools.cached_property)):
            getter = function.fget if isinstance(function, property) else function.func
            source = source_of(getter) if not is_torchs(getter) else None
            if source is None:
                return Unknown()
            context = Context(file_of(getter), where, owner, self.context.caller)
            return self.reader._call_function(source, outer_names(getter), [owner], {}, context)
        if isinstance(function, (staticmethod, classmethod)):
            return function.__func__ if isinstance(function, staticmethod) else Method(owner, name)
        if inspect.isfunction(function):
            return Method(owner, name)
        return Unknown() if function is None else _own(function)

    # ------------------------------------------------------------------------------------------------------- subscripts

    def _subscript(self, owner: Any, index: Any, node: ast.Subscript) -> Any:
        if isinstance(owner, (tuple, list, nn.ModuleList, nn.Sequential)):
            return self._item(owner, index)
        if isinstance(owner, (dict, nn.ModuleDict)):
            if isinstance(index, str | int) and index in owner:
                return owner[index]  # type: ignore[index]
            self.reader._escape(owner, "looked up")  # it is not known which value is taken
            return functools.reduce(_either, owner.values()) if len(owner) else Unknown()
        if isinstance(owner, Parts):
            return self._part(owner, index) if isinstance(index, int) else owner
        if isinstance(owner, Shape):
            return self._size(owner, index)
        if isinstance(owner, Flow):
            return self._index(owner, index, node)
        if isinstance(owner, Weight):
            spans = index if isinstance(index, tuple) else (index,)
            first = next((s for s in spans if s is not Ellipsis), None)
            if isinstance(first, slice) and (
                first.start is not None or first.stop is not None or first.step is not None
            ):
                return self._weight_part(owner, _slice_key(first, node.slice), _where(node, self.context), node)
            return (
                self._weight_part(owner, index, _where(node, self.context), node)
                if isinstance(index, int)
                else self._changed(owner, node)
            )
        return Unknown()

    def _item(self, owner: Any, index: Any) -> Any:
        items = list(owner.children()) if isinstance(owner, nn.Module) else owner
        if isinstance(index, slice):
            bounds = (index.start, index.stop, index.step)
            return items[index] if all(isinstance(bound, int | None) for bound in bounds) else items
        if any(isinstance(item, Rest) for item in items):
            return Unknown()
        if isinstance(index, int) and -len(items) <= index < len(items):
            return items[index]
        return functools.reduce(_either, items) if items else Unknown()

    def _size(self, shape: Shape, index: Any) -> Any:
        if isinstance(index, slice):
            return (Rest(),)
        axes = _axes_of([shape.tensor])
        if isinstance(index, int) and isinstance(shape.tensor, Flow) and (shape.tensor.axes or ("",))[-1] == FEATURES:
            is_last = index == -1 or (axes is not None and index == axes - 1)
            if is_last and len(keys := {key for key, part in shape.tensor.origins if not part}) == 1:
                return self.reader.rows.get(keys.pop(), Size())
        return Size(index if isinstance(index, int) and index >= 0 else None)

    def _part(self, parts: Parts, index: int) -> Any:
        if isinstance(parts, _Same):
            return parts.flow
        if isinstance(parts, _Unbound) and parts.flow.axes is not None:
            taken = self.reader._take(parts.flow, parts.axis, index, parts.where, _Spot(parts.where), self.context)
            return altered(taken, axes=_removed(parts.flow.axes, parts.axis))
        return self.reader._take(parts.flow, parts.axis, index, parts.where, _Spot(parts.where), self.context)

    def _select(self, flow: Flow, axis: int, index: Any, where: Any, node: ast.AST) -> Flow:
        """One place along an axis, which is gone then."""
        if flow.axes is None:
            return flow
        at = _axis(flow, axis)
        if at is None:
            return flow
        kind = flow.axes[at]
        taken = flow
        if kind in (FEATURES, SHARE) and isinstance(index, int):
            taken = self.reader._take(flow, at, ("at", index), "index", node, self.context)
        return altered(taken, axes=(*flow.axes[:at], *flow.axes[at + 1 :]))

    def _index(self, flow: Flow, index: Any, node: ast.Subscript) -> Flow:
        """`flow[...]`: slices along the feature axis are parts."""
        items = list(index) if isinstance(index, tuple) else [index]
        nodes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if flow.axes is None:
            return flow
        before = items.index(Ellipsis) if any(item is Ellipsis for item in items) else len(items)
        at = 0
        for i, (item, spot) in enumerate(zip(items, nodes, strict=False)):
            if item is Ellipsis:
                continue
            dim = at if i < before else -(len([x for x in items[i:] if x is not None]))
            if item is None:
                flow = flow if flow.is_open or i > before else _inserted(flow, at)
                at += 1
                continue
            axis = _axis(flow, dim)
            if isinstance(item, slice):
                flow = self._slice(flow, axis, item, spot, node, dim)
                at += 1
            elif isinstance(item, (Flow, Unknown, Size, list, tuple)):
                at += isinstance(item, (Flow, list, tuple))  # an index along this axis: what it takes is not known
                if isinstance(item, Unknown) and axis is not None and axis + 1 < len(flow.axes or ()):
                    # A number takes one place, a tensor of places or a mask leaves an axis or more.
                    flow = altered(flow, axes=(flow.axes or ())[axis + 1 :], is_open=True)
                elif not isinstance(item, (list, tuple)):
                    flow = _dropped(flow, axis)
            else:
                where = _where(node, self.context)
                flow = self._select_at(flow, axis, item, where, node)
        return flow

    def _select_at(self, flow: Flow, axis: int | None, item: Any, where: Any, node: ast.AST) -> Flow:
        if axis is None or flow.axes is None:
            return flow if axis is None and flow.is_open and flow.axes is not None else altered(flow, axes=None)
        return self._select(flow, axis if not flow.is_open else axis - len(flow.axes), item, where, node)

    def _slice(self, flow: Flow, axis: int | None, item: slice, spot: ast.expr, node: ast.AST, dim: int) -> Flow:
        bounds = (item.start, item.stop, item.step)
        if flow.axes is None or all(bound is None for bound in bounds):
            return flow
        if axis is None:  # of a linear layer's output with an unknown number of axes, counted from the front
            sure = [bound for bound in bounds[:2] if isinstance(bound, int) and bound > 1]
            known = all(isinstance(bound, int | None) for bound in bounds)
            if not (sure and known and flow.is_open and flow.axes == (FEATURES,)):
                return flow
            axis, flow = dim, _with_features_at(flow, dim)
        return self.reader._take(flow, axis, _slice_key(item, spot), "slice", node, self.context)

    # ------------------------------------------------------------------------------------------------------------ calls

    def _call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and "super" not in self.names:
            owner = self.context.owner
            return Unknown() if owner is None else Super(self.context.module, owner)
        callee = self._of(node.func)
        args = list(self._listed(node.args))
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self._of(keyword.value)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            elif isinstance(value, dict):
                kwargs |= {key: v for key, v in value.items() if isinstance(key, str)}
        result = self._called(callee, args, kwargs, node)
        given, name = [*args, *kwargs.values()], getattr(callee, "__name__", "")
        if isinstance(callee, Method):
            given, name = [callee.owner, *given], callee.name
        if isinstance(result, Unknown) and name in _PUT_TOGETHER and any(t.is_stacked for t in _tensors(given)):
            return Unknown(result.axes)
        if any(result is value for value in given) and name.strip("_") not in _CASTS:
            result = altered(result) if isinstance(result, Flow) else result
        return self.reader.numbered(result, "call", callee, *given)

    def _called(self, callee: Any, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
        given = [*args, *kwargs.values()]
        if isinstance(callee, nn.Module):
            return self.reader._call_module(callee, args, kwargs, node)
        if isinstance(callee, Inner):
            return self.reader._call_function(callee.node, {**self.outer, **callee.names}, args, kwargs, callee.context)
        if isinstance(callee, Method):
            return self._method(callee, args, kwargs, node)
        if isinstance(callee, functools.partial):
            return self._called(callee.func, [*callee.args, *args], {**callee.keywords, **kwargs}, node)
        if isinstance(callee, operator.attrgetter | operator.itemgetter):
            return Unknown()
        if inspect.ismethod(callee) and isinstance(callee.__self__, nn.Module):
            return self._called(Method(callee.__self__, callee.__name__), args, kwargs, node)
        name = getattr(callee, "__name__", "")
        if is_torchs(callee) or (getattr(callee, "__module__", None) or "").partition(".")[0] in (
            "einops",
            "_operator",
        ):
            return self._operation(name.strip("_"), args, kwargs, node)
        if callee in (
            map,
            filter,
            zip,
            enumerate,
            list,
            tuple,
            reversed,
            iter,
            sorted,
            len,
            int,
            float,
            getattr,
            range,
        ) or name in ("sum", "min", "max", "isinstance", "hasattr", "round", "abs", "bool", "next"):
            return self._builtin(callee, args, node)
        if isinstance(callee, type):
            self.reader._escape([given, list(kwargs)], "call", callee.__name__)
            return Unknown()
        if inspect.isfunction(callee) and (
            _flows(given) or _weights(given) or any(isinstance(v, nn.Module) for v in given)
        ):
            source = source_of(callee)
            if source is not None:
                context = Context(file_of(callee), None, None, self.context.caller)
                return self.reader._call_function(source, outer_names(callee), args, kwargs, context)
        notes = self.reader.noted_beside(given, "call", name or id(callee))
        for slot, value in enumerate(given):
            self.reader._escape(value, "call", name or id(callee), slot)
            self._weight_escapes(value, node)
        return Unknown(notes=notes)

    def _weight_escapes(self, value: Any, node: ast.AST) -> None:
        for weight in _weights(value):
            self.reader._use(weight.key).escapes = True

    def _builtin(self, callee: Any, args: list[Any], node: ast.AST) -> Any:
        name = callee.__name__
        if name in ("list", "tuple", "iter", "sorted", "reversed"):
            if not args:
                return [] if name == "list" else ()
            items = self._items(args[0])
            if items is None:
                return args[0] if isinstance(args[0], (Flow, Parts, Shape)) else [Rest()]
            return [*reversed(items)] if name == "reversed" else tuple(items) if name == "tuple" else list(items)
        if name in ("map", "filter"):
            if isinstance(args[1], Parts):
                mapped = self._called(args[0], [args[1].flow], {}, node) if name == "map" else args[1].flow
                return replace(args[1], flow=mapped) if isinstance(mapped, Flow) else Unknown()
            items = [self._items(arg) for arg in args[1:]]
            if any(item is None for item in items):
                self.reader._escape(args[1:], "mapped")
                return Unknown()
            rows = list(zip(*items, strict=False))
            return [
                Rest() if any(isinstance(v, Rest) for v in row) else self._called(args[0], list(row), {}, node)
                for row in rows
            ]
        if name == "enumerate":
            items = self._items(args[0])
            return Unknown() if items is None else [(i, item) for i, item in enumerate(items)]
        if name == "zip":
            lists = [self._items(arg) for arg in args]
            if any(items is None for items in lists):
                lists = [
                    [Unknown()] * max(len(items or ()) for items in lists) if items is None else items
                    for items in lists
                ]
            return [tuple(row) for row in zip(*lists, strict=False)]
        if name == "getattr":
            if len(args) > 1 and isinstance(args[1], str):
                return self._attribute(args[0], args[1])
            return Unknown()
        if name == "range":
            return range(*args) if args and all(isinstance(arg, int) for arg in args) else Unknown()
        if name == "next":
            items = self._items(args[0]) if args else None
            return items[0] if items else Unknown()
        if name == "sum":
            items = self._items(args[0]) if args else None
            flows = [item for item in items or () if isinstance(item, Flow)]
            return _joined(flows, _notes_of(items or ())) if flows else Unknown()
        if name == "len" and args and not isinstance(args[0], (Unknown, Flow, Shape, Parts)):
            items = self._items(args[0])
            return Unknown() if items is None or any(isinstance(item, Rest) for item in items) else len(items)
        if name == "isinstance" and len(args) == 2 and isinstance(args[1], (type, tuple)):
            if isinstance(args[0], (nn.Module, tuple, list, dict)):
                return isinstance(args[0], args[1])
            if isinstance(args[0], Flow):
                return issubclass(Tensor, args[1])
            return Unknown()
        if name in ("int", "float", "round", "abs", "min", "max", "bool") and all(
            isinstance(arg, (int, float)) for arg in args
        ):
            return callee(*args) if args else Unknown()
        return Size() if any(isinstance(arg, Size) for arg in args) else Unknown()

    def _method(self, method: Method, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
        owner, name = method.owner, method.name
        if isinstance(owner, Super):
            return self._super(owner, name, args, kwargs, node)
        if isinstance(owner, nn.Module):
            return self._method_of_module(owner, name, args, kwargs, node)
        if isinstance(owner, list):
            return self._method_of_list(owner, name, args)
        if isinstance(owner, dict):
            if name in ("items", "values", "keys"):
                return list(getattr(owner, name)())
            return (
                owner.get(args[0], Unknown())
                if name in ("get", "pop") and args and isinstance(args[0], str)
                else Unknown()
            )
        if isinstance(owner, (Shape, tuple)):
            return Size()
        return self._operation(name.strip("_") or name, [owner, *args], kwargs, node)

    def _method_of_list(self, owner: list[Any], name: str, args: list[Any]) -> Any:
        if name == "append" and args:
            owner.append(args[0])
        elif name == "extend" and args:
            owner += self._items(args[0]) or [Rest()]
        elif name == "insert" and len(args) > 1:
            owner.insert(0, args[1])
        elif name == "pop" and owner:
            return owner.pop(
                args[0] if args and isinstance(args[0], int) and -len(owner) <= args[0] < len(owner) else -1
            )
        return Unknown()

    def _super(self, owner: Super, name: str, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
        function, where = method_of(owner.owner, name, after=owner.after)
        if function is None:
            return Unknown()
        if is_torchs(function):
            return self._torch_forward(owner.owner, args, kwargs) if name in ("forward", "__call__") else Unknown()
        source = source_of(function)
        if source is None:
            self.reader._escape([*args, *kwargs.values()], "call", name)
            return Unknown()
        context = Context(file_of(function), where, owner.owner, self.context.caller)
        return self.reader._call_function(source, outer_names(function), [owner.owner, *args], kwargs, context)

    def _torch_forward(self, module: nn.Module, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """torch's own forward pass, within that of a subclass: the weights are used as they always are."""
        for parameter in module._parameters.values():
            if parameter is not None:
                use = self.reader._use(id(parameter))
                use.calls, use.multiplied, use.fused_by_torch = use.calls + 1, use.multiplied + 1, True
        self.reader._meet([*args, *kwargs.values()], "layer", id(module))
        if is_linear(module) and (weight := module._parameters.get("weight")) is not None:
            return self.reader._output_of(id(weight), module, args[0] if args else None)
        return (
            (Unknown(), Unknown())
            if isinstance(module, (nn.MultiheadAttention, nn.LSTMCell, nn.RNNBase))
            else Unknown()
        )

    def _method_of_module(
        self, module: nn.Module, name: str, args: list[Any], kwargs: dict[str, Any], node: ast.AST
    ) -> Any:
        is_list = isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential)) and is_torchs(type(module))
        if is_list and name in ("items", "named_children"):
            return list(module._modules.items())
        if is_list and name in ("values", "children", "keys"):
            return list(module._modules if name == "keys" else module._modules.values())
        if name in ("forward", "__call__"):
            return self.reader._call_module(module, args, kwargs, node)
        function, where = method_of(module, name)
        inside: list[Any] = [module]
        if isinstance(function, classmethod):
            function, inside = function.__func__, [type(module)]
        if function is None or is_torchs(function):
            self.reader._escape([*args, *kwargs.values()], "call", name)
            return Unknown()
        if not inspect.isfunction(inspect.unwrap(function)) or (source := source_of(function)) is None:
            self.reader._escape([*args, *kwargs.values()], "call", name)
            return Unknown()
        context = Context(file_of(function), where, module, self.context.caller)
        return self.reader._call_function(source, outer_names(function), [*inside, *args], kwargs, context)

    # ----------------------------------------------------------------------------------------------- torch's operations

    def _operation(self, name: str, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
        """Return the result of a function of torch, or of a method of the tensor `args[0]`."""
        given = [*args, *kwargs.values()]
        name = {"rmul": "mul", "imul": "mul", "multiply": "mul", "radd": "add", "iadd": "add", "subtract": "sub"}.get(
            name, name
        )
        if name == "checkpoint" and args and callable_value(args[0]):
            return self._called(
                args[0],
                args[1:],
                {k: v for k, v in kwargs.items() if k not in ("use_reentrant", "preserve_rng_state")},
                node,
            )
        first = next(iter(given), None)
        if isinstance(first, Weight) and not _flows(given) and name not in _PRODUCTS:
            return self._weight_operation(name, first, args[1:], kwargs, node)
        if name in _PRODUCTS:
            return self._product(name, given, node)
        if name == "size" and not args[1:] and not kwargs:
            return Shape(first)
        if name == "size" and args[1:]:
            return self._size(Shape(first), args[1])
        if name in ("add", "sub", "mul", "div", "true_divide", "lerp", "addcmul", "hadamard", "addcdiv"):
            if any(isinstance(value, Weight) for value in given):
                for weight in _weights(given):
                    self._elementwise(weight, node)
            return self._arithmetic(name, given, node)
        if isinstance(first, Unknown) and name in _CASTS:
            return first
        if not _flows(given) and not (name in _JOINS and _notes_of(given)):
            return Unknown(_axes_of(given[:1]) if name in _SAME else None) if name not in _LOOKS else Size()
        if name in _LOOKS:
            return Size()
        if name == "complex":  # real and imaginary parts are one vector of complex numbers
            return self._put_together(given[:2], True, is_stack=False)
        if name in _JOINS:
            return self._join(name, args, kwargs)
        flow = next((value for value in given if isinstance(value, Flow)), None)
        if name == "glu":
            dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
            self.reader._halves(first, dim, (_where(node, self.context), "glu"), node, self.context)
            return _stepped(first, "gated")
        if not isinstance(first, Flow) or flow is None:
            for slot, value in enumerate(given):
                self.reader._meet(value, name, _where(node, self.context), slot)
            return Unknown() if flow is None else _without_axes(flow)
        if name in _CUTS:
            return self._cut(name, first, args[1:], kwargs, node)
        if name in ("narrow", "select", "index_select", "narrow_copy", "slice"):
            return self._narrow(name, first, args[1:], kwargs, node)
        if name in _VIEWS:
            return self._view(name, first, args[1:], kwargs)
        if name in _SAME:
            return first
        operation = (name, kwargs.get("dim", args[1] if len(args) > 1 and isinstance(args[1], int) else None))
        is_elementwise = _is_elementwise(name)
        note = self.reader._pass_through if is_elementwise and len(_flows(given)) == 1 else self.reader._meet
        for slot, value in enumerate(given):
            if isinstance(value, Flow):
                note(value, *operation, *([] if len(_flows(given)) == 1 else [_where(node, self.context), slot]))
        beside = [self.reader.number(value) for value in given if value is not first and _is_tensor(value)]
        if beside:
            first = self.reader.noted(first, name, *beside)
        first = _stepped(first, name)
        return altered(first) if is_elementwise else _without_axes(first)

    def _arithmetic(self, name: str, given: list[Any], node: ast.AST) -> Any:
        """Sums and products as functions: two tensors, or three of `addcmul`, `addcdiv` and `lerp`."""

        def combined(op: ast.operator, *values: Any) -> Any:
            if any(isinstance(value, Flow) for value in values):
                result = self._combined(op, [*values], node)
            else:
                result = Unknown(_axes_of(values))
            return self._renumbered(result, type(op).__name__, *values)

        if name in ("addcmul", "addcdiv") and len(given) > 2:
            return combined(ast.Add(), given[0], combined(ast.Mult() if name == "addcmul" else ast.Div(), *given[1:3]))
        if name == "lerp" and len(given) > 2:  # begin + weight * (end - begin)
            step = combined(ast.Mult(), combined(ast.Sub(), given[1], given[0]), given[2])
            return combined(ast.Add(), given[0], step)
        op = {"add": ast.Add(), "sub": ast.Sub(), "div": ast.Div(), "true_divide": ast.Div()}.get(name, ast.Mult())
        return combined(op, *given[:2])

    def _weight_operation(
        self, name: str, weight: Weight, args: list[Any], kwargs: dict[str, Any], node: ast.AST
    ) -> Any:
        if (
            name in _SAME - {"neg", "masked_fill", "div", "true_divide", "roll", "pad", "flip", "sub", "dropout"}
            or name in _VIEWS
        ):
            return weight
        if name in _CUTS:
            count = args[0] if args else kwargs.get("chunks", kwargs.get("split_size_or_sections"))
            number = (
                len(count)
                if isinstance(count, (tuple, list))
                else count
                if name.endswith(("chunk", "tensor_split")) and isinstance(count, int)
                else None
            )
            if number is None:
                number = 3
            dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
            if dim not in (0, -2):
                return [self._changed(weight, node)] * number
            return [self._weight_part(weight, i, _where(node, self.context), node) for i in range(number)]
        if name in _LOOKS or name in ("shape", "dim"):
            return Size()
        return self._changed(weight, node)

    def _weight_part(self, weight: Weight, which: Any, where: Any, node: ast.AST) -> Weight:
        part = (*weight.part, ("rows", which))
        use = self.reader._use(weight.key)
        line, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
        use.lines.setdefault(part, place(self.context.filename, line))
        use.spans.setdefault(part, (self.context.filename, line, last))
        return replace(weight, part=part)

    def _elementwise(self, weight: Weight, node: ast.AST) -> None:
        use = self.reader._use(weight.key)
        use.changed = use.changed or weight.changed or place(self.context.filename, getattr(node, "lineno", 0))

    def _product(self, name: str, given: list[Any], node: ast.AST) -> Any:
        """A product of matrices: own weights in it make it a layer, layers' outputs in it meet each other."""
        values = [value for item in given for value in (item if isinstance(item, (tuple, list)) else [item])]
        weights = [value for value in values if isinstance(value, Weight)]
        where = _where(node, self.context)
        flows = [value for value in values if isinstance(value, Flow)]
        notes = _notes_of(values)
        for slot, value in enumerate(values):
            if isinstance(value, Flow) and weights:
                self.reader._meet(value, "layer", where, slot)
            elif isinstance(value, Flow):
                self.reader._pass_through(value, name, where, slot)
        if not weights:
            notes |= self.reader.noted_beside(values, name)
        for weight in weights:
            use = self.reader._use(weight.key)
            use.calls += 1
            if weight.changed:
                use.changed = use.changed or weight.changed
            else:
                use.multiplied += 1
                use.fused_by_torch |= name in _TAKES_FUSED
            if weight.part:
                beside = (self.reader.number(value) for value in values if not isinstance(value, Weight))
                use.signatures.setdefault(weight.part, set()).add(("layer", where, *beside))
        if len(weights) == 1 and name in _TAKES_WEIGHT and not weights[0].changed:
            other = next((value for value in values if isinstance(value, (Unknown, Flow))), None)
            axes = _axes_of([other])
            weight = weights[0]
            if name.startswith("conv"):
                spatial = int(name[-2])
                return Flow(
                    frozenset({(weight.key, weight.part)}), (OTHER, FEATURES, *[OTHER] * spatial), is_open=False
                )
            shape = (FEATURES,) if axes is None else (*[OTHER] * (axes - 1), FEATURES)
            return Flow(frozenset({(weight.key, weight.part)}), shape, is_open=axes is None)
        if weights:
            return (
                (Unknown(), Unknown())
                if name in ("lstm_cell", "multi_head_attention_forward", "lstm", "gru")
                else Unknown()
            )
        if len(flows) == 1 and len(values) == 2 and isinstance(values[1], Flow) and name in ("matmul", "bmm", "mm"):
            return altered(flows[0], notes=notes)  # a mixture over positions leaves the features as they are
        return Unknown(notes=notes)

    def _join(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return the result of `cat`, `stack` and the like: parts put together again are one output."""
        given = [*args, *kwargs.values()]
        if name == "where":
            for slot, value in enumerate(given):
                self.reader._pass_through(value, "where", slot)
            return _joined(_flows(given), _notes_of(given)) if _flows(given) else Unknown()
        pieces = self._items(given[0]) or [given[0]]
        dim = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else _JOIN_AXES.get(name, 0)))
        flow = next(iter(_flows(pieces)), None)
        is_along = _is_feature_axis(flow, dim) if name != "stack" else True if dim in (-1, -2) else None
        joined = self._put_together(pieces, is_along, is_stack=name == "stack")
        if not isinstance(joined, Flow) or flow is None:
            return joined
        origins = {key for key, _ in joined.origins}
        return altered(joined, axes=flow.axes if len(origins) == 1 and name != "stack" else None)

    def _put_together(self, pieces: Sequence[Any], is_along: bool | None, is_stack: bool) -> Any:
        """Return one tensor that several tensors are put together in.

        If all parts of a layer's output are together again, their notes are dropped: what each part was combined with
        was one operation on the whole output.

        Args:
            pieces: the tensors.
            is_along: whether they are joined along the feature axis; None: not known.
            is_stack: whether they are along a new axis, so that only a view joins them.
        """
        notes, flows = _notes_of(pieces), _flows(pieces)
        is_complete = all(_is_complete(key, pieces, is_along) for key in {note.key for note in notes})
        if is_complete and not is_stack:
            notes = frozenset()
        if not flows:
            stacked = Unknown(notes=notes, number=self.reader.number(["joined", is_stack, *pieces]))
            stacked.is_stacked = is_complete and is_stack
            return stacked
        return replace(_joined(flows), notes=notes, is_stacked=is_complete and is_stack)

    def _cut(self, name: str, flow: Flow, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
        """Return the parts that `chunk`, `split` or a similar function cuts a tensor into."""
        plain = {"unbind": 0, "hsplit": 1, "dsplit": 2, "vsplit": 0}
        if name == "unbind":
            dim = kwargs.get("dim", args[0] if args else 0)
            sections = None
        else:
            sections = args[0] if args else next((kwargs[k] for k in _SECTIONS if k in kwargs), None)
            dim = plain.get(name, kwargs.get("dim", args[1] if len(args) > 1 else 0))
        axis = _axis(flow, dim) if isinstance(dim, int) else None
        if axis is None and isinstance(dim, int) and dim > 0 and flow.is_open and flow.axes == (FEATURES,):
            sure = isinstance(sections, int) if name.endswith(("chunk", "tensor_split")) else _all_ints(sections)
            if sure or dim > 1:
                axis, flow = dim, _with_features_at(flow, dim)
        if flow.axes is None or axis is None:
            return _Same(flow) if not isinstance(sections, (tuple, list)) else [flow] * len(sections)
        where = _where(node, self.context)
        spot = altered(flow, axes=_removed(flow.axes, axis)) if name == "unbind" else flow
        kind = flow.axes[axis]
        number = sections if isinstance(sections, int) and name.endswith(("chunk", "tensor_split")) else None
        if isinstance(sections, (tuple, list)) and not any(isinstance(s, Rest) for s in sections):
            number = len(sections) + name.endswith("tensor_split")
        if kind in (OTHER, MIXED):
            return [spot] * number if number is not None else _Same(spot)
        parts = Parts(flow, where, axis) if name != "unbind" else _Unbound(flow, where, axis)
        return [self._part(parts, i) for i in range(number)] if number is not None else parts

    def _narrow(self, name: str, flow: Flow, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Flow:
        dim = kwargs.get("dim", args[0] if args else 0)
        axis = _axis(flow, dim) if isinstance(dim, int) else None
        if axis is None or flow.axes is None:
            return flow
        which = tuple(str(_key(value)) for value in args[1:]) or tuple(str(_key(v)) for v in kwargs.values())
        if name == "select":
            index = args[1] if len(args) > 1 else kwargs.get("index")
            return self._select(
                flow, axis if not flow.is_open else axis - len(flow.axes), index, _where(node, self.context), node
            )
        if name == "index_select":
            return flow
        return self.reader._take(flow, axis, which, "slice", node, self.context)

    def _view(self, name: str, flow: Flow, args: list[Any], kwargs: dict[str, Any]) -> Flow:
        """Return the result of a view, whose axes say where the features are now."""
        if flow.is_stacked and name in _PUT_TOGETHER:
            flow = altered(flow, notes=frozenset(), is_stacked=False)
        if flow.axes is None:
            return flow
        if name == "rearrange":
            return _rearranged(flow, args[0] if args else kwargs.get("pattern"))
        if name in ("view", "reshape", "view_as", "reshape_as"):
            sizes = (
                args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args or kwargs.get("shape", ())
            )
            if isinstance(sizes, (Shape, Unknown)) or not isinstance(sizes, (tuple, list)):
                return _unplaced(flow)
            return self._reshaped(flow, list(sizes))
        if name == "unflatten":
            dim = kwargs.get("dim", args[0] if args else None)
            sizes = kwargs.get("sizes", args[1] if len(args) > 1 else None)
            axis = _axis(flow, dim) if isinstance(dim, int) else None
            if axis is None and flow.is_open and flow.axes == (FEATURES,) and isinstance(dim, int) and dim > 1:
                axis = 0
            if axis is None or not isinstance(sizes, (tuple, list)):
                return _unplaced(flow)
            kind = SHARE if flow.axes[axis] in (FEATURES, SHARE) else flow.axes[axis]
            return altered(flow, axes=(*flow.axes[:axis], *[kind] * len(sizes), *flow.axes[axis + 1 :]))
        if name == "flatten":
            start = args[0] if args else kwargs.get("start_dim", 0)
            stop = args[1] if len(args) > 1 else kwargs.get("end_dim", -1)
            return _flattened(flow, start, stop)
        if name == "squeeze":
            return flow
        if name == "unsqueeze":
            dim = args[0] if args else kwargs.get("dim")
            if not isinstance(dim, int) or (flow.is_open and dim >= 0):
                return flow
            return _inserted(flow, dim if dim >= 0 else len(flow.axes) + 1 + dim)
        dims = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args or list(kwargs.values())
        return _permuted(flow, name, list(dims))

    def _reshaped(self, flow: Flow, sizes: list[Any]) -> Flow:
        assert flow.axes is not None
        is_open = any(isinstance(size, Rest) for size in sizes)
        sizes = [size for size in sizes if not isinstance(size, Rest)]
        if flow.axes[-1] == FEATURES:
            rows, axes, done, at = self._rows(flow), [OTHER] * len(sizes), 1, len(sizes) - 1
            while at >= 0 and (rows is None or done < rows):
                size = sizes[at]
                lead = isinstance(size, Size) and size.axis is not None and not (is_open and at == len(sizes) - 1)
                if (
                    lead
                    or (is_open and at < 0)
                    or (rows is not None and isinstance(size, int) and size > 0 and rows % (done * size))
                ):
                    break
                axes[at] = SHARE
                done *= size if isinstance(size, int) and size > 0 else 1
                at -= 1
            if axes.count(SHARE) == 1 and axes[-1] == SHARE:
                axes[-1] = FEATURES
            return altered(flow, axes=tuple(axes), is_open=is_open)
        if not flow.is_open and len(flow.axes) > 1 and flow.axes[1] == FEATURES and not is_open:  # (B, C, H, W)
            rows, axes, done, at = self._rows(flow), [OTHER] * len(sizes), 1, 1
            while at < len(sizes) and (rows is None or done < rows):
                size = sizes[at]
                if isinstance(size, Size) and size.axis is not None:
                    break
                if isinstance(size, int) and size > 0 and rows is not None and rows % (done * size):
                    break
                axes[at] = SHARE
                done *= size if isinstance(size, int) and size > 0 else 1
                at += 1
                if isinstance(size, int) and size == -1:
                    break
            if axes.count(SHARE) == 1:
                axes = [FEATURES if kind == SHARE else kind for kind in axes]
            return altered(flow, axes=tuple(axes), is_open=False)
        return _unplaced(flow)

    def _rows(self, flow: Flow) -> int | None:
        """Return the number of features of a whole output of one layer; None for a part, or if it is not known."""
        keys = {key for key, part in flow.origins}
        parts = [part for _, part in flow.origins if part]
        return self.reader.rows.get(keys.pop()) if len(keys) == 1 and not parts else None


class _Same(Parts):
    """The parts of a cut along an axis that holds no features: each carries what the tensor carries."""

    def __init__(self, flow: Flow) -> None:
        super().__init__(flow, None, -1)


class _Unbound(Parts):
    """The parts that `unbind` returns, which no longer have the axis."""


class _Spot(ast.AST):
    """A place in a file, with the attributes of a syntax node that say where it is."""

    def __init__(self, where: Any) -> None:
        super().__init__()
        self.lineno = where[1] if isinstance(where, tuple) and len(where) > 1 and isinstance(where[1], int) else 0
        self.end_lineno = where[3] if isinstance(where, tuple) and len(where) > 3 else self.lineno


_SECTIONS = (
    "chunks",
    "split_size_or_sections",
    "split_size",
    "split_sizes",
    "indices_or_sections",
    "sections",
    "indices",
)
_ELEMENTWISE = words(
    "relu relu_ sigmoid tanh exp log sqrt rsqrt abs pow square sin cos clamp clip clamp_min clamp_max "
    "sign erf softmax log_softmax reciprocal expm1 log1p softplus logsigmoid logit hardtanh maximum "
    "minimum fmod masked_scatter cumsum cumprod index_fill scatter index_put atan sinh cosh tan asin acos "
    "round floor ceil trunc"
)


def _all_ints(value: Any) -> bool:
    values = value if isinstance(value, (tuple, list)) else [value]
    return bool(values) and all(isinstance(v, int) for v in values)


def callable_value(value: Any) -> bool:
    """Return whether a value of the reading can be called."""
    return isinstance(value, (nn.Module, Method, Inner)) or inspect.isfunction(value) or inspect.ismethod(value)


# ----------------------------------------------------------------------------------------- values, and axes of flows


def _flows(value: Any) -> list[Flow]:
    """Return all tensors with outputs of layers in a value, also those within tuples, lists and mappings."""
    if isinstance(value, Flow):
        return [value]
    if isinstance(value, Parts):
        return [value.flow]
    if isinstance(value, dict):
        value = list(value.values())
    return [flow for item in value for flow in _flows(item)] if isinstance(value, (tuple, list)) else []


def _placed_flows(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Flow]]:
    """Yield all tensors with outputs of layers in a value, each after its path within tuples, lists and mappings."""
    if isinstance(value, (Flow, Parts)):
        yield path, value.flow if isinstance(value, Parts) else value
    elif isinstance(value, (dict, tuple, list)):
        for place_in, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _placed_flows(item, (*path, place_in))


def _tensors(value: Any) -> list[Flow | Unknown]:
    """Return all values within a value that can carry notes."""
    if isinstance(value, (Flow, Unknown)):
        return [value]
    if isinstance(value, (Parts, Method)):
        return _tensors(value.flow if isinstance(value, Parts) else value.owner)
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, (tuple, list)) else []


def _notes_of(value: Any) -> Notes:
    """Return the notes of all tensors within a value."""
    held = [tensor.notes for tensor in _tensors(value) if tensor.notes]
    return frozenset().union(*held) if held else frozenset()


def _with_notes(value: Any, notes: Notes) -> Any:
    """Return a value with `notes` added to each tensor in it."""
    if not notes:
        return value
    if isinstance(value, Flow):
        return replace(value, notes=value.notes | notes)
    if isinstance(value, Unknown):
        return Unknown(value.axes, value.notes | notes, value.number)
    return type(value)(_with_notes(item, notes) for item in value) if type(value) in (tuple, list) else value


def _is_elementwise(name: str) -> bool:
    """Whether a function of torch leaves the features where they are."""
    return name in _ELEMENTWISE or hasattr(nn.functional, name)


def _stepped(value: Any, step: str) -> Any:
    """A tensor to which something more was done, number by number."""
    return replace(value, steps=value.steps | {step}) if isinstance(value, Flow) else value


def _is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor, or may be one."""
    return isinstance(value, (Flow, Unknown, Weight, Tensor))


def _is_key(pair: Any) -> bool:
    return isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], (str, int))


def _share_a_layer(first: Flow, second: Flow) -> bool:
    """Return whether two tensors carry outputs of the same layer."""
    return not {key for key, _ in first.origins}.isdisjoint(key for key, _ in second.origins)


def _is_complete(key: int, pieces: Sequence[Any], is_along: bool | None) -> bool:
    """Return whether pieces together are one whole output of a layer.

    Either each piece is another part (heads that are computed one by one), or each was computed from all parts (rotary
    positions, products of complex numbers) and there are as many along the feature axis as there were parts.

    Args:
        key: `id` of the layer's weight.
        pieces: the values that are put together.
        is_along: whether they are joined along the feature axis; None: not known.
    """
    held: list[frozenset[Part]] = []
    for piece in pieces:
        noted = frozenset(note.part for note in _notes_of(piece) if note.key == key)
        carried = frozenset(part for flow in _flows(piece) for at, part in flow.origins if at == key and part)
        if noted or carried:
            held.append(noted or carried)
    parts = frozenset().union(*held)
    if len({note.call for note in _notes_of(pieces) if note.key == key}) > 1 or is_along is False:
        return False
    are_single = all(len(part) == 1 for part in held) and len(parts) == len(held)
    return len(held) > 1 and (are_single or (is_along is True and len(held) == len(parts)))


def _is_feature_axis(flow: Flow | None, dim: Any) -> bool | None:
    """Return whether a dimension is that of the features; None if that is not known."""
    if flow is None or flow.axes is None or not isinstance(dim, int):
        return True if dim == -1 else None
    axis = _axis(flow, dim)
    if axis is not None:
        return flow.axes[axis] in (FEATURES, SHARE, UNSURE)
    return dim > 1  # of a linear layer: the first two axes are batch and positions, as far as is known


def _is_along_features(index: Any, flow: Any) -> bool | None:
    """Return whether an index such as `[..., :n]`, with which a tensor is written to, takes a part of the features.

    None: that is not known.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    chosen = [i for i, item in enumerate(items) if item is not Ellipsis and item != slice(None)]
    if len(chosen) != 1:
        return None
    at = chosen[0]
    if any(item is Ellipsis for item in items[:at]):
        at -= len(items)
    known = _is_feature_axis(flow if isinstance(flow, Flow) else None, at)
    return known if isinstance(items[chosen[0]], slice) else None


def _weights(value: Any) -> list[Weight]:
    """Return all weights of layers within a value."""
    if isinstance(value, Weight):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [weight for item in value for weight in _weights(item)] if isinstance(value, (tuple, list)) else []


def _holds_module(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and any(isinstance(item, nn.Module) for item in value)


def _axes_of(values: Sequence[Any]) -> int | None:
    """Return how many axes the first tensor among some values has; None if that is not known."""
    for value in values:
        if isinstance(value, Unknown):
            return value.axes
        if isinstance(value, Flow):
            return None if value.is_open or value.axes is None else len(value.axes)
    return None


def _axis(flow: Flow, dim: int) -> int | None:
    """Return the index in `flow.axes` of a dimension; None if it is not there, or not known which it is."""
    if flow.axes is None:
        return None
    count = len(flow.axes)
    if dim < 0:
        return count + dim if count + dim >= 0 else None
    return dim if not flow.is_open and dim < count else None


def altered(flow: Flow, **changes: Any) -> Flow:
    """Return a flow with other values of some attributes: another tensor, which has no number yet."""
    new: Flow = replace(flow, **{"number": 0, **changes})
    return new


def _removed(axes: tuple[str, ...], at: int) -> tuple[str, ...]:
    return (*axes[:at], *axes[at + 1 :])


def _inserted(flow: Flow, at: int) -> Flow:
    assert flow.axes is not None
    return altered(flow, axes=(*flow.axes[:at], OTHER, *flow.axes[at:]))


def _dropped(flow: Flow, axis: int | None) -> Flow:
    """Return a flow without an axis, of which one index was taken; with None for the axis, the flow itself."""
    if axis is None or flow.axes is None:
        return flow
    return altered(flow, axes=_removed(flow.axes, axis))


def _with_features_at(flow: Flow, dim: int) -> Flow:
    """Return the same flow, whose last axis, that of the features, is the one of this number from the front."""
    return altered(flow, axes=(*[OTHER] * dim, FEATURES), is_open=False, number=flow.number)


def _unplaced(flow: Flow) -> Flow:
    """Return a flow whose axes are no longer known."""
    return altered(flow, axes=None)


def _without_axes(value: Any) -> Any:
    """Return a flow whose axes are no longer known, or for any other value an unknown one."""
    return _unplaced(value) if isinstance(value, Flow) else Unknown()


def _permuted(flow: Flow, name: str, dims: list[Any]) -> Flow:
    """Return the result of `permute`, `transpose`, `movedim` or a similar function."""
    axes = flow.axes
    assert axes is not None
    if name == "t":
        name, dims = "transpose", [-2, -1]
    if not dims or not _all_ints([d for d in dims if not isinstance(d, (tuple, list))]):
        return _unplaced(flow)
    if any(isinstance(d, (tuple, list)) for d in dims):
        return _unplaced(flow)
    if name == "permute":
        full = [*[OTHER] * (len(dims) - len(axes)), *axes] if flow.is_open else list(axes)
        if len(full) != len(dims) or not all(-len(full) <= d < len(full) for d in dims):
            return _unplaced(flow)
        return altered(flow, axes=tuple(full[d] for d in dims), is_open=False)
    # Where the number of leading axes is not known, batch and positions are assumed.
    full = [OTHER, OTHER, *axes] if flow.is_open else list(axes)
    if len(dims) != 2 or not all(-len(full) <= d < len(full) for d in dims):
        return _unplaced(flow)
    first, second = (d % len(full) for d in dims)
    if name.startswith("move"):
        full.insert(second, full.pop(first))
    else:
        full[first], full[second] = full[second], full[first]
    return altered(flow, axes=tuple(full), is_open=False)


def _flattened(flow: Flow, start: Any, stop: Any) -> Flow:
    axes = flow.axes
    assert axes is not None
    if not isinstance(start, int) or not isinstance(stop, int):
        return _unplaced(flow)
    if flow.is_open:
        if start < 0 and -start <= len(axes):
            begin = len(axes) + start
        elif axes == (FEATURES,) or stop != -1:
            return flow
        else:
            begin = next((i for i, kind in enumerate(axes) if kind != OTHER), 0)
    else:
        begin = start % len(axes)
    end = stop % len(axes) if not flow.is_open or stop < 0 else len(axes) - 1
    merged = set(axes[begin : end + 1])
    kind = OTHER if merged <= {OTHER} else FEATURES if merged <= {SHARE, FEATURES} else MIXED
    return altered(flow, axes=(*axes[:begin], kind, *axes[end + 1 :]))


def _rearranged(flow: Flow, pattern: Any) -> Flow:
    """Return the result of einops' `rearrange`, which moves each name in the pattern to its new place."""
    if not isinstance(pattern, str) or "->" not in pattern or flow.axes is None:
        return _unplaced(flow)
    before, after = (_groups(side) for side in pattern.split("->"))
    known = flow.axes if not flow.is_open else (*[OTHER] * (len(before) - len(flow.axes)), *flow.axes)
    if ["..."] in before and flow.is_open:
        known = (*[OTHER] * max(0, len(before) - len(flow.axes)), *flow.axes[-len(before) :])
    if len(known) != len(before):
        return _unplaced(flow)
    kinds = {
        name: SHARE if kind in (FEATURES, SHARE) and len(group) > 1 else kind
        for group, kind in zip(before, known, strict=True)
        for name in group
    }
    axes = []
    for group in after:
        held = {kinds.get(name, OTHER) for name in group}
        axes.append(held.pop() if len(held) == 1 else OTHER if not held else MIXED)
    return altered(flow, axes=tuple(axes), is_open=["..."] in after)


def _groups(side: str) -> list[list[str]]:
    """Return the groups of names in one side of a pattern of einops: [[b], [n], [h, d]] for `b n (h d)`."""
    groups: list[list[str]] = []
    inside = False
    for word in side.replace("(", " ( ").replace(")", " ) ").split():
        if word in "()":
            inside = word == "("
            groups += [[]] if inside else []
        elif inside:
            groups[-1].append(word)
        else:
            groups.append([word])
    return groups


def _joined(flows: Sequence[Flow], notes: Notes = frozenset()) -> Flow:
    """Return one tensor that carries all that several tensors carry; parts of one output become that output again.

    Args:
        flows: the tensors.
        notes: notes besides their own.
    """
    parts: dict[int, list[Part]] = {}
    for key, part in (origin for flow in flows for origin in flow.origins):
        parts.setdefault(key, []).append(part)
    origins = frozenset((key, _common(held)) for key, held in parts.items())
    axes = flows[0].axes if len({(flow.axes, flow.is_open) for flow in flows}) == 1 else None
    if axes is None:
        axes = next((flow.axes for flow in flows if flow.axes is not None), None)
    notes = notes.union(*(flow.notes for flow in flows))
    calls = frozenset().union(*(flow.calls for flow in flows))
    steps = frozenset().union(*(flow.steps for flow in flows))
    return Flow(origins, axes, flows[0].is_open, notes, calls, steps=steps)


def _common(parts: Sequence[Part]) -> Part:
    """Return the smallest part of an output that contains all of these parts."""
    shortest = min(parts, key=len)
    length = next((i for i in range(len(shortest)) if len({part[i] for part in parts}) > 1), len(shortest))
    return shortest[:length]


def _same_origins(first: Flow, second: Flow) -> bool:
    return first.origins == second.origins


def _either(first: Any, second: Any) -> Any:
    """Return what a variable holds after one of two branches, as far as both agree."""
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
            steps=first.steps | second.steps,
        )
    if isinstance(first, (tuple, list)) and isinstance(second, (tuple, list)) and len(first) == len(second):
        return type(first)(_either(a, b) for a, b in zip(first, second, strict=True))
    for kind in (Flow, Parts, tuple, list, Weight, nn.Module, Inner, Method):
        for value in (first, second):
            if isinstance(value, kind):
                return value
    if isinstance(first, _PLAIN) and isinstance(second, _PLAIN) and first == second:
        return first
    return Unknown()


def _truth(value: Any) -> bool | None:
    """Return whether a condition is true; None if that is not known."""
    return bool(value) if isinstance(value, (int, float, str, type(None))) else None


def _own(value: Any) -> Any:
    """Return a copy of a list or mapping, to which the reading may add without changing the model; else the value."""
    if type(value) is list:
        return [_own(item) for item in value]
    return {key: _own(item) for key, item in value.items()} if type(value) is dict else value


def _key(value: Any) -> Any:
    return value if isinstance(value, _PLAIN) else type(value).__name__


def _slice_key(item: slice, spot: ast.AST) -> tuple[Any, ...]:
    """Return which part a slice takes: its bounds as numbers, or as the source writes them."""
    bounds = (item.start, item.stop, item.step)
    if all(isinstance(bound, int | None) for bound in bounds):
        return bounds
    return ("written", ast.unparse(spot))


def _where(node: ast.AST, context: Context) -> tuple[Any, ...]:
    line = getattr(node, "lineno", 0)
    return (context.filename, line, getattr(node, "col_offset", 0), getattr(node, "end_lineno", line))


def _is_norm(module: nn.Module) -> bool:
    called = "norm" in type(module).__name__.lower()
    return called and all(p.ndim < 2 for p in module.parameters()) and not any(map(is_linear, module.modules()))


def _is_conv1d(module: nn.Module) -> bool:
    """Return whether a module is GPT-2's linear layer of transformers, whose forward pass is known."""
    return type(module).__name__ == "Conv1D" and is_dense(module) and not isinstance(module, nn.Linear)


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())
