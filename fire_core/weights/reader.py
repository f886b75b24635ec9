"""The reader of a model: it describes each parameter by an entry, or by one entry for each block of a fused weight.

How a weight is cut is decided by the first of these that knows it:

1. the caller, by `blocks` and `transposed`; or the model, whose modules may declare their blocks in a method
   `matrix_blocks()`;
2. the model's own forward pass on an `example`, if it shows several blocks;
3. the rules of `known`;
4. the source of the forward passes (`source`): if it cuts a layer's output into parts that meet different operations,
   or changes a weight before it is multiplied with, the weight is in doubt; if it does not, and nothing of the output
   is lost on the way, it is one matrix;
5. names and sizes, which may raise a doubt if the source does not tell;
6. a pass of the module alone on random input, if the module runs on that: it settles a doubt, and is made without
   one where the code loses the output;
7. otherwise the weight is kept, and its reason says why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fire_core.weights import topology
from fire_core.weights.entry import Cut, Declared, Entry
from fire_core.weights.forward_pass import read_module, read_pass
from fire_core.weights.known import RuleDoesNotFit, by_head, feeds_glu, fused_class, known_cut
from fire_core.weights.layer_use import LayerUse
from fire_core.weights.output_layers import output_convolutions, output_weights
from fire_core.weights.own_forward import convolves_backwards, equals_plain, multiplies_by_stored
from fire_core.weights.source import SourceReader
from fire_core.weights.syntax_trees import attribute_or, forward_of, is_torchs
from fire_core.weights.topology import FUSED, Use, input_count, projections_in_name, unwrap

LAYERS = ("q", "k", "v", "attention_out", "mlp", "ssm", "recurrent", "head", "dense", "conv")  # roles that can be cut
# Names of layers that hold several projections.
_FUSED_NAME = re.compile(
    r"kqv|qvk|key_value|gate_up|up_gate|gate_and_up|(^|_)w?(kv|qk|w12|w13|xz|zx|xBC)(_|$)|^Wi$|fused|zxbc"
    rf"|{'|'.join(name for name, parts in FUSED.items() if parts == 'qkv')}"
)
# Names of layers that compute several shifts, scales and gates from a condition.
_MODULATES = re.compile(r"ada_?ln|ada(ptive)?_?layer_?norm|modulation", re.IGNORECASE)
# Names of classes with a gate and what it gates.
_GATED = re.compile(r"GLU|Glu([A-Z]|$)|Gat(ed|ing)(MLP|Mlp|Linear|FFN|FeedForward)")


class Reader:
    """Reads what the weights of a model are.

    Args:
        model: any module; wrappers are looked through.
        blocks: from a pattern of names to the blocks that the caller declares; see `layout.resolve`.
        transposed: patterns of weights that are stored (d_in, d_out).
        example: input for one forward pass that shows cuts; None: no pass.
        by_head: whether to cut attention weights by head as well.

    Raises:
        ValueError: the model does not run on the example.
    """

    def __init__(
        self, model: nn.Module, blocks: Mapping[str, Declared], transposed: list[str], example: Any, by_head: bool
    ) -> None:
        self.blocks, self.transposed, self.by_head = blocks, transposed, by_head
        self.model = unwrap(model)
        self.uses = topology.uses_of(self.model)
        # All by `id` of a parameter: what the source tells; cuts seen in the pass on the example, and those seen by
        # products alone; and the weights that took part in a product of matrices there (None: there was no pass).
        source = SourceReader(self.model)
        self.code, self.input_readers = source.uses, source.input_readers
        for parameter, uses in self.uses:
            if source.feeds_layer(id(parameter)):
                uses[0].around.hidden.update(use.owner for use in uses)
        named = {id(p) for p, uses in self.uses if any(topology.is_called_head(use) for use in uses if not use.is_raw)}
        self.output_weights = output_weights(self.model, source, named)
        self.output_convolutions = output_convolutions(self.model, source)
        self.seen: dict[int, Cut] = {}
        self.products: dict[int, Cut] = {}
        self.multiplied: set[int] | None = None
        self.narrowed: set[int] = set()  # weights of which the pass multiplies only some columns
        self.reshaped: set[int] = set()  # weights whose rows the pass does not multiply with
        if example is not None:
            places = {key: use.places for key, use in self.code.items() if use.cut}
            self.seen, self.products, self.multiplied, self.narrowed, self.reshaped = read_pass(model, example, places)
        self.cuts: dict[str, Cut] = {}  # by the names of a weight; the bias of the layer is cut in the same way
        # Results for layers that are built alike, by what makes them alike:
        self._cuts_alone: dict[object, Cut | None] = {}
        self._is_plain_cache: dict[object, bool] = {}
        self._turns_weight_cache: dict[object, bool] = {}
        self._multiplied_alike: set[tuple[str, torch.Size]] | None = None

    def read(self) -> list[Entry]:
        """Return all entries of the model in the order of `named_parameters()`, each with the action "keep".

        Raises:
            ValueError: declared blocks do not fit, or name a weight that a module does not have.
        """
        for module in self.model.modules():
            for key in getattr(module, "matrix_blocks", dict)():
                if not _holds(module, key):
                    raise ValueError(f"matrix_blocks of {type(module).__name__}: it has no weight {key!r}")
        return [entry for parameter, uses in self.uses for entry in self.entries(parameter, uses)]

    def entries(self, parameter: Tensor, uses: list[Use]) -> list[Entry]:
        """Return the entries of a parameter: several if its rows are fused projections, else one.

        Args:
            parameter: the parameter.
            uses: all places where it occurs in the model.

        Raises:
            ValueError: declared blocks do not fit.
        """
        # Of a tied weight, a layer tells more than the place where it is a raw parameter or an embedding.
        use = next((use for use in uses if not use.is_raw), uses[0])
        kind, role, reason = topology.classify(use, parameter, any(u.is_raw for u in uses))
        if role in ("mlp", "dense") and id(parameter) in self.output_weights:
            role = "head"
        names = tuple(dict.fromkeys(u.name for u in uses))
        matching = (blocks for name in names for pattern, blocks in self.blocks.items() if fnmatchcase(name, pattern))
        blocks: Declared | None = next(matching, None)
        is_transposed = any(fnmatchcase(name, pattern) for name in names for pattern in self.transposed)
        entry = Entry(
            names[0],
            parameter,
            role,
            kind=kind,
            groups=use.owner.groups if kind.startswith("conv") and isinstance(use.owner, _ConvNd) else 1,
            transposed=kind == "matrix"
            and (is_transposed or topology.is_transposed_linear(use.owner) or self._is_multiplied_as_stored(use)),
            aliases=names,
            modules=tuple({id(m): m for u in uses for m in u.path[1:]}.values()),
            reason=reason,
            padding=topology.padding_row(uses),
            is_tied=not all(isinstance(u.owner, topology.EMBEDDINGS) for u in uses),
            is_put_out=id(parameter) in self.output_convolutions,
            reads_input=id(parameter) in self.input_readers,
        )
        _check_declared(entry, use, blocks is not None, is_transposed)
        if kind == "locked":
            return [entry]
        for one_use in uses:
            for depth, module in enumerate(one_use.path):  # from the outside in: the outer module's declaration counts
                if blocks is None and (declare := getattr(module, "matrix_blocks", None)):
                    blocks = declare().get(one_use.name.split(".", depth)[-1])
        if blocks is None and (changed := self._changed(entry, use)):
            return [replace(entry, role="changed", reason=changed)]
        if blocks is None and self._is_unused(entry, use):
            return [replace(entry, role="unused", reason=UNUSED)]
        if entry.role in LAYERS and blocks is None and self._weighs_experts(entry, use):
            return [replace(entry, role="router", reason=topology.REASONS["router"])]
        cut, doubt = self._cut(entry, use, blocks)
        if doubt:
            entry = replace(entry, role="fused", reason=f"looks fused: {doubt}")
        if cut is not None:
            self.cuts |= dict.fromkeys(names, cut)
        parts = [entry] if cut is None else _split(entry, cut)
        return [by_head(part, use) for part in parts] if self.by_head else parts

    def _cut(self, entry: Entry, use: Use, blocks: Declared | None) -> tuple[Cut | None, str]:
        """Decide how a parameter is cut: as declared, else as known, else as read.

        Args:
            entry: the entry of the whole parameter.
            use: its place in the model.
            blocks: what the caller or the model declares; None: nothing.

        Returns:
            The cut, and why the parameter is in doubt. If the cut is None and there is no doubt, it is one matrix.

        Raises:
            ValueError: declared blocks do not fit.
        """
        parameter, rows, doubt = entry.parameter, entry.d_out, ""
        if parameter.numel() == 0:
            return None, ""
        if blocks is not None:
            declared = declared_cut(entry.name, rows, blocks, entry.role in ("q", "k", "v"))
            return replace(declared, transposed=entry.transposed, role="dense" if use.is_raw else ""), ""
        if entry.role == "adapter" and not _is_last_factor(use, rows):
            return None, ""  # the first factor of LoRA is one matrix, also if q, k and v share it
        if entry.kind == "vector":
            cut = self.cuts.get("weight".join(use.name.rsplit("bias", 1)))  # in_proj_bias goes with in_proj_weight
            return cut if cut is not None and cut.rows == rows else None, ""
        code = self.code.get(id(parameter))
        line = code.line if code is not None else ""
        if entry.groups > 1:  # a pass would not show blocks, because the rows of each group have other inputs
            return None, _doubt(code, use, rows) if entry.role in LAYERS else ""
        if id(parameter) in self.reshaped:
            return None, "the pass multiplies with a view of it whose rows are not its own"
        seen = self.seen.get(id(parameter))
        if seen is not None and seen.rows != rows and not use.is_raw:
            seen = None
        try:
            known = known_cut(use, parameter, rows, code is not None and code.fused_by_torch)
        except RuleDoesNotFit as misfit:
            known, doubt = None, str(misfit)
        if known is not None:
            products = self.products.get(id(parameter))
            return (seen if seen is not None and products is not None and _contradicts(products, known) else known), ""
        if use.is_raw:
            return seen, doubt or (self._doubt_of_fused_class(use) if seen is None else "")
        if entry.role not in LAYERS:
            return None, doubt
        # Where the source is sure of a cut, a pass that shows one block has not reached it.
        needs_several = bool(line) and code is not None and code.is_sure
        if seen is not None and (len(seen.blocks) > 1 or not needs_several):
            return seen, ""
        doubt = doubt or _doubt(code, use, rows)
        if not doubt and code is not None and not code.is_lost:
            return None, ""
        alone = self._read_alone(use, is_doubted=bool(doubt))
        if alone is not None and alone.rows == rows and not (needs_several and len(alone.blocks) == 1):
            return alone, ""
        if code is not None and sum(code.heights) == rows:
            return stated_cut(code.heights, use.place[0]), ""
        return None, doubt

    def _weighs_experts(self, entry: Entry, use: Use) -> bool:
        """Return whether the code takes the outputs of a layer one by one, as many as alike modules beside it."""
        code = self.code.get(id(entry.parameter))
        if entry.kind == "vector" or code is None or not code.cut:
            return False
        return topology.has_an_output_for_each_module(use)

    def _changed(self, entry: Entry, use: Use) -> str:
        """Return why a layer's stored weight is not what it multiplies with; "" if it is."""
        code = self.code.get(id(entry.parameter))
        if entry.kind == "vector" or entry.role not in LAYERS or (use.is_raw and not _is_torch_layer(use.owner)):
            return ""
        if code is not None and code.overwritten:
            return f"each forward pass writes to the weight ({code.overwritten}), and so would undo what is done to it"
        if code is not None and code.changed:
            is_whole = id(entry.parameter) not in self.narrowed
            if self.multiplied is not None and id(entry.parameter) in self.multiplied and is_whole:
                return ""
            layer = type(use.owner).__name__
            return f"the code of {layer}, or around it, changes the weight before it is multiplied ({code.changed})"
        is_multiplied = self.multiplied is not None and id(entry.parameter) in self.multiplied
        if code is not None and code.is_uncalled and code.computed_with and not code.multiplied and not is_multiplied:
            return f"the code computes something else with the weight than a product ({code.computed_with})"
        is_alone = code is not None and code.is_uncalled and not code.own_forward and "" in code.sums_over
        if is_alone and isinstance(use.owner, nn.Linear) and len({*entry.parameter.shape}) > 1:
            return "the code that multiplies with the weight does not tell which of its axes holds the inputs"
        if isinstance(use.owner, _ConvNd) and self._turns_weight(use, convolves_backwards):
            return f"{type(use.owner).__name__}.forward uses the weight as a transposed convolution does"
        if use.is_raw or code is None or code.own_forward != "unclear":
            return ""
        if self.multiplied is not None and id(entry.parameter) in self.multiplied:
            return ""
        if self._is_plain(use.owner):
            return ""
        return f"{type(use.owner).__name__}.forward does something else with the weight than torch's own layer does"

    def _is_multiplied_as_stored(self, use: Use) -> bool:
        """Return whether the code computes x W with a linear layer's weight, so that W is stored (inputs, outputs).

        The code is the layer's own forward pass; or, if nobody calls the layer, that of a module around it.
        """
        if use.is_raw or not isinstance(use.owner, nn.Linear):
            return False
        code = self.code.get(id(use.owner._parameters.get("weight")))
        if code is not None and code.is_uncalled and code.multiplied:
            return code.sums_over == {"rows"}
        return self._turns_weight(use, multiplies_by_stored)

    def _turns_weight(self, use: Use, is_turned: Callable[[Any], bool]) -> bool:
        """Return what a trial says of a layer whose own forward pass multiplies with the stored weight; else False.

        Args:
            use: the place of the layer's weight.
            is_turned: runs a copy of the layer, and returns whether it swaps inputs and outputs.
        """
        layer = use.owner
        if use.is_raw or is_torchs(forward_of(layer)[0]):
            return False
        code = self.code.get(id(layer._parameters.get("weight")))
        if code is None or code.own_forward != "plain":
            return False
        key = (type(layer), *(tuple(p.shape) for p in layer.parameters()), fingerprint(layer))
        if key not in self._turns_weight_cache:
            self._turns_weight_cache[key] = is_turned(layer)
        return self._turns_weight_cache[key]

    def _is_plain(self, layer: nn.Module) -> bool:
        """Return whether a layer with a forward pass of its own computes the same as torch's layer."""
        key = (type(layer), *(tuple(p.shape) for p in layer.parameters()), fingerprint(layer))
        if key not in self._is_plain_cache:
            self._is_plain_cache[key] = equals_plain(layer)
        return self._is_plain_cache[key]

    def _doubt_of_fused_class(self, use: Use) -> str:
        """Return why a weight is in doubt that torch's own class would store fused; "" if it is not.

        It is in doubt if a subclass of torch's attention or recurrent layers has a forward pass of its own.
        """
        owner = use.owner
        if not _is_torch_layer(owner) or is_torchs(forward_of(owner)[0]) or not fused_class(use):
            return ""
        return f"{type(owner).__name__} has a forward pass of its own"

    def _is_unused(self, entry: Entry, use: Use) -> bool:
        """Return whether neither a layer's weight nor a like one took part in a product in the pass on the example."""
        if self.multiplied is None or use.is_raw or entry.kind == "vector" or entry.role not in LAYERS:
            return False
        if id(entry.parameter) in self.multiplied or entry.groups > 1:
            return False
        if self._multiplied_alike is None:
            pairs = [(uses[0].name, p.shape) for p, uses in self.uses if id(p) in self.multiplied]
            self._multiplied_alike = {(re.sub(r"\d+", "*", name), shape) for name, shape in pairs}
        return (re.sub(r"\d+", "*", use.name), entry.parameter.shape) not in self._multiplied_alike

    def _read_alone(self, use: Use, is_doubted: bool) -> Cut | None:
        """Return the cut that a pass of the module around a layer shows, on random input; None if it shows none.

        If that module does not run on such input, smaller ones within it and the one around it are tried. Modules that
        are built alike are run once; where nothing but a lost output asks for the pass, so are those of one class whose
        names differ by a number alone.
        """
        leaf, holder = use.place
        weight: Any = use.owner.weight
        code = self.code.get(id(weight))
        places = code.places if code is not None else []
        level = use.path.index(holder)
        modules = [holder, *use.path[level + 1 : -1][::-1], use.path[max(level - 1, 0)]]
        for module in dict.fromkeys(modules):
            if not callable_module(module):
                continue
            alike = fingerprint(module) if is_doubted else re.sub(r"\d+", "*", use.name)
            key = (type(module), leaf, weight.shape, tuple(places), alike)
            if key not in self._cuts_alone:
                depends_on_rank = code is not None and code.depends_on_rank
                self._cuts_alone[key] = read_module(module, use.owner, places, depends_on_rank)
            cut = self._cuts_alone[key]
            if cut is not None and (len(cut.blocks) > 1 or not places or (code is not None and not code.is_sure)):
                return cut
            if not places and module is holder:
                break
        return None


