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

`flows.py` has the values that replace tensors, `axes.py` what views do to their axes, `syntax_trees.py` the source of
functions, `function_reading.py` the statements and expressions of one function. What calls give is in `method_calls.py`
and `python_calls.py` for methods and Python's own functions, and for torch's in `tensor_operations.py`, with the parts
that slices and cuts take in `tensor_parts.py`, what becomes of a weight outside its layer in `weight_operations.py`,
and the functions' names in `tensor_functions.py`. `layer_use.py` has what is told of each weight. Here it is recorded.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fire_core.weights.axes import axis_count, axis_index, tensor_of_unknown_axes, viewed
from fire_core.weights.flows import (
    FEATURES,
    MIXED,
    OTHER,
    PLAIN_TYPES,
    BoundMethod,
    Flow,
    FunctionContext,
    Inner,
    Note,
    Notes,
    Partial,
    Parts,
    Rest,
    Shape,
    Size,
    Unknown,
    Weight,
    altered,
    flows_in,
    is_tensor,
    notes_in,
    placed_flows,
    tensors_in,
    with_notes,
    with_step,
)
from fire_core.weights.function_reading import FunctionReading
from fire_core.weights.layer_use import LayerUse
from fire_core.weights.syntax_trees import (
    Function,
    file_of,
    forward_of,
    is_of_library,
    is_torchs,
    method_of,
    outer_names,
    place,
    source_of,
)
from fire_core.weights.tensor_functions import CUTS, JOINS, KEEP_FEATURES, PRODUCTS, VIEWS, is_elementwise
from fire_core.weights.topology import input_count, is_dense, is_layer, output_count, own_class

MOST_NESTED = 24  # calls within each other that are followed
MOST_NODES = 200_000  # of the syntax tree, for each module from which reading starts
MOST_NODES_INSIDE = 20_000  # of the module that a layer's output is handed to
CHANNELWISE_FILES = (
    "activation",
    "pooling",
    "upsampling",
    "padding",
)  # files of torch's modules that keep channels apart
STRICT = False  # whether an error in reading is raised, as in the tests, or the module left to the other ways


