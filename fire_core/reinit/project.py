"""The engine of `fire_`: same-shape batches of a model's matrices, solved, scaled, measured and written."""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fire_core.polar.blend import blend
from fire_core.polar.factor import PolarReport, solve
from fire_core.polar.options import PolarOptions, check_number, check_word
from fire_core.polar.steps import all_finite, working_dtype
from fire_core.reinit.initial import find_initial
from fire_core.reinit.measure import COLUMNS, measure, pieces
from fire_core.reinit.report import Row
from fire_core.weights import distributed
from fire_core.weights.layout import Entry

AT = {name: column for column, name in enumerate(COLUMNS)}
# Elements that one batch holds at most, unless a single parameter has more: bounds the memory beyond the weights.
BATCH_ELEMENTS = 2**21


SCALES = ("modular", "orthogonal", "match_init", "init_norm", "keep_norm", "variance_factor")
IDLE = {
    "newton_schulz": (),
    "muon": ("norm_init",),
    "exact": ("iterations", "norm_init"),
}  # what a solver does not read
IDLE_IN_A_BLEND = ("iterations", "norm_init", "tol")  # part of the way is computed exactly, without steps


@dataclass(frozen=True)
class Projection(PolarOptions):
    """How weights become new weights: the options of `fire_` that do not depend on the model, described there.

    Raises:
        ValueError: one is not accepted.
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
        """Options that differ from their defaults and have no effect, each with the option that makes it idle.

        A blend below 1 is exact, which is what `solver="exact"` says; `muon` contradicts it.
        """
        idle = dict.fromkeys(IDLE[self.solver], f"solver={self.solver}")
        if self.blend < 1:
            names = IDLE_IN_A_BLEND if self.solver != "muon" else ("solver", *IDLE_IN_A_BLEND)
            idle = dict.fromkeys(names, f"blend={self.blend}")
        named = (field for field in fields(self) if field.name in idle)
        return {field.name: idle[field.name] for field in named if getattr(self, field.name) != field.default}

    def check_idle(self) -> None:
        """Raise a ValueError for an option without effect."""
        for name, reason in self.idle().items():
            raise ValueError(f"{name}={getattr(self, name)} has no effect with {reason}")


@dataclass(frozen=True)
class Batch:
    """Entries whose matrices have one shape, dtype and device."""

    entries: list[Entry]
    ranks: distributed.ProjectionGroup
    first: int = 0  # how many matrices the batches before hold: the ranks take turns with what is left over

    @property
    def count(self) -> int:
        return sum(entry.count for entry in self.entries)


@dataclass(frozen=True)
class Work:
    """What this process has to project of a batch."""

    batch: Batch
    mine: Tensor  # (b,) positions of these matrices in the batch
    W: Tensor  # (b, d_out, d_in) in working precision
    s: Tensor  # (b, 1, 1) scales
    stays_zero: Tensor  # (b,) whether it is a zero matrix that keeps its norm, so that nothing fills it


def make_batches(entries: list[Entry], group: object) -> list[Batch]:
    """Batches that are solved one after the other, so that few copies of the weights are held."""
    alike: dict[tuple[object, ...], list[Batch]] = {}
    room: dict[tuple[object, ...], int] = {}
    before = 0
    for entry in entries:
        p, ranks = entry.parameter, distributed.projection_group(entry.parameter, group)
        key = (entry.shape, p.dtype, p.device, id(ranks.processes))
        size = entry.count * math.prod(entry.shape)
        if size > room.get(key, -1):
            alike.setdefault(key, []).append(Batch([], ranks, before))
            room[key] = BATCH_ELEMENTS
        alike[key][-1].entries.append(entry)
        room[key] -= size
        before += entry.count
    return [batch for batches in alike.values() for batch in batches]


def project(
    batch: Batch, how: Projection, scales: Mapping[str, float | Tensor], initial: Mapping[str, Tensor]
) -> dict[str, Row]:
    """Solve a batch, write it, and give a row for each entry."""
    work = _work(batch, scales)
    Q, did = _solve(work, how)
    stats = _finish(work, Q, did, how, initial).cpu()
    parts = torch.split(stats, [entry.count for entry in batch.entries])
    return {
        entry.label: _row(entry, part, scales[entry.label], did)
        for entry, part in zip(batch.entries, parts, strict=True)
    }


def _work(batch: Batch, scales: Mapping[str, float | Tensor]) -> Work:
    W = stack([(entry, entry.parameter) for entry in batch.entries])
    filled = [_scales(W, entry.count, scales[entry.label]) for entry in batch.entries]
    s = filled[0] if len(filled) == 1 else torch.cat(filled)
    stays_zero = torch.zeros(len(W), dtype=torch.bool, device=W.device)
    if any(keeps_norm(scales[entry.label]) for entry in batch.entries):
        stays_zero = s.isnan().flatten() & ~W.flatten(1).any(1)
        s = torch.where(s.isnan(), own_scale(W), s)
    mine = batch.ranks.mine(len(W), batch.first, W.device)
    if batch.ranks.processes is None:
        return Work(batch, mine, W, s, stays_zero)
    return Work(batch, mine, W[mine], s[mine], stays_zero[mine])


def check_results(batches: Iterable[Batch], how: Projection, scales: Mapping[str, float | Tensor]) -> None:
    """Raise a ValueError that names a weight whose projection would not be finite.

    That can only be where a scale, or for a blend the weight itself, is near the largest number of the weight's dtype:
    these are projected once without being written. On every rank alike.
    """
    for batch in batches:
        limit = torch.finfo(batch.entries[0].parameter.dtype).max / 4  # no entry of a factor is larger than 4
        sizes = [_largest(entry, scales[entry.label], how) for entry in batch.entries]
        if all(size < limit for size in sizes):  # false for NaN
            continue
        alone = Batch(batch.entries, distributed.ProjectionGroup())
        work = _work(alone, scales)
        Q = _solve(work, how)[0].mul_(1 if how.blend == 0 else work.s).to(batch.entries[0].parameter.dtype)
        finite = torch.split(all_finite(Q), [entry.count for entry in batch.entries])
        bad = [entry.label for entry, fine in zip(batch.entries, finite, strict=True) if not bool(fine.all())]
        if bad:
            raise ValueError(
                f"scale={how.scale} makes {', '.join(bad)} larger than {batch.entries[0].parameter.dtype} holds: "
                "the result would not be finite, and the model is unchanged"
            )


def _largest(entry: Entry, scale: float | Tensor, how: Projection) -> float:
    """A bound on the largest singular value after the projection, if its scale is finite."""
    largest = float(scale.max()) if isinstance(scale, Tensor) else 0.0 if keeps_norm(scale) else scale
    if keeps_norm(scale) or how.blend < 1:
        norm = torch.linalg.vector_norm(distributed.full(entry.parameter), dtype=torch.float64)
        largest = max(largest, float(norm))
    return largest


def _scales(W: Tensor, count: int, scale: float | Tensor) -> Tensor:
    """One factor a matrix, (count, 1, 1), where and as exact as the matrices are."""
    return scale.to(W.device, W.dtype) if isinstance(scale, Tensor) else W.new_full((count, 1, 1), scale)


def keeps_norm(scale: float | Tensor) -> bool:
    """Whether each matrix's own norm is its scale."""
    return isinstance(scale, float) and math.isnan(scale)


