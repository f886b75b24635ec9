"""Which weights a projection touches, and how each one falls apart into matrices.

A layout is data: a list of `Entry`, one for each parameter, or for each row block of a fused parameter. `resolve` makes
it from a preset, from a mapping such as `{"conv": "project", "linear": "reinit"}`, and from patterns.

How a parameter is cut (d_out x d_in is the shape of one matrix):

=====================  ==========================================================================================
Linear                 one matrix
Conv1d/2d/3d           one (c_out, c_in) matrix for every kernel position, as in the paper
grouped convolution    the same for each group: (c_out/g, c_in/g); groups never mix, so neither do their matrices
depthwise convolution  kept: with one input channel a group its matrices are m x 1, and a projection would leave
                       nothing of the filter but signs. `include` it by name to project it all the same
transposed conv.       as the convolution; stored (c_in, c_out/g, ...), so each matrix is transposed first
fused q, k, v          a matrix each over all heads, however their rows lie: in runs, interleaved by head, permuted
q, k, v, o by head     with layout="heads" a matrix for each head: its rows of q, k, v, its columns of o
fused gate and up      a matrix each: halves, or every other row
LSTM, GRU              a matrix for each gate of weight_ih and of weight_hh
experts in one tensor  a matrix for each expert (and gate, up), where a rule knows how they are stored
tied weight            once, under its first name
router                 kept, whether a layer or a raw parameter
adapter (LoRA)         kept: what counts is the product of its factors
embedding, norm, bias  kept; an embedding can be included by name or type
bilinear               kept; included by name, one (in1, in2) matrix for each output
other raw parameters   kept; included by name, 2-D ones are one matrix and 3-D ones a stack of matrices
behind another tensor  kept and never projected: parametrised, weight-normed, pruned, quantised, flat shards
=====================  ==========================================================================================

Cuts are known for the classes in `known`. A weight that looks fused and that no rule knows is kept, with a warning that
says how to declare it; it is never guessed at.

What a weight *is* (its role) comes from where it sits; see `topology`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fire_core.weights import advice, heads, topology
from fire_core.weights.describe import Reader
from fire_core.weights.entry import Entries, Entry
from fire_core.weights.fused import Cut, Declared, declared
from fire_core.weights.read import read_cuts
from fire_core.weights.topology import unwrap

__all__ = ["ACTIONS", "GROUPS", "PRESETS", "Entries", "Entry", "Layout", "Selector", "resolve"]

ACTIONS = ("project", "reinit", "keep")
DENSE = ("q", "k", "v", "attention_out", "mlp", "ssm", "recurrent", "head", "dense")
# A word in a layout stands for these roles.
GROUPS: dict[str, tuple[str, ...]] = {
    "linear": DENSE,
    "conv": ("conv",),
    "depthwise": ("depthwise",),
    "attention": ("q", "k", "v", "attention_out"),
    "qk": ("q", "k"),
    "mlp": ("mlp",),
    "ssm": ("ssm",),
    "recurrent": ("recurrent",),
    "router": ("router",),
    "adapter": ("adapter",),
    "head": ("head",),
    "embedding": ("embedding",),
}
FROZEN = "frozen (requires_grad=False): trainable_only=False takes it too"
_EVERY_LAYER = {"linear": "project", "conv": "project"}
PRESETS: dict[str, dict[str, str]] = {
    "all": _EVERY_LAYER,
    "attention": {"attention": "project"},
    "qk": {"qk": "project"},
    "heads": {"attention": "project"},  # q, k, v and the output projection cut by head
    "mlp": {"mlp": "project"},
    "conv": {"conv": "project"},
    # What the paper's reference code does for each of its networks.
    "resnet": _EVERY_LAYER,
    "vgg": _EVERY_LAYER,
    "vit": {"qk": "project"},
    "gpt": _EVERY_LAYER,
    "dqn": {"conv": "project", "linear": "reinit"},
    "sac": {"linear": "project"},
    "probe": _EVERY_LAYER,  # with cuts read off a forward pass
}

Selector = str | type[nn.Module] | nn.Module | Tensor
Layout = str | Mapping[str, str] | Sequence["Entry"]


def resolve(
    model: nn.Module,
    layout: Layout = "all",
    include: Selector | Iterable[Selector] = (),
    exclude: Selector | Iterable[Selector] = (),
    blocks: Mapping[str, Declared] | None = None,
    transposed: str | Iterable[str] = (),
    *,
    example: Any = None,
    strict: bool = False,
    trainable_only: bool = True,
) -> Entries:
    """Give every parameter of a model its matrices and its action.

    A selector is a pattern (`"*.mlp.*"`, matched against the parameter's names and the names of the modules around it,
    so that `"head"` means all below `head`), a module type, a module, or a parameter.

    Args:
        model: any module; DDP and `torch.compile` wrappers are looked through.
        layout: a preset of `PRESETS`; a mapping from a word of `GROUPS` or a pattern to an action, later ones win;
            or entries made by an earlier call.
        include: selectors of weights to project beside the layout's.
        exclude: selectors of weights to keep whatever the layout says.
        blocks: heights of the row blocks of fused weights, by pattern: `{"*.attn.proj_in.weight": (64, 16, 16)}`, or by
            name, `{"q": 64, "k": 16, "v": 16}`. `"repeats": 4` says that the pattern recurs, as when rows are
            interleaved by four heads; the heights are then those within a head.
        transposed: pattern(s) of weights that are stored (d_in, d_out).
        example: input for one forward pass off which the cuts are read, whatever is known of the model: a tensor, a
            tuple of arguments, or a mapping of keyword arguments. layout="probe" is "all" with cuts so read.
        strict: refuse a model with a weight that looks fused and is not known, instead of keeping it with a warning.
        trainable_only: keep frozen weights (`requires_grad=False`), unless they are included by name. A frozen weight
            cannot learn again what a projection takes from it.

    Returns:
        All entries in the order of `named_parameters()`, those that are kept too, each with its `reason`; `.warnings`
        of them all.

    Raises:
        ValueError: an unknown preset or action, an option of the wrong type, a selector that matches nothing, a fused
            weight that cannot be cut.
    """
    included, excluded = selectors_of("include", include), selectors_of("exclude", exclude)
    flipped = tuple(_patterns("transposed", transposed))
    if not isinstance(blocks, Mapping | None) or not all(isinstance(pattern, str) for pattern in blocks or ()):
        raise ValueError(f"blocks={blocks!r}: give a mapping from patterns to heights")
    if isinstance(layout, (str, Mapping)):
        rules = _rules(layout)
        if layout == "probe" and example is None:
            raise ValueError('layout="probe" reads the cuts off a forward pass: give it an input, example=batch')
        reader = Reader({} if example is None else read_cuts(model, example))
        entries, warnings = _describe(unwrap(model), dict(blocks or {}), flipped, reader, layout == "heads")
        if strict and any(entry.role == "fused" for entry in entries):
            raise ValueError("strict=True: " + "; ".join(advice.fused(entries)))
        if trainable_only:
            entries = [_frozen(entry) for entry in entries]
        for selector, action in rules.items():
            entries = _apply(entries, selector, action, f"layout[{selector!r}]", optional=selector in GROUPS)
    elif not isinstance(layout, Iterable) or not all(isinstance(entry, Entry) for entry in layout):
        raise ValueError(f"layout={layout!r}: give a preset's name, a mapping from words to actions, or entries")
    else:
        _refuse_beside_entries(blocks, transposed)
        entries, warnings = list(layout), list(getattr(layout, "warnings", ()))
    for chosen in included:
        entries = _apply(entries, chosen, "project", "include")
    if isinstance(layout, (str, Mapping)):  # a weight that the caller has chosen or excluded needs no advice
        undecided = [e for e in entries if e.action == "keep" and not any(matches(e, chosen) for chosen in excluded)]
        warnings += [
            *heads.warnings_of(undecided),
            *advice.fused(undecided),
            *advice.raw_parameters(undecided, sum(e.size for e in entries)),
        ]
    for chosen in excluded:
        entries = _apply(entries, chosen, "keep", "exclude")
    left = f"layout={layout!r} leaves it alone" if isinstance(layout, str) else "the layout leaves it alone"
    return Entries([e if e.reason or e.action != "keep" else replace(e, reason=left) for e in entries], warnings)


# ----------------------------------------------------------------------------------------------- actions and selectors


def selectors_of(option: str, selectors: Selector | Iterable[Selector]) -> list[Selector]:
    """One selector or several as a list.

    Raises:
        ValueError: something that is no selector.
    """
    if isinstance(selectors, (str, type, nn.Module, Tensor)):
        return [selectors]
    if not isinstance(selectors, Iterable):
        raise ValueError(f"{option}={selectors!r}: give a pattern, a type, a module or a parameter, or several of them")
    return list(selectors)


def _patterns(option: str, given: str | Iterable[str]) -> list[str]:
    patterns = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(f"{option}={given!r}: give a pattern, or several of them")
    return patterns


def _rules(layout: str | Mapping[str, str]) -> dict[str, str]:
    if isinstance(layout, str):
        if layout not in PRESETS:
            raise ValueError(f"layout={layout!r}: unknown; choose one of {', '.join(PRESETS)}, or give a mapping")
        return PRESETS[layout]
    for selector, action in layout.items():
        if action not in ACTIONS:
            raise ValueError(f"layout[{selector!r}]={action!r}: unknown action; choose one of {', '.join(ACTIONS)}")
    return dict(layout)


def _apply(entries: list[Entry], selector: Selector, action: str, option: str, optional: bool = False) -> list[Entry]:
    """Entries with `action` where `selector` matches; vectors and locked weights cannot be projected and stay."""
    matched = [matches(entry, selector) for entry in entries]
    usable = [hit and _can(entry, action, not optional) for hit, entry in zip(matched, entries, strict=True)]
    if not optional and not any(usable):
        locked = [entry for hit, entry in zip(matched, entries, strict=True) if hit and entry.kind == "locked"]
        if locked:
            raise ValueError(f"{option}={_shown(selector)}: cannot {action} {locked[0].name}: {locked[0].reason}")
        if any(matched):
            raise ValueError(f"{_shown(selector)} matches only biases and scales, which hold no matrix to project")
        raise nothing_matches(option, selector, entries)
    return [
        replace(e, action=action, reason=(e.reason or f"kept by {option}") if action == "keep" else "") if hit else e
        for hit, e in zip(usable, entries, strict=True)
    ]


def _can(entry: Entry, action: str, by_name: bool) -> bool:
    """Whether an entry takes an action; a frozen one only when it is chosen by its own name, type or module."""
    if entry.kind == "locked":
        return action == "keep"
    if entry.reason == FROZEN and action != "keep" and not by_name:
        return False
    return action != "project" or entry.kind != "vector"


def nothing_matches(option: str, selector: Selector, entries: Iterable[Entry]) -> ValueError:
    """What to raise for a selector that matches none of the entries; says what is near it, and for a layout the words.

    Args:
        option: the option's name, or that and the selector, `layout['liner']`.
        selector: what matches nothing.
        entries: all that could match.
    """
    names = list(dict.fromkeys([*GROUPS, *prefixes(name for entry in entries for name in entry.aliases)]))
    near = _near(selector, names) if isinstance(selector, str) else ""
    words = f"; words: {', '.join(GROUPS)}" if option.startswith("layout") else ""
    return ValueError(f"{option.partition('[')[0]}: no parameter matches {_shown(selector)}{near}{words}")


def _near(pattern: str, names: Iterable[str]) -> str:
    found = difflib.get_close_matches(pattern, list(names), n=3, cutoff=0.3)
    return f"; near it: {', '.join(found)}" if found else ""


def _shown(selector: Selector) -> str:
    """In one short line."""
    if isinstance(selector, (str, type)):
        return repr(selector) if isinstance(selector, str) else selector.__name__
    return f"the {type(selector).__name__} given" + (
        f" {tuple(selector.shape)}" if isinstance(selector, Tensor) else ""
    )


def matches(entry: Entry, selector: Selector) -> bool:
    """Whether a selector means this entry; see `resolve`."""
    if isinstance(selector, str):
        if selector in GROUPS:
            return entry.role in GROUPS[selector]
        return selector == entry.label or any(fnmatchcase(name, selector) for name in prefixes(entry.aliases))
    if isinstance(selector, type):
        return any(isinstance(module, selector) for module in entry.modules)
    if isinstance(selector, nn.Module):
        return any(module is selector for module in entry.modules)
    return entry.parameter is selector


def prefixes(names: Iterable[str]) -> Iterable[str]:
    """`a.b.weight` -> a, a.b, a.b.weight."""
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[: i + 1]) for i in range(len(parts)))


def _refuse_beside_entries(blocks: object, transposed: object) -> None:
    if blocks or transposed:
        raise ValueError(
            "blocks and transposed say how a layout is made: give them to `resolve`, not beside its entries"
        )


# ------------------------------------------------------------------------------------------ from model to entries


def _frozen(entry: Entry) -> Entry:
    take = entry.parameter.requires_grad or entry.kind == "locked"
    return entry if take else replace(entry, reason=FROZEN)


def _describe(
    model: nn.Module, blocks: Mapping[str, Declared], transposed: tuple[str, ...], reader: Reader, cut_heads: bool
) -> tuple[list[Entry], list[str]]:
    found = topology.uses_of(model)
    uses = [use for _, places in found for use in places]
    _check_patterns("blocks", blocks, uses)
    _check_patterns("transposed", transposed, uses)
    entries = []
    for parameter, places in found:
        cut = _entries(parameter, places, blocks, transposed, reader)
        entries += [heads.by_head(entry, _telling(places)) for entry in cut] if cut_heads else cut
    return entries, [*reader.warnings, *advice.quantised(model)]


def _telling(uses: list[topology.Use]) -> topology.Use:
    """The use that says what a parameter is: a table that is also the head's weight is a head."""
    return next((use for use in uses if not use.is_raw), uses[0])  # the linear module says how it is multiplied


