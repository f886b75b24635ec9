"""The engine of `fire_`: it batches a model's matrices by shape, solves, scales and measures them, and writes them."""

import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from fire_core.polar.blend import blend
from fire_core.polar.factor import PolarReport, solve
from fire_core.polar.options import PolarOptions, check_number, check_word
from fire_core.polar.steps import all_finite, working_dtype
from fire_core.reinit.initial import gather_initial_value
from fire_core.reinit.measure import COLUMNS, measure, pieces
from fire_core.reinit.report import Row
from fire_core.weights import distributed
from fire_core.weights.layout import Entry

COLUMN = {name: index for index, name in enumerate(COLUMNS)}
# Elements that one batch holds at most, unless a single parameter has more: bounds the memory beyond the weights.
BATCH_ELEMENTS = 2**21


SCALES = ("modular", "orthogonal", "match_init", "init_norm", "keep_norm", "variance_factor")
# The options that a solver does not read:
IDLE = {
    "newton_schulz": (),
    "muon": ("norm_init",),
    "exact": ("iterations", "norm_init"),
}
IDLE_IN_A_BLEND = ("iterations", "norm_init", "tol")  # a blend below 1 is computed exactly, without steps


@dataclass(frozen=True)
class Projection(PolarOptions):
    """The options of `fire_` that do not depend on the model; `fire_` describes them.

    Raises:
        ValueError: an option is not accepted.
    """

    solver: str = "newton_schulz"
    scale: str = "modular"
    min_norm: float = 0.0
    blend: float = 1.0
    variance_factor: float = 1.0
    measure: bool = True

    def __post_init__(self) -> None:
        check_word("scale", self.scale, SCALES)
        check_number("blend", self.blend, lambda t: 0 <= t <= 1, "between 0 and 1")
        check_number("min_norm", self.min_norm, lambda norm: norm >= 0, "0 or more")
        check_number("variance_factor", self.variance_factor, lambda f: 0 < f < math.inf, "finite and above 0")
        if self.variance_factor != 1 and self.scale != "variance_factor":
            raise ValueError(
                f"variance_factor={self.variance_factor} needs scale=variance_factor, not scale={self.scale}"
            )
        super().__post_init__()
        if self.iterations < 1:
            raise ValueError(
                f"iterations={self.iterations}: must be at least 1; without a step W / ||W|| would be left"
            )

    def idle(self) -> dict[str, str]:
        """Return the options that differ from their defaults and have no effect, each with the option that causes it.

        A blend below 1 is computed exactly: `solver="exact"` agrees with that, `muon` contradicts it.
        """
        reasons = dict.fromkeys(IDLE[self.solver], f"solver={self.solver}")
        if self.blend < 1:
            names = IDLE_IN_A_BLEND if self.solver != "muon" else ("solver", *IDLE_IN_A_BLEND)
            reasons = dict.fromkeys(names, f"blend={self.blend}")
        idle = {}
        for field in fields(self):
            if field.name in reasons and getattr(self, field.name) != field.default:
                idle[field.name] = reasons[field.name]
        return idle

    def check_idle(self) -> None:
        """Raise a ValueError that names an option without effect, if there is one."""
        for name, reason in self.idle().items():
            raise ValueError(f"{name}={getattr(self, name)} has no effect with {reason}")


@dataclass(frozen=True)
class Batch:
    """Entries whose matrices have one shape, dtype and device.

    Attributes:
        entries: the entries.
        ranks: the processes that divide the matrices among themselves.
        first: how many matrices the entries before this batch's first entry hold. The ranks take turns by it: if the
            matrices of a batch cannot be divided evenly, the ranks that get one more are not always the same.
    """

    entries: list[Entry]
    ranks: distributed.ProjectionGroup
    first: int = 0

    @property
    def count(self) -> int:
        """Return the number of matrices in the batch."""
        return sum(entry.count for entry in self.entries)