def own_scale(W: Tensor) -> Tensor:
    """The scale that keeps each matrix's own Frobenius norm, (b, d_out, d_in) -> (b, 1, 1); 1 for a zero matrix."""
    norm = torch.linalg.vector_norm(W, dim=(-2, -1), keepdim=True, dtype=torch.float64)
    s = norm / math.sqrt(min(W.shape[-2:]))
    return torch.where(s > 0, s, 1).to(W.dtype)


def stack(pairs: list[tuple[Entry, Tensor]]) -> Tensor:
    """The matrices of all entries in working precision, (b, d_out, d_in); may be a view of a single weight."""
    device, dtype = pairs[0][0].parameter.device, working_dtype(pairs[0][0].parameter)
    views = [entry.view(distributed.full(weight)).to(device, dtype) for entry, weight in pairs]
    flat = [view.reshape(entry.count, *entry.shape) for view, (entry, _) in zip(views, pairs, strict=True)]
    flat = [without_padding(entry, matrices) for (entry, _), matrices in zip(pairs, flat, strict=True)]
    if len(flat) > 1:
        return torch.cat(flat)
    # Kernel positions lie apart: each pass over one of them would read the lines of memory that hold all of them.
    return flat[0] if 1 in flat[0].stride()[1:] else flat[0].contiguous()


