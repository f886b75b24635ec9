"""What a model's code does with a weight outside its layer, in the reading of one function (`function_reading`)."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fire_core.weights.axes import axis_count
from fire_core.weights.flows import FunctionContext, Size, Unknown, Weight
from fire_core.weights.syntax_trees import place
from fire_core.weights.tensor_functions import ASK_SIZES, CUTS, KEEP_FEATURES, VIEWS
from fire_core.weights.tensor_parts import slice_key
from fire_core.weights.topology import words

if TYPE_CHECKING:
    from fire_core.weights.source import SourceReader

CHANGES_NO_NUMBER = words("requires_grad_ detach_ share_memory_")  # methods in place that leave a tensor's numbers


class WeightOperations:
    """What operations on a weight give: the weight, some of its rows, or a weight whose numbers were changed.

    Args:
        reader: the reading of the model, to which is told what becomes of the weight.
        context: the function's file and module.
    """

    def __init__(self, reader: SourceReader, context: FunctionContext) -> None:
        self.reader, self.context = reader, context

    def call(self, name: str, weight: Weight, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
        """Return a weight after a function of torch: the same, cut into parts of its rows, or changed."""
        changes = {"neg", "masked_fill", "div", "true_divide", "roll", "pad", "flip", "sub", "dropout"}
        if name == "clone":
            return replace(weight, is_copy=True)
        if name == "permute":
            dims = args[0] if args and isinstance(args[0], (tuple, list)) else args
            return turned(weight) if tuple(dims)[-2:] != tuple(sorted(tuple(dims)[-2:])) else weight
        if name in ("t", "transpose", "swapaxes", "swapdims", "adjoint"):
            return turned(weight)
        if name in VIEWS or name in KEEP_FEATURES - changes:
            return weight
        if name in CUTS:
            count = args[0] if args else kwargs.get("chunks", kwargs.get("split_size_or_sections"))
            number = 3  # at least, where it is not known: what the parts meet shows that they differ
            if isinstance(count, (tuple, list)):
                number = len(count)
            elif name.endswith(("chunk", "tensor_split")) and isinstance(count, int):
                number = count
            dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
            if dim not in (0, -2):
                return [self.changed(weight, node)] * number
            return [self._rows(weight, i, node) for i in range(number)]
        if name in ASK_SIZES or name in ("shape", "dim"):
            return Size()
        return self.changed(weight, node)

    def _rows(self, weight: Weight, which: Any, node: ast.AST) -> Weight:
        """Return some rows of a weight, with the place where they are taken."""
        part = (*weight.part, ("rows", which))
        use = self.reader.use_of(weight.key)
        line, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
        use.lines.setdefault(part, place(self.context.filename, line))
        use.spans.setdefault(part, (self.context.filename, line, last))
        return replace(weight, part=part)

    def index(self, weight: Weight, index: Any, node: ast.Subscript) -> Any:
        """Return `weight[index]`: some of its rows, or a changed weight."""
        first = next((item for item in (index if isinstance(index, tuple) else (index,)) if item is not Ellipsis), None)
        if isinstance(first, slice) and first != slice(None):
            return self._rows(weight, slice_key(first, node.slice), node)
        if isinstance(index, int):
            return self._rows(weight, index, node)
        return self.changed(weight, node)

    def changed(self, value: Any, node: ast.AST) -> Any:
        """Return a weight with the place where it was changed before any product; an unknown value for all others."""
        if isinstance(value, Weight):
            self.compute_with(value, node)
            return replace(value, changed=value.changed or place(self.context.filename, getattr(node, "lineno", 0)))
        return Unknown(axis_count([value]))

    def compute_with(self, weight: Weight, node: ast.AST) -> None:
        """Record that something else than a product of matrices is computed with a weight."""
        use = self.reader.use_of(weight.key)
        use.computed_with = use.computed_with or place(self.context.filename, getattr(node, "lineno", 0))

    def change(self, weight: Weight, node: ast.AST) -> None:
        """Record that a weight is changed number by number before it is multiplied."""
        use = self.reader.use_of(weight.key)
        use.changed = use.changed or weight.changed or place(self.context.filename, getattr(node, "lineno", 0))

    def overwrite(self, value: Any, node: ast.AST) -> None:
        """Record that something is written to a value, in place, if it is a layer's weight itself."""
        if isinstance(value, Weight) and not value.changed and not value.is_copy:
            use = self.reader.use_of(value.key)
            use.overwritten = use.overwritten or place(self.context.filename, getattr(node, "lineno", 0))

    def record_write(self, name: str, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> None:
        """Record that torch writes to a tensor, as `clamp_` does to its first argument and `clamp(..., out=)` to it."""
        if writes_in_place(name) and args:
            self.overwrite(args[0], node)
        self.overwrite(kwargs.get("out"), node)


def turned(weight: Weight) -> Weight:
    """Return a weight whose last two axes have changed places."""
    return replace(weight, is_turned=not weight.is_turned)


def writes_in_place(name: str) -> bool:
    """Return whether a function or method of torch of this name writes to its first argument, such as `clamp_`."""
    return name.endswith("_") and not name.endswith("__") and name not in CHANGES_NO_NUMBER
