"""The report of a projection: a row for each weight, printed as a table with a summary below."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor, nn

from fire_core.text_table import text_table
from fire_core.weights.layout import listed

WIDTH = 120  # columns of the text below a printed table
# Default of `Report.success`. Half of it is about how far a singular value may be from its target, relative to it.
TOLERANCE = 0.01


@dataclass(frozen=True)
class Row:
    """What was done to one parameter, or to one block of rows of a fused parameter.

    Attributes:
        name: name of the parameter, with the block: `h.0.attn.c_attn.weight[q]`.
        shape: (d_out, d_in) of one matrix.
        matrices: how many matrices the parameter holds (kernel positions, groups).
        action: "project", "reinit" or "skip" (every matrix is zero or lies below `min_norm`, and stays as it is).
        dfi_before: DfI of the old W / scale, summed over the matrices. It is in units of the target scale, so that
            before and after can be compared, and a weight that is already where the projection would put it has 0.
            `metrics.dfi(W)` is the DfI of the raw W, which also counts its mere size.
        dfi_after: DfI of the new W / scale, summed over the matrices: what the solver has reached, 0 for an exact
            projection.
        sfe: ||W_new - W_old||_F^2, unscaled, summed over the matrices: how far the weight moved.
        norm_before: ||W_old||_F of the whole weight or block, unscaled.
        norm_after: ||W_new||_F of the whole weight or block, unscaled.
        scale: factor on the polar factor: every singular value's target. If each matrix has its own, as with
            `scale="keep_norm"`, their root mean square.
        solver: name of the solver; "blend" for a blend below 1, "none" for a blend of 0, "init" for a reinitialisation.
        iterations: Newton-Schulz steps, 0 for a direct solve.
        rank: smallest rank among the matrices, None if the solver does not determine it.
        completed: how many matrices had their null space filled.
        skipped: how many matrices stayed as they were: zero ones, and those below `min_norm`.
        zeros: how many matrices are zero and stayed so.
        measuring: seconds that DfI, SFE and norms took; on a GPU only the time to launch their kernels.
    """

    name: str
    shape: tuple[int, ...]
    matrices: int
    action: str
    dfi_before: float = math.nan
    dfi_after: float = math.nan
    sfe: float = math.nan
    norm_before: float = math.nan
    norm_after: float = math.nan
    scale: float = math.nan
    solver: str = ""
    iterations: int = 0
    rank: int | None = None
    completed: int = 0
    skipped: int = 0
    zeros: int = 0
    measuring: float = 0.0

    @property
    def numel(self) -> int:
        """Return how many numbers the weight or block holds."""
        return self.matrices * math.prod(self.shape)

    @property
    def deviation(self) -> float:
        """Return the root mean square of (sigma / scale)^2 - 1 over all singular values of the new weight.

        It is NaN if it was not measured. Matrices that were skipped count as they are.
        """
        values = self.matrices * min(self.shape, default=0)
        return math.sqrt(self.dfi_after / values) if values else 0.0


@dataclass(frozen=True)
class KeptWeight:
    """A weight or block that stayed as it was.

    Attributes:
        shape: shape of the parameter.
        numel: how many numbers the weight or block holds.
        reason: why it was kept.
    """

    shape: tuple[int, ...]
    numel: int
    reason: str


@dataclass
class Report:
    """What `fire_` did. `print(report)` shows it at a glance.

    Attributes:
        rows: one for each weight or block that was projected, reset or skipped, in the model's order.
        kept: the weights or blocks that stayed as they were, by name.
        parameters: the parameters that changed.
        optimizer_states_reset: how many (optimizer, parameter) states were reset, in whole or (blocks) in part.
        warnings: warnings for the caller, one line each; they are issued as `FireWarning` too.
        seconds: duration of the whole call.
        statistics: how many layers have running statistics (batch norm), which are still those of the old weights.
    """

    rows: list[Row] = field(default_factory=list)
    kept: dict[str, KeptWeight] = field(default_factory=dict)
    parameters: list[Tensor] = field(default_factory=list, repr=False)
    optimizer_states_reset: int = 0
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    statistics: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def total(self, column: str) -> float:
        """Return the sum of a numeric column over the rows, as in `report.total("dfi_after")`.

        Rows that were not measured have NaN, and are left out. The sum is NaN if no row was measured.
        """
        values = [float(getattr(row, column) or 0) for row in self.rows]
        measured = [value for value in values if not math.isnan(value)]
        return math.fsum(measured) if measured or not values else math.nan

    def success(self, tolerance: float = TOLERANCE) -> bool:
        """Return whether something was projected and every projected weight is within `tolerance` of its isometry.

        A blend below 1 stops before the isometry, so that this is False unless all weights were near it before.

        Args:
            tolerance: largest accepted `Row.deviation`, the root mean square of (sigma / scale)^2 - 1 over a weight's
                singular values. Ten steps of the paper on trained weights often miss the default; `exact` reaches about
                1e-6.

        Raises:
            ValueError: the report was not measured.
        """
        projected = [row for row in self.rows if row.action == "project"]
        if any(math.isnan(row.dfi_after) for row in projected):
            raise ValueError("success is unknown: call fire_ with measure=True")
        return bool(projected) and all(row.deviation <= tolerance for row in projected)

    def __str__(self) -> str:
        table = text_table(HEAD, map(_cells, self.rows))
        lines = [*_summary(self), *_kept_lines(self), *(f"warning: {warning}" for warning in self.warnings)]
        wrapped = (textwrap.fill(line, WIDTH, subsequent_indent="  ", break_long_words=False) for line in lines)
        legend = [LEGEND] if self.rows else []
        return "\n".join([table, *legend, *wrapped])


def running_statistics(model: nn.Module) -> int:
    """Return how many layers of a model have a running mean of their inputs, as batch norms have."""
    return sum(isinstance(getattr(module, "running_mean", None), Tensor) for module in model.modules())


# ------------------------------------------------------------------------------------------------------------ printing

HEAD = ("name", "shape", "n", "action", "|W| before", "after", "DfI before", "after", "SFE", "scale", "it", "rank")
LEGEND = "n: matrices; |W|: norm; DfI: deviation from isometry; SFE: squared distance from before; it: steps"
PARTICIPLES = {"project": "projected", "reinit": "reset", "skip": "skipped"}  # of actions, for the summary


def _cells(row: Row) -> tuple[str, ...]:
    """Return the cells of a row of the printed table, in the order of `HEAD`."""
    rank = "" if row.rank is None else f"{row.rank}" + (f" (+{row.completed})" if row.completed else "")
    values = (row.norm_before, row.norm_after, row.dfi_before, row.dfi_after, row.sfe, row.scale)
    numbers = ("" if math.isnan(value) else f"{value:.3g}" for value in values)
    action = f"{row.action} -{row.skipped}" if row.skipped and row.action == "project" else row.action
    shape = "x".join(map(str, row.shape))
    return (row.name, shape, str(row.matrices), action, *numbers, str(row.iterations or ""), rank)


def _summary(report: Report) -> list[str]:
    """Return the lines below the table: shares of the model, DfI and SFE, optimizer states and time."""
    projected = [row for row in report.rows if row.action == "project"]
    matrices = sum(row.matrices - row.skipped for row in projected)
    solvers = ", ".join(dict.fromkeys(row.solver for row in projected))
    sizes = {
        participle: sum(row.numel for row in report.rows if row.action == action)
        for action, participle in PARTICIPLES.items()
    }
    sizes["kept"] = sum(kept.numel for kept in report.kept.values())
    total = max(1, sum(sizes.values()))
    shares = ", ".join(f"{participle} {size / total:.1%}" for participle, size in sizes.items() if size)
    lines = [
        f"{shares or 'nothing'} of the model's numbers; {matrices} matrices projected"
        + (f" by {solvers}" if solvers else "")
    ]
    measured = [row for row in projected if not math.isnan(row.dfi_after)]
    if measured:
        near = sum(row.deviation <= TOLERANCE for row in measured)
        lines.append(
            f"DfI before {report.total('dfi_before'):.4g}, DfI after {report.total('dfi_after'):.4g}, "
            f"SFE {report.total('sfe'):.4g}; {near} of {len(measured)} weights within {TOLERANCE} of an isometry"
        )
    filled = int(report.total("completed"))
    lines.append(
        f"{report.optimizer_states_reset} optimizer states reset; {report.seconds:.3f} s"
        + (f"; {filled} rank-deficient matrices completed" if filled else "")
    )
    return lines


def _kept_lines(report: Report) -> list[str]:
    """Return lines about the kept weights: those of two or more dimensions by reason, the number of all others.

    Layers that differ in a number alone are listed once, with * in its place.
    """
    names_by_reason: dict[str, list[str]] = {}
    for name, kept in report.kept.items():
        if len(kept.shape) > 1:
            name_and_shape = f"{re.sub(r'[0-9]+', '*', name)} {'x'.join(map(str, kept.shape))}"
            names_by_reason.setdefault(kept.reason, []).append(name_and_shape)
    lines = [f"{reason}: {listed(names, 5)}" for reason, names in names_by_reason.items()]
    if report.statistics:
        lines.append(
            f"running statistics of {report.statistics} layers, those of the old weights: "
            "update_bn(loader, model) before evaluating"
        )
    vectors = sum(len(kept.shape) < 2 for kept in report.kept.values())
    return [f"kept: {line}" for line in [*lines, f"{vectors} biases, scales and other vectors"]]
