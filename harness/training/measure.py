"""What a boundary did to a network, and what it cost."""

import functools
import math
import operator
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from fire_core.methods import Net
from fire_core.metrics import dfi, sfe, stable_rank
from fire_core.reinit.report import Report
from fire_core.reinit.scales import modular
from fire_core.weights.layout import Entry, resolve
from harness.config.errors import TrainingError

Weights = dict[str, dict[str, Tensor]]  # state dicts by module
Matrices = list[tuple[str, Entry]]  # the module's name and what of it holds matrices


def find_matrices(net: Net) -> Matrices:
    """All weight matrices, frozen ones too, by the layout `all` whatever a method touches, so that methods compare."""
    return [
        (name, entry)
        for name, module in net.modules.items()
        for entry in resolve(module, "all", trainable_only=False)
        if entry.action == "project"
    ]


def _view(name: str, entry: Entry, weights: Weights) -> Tensor:
    """The matrices (..., d_out, d_in) that `weights` hold for an entry."""
    return entry.view(weights[name][entry.name].detach())


@torch.no_grad()
def each_dfi(
    found: Matrices, weights: Weights, before: Weights | None = None, known: Sequence[float] = ()
) -> list[float]:
    """Deviation from isometry of all weight matrices, each divided by its FIRE scale first.

    A matrix W counts ||W^T W / s^2 - I||_F^2 with s = sqrt(d_out/d_in) / (k_h k_w): 0 after an exact projection. Those
    that are as they were `before` have the number that is `known`.
    """
    values = []
    for number, (name, entry) in enumerate(found):
        W = _view(name, entry, weights)
        if before is not None and torch.equal(W, _view(name, entry, before)):
            values.append(known[number])
        else:
            values.append(dfi(W, modular(*entry.shape, entry.positions)).double().sum().item())
    return values


def total(values: Iterable[float]) -> float:
    """Their sum, in order."""
    return functools.reduce(operator.add, values, 0.0)


@torch.no_grad()
def total_sfe(found: Matrices, before: Weights, after: Weights) -> float:
    """Squared Frobenius error summed over the same matrices. Matrices that were not there before count nothing."""
    return total(
        sfe(_view(name, entry, after), _view(name, entry, before)).double().sum().item()
        for name, entry in found
        if entry.name in before[name]
    )


def weight_numbers(net: Net, level: str) -> dict[str, float]:
    """DfI and, for `level` full, the mean stable rank of all weight matrices; nothing for off."""
    found, weights = find_matrices(net), {name: module.state_dict() for name, module in net.modules.items()}
    numbers = {} if level == "off" else {"dfi": total(each_dfi(found, weights))}
    return numbers | ({"weight_stable_rank": weight_stable_rank(found, weights)} if level == "full" else {})


def from_reports(reports: Mapping[str, Report], found: Matrices) -> dict[str, float] | None:
    """DfI before and after, and SFE, from a projection's reports, if these are about exactly these matrices.

    Args:
        reports: by the module's name.
        found: the matrices.

    Returns:
        None if the reports lack a matrix, hold another one, were made without measuring, or use another scale.
    """
    rows = {(name, row.name): row for name, report in reports.items() for row in report if row.action == "project"}
    if rows.keys() != {(name, entry.label) for name, entry in found}:
        return None
    for name, entry in found:
        row = rows[name, entry.label]
        if (
            row.skipped
            or not math.isclose(row.scale, modular(*entry.shape, entry.positions), rel_tol=1e-6)
            or math.isnan(row.dfi_after)
        ):
            return None
    columns = ("dfi_before", "dfi_after", "sfe")
    return {column: math.fsum(getattr(row, column) for row in rows.values()) for column in columns}


@torch.no_grad()
def weight_stable_rank(found: Matrices, weights: Weights) -> float:
    """Mean stable rank over all weight matrices, those of every kernel position."""
    return torch.cat([stable_rank(_view(name, entry, weights)).flatten() for name, entry in found]).mean().item()


def check_finite(step: int, *values: Tensor) -> None:
    """Stop before a step, a checkpoint or a row that is not finite.

    Raises:
        TrainingError: a value is NaN or infinite.
    """
    for value in values:
        if not (math.isfinite(value) if value.ndim == 0 else torch.isfinite(value).all()):
            raise TrainingError(
                f"the loss, its gradient or a weight is not finite at step {step}; the last checkpoint is from before. "
                "Lower lr="
            )


class Meter:
    """Adds up the time of many short blocks without making a GPU wait for any of them.

    On a GPU a block's time is that between two events in its stream, which are read together in `take`.
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
        """The seconds since the last call; on a GPU it waits for the last block."""
        if self._events:
            self._events[-1].synchronize()
            pairs = zip(self._events[::2], self._events[1::2], strict=True)
            self._seconds += sum(start.elapsed_time(end) for start, end in pairs) / 1000
            self._events = []
        seconds, self._seconds = self._seconds, 0.0
        return seconds