class LimitReached(Exception):
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
        self.rows: dict[int, int] = {}  # features of each layer
        self.results: dict[nn.Module, list[Flow]] = {}  # what each module returns
        self.inputs: set[int] = set()  # the numbers of what each module is given
        self.input_readers: set[int] = set()  # weights of layers that read the model's first argument, by `id`
        self.fresh: set[int] = set()  # numbers of outputs as layers return them
        self._raw: set[int] = set()  # numbers of what is computed from the model's first argument without a layer
        self._made: set[int] = set()  # numbers of what layers have made, where it is not followed
        self.added: dict[int, set[int]] = {}  # the numbers of what was added to the output of a layer
        self._numbers: dict[tuple[Any, ...], int] = {}  # of expressions; see `number`
        for layer in filter(is_layer, model.modules()):
            weight = layer._parameters.get("weight")
            if weight is not None:
                self.rows[id(weight)] = output_count(layer)
        # `id`s of weights with one input channel, which filter each channel by itself if there are as many groups.
        self.filters = {id(p) for p in model.parameters() if p.ndim > 2 and p.shape[1] == 1 < len(p)}
        self._norms: set[int] = set()  # `id`s of modules
        self.follows_givers = False  # whether only cuts of layers are read that stand before a module, see below
        self._hooked: set[nn.Module] = set()  # modules whose hooks were read
        self._replaced: set[nn.Module] = set()  # modules of which a hook returns another output
        self._entered: set[nn.Module] = set()
        self._read_by_methods: dict[int, set[tuple[Any, ...]]] = {}  # what the output of a layer meets in methods
        self._nodes = 0
        self._depth = 0
        self._functions: set[tuple[ast.AST, int]] = set()  # that were read, each with the `id` of the module
        for module in model.modules():
            if any(True for _ in module.parameters()):
                if module not in self._entered:
                    argument = Unknown()
                    if module is model:
                        self._raw.add(self.number(argument))
                    self._start_from(partial(self.call_module, module, [argument], {}, None))
                    self._raw.clear()
                    if is_layer(module) and (weight := module._parameters.get("weight")) is not None:
                        self.use_of(id(weight)).is_lost = self.use_of(id(weight)).is_uncalled = True
                if not is_of_library(type(module)):
                    self._read_other_methods(module)

    def _start_from(self, call: Callable[[], Any]) -> Any:
        """Read code that no known code calls, and return its value, which goes to a caller that is not known.

        After an error the rest of the code is not read, so all layers whose outputs it has followed count as lost.
        """
        self._nodes = MOST_NODES
        calls = {key: use.calls for key, use in self.uses.items()}
        try:
            result = call()
            self.escape(result, "returned")
            return result
        except Exception as error:  # any code of others that is not foreseen here
            if STRICT and not isinstance(error, LimitReached):
                raise
            for key, use in self.uses.items():
                if use.calls > calls.get(key, 0):
                    use.escapes = use.is_lost = True
            return Unknown()

    def _read_other_methods(self, module: nn.Module) -> None:
        """Read the public methods of a module's class that no forward pass calls, such as `act` or `training_step`.

        They count for layers that no forward pass calls, and if they call the module itself, for the layers whose
        output it returns. A module without a forward pass puts out what these methods return. What such a method
        writes to weights is no part of a forward pass.
        """
        runs = forward_of(module)[0] is not nn.Module.forward
        for name in dir(type(module)):
            function, owner = method_of(module, name)
            if name.startswith("_") or name == "forward" or owner is None or is_of_library(owner):
                continue
            source = source_of(function) if inspect.isfunction(function) else None
            if source is None or (source, id(module)) in self._functions:
                continue
            returned = self.results.get(module, [])
            count = len(returned)
            uses, self.uses = self.uses, {}
            context = FunctionContext(file_of(function), owner, module)
            call = partial(self.call_function, source, outer_names(function), [module], {}, context)
            try:
                result = self._start_from(call)
            finally:
                of_method, self.uses = self.uses, uses
            calls_itself = len(self.results.get(module, [])) > count
            put_out = {key for flow in returned for key, _ in flow.origins} if calls_itself else set()
            for key, use in of_method.items():
                operations = (operation for signature in use.signatures.values() for operation in signature)
                self._read_by_methods.setdefault(key, set()).update(operations)
                if use.calls and (key in put_out or not runs or not self.use_of(key).calls):
                    self.use_of(key).take_parts_of(use)
            if not runs:
                self.results.setdefault(module, []).extend(flows_in(result))

    def count_node(self) -> None:
        """Count a node of the syntax tree that is read.

        Raises:
            LimitReached: more nodes were read from one module than `MOST_NODES`.
        """
        self._nodes -= 1
        if self._nodes < 0:
            raise LimitReached

    # ------------------------------------------------------------------------------------------------------ the notes

    def use_of(self, key: int) -> LayerUse:
        """Return the record of a weight, by its `id`."""
        return self.uses.setdefault(key, LayerUse())

    def pass_through(self, value: Any, *operation: Any) -> None:
        """Record that a value meets an operation whose result is followed further, such as an activation."""
        for path, flow in placed_flows(value):
            for key, part in flow.origins:
                self.use_of(key).signatures.setdefault(part, set()).add((*operation, *path))

    def meet(self, value: Any, *operation: Any) -> None:
        """Record that an operation uses a value, so that the notes on the value count from now on.

        Values within a tuple, list or mapping meet the operation at different places.
        """
        self.pass_through(value, *operation)
        for note in notes_in(value):
            self.use_of(note.key).signatures.setdefault(note.part, set()).add(note.operation)

    def escape(self, value: Any, *operation: Any) -> None:
        """Record that a value is used where it cannot be followed."""
        self.meet(value, *operation)
        for flow in flows_in(value):
            for key, _ in flow.origins:
                use = self.use_of(key)
                use.escapes = True
                use.is_lost |= operation[0] not in ("returned", "module")

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
        if isinstance(value, BoundMethod):
            return self._number_of("method", self.number(value.instance), value.name)
        if isinstance(value, Inner):
            return self._number_of("function", id(value.node))
        if isinstance(value, Partial):
            return self._number_of("partial", *map(self.number, (value.function, value.args, value.kwargs)))
        if isinstance(value, Shape):
            return self._number_of("shape", self.number(value.tensor))
        if isinstance(value, Parts):
            return self._number_of("parts", self.number(value.flow), value.where)
        if isinstance(value, (*PLAIN_TYPES, Weight, Size, Rest)):
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
            notes = notes_in(expression)
            value.number = self._number_of(*map(self.number, expression))
            self._note_where_from(value.number, expression)
            value.notes |= notes
            value.is_stacked = bool(notes) and any(part.is_stacked for part in tensors_in(expression))
        elif isinstance(value, Flow) and not value.number:
            return replace(value, number=self._number_of(*map(self.number, expression)))
        return value

    def unknown_items(self, value: Any, count: int) -> list[Any]:
        """Return the first items of a value of which they are not known; each is another one than the others."""
        return [self.numbered(Unknown(), "item", value, i) for i in range(count)]

    def _note_where_from(self, number: int, expression: Sequence[Any]) -> None:
        """Record whether layers have made a value, or it is computed from the model's first argument without them.

        Args:
            number: the number of the value.
            expression: what it is computed by, as in `numbered`.
        """
        tensors = tensors_in(list(expression))
        is_made = any(isinstance(tensor, Flow) or tensor.number in self._made for tensor in tensors)
        is_made |= any(isinstance(value, nn.Module) and _has_matrices(value) for value in expression)
        if is_made:
            self._made.add(number)
        elif any(tensor.number in self._raw for tensor in tensors) and _keeps_content(expression):
            self._raw.add(number)

    def noted(self, value: Any, *operation: Any) -> Any:
        """Return a tensor with a note that its parts met an operation; any other value unchanged."""
        if not isinstance(value, Flow):
            return value
        calls = dict(value.calls)
        several = len(calls) < len(value.calls)
        notes = {Note(key, part, None if several else calls.get(key), operation) for key, part in value.origins if part}
        return replace(value, notes=value.notes | notes)

    def notes_of_call(self, arguments: Sequence[Any], *operation: Any) -> Notes:
        """Return the notes of a call on its arguments: each tensor meets it at its position, with the other tensors."""
        notes: set[Note] = set()
        for slot, value in enumerate(arguments):
            if isinstance(value, Flow):
                beside = (self.number(other) for other in arguments if other is not value and is_tensor(other))
                notes |= notes_in(self.noted(value, *operation, slot, *beside))
        return frozenset(notes)

    def take_part(
        self,
        flow: Flow,
        axis: int | None,
        which: Any,
        where: Any,
        node: ast.AST,
        context: FunctionContext,
        or_unknown: bool = False,
        is_by_rank: bool = False,
    ) -> Flow:
        """Return a part of a tensor along an axis; the tensor itself if the axis holds no features.

        Args:
            flow: the tensor.
            axis: index of the axis in `flow.axes`; None: not known.
            which: which part it is.
            where: the place of the cut, equal for all its parts.
            node: the syntax node of the cut.
            context: the function that cuts.
            or_unknown: whether a part along an axis that is not known, or that holds the features together with
                another axis, is taken too, unless other tensors stand beside them. It is marked as unsure.
            is_by_rank: whether the number of axes of the model's input decides whether this axis holds features; such
                a part is taken, and marked as unsure.
        """
        kind = MIXED if flow.axes is None or axis is None else flow.axes[axis]
        if kind == OTHER or (kind == MIXED and (flow.is_joined or not (or_unknown or is_by_rank))):
            return flow
        origins = set()
        for key, part in flow.origins:
            taken = (*part, (where, which))
            use = self.use_of(key)
            first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
            use.lines.setdefault(taken, place(context.filename, first) if first else context.filename)
            use.spans.setdefault(taken, (context.filename, first, last))
            use.signatures.setdefault(taken, set())
            if kind == MIXED:
                use.unsure.add(taken)
            if is_by_rank:
                use.by_rank.add(taken)
            origins.add((key, taken))
        number = self.number(flow)
        calls = frozenset((key, number) for key, part in flow.origins if not part) | flow.calls
        number = self._number_of("part", number, self.number(which))
        return altered(flow, origins=frozenset(origins), calls=calls, number=number)

    # ---------------------------------------------------------------------------------------------------- the modules

    def is_consumed(self, key: int) -> bool:
        """Return whether another layer, a module with parameters or a product of matrices takes a layer's output."""
        return any(
            operation[0] in ("layer", "call") or operation[0] in PRODUCTS or self._module_of(operation) is not None
            for operation in self._operations_of(key)
        )

    def feeds_layer(self, key: int) -> bool:
        """Return whether another layer, or a module with parameters that is no norm, takes a layer's output."""
        operations = self._operations_of(key)
        return any(operation[0] == "layer" or self._module_of(operation) is not None for operation in operations)

    def readers_everywhere(self, key: int) -> set[Any]:
        """Return what reads the output of a layer, in all branches and public methods of the model.

        Returns:
            The `id`s of layers, and of torch's modules with parameters that hold no layer; the places of products with
            a weight.
        """
        operations = {*self._operations_of(key), *self._read_by_methods.get(key, set())}
        holders = {id(module) for module in self._entered if any(map(is_layer, module.modules()))}
        readers = {operation[1] for operation in operations if operation[0] == "layer"}
        return readers | {at for op in operations if (at := self._module_of(op)) is not None and at not in holders}

    def readers_of(self, key: int) -> set[int]:
        """Return the `id`s of the modules that take the output of a layer."""
        return {operation[1] for operation in self._operations_of(key) if operation[0] in ("module", "layer")}

    def is_residual(self, key: int) -> bool:
        """Return whether the output of a layer is added to something that a module was given."""
        return not self.added.get(key, set()).isdisjoint(self.inputs)

    def steps_after(self, key: int) -> set[str]:
        """Return the names of activations and norms that come after a layer."""
        names: set[str] = set()
        for operation in self._operations_of(key):
            if operation[0] == "module" and operation[1] in self._norms:
                names.add("norm")
            elif operation[0] == "module" and isinstance(operation[1], str):
                names.add(operation[1].lower())
            elif is_elementwise(str(operation[0])) and operation[0] not in PRODUCTS:
                names.add(str(operation[0]))
        return names

    def _operations_of(self, key: int) -> list[tuple[Any, ...]]:
        """Return all operations that parts of a layer's output meet, in no order."""
        return [operation for signature in self.use_of(key).signatures.values() for operation in signature]

    def _module_of(self, operation: tuple[Any, ...]) -> int | None:
        """Return the `id` of the module that an operation calls, if that has parameters and is no norm; else None."""
        is_call = operation[0] == "module" and isinstance(operation[1], int) and operation[1] not in self._norms
        return int(operation[1]) if is_call else None

    def call_module(self, module: nn.Module, args: list[Any], kwargs: dict[str, Any], node: ast.AST | None) -> Any:
        """Return what a module returns for these arguments, and record that and what it was given."""
        arguments = [value for value in (*args, *kwargs.values()) if is_tensor(value)]
        self.inputs.update(map(self.number, arguments))
        self._read_hooks(module)
        result = self._result_of(module, args, kwargs, node)
        if module in self._replaced:
            self.escape(result, "call", "hook")
            result = Unknown()
        self.results.setdefault(module, []).extend(flows_in(result))
        return result

    def _result_of(self, module: nn.Module, args: list[Any], kwargs: dict[str, Any], node: ast.AST | None) -> Any:
        """Return what a module returns for these arguments, without a record of the call."""
        self._entered.add(module)
        arguments = [*args, *kwargs.values()]
        if is_layer(module):
            return self._call_layer(module, args, kwargs)
        function, owner = forward_of(module)
        if is_torchs(function):
            return self._call_torch_module(module, args, kwargs, node)
        if _is_norm(module):
            self.meet(arguments, "module", id(module))
            self._norms.add(id(module))
            if arguments and isinstance(arguments[0], Flow):
                return with_step(arguments[0], "norm")
            return Unknown(axis_count(arguments[:1]))
        if type(module).__module__.startswith("einops.") and type(module).__name__ == "Rearrange" and arguments:
            is_flow, pattern = isinstance(arguments[0], Flow), getattr(module, "pattern", None)
            return viewed("rearrange", arguments[0], (pattern,), {}, None) if is_flow else Unknown()
        source = source_of(function)
        if source is None:
            self.escape(arguments, "module", id(module))
            return Unknown()
        notes: Notes = frozenset()
        context = FunctionContext(file_of(function), owner, module)
        call = partial(self.call_function, source, outer_names(function), context=context)
        if any(is_layer(part) for part in module.modules()) and not self.follows_givers:
            self.escape(arguments, "module", id(module))
            notes = self.notes_of_call(arguments, "module", id(module))
            self._read_cuts_inside(call, module, args, kwargs)
            # The module's own layers are read without the layers before it, which are no matter of theirs.
            args = [self._from_outside(value) for value in args]
            kwargs = {key: self._from_outside(value) for key, value in kwargs.items()}
        result = call(args=[module, *args], kwargs=kwargs)
        return with_notes(result, notes)

    def _read_cuts_inside(
        self, call: Callable[..., Any], module: nn.Module, args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        """Record which parts of another layer's output a module with layers of its own takes from its input.

        Only outputs of a single layer are followed, to which nothing was added, alone or in a list or mapping, and not
        the first argument: that is mostly the stream that all layers before the module have made together, which
        belongs to none of them. The others are shifts, scales, gates and the like.

        Args:
            call: reads the module's forward pass.
            module: the module.
            args: its arguments by position.
            kwargs: its arguments by name.
        """
        seen = [
            self._seen_inside(value) if position > 0 else self._from_outside(value)
            for position, value in enumerate((*args, *kwargs.values()))
        ]
        args, kwargs = seen[: len(args)], dict(zip(kwargs, seen[len(args) :], strict=True))
        givers = {key for flow in flows_in([*args, *kwargs.values()]) for key, _ in flow.origins}
        if not givers:
            return
        records = self.uses, self.results, self.inputs, self.added, self._nodes
        self.uses, self.results, self.inputs, self.added = {}, {}, set(), {}
        self._nodes, self.follows_givers = min(self._nodes, MOST_NODES_INSIDE), True
        try:
            with suppress(LimitReached):
                call(args=[module, *args], kwargs=kwargs)
        finally:
            inside = self.uses
            self.uses, self.results, self.inputs, self.added, self._nodes = records
            self.follows_givers = False
        for key in givers & inside.keys():
            self.use_of(key).take_cuts_of(inside[key])

    def _read_hooks(self, module: nn.Module) -> None:
        """Record what the hooks before and after a module's forward pass do beside it, and nothing else.

        These are the weights to which they write, and whether they return another output.
        """
        if module in self._hooked:
            return
        self._hooked.add(module)
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
            bound = [hook.__self__] if inspect.ismethod(hook) else []
            function: Any = hook.__func__ if inspect.ismethod(hook) else hook
            source = None if is_torchs(function) else source_of(function)
            if source is None:
                continue
            uses, self.uses = self.uses, {}  # what a hook computes is no part of the forward pass
            given = [*bound, module, *[Unknown()] * 3][: len(source.args.posonlyargs) + len(source.args.args)]
            context = FunctionContext(file_of(function), None, module)
            try:
                returned = self.call_function(source, outer_names(function), given, {}, context)
            finally:
                of_hook, self.uses = self.uses, uses
            if returned is not None and hook in module._forward_hooks.values():
                self._replaced.add(module)
            for key, use in of_hook.items():
                if use.overwritten:
                    self.use_of(key).overwritten = use.overwritten

    def _seen_inside(self, value: Any) -> Any:
        """Return an argument of a module as `_read_cuts_inside` follows it: with outputs of single layers alone."""
        if type(value) in (tuple, list):
            return type(value)(map(self._seen_inside, value))
        if type(value) is dict:
            return {key: self._seen_inside(item) for key, item in value.items()}
        return value if is_of_one_layer(value) else self._from_outside(value)

    def _from_outside(self, value: Any) -> Any:
        """Return what a module with layers of its own sees of a value that other layers made."""
        if not flows_in(value) and not notes_in(value):
            return value
        number = self.number(value)
        self._made.add(number)
        return Unknown(axis_count([value]), number=number)

    def _call_layer(self, module: nn.Module, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return the output of a linear layer or a convolution, which carries the layer."""
        weight = module._parameters.get("weight")
        record = self.pass_through if is_depthwise(module) else self.meet
        record([*args, *kwargs.values()], "layer", id(module))
        if weight is not None and not is_torchs(forward_of(module)[0]) and not _is_conv1d(module):
            self._read_own_forward(module, weight, len(args))
        if weight is None:
            return Unknown()
        first_input = next(iter([*args, *kwargs.values()]), None)
        # A layer with as many outputs as inputs may read the state of a recurrent cell, or be the first of a body.
        is_square = input_count(module) == output_count(module)
        if isinstance(first_input, Unknown) and first_input.number in self._raw and not is_square:
            self.input_readers.add(id(weight))
        if is_depthwise(module) and isinstance(first_input, Flow):  # it filters each channel by itself
            self.use_of(id(weight)).calls += 1
            return altered(first_input)
        return self.output_of(id(weight), module, first_input)

    def _read_own_forward(self, module: nn.Module, weight: Tensor, count: int) -> None:
        """Record what the forward pass of a layer's own class does with its weight."""
        use = self.use_of(id(weight))
        if use.own_forward:
            return
        function, owner = forward_of(module)
        use.own_forward, source = "unclear", source_of(function)
        if source is None:
            return
        context = FunctionContext(file_of(function), owner, module)
        before = use.multiplied
        self.call_function(source, outer_names(function), [module, *[Unknown()] * max(1, count)], {}, context)
        if use.changed:
            use.own_forward = "changed"
        elif use.multiplied > before:
            use.own_forward = "plain"

    def output_of(self, key: int, module: Any, layer_input: Any) -> Flow:
        """Return the output of one more call of a layer; where its features are follows from what its input is."""
        self.use_of(key).calls += 1
        if isinstance(module, _ConvNd):
            return Flow(frozenset({(key, ())}), (OTHER, FEATURES, *[OTHER] * len(module.kernel_size)), is_open=False)
        axes = axis_count([layer_input])
        if axes is None:
            return Flow(frozenset({(key, ())}))
        return Flow(frozenset({(key, ())}), (*[OTHER] * (axes - 1), FEATURES), is_open=False)

    def _call_torch_module(
        self, module: nn.Module, args: list[Any], kwargs: dict[str, Any], node: ast.AST | None
    ) -> Any:
        """Return the output of a module of one of torch's own classes."""
        value = args[0] if args else next(iter(kwargs.values()), Unknown())
        name = type(module).__name__
        if isinstance(module, nn.Sequential):
            for child in module.children():
                value = self.call_module(child, [value], {}, node)
            # With a list or a mapping of modules in it, it only holds what others call.
            runs = all(forward_of(child)[0] is not nn.Module.forward for child in module.children())
            return value if runs else Unknown()
        if isinstance(module, nn.GLU):
            self.cut_in_halves(value, module.dim, (id(module), "GLU"), node)
            return with_step(value, "gated")
        if forward_of(module)[0] is nn.Module.forward:
            return Unknown()  # it cannot be called; what it holds is read by itself
        if isinstance(module, (nn.Identity, nn.Dropout, nn.modules.dropout._DropoutNd)):
            return value
        if isinstance(module, nn.Flatten) and isinstance(value, Flow):
            return viewed("flatten", value, (module.start_dim, module.end_dim), {}, None)
        if isinstance(module, nn.Unflatten) and isinstance(value, Flow):
            return viewed("unflatten", value, (module.dim, tuple(module.unflattened_size)), {}, None)
        for child in module.modules():  # an encoder layer of torch: its parts are plain
            if not is_torchs(type(child)):
                continue
            self._entered.add(child)
            if is_layer(child) and (weight := child._parameters.get("weight")) is not None:
                self.use_of(id(weight)).calls += 1
        keeps = type(module).__module__.rpartition(".")[2] in CHANNELWISE_FILES or _is_norm(module)
        keeps = keeps and not isinstance(module, nn.MultiheadAttention)
        record = self.pass_through if keeps else self.meet
        record([*args, *kwargs.values()], "module", id(module) if _has_parameters(module) else name)
        if _is_norm(module):
            self._norms.add(id(module))
        step = "norm" if _is_norm(module) else name.lower()
        if keeps:
            return with_step(value, step)
        return Unknown() if _has_parameters(module) else tensor_of_unknown_axes(value)

    def cut_in_halves(
        self, value: Any, dim: Any, where: Any, node: ast.AST | None, context: FunctionContext | None = None
    ) -> None:
        """Record that a gated linear unit takes two halves, which meet different operations."""
        for flow in flows_in(value):
            axis = axis_index(flow, dim if isinstance(dim, int) else -1)
            for half in ("value", "gate"):
                syntax = node if node is not None else ast.Pass()
                part = self.take_part(flow, axis, half, where, syntax, context or FunctionContext(f"by nn.{where[1]}"))
                self.meet(part, half)

    # -------------------------------------------------------------------------------------------------- the functions

    def call_function(
        self,
        node: Function,
        outer: Mapping[str, Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        context: FunctionContext,
    ) -> Any:
        """Return the value that a Python function returns for these arguments."""
        if self._depth >= MOST_NESTED:
            self.escape([*args, *kwargs.values()], "call", id(node))
            return Unknown()
        self._depth += 1
        self._functions.add((node, id(context.module)))
        try:
            return FunctionReading(self, node, outer, args, kwargs, context).result()
        finally:
            self._depth -= 1


def is_of_one_layer(value: Any) -> bool:
    """Return whether a value is the output of a single layer, or a part of it, to which no tensor was added."""
    if not isinstance(value, Flow) or value.is_joined or "added" in value.steps:
        return False
    return len({key for key, _ in value.origins}) == 1


def is_depthwise(layer: nn.Module) -> bool:
    """Return whether a layer is a convolution that filters each channel by itself and has one output for each."""
    return isinstance(layer, _ConvNd) and 1 < layer.groups == layer.in_channels == layer.out_channels


# Not a normal distribution, such as torchrl's NormalParamExtractor.
_CALLED_NORM = re.compile("norm(?!al(?!i))", re.IGNORECASE)


def _is_norm(module: nn.Module) -> bool:
    """Return whether a module is a norm: it is called so, has no matrix, holds no layer and cuts nothing."""
    if not _CALLED_NORM.search(type(module).__name__) or any(map(is_layer, module.modules())):
        return False
    function, _ = forward_of(module)
    source = source_of(function) if not is_torchs(function) else None
    return all(p.ndim < 2 for p in module.parameters()) and not (source is not None and _cuts_an_argument(source))


def _cuts_an_argument(source: Function) -> bool:
    """Return whether a function takes a slice of one of its arguments, or calls a function that cuts a tensor."""
    arguments = {argument.arg for argument in source.args.args[1:]}
    for node in ast.walk(source):
        called = node.func if isinstance(node, ast.Call) else None
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        is_indexed = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in arguments
        if name in CUTS or name == "glu" or is_indexed:
            return True
    return False


def _is_conv1d(module: nn.Module) -> bool:
    """Return whether a module is GPT-2's linear layer of transformers, whose forward pass is known."""
    return own_class(module).__name__ == "Conv1D" and is_dense(module) and not isinstance(module, nn.Linear)


def _keeps_content(expression: Sequence[Any]) -> bool:
    """Return whether a value has the numbers of the tensors that it is computed from, and not only their size or type.

    Args:
        expression: what the value is computed by, as in `SourceReader.numbered`.
    """
    if expression[0] != "call":
        return True
    callee = expression[1]
    name = callee.name if isinstance(callee, BoundMethod) else str(getattr(callee, "__name__", ""))
    return isinstance(callee, nn.Module) or name in VIEWS | KEEP_FEATURES | JOINS | CUTS or is_elementwise(name)


def _has_matrices(module: nn.Module) -> bool:
    """Return whether a module or one of its submodules has parameters that are no vectors, as a norm's are."""
    return any(parameter.ndim > 1 for parameter in module.parameters())


def _has_parameters(module: nn.Module) -> bool:
    """Return whether a module or one of its submodules has parameters."""
    return any(True for _ in module.parameters())
