"""What a model's weights are: each parameter as an entry, or as one for each block of a fused weight.

How a weight is cut is asked of these in turn, and the first that answers wins:

1. the caller: `blocks` and `transposed`; or the model, whose modules may declare theirs in a method `matrix_blocks()`;
2. the model's own forward pass on an `example`, where it shows several blocks;
3. the rules of `known`;
4. the source of the forward passes (`source`): where it cuts a layer's output into parts that meet different
   operations, or changes a weight before it is multiplied with, there is a doubt; where it surely does not, none;
5. where the source does not tell, names and sizes raise a doubt;
6. a doubt is settled by a pass of the module alone on random input, if it runs on that;
7. else the weight is kept, and its reason says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fire_core.weights import topology
from fire_core.weights.code import forward_of, is_torchs
from fire_core.weights.entry import Cut, Declared, Entry
from fire_core.weights.known import RuleDoesNotFit, by_head, feeds_glu, fused_class, known_cut
from fire_core.weights.read import equals_plain, read_module, read_pass
from fire_core.weights.source import LayerUse, SourceReader
from fire_core.weights.topology import FUSED, Use, holds, unwrap, width

LAYERS = ("q", "k", "v", "attention_out", "mlp", "ssm", "recurrent", "head", "dense", "conv")  # roles that can be cut
# Names that say "several projections in one", beside those of q, k and v.
_SAYS_FUSED = re.compile(
    r"kqv|qvk|key_value|gate_up|up_gate|gate_and_up|(^|_)w?(kv|qk|w12|w13|xz|zx|xBC)(_|$)|^Wi$|fused|zxbc"
    rf"|{'|'.join(name for name, held in FUSED.items() if held == 'qkv')}"
)
# Layers that turn a condition into several shifts, scales and gates.
_MODULATES = re.compile(r"ada_?ln|ada(ptive)?_?layer_?norm|modulation", re.IGNORECASE)
_GATED = re.compile(r"GLU|Glu([A-Z]|$)|Gat(ed|ing)(MLP|Mlp|Linear|FFN|FeedForward)")


class Reader:
    """Tells what the weights of a model are.

    Args:
        model: any module; wrappers are looked through.
        blocks: declared by the caller, by pattern; see `layout.resolve`.
        transposed: patterns of weights that are stored (d_in, d_out).
        example: input for one forward pass off which cuts are read; None for no pass.
        by_head: cut attention by head too.

    Raises:
        ValueError: an example that the model does not take.
    """

    def __init__(
        self, model: nn.Module, blocks: Mapping[str, Declared], transposed: list[str], example: Any, by_head: bool
    ) -> None:
        self.blocks, self.transposed, self.by_head = blocks, transposed, by_head
        self.model = unwrap(model)
        self.uses = topology.uses_of(self.model)
        self.code = SourceReader(self.model).uses
        self.seen: dict[int, Cut] = {}
        self.products: dict[int, Cut] = {}
        self.multiplied: set[int] | None = None  # weights that stood in a product in the pass on the example
        if example is not None:
            places = {key: use.places for key, use in self.code.items() if use.cut}
            self.seen, self.products, self.multiplied = read_pass(model, example, places)
        self.cuts: dict[str, Cut] = {}  # by a weight's names, for the bias that goes with it
        self._alone: dict[object, Cut | None] = {}
        self._plain: dict[object, bool] = {}
        self._alike: set[tuple[str, torch.Size]] | None = None

    def read(self) -> list[Entry]:
        """All entries of the model in the order of `named_parameters()`, none with an action yet.

        Raises:
            ValueError: blocks that do not fit.
        """
        for module in self.model.modules():
            for key in getattr(module, "matrix_blocks", dict)():
                if not _holds(module, key):
                    raise ValueError(f"matrix_blocks of {type(module).__name__}: it has no weight {key!r}")
        return [entry for parameter, uses in self.uses for entry in self.entries(parameter, uses)]

    def entries(self, parameter: Tensor, uses: list[Use]) -> list[Entry]:
        """One parameter's entries: several when its rows are fused projections."""
        use = next((use for use in uses if not use.is_raw), uses[0])  # the linear module says how it is multiplied
        kind, role, reason = topology.classify(use, parameter, any(u.is_raw for u in uses))
        names = tuple(dict.fromkeys(u.name for u in uses))
        matching = (heights for name in names for pattern, heights in self.blocks.items() if fnmatchcase(name, pattern))
        heights: Declared | None = next(matching, None)
        flipped = any(fnmatchcase(name, pattern) for name in names for pattern in self.transposed)
        entry = Entry(
            names[0],
            parameter,
            role,
            kind=kind,
            groups=use.owner.groups if kind.startswith("conv") and isinstance(use.owner, _ConvNd) else 1,
            transposed=kind == "matrix" and (flipped or topology.is_transposed_linear(use.owner)),
            aliases=names,
            modules=tuple({id(m): m for u in uses for m in u.path[1:]}.values()),
            reason=reason,
            padding=topology.padding_row(uses),
            is_tied=not all(isinstance(u.owner, topology.EMBEDDINGS) for u in uses),
        )
        _check_declared(entry, use, heights is not None, flipped)
        if kind == "locked":
            return [entry]
        for module, key in ((m, u.name.split(".", i)[-1]) for u in uses for i, m in enumerate(u.path)):
            if heights is None and (declare := getattr(module, "matrix_blocks", None)):  # of two modules the outer one
                heights = declare().get(key)
        if heights is None and (changed := self._changed(entry, use)):
            return [replace(entry, role="changed", reason=changed)]
        if heights is None and self._is_unused(entry, use):
            return [replace(entry, role="unused", reason=UNUSED)]
        cut, doubt = self._cut(entry, use, heights)
        if doubt:
            entry = replace(entry, role="fused", reason=f"looks fused: {doubt}")
        if cut is not None:
            self.cuts |= dict.fromkeys(names, cut)
        parts = [entry] if cut is None else _split(entry, cut)
        return [by_head(part, use) for part in parts] if self.by_head else parts

    def _cut(self, entry: Entry, use: Use, heights: Declared | None) -> tuple[Cut | None, str]:
        """How a parameter is cut (declared, else known, else read), or why it looks cut; neither for one matrix."""
        parameter, rows, doubt = entry.parameter, entry.d_out, ""
        if parameter.numel() == 0:
            return None, ""  # whatever it is, nothing is in it
        if heights is not None:
            told = declared(entry.name, rows, heights, entry.role in ("q", "k", "v"))
            return replace(told, transposed=entry.transposed, role="dense" if use.is_raw else ""), ""
        if entry.role == "adapter" and not _is_last_factor(use, rows):
            return None, ""  # q, k and v read one first factor of LoRA
        if entry.kind == "vector":
            cut = self.cuts.get("weight".join(use.name.rsplit("bias", 1)))  # in_proj_bias goes with in_proj_weight
            return cut if cut is not None and cut.rows == rows else None, ""
        code = self.code.get(id(parameter))
        line = code.line if code is not None else ""
        if entry.groups > 1:  # rows of one group read other inputs than those of another
            named = cut_in(use, line) if line else "" if _is_read(code) else doubt_of(use, rows)
            return None, named if entry.role in LAYERS else ""
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
        if entry.role not in LAYERS or entry.kind == "conv_transpose":
            return None, doubt
        if seen is not None and (len(seen.blocks) > 1 or not line):
            return seen, ""
        if not doubt:
            doubt = cut_in(use, line) if line else "" if _is_read(code) else doubt_of(use, rows)
        if not doubt:
            return None, ""
        alone = self._read_alone(use)
        if alone is None or alone.rows != rows or (line and len(alone.blocks) == 1):
            return None, doubt
        return alone, ""

    def _changed(self, entry: Entry, use: Use) -> str:
        """Where a layer's weight is changed before it is multiplied with; empty where it is not."""
        code = self.code.get(id(entry.parameter))
        if entry.kind == "vector" or entry.role not in LAYERS or (use.is_raw and not _is_torch_layer(use.owner)):
            return ""
        if code is not None and code.changed:
            if self.multiplied is not None and id(entry.parameter) in self.multiplied:
                return ""
            layer = type(use.owner).__name__
            return f"the code of {layer}, or around it, changes the weight before it is multiplied ({code.changed})"
        if use.is_raw or code is None or code.own_forward != "unclear":
            return ""
        if self.multiplied is not None and id(entry.parameter) in self.multiplied:
            return ""
        return (
            ""
            if self._is_plain(use.owner)
            else (f"{type(use.owner).__name__}.forward does something else with the weight than torch's own layer does")
        )

    def _is_plain(self, layer: nn.Module) -> bool:
        """Whether a layer with a forward pass of its own gives what torch's does."""
        key = (type(layer), *(tuple(p.shape) for p in layer.parameters()), fingerprint(layer))
        if key not in self._plain:
            self._plain[key] = equals_plain(layer)
        return self._plain[key]

    def _doubt_of_fused_class(self, use: Use) -> str:
        """Of a weight of a subclass of torch's attention or recurrent layers whose own code does not say what it is."""
        owner = use.owner
        if not _is_torch_layer(owner) or is_torchs(forward_of(owner)[0]) or not fused_class(use):
            return ""
        return f"{type(owner).__name__} has a forward pass of its own"

    def _is_unused(self, entry: Entry, use: Use) -> bool:
        """Whether a layer's weight met no product in the pass on the example, nor did that of a layer built alike."""
        if self.multiplied is None or use.is_raw or entry.kind == "vector" or entry.role not in LAYERS:
            return False
        if id(entry.parameter) in self.multiplied or entry.groups > 1:
            return False
        if self._alike is None:
            pairs = ((use_of[0], p) for p, use_of in self.uses if id(p) in self.multiplied)
            self._alike = {(re.sub(r"\d+", "*", one.name), p.shape) for one, p in pairs}
        return (re.sub(r"\d+", "*", use.name), entry.parameter.shape) not in self._alike

    def _read_alone(self, use: Use) -> Cut | None:
        """The cut read off the module alone, or off the one around it, once for all that are built alike."""
        leaf, holder = use.place
        weight: Any = use.owner.weight
        code = self.code.get(id(weight))
        places = code.places if code is not None else []
        level = use.path.index(holder)
        inner = [holder, *use.path[level + 1 : -1][::-1], use.path[max(level - 1, 0)]]
        for module in dict.fromkeys(inner):
            if not callable_module(module):
                continue
            key = (type(module), leaf, weight.shape, tuple(places), fingerprint(module))
            if key not in self._alone:
                self._alone[key] = read_module(module, use.owner, places)
            cut = self._alone[key]
            if cut is not None and (len(cut.blocks) > 1 or not places):
                return cut
            if not places and module is holder:
                break
        return None