@dataclass(frozen=True)
class Work:
    """The matrices of a batch that this process projects.

    Attributes:
        batch: the batch.
        mine: (b,), positions of these matrices in the batch.
        W: (b, d_out, d_in), the matrices in working precision.
        s: (b, 1, 1), their scales.
        stays_zero: (b,) bool, whether a matrix is zero and keeps its norm, so that nothing may fill it.
    """

    batch: Batch
    mine: Tensor
    W: Tensor
    s: Tensor
    stays_zero: Tensor


def make_batches(entries: list[Entry], group: object, alone: Collection[Tensor] = ()) -> list[Batch]:
    """Divide entries into batches, which are solved one after the other so that few copies of weights are held.

    Args:
        entries: the entries to project.
        group: the process group of DistributedDataParallel, None without it.
        alone: parameters that each process projects alone, because they differ between the processes of the group.
    """
    batches: dict[tuple[object, ...], list[Batch]] = {}  # by shape, dtype, device and processes
    remaining: dict[tuple[object, ...], int] = {}  # elements that the last batch of a key can still take
    first: Counter[int] = Counter()  # matrices of these processes so far, which all of them count alike
    for entry in entries:
        p = entry.parameter
        ranks = distributed.projection_group(p, None if p in alone else group)
        key = (entry.shape, p.dtype, p.device, id(ranks.processes))
        size = entry.count * math.prod(entry.shape)
        if size > remaining.get(key, -1):
            batches.setdefault(key, []).append(Batch([], ranks, first[id(ranks.processes)]))
            remaining[key] = BATCH_ELEMENTS
        batches[key][-1].entries.append(entry)
        remaining[key] -= size
        first[id(ranks.processes)] += entry.count
    return [batch for batches_of_key in batches.values() for batch in batches_of_key]


def project(
    batch: Batch, options: Projection, scales: Mapping[str, float | Tensor], initial: Mapping[str, Tensor]
) -> dict[str, Row]:
    """Project the weights of a batch, in place.

    Args:
        batch: the entries.
        options: how they are projected.
        scales: the result of `scale_of` for each entry, by its label.
        initial: initial weights, see `initial_weights`.

    Returns:
        A row of the report for each entry, by its label.
    """
    work = _own_work(batch, scales)
    Q, polar_report = _solve(work, options)
    stats = _finish(work, Q, polar_report, options, initial).cpu()
    stats_by_entry = torch.split(stats, [entry.count for entry in batch.entries])
    return {
        entry.label: _row(entry, entry_stats, scales[entry.label], polar_report)
        for entry, entry_stats in zip(batch.entries, stats_by_entry, strict=True)
    }


def _own_work(batch: Batch, scales: Mapping[str, float | Tensor]) -> Work:
    """Return the matrices of a batch that this process projects, with their scales."""
    W = stack([(entry, entry.parameter) for entry in batch.entries])
    scales_by_entry = [_as_tensor(scales[entry.label], entry.count, W) for entry in batch.entries]
    s = scales_by_entry[0] if len(scales_by_entry) == 1 else torch.cat(scales_by_entry)
    stays_zero = torch.zeros(len(W), dtype=torch.bool, device=W.device)
    if any(keeps_norm(scales[entry.label]) for entry in batch.entries):
        stays_zero = s.isnan().flatten() & ~W.flatten(1).any(1)
        s = torch.where(s.isnan(), own_scale(W), s)
    mine = batch.ranks.own_indices(len(W), batch.first, W.device)
    if batch.ranks.processes is None:
        return Work(batch, mine, W, s, stays_zero)
    return Work(batch, mine, W[mine], s[mine], stays_zero[mine])


