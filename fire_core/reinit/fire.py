"""FIRE on a model: layout -> same-shape batches -> polar factors -> scale -> write in place -> report."""

import math
import time
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.polar.factor import full_precision
from fire_core.polar.options import PolarOptions, check_word
from fire_core.polar.steps import working_dtype
from fire_core.reinit.project import Solve, initial_of, make_waves, not_finite, project, stack
from fire_core.reinit.report import Report, Row
from fire_core.weights import distributed
from fire_core.weights.layout import Entry, Layout, Selector, resolve
from fire_core.weights.optimizer_state import reset_optimizer_state
from fire_core.weights.topology import clean_name, unwrap

SCALES = ("modular", "orthogonal", "match_init", "variance_factor")


@torch.no_grad()
def fire_(
    model: nn.Module,
    solver: str = "newton_schulz",
    iterations: int = 10,
    norm_init: str = "frobenius",
    layout: Layout = "all",
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    init: Mapping[str, Tensor] | None = None,
    scale: str = "modular",
    min_norm: float = 0.0,
    blend: float = 1.0,
    *,
    include: Selector | Iterable[Selector] = (),
    exclude: Selector | Iterable[Selector] = (),
    variance_factor: float = 1.0,
    tol: float | None = None,
    seed: int = 0,
    measure: bool = True,
) -> Report:
    """Project a model's weights, in place, to the nearest scaled isometries (FIRE, Han et al., ICLR 2026).

    Each matrix W = U S V^T becomes scale * U V^T. The defaults are the paper's: ten cubic Newton-Schulz steps from
    W / ||W||_F, which on trained weights often end well short of an isometry; `solver="exact"` reaches it. The report
    says which DfI each weight has really reached. Parameters keep their identity, so ties, optimizers, DDP and compiled
    models go on working. Half precision is computed in float32 and rounded once. Nothing is random.

    DistributedDataParallel, and sharded weights (FSDP2, DTensor): call it on every rank. The matrices are shared out,
    each rank projects its share, and all end with the same numbers. Given the bare module inside DDP, every rank
    does all the work itself.

    Args:
        model: any module.
        solver: "newton_schulz" (the paper), "exact" or "muon" (see `polar`).
        iterations: steps of the iterative solvers.
        norm_init: what divides W before the first step; see `polar.NORM_INITS`.
        layout: which weights, cut how; see `layout.resolve`.
        optimizer: optimizer(s) that forget the state of exactly the weights that were changed.
        init: initial weights by parameter name (a `state_dict()` taken at the start). Needed for `reinit` actions and
            `match_init`; fills the null space of rank-deficient matrices.
        scale: each singular value's target. d_out x d_in is the matrix, k its number of kernel positions.
            "modular": sqrt(d_out / d_in) / k, the paper's. "orthogonal": 1. "match_init": such that the weight has the
            root mean square it was initialised with, whatever the scheme (uniform, Kaiming, residual-scaled).
            "variance_factor": such that for white input the mean square of the outputs is `variance_factor` times
            that of the inputs, sqrt(variance_factor * max(d_out, d_in) / (d_in k)).
        min_norm: matrices whose Frobenius norm lies below this are left alone.
        blend: t in [0, 1] between the old spectrum and the isometric one: singular values sigma^(1-t) scale^t on the
            old singular vectors, by SVD. 1 is the projection itself.
        include: selectors of weights to project beside the layout's.
        exclude: selectors of weights to keep.
        variance_factor: for the scale of that name.
        tol: stop Newton-Schulz early once the largest DfI of a batch lies below this.
        seed: of the Gaussian that fills null spaces when `init` cannot.
        measure: False leaves DfI and SFE out of the report and saves about a tenth of the time.

    Returns:
        A `Report` with a row for each parameter or block.

    Raises:
        ValueError: an unknown option; a NaN or Inf in a weight, with the parameter's name, and nothing changed; `init`
            without a needed entry.
    """
    start = time.perf_counter()
    _check_options(scale, min_norm, blend, variance_factor)
    how = Solve(PolarOptions(solver, iterations, norm_init, tol, seed), min_norm, blend, measure)
    entries = resolve(model, layout, include, exclude)
    initial = _by_name(init or {})
    projected = [entry for entry in entries if entry.action == "project" and entry.parameter.numel()]
    reset = [entry for entry in entries if entry.action == "reinit"]
    check_finite([(f"init[{entry.name!r}]", initial_of(entry, initial)) for entry in reset])
    scales = {entry.label: _scale(entry, scale, variance_factor, initial) for entry in projected}
    waves = make_waves(projected, distributed.ddp_group(model))
    lone = len(waves) == 1 and blend == 1 and projected[0].parameter.device.type != "cpu"
    if not lone or any(batch.ranks.processes is not None for batch in waves[0]):  # a lone wave on a GPU looks by itself
        check_finite([(entry.name, entry.parameter) for entry in projected])
    rows: dict[str, Row] = {}
    with full_precision(projected[0].parameter.device.type if projected else "cpu"):
        for wave in waves:
            rows |= project(wave, how, scales, initial)
    for entry in reset:
        rows[entry.label] = _reinitialise(entry, initial)
    if optimizer is not None:
        _forget(optimizer, entries, rows)
    ordered = [rows[entry.label] for entry in entries if entry.label in rows]
    kept = [entry.label for entry in entries if entry.action == "keep"]
    changed = {id(e.parameter): e.parameter for e in entries if e.label in rows and rows[e.label].action != "skip"}
    return Report(ordered, kept, list(changed.values()), time.perf_counter() - start)


