"""What a model's weights are: each parameter as an entry, or as one for each block of a fused weight.

How a weight is cut is asked of these in turn, and the first that answers wins:

1. the caller: `blocks` and `transposed`; or the model, whose modules may declare theirs in a method `matrix_blocks()`;
2. the rules of `known`;
3. a forward pass: the model's own on an `example`; where a weight looks fused, its module's alone on random input;
4. nobody: it is kept, and its reason says why it looks fused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fire_core.weights import topology
from fire_core.weights.entry import Cut, Declared, Entry
from fire_core.weights.known import RuleDoesNotFit, by_head, feeds_glu, known_cut
from fire_core.weights.read import read_cuts, read_module
from fire_core.weights.topology import FUSED, Use, holds, unwrap, width

LAYERS = ("q", "k", "v", "attention_out", "mlp", "ssm", "recurrent", "head", "dense", "conv")  # roles that can be cut
# Names that say "several projections in one", beside those of q, k and v.
_SAYS_FUSED = re.compile(
    r"kqv|qvk|key_value|gate_up|up_gate|gate_and_up|(^|_)(kv|qk|w12|w13|xz|zx|xBC)(_|$)|^Wi$|fused|zxbc"
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
        self.seen = {} if example is None else read_cuts(model, example)
        self.model = unwrap(model)
        self.uses = topology.uses_of(self.model)
        self.cuts: dict[str, Cut] = {}  # by a weight's names, for the bias that goes with it
        self._alone: dict[object, Cut | None] = {}

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
        if entry.kind == "vector":
            cut = self.cuts.get("weight".join(use.name.rsplit("bias", 1)))  # in_proj_bias goes with in_proj_weight
            return cut if cut is not None and cut.rows == rows else None, ""
        if entry.groups > 1:  # rows of one group read other inputs than those of another
            return None, doubt_of(use, rows) if entry.role in LAYERS else ""
        try:
            if (known := known_cut(use, parameter, rows)) is not None:
                return known, ""
        except RuleDoesNotFit as misfit:
            doubt = str(misfit)
        seen = self.seen.get(id(parameter))
        if use.is_raw:
            return seen, doubt
        if entry.role in LAYERS and entry.kind != "conv_transpose":
            if seen is not None and seen.rows == rows:
                return seen, ""
            doubt = doubt or doubt_of(use, rows)
        alone = self._read_alone(use) if doubt else None
        return (alone, "") if alone is not None and alone.rows == rows else (None, doubt)

    def _read_alone(self, use: Use) -> Cut | None:
        """The cut read off the module alone, once for all that are built alike."""
        leaf, holder = use.place
        weight: Any = use.owner.weight
        plain = {k: v for k, v in vars(holder).items() if isinstance(v, (int, str)) and k != "training"}
        key = (type(holder), leaf, weight.shape, repr(plain))
        if key not in self._alone:
            self._alone[key] = read_module(holder, use.owner)
        return self._alone[key]


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
    if told := [name for name in names if _SAYS_FUSED.search(name)]:
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
