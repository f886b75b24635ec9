"""Reads one function of a model's code as Python would run it, with values that stand for tensors."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fire_core.weights.axes import axis_count, is_along_features, viewed
from fire_core.weights.flows import (
    OTHER,
    PLAIN_TYPES,
    BoundMethod,
    Flow,
    FunctionContext,
    Inner,
    Instance,
    Mapped,
    Partial,
    Parts,
    Rest,
    Shape,
    Size,
    Super,
    Unknown,
    Weight,
    agreed,
    altered,
    as_sample,
    callable_value,
    copied_containers,
    flows_in,
    is_tensor,
    notes_in,
    tensors_in,
    weights_in,
)
from fire_core.weights.method_calls import MethodCalls, is_distribution
from fire_core.weights.python_calls import GETTERS, PythonCalls, is_pythons, truth_of
from fire_core.weights.syntax_trees import (
    Function,
    attribute_or,
    file_of,
    is_foreign_operator,
    is_torchs,
    method_of,
    outer_names,
    python_of,
    source_of,
)
from fire_core.weights.tensor_functions import KEEP_NUMBERS, MERGING_VIEWS, OTHER_NAMES
from fire_core.weights.tensor_operations import MOST_TURNS, TensorOperations
from fire_core.weights.topology import is_layer
from fire_core.weights.weight_operations import turned, writes_in_place

if TYPE_CHECKING:
    from fire_core.weights.source import SourceReader

MOST_PLAIN_ITEMS = 64  # of a range, or of a list that is repeated
BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip


class WithAttributes(dict[Any, Any]):
    """A mapping of a class of its own, such as the outputs of transformers, whose values are attributes too."""


class FunctionReading:
    """The reading of one call of one function, with the values of its variables."""

    def __init__(
        self,
        reader: SourceReader,
        node: Function,
        outer: Mapping[str, Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        context: FunctionContext,
    ) -> None:
        self.reader, self.node, self.outer, self.context = reader, node, outer, context
        self.names: dict[str, Any] = {}
        self.written: dict[str, list[Any]] = {}  # from a variable's name to what was written into its tensor
        self.returned: list[Any] = []
        self.yielded: list[Any] = []
        self.tensors = TensorOperations(reader, context)
        self.parts, self.weights = self.tensors.parts, self.tensors.weights
        self.pythons = PythonCalls(self)
        self.methods = MethodCalls(self)
        self._bind_arguments(node.args, list(args), dict(kwargs))

    def _bind_arguments(self, spec: ast.arguments, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Give the function's parameters their values: arguments, defaults, and unknown values for the others."""
        names = [argument.arg for argument in (*spec.posonlyargs, *spec.args)]
        if any(isinstance(value, Rest) for value in args):
            known = next(i for i, value in enumerate(args) if isinstance(value, Rest))
            self.reader.escape(args[known:], "call")  # it is not known which parameters get these
            args = args[:known]
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
        if self.yielded:
            return self.yielded
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
                    self.weights.overwrite(before, node)
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
                for value in self._loop_values(self._value_of(node.iter), node):
                    self._assign(node.target, value, node)
                    self._run(node.body)
                self._run(node.orelse)
            case ast.While():
                if truth_of(self._value_of(node.test)) is not False:
                    self._run(node.body)
                self._run(node.orelse)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    manager = self._value_of(item.context_expr)
                    if item.optional_vars is not None:  # what the manager gives is not followed
                        self.reader.escape(manager, "entered")
                        self._assign(item.optional_vars, Unknown(), node)
                return self._run(node.body)
            case ast.Try() | ast.TryStar():
                return self._run_try(node)
            case ast.Match():
                return self._run_match(node)
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
            if isinstance(node, ast.ImportFrom):
                package = str(self.outer.get("__package__") or "").split(".")
                beginning = package[: len(package) - node.level + 1] if node.level else []
                home = sys.modules.get(".".join([*beginning, *([node.module] if node.module else [])]))
                name, value = alias.asname or alias.name, getattr(home, alias.name, None)
            else:  # `import a.b` gives the name a, `import a.b as c` the module a.b
                name = alias.asname or alias.name.partition(".")[0]
                value = sys.modules.get(alias.name if alias.asname else name)
            self.names[name] = Unknown() if value is None else value

    def _run_branch(self, node: ast.If) -> bool:
        """Read an `if`: the branch that is taken, or both where the test is not known."""
        test = self._value_of(node.test)
        if (known := truth_of(test)) is not None:
            return self._run(node.body if known else node.orelse)
        return self._run_alternatives([functools.partial(self._run, body) for body in (node.body, node.orelse)])

    def _run_alternatives(self, branches: Sequence[Callable[[], bool]]) -> bool:
        """Read branches of which one is taken, and return whether the function certainly ends in each.

        Each begins with the variables as they are now. After them a variable holds what the branches that do not end
        the function agree on.
        """
        before = self.names
        ways_out = []
        for run in branches:
            self.names = dict(before)
            if not run():
                ways_out.append(self.names)
        after = functools.reduce(self._joined, ways_out) if ways_out else self.names
        self.names = before
        self._set_names(after)
        return not ways_out

    def _set_names(self, names: dict[str, Any]) -> None:
        """Give the variables other values, in the same mapping, which functions defined within this one see."""
        new = dict(names)
        self.names.clear()
        self.names.update(new)

    def _joined(self, first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
        """Return what the variables hold after one of two branches."""
        names = {**first, **second}
        for name in first.keys() & second.keys():
            names[name] = self._after_either(first[name], second[name])
        return names

    def _run_try(self, node: ast.Try | ast.TryStar) -> bool:
        """Read a `try`: its body to the end, or one of its handlers, which may begin at each statement of the body."""
        states, body_ends = [], False
        for statement in node.body:
            states.append(dict(self.names))  # a statement that raises an error assigns nothing
            body_ends = body_ends or self._run_statement(statement)
        at_error = functools.reduce(self._joined, states)

        def without_error() -> bool:
            return body_ends or self._run(node.orelse)

        def handled(handler: ast.ExceptHandler) -> bool:
            self.names = {**at_error, **({handler.name: Unknown()} if handler.name else {})}
            return self._run(handler.body)

        ends = self._run_alternatives([without_error, *(functools.partial(handled, h) for h in node.handlers)])
        return self._run(node.finalbody) or ends

    def _run_match(self, node: ast.Match) -> bool:
        """Read a `match`: the case that is taken, or all that may be."""
        subject = self._value_of(node.subject)
        branches: list[Callable[[], bool]] = []

        def taken(case: ast.match_case) -> bool:
            for pattern in ast.walk(case.pattern):
                if isinstance(pattern, (ast.MatchAs, ast.MatchStar)) and pattern.name:
                    self.names[pattern.name] = subject if pattern is case.pattern else Unknown()
                    if pattern is not case.pattern:  # it is not known which part of the subject this is
                        self.reader.escape(subject, "matched")
            if case.guard is not None:
                self._value_of(case.guard)
            return self._run(case.body)

        for case in node.cases:
            fits = self._fits(case.pattern, subject)
            fits = None if fits and case.guard is not None else fits
            if fits is not False:
                branches.append(functools.partial(taken, case))
            if fits:
                break
        else:
            branches.append(lambda: False)  # no case fits
        return self._run_alternatives(branches)

    def _fits(self, pattern: ast.pattern, subject: Any) -> bool | None:
        """Return whether the pattern of a case fits the subject of a `match`; None if that is not known."""
        if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
            return True
        if isinstance(pattern, ast.MatchOr):
            fits = [self._fits(part, subject) for part in pattern.patterns]
            return True if True in fits else None if None in fits else False
        if isinstance(subject, PLAIN_TYPES) and isinstance(pattern, (ast.MatchValue, ast.MatchSingleton)):
            value = pattern.value if isinstance(pattern, ast.MatchSingleton) else self._value_of(pattern.value)
            return bool(subject == value) if isinstance(value, PLAIN_TYPES) else None
        return None

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

    def _loop_values(self, value: Any, node: ast.AST) -> list[Any]:
        """Return the values for which the body of a loop is read."""
        if isinstance(value, Instance):
            value = self.methods.call(BoundMethod(value, "__iter__"), [], {}, node)
        if isinstance(value, Flow):  # its places along the first axis
            turns = MOST_TURNS if value.axes is not None and value.axes[:1] != (OTHER,) and not value.is_open else 1
            return [self.parts.select(value, 0, turn, node) for turn in range(turns)]
        items = self.items_of(value)
        if items is None:
            self.reader.escape(value, "iterated")
            return [Unknown()]
        known = [item for item in items if not isinstance(item, Rest)]
        if any(isinstance(item, nn.Module) or _holds_module(item) for item in known):
            return known
        if known or not items:
            return known[:MOST_TURNS]
        return [Unknown()]

    def items_of(self, value: Any, count: int | None = None, node: ast.AST | None = None) -> list[Any] | None:
        """Return the items of a value that is iterated over or unpacked; None if they are not known."""
        if isinstance(value, (tuple, list)):
            return list(value)
        if isinstance(value, (nn.ModuleList, nn.Sequential)):
            return list(value.children())
        if isinstance(value, (dict, nn.ModuleDict)):
            return list(value.keys())
        if isinstance(value, (range, str)):
            return list(itertools.islice(value, MOST_PLAIN_ITEMS))
        if isinstance(value, Parts):
            return [self.parts.part_at(value, i) for i in range(count or MOST_TURNS)]
        if isinstance(value, Flow) and node is not None and count is not None:
            return [self.parts.select(value, 0, i, node) for i in range(count)]
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
                self.weights.overwrite(base, node)
                if isinstance(base, Weight) and isinstance(target.value, ast.Name):  # `w = weight.clone(); w[i] = 0`
                    self.names[target.value.id] = self.weights.changed(base, node)
                    return
                if isinstance(base, (list, dict)) and isinstance(key := self._value_of(target.slice), (int, str)):
                    if isinstance(base, dict) or -len(base) <= int(key) < len(base):
                        base[key] = value  # type: ignore[index]
                    if not isinstance(target.value, ast.Name):
                        self.reader.escape(value, "stored", key)
                elif isinstance(target.value, ast.Name) and is_tensor(value):
                    self._write_part(target.value.id, base, target, value)
                else:
                    self.reader.escape(value, "stored")
            case ast.Attribute() if isinstance(made := self._named_value(target.value), Instance):
                made.attributes[target.attr] = value
            case ast.Attribute():
                self.reader.escape(value, "stored", target.attr)
                if not any(isinstance(part, ast.Call) for part in ast.walk(target)):  # which is not to be read twice
                    before = self._value_of(target)
                    is_same_weight = isinstance(value, Weight) and value == before  # `w.data = w.data.to(device)`
                    if not is_same_weight:
                        self.weights.overwrite(before, node)

    def _named_value(self, node: ast.expr) -> Any:
        """Return the value of a variable; an unknown one for any other expression."""
        return self.names.get(node.id, Unknown()) if isinstance(node, ast.Name) else Unknown()

    def _write_part(self, name: str, base: Any, target: ast.Subscript, value: Any) -> None:
        """Read `out[..., :n] = part`: what is written to a tensor part by part is put together there."""
        pieces = self.written.setdefault(name, [])
        pieces.append(value)
        if isinstance(base, Flow) and len(pieces) == 1:
            pieces.insert(0, base)
        elif not flows_in(pieces) and not notes_in(pieces):
            return
        index = self._value_of(target.slice)
        self.names[name] = self.tensors.put_together(pieces, is_along_features(index, value), is_stack=True)

    def _unpack(self, targets: Sequence[ast.expr], value: Any, node: ast.AST) -> None:
        """Assign the items of a value to several targets, one of which may be starred."""
        starred = next((i for i, target in enumerate(targets) if isinstance(target, ast.Starred)), None)
        items = self.items_of(value, len(targets), getattr(node, "value", node))
        if items is None and starred is None and isinstance(value, Unknown):
            items = self.reader.unknown_items(value, len(targets))
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
                return self.reader.numbered(self.attribute_of(owner, node.attr), "attribute", owner, node.attr)
            case ast.Call():
                return self._call(node)
            case ast.Subscript():
                owner, index = self._value_of(node.value), self._value_of(node.slice)
                return self.reader.numbered(self.subscript(owner, index, node), "item", owner, index)
            case ast.Tuple() | ast.List():
                return (tuple if isinstance(node, ast.Tuple) else list)(self._listed_values(node.elts))
            case ast.Dict():
                keys = [None if key is None else self._value_of(key) for key in node.keys]
                values = [self._value_of(value) for value in node.values]
                items: dict[Any, Any] = {}
                for key, value in zip(keys, values, strict=True):
                    if key is None and isinstance(value, dict):  # `**value`
                        items |= value
                    elif isinstance(key, (str, int)):
                        items[key] = value
                return items
            case ast.BinOp():
                left, right = self._value_of(node.left), self._value_of(node.right)
                value = self._binary_value(node.op, left, right, node)
                return self.tensors.renumbered(value, type(node.op).__name__, left, right)
            case ast.JoinedStr():
                return self._joined_text(node)
            case ast.UnaryOp():
                return self._unary_value(node)
            case ast.BoolOp():
                return self._either_operand(node)
            case ast.Compare():
                return self._compare_values(node)
            case ast.IfExp():
                known = truth_of(self._value_of(node.test))
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
            case ast.Yield(value=ast.expr() as value):
                self.yielded.append(self._value_of(value))
                return Unknown()
            case ast.YieldFrom():
                self.yielded += self._loop_values(self._value_of(node.value), node)
                return Unknown()
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
            items = self.items_of(value)
            if items is None and isinstance(value, (Flow, Parts)):
                items = self.items_of(value, 3, node.value)
            yield from [Rest()] if items is None else items

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
            known = self.items_of(items)
            for item in self._loop_values(items, node):
                self._assign(generators[0].target, item, node)
                if all(truth_of(self._value_of(test)) is not False for test in generators[0].ifs):
                    turn(generators[1:])
            if known is None:
                results.append(Rest())

        turn(loops)
        self._set_names(before)
        return results

    def _either_operand(self, node: ast.BoolOp) -> Any:
        """Return the value of `a and b` or `a or b`: the operand that decides it, or what those agree on that may."""
        decides = isinstance(node.op, ast.Or)
        possible = []
        for operand in node.values:
            value = self._value_of(operand)
            truth = truth_of(value)
            if truth is None or truth == decides or operand is node.values[-1]:
                possible.append(value)
            if truth == decides:
                break
        return functools.reduce(self._after_either, possible)

    def _compare_values(self, node: ast.Compare) -> Any:
        """Return the value of a comparison: known for two plain values and for `is None`, else unknown."""
        values = [self._value_of(node.left), *map(self._value_of, node.comparators)]
        asks_identity = isinstance(node.ops[0], (ast.Is, ast.IsNot))
        if len(values) == 2 and isinstance(node.ops[0], (ast.In, ast.NotIn)) and _are_plain(values[0], values[1]):
            return (values[0] in values[1]) == isinstance(node.ops[0], ast.In)
        if all(isinstance(value, PLAIN_TYPES) for value in values) and all(type(op) in COMPARE for op in node.ops):
            try:
                steps = zip(node.ops, itertools.pairwise(values), strict=True)
                return all(COMPARE[type(op)](*pair) for op, pair in steps)
            except TypeError:
                return Unknown()
        if asks_identity and values[1] is None and isinstance(values[0], (Flow, nn.Module)):
            return isinstance(node.ops[0], ast.IsNot)
        if not asks_identity and not isinstance(node.ops[0], (ast.In, ast.NotIn)):
            for slot, value in enumerate(values):
                self.reader.meet(value, type(node.ops[0]).__name__, slot)
        return self.reader.numbered(Unknown(axis_count(values)), type(node.ops[0]).__name__, *values)

    def _joined_text(self, node: ast.JoinedStr) -> Any:
        """Return the text of an f-string, if all values in it are known."""
        texts = []
        for piece in node.values:
            value = self._value_of(piece.value if isinstance(piece, ast.FormattedValue) else piece)
            if not isinstance(value, PLAIN_TYPES) or (isinstance(piece, ast.FormattedValue) and piece.conversion != -1):
                return Unknown()
            form = getattr(piece, "format_spec", None)
            form = "" if form is None else self._joined_text(form)
            try:
                texts.append(format(value, form))
            except (TypeError, ValueError):
                return Unknown()
        return "".join(texts)

    def _unary_value(self, node: ast.UnaryOp) -> Any:
        """Return the value of `-x`, `not x` and the like."""
        value = self._value_of(node.operand)
        if isinstance(node.op, ast.Not) and isinstance(value, (str, type(None))):
            return not value
        if isinstance(value, (int, float)):
            known: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Not: operator.not_}
            return known[type(node.op)](value) if type(node.op) in known else value
        if isinstance(value, Flow):
            return value
        return self.reader.numbered(self.weights.changed(value, node), type(node.op).__name__, value)

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
            return left * min(right, MOST_PLAIN_ITEMS)
        if isinstance(op, ast.MatMult):
            return self.tensors.product("matmul", values, node)
        flows = [value for value in values if isinstance(value, Flow)]
        weights = [value for value in values if isinstance(value, Weight)]
        if weights and not flows:
            if len(weights) > 1:  # a weight and its gains, two factors: each is changed by the other
                for weight in weights:
                    self.weights.change(weight, node)
            return self.weights.changed(weights[0], node)
        if not flows:
            sizes = any(isinstance(value, Size) for value in values)
            return Size() if sizes else Unknown(axis_count(values))
        return self.tensors.combine(op, values, node)

    # ------------------------------------------------------------------------------------------------------ attributes

    def attribute_of(self, owner: Any, name: str) -> Any:
        """Return the value of an attribute of any value that the reading knows."""
        if isinstance(owner, nn.Module):
            return self._attribute_of_module(owner, name)
        if isinstance(owner, Super):
            return BoundMethod(owner, name)
        if isinstance(owner, Instance):
            return self.methods.attribute_of_instance(owner, name)
        if isinstance(owner, (Flow, Unknown, Weight, Parts, Size)):
            if name == "shape":
                return Shape(owner)
            if name in ("mT", "T", "mH", "H") and isinstance(owner, Flow):
                return viewed("t", owner, (), {}, None) if name in "TH" else viewed("mT", owner, (-2, -1), {}, None)
            if name in ("mT", "T", "mH", "H") and isinstance(owner, Weight):
                return turned(owner)
            if name in ("mT", "T", "mH", "H", "data", "real", "imag", "values"):
                return owner
            if name in ("dtype", "device", "ndim", "is_cuda", "requires_grad"):
                return Unknown()
            return BoundMethod(owner, name)
        if isinstance(owner, tuple) and len(owner) == 2 and name in ("values", "indices"):  # of `x.max(1)` and the like
            return owner[name == "indices"]
        if isinstance(owner, dict) and type(owner) is not dict and name in owner:  # an AttrDict
            return owner[name]
        if isinstance(owner, (tuple, list, dict, Shape)):
            return BoundMethod(owner, name)
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
                if not isinstance(value, Tensor):
                    return value
                return Unknown(is_constant=True, is_scalar=not is_lazy(value) and value.numel() == 1)
        if name in vars(owner):
            value = vars(owner)[name]
            return Unknown() if isinstance(value, Tensor) or name == "training" else copied_containers(value)
        function, where = method_of(owner, name)
        if isinstance(function, (property, functools.cached_property)):
            getter = function.fget if isinstance(function, property) else function.func
            source = source_of(getter) if not is_torchs(getter) else None
            if source is None:
                return Unknown()
            context = FunctionContext(file_of(getter), where, owner)
            return self.reader.call_function(source, outer_names(getter), [owner], {}, context)
        if isinstance(function, (staticmethod, classmethod)):
            return function.__func__ if isinstance(function, staticmethod) else BoundMethod(owner, name)
        if inspect.isfunction(function):
            return BoundMethod(owner, name)
        return Unknown() if function is None else copied_containers(function)

    # ------------------------------------------------------------------------------------------------------- subscripts

    def subscript(self, owner: Any, index: Any, node: ast.Subscript) -> Any:
        """Return the value of `owner[index]`."""
        if isinstance(owner, (tuple, list, nn.ModuleList, nn.Sequential)):
            return self._item_at(owner, index)
        if isinstance(owner, (dict, nn.ModuleDict)):
            if isinstance(index, str | int) and index in owner:
                return owner[index]  # type: ignore[index]
            self.reader.escape(owner, "looked up")  # it is not known which value is taken
            return functools.reduce(agreed, owner.values()) if len(owner) else Unknown()
        if isinstance(owner, Parts):
            return self.parts.part_at(owner, index) if isinstance(index, int) else owner
        if isinstance(owner, Shape):
            return self.parts.size_at(owner, index)
        if isinstance(owner, Flow):
            return self.parts.index(owner, index, node)
        if isinstance(owner, Weight):
            return self.weights.index(owner, index, node)
        if isinstance(owner, Instance):
            return self.methods.call(BoundMethod(owner, "__getitem__"), [index], {}, node)
        return Unknown()

    def _item_at(self, owner: Any, index: Any) -> Any:
        """Return an item or a slice of a list or a list of modules; if the index is not known, what all agree on."""
        items = list(owner.children()) if isinstance(owner, nn.Module) else owner
        if isinstance(index, slice):
            bounds = (index.start, index.stop, index.step)
            return items[index] if all(isinstance(bound, int | None) for bound in bounds) else items
        if any(isinstance(item, Rest) for item in items):  # how many items there are is not known
            items, index = [item for item in items if not isinstance(item, Rest)], None
        if isinstance(index, int) and -len(items) <= index < len(items):
            return items[index]
        return functools.reduce(agreed, items) if items else Unknown()

    # ------------------------------------------------------------------------------------------------------------ calls

    def _call(self, node: ast.Call) -> Any:
        """Return the value of a call, with the number of the expression."""
        if isinstance(node.func, ast.Name) and node.func.id == "super" and "super" not in self.names:
            defining_class = self.context.defining_class
            return Unknown() if defining_class is None else Super(self.context.module, defining_class)
        callee = self._value_of(node.func)
        args = list(self._listed_values(node.args))
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self._value_of(keyword.value)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            elif isinstance(value, dict):
                kwargs |= {key: v for key, v in value.items() if isinstance(key, str)}
        result = self.call_value(callee, args, kwargs, node)
        self._note_write_to_copy(node, callee)
        arguments, name = [*args, *kwargs.values()], attribute_or(callee, "__name__")
        if isinstance(callee, BoundMethod):
            arguments, name = [callee.instance, *arguments], callee.name
        if isinstance(result, Unknown) and name in MERGING_VIEWS and any(t.is_stacked for t in tensors_in(arguments)):
            return Unknown(result.axes)
        if any(result is value for value in arguments) and name.strip("_") not in KEEP_NUMBERS:
            result = altered(result) if isinstance(result, Flow) else result
        value = self.reader.numbered(result, "call", callee, *arguments)
        if isinstance(callee, nn.Module) and isinstance(value, Flow) and is_layer(callee):
            self.reader.fresh.add(value.number)
        return value

    def _note_write_to_copy(self, node: ast.Call, callee: Any) -> None:
        """Let a variable that holds a weight, or its copy, hold a changed one after a method such as `w.clamp_()`."""
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        is_method = isinstance(callee, BoundMethod) and isinstance(callee.instance, Weight)
        if is_method and isinstance(owner, ast.Name) and writes_in_place(callee.name):
            self.names[owner.id] = self.weights.changed(callee.instance, node)

    def call_value(self, callee: Any, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
        """Return what a called value returns: a module, a method, a function of the model's code or of torch."""
        arguments = [*args, *kwargs.values()]
        if isinstance(callee, nn.Module):
            return self.reader.call_module(callee, args, kwargs, node)
        if isinstance(callee, Inner):
            return self.reader.call_function(callee.node, {**self.outer, **callee.names}, args, kwargs, callee.context)
        if isinstance(callee, BoundMethod):
            return self.methods.call(callee, args, kwargs, node)
        if isinstance(callee, functools.partial):
            return self.call_value(callee.func, [*callee.args, *args], {**callee.keywords, **kwargs}, node)
        if isinstance(callee, Partial):
            return self.call_value(callee.function, [*callee.args, *args], {**callee.kwargs, **kwargs}, node)
        if isinstance(callee, Mapped):
            result = self.call_value(callee.function, [as_sample(arg, True) for arg in args], kwargs, node)
            return as_sample(result, False)
        if isinstance(callee, GETTERS):
            return self.pythons.call_getter(callee, args, node)
        if inspect.ismethod(callee) and isinstance(callee.__self__, nn.Module):
            return self.call_value(BoundMethod(callee.__self__, callee.__name__), args, kwargs, node)
        if isinstance(callee, Instance):
            return self.methods.call(BoundMethod(callee, "__call__"), args, kwargs, node)
        if is_distribution(callee) and flows_in(arguments):
            return self.methods.distribution_of(callee, args, kwargs, node)
        function, before = python_of(callee)
        if function is not None and (source := source_of(function)) is not None:
            args = [*[Unknown()] * before, *args]
            return self.reader.call_function(
                source, outer_names(function), args, kwargs, FunctionContext(file_of(function))
            )
        name, package = (
            attribute_or(callee, "__name__"),
            str(attribute_or(callee, "__module__") or "").partition(".")[0],
        )
        is_of_torch = is_torchs(callee) and not is_foreign_operator(callee) and (function is None)
        if is_of_torch or package in ("einops", "_operator"):
            self.weights.record_write(name, args, kwargs, node)
            return self.call_torch(name.strip("_"), args, kwargs, node)
        if is_pythons(callee):
            return self.pythons.call(callee, args, kwargs, node)
        if callee is functools.partial and args:
            return Partial(args[0], tuple(args[1:]), kwargs)
        if callee in GETTERS and all(isinstance(arg, PLAIN_TYPES) for arg in args):
            return callee(*args)
        if isinstance(callee, type) and issubclass(callee, dict) and (items := _mapping_of(*args[:1])) is not None:
            return WithAttributes({**items, **kwargs})
        if isinstance(callee, type):
            for weight in weights_in(arguments):
                self.reader.use_of(weight.key).escapes = self.reader.use_of(weight.key).is_lost = True
            if flows_in(arguments) and (made := self.methods.instance_of(callee, args, kwargs)) is not None:
                return made
            self.reader.escape([arguments, list(kwargs)], "call", callee.__name__)
            return Unknown()
        matters = flows_in(arguments) or weights_in(arguments) or any(isinstance(v, nn.Module) for v in arguments)
        if inspect.isfunction(callee) and matters:
            source = source_of(callee)
            if source is not None:
                context = FunctionContext(file_of(callee))
                return self.reader.call_function(source, outer_names(callee), args, kwargs, context)
        notes = self.reader.notes_of_call(arguments, "call", name or id(callee))
        for slot, value in enumerate(arguments):
            self.reader.escape(value, "call", name or id(callee), slot)
        for weight in weights_in(arguments):
            use = self.reader.use_of(weight.key)
            use.escapes = use.is_lost = True
        return Unknown(notes=notes)

    def call_torch(self, name: str, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
        """Return the result of a function of torch, or of a method of the tensor `args[0]`."""
        name = OTHER_NAMES.get(name, name)
        if name == "checkpoint" and args and callable_value(args[0]):
            of_function = {k: v for k, v in kwargs.items() if k not in ("use_reentrant", "preserve_rng_state")}
            return self.call_value(args[0], args[1:], of_function, node)
        if name == "functional_call" and args and isinstance(args[0], nn.Module):
            given = args[1] if len(args) > 1 else kwargs.get("parameter_and_buffer_dicts")
            return self._call_with_weights(args[0], given, args[2:], kwargs, node)
        if name == "vmap" and args and callable_value(args[0]):
            return Mapped(args[0])
        if name == "fork" and args and callable_value(args[0]):  # of torch.jit; its `wait` returns the result
            return self.call_value(args[0], args[1:], kwargs, node)
        if name == "wait" and args:
            return args[0]
        if name == "cond" and len(args) > 2 and all(map(callable_value, args[1:3])):
            operands = list(args[3]) if len(args) > 3 and isinstance(args[3], (tuple, list)) else []
            return self._after_either(*(self.call_value(branch, operands, {}, node) for branch in args[1:3]))
        return self.tensors.call(name, args, kwargs, node)

    def _call_with_weights(
        self, module: nn.Module, given: Any, inputs: list[Any], named: dict[str, Any], node: ast.AST
    ) -> Any:
        """Return what `torch.func.functional_call` gives: a module's output with other tensors for its parameters.

        Args:
            module: the module.
            given: tensors by the names of parameters and buffers; or several such mappings.
            inputs: the module's arguments: one that is no tuple or a tuple of several, and those by name.
            named: the same by the names `args` and `kwargs`.
            node: the syntax node of the call.
        """
        parameters = dict(module.named_parameters(remove_duplicate=False))
        for mapping in given if isinstance(given, (tuple, list)) else [given]:
            values = mapping if isinstance(mapping, dict) else dict.fromkeys(parameters, mapping)
            for name, own in parameters.items():
                value = values.get(name, own)
                is_own = value is own or (isinstance(value, Weight) and not value.changed)
                if own.ndim > 1 and not is_own:
                    self.weights.change(Weight(id(own)), node)
        arguments = named.get("args", inputs[0] if inputs else ())
        keywords = named.get("kwargs", inputs[1] if len(inputs) > 1 else None)
        positional = list(arguments) if isinstance(arguments, tuple) else [arguments]
        return self.call_value(module, positional, keywords if isinstance(keywords, dict) else {}, node)


def _mapping_of(items: Any = ()) -> dict[Any, Any] | None:
    """Return the mapping that `dict` makes of a mapping or of pairs; None if these are not known."""
    if isinstance(items, dict):
        return items
    is_known = isinstance(items, (tuple, list)) and all(_is_item_pair(pair) for pair in items)
    return dict(items) if is_known else None


def _are_plain(value: Any, container: Any) -> bool:
    """Return whether it is known if a value is in a container."""
    items = container if isinstance(container, (tuple, list, set, frozenset)) else ()
    return isinstance(value, PLAIN_TYPES) and bool(items) and all(isinstance(item, PLAIN_TYPES) for item in items)


def _is_item_pair(pair: Any) -> bool:
    """Return whether a value is the key and the value of a mapping's item."""
    return isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], (str, int))


def _holds_module(value: Any) -> bool:
    """Return whether a tuple or list holds a module."""
    return isinstance(value, (tuple, list)) and any(isinstance(item, nn.Module) for item in value)