def stated_cut(heights: Sequence[int], leaf: str) -> Cut:
    """Return the cut into parts whose numbers of rows the code states, named as the layer's name says.

    Args:
        heights: the numbers of rows.
        leaf: the layer's name, such as `to_kv`.
    """
    letters = projections_in_name(leaf)
    names = letters if len(letters) == len(heights) else map(str, range(len(heights)))
    return Cut(tuple(zip(names, heights, strict=True)))


UNUSED = "met no product of matrices in the pass on the example, nor did one like it; include= takes it"


def _doubt(code: LayerUse | None, use: Use, rows: int) -> str:
    """Return why a layer's weight may hold several matrices; "" if there is no doubt.

    Args:
        code: what the source tells of the layer, which decides if it tells what becomes of the layer's output. If not,
            names and sizes decide.
        use: the place of the layer's weight in the model.
        rows: number of rows of its matrix.
    """
    if code is not None and code.line:
        return f"its output is cut into parts that meet different operations ({code.line})"
    return "" if _is_read(code) else doubt_by_name(use, rows)


def _is_read(code: LayerUse | None) -> bool:
    """Return whether the source tells everything that becomes of a layer's output."""
    return code is not None and code.calls > 0 and not code.escapes


def _is_last_factor(use: Use, rows: int) -> bool:
    """Return whether an adapter's factor has as many rows as the layer that the adapter is added to has outputs."""
    bases = [module._modules["base_layer"] for module in use.path if "base_layer" in module._modules]
    base = bases[-1] if bases else None
    return base is None or not topology.is_layer(base) or topology.output_count(base) == rows


