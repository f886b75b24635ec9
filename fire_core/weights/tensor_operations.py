"""What operations on tensors give, in the reading of one function (`function_reading`)."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fire_core.weights.axes import (
    all_ints,
    axis_count,
    axis_index,
    is_feature_axis,
    packed,
    tensor_of_unknown_axes,
    unpacked,
    viewed,
)
from fire_core.weights.flows import (
    FEATURES,
    OTHER,
    Flow,
    FunctionContext,
    Parts,
    Rest,
    Shape,
    SideBySide,
    Size,
    Unknown,
    Weight,
    altered,
    flows_in,
    have_same_origins,
    is_complete_output,
    is_tensor,
    merged,
    notes_in,
    share_a_layer,
    weights_in,
    with_step,
)
from fire_core.weights.tensor_functions import (
    ASK_SIZES,
    CUTS,
    JOIN_AXES,
    JOINS,
    KEEP_AXIS,
    KEEP_FEATURES,
    KEEP_NUMBERS,
    PRODUCTS,
    PRODUCTS_WITH_FUSED_WEIGHT,
    PRODUCTS_WITH_WEIGHT,
    REDUCTIONS,
    RETURN_INDICES,
    TAKES_PLACES,
    VIEWS,
    is_elementwise,
)
from fire_core.weights.tensor_parts import TensorParts, span_of
from fire_core.weights.topology import words
from fire_core.weights.weight_operations import WeightOperations

if TYPE_CHECKING:
    from fire_core.weights.source import SourceReader

MOST_ADDED = 8  # layers whose sum is looked at as the output of a network, not as a stream through many blocks
MOST_TURNS = 4  # of a loop over a known number of turns without modules, and parts of a cut into an unknown number
DISTANCES = words("cdist")  # of each row of one matrix to each of another, which no isometry concerns
# Steps of a tensor: parts of one layer were put side by side along a new axis, and then multiplied with a tensor.
STACKED, SCALED = "stacked along", "scaled"
EXTREMES = words("min max minimum maximum fmin fmax")


class TensorOperations:
    """What the operations of one function on tensors give: which parts of which layers' outputs the results carry.

    Args:
        reader: the reading of the model, to which is told what an output meets and which part of it is taken.
        context: the function's file and module.
    """

    def __init__(self, reader: SourceReader, context: FunctionContext) -> None:
        self.reader, self.context = reader, context
        self.parts, self.weights = TensorParts(reader, context), WeightOperations(reader, context)

    # ------------------------------------------------------------------------------------------------ torch's functions

    def call(self, name: str, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
        """Return the result of a function of torch, or of a method of the tensor `args[0]`.

        Args:
            name: the function's name, of several names for one function the one in `tensor_functions`.
            args: its arguments by position.
            kwargs: its arguments by name.
            node: the syntax node of the call.
        """
        arguments = [*args, *kwargs.values()]
        first = next(iter(arguments), None)
        if name in ("pack", "unpack"):
            return self._packed(*args[:2]) if name == "pack" else self._unpacked(*args[:3])
        if isinstance(first, Weight) and not flows_in(arguments) and name not in PRODUCTS:
            return self.weights.call(name, first, args[1:], kwargs, node)
        if name == "einsum" and len(args) == 2:  # of one tensor, whose axes it puts into another order
            if isinstance(first, str) and isinstance(args[1], Flow):
                return viewed("rearrange", args[1], (spelled_out(first),), {}, None)
            if isinstance(first, Flow) and isinstance(args[1], str):  # einops' einsum, with the pattern behind
                return viewed("rearrange", first, (args[1],), {}, None)
        if name in PRODUCTS:
            groups = kwargs.get("groups", args[6] if len(args) > 6 else 1)
            is_grouped = name in ("conv1d", "conv2d", "conv3d") and groups != 1
            if is_grouped and isinstance(first, Flow) and self._is_depthwise(arguments[1]):
                return self._filtered(first, arguments[1], node)
            return self.product(name, arguments, node)
        if name == "size" and not args[1:] and not kwargs:
            return Shape(first)
        if name == "size" and args[1:]:
            return self.parts.size_at(Shape(first), args[1])
        if name in ("add", "sub", "mul", "div", "true_divide", "lerp", "addcmul", "hadamard", "addcdiv"):
            if any(isinstance(value, Weight) for value in arguments):
                for weight in weights_in(arguments):
                    self.weights.change(weight, node)
            return self._arithmetic(name, arguments, node)
        if isinstance(first, Unknown) and name in KEEP_NUMBERS:
            return first
        if name not in ("embedding", "embedding_bag"):
            for weight in weights_in(arguments):
                self.weights.compute_with(weight, node)
        if not flows_in(arguments) and not (name in JOINS and (notes_in(arguments) or weights_in(arguments))):
            if name in ASK_SIZES:
                return Size()
            return Unknown(axis_count(arguments[:1]) if name in KEEP_FEATURES else None)
        if name in ASK_SIZES:
            return Size()
        if name == "complex":  # real and imaginary parts are one vector of complex numbers
            return self.put_together(arguments[:2], True, is_stack=False)
        if name in JOINS:
            return self._join_tensors(name, args, kwargs, node)
        flow = next((value for value in arguments if isinstance(value, Flow)), None)
        if name == "glu":
            dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
            self.reader.cut_in_halves(first, dim, (span_of(node, self.context), "glu"), node, self.context)
            return with_step(first, "gated")
        if not isinstance(first, Flow) or flow is None:
            for slot, value in enumerate(arguments):
                self.reader.meet(value, name, span_of(node, self.context), slot)
            return Unknown() if flow is None else tensor_of_unknown_axes(flow)
        if name in CUTS:
            return self.parts.cut(name, first, args[1:], kwargs, node)
        if name in ("narrow", "select", "index_select", "narrow_copy", "slice"):
            return self.parts.narrow(name, first, args[1:], kwargs, node)
        if name in VIEWS:
            return viewed(name, first, args[1:], kwargs, self._feature_count(first))
        if name in KEEP_FEATURES:
            return first
        if name in ("sum", "mean") and SCALED in first.steps:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if _stacked_along(dim) in first.steps:
                self._meet_weighted_sum(first)
        if name in REDUCTIONS and (reduced := self._reduced(name, first, args[1:], kwargs)) is not None:
            return reduced
        operation = (name, kwargs.get("dim", args[1] if len(args) > 1 and isinstance(args[1], int) else None))
        leaves_features, is_single = is_elementwise(name), len(flows_in(arguments)) == 1
        record = self.reader.pass_through if leaves_features and is_single else self.reader.meet
        if name in TAKES_PLACES:
            record = self.reader.escape
        for slot, value in enumerate(arguments):
            if isinstance(value, Flow):
                record(value, *operation, *([] if is_single else [span_of(node, self.context), slot]))
        beside = [self.reader.number(value) for value in arguments if value is not first and is_tensor(value)]
        if beside:
            first = self.reader.noted(first, name, *beside)
        other = next((value for value in arguments if isinstance(value, Flow) and value is not flow), None)
        if other is not None and name in EXTREMES and not share_a_layer(flow, other):  # of two critics, say
            first = merged([first, other])
        first = with_step(first, name)
        return altered(first) if leaves_features else tensor_of_unknown_axes(first)

    def _meet_weighted_sum(self, flow: Flow) -> None:
        """Record for `(torch.stack([a, b]) * w).sum(0)` that each part of a layer's output has another factor."""
        for key, of_flow in flow.origins:
            for part, signature in self.reader.use_of(key).signatures.items():
                if len(part) == len(of_flow) + 1 and part[: len(of_flow)] == of_flow:
                    signature.add(("weighted sum", *part[-1]))

    def _reduced(self, name: str, flow: Flow, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return a mean, a maximum or the like over places of a tensor; None if it may be over its features.

        Functions such as `max` and `sort` return a pair, of which only the values carry what the tensor carries.
        """
        if name in ("norm", "vector_norm", "topk", "kthvalue"):
            args = args[1:]  # behind the order of the norm, or the number of values
        default = -1 if name in ("sort", "topk", "kthvalue", "mode") else None
        dims = kwargs.get("dim", kwargs.get("axis", args[0] if args else default))
        dims = list(dims) if isinstance(dims, (tuple, list)) else [dims]
        if not all_ints(dims) or any(isinstance(dim, bool) for dim in dims):
            return None
        keeps_axis = bool(kwargs.get("keepdim", args[1] if len(args) > 1 else False)) or name in KEEP_AXIS
        at = [axis_index(flow, dim) for dim in dims]
        if flow.axes is not None and all(axis is not None and flow.axes[axis] == OTHER for axis in at):
            kept_axes = tuple(kind for i, kind in enumerate(flow.axes) if i not in at)
            result = altered(flow, axes=flow.axes if keeps_axis else kept_axes)
        elif flow.axes is not None and flow.is_open and dims == [0] and not keeps_axis:  # over the batch
            result = altered(flow)
        elif name in RETURN_INDICES:
            result = tensor_of_unknown_axes(flow)
        else:
            return None
        self.reader.pass_through(flow, name)
        return (result, Unknown()) if name in RETURN_INDICES else result

    def _arithmetic(self, name: str, arguments: list[Any], node: ast.AST) -> Any:
        """Return a sum or product that is called as a function: of two tensors, in `addcmul` and the like of three."""

        def combined(op: ast.operator, *values: Any) -> Any:
            """Return what the operator gives for these values."""
            if any(isinstance(value, Flow) for value in values):
                result = self.combine(op, [*values], node)
            else:
                result = Unknown(axis_count(values))
            return self.renumbered(result, type(op).__name__, *values)

        if name in ("addcmul", "addcdiv") and len(arguments) > 2:
            product = combined(ast.Mult() if name == "addcmul" else ast.Div(), *arguments[1:3])
            return combined(ast.Add(), arguments[0], product)
        if name == "lerp" and len(arguments) > 2:  # begin + weight * (end - begin)
            step = combined(ast.Mult(), combined(ast.Sub(), arguments[1], arguments[0]), arguments[2])
            return combined(ast.Add(), arguments[0], step)
        op = {"add": ast.Add(), "sub": ast.Sub(), "div": ast.Div(), "true_divide": ast.Div()}.get(name, ast.Mult())
        return combined(op, *arguments[:2])

    def _is_depthwise(self, weight: Any) -> bool:
        """Return whether a weight filters each channel by itself, as far as its layer or its shape tells."""
        return isinstance(weight, Weight) and not weight.part and weight.key in self.reader.filters

    def _filtered(self, flow: Flow, weight: Weight, node: ast.AST) -> Flow:
        """Return a tensor after a convolution of each of its channels by itself."""
        self.reader.use_of(weight.key).calls += 1
        self.reader.pass_through(flow, "layer", span_of(node, self.context))
        return altered(flow)

    def product(self, name: str, arguments: list[Any], node: ast.AST) -> Any:
        """Return a product of matrices. An own weight in it makes it a layer; layers' outputs in it meet each other."""
        values = [value for item in arguments for value in (item if isinstance(item, (tuple, list)) else [item])]
        weights = [value for value in values if isinstance(value, Weight)]
        where = span_of(node, self.context)
        flows = [value for value in values if isinstance(value, Flow)]
        notes = notes_in(values)
        for slot, value in enumerate(values):
            if isinstance(value, Flow) and weights:
                self.reader.meet(value, "layer", where, slot)
            elif isinstance(value, Flow):
                self.reader.pass_through(value, name, where, slot)
        if not weights:
            notes |= self.reader.notes_of_call(values, name)
        for weight in weights:
            use = self.reader.use_of(weight.key)
            use.calls += 1
            if name in DISTANCES or (name == "einsum" and _is_scaled(values, weight)):
                self.weights.change(weight, node)
            elif weight.changed:
                use.changed = use.changed or weight.changed
            else:
                use.multiplied += 1
                use.sums_over.add(_summed_axis(name, values, weight))
                use.fused_by_torch |= name in PRODUCTS_WITH_FUSED_WEIGHT
            if weight.part:
                beside = (self.reader.number(value) for value in values if not isinstance(value, Weight))
                use.signatures.setdefault(weight.part, set()).add(("layer", where, *beside))
        if len(weights) == 1 and name in PRODUCTS_WITH_WEIGHT and not weights[0].changed:
            origins = frozenset({(weights[0].key, weights[0].part)})
            if name.startswith("conv"):
                return Flow(origins, (OTHER, FEATURES, *[OTHER] * int(name[-2])), is_open=False)
            count = axis_count([next((value for value in values if isinstance(value, (Unknown, Flow))), None)])
            axes = (FEATURES,) if count is None else (*[OTHER] * (count - 1), FEATURES)
            return Flow(origins, axes, is_open=count is None)
        if weights:
            returns_pair = name in ("lstm_cell", "multi_head_attention_forward", "lstm", "gru")
            return (Unknown(), Unknown()) if returns_pair else Unknown()
        if len(flows) == 1 and len(values) == 2 and isinstance(values[1], Flow) and name in ("matmul", "bmm", "mm"):
            return altered(flows[0], notes=notes)  # a mixture over positions leaves the features as they are
        return Unknown(notes=notes)

    def _join_tensors(self, name: str, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
        """Return the result of `cat`, `stack` and the like: parts put together again are one output."""
        arguments = [*args, *kwargs.values()]
        if name == "where":
            if weights := weights_in(arguments):  # a mask decides which of its numbers are multiplied
                return self.weights.changed(weights[0], node)
            for slot, value in enumerate(arguments):
                self.reader.pass_through(value, "where", slot)
            return merged(flows_in(arguments), notes_in(arguments)) if flows_in(arguments) else Unknown()
        pieces = self._pieces_of(arguments[0])
        dim = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else JOIN_AXES.get(name, 0)))
        flow = next(iter(flows_in(pieces)), None)
        is_along = is_feature_axis(flow, dim)
        if name == "stack":  # along a new axis; where that is one of the last two, a view can join the features again
            is_along = True if dim in (-1, -2) else None
        parts_by_key: dict[int, set[Any]] = {}
        for key, part in {origin for piece in flows_in(pieces) for origin in piece.origins}:
            parts_by_key.setdefault(key, set()).add(part)
        for key, parts in parts_by_key.items():
            self.reader.use_of(key).is_rejoined |= len(parts) > 1
        joined = self.put_together(pieces, is_along, is_stack=name == "stack")
        if name == "stack" and any(len(parts) > 1 for parts in parts_by_key.values()):
            joined = with_step(joined, _stacked_along(dim))
        if not isinstance(joined, Flow) or flow is None:
            return joined
        origins = {key for key, _ in joined.origins}
        is_joined = (
            joined.is_joined
            or len(origins) > 1
            or any(not flows_in(piece) for piece in pieces if not isinstance(piece, Rest))
        )
        axes = flow.axes if len(origins) == 1 and name != "stack" else None
        if (others := self._axes_beside(name, pieces, dim)) is not None:
            return altered(
                joined, axes=others, is_open=flow.is_open, is_joined=any(p.is_joined for p in flows_in(pieces))
            )
        whole = self._whole_outputs(pieces) if is_along and name != "stack" and len(origins) > 1 else ()
        return altered(joined, axes=axes, is_joined=is_joined, side_by_side=SideBySide(dim, whole) if whole else None)

    def _axes_beside(self, name: str, pieces: Sequence[Any], dim: Any) -> tuple[str, ...] | None:
        """Return the axes of several layers' outputs that are put together along an axis before the features.

        None: it is not known to be such an axis, some pieces carry parts, or their axes differ.
        """
        if not all(isinstance(piece, Flow) for piece in pieces) or not isinstance(dim, int):
            return None
        if any(part for piece in pieces for _, part in piece.origins):
            return None
        first = pieces[0]
        if first.axes is None or any((piece.axes, piece.is_open) != (first.axes, first.is_open) for piece in pieces):
            return None
        if name == "stack" and first.is_open:  # the first two axes are batch and positions, as far as is known
            return first.axes if dim in (0, 1) else None
        if name == "stack":
            at = dim if dim >= 0 else len(first.axes) + 1 + dim
            return (*first.axes[:at], OTHER, *first.axes[at:])
        if first.is_open:
            return first.axes if name in ("cat", "concat", "concatenate", "vstack") and dim == 0 else None
        axis = axis_index(first, dim)
        return first.axes if axis is not None and first.axes[axis] == OTHER else None

    def _whole_outputs(self, pieces: Sequence[Any]) -> tuple[tuple[int, int], ...]:
        """Return (`id` of the weight, number of features) of each of some tensors; () if not all are whole outputs."""
        whole = []
        for piece in pieces:
            key, part = next(iter(piece.origins)) if isinstance(piece, Flow) and len(piece.origins) == 1 else (0, ())
            if part or piece.is_joined or FEATURES not in (piece.axes or ()) or key not in self.reader.rows:
                return ()
            whole.append((key, self.reader.rows[key]))
        return tuple(whole)

    def _packed(self, tensors: Any, pattern: Any = None) -> Any:
        """Return what einops' `pack` gives: tensors side by side, with some axes made one, and the axes' lengths."""
        pieces = self._pieces_of(tensors)
        if len(pieces) == 1 and isinstance(pieces[0], Flow):
            return packed(pieces[0], pattern), [Size()]
        self.reader.escape(pieces, "call", "pack")
        return Unknown(), [Size() for _ in pieces]

    def _unpacked(self, tensor: Any, lengths: Any = None, pattern: Any = None) -> Any:
        """Return what einops' `unpack` gives: the tensors that `pack` has put side by side."""
        if isinstance(lengths, list) and len(lengths) == 1:
            return [unpacked(tensor, pattern) if isinstance(tensor, Flow) else Unknown()]
        self.reader.escape(tensor, "call", "unpack")
        return [Unknown() for _ in lengths] if isinstance(lengths, list) else [Unknown(), Rest()]

    def _pieces_of(self, value: Any) -> list[Any]:
        """Return the tensors that are to be put together: those of a list or of a cut, or a value that is no list."""
        if isinstance(value, Parts):
            return [self.parts.part_at(value, i) for i in range(MOST_TURNS)]
        return list(value) if isinstance(value, (tuple, list)) and value else [value]

    def put_together(self, pieces: Sequence[Any], is_along: bool | None, is_stack: bool) -> Any:
        """Return one tensor that several tensors are put together in.

        If all parts of a layer's output are together again, their notes are dropped: what each part was combined with
        was one operation on the whole output.

        Args:
            pieces: the tensors.
            is_along: whether they are joined along the feature axis; None: not known.
            is_stack: whether they are along a new axis, so that only a view joins them.
        """
        notes, flows = notes_in(pieces), flows_in(pieces)
        is_complete = all(is_complete_output(key, pieces, is_along) for key in {note.key for note in notes})
        if is_complete and not is_stack:
            notes = frozenset()
        if not flows:
            stacked = Unknown(notes=notes, number=self.reader.number(["joined", is_stack, *pieces]))
            stacked.is_stacked = is_complete and is_stack
            return stacked
        return replace(merged(flows), notes=notes, is_stacked=is_complete and is_stack)

    def _feature_count(self, flow: Flow) -> int | None:
        """Return the number of features of a whole output of one layer; None for a part, or if it is not known."""
        keys = {key for key, part in flow.origins}
        parts = [part for _, part in flow.origins if part]
        return self.reader.rows.get(keys.pop()) if len(keys) == 1 and not parts else None

    # ------------------------------------------------------------------------------------------------ sums and products

    def combine(self, op: ast.operator, values: list[Any], node: ast.AST) -> Any:
        """Return the sum or product of two values, of which at least one carries outputs of layers."""
        flows = [value for value in values if isinstance(value, Flow)]
        for weight in weights_in(values):
            self.weights.compute_with(weight, node)
        name = type(op).__name__
        is_sum, is_product = isinstance(op, (ast.Add, ast.Sub)), isinstance(op, (ast.Mult, ast.Div))
        if not is_sum and not is_product:
            for flow in flows:
                self.reader.pass_through(flow, name)
        elif len(flows) == 2 and have_same_origins(*flows) and is_product:
            self.reader.pass_through(flows[0], "square")
        elif len(flows) == 2 and is_product and share_a_layer(*flows):
            for side, flow in enumerate(flows):
                self.reader.meet(flow, "product", span_of(node, self.context), side)
        elif len(flows) == 2 and is_sum:
            self._meet_own_sum(flows[0], flows[1], node)
        # Of two parts of one layer neither is something else for the other.
        if len(flows) == 2 and not share_a_layer(*flows):
            first, second = flows
            flows = [self._noted_beside(first, name, second, 0), self._noted_beside(second, name, first, 1)]
        elif len(flows) == 1:
            side = next(i for i, value in enumerate(values) if value is flows[0])
            other = next((value for value in values if value is not flows[0]), None)
            flows = [self._noted_beside(flows[0], name, other, side)]
        joined = merged(flows, notes_in(values))
        others = [value for value in values if isinstance(value, Unknown) and not value.is_scalar]
        if is_product and (others or len(flows) == 2) and any(STACKED in step for step in joined.steps):
            joined = with_step(joined, SCALED)
        if is_product and len(flows) == 2:
            return with_step(joined, "gated")
        return joined if is_sum or is_product else with_step(joined, name)

    def _meet_own_sum(self, first: Flow, second: Flow, node: ast.AST) -> None:
        """Record for `x + w * (y - x)` that x meets a sum which contains x already, and y does not."""
        for flow, other in ((first, second), (second, first)):
            parts_of_other = dict(other.origins)
            is_contained = False  # whether `other` carries a part of a layer's output in which a part of `flow` lies
            for key, part in flow.origins:
                larger = parts_of_other.get(key)
                if larger is not None and larger != part and part[: len(larger)] == larger:
                    is_contained = True
            if is_contained:
                self.reader.pass_through(flow, "added again", span_of(node, self.context))

    def _noted_beside(self, flow: Flow, name: str, other: Any, side: int) -> Flow:
        """Return a flow with the note that it was combined with another tensor; numbers leave no note."""
        if not is_tensor(other):
            return flow
        if name in ("Add", "Sub"):
            name = "Add"
            if len(flow.origins) < MOST_ADDED:
                for key, _ in flow.origins:
                    self.reader.added.setdefault(key, set()).add(self.reader.number(other))
            is_shifted = isinstance(other, Unknown) and other.is_constant  # which is no sum with another tensor
            flow = flow if isinstance(other, Flow) or is_shifted else with_step(flow, "added")
        name = f"Div {side}" if name == "Div" else name
        noted: Flow = self.reader.noted(flow, name, self.reader.number(other))
        return noted

    def renumbered(self, value: Any, *expression: Any) -> Any:
        """Return the value of an operation with a number of its own, also if it is followed as one of its operands."""
        return self.reader.numbered(altered(value) if isinstance(value, Flow) else value, *expression)