def without_padding(entry: Entry, matrices: Tensor) -> Tensor:
    """The matrices with a zero in place of an embedding's padding row, which training does not move."""
    if entry.padding is None or entry.is_tied:
        return matrices
    matrices = matrices.clone()
    matrices[:, entry.padding] = 0
    return matrices


def _solve(work: Work, how: Projection) -> tuple[Tensor, PolarReport]:
    """New weights before scaling, (b, d_out, d_in): polar factors, or the blend in units of the scale."""
    if how.blend == 0:
        return work.W / work.s, PolarReport("none", 0)
    if how.blend < 1:
        Q, rank = blend(work.W, work.s, how.blend)
        return Q, PolarReport("blend", 0, rank)
    return solve(work.W, how, known_finite=True)  # `fire_` has looked at all weights


def _finish(work: Work, Q: Tensor, did: PolarReport, how: Projection, initial: Mapping[str, Tensor]) -> Tensor:
    """Complete, scale, measure and write; the `COLUMNS` of the whole batch, (count, len(COLUMNS))."""
    W, s, p = work.W, work.s, work.batch.entries[0].parameter
    stats = torch.zeros(len(W), len(COLUMNS), dtype=torch.float64, device=W.device)
    if did.rank is not None:
        zero = did.rank == 0
        if how.blend == 1:  # part of the way, lost directions stay lost
            filled = (did.rank < min(W.shape[-2:])) & ~work.stays_zero
            anywhere = work.batch.ranks.gather(filled.int(), work.mine, work.batch.count).cpu()
            if bool(anywhere.any()):  # on any rank: to gather initial weights all must take part
                zero = zero & ~_complete(work, Q, filled, anywhere, how, initial)
                Q[zero] = 0
                stats[:, AT["completed"]] = (filled & ~zero).double()
        stats[:, AT["rank"]] = did.rank.double()
        stats[:, AT["zeros"]] = zero
    Q.masked_fill_(work.stays_zero[:, None, None], 0)
    _keep_padding_zero(work, Q)
    stats[:, AT["square_scale"]] = s.flatten().double().square()
    for here in pieces(W):  # each piece is scaled and measured while the caches hold it
        _scale(W[here], Q[here], s[here], p.dtype, how, stats[here], known_zeros=did.rank is not None)
    _write(work.batch.entries, work.batch.ranks.gather(Q, work.mine, work.batch.count))
    return work.batch.ranks.gather(stats, work.mine, work.batch.count)


def _keep_padding_zero(work: Work, Q: Tensor) -> None:
    """A padding row that is zero stays zero, in place in Q: what would fill it is only where the other rows end."""
    at = 0
    for entry in work.batch.entries:
        if entry.padding is not None:
            here = (work.mine == at).nonzero().flatten()  # an embedding is one matrix
            rows = Q[here, entry.padding]
            Q[here, entry.padding] = torch.where(work.W[here, entry.padding].any(-1, keepdim=True), rows, 0)
        at += entry.count