def says_fused(name: str) -> bool:
    """Return whether the name of a layer or raw parameter says that it holds several projections."""
    return _FUSED_NAME.search(name) is not None


def _contradicts(seen: Cut, known: Cut) -> bool:
    """Return whether the blocks that products showed contradict those of a rule.

    They do not if one of the two only divides the blocks of the other further.
    """
    if len(seen.blocks) < 2 or seen.rows != known.rows:
        return False
    pairs = set(zip(_blocks_of_rows(known), _blocks_of_rows(seen), strict=True))
    return len({known_block for known_block, _ in pairs}) < len(pairs) > len({seen_block for _, seen_block in pairs})


def _blocks_of_rows(cut: Cut) -> list[int]:
    """Return for each row the index of the block that it belongs to."""
    pattern: list[int] = []
    for index, (_, height) in enumerate(cut.blocks):
        pattern += [index] * height
    return pattern * cut.repeats


def _is_torch_layer(module: nn.Module) -> bool:
    """Return whether a module is one of torch's attention or recurrent layers, or of a subclass."""
    return isinstance(module, (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase))


def callable_module(module: nn.Module) -> bool:
    """Return whether a module has a forward pass, which lists of modules do not have."""
    return forward_of(module)[0] is not nn.Module.forward


def fingerprint(value: object, depth: int = 0) -> str:
    """Return a text that is equal for two modules only if they are built alike.

    It holds all numbers, texts, shapes and classes in the module that can change how it uses its weights. Any other
    object stands there with its `id`, so two modules with such an object never count as built alike.

    Args:
        value: a module, or in a recursion a value within it.
        depth: how many objects the value is nested in.
    """
    if isinstance(value, (int, float, str, bool, type(None))):
        return repr(value)
    if depth > 6:
        return str(id(value))
    if isinstance(value, (Tensor, torch.dtype, torch.device, torch.Size)):
        return f"{tuple(value.shape)}" if isinstance(value, Tensor) else str(value)
    if isinstance(value, nn.Module):
        attributes = {key: part for key, part in vars(value).items() if not key.startswith("_") and key != "training"}
        options = [f"{key}={fingerprint(part, depth + 1)}" for key, part in attributes.items()]
        children = [*value._parameters.items(), *value._buffers.items(), *value._modules.items()]
        parts = [(key, fingerprint(part, depth + 1)) for key, part in children]
        return f"{type(value).__qualname__}({options},{parts})"
    if isinstance(value, (list, tuple, set, frozenset)):
        return f"[{','.join(fingerprint(part, depth + 1) for part in value)}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{fingerprint(part, depth + 1)}' for key, part in value.items())}}}"
    if isinstance(value, type) or callable(value):
        return str(attribute_or(value, "__qualname__")) + str(id(value))
    if hasattr(value, "__dict__"):
        return f"{type(value).__qualname__}{fingerprint(vars(value), depth + 1)}"
    return str(id(value))


