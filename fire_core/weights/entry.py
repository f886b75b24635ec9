"""One parameter, or one block of a fused parameter, as matrices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

Declared = Sequence[int] | Mapping[str, int]  # numbers of rows of the blocks, see `layout.resolve`


@dataclass(frozen=True)
class Cut:
    """How the rows of a weight divide into blocks: a pattern of blocks and how often it repeats.

    Attributes:
        blocks: (name, number of rows) of each block in the pattern, in order; one block if the weight is one matrix.
        repeats: how often the pattern repeats: 1 for [q][k][v], the number of heads if it is interleaved by head.
        transposed: true if a raw parameter is stored (..., d_in, d_out).
        groups: number of matrices (experts) one after the other in the first dimension of a 2-D parameter.
        role: the role of a raw parameter, see `Entry`; "" if the module around it tells.
    """

    blocks: tuple[tuple[str, int], ...]
    repeats: int = 1
    transposed: bool = False
    groups: int = 1
    role: str = ""

    @property
    def rows(self) -> int:
        """Return the number of rows of the weight's matrix."""
        return self.repeats * sum(height for _, height in self.blocks)


@dataclass(frozen=True, eq=False)
class Entry:
    """One parameter, or one block of a fused parameter, and the action for it.

    Attributes:
        name: the parameter's first name in `named_parameters()`, without names of wrappers such as `_orig_mod.`.
        parameter: the tensor itself.
        role: what the weight does in the network: a word in the values of `layout.GROUPS`, or a word that no preset
            projects ("other", "fused", "changed", "unused").
        action: "project", "reinit" (to the initial value) or "keep".
        block: name of the block ("q", "k", "gate", ...); "" for a whole parameter.
        rows: the block's rows [start, stop) of the (d_out, d_in) matrix; None: all rows.
        kind: "matrix", "conv", "conv_transpose", "vector" (a bias or scale: reinit and keep only) or "locked" (integer,
            quantised, behind a parametrization: keep only).
        groups: groups of a convolution; of another weight, the number of matrices one after the other in dimension 0.
        transposed: true if it is stored (d_in, d_out), as in some ports of GPT-2.
        aliases: all names of the tensor, more than one if it is tied.
        modules: the modules that own the parameter and the modules around them, without the root.
        repeats: how often the pattern of blocks repeats. If 1, the block is one run of rows. A projection interleaved
            by head repeats once for each head: `rows` then counts within a head, and the block's matrix has these rows
            of all heads.
        reason: why the entry is kept; "" if it is projected.
        heads: number of attention heads that the block is cut into, each a matrix; 1: the block is one matrix.
        columns: true if heads divide the columns, as in an output projection, and not the rows.
        padding: an embedding's `padding_idx`, the row that its layer never trains; None for other weights.
        is_tied: whether layers other than embeddings use the weight too, and so train that row.
        is_put_out: whether the source says that it is a convolution whose output the model returns.
        reads_input: whether the source says that its layer reads the model's first argument.
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
    is_put_out: bool = False
    reads_input: bool = False

    @property
    def label(self) -> str:
        """Return the name with the block behind it: `h.0.attn.c_attn.weight[q]`."""
        return f"{self.name}[{self.block}]" if self.block else self.name

    @property
    def row_dim(self) -> int:
        """Return the dimension of the stored tensor that `rows` counts along."""
        if self.kind.startswith("conv"):
            return 1 if self.kind == "conv_transpose" else 0
        last = self.parameter.ndim - 1
        return last if self.transposed or self.kind == "vector" else last - 1

    @property
    def d_out(self) -> int:
        """Return the number of rows of the whole parameter's matrix, or the length of a bias."""
        if self.parameter.ndim == 0:
            return 1
        return self.parameter.shape[self.row_dim]

    @cached_property
    def where(self) -> slice | Tensor:
        """Return the block's positions along `row_dim`: a slice or, if they are not one run, an index of shape (n,)."""
        if self.rows is None:
            return slice(None)
        if self.repeats * self.groups == 1:
            return slice(*self.rows)
        positions = torch.arange(self.parameter.shape[self.row_dim], device="cpu")
        return positions.view(self.repeats * self.groups, -1)[:, slice(*self.rows)].flatten()

    def view(self, weight: Tensor) -> Tensor:
        """Return the matrices of this entry in a tensor of the parameter's shape.

        Args:
            weight: the parameter or a tensor of its shape, such as its gradient; any memory format.

        Returns:
            (..., d_out, d_in). For a convolution it is (groups, *kernel, c_out / groups, c_in / groups); with `heads`
            above 1 it is (..., heads, d_out, d_in), where d_out x d_in is the shape of one head's matrix. It is a view,
            but a copy if `repeats` is above 1, so write with `write_`.

        Raises:
            ValueError: the entry is a vector or locked, so it holds no matrix.
        """
        strided = self._strided(weight)
        return strided if self.repeats == 1 or self.rows is None or self.heads > 1 else strided.flatten(-3, -2)

    def read(self, tensor: Tensor | None = None) -> Tensor:
        """Return the matrices as (count, d_out, d_in).

        Args:
            tensor: a tensor of the parameter's shape, such as its gradient; None: the parameter.

        Raises:
            ValueError: the entry is a vector or locked.
        """
        return self.view(self.parameter.detach() if tensor is None else tensor).reshape(self.count, *self.shape)

    def write_(self, weight: Tensor, matrices: Tensor) -> None:
        """Copy matrices into a weight, in place.

        Args:
            weight: the parameter or a tensor of its shape.
            matrices: what `view` or `read` returned, or a tensor of that shape.

        Raises:
            ValueError: the entry is a vector or locked.
        """
        target = self._strided(weight)
        target.copy_(matrices.reshape(target.shape))

    def _strided(self, weight: Tensor) -> Tensor:
        """Return what `view` returns, but always as a view: with `repeats` above 1, d_out is (repeats, rows).

        Raises:
            ValueError: the entry is a vector or locked: it holds no matrix.
        """
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
        """Return (d_out, d_in) of one matrix."""
        view = self.view(_meta(self.parameter))
        return view.shape[-2], view.shape[-1]

    @cached_property
    def count(self) -> int:
        """Return the number of matrices that the entry holds."""
        return math.prod(self.view(_meta(self.parameter)).shape[:-2])

    @property
    def positions(self) -> int:
        """Return the number of kernel positions of a convolution, such as k_h * k_w; 1 for anything else."""
        return self.count // self.groups if self.kind.startswith("conv") else 1

    @property
    def size(self) -> int:
        """Return the number of the parameter's elements that belong to this entry."""
        if self.rows is None:
            return self.parameter.numel()
        total = max(1, self.parameter.shape[self.row_dim])
        return self.parameter.numel() // total * (self.rows[1] - self.rows[0]) * self.repeats * self.groups


class Entries(list[Entry]):
    """What `resolve` returns: the entries in the order of `named_parameters()`, and what the user should know.

    Attributes:
        warnings: lines for the user; for a weight that looks fused, the line says how to declare its blocks.
    """

    def __init__(self, entries: Iterable[Entry] = (), warnings: Iterable[str] = ()) -> None:
        super().__init__(entries)
        self.warnings = list(dict.fromkeys(warnings))


def _meta(parameter: Tensor) -> Tensor:
    """Return a tensor of the parameter's (global) shape without memory, to compute shapes with."""
    return torch.empty(parameter.shape, device="meta")