def _scale(
    W: Tensor, Q: Tensor, s: Tensor, dtype: torch.dtype, how: Projection, stats: Tensor, known_zeros: bool
) -> None:
    """Turn factors Q into new weights, in place, and fill what is left of the statistics."""
    if not known_zeros:  # a zero matrix stays zero, and nothing else becomes so
        stats[:, AT["zeros"]] = torch.linalg.matrix_norm(Q) == 0
    skip = stats[:, AT["zeros"]] > 0
    if how.blend == 0:
        Q.copy_(W)
    else:
        Q.mul_(s)
        if dtype != Q.dtype:
            Q.copy_(Q.to(dtype))  # half precision: what is measured is what will be stored
    if how.min_norm > 0:
        skip = skip | (torch.linalg.matrix_norm(W) < how.min_norm)
        Q.copy_(torch.where(skip[:, None, None], W, Q))
        stats[:, AT["completed"]] *= ~skip
    stats[:, AT["skipped"]] = skip
    if how.measure:
        begin = time.perf_counter()
        measure(W, Q, s, stats)
        stats[:, AT["measuring"]] = (time.perf_counter() - begin) / len(W)
    else:
        stats[:, : AT["square_scale"]] = math.nan


def _complete(
    work: Work, Q: Tensor, deficient: Tensor, anywhere: Tensor, how: Projection, initial: Mapping[str, Tensor]
) -> Tensor:
    """Solve rank-deficient matrices again with their initial weights, in place in Q; rare, so nothing is kept ready.

    `deficient` says which of this rank's (b,), `anywhere` which of the batch (count,), the same on every rank.

    Returns:
        For which matrices initial weights that are not zero were at hand, (b,) bool.
    """
    positions, found = work.mine.cpu(), torch.zeros(len(Q), dtype=torch.bool, device="cpu")
    at = 0
    for entry in work.batch.entries:
        here = deficient.cpu() & (positions >= at) & (positions < at + entry.count)
        start = find_initial(entry, initial) if bool(anywhere[at : at + entry.count].any()) else None
        if start is not None and bool(here.any()):
            starts = stack([(entry, start)])[positions[here] - at]
            Q[here] = solve(work.W[here], how, starts)[0]
            found[here] = starts.flatten(1).any(1).cpu()
        at += entry.count
    return found.to(Q.device)


def _write(entries: list[Entry], new: Tensor) -> None:
    for entry, part in zip(entries, torch.split(new, [entry.count for entry in entries]), strict=True):
        target = entry.parameter
        if entry.padding is not None and not entry.is_tied:
            part[:, entry.padding] = distributed.full(target).detach()[entry.padding].to(part)
        if distributed.is_sharded(target):
            whole = entry.rows is None  # else the other rows have to be fetched
            target = torch.empty(target.shape, dtype=target.dtype, device=target.device)
            target = target if whole else distributed.full(entry.parameter).clone()
        entry.write_(target, part)
        if target is not entry.parameter:
            distributed.write_(entry.parameter, target)


def _row(entry: Entry, part: Tensor, scale: float | Tensor, did: PolarReport) -> Row:
    total = dict(zip(COLUMNS, part.sum(0).tolist(), strict=True))
    single = None if isinstance(scale, Tensor) or keeps_norm(scale) else scale
    return Row(
        name=entry.label,
        shape=entry.shape,
        matrices=entry.count,
        action="skip" if len(part) and total["skipped"] == len(part) else "project",
        dfi_before=total["dfi_before"],
        dfi_after=total["dfi_after"],
        sfe=total["sfe"],
        norm_before=math.sqrt(total["square_before"]),
        norm_after=math.sqrt(total["square_after"]),
        scale=math.sqrt(total["square_scale"] / max(1, len(part))) if single is None else single,
        solver=did.solver,
        iterations=did.iterations,
        rank=int(part[:, AT["rank"]].min()) if did.rank is not None and len(part) else None,
        completed=int(total["completed"]),
        skipped=int(total["skipped"]),
        zeros=int(total["zeros"]),
        measuring=total["measuring"],
    )