def _holds(module: nn.Module, key: str) -> bool:
    """Return whether a module has a parameter of this dotted name, which may be None, as a bias that is off is."""
    try:
        return isinstance(attrgetter(key)(module), Tensor | None)
    except AttributeError:
        return False


def _split(entry: Entry, cut: Cut) -> list[Entry]:
    """Return an entry for each block of a cut, with the block's role.

    A raw parameter gets the role that the cut knows, so that it is treated like the weight of a layer.
    """
    if cut.role and entry.kind == "matrix":
        role = cut.role if entry.role == "other" else entry.role
        reason = entry.reason if role == "router" else ""
        entry = replace(entry, transposed=cut.transposed, groups=cut.groups, role=role, reason=reason)
    if len(cut.blocks) == 1:
        return [entry]
    leaf = entry.name.rpartition(".")[0].rpartition(".")[2]
    if [name for name, _ in cut.blocks] == ["v", "q", "k"] and projections_in_name(leaf) == "qkv":
        # In linear attention keys meet values first, and their product the queries: the name tells which is which.
        cut = replace(cut, blocks=tuple((name, height) for name, (_, height) in zip("qkv", cut.blocks, strict=True)))
    attention = entry.role in ("q", "k", "v", "attention_out") or {"q", "k"} & {name for name, _ in cut.blocks}
    parts, start = [], 0
    for name, height in cut.blocks:
        role = entry.role
        if attention and role not in ("ssm", *topology.REASONS):  # a factor of LoRA on q, k and v remains a factor
            role = name if name in ("q", "k", "v") else "attention_out"
        rows = (start, start + height)
        parts.append(replace(entry, block=name, role=role, rows=rows, repeats=cut.repeats))
        start += height
    return parts


