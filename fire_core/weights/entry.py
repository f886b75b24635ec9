"""One parameter, or one block of a fused parameter, as matrices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

Declared = Sequence[int] | Mapping[str, int]  # blocks of rows as a caller or a model gives them, see `layout.resolve`


@dataclass(frozen=True)
class Cut:
    """Blocks of rows, in their order, and how often this pattern recurs.

    Attributes:
        blocks: (name, rows) of each block within one period. A single one for a weight that is one matrix.
        repeats: periods: 1 for [q][k][v], the heads for a projection that is interleaved by head.
        transposed: a raw parameter that is stored (..., d_in, d_out).
        groups: matrices that lie one after the other in the first dimension of a 2-D parameter (experts).
        role: what a raw parameter does; empty where the module says so.
    """

    blocks: tuple[tuple[str, int], ...]
    repeats: int = 1
    transposed: bool = False
    groups: int = 1
    role: str = ""

    @property
    def rows(self) -> int:
        return self.repeats * sum(height for _, height in self.blocks)


@dataclass(frozen=True, eq=False)
class Entry:
    """One parameter, or one block of a fused parameter, and what is to happen to it.

    Attributes:
        name: the parameter's first name in `named_parameters()`, wrappers such as `_orig_mod.` removed.
        parameter: the tensor itself.
        role: what it does in the network: a word of `layout.GROUPS`' values, or one that no preset projects
            ("other", "fused").
        action: "project", "reinit" (to the initial value) or "keep".
        block: the block's name ("q", "k", "gate", ...), empty for a whole parameter.
        rows: the block's rows [start, stop) of the (d_out, d_in) matrix; None for all.
        kind: "matrix", "conv", "conv_transpose", "vector" (a bias or scale: reinit and keep only) or "locked" (integer,
            quantised, behind a parametrization: keep only).
        groups: groups of a convolution; of another weight, matrices that lie one after the other in dimension 0.
        transposed: stored (d_in, d_out), as some GPT-2 ports do.
        aliases: every name that the tensor goes by.
        modules: its owners and their ancestors below the root.
        repeats: how often the blocks' pattern recurs. With 1 the block is one run of rows. A projection interleaved by
            head repeats once a head: `rows` are then those within a head, and the matrix is all heads' rows together.
        reason: why the entry is kept; empty for one that is projected.
        heads: how many attention heads the block is cut into, each a matrix; 1: it is one.
        columns: whether heads divide its columns, as those of an output projection.
        padding: an embedding's `padding_idx`: the row that its layer never trains; None for other weights.
        is_tied: whether other layers than embeddings use the weight too, so that they train that row.
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
    repeats: int = 1
    reason: str = ""
    heads: int = 1
    columns: bool = False
    padding: int | None = None
    is_tied: bool = False

    @property
    def label(self) -> str:
        """The name, with the block: `h.0.attn.c_attn.weight[q]`."""
        return f"{self.name}[{self.block}]" if self.block else self.name

    @property
    def row_dim(self) -> int:
        """The dimension of the stored tensor that `rows` counts along."""
        if self.kind == "conv":
            return 0
        last = self.parameter.ndim - 1
        return last if self.transposed or self.kind == "vector" else last - 1

    @property
    def d_out(self) -> int:
        """Rows of the whole parameter's matrix, or the length of a bias."""
        if self.parameter.ndim == 0:
            return 1
        return self.parameter.shape[1 if self.kind == "conv_transpose" else self.row_dim]

    @cached_property
    def where(self) -> slice | Tensor:
        """The block's positions along `row_dim`: a slice, or an index (n,) where they lie apart."""
        if self.rows is None:
            return slice(None)
        if self.repeats * self.groups == 1:
            return slice(*self.rows)
        every = torch.arange(self.parameter.shape[self.row_dim], device="cpu").view(self.repeats * self.groups, -1)
        return every[:, slice(*self.rows)].flatten()

    def view(self, weight: Tensor) -> Tensor:
        """The matrices of `weight` (a tensor of this parameter's full shape).

        Args:
            weight: the parameter or a tensor of its shape; any memory format.

        Returns:
            (..., d_out, d_in); for a convolution (groups, *kernel, c_out / groups, c_in / groups), cut by head
            (..., heads, d_out, d_in) of a head. A view, except where the rows lie apart (`repeats` above 1): so write
            with `write_`.

        Raises:
            ValueError: for a vector, which holds no matrix, and a locked weight, whose numbers are no matrix.
        """
        strided = self._strided(weight)
        return strided if self.repeats == 1 or self.rows is None or self.heads > 1 else strided.flatten(-3, -2)

    def read(self, tensor: Tensor | None = None) -> Tensor:
        """The matrices, (count, d_out, d_in): of the parameter or of a tensor of its shape, such as its gradient."""
        return self.view(self.parameter.detach() if tensor is None else tensor).reshape(self.count, *self.shape)

    def write_(self, weight: Tensor, matrices: Tensor) -> None:
        """Copy matrices, as `view` or `read` gives them, into `weight`."""
        target = self._strided(weight)
        target.copy_(matrices.reshape(target.shape))

    def _strided(self, weight: Tensor) -> Tensor:
        """The matrices as a view always; with `repeats` above 1, d_out falls apart into (repeats, rows)."""
        if self.kind in ("vector", "locked"):
            raise ValueError(f"{self.label}: a {self.kind} weight holds no matrix to project")
        matrix = weight  # a convolution is stored (c_out, c_in/g, *kernel), a transposed one (c_in, c_out/g, *kernel)
        if self.groups > 1 or self.kind != "matrix":  # (g * a, b, ...) -> (g, a, b, ...)
            matrix = torch.unflatten(weight, 0, (self.groups, -1))
        if self.kind != "matrix":
            matrix = matrix.movedim((1, 2) if self.kind == "conv" else (2, 1), (-2, -1))
        elif self.transposed:
            matrix = matrix.mT
        if self.rows is not None:
            if self.repeats > 1:
                matrix = torch.unflatten(matrix, -2, (self.repeats, -1))
            matrix = matrix[..., slice(*self.rows), :]
        if self.heads == 1:
            return matrix
        if self.columns:
            return torch.unflatten(matrix, -1, (self.heads, -1)).movedim(-2, -3)
        return torch.unflatten(matrix, -2, (self.heads // self.repeats, -1))

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

    @property
    def size(self) -> int:
        """How many numbers of the parameter belong to this entry."""
        if self.rows is None:
            return self.parameter.numel()
        total = max(1, self.parameter.shape[self.row_dim])
        return self.parameter.numel() // total * (self.rows[1] - self.rows[0]) * self.repeats * self.groups


class Entries(list[Entry]):
    """What `resolve` gives: the entries in the order of `named_parameters()`, and what the user must know of them.

    Attributes:
        warnings: one line each; for a weight that looks fused, the line that declares its blocks.
    """

    def __init__(self, entries: Iterable[Entry] = (), warnings: Iterable[str] = ()) -> None:
        super().__init__(entries)
        self.warnings = list(dict.fromkeys(warnings))


def _meta(parameter: Tensor) -> Tensor:
    """A tensor with the parameter's (global) shape and no memory."""
    return torch.empty(parameter.shape, device="meta")
