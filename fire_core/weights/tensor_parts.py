"""Which parts of layers' outputs slices, indices and cuts take, in the reading of one function (`function_reading`)."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fire_core.weights.axes import (
    all_ints,
    axes_without,
    axis_count,
    axis_index,
    with_features_at,
    with_new_axis,
    without_axis,
)
from fire_core.weights.flows import (
    FEATURES,
    MIXED,
    OTHER,
    SHARE,
    Flow,
    FunctionContext,
    Parts,
    Place,
    Rest,
    SameParts,
    Shape,
    SideBySide,
    Size,
    UnboundParts,
    Unknown,
    altered,
    merged,
    plain_or_type,
)
from fire_core.weights.tensor_functions import SECTIONS

if TYPE_CHECKING:
    from fire_core.weights.source import SourceReader


class TensorParts:
    """The parts that the code of one function takes of tensors that carry layers' outputs.

    Args:
        reader: the reading of the model, to which is told which part of an output is taken.
        context: the function's file and module.
    """

    def __init__(self, reader: SourceReader, context: FunctionContext) -> None:
        self.reader, self.context = reader, context

    def index(self, flow: Flow, index: Any, node: ast.Subscript) -> Any:
        """Return `flow[index]`; slices along the feature axis are parts."""
        items = list(index) if isinstance(index, tuple) else [index]
        nodes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if flow.side_by_side is not None and not all(item is Ellipsis or item == slice(None) for item in items):
            if (bounds := bounds_along(items, flow.side_by_side)) is not None:
                return self._taken_of_joined(flow, flow.side_by_side.outputs, *bounds, node)
            flow = altered(flow, side_by_side=None)
        if flow.axes is None:
            if len(items) == 2 and items[0] is Ellipsis and isinstance(items[1], slice) and items[1] != slice(None):
                key = slice_key(items[1], nodes[-1])
                return self.reader.take_part(flow, None, key, "slice", node, self.context, or_unknown=True)
            return flow
        before = items.index(Ellipsis) if any(item is Ellipsis for item in items) else len(items)
        at = 0
        for i, (item, written) in enumerate(zip(items, nodes, strict=False)):
            if item is Ellipsis:
                continue
            dim = at if i < before else -(len([x for x in items[i:] if x is not None]))
            if item is None:
                flow = flow if flow.is_open or i > before else with_new_axis(flow, at)
                at += 1
                continue
            axis = axis_index(flow, dim)
            if isinstance(item, slice):
                flow = self._slice(flow, axis, item, written, node, dim)
                at += 1
            elif _says_which(item) and self._is_of_features(flow, axis, dim):
                key = ("index", self.reader.number(item))
                flow = self.reader.take_part(flow, -1, key, "slice", node, self.context)
                flow = flow if isinstance(item, list) else altered(flow, axes=None)  # a buffer may have several axes
                at += 1
            elif _says_which(item) and self._may_hold_features(flow, dim):
                flow = self._part_by_rank(flow, ("index", self.reader.number(item)), node)
                at += 1
            elif isinstance(item, (Flow, Unknown, Size, list, tuple)):
                at += isinstance(item, (Flow, list, tuple))  # an index along this axis: what it takes is not known
                if isinstance(item, Unknown) and axis is not None and axis + 1 < len(flow.axes or ()):
                    # A number takes one place, a tensor of places or a mask leaves an axis or more.
                    flow = altered(flow, axes=(flow.axes or ())[axis + 1 :], is_open=True)
                elif not isinstance(item, (list, tuple)):
                    is_sample = flow.is_sample or (axis is None and dim == 0 and isinstance(item, (Unknown, Size)))
                    flow = without_axis(flow, axis)
                    flow = altered(flow, is_sample=True) if is_sample else flow
            else:
                flow = self._select_at(flow, axis, item, node, dim)
        return flow

    def select(self, flow: Flow, axis: int, index: Any, node: ast.AST) -> Flow:
        """Return one place along an axis, which is gone then."""
        if flow.axes is None:
            return flow
        at = axis_index(flow, axis)
        if at is None:
            return altered(flow, is_sample=True) if flow.is_open and axis == 0 else flow
        kind = flow.axes[at]
        taken = flow
        if kind in (FEATURES, SHARE) and isinstance(index, int):
            taken = self.reader.take_part(flow, at, ("at", index), "index", node, self.context)
        return altered(taken, axes=(*flow.axes[:at], *flow.axes[at + 1 :]))

    def _select_at(self, flow: Flow, axis: int | None, item: Any, node: ast.AST, dim: int) -> Flow:
        """Return one place along an axis that may not be known.

        Args:
            flow: the tensor.
            axis: index of the axis in `flow.axes`; None: not known.
            item: which place.
            node: the syntax node.
            dim: the number of the axis in the code.
        """
        if flow.axes is None:
            return altered(flow, axes=None)
        if axis is None and flow.is_open:
            if dim > 0 and flow.axes.count(SHARE) > 1 and isinstance(item, int):  # perhaps one of the groups of a view
                key = ("at", dim, item)
                return self.reader.take_part(
                    flow, None, key, "index", node, self.context, or_unknown=True, is_by_rank=not flow.is_joined
                )
            return altered(flow, is_sample=True) if dim == 0 else flow
        if axis is None:
            return altered(flow, axes=None)
        return self.select(flow, axis if not flow.is_open else axis - len(flow.axes), item, node)

    def _slice(self, flow: Flow, axis: int | None, item: slice, written: ast.expr, node: ast.AST, dim: int) -> Flow:
        """Return a slice of a tensor along one axis: a part of the output if the axis holds features."""
        bounds = (item.start, item.stop, item.step)
        if flow.axes is None or all(bound is None for bound in bounds):
            return flow
        key = slice_key(item, written)
        if axis is None:  # of a linear layer's output with an unknown number of axes, counted from the front
            if not (flow.is_open and flow.axes == (FEATURES,)):
                return flow
            sure = [bound for bound in bounds[:2] if isinstance(bound, int) and bound > 1]
            known = all(isinstance(bound, int | None) for bound in bounds)
            if not (sure and known):
                may_hold_features = self._may_hold_features(flow, dim) and any(map(_may_divide_features, bounds))
                return self._part_by_rank(flow, key, node) if may_hold_features else flow
            axis, flow = dim, with_features_at(flow, dim)
        return self.reader.take_part(flow, axis, key, "slice", node, self.context)

    def _is_of_features(self, flow: Flow, axis: int | None, dim: int) -> bool:
        """Return whether an axis, which is number `dim` in the code, is the last one and holds all features."""
        if flow.axes is None or flow.axes[-1] != FEATURES:
            return False
        if axis is None:  # of a linear layer's output: the first two axes are batch and positions, as far as is known
            return flow.is_open and len(flow.axes) == 1 and dim > 1
        return axis == len(flow.axes) - 1

    def _may_hold_features(self, flow: Flow, dim: Any) -> bool:
        """Return whether an axis counted from the front holds all features if the model's input has two axes."""
        is_whole = flow.is_open and flow.axes == (FEATURES,) and not flow.is_sample
        return is_whole and dim == 1 and not self.reader.follows_givers

    def _part_by_rank(self, flow: Flow, key: Any, node: ast.AST) -> Flow:
        """Return a part along an axis that holds features only if the model's input has few enough axes."""
        return self.reader.take_part(flow, None, key, "slice", node, self.context, is_by_rank=True)

    def cut(self, name: str, flow: Flow, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
        """Return the parts that `chunk`, `split` or a similar function cuts a tensor into."""
        plain = {"unbind": 0, "hsplit": 1, "dsplit": 2, "vsplit": 0}
        if name == "unbind":
            dim = kwargs.get("dim", args[0] if args else 0)
            sections = None
        else:
            sections = args[0] if args else next((kwargs[k] for k in SECTIONS if k in kwargs), None)
            dim = plain.get(name, kwargs.get("dim", args[1] if len(args) > 1 else 0))
        axis = axis_index(flow, dim) if isinstance(dim, int) else None
        if flow.side_by_side is not None and flow.side_by_side.dim == dim and name != "unbind":
            outputs = flow.side_by_side.outputs
            sizes = sizes_of_sections(name, sections, sum(rows for _, rows in outputs))
            ends = itertools.accumulate(sizes)
            if sizes:
                bounds = [(end - size, end) for size, end in zip(sizes, ends, strict=True)]
                return [self._taken_of_joined(flow, outputs, start, stop, node) for start, stop in bounds]
        if axis is not None and flow.axes is not None and flow.axes[axis] == FEATURES and name != "unbind":
            self._note_sections(flow, name, sections, span_of(node, self.context))
        if axis is None and self.reader.follows_givers:  # perhaps positions of a memory, or the batch
            return SameParts(flow)
        if axis is None and isinstance(dim, int) and dim > 0 and flow.is_open and flow.axes == (FEATURES,):
            sure = isinstance(sections, int) if name.endswith(("chunk", "tensor_split")) else all_ints(sections)
            if sure or dim > 1:
                axis, flow = dim, with_features_at(flow, dim)
        piece, kind = flow, MIXED
        if flow.axes is not None and axis is not None:
            piece = altered(flow, axes=axes_without(flow.axes, axis)) if name == "unbind" else flow
            kind = flow.axes[axis]
        elif dim == 0 and name != "unbind" and not flow.is_sample:  # the batch
            return SameParts(flow) if not isinstance(sections, (tuple, list)) else [flow] * len(sections)
        where = span_of(node, self.context)
        number = sections if isinstance(sections, int) and name.endswith(("chunk", "tensor_split")) else None
        if isinstance(sections, (tuple, list)) and not any(isinstance(s, Rest) for s in sections):
            number = len(sections) + name.endswith("tensor_split")
        if kind == OTHER:
            return [piece] * number if number is not None else SameParts(piece)
        parts = Parts(flow, where, axis) if name != "unbind" else UnboundParts(flow, where, axis)
        return [self.part_at(parts, i) for i in range(number)] if number is not None else parts

    def _note_sections(self, flow: Flow, name: str, sections: Any, where: Any) -> None:
        """Record into how many features the output of a layer is cut as it is, if the code states it as numbers."""
        if flow.number not in self.reader.fresh:
            return
        ((key, part),) = flow.origins
        rows = self.reader.rows.get(key, 0)
        if part or not rows:
            return
        self.reader.use_of(key).state_sections(where, sizes_of_sections(name, sections, rows))

    def _taken_of_joined(
        self, flow: Flow, outputs: Sequence[tuple[int, int]], start: int, stop: int, node: ast.AST
    ) -> Any:
        """Return the features from `start` to `stop` of whole outputs of layers that were joined.

        An output that lies between the bounds as a whole is not cut; of another one a part is taken.

        Args:
            flow: the outputs as one tensor.
            outputs: (`id` of the weight, number of features) of each.
            start: the first feature.
            stop: the feature behind the last one.
            node: the syntax node of the cut.
        """
        where, begin, taken = span_of(node, self.context), 0, []
        for key, rows in outputs:
            output = Flow(frozenset({(key, ())}), notes=flow.notes, steps=flow.steps)
            end = begin + rows
            if start <= begin and end <= stop:
                taken.append(altered(output, axes=None))
            elif begin < stop and start < end:
                which = (max(start, begin) - begin, min(stop, end) - begin)
                part = self.reader.take_part(output, 0, which, where, node, self.context)
                taken.append(altered(part, axes=None))
            begin = end
        return replace(merged(taken), is_joined=len(taken) > 1) if taken else Unknown()

    def narrow(self, name: str, flow: Flow, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
        """Return the result of `narrow`, `select` or a similar function: one part along an axis."""
        dim = kwargs.get("dim", args[0] if args else 0)
        if (joined := flow.side_by_side) is not None and joined.dim == dim:
            given = dict(zip(("dim", "start", "length"), args, strict=False)) | kwargs
            start, length = given.get("start"), given.get("length")
            if name in ("narrow", "narrow_copy") and isinstance(start, int) and isinstance(length, int):
                start += sum(rows for _, rows in joined.outputs) if start < 0 else 0
                return self._taken_of_joined(flow, joined.outputs, start, start + length, node)
            flow = altered(flow, side_by_side=None)
        axis = axis_index(flow, dim) if isinstance(dim, int) else None
        if flow.axes is None or not isinstance(dim, int):
            return flow
        index = args[1] if len(args) > 1 else kwargs.get("index")
        if name == "select":
            return self._select_at(flow, axis, index, node, dim)
        which = tuple(str(plain_or_type(value)) for value in args[1:] or kwargs.values())
        key = ("index", self.reader.number(index)) if name == "index_select" else which
        if axis is None:
            return self._part_by_rank(flow, key, node) if self._may_hold_features(flow, dim) else flow
        return self.reader.take_part(flow, axis, key, "slice", node, self.context)

    def part_at(self, parts: Parts, index: int) -> Any:
        """Return one of the parts of a cut whose number of parts was not known."""
        if isinstance(parts, SameParts):
            return parts.flow
        flow, axis, syntax = parts.flow, parts.axis, Place(parts.where)
        taken = self.reader.take_part(flow, axis, index, parts.where, syntax, self.context, or_unknown=True)
        if isinstance(parts, UnboundParts) and flow.axes is not None and axis is not None:
            return altered(taken, axes=axes_without(flow.axes, axis))
        return taken

    def size_at(self, shape: Shape, index: Any) -> Any:
        """Return the length of an axis of a tensor, which is known for the features of one layer's whole output."""
        if isinstance(index, slice):
            return (Rest(),)
        axes = axis_count([shape.tensor])
        if isinstance(index, int) and isinstance(shape.tensor, Flow) and (shape.tensor.axes or ("",))[-1] == FEATURES:
            is_last = index == -1 or (axes is not None and index == axes - 1)
            if is_last and len(keys := {key for key, part in shape.tensor.origins if not part}) == 1:
                return self.reader.rows.get(keys.pop(), Size())
        return Size(index if isinstance(index, int) and index >= 0 else None)


def sizes_of_sections(name: str, sections: Any, length: int) -> tuple[int, ...]:
    """Return the lengths of the parts into which a function cuts an axis of a known length; () if they are not known.

    Args:
        name: the function's name, such as `chunk`.
        sections: the number of parts, the length of each, or their lengths.
        length: the length of the axis.
    """
    sizes: tuple[int, ...] = ()
    if isinstance(sections, (tuple, list)) and all_ints(sections) and not name.endswith("tensor_split"):
        sizes = tuple(sections)
    elif isinstance(sections, int) and 0 < sections <= length and length % sections == 0:
        is_count = name.endswith(("chunk", "tensor_split"))
        sizes = (length // sections,) * sections if is_count else (sections,) * (length // sections)
    return sizes if sum(sizes) == length else ()


def bounds_along(items: Sequence[Any], joined: SideBySide) -> tuple[int, int] | None:
    """Return the bounds of an index along the features of joined outputs; None if it is not a slice of these alone.

    Args:
        items: the index, such as `[..., :n]` or `[:, n:]`.
        joined: the outputs.
    """
    chosen = [at for at, item in enumerate(items) if item is not Ellipsis and item != slice(None)]
    if len(chosen) != 1 or any(item is None for item in items):
        return None
    at, item = chosen[0], items[chosen[0]]
    from_the_end = any(other is Ellipsis for other in items[:at])
    if (at - len(items) if from_the_end else at) != joined.dim or not isinstance(item, slice):
        return None
    bounds = (item.start, item.stop, item.step)
    if item.step not in (None, 1) or not all(isinstance(bound, int | None) for bound in bounds):
        return None
    start, stop, _ = item.indices(sum(rows for _, rows in joined.outputs))
    return start, stop


def _may_divide_features(bound: Any) -> bool:
    """Return whether a bound or step of a slice may say where features are divided, as `n // 2` and `::2` do.

    `x[:, 1:]`, `x[:, :-1]` and bounds that are lengths of other tensors usually select positions.
    """
    return (isinstance(bound, int) and abs(bound) > 1) or bound == Size()


def _says_which(item: Any) -> bool:
    """Return whether an index holds the numbers of its places: a list, or a buffer of the module."""
    is_list = isinstance(item, list) and all(isinstance(place, int) for place in item)
    return is_list or (isinstance(item, Unknown) and item.is_constant)


def slice_key(item: slice, written: ast.AST) -> tuple[Any, ...]:
    """Return which part a slice takes: its bounds as numbers, or as the source writes them."""
    bounds = (item.start, item.stop, item.step)
    if all(isinstance(bound, int | None) for bound in bounds):
        return bounds
    return ("written", ast.unparse(written))


def span_of(node: ast.AST, context: FunctionContext) -> tuple[Any, ...]:
    """Return the place of a syntax node: (file, first line, column, last line)."""
    line = getattr(node, "lineno", 0)
    return (context.filename, line, getattr(node, "col_offset", 0), getattr(node, "end_lineno", line))