UNUSED = "met no product of matrices in the pass on the example, nor did one like it; include= takes it"


def cut_in(use: Use, line: str) -> str:
    """The clause that says where the source cuts a layer's output."""
    return f"its output is cut into parts that meet different operations ({line})"


def _is_read(code: LayerUse | None) -> bool:
    """Whether the source tells all that becomes of a layer's output."""
    return code is not None and code.calls > 0 and not code.escapes


def _is_last_factor(use: Use, rows: int) -> bool:
    """Whether an adapter's factor has the rows of the layer that the adapter is put upon."""
    bases = [module._modules["base_layer"] for module in use.path if "base_layer" in module._modules]
    base = bases[-1] if bases else None
    return base is None or not topology.is_linear(base) or topology.outputs(base) == rows


def says_fused(name: str) -> bool:
    """Whether a layer's or a raw parameter's own name says that it holds several projections."""
    return _SAYS_FUSED.search(name) is not None


def _contradicts(seen: Cut, known: Cut) -> bool:
    """Whether a rule's blocks and those that products showed cross each other: neither divides the other further."""
    if len(seen.blocks) < 2 or seen.rows != known.rows:
        return False
    pairs = set(zip(_blocks_of_rows(known), _blocks_of_rows(seen), strict=True))
    return len({block for block, _ in pairs}) < len(pairs) > len({side for _, side in pairs})