def check_results(
    batches: Iterable[Batch], options: Projection, scales: Mapping[str, float | Tensor], group: Any = None
) -> None:
    """Check, on every rank alike, that the projected weights will be finite in their dtype.

    They can only fail to be where a scale, or for a blend the weight itself, is near the largest number of the weight's
    dtype. Such weights are projected here once without being written.

    Args:
        batches: the batches.
        options: how they are projected.
        scales: the result of `scale_of` for each entry, by its label.
        group: process group of replicas, some of whose weights may differ; None: there are none.

    Raises:
        ValueError: with the names of the weights that would not be finite. All replicas raise if one does.
    """
    if options.blend == 0:
        return  # the weights stay as they are
    problem, device = "", torch.device("cpu")
    for batch in batches:
        limit = torch.finfo(batch.entries[0].parameter.dtype).max / 4  # no entry of a factor is larger than 4
        bounds = [_largest_after(entry, scales[entry.label], options) for entry in batch.entries]
        if all(bound < limit for bound in bounds):  # false for NaN
            continue
        on_this_rank = Batch(batch.entries, distributed.ProjectionGroup())
        work = _own_work(on_this_rank, scales)
        Q = _solve(work, options)[0].mul_(work.s).to(batch.entries[0].parameter.dtype)
        finite_by_entry = torch.split(all_finite(Q), [entry.count for entry in batch.entries])
        bad = [entry.label for entry, finite in zip(batch.entries, finite_by_entry, strict=True) if not finite.all()]
        device = work.W.device
        if bad and not problem:
            problem = (
                f"scale={options.scale} makes {', '.join(bad)} larger than {batch.entries[0].parameter.dtype} holds: "
                "the result would not be finite, and the model is unchanged"
            )
    if not distributed.true_on_all_ranks(not problem, group, device):
        raise ValueError(problem or "weights of another process would not be finite: the model is unchanged")


def _largest_after(entry: Entry, scale: float | Tensor, options: Projection) -> float:
    """Return an upper bound on the largest singular value after the projection."""
    largest = 0.0
    if isinstance(scale, Tensor):
        largest = float(scale.max())
    elif not keeps_norm(scale):
        largest = scale
    if keeps_norm(scale) or options.blend < 1:
        norm = torch.linalg.vector_norm(distributed.full(entry.parameter), dtype=torch.float64)
        largest = max(largest, float(norm))
    return largest


def _as_tensor(scale: float | Tensor, count: int, W: Tensor) -> Tensor:
    """Return the scale of each of an entry's matrices, (count, 1, 1), in W's dtype and on its device."""
    return scale.to(W.device, W.dtype) if isinstance(scale, Tensor) else W.new_full((count, 1, 1), scale)


def keeps_norm(scale: float | Tensor) -> bool:
    """Return whether a scale is that of `keep_norm`, NaN, for which each matrix's own norm gives the scale."""
    return isinstance(scale, float) and math.isnan(scale)


def own_scale(W: Tensor) -> Tensor:
    """Return the scale that keeps each matrix's Frobenius norm, (b, d_out, d_in) -> (b, 1, 1); 1 for a zero matrix."""
    norm = torch.linalg.vector_norm(W, dim=(-2, -1), keepdim=True, dtype=torch.float64)
    s = norm / math.sqrt(min(W.shape[-2:]))
    return torch.where(s > 0, s, 1).to(W.dtype)


def stack(pairs: list[tuple[Entry, Tensor]]) -> Tensor:
    """Return the matrices of all entries in working precision, (b, d_out, d_in).

    Args:
        pairs: entries of one shape, each with a tensor to cut as its parameter: the weight, or its initial value.

    Returns:
        A new tensor, or for a single entry perhaps a view of its weight.
    """
    device, dtype = pairs[0][0].parameter.device, working_dtype(pairs[0][0].parameter)
    stacks = []
    for entry, weight in pairs:
        view = entry.view(distributed.full(weight)).to(device, dtype)
        stacks.append(with_zero_padding(entry, view.reshape(entry.count, *entry.shape)))
    if len(stacks) > 1:
        return torch.cat(stacks)
    # The entries of one kernel position lie apart in memory, so that each pass over it would read the cache lines of
    # all positions: a contiguous copy is faster.
    return stacks[0] if 1 in stacks[0].stride()[1:] else stacks[0].contiguous()


def with_zero_padding(entry: Entry, matrices: Tensor) -> Tensor:
    """Return the matrices with zeros in an embedding's padding row, which training does not move."""
    if entry.padding is None or entry.is_tied:
        return matrices
    matrices = matrices.clone()
    matrices[:, entry.padding] = 0
    return matrices