def _check_patterns(option: str, patterns: Iterable[str], uses: list[topology.Use]) -> None:
    names = list(dict.fromkeys(use.name for use in uses))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = _near(pattern, names) or f"; the first are {', '.join(names[:3])}"
            raise ValueError(f"{option}: no parameter matches {pattern!r}{near}")


def _entries(
    parameter: Tensor,
    uses: list[topology.Use],
    blocks: Mapping[str, Declared],
    transposed: tuple[str, ...],
    reader: Reader,
) -> list[Entry]:
    """The entries of one parameter: several when its rows are fused projections."""
    use = _telling(uses)
    aliases = tuple(dict.fromkeys(u.name for u in uses))
    modules = tuple({id(m): m for u in uses for m in u.path[1:]}.values())
    kind, role, reason = topology.standing_of(use, parameter, len({id(u.owner) for u in uses}) > 1)
    entry = Entry(uses[0].name, parameter, role, kind=kind, aliases=aliases, modules=modules, reason=reason)
    heights = _declared_for(uses, blocks)
    flipped = any(fnmatchcase(u.name, pattern) for u in uses for pattern in transposed)
    _check_declared(entry, use, heights is not None, flipped)
    if kind == "locked":
        return [entry]
    if kind.startswith("conv") and isinstance(use.owner, _ConvNd):
        entry = replace(entry, groups=use.owner.groups)
    elif topology.is_transposed_linear(use.owner) or flipped:
        entry = replace(entry, transposed=parameter.ndim > 1)
    rows = entry.d_out
    if heights is not None:
        return _cut(entry, declared(entry.name, rows, heights, role in ("q", "k", "v")))
    finding = reader.find(use, parameter, rows, kind in ("matrix", "conv") and role in (*DENSE, "conv"))
    if not (finding.cut or finding.doubt):
        return [entry]
    if finding.cut is None:
        return [replace(entry, role="fused", reason=f"looks fused: {finding.doubt}") if kind != "vector" else entry]
    return _cut(entry, finding.cut, raw=use.is_raw)