def _stacked_along(dim: Any) -> str:
    """Return the step of a tensor whose parts were put side by side along a new axis, as the code counts it."""
    return f"{STACKED} {dim}"


def _is_scaled(values: Sequence[Any], weight: Weight) -> bool:
    """Return whether `einsum` sums over no axis of a weight, so that it scales or masks the weight's numbers."""
    of_weight, of_output = _axes_in_equation(values, weight)
    return bool(of_weight) and {*of_weight} <= {*of_output}


def _axes_in_equation(values: Sequence[Any], weight: Weight) -> tuple[list[str], list[str]]:
    """Return the names of a weight's axes, and of the output's, in the equation of an `einsum`."""
    equation = next((value for value in values if isinstance(value, str)), "")
    terms, arrow, output = equation.partition("->")
    if not arrow:  # then the output has the axes that occur once
        output = "".join(axis for axis in terms if axis.isalpha() and terms.count(axis) == 1)
    operands = [value for value in values if is_tensor(value)]
    at = next(at for at, value in enumerate(operands) if value is weight)
    term = dict(zip(range(len(operands)), terms.split(","), strict=False)).get(at, "")
    # einops' equations have whole words for axes, torch's have letters.
    of_weight, of_output = (side.split() if " " in side.strip() else [*side.strip()] for side in (term, output))
    return of_weight, of_output


