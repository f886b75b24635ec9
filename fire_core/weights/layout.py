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
fused q, k, v          row blocks q, k, v, of unequal height under grouped-query attention
fused gate and up      two row blocks of equal height
tied weight            once, under its first name
embedding, norm, bias  kept; an embedding can be included by name or type
other raw parameters   kept; included by name, 2-D ones are one matrix and 3-D ones a stack of matrices (experts)
=====================  ==========================================================================================

What a weight *is* (its role) comes from where it sits; see `topology`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import cast

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fire_core.weights import topology
from fire_core.weights.entry import Entries, Entry
from fire_core.weights.topology import unwrap

__all__ = ["ACTIONS", "GROUPS", "PRESETS", "Entries", "Entry", "Layout", "Selector", "resolve"]

ACTIONS = ("project", "reinit", "keep")
DENSE = ("q", "k", "v", "attention_out", "mlp", "ssm", "head", "dense")
# A word in a layout stands for these roles.
GROUPS: dict[str, tuple[str, ...]] = {
    "linear": DENSE,
    "conv": ("conv",),
    "depthwise": ("depthwise",),
    "attention": ("q", "k", "v", "attention_out"),
    "qk": ("q", "k"),
    "mlp": ("mlp",),
    "ssm": ("ssm",),
    "head": ("head",),
    "embedding": ("embedding",),
}
FROZEN = "frozen (requires_grad=False): trainable_only=False takes it too"
_EVERY_LAYER = {"linear": "project", "conv": "project"}
PRESETS: dict[str, dict[str, str]] = {
    "all": _EVERY_LAYER,
    "attention": {"attention": "project"},
    "qk": {"qk": "project"},
    "mlp": {"mlp": "project"},
    "conv": {"conv": "project"},
    # What the paper's reference code does for each of its networks.
    "resnet": _EVERY_LAYER,
    "vgg": _EVERY_LAYER,
    "vit": {"qk": "project"},
    "gpt": _EVERY_LAYER,
    "dqn": {"conv": "project", "linear": "reinit"},
    "sac": {"linear": "project"},
}

Selector = str | type[nn.Module] | nn.Module | Tensor
Layout = str | Mapping[str, str] | Sequence["Entry"]