def declared_cut(name: str, rows: int, blocks: Declared, attention: bool) -> Cut:
    """Return the cut that a caller or a model declares for a weight.

    Args:
        name: name of the weight, for messages.
        rows: number of rows of its matrix.
        blocks: heights from top to bottom, (64, 16, 16); or by name, {"q": 64, "k": 16, "v": 16}, with "repeats" if
            the pattern repeats: {"q": 16, "k": 16, "v": 16, "repeats": 4} is interleaved by four heads.
        attention: whether three blocks without names are q, k and v.

    Raises:
        ValueError: `blocks` has values that are no heights, or they do not add up to the rows.
    """
    heights: Mapping[Any, int] = blocks if isinstance(blocks, Mapping) else {}
    if isinstance(blocks, Sequence):
        heights = dict(zip("qkv" if attention and len(blocks) == 3 else range(len(blocks)), blocks, strict=True))
    if not heights or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in heights.values()):
        either = "give heights, (64, 16, 16), or heights by name and repeats, all whole numbers above 0"
        raise ValueError(f"blocks of {name}: {either}, got {blocks!r}")
    cut = Cut(tuple((str(k), height) for k, height in heights.items() if k != "repeats"), heights.get("repeats", 1))
    if cut.rows != rows:
        times = f", {cut.repeats} times," if cut.repeats > 1 else ""
        given = tuple(height for _, height in cut.blocks)
        raise ValueError(f"blocks of {name}: heights {given}{times} add up to {cut.rows}, not to its {rows} rows")
    return cut


