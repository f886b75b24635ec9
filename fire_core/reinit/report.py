"""What a projection did to each weight, as rows that print as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Row:
    """One parameter, or one row block of a fused parameter.

    Attributes:
        name: the parameter, with the block: `h.0.attn.c_attn.weight[q]`.
        shape: (d_out, d_in) of one matrix.
        matrices: how many matrices the parameter holds (kernel positions, groups).
        action: "project", "reinit" or "skip" (every matrix lies below `min_norm`).
        dfi_before: DfI of W / scale, summed over the matrices. In units of the target scale, so that before and after
            compare and a weight that is already where the projection would put it has 0. DfI of the raw W, which
            also counts its mere size, is `metrics.dfi(W)`.
        dfi_after: the same of the new weight: what the solver really reached, 0 for an exact projection.
        sfe: ||W_new - W_old||_F^2, raw units, summed over the matrices: how far the weight moved.
        scale: factor on the polar factor: every singular value's target.
        solver: the solver's name, "svd" for a blend, "init" for a reinitialisation.
        iterations: Newton-Schulz steps, 0 for a direct solve.
        rank: smallest rank among the matrices, None where the solver does not look.
        completed: how many matrices had their null space filled.
        skipped: how many matrices lie below `min_norm`.
        seconds: this row's share of its batch's time.
    """

    name: str
    shape: tuple[int, ...]
    matrices: int
    action: str
    dfi_before: float = math.nan
    dfi_after: float = math.nan
    sfe: float = math.nan
    scale: float = math.nan
    solver: str = ""
    iterations: int = 0
    rank: int | None = None
    completed: int = 0
    skipped: int = 0
    seconds: float = 0.0


@dataclass
class Report:
    """Rows in the model's order, the names of what was kept, the parameters that changed, and the seconds taken."""

    rows: list[Row] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    parameters: list[Tensor] = field(default_factory=list, repr=False)
    seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def total(self, column: str) -> float:
        """Sum of a numeric column over the rows: `report.total("dfi_after")`. NaN rows (not measured) are left out."""
        values = [float(getattr(row, column) or 0) for row in self.rows]
        return math.fsum(value for value in values if not math.isnan(value))

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as plain dictionaries."""
        return [asdict(row) for row in self.rows]

    def __str__(self) -> str:
        head = ("name", "shape", "n", "action", "DfI before", "DfI after", "SFE", "scale", "solver", "it", "rank", "s")
        lines = [head, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        text = [" ".join(_align(i, cell, widths[i]) for i, cell in enumerate(line)).rstrip() for line in lines]
        changed = sum(row.matrices - row.skipped for row in self.rows if row.action == "project")
        totals = ", ".join(
            f"{label} {self.total(column):.4g}"
            for label, column in (("DfI before", "dfi_before"), ("DfI after", "dfi_after"), ("SFE", "sfe"))
        )
        filled = int(self.total("completed"))
        text.append(
            f"{changed} matrices projected, {len(self.kept)} parameters kept; {totals}; {self.seconds:.3f} s"
            + (f"; {filled} rank-deficient matrices completed" if filled else "")
        )
        return "\n".join(text)


def _cells(row: Row) -> tuple[str, ...]:
    rank = "" if row.rank is None else f"{row.rank}" + (f" (+{row.completed})" if row.completed else "")
    numbers = (
        f"{value:.4g}" if not math.isnan(value) else "" for value in (row.dfi_before, row.dfi_after, row.sfe, row.scale)
    )
    action = f"{row.action} -{row.skipped}" if row.skipped and row.action == "project" else row.action
    shape = "x".join(map(str, row.shape))
    steps = str(row.iterations) if row.iterations else ""
    return (row.name, shape, str(row.matrices), action, *numbers, row.solver, steps, rank, f"{row.seconds:.3f}")


def _align(column: int, cell: str, width: int) -> str:
    return cell.ljust(width) if column in (0, 3, 8) else cell.rjust(width)
