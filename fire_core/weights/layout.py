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
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fire_core.weights import topology
from fire_core.weights.topology import unwrap

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


@dataclass(frozen=True, eq=False)
class Entry:
    """One parameter, or one row block of a fused parameter, and what is to happen to it.

    Attributes:
        name: the parameter's first name in `named_parameters()`, wrappers such as `_orig_mod.` removed.
        parameter: the tensor itself.
        role: what it does in the network: a word of `GROUPS`' values, or "other".
        action: "project", "reinit" (to the initial value) or "keep".
        block: the block's name ("q", "k", "gate", ...), empty for a whole parameter.
        rows: the block's rows [start, stop) of the (d_out, d_in) matrix; None for all.
        kind: "matrix", "conv", "conv_transpose" or "vector" (a bias or scale: reinit and keep only).
        groups: groups of a convolution.
        transposed: stored (d_in, d_out), as some GPT-2 ports do.
        aliases: every name that the tensor goes by.
        modules: its owners and their ancestors below the root.
    """

    name: str
    parameter: Tensor
    role: str
    action: str = "keep"
    block: str = ""
    rows: tuple[int, int] | None = None
    kind: str = "matrix"
    groups: int = 1
    transposed: bool = False
    aliases: tuple[str, ...] = ()
    modules: tuple[nn.Module, ...] = ()

    @property
    def label(self) -> str:
        """The name, with the block: `h.0.attn.c_attn.weight[q]`."""
        return f"{self.name}[{self.block}]" if self.block else self.name

    @property
    def row_dim(self) -> int:
        """The dimension of the stored tensor that `rows` counts along."""
        last = self.parameter.ndim - 1
        return last if self.transposed or self.kind == "vector" else last - 1

    def view(self, weight: Tensor) -> Tensor:
        """The matrices of `weight` (a tensor of this parameter's full shape), as a view that can be written to.

        Args:
            weight: the parameter or a tensor of its shape; any memory format.

        Returns:
            (..., d_out, d_in); for a convolution (groups, *kernel, c_out / groups, c_in / groups).

        Raises:
            ValueError: for a vector, which holds no matrix.
        """
        if self.kind == "vector":
            raise ValueError(f"{self.label}: a vector holds no matrix to project")
        if self.kind == "conv":  # (c_out, c_in/g, *kernel)
            return self._grouped(weight).movedim((1, 2), (-2, -1))
        if self.kind == "conv_transpose":  # (c_in, c_out/g, *kernel)
            return self._grouped(weight).movedim((2, 1), (-2, -1))
        matrix = weight.mT if self.transposed else weight
        return matrix if self.rows is None else matrix[..., self.rows[0] : self.rows[1], :]

    def _grouped(self, weight: Tensor) -> Tensor:
        """(g * a, b, ...) -> (g, a, b, ...), as a view whatever the memory format."""
        return torch.unflatten(weight, 0, (self.groups, -1))

    @cached_property
    def shape(self) -> tuple[int, int]:
        """(d_out, d_in) of one matrix."""
        view = self.view(_meta(self.parameter))
        return view.shape[-2], view.shape[-1]

    @cached_property
    def count(self) -> int:
        """How many matrices the entry holds."""
        return math.prod(self.view(_meta(self.parameter)).shape[:-2])

    @property
    def positions(self) -> int:
        """Kernel positions k_h * k_w of a convolution, 1 for anything else."""
        return self.count // self.groups if self.kind.startswith("conv") else 1


def resolve(
    model: nn.Module,
    layout: Layout = "all",
    include: Selector | Iterable[Selector] = (),
    exclude: Selector | Iterable[Selector] = (),
    blocks: Mapping[str, Sequence[int]] | None = None,
    transposed: Iterable[str] = (),
) -> list[Entry]:
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

    Returns:
        All entries in the order of `named_parameters()`, those that are kept too.

    Raises:
        ValueError: an unknown preset or action, a selector that matches nothing, a fused weight that cannot be cut.
    """
    if isinstance(layout, (str, Mapping)):
        rules = _rules(layout)
        entries = _describe(unwrap(model), dict(blocks or {}), tuple(transposed))
        for selector, action in rules.items():
            entries = _apply(entries, selector, action, optional=selector in GROUPS)
    else:
        entries = list(layout)
    for chosen in _several(include):
        entries = _apply(entries, chosen, "project")
    for chosen in _several(exclude):
        entries = _apply(entries, chosen, "keep")
    return entries


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


def _apply(entries: list[Entry], selector: Selector, action: str, optional: bool = False) -> list[Entry]:
    """Entries with `action` where `selector` matches; vectors cannot be projected and stay as they are."""
    matched = [_matches(entry, selector) for entry in entries]
    usable = [hit and not (action == "project" and e.kind == "vector") for hit, e in zip(matched, entries, strict=True)]
    if not optional and not any(usable):
        if any(matched):
            raise ValueError(f"{selector!r} matches only biases and scales, which hold no matrix to project")
        near = difflib.get_close_matches(str(selector), [entry.name for entry in entries], n=3, cutoff=0.3)
        raise ValueError(f"no parameter matches {selector!r}" + (f"; near it: {', '.join(near)}" if near else ""))
    return [replace(e, action=action) if hit else e for hit, e in zip(usable, entries, strict=True)]


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
    role = topology.role_of(use, len({id(u.owner) for u in uses}) > 1)
    entry = Entry(
        uses[0].name, parameter, role, kind=topology.kind_of(use, parameter), aliases=aliases, modules=modules
    )
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


def _meta(parameter: Tensor) -> Tensor:
    """A tensor with the parameter's (global) shape and no memory."""
    return torch.empty(parameter.shape, device="meta")