def _cut(entry: Entry, cut: Cut, raw: bool = False) -> list[Entry]:
    """The blocks of a weight, each with its role; a raw parameter that a rule knows is a layer's weight like others."""
    if raw and entry.kind == "matrix":
        role = entry.role if entry.role != "other" else cut.role or "other"
        reason = entry.reason if role in ("other", "router") else ""
        entry = replace(entry, transposed=cut.transposed, groups=cut.groups, role=role, reason=reason)
    if len(cut.blocks) == 1:
        return [entry]
    attention = entry.role in GROUPS["attention"] or {"q", "k"} & {name for name, _ in cut.blocks}
    parts, start = [], 0
    for name, height in cut.blocks:
        role = entry.role
        if attention and role not in ("ssm", "other"):
            role = name if name in ("q", "k", "v") else "attention_out"
        rows = (start, start + height)
        parts.append(replace(entry, block=name, role=role, rows=rows, repeats=cut.repeats))
        start += height
    return parts


def _declared_for(uses: list[topology.Use], blocks: Mapping[str, Declared]) -> Declared | None:
    """The blocks that the user gives for a parameter; a bias goes with its layer's weight."""
    for name in (*(u.name for u in uses), *(u.weight_name for u in uses)):
        for pattern, heights in blocks.items():
            if fnmatchcase(name, pattern):
                return heights
    return None


def _check_declared(entry: Entry, use: topology.Use, cut: bool, flipped: bool) -> None:
    """Refuse what could only be ignored."""
    option = "blocks" if cut else "transposed"
    if (cut or flipped) and entry.kind == "locked":
        raise ValueError(f"{option}: cannot cut {entry.name}: {entry.reason}")
    if flipped and isinstance(use.owner, _ConvNd) and entry.kind != "vector":
        raise ValueError(f"transposed: {entry.name} is a convolution's; its layout is known")
    if cut and (entry.kind == "conv_transpose" or (isinstance(use.owner, _ConvNd) and use.owner.groups > 1)):
        raise ValueError(f"blocks: {entry.name} is a grouped or transposed convolution's and cannot be cut in rows")
