"""Measure what an act at a boundary did to the weight matrices, and how many seconds a method takes."""

import functools
import math
import operator
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from fire_core.methods import Net
from fire_core.methods.protocol import tensors_of
from fire_core.metrics import dfi, sfe, stable_rank
from fire_core.reinit.report import Report
from fire_core.reinit.scales import modular
from fire_core.weights.layout import Entry, resolve
from harness.config.errors import Diverged

Weights = dict[str, dict[str, Tensor]]  # module's name -> its state dict
Matrices = list[tuple[str, Entry]]  # module's name, and the layout's entry of one of its weights


def find_matrices(net: Net) -> Matrices:
    """Return the layout's entries of all weight matrices, frozen ones too.

    The layout is always `all`, whichever weights a method acts on, so that the numbers of methods can be compared.
    """
    return [
        (name, entry)
        for name, module in net.modules.items()
        for entry in resolve(module, "all", trainable_only=False)
        if entry.action == "project"
    ]


def _view(name: str, entry: Entry, weights: Weights) -> Tensor:
    """Return the matrices of an entry, shape (..., d_out, d_in), as a view of the weights."""
    return entry.view(weights[name][entry.name].detach())


@torch.no_grad()
def each_dfi(
    matrices: Matrices, weights: Weights, before: Weights | None = None, dfi_before: Sequence[float] = ()
) -> list[float]:
    """Return the deviation from isometry (DfI) of each entry, of its matrices divided by their FIRE scale.

    A matrix W of shape (d_out, d_in) counts ||W^T W / s^2 - I||_F^2 with s = sqrt(d_out/d_in) / (k_h k_w), which is 0
    after an exact projection. The matrices of all kernel positions of an entry are summed.

    Args:
        matrices: the entries to measure.
        weights: their weights now.
        before: their weights at an earlier time; an unchanged entry is not measured again.
        dfi_before: the DfI of each entry at that time.
    """
    values = []
    for index, (name, entry) in enumerate(matrices):
        W = _view(name, entry, weights)
        if before is not None and torch.equal(W, _view(name, entry, before)):
            values.append(dfi_before[index])
        else:
            values.append(dfi(W, modular(*entry.shape, entry.positions)).double().sum().item())
    return values


def sum_in_order(values: Iterable[float]) -> float:
    """Return the sum, added from left to right, so that it is the same everywhere.

    The built-in `sum` compensates rounding errors from Python 3.12 on, and does not in 3.11.
    """
    return functools.reduce(operator.add, values, 0.0)


@torch.no_grad()
def total_sfe(matrices: Matrices, before: Weights, after: Weights) -> float:
    """Return the squared Frobenius error (SFE) between two states of the weights, summed over the matrices.

    Matrices that a method has put in between, which `before` lacks, are left out.
    """
    return sum_in_order(
        sfe(_view(name, entry, after), _view(name, entry, before)).double().sum().item()
        for name, entry in matrices
        if entry.name in before[name]
    )


def weight_numbers(net: Net, level: str) -> dict[str, float]:
    """Return `dfi`, summed over all weight matrices, and for level full their mean `weight_stable_rank`.

    Level off returns no number.
    """
    matrices = find_matrices(net)
    weights = {name: tensors_of(module) for name, module in net.modules.items()}
    numbers: dict[str, float] = {}
    if level != "off":
        numbers["dfi"] = sum_in_order(each_dfi(matrices, weights))
    if level == "full":
        numbers["weight_stable_rank"] = weight_stable_rank(matrices, weights)
    return numbers


def from_reports(reports: Mapping[str, Report], matrices: Matrices) -> dict[str, float] | None:
    """Return `dfi_before`, `dfi_after` and `sfe` from a projection's reports, so that they need not be measured again.

    Args:
        reports: module's name -> the report of its projection.
        matrices: the matrices that the numbers must be about.

    Returns:
        None if the reports are not about exactly these matrices, were made without measuring, or use another scale.
    """
    rows = {(name, row.name): row for name, report in reports.items() for row in report if row.action == "project"}
    if rows.keys() != {(name, entry.label) for name, entry in matrices}:
        return None
    for name, entry in matrices:
        row = rows[name, entry.label]
        if (
            row.skipped
            or not math.isclose(row.scale, modular(*entry.shape, entry.positions), rel_tol=1e-6)
            or math.isnan(row.dfi_after)
        ):
            return None
    columns = ("dfi_before", "dfi_after", "sfe")
    return {column: math.fsum(getattr(row, column) for row in rows.values()) for column in columns}


def dfi_of_projected(reports: Mapping[str, Report]) -> dict[str, float]:
    """Return `dfi_projected_before` and `dfi_projected_after`: DfI summed over what an act projected, by its reports.

    An act may leave most matrices of a network as they are (of a ViT the paper projects q and k alone), and their DfI
    then hides its own.

    Returns:
        No number if nothing was projected or a report was made without measuring.
    """
    rows = [row for report in reports.values() for row in report if row.action == "project" and not row.skipped]
    if not rows or any(math.isnan(row.dfi_after) for row in rows):
        return {}
    return {
        f"dfi_projected_{when}": math.fsum(getattr(row, f"dfi_{when}") for row in rows) for when in ("before", "after")
    }


@torch.no_grad()
def weight_stable_rank(matrices: Matrices, weights: Weights) -> float:
    """Return the mean stable rank of all weight matrices; each kernel position of a convolution is one matrix."""
    return torch.cat([stable_rank(_view(name, entry, weights)).flatten() for name, entry in matrices]).mean().item()


def check_finite(step: int, *values: Tensor) -> None:
    """Refuse values that are not finite, so that they reach no step, checkpoint or row.

    Raises:
        Diverged: a value is NaN or infinite.
    """
    for value in values:
        if not (math.isfinite(value) if value.ndim == 0 else torch.isfinite(value).all()):
            raise Diverged(
                f"the loss, its gradient or a weight is not finite at step {step}; the last checkpoint is from before. "
                "Lower lr="
            )


class Meter:
    """Adds up the time of many short blocks without making a GPU wait for any of them.

    A block is a `with` statement on the meter. On a GPU its time is measured by two events in the stream, and `take`
    reads the events of all blocks together.
    """

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self._seconds = 0.0
        self._events: list[torch.cuda.Event] = []

    def __enter__(self) -> Self:
        if self.cuda:
            self._mark()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.cuda:
            self._mark()
        else:
            self._seconds += time.perf_counter() - self._start

    def _mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def take(self) -> float:
        """Return the seconds of all blocks since the last call; on a GPU this waits for the last block."""
        if self._events:
            self._events[-1].synchronize()
            pairs = zip(self._events[::2], self._events[1::2], strict=True)
            self._seconds += sum(start.elapsed_time(end) for start, end in pairs) / 1000
            self._events = []
        seconds, self._seconds = self._seconds, 0.0
        return seconds