def _summed_axis(name: str, values: Sequence[Any], weight: Weight) -> str:
    """Return over which axis of a weight, as it is stored, a product sums: "rows", "columns", or "" if not known."""
    sums_over_first: bool | None = None  # of the weight as it stands in the product
    factors = values[1:] if name == "addmm" else values
    if name in ("matmul", "mm", "mv", "linear", "addmm"):
        sums_over_first = name != "linear" and len(factors) > 1 and factors[1] is weight
    elif name == "einsum":
        of_weight, of_output = _axes_in_equation(values, weight)
        kept = [axis in of_output for axis in of_weight]
        sums_over_first = not kept[0] if len(kept) == 2 and sum(kept) == 1 else None
    if sums_over_first is None:
        return ""
    return "rows" if sums_over_first != weight.is_turned else "columns"


def spelled_out(equation: str) -> str:
    """Return an equation of `einsum` as a pattern of einops, with spaces between the axes.

    Without an arrow the result has the axes that occur once, in the order of the alphabet.
    """
    if "->" not in equation:
        letters = sorted(letter for letter in equation if letter.isalpha() and equation.count(letter) == 1)
        equation += "->" + "..." * ("..." in equation) + "".join(letters)
    sides = [" ".join(side.replace(" ", "").replace("...", "@")) for side in equation.split("->")]
    return " -> ".join(sides).replace("@", "...")