def _solve(work: Work, options: Projection) -> tuple[Tensor, PolarReport]:
    """Return new weights before scaling, (b, d_out, d_in): polar factors, or the blend in units of the scale."""
    if options.blend == 0:
        return work.W / work.s, PolarReport("none", 0)
    if options.blend < 1:
        Q, rank = blend(work.W, work.s, options.blend)
        return Q, PolarReport("blend", 0, rank)
    return solve(work.W, options, known_finite=True)  # `fire_` has checked all weights


def _finish(
    work: Work, Q: Tensor, polar_report: PolarReport, options: Projection, initial: Mapping[str, Tensor]
) -> Tensor:
    """Fill null spaces, scale, measure and write.

    Args:
        work: what this process projects.
        Q: (b, d_out, d_in), the result of `_solve`, overwritten.
        polar_report: the report of `_solve`.
        options: options of the projection.
        initial: initial weights, see `initial_weights`.

    Returns:
        The `COLUMNS` of all matrices of the batch, (count, len(COLUMNS)).
    """
    W, s, p = work.W, work.s, work.batch.entries[0].parameter
    stats = torch.zeros(len(W), len(COLUMNS), dtype=torch.float64, device=W.device)
    if polar_report.rank is not None:
        is_zero = polar_report.rank == 0
        if options.blend == 1:  # a blend below 1 leaves lost directions lost
            deficient = (polar_report.rank < min(W.shape[-2:])) & ~work.stays_zero
            deficient_in_batch = work.batch.ranks.gather(deficient.int(), work.mine, work.batch.count).cpu()
            # If any rank has such a matrix, all must take part in gathering its initial weights.
            if bool(deficient_in_batch.any()):
                is_zero = is_zero & ~_fill_null_spaces(work, Q, deficient, deficient_in_batch, options, initial)
                Q[is_zero] = 0
                stats[:, COLUMN["completed"]] = (deficient & ~is_zero).double()
        stats[:, COLUMN["rank"]] = polar_report.rank.double()
        stats[:, COLUMN["zeros"]] = is_zero
    Q.masked_fill_(work.stays_zero[:, None, None], 0)
    _keep_padding_zero(work, Q)
    stats[:, COLUMN["square_scale"]] = s.flatten().double().square()
    for piece in pieces(W):  # each piece is scaled and measured while the caches hold it
        _scale(W[piece], Q[piece], s[piece], p.dtype, options, stats[piece], known_zeros=polar_report.rank is not None)
    _write(work.batch.entries, work.batch.ranks.gather(Q, work.mine, work.batch.count))
    return work.batch.ranks.gather(stats, work.mine, work.batch.count)


def _keep_padding_zero(work: Work, Q: Tensor) -> None:
    """Zero in Q the padding rows of embeddings that are zero in W.

    A solver that fills null spaces would put something there, which depends on nothing but what the other rows lack.
    """
    position = 0  # of the entry's first matrix in the batch
    for entry in work.batch.entries:
        if entry.padding is not None:
            index = (work.mine == position).nonzero().flatten()  # an embedding is one matrix
            rows = Q[index, entry.padding]
            Q[index, entry.padding] = torch.where(work.W[index, entry.padding].any(-1, keepdim=True), rows, 0)
        position += entry.count


def _scale(
    W: Tensor, Q: Tensor, s: Tensor, dtype: torch.dtype, options: Projection, stats: Tensor, known_zeros: bool
) -> None:
    """Turn polar factors into new weights, in place, and fill the remaining columns of the statistics.

    Args:
        W: (b, d_out, d_in), the old matrices.
        Q: (b, d_out, d_in), their factors, which become the new matrices.
        s: (b, 1, 1), scales.
        dtype: dtype of the weight.
        options: options of the projection.
        stats: (b, len(COLUMNS)), written in place.
        known_zeros: whether `stats` says already which matrices are zero.
    """
    if not known_zeros:  # Newton-Schulz steps keep zero matrices zero and make no others zero
        stats[:, COLUMN["zeros"]] = torch.linalg.matrix_norm(Q) == 0
    skip = stats[:, COLUMN["zeros"]] > 0
    if options.blend == 0:
        Q.copy_(W)
    else:
        Q.mul_(s)
        if dtype != Q.dtype:
            Q.copy_(Q.to(dtype))  # rounded to half precision first, so that the stored weights are measured
    if options.min_norm > 0:
        skip = skip | (torch.linalg.matrix_norm(W) < options.min_norm)
        Q.copy_(torch.where(skip[:, None, None], W, Q))
        stats[:, COLUMN["completed"]] *= ~skip
    stats[:, COLUMN["skipped"]] = skip
    if options.measure:
        begin = time.perf_counter()
        measure(W, Q, s, stats)
        stats[:, COLUMN["measuring"]] = (time.perf_counter() - begin) / len(W)
    else:
        stats[:, : COLUMN["square_scale"]] = math.nan