@torch.no_grad()
def shrink_and_perturb_(model: nn.Module, init: Mapping[str, Tensor], coef: float = 0.8) -> None:
    """Shrink and perturb (Ash and Adams, NeurIPS 2020) as the FIRE paper uses it: W <- (1 - coef) W + coef W_init.

    All parameters, biases, norms and frozen ones too, tied ones once; buffers stay. The perturbation is the stored
    initial model, not a fresh draw.

    Args:
        model: any module.
        init: initial weights by parameter name.
        coef: 0 changes nothing, 1 restores the initial parameters exactly.

    Raises:
        ValueError: `coef` outside [0, 1], or `init` lacks a parameter; nothing is changed.
    """
    if not 0 <= coef <= 1:
        raise ValueError(f"coef={coef}: must lie between 0 and 1")
    initial = _by_name(init)
    entries = [Entry(clean_name(name), parameter, "other") for name, parameter in unwrap(model).named_parameters()]
    starts = [initial_of(entry, initial) for entry in entries]
    for entry, start in zip(entries, starts, strict=True):
        weight = distributed.full(entry.parameter)
        dtype = working_dtype(weight)
        mixed = (1 - coef) * weight.to(dtype) + coef * start.to(weight.device, dtype)
        distributed.write_(entry.parameter, mixed)


def check_finite(named: Iterable[tuple[str, Tensor]]) -> None:
    """Raise a ValueError that names every parameter with a NaN or Inf; one host synchronisation for all.

    Args:
        named: (name, tensor) pairs.
    """
    pairs = list(named)
    if not pairs:
        return
    device = pairs[0][1].device
    flags = torch.stack([_finite(distributed.local(p)).to(device, torch.int32) for _, p in pairs])
    bad = [
        name
        for (name, _), ok in zip(pairs, distributed.all_true(flags, [p for _, p in pairs]).tolist(), strict=True)
        if not ok
    ]
    if bad:
        raise ValueError(not_finite(bad))


def _finite(p: Tensor) -> Tensor:
    if p.numel() == 0:
        return torch.ones((), dtype=torch.bool, device=p.device)
    low, high = p.aminmax()  # one pass; NaN spreads to both
    return low.isfinite() & high.isfinite()


# ------------------------------------------------------------------------------------------------------ scale and reset


def _scale(entry: Entry, scale: str, variance_factor: float, initial: Mapping[str, Tensor]) -> float:
    d_out, d_in = entry.shape
    if scale == "orthogonal" or 0 in (d_out, d_in):
        return 1.0
    if scale == "modular":
        return math.sqrt(d_out / d_in) / entry.positions
    if scale == "variance_factor":
        return math.sqrt(variance_factor * max(d_out, d_in) / (d_in * entry.positions))
    # An isometry has squared norm min(d_out, d_in); all matrices of one weight share one scale.
    start = stack([(entry, initial_of(entry, initial))])
    size = math.sqrt(float(start.double().square().sum()) / entry.count / min(d_out, d_in))
    if size == 0:
        raise ValueError(f'{entry.name} is zero in init, so scale="match_init" would erase it: exclude it')
    return size


def _by_name(init: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Initial weights by the names of the bare model, whatever wrapper the state_dict was taken from."""
    names = {clean_name(name): tensor for name, tensor in init.items()}
    return {**{name.removeprefix("module."): tensor for name, tensor in names.items()}, **names}


def _reinitialise(entry: Entry, initial: Mapping[str, Tensor]) -> Row:
    """Write the initial value of an entry's rows."""
    begin = time.perf_counter()
    start, weight = initial_of(entry, initial), distributed.full(entry.parameter)
    changed = weight.to(working_dtype(weight), copy=True)
    where = (..., entry.where) if entry.kind == "vector" and entry.rows is not None else ...
    target, source = (f[where] if entry.kind == "vector" else entry.view(f) for f in (changed, start))
    moved = float((source.to(target.device, target.dtype) - target).square().sum())
    if entry.kind == "vector":
        changed[where] = source.to(changed.device, changed.dtype)
    else:
        entry.write_(changed, source)
    distributed.write_(entry.parameter, changed)
    shape, count = (tuple(target.shape), 1) if entry.kind == "vector" else (entry.shape, entry.count)
    return Row(entry.label, shape, count, "reinit", sfe=moved, solver="init", seconds=time.perf_counter() - begin)


def _forget(optimizer: Optimizer | Iterable[Optimizer], entries: list[Entry], rows: Mapping[str, Row]) -> None:
    """Reset the optimizer state of what was changed: whole parameters, or the changed blocks of a fused one."""
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    parts: dict[int, list[Entry]] = {}
    for entry in entries:
        parts.setdefault(id(entry.parameter), []).append(entry)
    for siblings in parts.values():
        changed = [e for e in siblings if e.label in rows and rows[e.label].action != "skip"]
        p = siblings[0].parameter
        if changed and sum(e.size for e in changed) == p.numel():
            reset_optimizer_state(optimizers, [p])
            continue
        for e in changed:
            reset_optimizer_state(optimizers, [p], e.where, e.row_dim)


def _check_options(scale: str, min_norm: float, blend: float, variance_factor: float) -> None:
    check_word("scale", scale, SCALES)
    if not 0 <= blend <= 1:
        raise ValueError(f"blend={blend}: must lie between 0 and 1")
    if not min_norm >= 0:
        raise ValueError(f"min_norm={min_norm}: must be 0 or more")
    if not variance_factor > 0:
        raise ValueError(f"variance_factor={variance_factor}: must be above 0")
