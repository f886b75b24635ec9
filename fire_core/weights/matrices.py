"""The map of a model: which matrices its weights hold, fused ones and stacks too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from torch import Tensor, nn

from fire_core.weights.entry import Entry
from fire_core.weights.layout import resolve


@dataclass(frozen=True, eq=False)
class Matrix:
    """One matrix of a model, or the equal-shaped ones that a block of a weight holds: experts, kernel positions.

    Attributes:
        name: the parameter's name.
        block: which block of it ("q", "gate", ...); empty for a whole parameter.
        parameter: the tensor itself, as it is stored.
        role: what it does in the network: q, k, v, attention_out, mlp, head, conv, embedding, ...; "fused" is a weight
            that looks fused and whose blocks are not known.
        shape: (d_out, d_in) of one matrix.
        count: how many matrices of this shape: experts, kernel positions, heads where they are cut; else 1.
        rows: the block's rows [start, stop), of d_out or, with `repeats`, of one repetition; None for all.
        repeats: how often the blocks' pattern recurs, as where q, k, v lie interleaved by head; else 1.
        transposed: whether it is stored (d_in, d_out).
        heads: attention heads that it is cut into, each a matrix; 1: it is not cut.
        note: why a projection by default leaves it as it is; empty for what is projected.
        entry: the same as `resolve` gives it.
    """

    name: str
    block: str
    parameter: Tensor
    role: str
    shape: tuple[int, int]
    count: int
    rows: tuple[int, int] | None
    repeats: int
    transposed: bool
    heads: int
    note: str
    entry: Entry

    @property
    def label(self) -> str:
        """Name and block: `h.0.attn.c_attn.weight[q]`."""
        return self.entry.label

    def read(self, tensor: Tensor | None = None) -> Tensor:
        """The matrices, (count, d_out, d_in): of the parameter or of a tensor of its shape, such as its gradient."""
        tensor = self.parameter.detach() if tensor is None else tensor
        return self.entry.view(tensor).reshape(self.count, *self.shape)

    def write_(self, tensor: Tensor, matrices: Tensor) -> None:
        """Put matrices, as `read` gives them, into a tensor of the parameter's shape."""
        self.entry.write_(tensor, matrices)


class Matrices(Sequence[Matrix]):
    """The matrices of a model in the order of its parameters. Printed it is a table.

    Attributes:
        warnings: one line for each weight that looks fused and is not known, with how to declare it.
        unread: a line for each weight whose numbers are no matrix: quantised, parametrised, a flat shard.
    """

    def __init__(self, matrices: Sequence[Matrix], warnings: Sequence[str], unread: Sequence[str]) -> None:
        self._matrices, self.warnings, self.unread = tuple(matrices), tuple(warnings), tuple(unread)

    @overload
    def __getitem__(self, index: int) -> Matrix: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Matrix, ...]: ...
    def __getitem__(self, index: int | slice) -> Matrix | tuple[Matrix, ...]:
        return self._matrices[index]

    def __len__(self) -> int:
        return len(self._matrices)

    def __iter__(self) -> Iterator[Matrix]:
        return iter(self._matrices)

    def to_json(self, indent: int | None = None) -> str:
        """All but the tensors themselves, as a JSON object with `matrices`, `warnings` and `unread`."""
        found = {"matrices": self.rows(), "warnings": self.warnings, "unread": self.unread}
        return json.dumps(found, indent=indent)

    def rows(self) -> list[dict[str, Any]]:
        """What the table shows, a mapping for each matrix."""
        return [described(matrix.entry) for matrix in self]

    def __str__(self) -> str:
        return "\n".join([aligned(COLUMNS, map(cells, self.rows())), *self.warnings, *self.unread])


COLUMNS = ("weight", "role", "d_out x d_in", "count", "rows", "stored")


def described(entry: Entry) -> dict[str, Any]:
    """The fields of a `Matrix` but the parameter, of a block that holds one."""
    return {
        "name": entry.name,
        "block": entry.block,
        "role": entry.role,
        "shape": entry.shape,
        "count": entry.count,
        "rows": entry.rows,
        "repeats": entry.repeats,
        "transposed": entry.transposed,
        "heads": entry.heads,
        "note": "" if entry.action == "project" else entry.reason,
    }


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    rows = "" if row["rows"] is None else f"{row['rows'][0]}:{row['rows'][1]}"
    rows += f" of each of {row['repeats']}" if row["repeats"] > 1 else ""
    label = f"{row['name']}[{row['block']}]" if row["block"] else row["name"]
    stored = "(d_in, d_out)" if row["transposed"] else ""
    return label, row["role"], f"{row['shape'][0]} x {row['shape'][1]}", str(row["count"]), rows, stored


def aligned(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of text with columns of one width."""
    table = [head, *lines]
    widths = [max(len(line[i]) for line in table) for i in range(len(head))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in table)


def matrices(model: nn.Module, **options: Any) -> Matrices:
    """Which matrices the weights of a model hold.

    A fused weight is given block by block (q, k, v; gate, up; the gates of an LSTM), stored transposed or interleaved
    as it may be; a tied weight comes once, under its first name. What is known is that of `fire_`: declared by the
    caller or the model, else known, else read off a forward pass, else named as not known.

    Args:
        model: any module; DDP and `torch.compile` wrappers are looked through. On the meta device too.
        **options: of `resolve`, such as `blocks=`, `transposed=`, `example=`, `layout="heads"`, `strict=True`.

    Returns:
        The matrices; biases, scales and other vectors are not in it.

    Raises:
        ValueError: an option that `resolve` refuses.
    """
    entries = resolve(model, **options)
    found, unread = [], []
    for entry in entries:
        if entry.kind == "locked":
            unread.append(f"{entry.label}: {entry.reason}")
        elif entry.kind != "vector" and entry.parameter.numel():
            found.append(Matrix(**described(entry), parameter=entry.parameter, entry=entry))
    return Matrices(found, entries.warnings, unread)