def resolve(
    model: nn.Module,
    layout: Layout = "all",
    include: Selector | Iterable[Selector] = (),
    exclude: Selector | Iterable[Selector] = (),
    blocks: Mapping[str, Sequence[int]] | None = None,
    transposed: Iterable[str] = (),
    *,
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
        blocks: heights of the row blocks of fused weights, by pattern: `{"*.attn.proj_in.weight": (64, 16, 16)}`.
        transposed: patterns of weights that are stored (d_in, d_out).
        trainable_only: keep frozen weights (`requires_grad=False`), unless they are included by name. A frozen weight
            cannot learn again what a projection takes from it.

    Returns:
        All entries in the order of `named_parameters()`, those that are kept too, each with its `reason`; `.warnings`
        of them all.

    Raises:
        ValueError: an unknown preset or action, a selector that matches nothing, a fused weight that cannot be cut.
    """
    if isinstance(layout, (str, Mapping)):
        rules = _rules(layout)
        entries = _describe(unwrap(model), dict(blocks or {}), tuple(transposed))
        if trainable_only:
            entries = [_frozen(entry) for entry in entries]
        for selector, action in rules.items():
            entries = _apply(entries, selector, action, f"layout[{selector!r}]", optional=selector in GROUPS)
        warnings: list[str] = []
    elif not all(isinstance(entry, Entry) for entry in layout):
        raise ValueError(f"layout={layout!r}: give a preset's name, a mapping from words to actions, or entries")
    else:
        entries, warnings = list(layout), list(getattr(layout, "warnings", ()))
    for chosen in _several(include):
        entries = _apply(entries, chosen, "project", "include")
    for chosen in _several(exclude):
        entries = _apply(entries, chosen, "keep", "exclude")
    left = f"layout={layout!r} leaves it alone" if isinstance(layout, str) else "the layout leaves it alone"
    return Entries([e if e.reason or e.action != "keep" else replace(e, reason=left) for e in entries], warnings)


# ----------------------------------------------------------------------------------------------- actions and selectors


def _several(selectors: Selector | Iterable[Selector]) -> list[Selector]:
    one = isinstance(selectors, (str, type, nn.Module, Tensor))
    return [cast(Selector, selectors)] if one else list(cast(Iterable[Selector], selectors))


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
    matched = [_matches(entry, selector) for entry in entries]
    usable = [hit and _can(entry, action, not optional) for hit, entry in zip(matched, entries, strict=True)]
    if not optional and not any(usable):
        locked = [entry for hit, entry in zip(matched, entries, strict=True) if hit and entry.kind == "locked"]
        if locked:
            raise ValueError(f"{option}={selector!r}: cannot {action} {locked[0].name}: {locked[0].reason}")
        if any(matched):
            raise ValueError(f"{selector!r} matches only biases and scales, which hold no matrix to project")
        near = difflib.get_close_matches(str(selector), [entry.name for entry in entries], n=3, cutoff=0.3)
        raise ValueError(f"no parameter matches {selector!r}" + (f"; near it: {', '.join(near)}" if near else ""))
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


def _matches(entry: Entry, selector: Selector) -> bool:
    if isinstance(selector, str):
        if selector in GROUPS:
            return entry.role in GROUPS[selector]
        return selector == entry.label or any(fnmatchcase(name, selector) for name in _prefixes(entry.aliases))
    if isinstance(selector, type):
        return any(isinstance(module, selector) for module in entry.modules)
    if isinstance(selector, nn.Module):
        return any(module is selector for module in entry.modules)
    return entry.parameter is selector


def _prefixes(names: Iterable[str]) -> Iterable[str]:
    """`a.b.weight` -> a, a.b, a.b.weight."""
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[: i + 1]) for i in range(len(parts)))


# ------------------------------------------------------------------------------------------ from model to entries


def _frozen(entry: Entry) -> Entry:
    take = entry.parameter.requires_grad or entry.kind == "locked"
    return entry if take else replace(entry, reason=FROZEN)


def _describe(model: nn.Module, blocks: dict[str, Sequence[int]], transposed: tuple[str, ...]) -> list[Entry]:
    found = topology.uses_of(model)
    _check_patterns((*blocks, *transposed), [use for _, places in found for use in places])
    return [entry for parameter, places in found for entry in _entries(parameter, places, blocks, transposed)]


def _check_patterns(patterns: Iterable[str], uses: list[topology.Use]) -> None:
    for pattern in patterns:
        if not any(fnmatchcase(use.name, pattern) for use in uses):
            raise ValueError(f"no parameter matches {pattern!r}")


def _entries(
    parameter: Tensor, uses: list[topology.Use], blocks: dict[str, Sequence[int]], transposed: tuple[str, ...]
) -> list[Entry]:
    """The entries of one parameter: several when its rows are fused projections."""
    # A table that is also the head's weight is a head: the linear module says how it is multiplied.
    use = next((use for use in uses if isinstance(use.owner, (nn.Linear, _ConvNd))), uses[0])
    aliases = tuple(dict.fromkeys(u.name for u in uses))
    modules = tuple({id(m): m for u in uses for m in u.path[1:]}.values())
    kind, role, reason = topology.standing_of(use, parameter, len({id(u.owner) for u in uses}) > 1)
    entry = Entry(uses[0].name, parameter, role, kind=kind, aliases=aliases, modules=modules, reason=reason)
    if kind == "locked":
        return [entry]
    if isinstance(use.owner, _ConvNd):
        return [replace(entry, groups=use.owner.groups)]
    if topology.is_transposed_linear(use.owner) or any(fnmatchcase(u.name, p) for u in uses for p in transposed):
        entry = replace(entry, transposed=parameter.ndim > 1)
    d_out = parameter.shape[entry.row_dim] if parameter.ndim else 1
    declared = next(
        (sizes for pattern, sizes in blocks.items() if any(fnmatchcase(u.name, pattern) for u in uses)), None
    )
    cut = (
        topology.declared_blocks(entry.name, role, d_out, declared)
        if declared
        else topology.fused_blocks(use, d_out, role)
    )
    if len(cut) == 1:
        return [entry]
    starts = [sum(height for _, _, height in cut[:i]) for i in range(len(cut))]
    return [
        replace(entry, block=block, role=part, rows=(start, start + height))
        for start, (block, part, height) in zip(starts, cut, strict=True)
    ]