def _fill_null_spaces(
    work: Work,
    Q: Tensor,
    deficient: Tensor,
    deficient_in_batch: Tensor,
    options: Projection,
    initial: Mapping[str, Tensor],
) -> Tensor:
    """Solve rank-deficient matrices again with their initial weights, in place in Q.

    Args:
        work: what this process projects.
        Q: (b, d_out, d_in), polar factors.
        deficient: (b,), which of them are rank-deficient.
        deficient_in_batch: (count,), which matrices of the whole batch are, the same on every rank.
        options: options of the projection.
        initial: initial weights, see `initial_weights`.

    Returns:
        (b,) bool, for which matrices there were initial weights that are not zero.
    """
    positions, filled = work.mine.cpu(), torch.zeros(len(Q), dtype=torch.bool, device="cpu")
    first = 0  # position of the entry's first matrix in the batch
    for entry in work.batch.entries:
        selected = deficient.cpu() & (positions >= first) & (positions < first + entry.count)
        initial_value = None
        if bool(deficient_in_batch[first : first + entry.count].any()):
            initial_value = gather_initial_value(entry, initial)
        if initial_value is not None and bool(selected.any()):
            initial_matrices = stack([(entry, initial_value)])[positions[selected] - first]
            Q[selected] = solve(work.W[selected], options, initial_matrices)[0]
            filled[selected] = initial_matrices.flatten(1).any(1).cpu()
        first += entry.count
    return filled.to(Q.device)


def _write(entries: list[Entry], new: Tensor) -> None:
    """Write the new matrices of a batch, (count, d_out, d_in), into the entries' parameters."""
    for entry, matrices in zip(entries, torch.split(new, [entry.count for entry in entries]), strict=True):
        target = entry.parameter
        if entry.padding is not None and not entry.is_tied:
            matrices[:, entry.padding] = distributed.full(target).detach()[entry.padding].to(matrices)
        if distributed.is_sharded(target):
            if entry.rows is None:
                target = torch.empty(target.shape, dtype=target.dtype, device=target.device)
            else:  # the weight's other rows have to be fetched from the other ranks
                target = distributed.full(entry.parameter).clone()
        entry.write_(target, matrices)
        if target is not entry.parameter:
            distributed.write_(entry.parameter, target)


def _row(entry: Entry, stats: Tensor, scale: float | Tensor, polar_report: PolarReport) -> Row:
    """Return the report's row of an entry from the `COLUMNS` of its matrices, (entry.count, len(COLUMNS))."""
    total = dict(zip(COLUMNS, stats.sum(0).tolist(), strict=True))
    if isinstance(scale, Tensor) or keeps_norm(scale):  # each matrix has its own: report their root mean square
        scale = math.sqrt(total["square_scale"] / max(1, len(stats)))
    return Row(
        name=entry.label,
        shape=entry.shape,
        matrices=entry.count,
        action="skip" if len(stats) and total["skipped"] == len(stats) else "project",
        dfi_before=total["dfi_before"],
        dfi_after=total["dfi_after"],
        sfe=total["sfe"],
        norm_before=math.sqrt(total["square_before"]),
        norm_after=math.sqrt(total["square_after"]),
        scale=scale,
        solver=polar_report.solver,
        iterations=polar_report.iterations,
        rank=int(stats[:, COLUMN["rank"]].min()) if polar_report.rank is not None and len(stats) else None,
        completed=int(total["completed"]),
        skipped=int(total["skipped"]),
        zeros=int(total["zeros"]),
        measuring=total["measuring"],
    )