def _blocks_of_rows(cut: Cut) -> list[int]:
    """For each row which block it belongs to."""
    return [i for i, (_, height) in enumerate(cut.blocks) for _ in range(height)] * cut.repeats


def _is_torch_layer(module: nn.Module) -> bool:
    return isinstance(module, (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase))


def callable_module(module: nn.Module) -> bool:
    """Whether it has a forward pass at all, which lists of modules do not have."""
    return forward_of(module)[0] is not nn.Module.forward


def fingerprint(value: object, depth: int = 0) -> str:
    """All numbers, words and classes in a module that can change what it does with its weights, as text.

    An object that is none of these is told by its identity, so that two modules with it never count as built alike.
    """
    if isinstance(value, (int, float, str, bool, type(None))):
        return repr(value)
    if depth > 6:
        return str(id(value))
    if isinstance(value, (Tensor, torch.dtype, torch.device, torch.Size)):
        return f"{tuple(value.shape)}" if isinstance(value, Tensor) else str(value)
    if isinstance(value, nn.Module):
        own = {key: held for key, held in vars(value).items() if not key.startswith("_") and key != "training"}
        parts = [f"{key}={fingerprint(held, depth + 1)}" for key, held in own.items()]
        held = [*value._parameters.items(), *value._buffers.items(), *value._modules.items()]
        return f"{type(value).__qualname__}({parts},{[(key, fingerprint(part, depth + 1)) for key, part in held]})"
    if isinstance(value, (list, tuple, set, frozenset)):
        return f"[{','.join(fingerprint(part, depth + 1) for part in value)}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{fingerprint(part, depth + 1)}' for key, part in value.items())}}}"
    if isinstance(value, type) or callable(value):
        return getattr(value, "__qualname__", str(id(value))) + str(id(value))
    if hasattr(value, "__dict__"):
        return f"{type(value).__qualname__}{fingerprint(vars(value), depth + 1)}"
    return str(id(value))


def _holds(module: nn.Module, key: str) -> bool:
    """Whether a module has a weight of this name; None, as of a bias that is off, will do."""
    try:
        return isinstance(attrgetter(key)(module), Tensor | None)
    except AttributeError:
        return False


