"""Reads one function of a model's code as Python would run it, with values that stand for tensors."""

from __future__ import annotations

import ast
import functools
import inspect
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fire_core.weights.axes import (
    all_ints,
    axes_without,
    axis_count,
    axis_index,
    is_along_features,
    is_feature_axis,
    tensor_of_unknown_axes,
    viewed,
    with_features_at,
    with_new_axis,
    without_axis,
)
from fire_core.weights.code import Function, file_of, is_torchs, method_of, outer_names, place, source_of
from fire_core.weights.flows import (
    FEATURES,
    MIXED,
    OTHER,
    PLAIN_TYPES,
    SHARE,
    Context,
    Flow,
    Inner,
    Method,
    Parts,
    Place,
    Rest,
    SameParts,
    Shape,
    Size,
    Super,
    UnboundParts,
    Unknown,
    Weight,
    agreed,
    altered,
    callable_value,
    copied_containers,
    flows_in,
    have_same_origins,
    is_complete_output,
    is_tensor,
    merged,
    notes_in,
    plain_or_type,
    share_a_layer,
    tensors_in,
    weights_in,
    with_step,
)
from fire_core.weights.tensor_functions import (
    ASK_SIZES,
    CUTS,
    JOIN_AXES,
    JOINS,
    KEEP_FEATURES,
    KEEP_NUMBERS,
    MERGING_VIEWS,
    OTHER_NAMES,
    PRODUCTS,
    PRODUCTS_WITH_FUSED_WEIGHT,
    PRODUCTS_WITH_WEIGHT,
    SECTIONS,
    VIEWS,
    is_elementwise,
)
from fire_core.weights.topology import is_layer, words

if TYPE_CHECKING:
    from fire_core.weights.source import SourceReader

MOST_ADDED = 8  # layers whose sum is looked at as the output of a network, not as a stream through many blocks
BUILTINS: tuple[Callable[..., Any], ...] = (
    map, filter, zip, enumerate, list, tuple, reversed, iter, sorted, len, int, float, getattr, range,
)  # fmt: skip
BUILTIN_NAMES = words("sum min max isinstance hasattr round abs bool next")  # also where a library has its own
CHANGES_NO_NUMBER = words("requires_grad_ detach_ share_memory_")  # methods in place that leave a tensor's numbers
MOST_TURNS = 4  # of a loop over a known number of turns without modules
BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip


class FunctionReading:
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
        self._bind_arguments(node.args, list(args), dict(kwargs))

    def _bind_arguments(self, spec: ast.arguments, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Give the function's parameters their values: arguments, defaults, and unknown values for the others."""
        names = [argument.arg for argument in (*spec.posonlyargs, *spec.args)]
        if any(isinstance(value, Rest) for value in args):
            args = args[: next(i for i, value in enumerate(args) if isinstance(value, Rest))]
        self.names.update(zip(names, args, strict=False))
        if spec.vararg:
            others = tuple(args[len(names) :])
            self.names[spec.vararg.arg] = others or (Rest(),)
        for name in [*names, *(argument.arg for argument in spec.kwonlyargs)]:
            if name in kwargs:
                self.names[name] = kwargs.pop(name)
        if spec.kwarg:
            self.names[spec.kwarg.arg] = kwargs
        defaults = dict(zip(names[len(names) - len(spec.defaults) :], spec.defaults, strict=True))
        defaults |= {a.arg: d for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None}
        for name in [*names, *(argument.arg for argument in spec.kwonlyargs)]:
            if name not in self.names:
                value = self._value_of(defaults[name]) if name in defaults else Unknown()
                self.names[name] = Unknown() if value is None else value

    def result(self) -> Any:
        """Read the function to its end and return what it returns, of several branches what they agree on."""
        if isinstance(self.node, ast.Lambda):
            return self._value_of(self.node.body)
        self._run(self.node.body)
        if not self.returned:
            return None
        return functools.reduce(self._after_either, self.returned)

    # ------------------------------------------------------------------------------------------------------ statements

    def _run(self, body: Sequence[ast.stmt]) -> bool:
        """Read statements one after the other, and return whether the function certainly ends in them."""
        return any(self._run_statement(statement) for statement in body)

    def _run_statement(self, node: ast.stmt) -> bool:
        """Read one statement, and return whether the function certainly ends in it."""
        self.reader.count_node()
        match node:
            case ast.Assign():
                value = self._value_of(node.value)
                for target in node.targets:
                    self._assign(target, value, node)
            case ast.AnnAssign(value=ast.expr() as value):
                self._assign(node.target, self._value_of(value), node)
            case ast.AugAssign():
                before = self._value_of(node.target)
                if isinstance(node.target, ast.Name):  # `w *= mask` writes to the tensor that `w` is
                    self._overwrite(before, node)
                value = self._binary_value(node.op, before, self._value_of(node.value), node)
                self._assign(node.target, value, node)
            case ast.Return():
                self.returned.append(None if node.value is None else self._value_of(node.value))
                return True
            case ast.Expr():
                self._value_of(node.value)
            case ast.If():
                return self._run_branch(node)
            case ast.For() | ast.AsyncFor():
                for value in self._loop_values(self._value_of(node.iter)):
                    self._assign(node.target, value, node)
                    self._run(node.body)
                self._run(node.orelse)
            case ast.While():
                self._value_of(node.test)
                self._run(node.body)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._value_of(item.context_expr)
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
                self._run_import(node)
        return False

    def _run_import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Give the names that an import within the function brings; a module that is not loaded yet is unknown."""
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            home = sys.modules.get(node.module or "" if isinstance(node, ast.ImportFrom) else alias.name)
            value = getattr(home, alias.name, None) if isinstance(node, ast.ImportFrom) else home
            self.names[name] = Unknown() if value is None else value

    def _run_branch(self, node: ast.If) -> bool:
        """Read an `if`: the branch that is taken, or both where the test is not known."""
        test = self._value_of(node.test)
        if (known := _truth_of(test)) is not None:
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
            self.names[name] = values[0] if len(values) == 1 else self._after_either(*values)
        return False

    def _after_either(self, first: Any, second: Any) -> Any:
        """Return what a variable holds after one of two branches; of two different kinds of values one is followed."""
        either = agreed(first, second)
        for value in (first, second):
            is_lost = not flows_in(either) or (isinstance(either, Flow) and isinstance(value, (tuple, list, dict)))
            if either is not value and is_lost:
                self.reader.escape(value, "otherwise")
        if isinstance(either, (Flow, Unknown)) and either is not first and either is not second:
            return self.reader.numbered(either, "either", first, second)
        return either

    def _loop_values(self, value: Any) -> list[Any]:
        """Return the values for which the body of a loop is read."""
        items = self._items_of(value)
        if items is None:
            return [Unknown()]
        known = [item for item in items if not isinstance(item, Rest)]
        if any(isinstance(item, nn.Module) or _holds_module(item) for item in known):
            return known
        if known or not items:
            return known[:MOST_TURNS]
        return [Unknown()]

    def _items_of(self, value: Any, count: int | None = None, node: ast.AST | None = None) -> list[Any] | None:
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
            return [self._part_at(value, i) for i in range(count or MOST_TURNS)]
        if isinstance(value, Flow) and node is not None and count is not None:
            where = (self.context.filename, getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
            return [self._select(value, 0, i, where, node) for i in range(count)]
        if isinstance(value, Shape) and count is not None:
            if isinstance(value.tensor, Unknown):
                value.tensor.axes = count
            return [Size(axis) for axis in range(count)]
        return None

    def _assign(self, target: ast.expr, value: Any, node: ast.AST) -> None:
        """Give a target of an assignment its value. What is stored where it cannot be followed escapes."""
        match target:
            case ast.Name():
                self.names[target.id] = value
                self.written.pop(target.id, None)
            case ast.Tuple() | ast.List():
                self._unpack(target.elts, value, node)
            case ast.Starred():
                self._assign(target.value, value, node)
            case ast.Subscript():
                base = self._value_of(target.value)
                self._overwrite(base, node)
                if isinstance(base, (list, dict)) and isinstance(key := self._value_of(target.slice), (int, str)):
                    if isinstance(base, dict) or -len(base) <= int(key) < len(base):
                        base[key] = value  # type: ignore[index]
                    if not isinstance(target.value, ast.Name):
                        self.reader.escape(value, "stored", key)
                elif isinstance(target.value, ast.Name) and is_tensor(value):
                    self._write_part(target.value.id, base, target, value)
                else:
                    self.reader.escape(value, "stored")
            case ast.Attribute():
                self.reader.escape(value, "stored", target.attr)
                if not any(isinstance(part, ast.Call) for part in ast.walk(target)):  # which is not to be read twice
                    before = self._value_of(target)
                    is_same_weight = isinstance(value, Weight) and value == before  # `w.data = w.data.to(device)`
                    if not is_same_weight:
                        self._overwrite(before, node)

    def _write_part(self, name: str, base: Any, target: ast.Subscript, value: Any) -> None:
        """Read `out[..., :n] = part`: what is written to a tensor part by part is put together there."""
        pieces = self.written.setdefault(name, [])
        pieces.append(value)
        if isinstance(base, Flow) and len(pieces) == 1:
            pieces.insert(0, base)
        elif not flows_in(pieces) and not notes_in(pieces):
            return
        index = self._value_of(target.slice)
        self.names[name] = self._put_together(pieces, is_along_features(index, value), is_stack=True)

    def _unpack(self, targets: Sequence[ast.expr], value: Any, node: ast.AST) -> None:
        """Assign the items of a value to several targets, one of which may be starred."""
        starred = next((i for i, target in enumerate(targets) if isinstance(target, ast.Starred)), None)
        items = self._items_of(value, len(targets), getattr(node, "value", node))
        if items is None and starred is None and isinstance(value, Unknown):
            items = [self.reader.numbered(Unknown(), "item", value, i) for i in range(len(targets))]
        if items is not None and any(isinstance(item, Rest) for item in items):
            items = [Unknown() for _ in targets] if len(items) == 1 else None
        if items is None or (starred is None and len(items) != len(targets)):
            if flows_in(value):
                self.reader.escape(value, "unpacked")
            items = [Unknown() for _ in targets]
        elif starred is not None:
            behind = len(targets) - starred - 1
            stop = len(items) - behind
            items = [*items[:starred], items[starred:stop], *items[stop:]]
        for target, item in zip(targets, items, strict=False):
            self._assign(target, item, node)

    # ----------------------------------------------------------------------------------------------------- expressions

    def _value_of(self, node: ast.expr) -> Any:
        """Return the value of an expression."""
        self.reader.count_node()
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                if node.id in self.names:
                    return self.names[node.id]
                return copied_containers(self.outer.get(node.id, Unknown()))
            case ast.Attribute():
                owner = self._value_of(node.value)
                return self.reader.numbered(self._attribute_of(owner, node.attr), "attribute", owner, node.attr)
            case ast.Call():
                return self._call(node)
            case ast.Subscript():
                owner, index = self._value_of(node.value), self._value_of(node.slice)
                return self.reader.numbered(self._subscript(owner, index, node), "item", owner, index)
            case ast.Tuple() | ast.List():
                return (tuple if isinstance(node, ast.Tuple) else list)(self._listed_values(node.elts))
            case ast.Dict():
                keys = [None if key is None else self._value_of(key) for key in node.keys]
                values = [self._value_of(value) for value in node.values]
                return {k: v for k, v in zip(keys, values, strict=True) if isinstance(k, (str, int))}
            case ast.BinOp():
                left, right = self._value_of(node.left), self._value_of(node.right)
                value = self._binary_value(node.op, left, right, node)
                return self._renumbered(value, type(node.op).__name__, left, right)
            case ast.UnaryOp():
                return self._unary_value(node)
            case ast.BoolOp():
                return functools.reduce(self._after_either, [self._value_of(value) for value in node.values])
            case ast.Compare():
                return self._compare_values(node)
            case ast.IfExp():
                known = _truth_of(self._value_of(node.test))
                if known is not None:
                    return self._value_of(node.body if known else node.orelse)
                return self._after_either(self._value_of(node.body), self._value_of(node.orelse))
            case ast.Lambda():
                return Inner(node, self.names, self.context)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                return self._values_of_comprehension(node.generators, node.elt, node)
            case ast.DictComp():
                pair_node = ast.Tuple([node.key, node.value], ast.Load())
                pairs = self._values_of_comprehension(node.generators, pair_node, node)
                return dict(pair if _is_item_pair(pair) else (f"{i}", pair) for i, pair in enumerate(pairs))
            case ast.NamedExpr():
                value = self._value_of(node.value)
                self._assign(node.target, value, node)
                return value
            case ast.Starred() | ast.Await():
                return self._value_of(node.value)
            case ast.Slice():
                bounds = (node.lower, node.upper, node.step)
                return slice(*(None if bound is None else self._value_of(bound) for bound in bounds))
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._value_of(child)
        return Unknown()

    def _listed_values(self, nodes: Iterable[ast.expr]) -> Iterator[Any]:
        """Yield the values of the items of a tuple, a list or the arguments of a call, with starred ones unpacked."""
        for node in nodes:
            if not isinstance(node, ast.Starred):
                yield self._value_of(node)
                continue
            value = self._value_of(node.value)
            items = self._items_of(value)
            if items is None and isinstance(value, (Flow, Parts)):
                items = self._items_of(value, 3, node.value)
            yield from [Rest()] if items is None else items

    def _renumbered(self, value: Any, *expression: Any) -> Any:
        """Return the value of an operation with a number of its own, also if it is followed as one of its operands."""
        return self.reader.numbered(altered(value) if isinstance(value, Flow) else value, *expression)

    def _values_of_comprehension(
        self, loops: Sequence[ast.comprehension], element: ast.expr, node: ast.AST
    ) -> list[Any]:
        """Return the values of a comprehension's element, turn by turn; its loops nest from left to right."""
        before = dict(self.names)
        results: list[Any] = []

        def turn(generators: Sequence[ast.comprehension]) -> None:
            """Read the turns of the remaining loops."""
            if not generators:
                results.append(self._value_of(element))
                return
            items = self._value_of(generators[0].iter)
            known = self._items_of(items)
            for item in self._loop_values(items):
                self._assign(generators[0].target, item, node)
                for test in generators[0].ifs:
                    self._value_of(test)
                turn(generators[1:])
            if known is None:
                results.append(Rest())

        turn(loops)
        self.names = before
        return results

    def _compare_values(self, node: ast.Compare) -> Any:
        """Return the value of a comparison: known for two plain values and for `is None`, else unknown."""
        values = [self._value_of(node.left), *map(self._value_of, node.comparators)]
        asks_identity = isinstance(node.ops[0], (ast.Is, ast.IsNot))
        if len(values) == 2 and all(isinstance(value, PLAIN_TYPES) for value in values):
            compare = COMPARE.get(type(node.ops[0]))
            try:
                return Unknown() if compare is None else compare(*values)
            except TypeError:
                return Unknown()
        if asks_identity and values[1] is None and isinstance(values[0], (Flow, nn.Module)):
            return isinstance(node.ops[0], ast.IsNot)
        if not asks_identity and not isinstance(node.ops[0], (ast.In, ast.NotIn)):
            for slot, value in enumerate(values):
                self.reader.meet(value, type(node.ops[0]).__name__, slot)
        return self.reader.numbered(Unknown(axis_count(values)), type(node.ops[0]).__name__, *values)

    def _unary_value(self, node: ast.UnaryOp) -> Any:
        """Return the value of `-x`, `not x` and the like."""
        value = self._value_of(node.operand)
        if isinstance(value, (int, float)):
            known: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Not: operator.not_}
            return known[type(node.op)](value) if type(node.op) in known else value
        if isinstance(value, Flow):
            return value
        return self.reader.numbered(self._changed_weight(value, node), type(node.op).__name__, value)

    def _binary_value(self, op: ast.operator, left: Any, right: Any, node: ast.AST) -> Any:
        """Return the value of an operation on two values: numbers, lists, weights or tensors."""
        values = [left, right]
        if all(isinstance(value, (int, float, str)) for value in values) and type(op) in BINARY:
            try:
                return BINARY[type(op)](left, right)
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
                    self._change_weight(weight, node)
            return self._changed_weight(weights[0], node)
        if not flows:
            sizes = any(isinstance(value, Size) for value in values)
            return Size() if sizes else Unknown(axis_count(values))
        return self._combined(op, values, node)

    def _combined(self, op: ast.operator, values: list[Any], node: ast.AST) -> Any:
        """Return the sum or product of two values, of which at least one carries outputs of layers."""
        flows = [value for value in values if isinstance(value, Flow)]
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
            flow = flow if isinstance(other, Flow) else with_step(flow, "added")
        name = f"Div {side}" if name == "Div" else name
        noted: Flow = self.reader.noted(flow, name, self.reader.number(other))
        return noted

    def _changed_weight(self, value: Any, node: ast.AST) -> Any:
        """Return a weight with the place where it was changed before any product; an unknown value for all others."""
        if isinstance(value, Weight):
            return replace(value, changed=value.changed or place(self.context.filename, getattr(node, "lineno", 0)))
        return Unknown(axis_count([value]))

    def _overwrite(self, value: Any, node: ast.AST) -> None:
        """Record that something is written to a value, in place, if it is a layer's weight itself."""
        if isinstance(value, Weight) and not value.changed and not value.is_copy:
            use = self.reader.use_of(value.key)
            use.overwritten = use.overwritten or place(self.context.filename, getattr(node, "lineno", 0))

    def _record_write(self, name: str, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> None:
        """Record that torch writes to a tensor, as `clamp_` does to its first argument and `clamp(..., out=)` to it."""
        if name.endswith("_") and not name.endswith("__") and name not in CHANGES_NO_NUMBER and args:
            self._overwrite(args[0], node)
        self._overwrite(kwargs.get("out"), node)

    # ------------------------------------------------------------------------------------------------------ attributes

    def _attribute_of(self, owner: Any, name: str) -> Any:
        """Return the value of an attribute of any value that the reading knows."""
        if isinstance(owner, nn.Module):
            return self._attribute_of_module(owner, name)
        if isinstance(owner, Super):
            return Method(owner, name)
        if isinstance(owner, (Flow, Unknown, Weight, Parts, Size)):
            if name == "shape":
                return Shape(owner)
            if name in ("mT", "T", "mH", "H"):
                return owner if isinstance(owner, Weight) else tensor_of_unknown_axes(owner)
            if name in ("data", "real", "imag"):
                return owner
            if name in ("dtype", "device", "ndim", "is_cuda", "requires_grad"):
                return Unknown()
            return Method(owner, name)
        if isinstance(owner, (tuple, list, dict, Shape)):
            return Method(owner, name)
        try:
            return copied_containers(getattr(owner, name))
        except Exception:  # whatever somebody's object raises
            return Unknown()

    def _attribute_of_module(self, owner: nn.Module, name: str) -> Any:
        """Return an attribute of a module: what it holds, a property's value, or a method to be called."""
        for registered in (owner._modules, owner._parameters, owner._buffers):
            if name in registered:
                value = registered[name]
                if isinstance(value, nn.Parameter) and value.ndim > 1:
                    return Weight(id(value))
                return Unknown() if isinstance(value, Tensor) else value
        if name in vars(owner):
            value = vars(owner)[name]
            return Unknown() if isinstance(value, Tensor) or name == "training" else copied_containers(value)
        function, where = method_of(owner, name)
        if isinstance(function, (property, functools.cached_property)):
            getter = function.fget if isinstance(function, property) else function.func
            source = source_of(getter) if not is_torchs(getter) else None
            if source is None:
                return Unknown()
            context = Context(file_of(getter), where, owner)
            return self.reader.call_function(source, outer_names(getter), [owner], {}, context)
        if isinstance(function, (staticmethod, classmethod)):
            return function.__func__ if isinstance(function, staticmethod) else Method(owner, name)
        if inspect.isfunction(function):
            return Method(owner, name)
        return Unknown() if function is None else copied_containers(function)

    # ------------------------------------------------------------------------------------------------------- subscripts

    def _subscript(self, owner: Any, index: Any, node: ast.Subscript) -> Any:
        """Return the value of `owner[index]`."""
        if isinstance(owner, (tuple, list, nn.ModuleList, nn.Sequential)):
            return self._item_at(owner, index)
        if isinstance(owner, (dict, nn.ModuleDict)):
            if isinstance(index, str | int) and index in owner:
                return owner[index]  # type: ignore[index]
            self.reader.escape(owner, "looked up")  # it is not known which value is taken
            return functools.reduce(agreed, owner.values()) if len(owner) else Unknown()
        if isinstance(owner, Parts):
            return self._part_at(owner, index) if isinstance(index, int) else owner
        if isinstance(owner, Shape):
            return self._size_at(owner, index)
        if isinstance(owner, Flow):
            return self._index(owner, index, node)
        if isinstance(owner, Weight):
            return self._index_weight(owner, index, node)
        return Unknown()

    def _index_weight(self, weight: Weight, index: Any, node: ast.Subscript) -> Any:
        """Return `weight[index]`: some of its rows, or a changed weight."""
        first = next((item for item in (index if isinstance(index, tuple) else (index,)) if item is not Ellipsis), None)
        if isinstance(first, slice) and first != slice(None):
            return self._weight_part(weight, slice_key(first, node.slice), node)
        if isinstance(index, int):
            return self._weight_part(weight, index, node)
        return self._changed_weight(weight, node)

    def _item_at(self, owner: Any, index: Any) -> Any:
        """Return an item or a slice of a list or a list of modules; if the index is not known, what all agree on."""
        items = list(owner.children()) if isinstance(owner, nn.Module) else owner
        if isinstance(index, slice):
            bounds = (index.start, index.stop, index.step)
            return items[index] if all(isinstance(bound, int | None) for bound in bounds) else items
        if any(isinstance(item, Rest) for item in items):
            return Unknown()
        if isinstance(index, int) and -len(items) <= index < len(items):
            return items[index]
        return functools.reduce(agreed, items) if items else Unknown()

    def _size_at(self, shape: Shape, index: Any) -> Any:
        """Return the length of an axis of a tensor, which is known for the features of one layer's whole output."""
        if isinstance(index, slice):
            return (Rest(),)
        axes = axis_count([shape.tensor])
        if isinstance(index, int) and isinstance(shape.tensor, Flow) and (shape.tensor.axes or ("",))[-1] == FEATURES:
            is_last = index == -1 or (axes is not None and index == axes - 1)
            if is_last and len(keys := {key for key, part in shape.tensor.origins if not part}) == 1:
                return self.reader.rows.get(keys.pop(), Size())
        return Size(index if isinstance(index, int) and index >= 0 else None)

    def _part_at(self, parts: Parts, index: int) -> Any:
        """Return one of the parts of a cut whose number of parts was not known."""
        if isinstance(parts, SameParts):
            return parts.flow
        if isinstance(parts, UnboundParts) and parts.flow.axes is not None:
            taken = self.reader.take_part(parts.flow, parts.axis, index, parts.where, Place(parts.where), self.context)
            return altered(taken, axes=axes_without(parts.flow.axes, parts.axis))
        return self.reader.take_part(parts.flow, parts.axis, index, parts.where, Place(parts.where), self.context)

    def _select(self, flow: Flow, axis: int, index: Any, where: Any, node: ast.AST) -> Flow:
        """Return one place along an axis, which is gone then."""
        if flow.axes is None:
            return flow
        at = axis_index(flow, axis)
        if at is None:
            return flow
        kind = flow.axes[at]
        taken = flow
        if kind in (FEATURES, SHARE) and isinstance(index, int):
            taken = self.reader.take_part(flow, at, ("at", index), "index", node, self.context)
        return altered(taken, axes=(*flow.axes[:at], *flow.axes[at + 1 :]))

    def _index(self, flow: Flow, index: Any, node: ast.Subscript) -> Flow:
        """Return `flow[index]`; slices along the feature axis are parts."""
        items = list(index) if isinstance(index, tuple) else [index]
        nodes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if flow.axes is None:
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
            elif isinstance(item, (Flow, Unknown, Size, list, tuple)):
                at += isinstance(item, (Flow, list, tuple))  # an index along this axis: what it takes is not known
                if isinstance(item, Unknown) and axis is not None and axis + 1 < len(flow.axes or ()):
                    # A number takes one place, a tensor of places or a mask leaves an axis or more.
                    flow = altered(flow, axes=(flow.axes or ())[axis + 1 :], is_open=True)
                elif not isinstance(item, (list, tuple)):
                    flow = without_axis(flow, axis)
            else:
                flow = self._select_at(flow, axis, item, span_of(node, self.context), node)
        return flow

    def _select_at(self, flow: Flow, axis: int | None, item: Any, where: Any, node: ast.AST) -> Flow:
        """Return one place along an axis that may not be known."""
        if axis is None or flow.axes is None:
            return flow if axis is None and flow.is_open and flow.axes is not None else altered(flow, axes=None)
        return self._select(flow, axis if not flow.is_open else axis - len(flow.axes), item, where, node)

    def _slice(self, flow: Flow, axis: int | None, item: slice, written: ast.expr, node: ast.AST, dim: int) -> Flow:
        """Return a slice of a tensor along one axis: a part of the output if the axis holds features."""
        bounds = (item.start, item.stop, item.step)
        if flow.axes is None or all(bound is None for bound in bounds):
            return flow
        if axis is None:  # of a linear layer's output with an unknown number of axes, counted from the front
            sure = [bound for bound in bounds[:2] if isinstance(bound, int) and bound > 1]
            known = all(isinstance(bound, int | None) for bound in bounds)
            if not (sure and known and flow.is_open and flow.axes == (FEATURES,)):
                return flow
            axis, flow = dim, with_features_at(flow, dim)
        return self.reader.take_part(flow, axis, slice_key(item, written), "slice", node, self.context)

    # ------------------------------------------------------------------------------------------------------------ calls

    def _call(self, node: ast.Call) -> Any:
        """Return the value of a call, with the number of the expression."""
        if isinstance(node.func, ast.Name) and node.func.id == "super" and "super" not in self.names:
            owner = self.context.owner
            return Unknown() if owner is None else Super(self.context.module, owner)
        callee = self._value_of(node.func)
        args = list(self._listed_values(node.args))
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self._value_of(keyword.value)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            elif isinstance(value, dict):
                kwargs |= {key: v for key, v in value.items() if isinstance(key, str)}
        result = self._call_value(callee, args, kwargs, node)
        arguments, name = [*args, *kwargs.values()], getattr(callee, "__name__", "")
        if isinstance(callee, Method):
            arguments, name = [callee.owner, *arguments], callee.name
        if isinstance(result, Unknown) and name in MERGING_VIEWS and any(t.is_stacked for t in tensors_in(arguments)):
            return Unknown(result.axes)
        if any(result is value for value in arguments) and name.strip("_") not in KEEP_NUMBERS:
            result = altered(result) if isinstance(result, Flow) else result
        return self.reader.numbered(result, "call", callee, *arguments)

    def _call_value(self, callee: Any, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
        """Return what a called value returns: a module, a method, a function of the model's code or of torch."""
        arguments = [*args, *kwargs.values()]
        if isinstance(callee, nn.Module):
            return self.reader.call_module(callee, args, kwargs, node)
        if isinstance(callee, Inner):
            return self.reader.call_function(callee.node, {**self.outer, **callee.names}, args, kwargs, callee.context)
        if isinstance(callee, Method):
            return self._call_method(callee, args, kwargs, node)
        if isinstance(callee, functools.partial):
            return self._call_value(callee.func, [*callee.args, *args], {**callee.keywords, **kwargs}, node)
        if isinstance(callee, operator.attrgetter | operator.itemgetter):
            return Unknown()
        if inspect.ismethod(callee) and isinstance(callee.__self__, nn.Module):
            return self._call_value(Method(callee.__self__, callee.__name__), args, kwargs, node)
        name, package = getattr(callee, "__name__", ""), (getattr(callee, "__module__", None) or "").partition(".")[0]
        if is_torchs(callee) or package in ("einops", "_operator"):
            self._record_write(name, args, kwargs, node)
            return self._call_torch(name.strip("_"), args, kwargs, node)
        if callee in BUILTINS or name in BUILTIN_NAMES:
            return self._call_builtin(callee, args, node)
        if isinstance(callee, type):
            self.reader.escape([arguments, list(kwargs)], "call", callee.__name__)
            return Unknown()
        matters = flows_in(arguments) or weights_in(arguments) or any(isinstance(v, nn.Module) for v in arguments)
        if inspect.isfunction(callee) and matters:
            source = source_of(callee)
            if source is not None:
                context = Context(file_of(callee))
                return self.reader.call_function(source, outer_names(callee), args, kwargs, context)
        notes = self.reader.notes_of_call(arguments, "call", name or id(callee))
        for slot, value in enumerate(arguments):
            self.reader.escape(value, "call", name or id(callee), slot)
        for weight in weights_in(arguments):
            self.reader.use_of(weight.key).escapes = True
        return Unknown(notes=notes)

    def _call_builtin(self, callee: Any, args: list[Any], node: ast.AST) -> Any:
        """Return what a function of Python's own returns."""
        name = callee.__name__
        if name in ("list", "tuple", "iter", "sorted", "reversed"):
            if not args:
                return [] if name == "list" else ()
            items = self._items_of(args[0])
            if items is None:
                return args[0] if isinstance(args[0], (Flow, Parts, Shape)) else [Rest()]
            if name == "tuple":
                return tuple(items)
            return [*reversed(items)] if name == "reversed" else list(items)
        if name in ("map", "filter"):
            if isinstance(args[1], Parts):
                mapped = self._call_value(args[0], [args[1].flow], {}, node) if name == "map" else args[1].flow
                return replace(args[1], flow=mapped) if isinstance(mapped, Flow) else Unknown()
            items = [self._items_of(arg) for arg in args[1:]]
            if any(item is None for item in items):
                self.reader.escape(args[1:], "mapped")
                return Unknown()
            rows = list(zip(*items, strict=False))
            return [
                Rest() if any(isinstance(v, Rest) for v in row) else self._call_value(args[0], list(row), {}, node)
                for row in rows
            ]
        if name == "enumerate":
            items = self._items_of(args[0])
            return Unknown() if items is None else [(i, item) for i, item in enumerate(items)]
        if name == "zip":
            lists = [self._items_of(arg) for arg in args]
            longest = max((len(items or ()) for items in lists), default=0)
            lists = [[Unknown()] * longest if items is None else items for items in lists]
            return [tuple(row) for row in zip(*lists, strict=False)]
        if name == "getattr":
            if len(args) > 1 and isinstance(args[1], str):
                return self._attribute_of(args[0], args[1])
            return Unknown()
        if name == "range":
            return range(*args) if args and all(isinstance(arg, int) for arg in args) else Unknown()
        if name == "next":
            items = self._items_of(args[0]) if args else None
            return items[0] if items else Unknown()
        if name == "sum":
            items = self._items_of(args[0]) if args else None
            flows = [item for item in items or () if isinstance(item, Flow)]
            return merged(flows, notes_in(items or ())) if flows else Unknown()
        if name == "len" and args and not isinstance(args[0], (Unknown, Flow, Shape, Parts)):
            items = self._items_of(args[0])
            return Unknown() if items is None or any(isinstance(item, Rest) for item in items) else len(items)
        if name == "isinstance" and len(args) == 2 and isinstance(args[1], (type, tuple)):
            if isinstance(args[0], (nn.Module, tuple, list, dict)):
                return isinstance(args[0], args[1])
            if isinstance(args[0], Flow):
                return issubclass(Tensor, args[1])
            return Unknown()
        are_numbers = all(isinstance(arg, (int, float)) for arg in args)
        if name in ("int", "float", "round", "abs", "min", "max", "bool") and are_numbers:
            return callee(*args) if args else Unknown()
        return Size() if any(isinstance(arg, Size) for arg in args) else Unknown()

    def _call_method(self, method: Method, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
        """Return what a method returns, by what it belongs to."""
        owner, name = method.owner, method.name
        if isinstance(owner, Super):
            return self._call_super(owner, name, args, kwargs, node)
        if isinstance(owner, nn.Module):
            return self._call_method_of_module(owner, name, args, kwargs, node)
        if isinstance(owner, list):
            return self._call_method_of_list(owner, name, args)
        if isinstance(owner, dict):
            if name in ("items", "values", "keys"):
                return list(getattr(owner, name)())
            takes_item = name in ("get", "pop") and args and isinstance(args[0], str)
            return owner.get(args[0], Unknown()) if takes_item else Unknown()
        if isinstance(owner, (Shape, tuple)):
            return Size()
        self._record_write(name, [owner, *args], kwargs, node)
        return self._call_torch(name.strip("_") or name, [owner, *args], kwargs, node)

    def _call_method_of_list(self, owner: list[Any], name: str, args: list[Any]) -> Any:
        """Do to a list what its method does, and return the method's value.

        An item whose index is not known is inserted at the front; one to pop is taken from the end.
        """
        if name == "append" and args:
            owner.append(args[0])
        elif name == "extend" and args:
            owner += self._items_of(args[0]) or [Rest()]
        elif name == "insert" and len(args) > 1:
            owner.insert(args[0] if isinstance(args[0], int) else 0, args[1])
        elif name == "pop" and owner:
            is_known = args and isinstance(args[0], int) and -len(owner) <= args[0] < len(owner)
            return owner.pop(args[0] if is_known else -1)
        return Unknown()

    def _call_super(self, owner: Super, name: str, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
        """Return what a method that was found by `super()` returns."""
        function, where = method_of(owner.owner, name, after=owner.after)
        if function is None:
            return Unknown()
        if is_torchs(function):
            return self._call_torch_forward(owner.owner, args, kwargs) if name in ("forward", "__call__") else Unknown()
        source = source_of(function)
        if source is None:
            self.reader.escape([*args, *kwargs.values()], "call", name)
            return Unknown()
        context = Context(file_of(function), where, owner.owner)
        return self.reader.call_function(source, outer_names(function), [owner.owner, *args], kwargs, context)

    def _call_torch_forward(self, module: nn.Module, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return what torch's own forward pass returns within that of a subclass; it uses the weights as always."""
        for parameter in module._parameters.values():
            if parameter is not None:
                use = self.reader.use_of(id(parameter))
                use.calls, use.multiplied, use.fused_by_torch = use.calls + 1, use.multiplied + 1, True
        self.reader.meet([*args, *kwargs.values()], "layer", id(module))
        if is_layer(module) and (weight := module._parameters.get("weight")) is not None:
            return self.reader.output_of(id(weight), module, args[0] if args else None)
        returns_pair = isinstance(module, (nn.MultiheadAttention, nn.LSTMCell, nn.RNNBase))
        return (Unknown(), Unknown()) if returns_pair else Unknown()

    def _call_method_of_module(
        self, module: nn.Module, name: str, args: list[Any], kwargs: dict[str, Any], node: ast.AST
    ) -> Any:
        """Return what a module's method returns: its forward pass, its children, or its own code's value."""
        is_list = isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential)) and is_torchs(type(module))
        if is_list and name in ("items", "named_children"):
            return list(module._modules.items())
        if is_list and name in ("values", "children", "keys"):
            return list(module._modules if name == "keys" else module._modules.values())
        if name in ("forward", "__call__"):
            return self.reader.call_module(module, args, kwargs, node)
        function, where = method_of(module, name)
        inside: list[Any] = [module]
        if isinstance(function, classmethod):
            function, inside = function.__func__, [type(module)]
        if function is None or is_torchs(function):
            self.reader.escape([*args, *kwargs.values()], "call", name)
            return Unknown()
        if not inspect.isfunction(inspect.unwrap(function)) or (source := source_of(function)) is None:
            self.reader.escape([*args, *kwargs.values()], "call", name)
            return Unknown()
        context = Context(file_of(function), where, module)
        return self.reader.call_function(source, outer_names(function), [*inside, *args], kwargs, context)

    # ----------------------------------------------------------------------------------------------- torch's operations

    def _call_torch(self, name: str, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
        """Return the result of a function of torch, or of a method of the tensor `args[0]`."""
        arguments = [*args, *kwargs.values()]
        name = OTHER_NAMES.get(name, name)
        if name == "checkpoint" and args and callable_value(args[0]):
            of_function = {k: v for k, v in kwargs.items() if k not in ("use_reentrant", "preserve_rng_state")}
            return self._call_value(args[0], args[1:], of_function, node)
        first = next(iter(arguments), None)
        if isinstance(first, Weight) and not flows_in(arguments) and name not in PRODUCTS:
            return self._weight_operation(name, first, args[1:], kwargs, node)
        if name in PRODUCTS:
            return self._product(name, arguments, node)
        if name == "size" and not args[1:] and not kwargs:
            return Shape(first)
        if name == "size" and args[1:]:
            return self._size_at(Shape(first), args[1])
        if name in ("add", "sub", "mul", "div", "true_divide", "lerp", "addcmul", "hadamard", "addcdiv"):
            if any(isinstance(value, Weight) for value in arguments):
                for weight in weights_in(arguments):
                    self._change_weight(weight, node)
            return self._arithmetic(name, arguments, node)
        if isinstance(first, Unknown) and name in KEEP_NUMBERS:
            return first
        if not flows_in(arguments) and not (name in JOINS and notes_in(arguments)):
            if name in ASK_SIZES:
                return Size()
            return Unknown(axis_count(arguments[:1]) if name in KEEP_FEATURES else None)
        if name in ASK_SIZES:
            return Size()
        if name == "complex":  # real and imaginary parts are one vector of complex numbers
            return self._put_together(arguments[:2], True, is_stack=False)
        if name in JOINS:
            return self._join_tensors(name, args, kwargs)
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
            return self._cut_in_parts(name, first, args[1:], kwargs, node)
        if name in ("narrow", "select", "index_select", "narrow_copy", "slice"):
            return self._narrow(name, first, args[1:], kwargs, node)
        if name in VIEWS:
            return viewed(name, first, args[1:], kwargs, self._feature_count(first))
        if name in KEEP_FEATURES:
            return first
        operation = (name, kwargs.get("dim", args[1] if len(args) > 1 and isinstance(args[1], int) else None))
        leaves_features, is_single = is_elementwise(name), len(flows_in(arguments)) == 1
        note = self.reader.pass_through if leaves_features and is_single else self.reader.meet
        for slot, value in enumerate(arguments):
            if isinstance(value, Flow):
                note(value, *operation, *([] if is_single else [span_of(node, self.context), slot]))
        beside = [self.reader.number(value) for value in arguments if value is not first and is_tensor(value)]
        if beside:
            first = self.reader.noted(first, name, *beside)
        first = with_step(first, name)
        return altered(first) if leaves_features else tensor_of_unknown_axes(first)

    def _arithmetic(self, name: str, arguments: list[Any], node: ast.AST) -> Any:
        """Return a sum or product that is called as a function: of two tensors, in `addcmul` and the like of three."""

        def combined(op: ast.operator, *values: Any) -> Any:
            """Return what the operator gives for these values."""
            if any(isinstance(value, Flow) for value in values):
                result = self._combined(op, [*values], node)
            else:
                result = Unknown(axis_count(values))
            return self._renumbered(result, type(op).__name__, *values)

        if name in ("addcmul", "addcdiv") and len(arguments) > 2:
            product = combined(ast.Mult() if name == "addcmul" else ast.Div(), *arguments[1:3])
            return combined(ast.Add(), arguments[0], product)
        if name == "lerp" and len(arguments) > 2:  # begin + weight * (end - begin)
            step = combined(ast.Mult(), combined(ast.Sub(), arguments[1], arguments[0]), arguments[2])
            return combined(ast.Add(), arguments[0], step)
        op = {"add": ast.Add(), "sub": ast.Sub(), "div": ast.Div(), "true_divide": ast.Div()}.get(name, ast.Mult())
        return combined(op, *arguments[:2])

    def _weight_operation(
        self, name: str, weight: Weight, args: list[Any], kwargs: dict[str, Any], node: ast.AST
    ) -> Any:
        """Return a weight after a function of torch: the same, cut into parts of its rows, or changed."""
        changes = {"neg", "masked_fill", "div", "true_divide", "roll", "pad", "flip", "sub", "dropout"}
        if name == "clone":
            return replace(weight, is_copy=True)
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
                return [self._changed_weight(weight, node)] * number
            return [self._weight_part(weight, i, node) for i in range(number)]
        if name in ASK_SIZES or name in ("shape", "dim"):
            return Size()
        return self._changed_weight(weight, node)

    def _weight_part(self, weight: Weight, which: Any, node: ast.AST) -> Weight:
        """Return some rows of a weight, with the place where they are taken."""
        part = (*weight.part, ("rows", which))
        use = self.reader.use_of(weight.key)
        line, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
        use.lines.setdefault(part, place(self.context.filename, line))
        use.spans.setdefault(part, (self.context.filename, line, last))
        return replace(weight, part=part)

    def _change_weight(self, weight: Weight, node: ast.AST) -> None:
        """Record that a weight is changed number by number before it is multiplied."""
        use = self.reader.use_of(weight.key)
        use.changed = use.changed or weight.changed or place(self.context.filename, getattr(node, "lineno", 0))

    def _product(self, name: str, arguments: list[Any], node: ast.AST) -> Any:
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
            if weight.changed:
                use.changed = use.changed or weight.changed
            else:
                use.multiplied += 1
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

    def _join_tensors(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return the result of `cat`, `stack` and the like: parts put together again are one output."""
        arguments = [*args, *kwargs.values()]
        if name == "where":
            for slot, value in enumerate(arguments):
                self.reader.pass_through(value, "where", slot)
            return merged(flows_in(arguments), notes_in(arguments)) if flows_in(arguments) else Unknown()
        pieces = self._items_of(arguments[0]) or [arguments[0]]
        dim = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else JOIN_AXES.get(name, 0)))
        flow = next(iter(flows_in(pieces)), None)
        is_along = is_feature_axis(flow, dim)
        if name == "stack":  # along a new axis; where that is one of the last two, a view can join the features again
            is_along = True if dim in (-1, -2) else None
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
        notes, flows = notes_in(pieces), flows_in(pieces)
        is_complete = all(is_complete_output(key, pieces, is_along) for key in {note.key for note in notes})
        if is_complete and not is_stack:
            notes = frozenset()
        if not flows:
            stacked = Unknown(notes=notes, number=self.reader.number(["joined", is_stack, *pieces]))
            stacked.is_stacked = is_complete and is_stack
            return stacked
        return replace(merged(flows), notes=notes, is_stacked=is_complete and is_stack)

    def _cut_in_parts(self, name: str, flow: Flow, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
        """Return the parts that `chunk`, `split` or a similar function cuts a tensor into."""
        plain = {"unbind": 0, "hsplit": 1, "dsplit": 2, "vsplit": 0}
        if name == "unbind":
            dim = kwargs.get("dim", args[0] if args else 0)
            sections = None
        else:
            sections = args[0] if args else next((kwargs[k] for k in SECTIONS if k in kwargs), None)
            dim = plain.get(name, kwargs.get("dim", args[1] if len(args) > 1 else 0))
        axis = axis_index(flow, dim) if isinstance(dim, int) else None
        if axis is None and isinstance(dim, int) and dim > 0 and flow.is_open and flow.axes == (FEATURES,):
            sure = isinstance(sections, int) if name.endswith(("chunk", "tensor_split")) else all_ints(sections)
            if sure or dim > 1:
                axis, flow = dim, with_features_at(flow, dim)
        if flow.axes is None or axis is None:
            return SameParts(flow) if not isinstance(sections, (tuple, list)) else [flow] * len(sections)
        where = span_of(node, self.context)
        piece = altered(flow, axes=axes_without(flow.axes, axis)) if name == "unbind" else flow
        kind = flow.axes[axis]
        number = sections if isinstance(sections, int) and name.endswith(("chunk", "tensor_split")) else None
        if isinstance(sections, (tuple, list)) and not any(isinstance(s, Rest) for s in sections):
            number = len(sections) + name.endswith("tensor_split")
        if kind in (OTHER, MIXED):
            return [piece] * number if number is not None else SameParts(piece)
        parts = Parts(flow, where, axis) if name != "unbind" else UnboundParts(flow, where, axis)
        return [self._part_at(parts, i) for i in range(number)] if number is not None else parts

    def _narrow(self, name: str, flow: Flow, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Flow:
        """Return the result of `narrow`, `select` or a similar function: one part along an axis."""
        dim = kwargs.get("dim", args[0] if args else 0)
        axis = axis_index(flow, dim) if isinstance(dim, int) else None
        if axis is None or flow.axes is None:
            return flow
        if name == "select":
            index = args[1] if len(args) > 1 else kwargs.get("index")
            return self._select_at(flow, axis, index, span_of(node, self.context), node)
        if name == "index_select":
            index = args[1] if len(args) > 1 else kwargs.get("index")
            return self.reader.take_part(flow, axis, ("index", self.reader.number(index)), "slice", node, self.context)
        which = tuple(str(plain_or_type(value)) for value in args[1:] or kwargs.values())
        return self.reader.take_part(flow, axis, which, "slice", node, self.context)

    def _feature_count(self, flow: Flow) -> int | None:
        """Return the number of features of a whole output of one layer; None for a part, or if it is not known."""
        keys = {key for key, part in flow.origins}
        parts = [part for _, part in flow.origins if part]
        return self.reader.rows.get(keys.pop()) if len(keys) == 1 and not parts else None


def _is_item_pair(pair: Any) -> bool:
    """Return whether a value is the key and the value of a mapping's item."""
    return isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], (str, int))


def _holds_module(value: Any) -> bool:
    """Return whether a tuple or list holds a module."""
    return isinstance(value, (tuple, list)) and any(isinstance(item, nn.Module) for item in value)


def _truth_of(value: Any) -> bool | None:
    """Return whether a condition is true; None if that is not known."""
    return bool(value) if isinstance(value, (int, float, str, type(None))) else None


def slice_key(item: slice, written: ast.AST) -> tuple[Any, ...]:
    """Return which part a slice takes: its bounds as numbers, or as the source writes them."""
    bounds = (item.start, item.stop, item.step)
    if all(isinstance(bound, int | None) for bound in bounds):
        return bounds
    return ("written", ast.unparse(written))


def span_of(node: ast.AST, context: Context) -> tuple[Any, ...]:
    """Return the place of a syntax node: (file, first line, column, last line)."""
    line = getattr(node, "lineno", 0)
    return (context.filename, line, getattr(node, "col_offset", 0), getattr(node, "end_lineno", line))