def _check_declared(entry: Entry, use: Use, cut: bool, flipped: bool) -> None:
    """Refuse `blocks` and `transposed` for a weight for which they could only be ignored.

    Args:
        entry: the entry of the whole parameter.
        use: its place in the model.
        cut: whether the caller declares its blocks.
        flipped: whether the caller declares it transposed.

    Raises:
        ValueError: the weight is locked, or a convolution's, whose storage is known.
    """
    if (cut or flipped) and entry.kind == "locked":
        raise ValueError(f"{'blocks' if cut else 'transposed'}: cannot cut {entry.name}: {entry.reason}")
    if flipped and isinstance(use.owner, _ConvNd) and entry.kind != "vector":
        raise ValueError(f"transposed: {entry.name} is a convolution's; its layout is known")
    if cut and isinstance(use.owner, _ConvNd) and use.owner.groups > 1:
        raise ValueError(f"blocks: {entry.name} is a grouped convolution's and cannot be cut in rows")


def doubt_by_name(use: Use, rows: int) -> str:
    """Return why names and sizes make a layer look as if it held several matrices; "" if they do not.

    Args:
        use: the place of the layer's weight in the model.
        rows: number of rows of its matrix.
    """
    owner, (leaf, holder) = use.owner, use.place
    names = use.name.split(".")[-3:-1]
    if use.around.layer_counts[holder] > 1 or names[-1:] != [leaf]:
        names = [leaf]  # otherwise the module around is a wrapper of this layer alone, whose name tells as well
    if fused_names := [name for name in names if says_fused(name)]:
        return f"its name, {fused_names[0]}, says so"
    if isinstance(owner, _ConvNd):
        children = [] if isinstance(holder, nn.Sequential) else list(holder.children())
        is_beside_glu = any(isinstance(child, nn.GLU) for child in children) and rows == 2 * owner.in_channels
        return "its module holds a GLU" if feeds_glu(use) or is_beside_glu else ""
    if any("A_log" in module._parameters for module in use.path[-3:]) and leaf in ("in_proj", "x_proj"):
        return "it feeds a state-space mixer"
    layers, inputs = use.around.layers(holder), input_count(owner)
    if rows > inputs and rows % inputs == 0 and _MODULATES.search(f"{leaf} {type(holder).__name__}"):
        return f"{leaf} of {type(holder).__name__} modulates"
    position = use.around.position(holder, owner)
    if inputs == rows or use.around.last_reader(holder, rows) not in (None, position):
        return ""  # the layer itself or another one takes all the rows at once
    if leaf == "in_proj" and rows > inputs:
        return f"its name, {leaf}, says so"
    is_last = len(layers) > 1 and layers[-1] is owner
    if _GATED.search(type(holder).__name__) and rows % 2 == 0 and not is_last:
        return f"it sits in {type(holder).__name__}"
    if len(use.path) > 1 and isinstance(use.path[-2], nn.Sequential):
        siblings, index = use.around.layers(use.path[-2]), use.around.position(use.path[-2], owner)
        if index is not None and index + 1 < len(siblings) and rows == 2 * input_count(siblings[index + 1]):
            return f"its {rows} rows are 2 times what the next layer takes"
    if isinstance(holder, (nn.Sequential, nn.ModuleDict, nn.ModuleList)) or leaf.endswith(("_a_proj", "_b_proj")):
        return ""
    is_single_projection = len(projections_in_name(leaf)) == 1
    for count in (2,) if is_single_projection else (2, 3):
        part_rows, rest = divmod(rows, count)
        reader = use.around.last_reader(holder, part_rows)
        is_read_later = position is not None and reader is not None and reader > position
        if is_read_later and not rest and (count == 3 or part_rows != inputs):
            return f"its {rows} rows are {count} times what the layer beside it takes"
    return ""