def _split(entry: Entry, cut: Cut) -> list[Entry]:
    """The blocks of a weight, each with its role; a raw parameter of known use is a layer's weight like others."""
    if cut.role and entry.kind == "matrix":
        role = cut.role if entry.role == "other" else entry.role
        reason = entry.reason if role == "router" else ""
        entry = replace(entry, transposed=cut.transposed, groups=cut.groups, role=role, reason=reason)
    if len(cut.blocks) == 1:
        return [entry]
    attention = entry.role in ("q", "k", "v", "attention_out") or {"q", "k"} & {name for name, _ in cut.blocks}
    parts, start = [], 0
    for name, height in cut.blocks:
        role = entry.role
        if attention and role not in ("ssm", "other"):
            role = name if name in ("q", "k", "v") else "attention_out"
        rows = (start, start + height)
        parts.append(replace(entry, block=name, role=role, rows=rows, repeats=cut.repeats))
        start += height
    return parts


def declared(name: str, rows: int, blocks: Declared, attention: bool) -> Cut:
    """The cut that a caller or a model gives for a weight.

    Args:
        name: of the weight, for messages.
        rows: of its matrix.
        blocks: heights from top to bottom, (64, 16, 16); or by name, {"q": 64, "k": 16, "v": 16}, with "repeats"
            where the pattern recurs: {"q": 16, "k": 16, "v": 16, "repeats": 4} is interleaved by four heads.
        attention: whether three unnamed blocks are q, k and v.

    Raises:
        ValueError: they are no heights, or do not add up to the rows.
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
    """Refuse what could only be ignored."""
    if (cut or flipped) and entry.kind == "locked":
        raise ValueError(f"{'blocks' if cut else 'transposed'}: cannot cut {entry.name}: {entry.reason}")
    if flipped and isinstance(use.owner, _ConvNd) and entry.kind != "vector":
        raise ValueError(f"transposed: {entry.name} is a convolution's; its layout is known")
    if cut and (entry.kind == "conv_transpose" or (isinstance(use.owner, _ConvNd) and use.owner.groups > 1)):
        raise ValueError(f"blocks: {entry.name} is a grouped or transposed convolution's and cannot be cut in rows")


def doubt_of(use: Use, rows: int) -> str:
    """Why a layer that no rule knows looks as if it were several; empty if it does not."""
    owner, (leaf, holder) = use.owner, use.place
    names = use.name.split(".")[-3:-1]
    if use.around.layer_counts[holder] > 1 or names[-1:] != [leaf]:
        names = [leaf]  # else a wrapper of one layer, whose own name tells as well
    if told := [name for name in names if says_fused(name)]:
        return f"its name, {told[0]}, says so"
    if isinstance(owner, _ConvNd):
        glu = not isinstance(holder, nn.Sequential) and any(isinstance(child, nn.GLU) for child in holder.children())
        return "its module holds a GLU" if feeds_glu(use) or (glu and rows == 2 * owner.in_channels) else ""
    if any("A_log" in module._parameters for module in use.path[-3:]) and leaf in ("in_proj", "x_proj"):
        return "it feeds a state-space mixer"
    layers, inputs = use.around.layers(holder), width(owner)
    if rows > inputs and rows % inputs == 0 and _MODULATES.search(f"{leaf} {type(holder).__name__}"):
        return f"{leaf} of {type(holder).__name__} modulates"
    position = use.around.position(holder, owner)
    if inputs == rows or use.around.last_reader(holder, rows) not in (None, position):
        return ""  # somebody takes all the rows at once
    if leaf == "in_proj" and rows > inputs:
        return f"its name, {leaf}, says so"
    last = len(layers) > 1 and layers[-1] is owner
    if _GATED.search(type(holder).__name__) and rows % 2 == 0 and not last:
        return f"it sits in {type(holder).__name__}"
    if len(use.path) > 1 and isinstance(use.path[-2], nn.Sequential):
        beside, at = use.around.layers(use.path[-2]), use.around.position(use.path[-2], owner)
        if at is not None and at + 1 < len(beside) and rows == 2 * width(beside[at + 1]):
            return f"its {rows} rows are 2 times what the next layer takes"
    if isinstance(holder, (nn.Sequential, nn.ModuleDict, nn.ModuleList)) or leaf.endswith(("_a_proj", "_b_proj")):
        return ""
    separate = len(holds(leaf)) == 1
    for parts in (2,) if separate else (2, 3):
        part, rest = divmod(rows, parts)
        reader = use.around.last_reader(holder, part)
        is_later = position is not None and reader is not None and reader > position
        if is_later and not rest and (parts == 3 or part != inputs):
            return f"its {rows} rows are {parts} times what the layer beside it takes"
    return ""
