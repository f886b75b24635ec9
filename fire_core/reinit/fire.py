"""FIRE on a model: layout -> same-shape batches -> polar factors -> scale -> write in place -> report."""

import math
import time
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.errors import FireWarning
from fire_core.polar.factor import full_precision
from fire_core.polar.steps import working_dtype
from fire_core.reinit.checks import check_finite, check_module, check_weights
from fire_core.reinit.initial import given, initial_of, initial_weights
from fire_core.reinit.project import Projection, check_results, make_batches, project
from fire_core.reinit.report import Kept, Report, Row, running_statistics
from fire_core.reinit.scales import scale_of
from fire_core.weights import distributed
from fire_core.weights.entry import Declared, Entry
from fire_core.weights.layout import Layout, Selector, listed, resolve
from fire_core.weights.masters import Master, Masters, copied_to_masters, find_masters
from fire_core.weights.optimizer_state import StateReset
from fire_core.weights.optimizers import holding, optimizers_of, parameters_of
from fire_core.weights.topology import unwrap


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
    blocks: Mapping[str, Declared] | None = None,
    transposed: Iterable[str] = (),
    example: Any = None,
    strict: bool = False,
    trainable_only: bool = True,
    variance_factor: float = 1.0,
    tol: float | None = None,
    seed: int = 0,
    measure: bool = True,
    masters: Masters | None = None,
) -> Report:
    """Project a model's weights, in place, to the nearest scaled isometries (FIRE, Han et al., ICLR 2026).

    Each matrix W = U S V^T becomes scale * U V^T. The defaults are the paper's: ten cubic Newton-Schulz steps from
    W / ||W||_F, which on trained weights often end well short of an isometry; `solver="exact"` reaches it. The report
    says which DfI each weight has really reached. Parameters keep their identity, so ties, optimizers, DDP and compiled
    models keep working. Half precision is computed in float32 and rounded once. Nothing is random, but for what `seed`
    fills.

    What happens to which weight, under `layout="all"`:

    - linear and convolution weights, gates of LSTM and GRU, experts and the output head are projected, each matrix of a
      fused weight on its own; the head of a policy that was initialised small is not small afterwards (`exclude` it, or
      take `scale="match_init"`).
    - routers of experts are kept: the size of their logits says how sharply experts are chosen.
    - a weight that looks fused, of a module that is not known, is kept with a warning that says how to declare it.
    - embeddings, positions, norms, biases and depthwise filters are kept. An embedding that is tied to the head **is**
      the head and is projected.
    - frozen weights (`requires_grad=False`) are kept; see `trainable_only`. LoRA (peft): the frozen base is kept, and
      so are the factors A and B, because it is their product that acts, and an isometric B would replace the small
      learned change by a large one. `include="*lora_A*"` projects A.
    - weights that are quantised, packed, eight-bit or computed from others (parametrizations, pruning) are kept.
    - a matrix that is zero has no nearest isometry and stays zero; `solver="exact"` fills it from `init`.
    - buffers are kept. The running statistics of batch norm are then those of the old weights: estimate them anew
      before the model is evaluated (docs/in_your_loop.md).

    Every kept weight is in `report.kept` with its reason.

    DistributedDataParallel, and sharded weights (FSDP2, DTensor): call it on every rank. The matrices are divided
    among the ranks, and all end with the same numbers. Given the bare module inside DDP, every rank does all the work
    itself.

    Args:
        model: any module.
        solver: "newton_schulz" (the paper), "exact" or "muon"; see `PolarOptions`. A `blend` below 1 is exact whichever
            of the first two stands here, and "muon" is refused.
        iterations: steps of the iterative solvers, at least 1; refused with "exact" and a `blend` below 1 if it is not
            the default.
        norm_init: what divides W before the first step of "newton_schulz", see `PolarOptions`; refused with another
            solver and a `blend` below 1 if it is not the default.
        layout: which weights, cut how; see `layout.resolve`.
        optimizer: optimizer(s) whose state of exactly the changed weights is reset. Give all that train the model. The
            float32 master copies of half-precision weights that they hold are found and changed too.
        init: copies of the initial weights by parameter name (`copy.deepcopy(model.state_dict())` at the start). Needed
            for `reinit` actions and the scales `match_init` and `init_norm`; with `solver="exact"` it fills the null
            space of rank-deficient and zero matrices.
        scale: each singular value's target. d_out x d_in is the matrix, k its number of kernel positions.
            "modular": sqrt(d_out / d_in) / k, the paper's. "orthogonal": 1. "match_init": such that the weight has the
            root mean square it was initialised with, whatever the scheme (uniform, Kaiming, residual-scaled).
            "init_norm": such that each matrix has the Frobenius norm it was initialised with, which is the same where
            a weight is one matrix. "keep_norm": such that each matrix keeps its own Frobenius norm. "variance_factor":
            such that for white input the mean square of the outputs is `variance_factor` times that of the inputs,
            sqrt(variance_factor * max(d_out, d_in) / (d_in k)). Which to take when: docs/scales.md.
        min_norm: matrices whose Frobenius norm lies below this are left alone.
        blend: t in [0, 1] between the old spectrum and the isometric one: singular values sigma^(1-t) scale^t on the
            old singular vectors. 1 is the projection itself. Below 1 the result is that of an SVD in float64 (to 1e-5
            up to condition 1e6; see `polar.blend`). Directions that a weight has lost stay lost: the report has the
            rank, and a warning names the weights. Which part of the way to go when: docs/scales.md.
        include: selectors of weights to project beside the layout's.
        exclude: selectors of weights to keep.
        blocks: how fused weights are cut, by pattern; see `layout.resolve`.
        transposed: pattern(s) of weights that are stored (d_in, d_out).
        example: input for one forward pass off which cuts are read that nobody declares or knows (`layout.resolve`).
        strict: refuse a model with a weight that looks fused and is not known, instead of keeping it with a warning.
        trainable_only: keep frozen weights unless they are included by name. That is the default because FIRE restores
            the ability to train, which a frozen weight does not use, and training could not repair what the
            projection takes from it.
        variance_factor: for the scale of that name; refused with another.
        tol: stop Newton-Schulz early once the largest DfI of a batch lies below this; refused with another solver and
            a `blend` below 1.
        seed: of the Gaussian that fills the null space of a rank-deficient matrix when `init` cannot.
        measure: False leaves DfI, SFE and norms out of the report and saves about a tenth of the time.
        masters: master copies that the optimizers do not show, by parameter name: the copy, or (flat tensor, offset)
            for a part of a flat one; see `masters.find_masters`. A step would write them over the weights again.

    Returns:
        A `Report` with a row for each parameter or block.

    Raises:
        TypeError: `model` is no module, or one without layers (TorchScript, export); an optimizer in another's place.
        ValueError: an option that is not accepted; optimizers that hold none of the model's weights; a NaN or Inf in
            a weight or its `init`; a meta, complex or sparse weight, or one made in inference mode; `init` that lacks a
            needed entry, has another shape or is the model's own memory. Names are given, and nothing is changed.

    Warns:
        FireWarning: nothing was projected, a matrix is zero, a blend leaves directions lost, a weight looks fused and
            is not cut, an optimizer cannot be reset fully, a changed weight is in none of the optimizers. The same
            lines are in `report.warnings`.
    """
    start = time.perf_counter()
    if isinstance(solver, Optimizer) or hasattr(solver, "param_groups"):
        raise TypeError(f"solver is an optimizer ({type(solver).__name__}): give it as optimizer=")
    how = Projection(solver, iterations, norm_init, tol, seed, scale, min_norm, blend, variance_factor, measure=measure)
    how.check_idle()
    optimizers = [] if optimizer is None else optimizers_of(optimizer)
    entries = resolve(
        check_module(model),
        layout,
        include,
        exclude,
        blocks,
        transposed,
        example=example,
        strict=strict,
        trainable_only=trainable_only,
    )
    changing = [entry.parameter for entry in entries if entry.action != "keep"]
    copies = find_masters(unwrap(model), optimizers, masters, changing)
    trained = holding(optimizers, model.parameters()) or copies
    if optimizers and any(True for _ in model.parameters()) and not trained:
        raise ValueError(
            "the optimizers hold none of the model's weights: give those that train it; if they train copies from "
            "which the weights are written, name them, masters={name: copy}"
        )
    with copied_to_masters(copies):
        report = _apply(model, entries, how, init)
    changed = [row for row in report.rows if row.action != "skip"]
    if optimizers:
        labels = {row.name for row in changed}
        report.optimizer_states_reset, notes = _reset(optimizers, entries, labels, copies)
        report.warnings += [*notes, *_untrained(optimizers, entries, labels, copies)]
    report.statistics = running_statistics(model) if changed else 0
    report.warnings[:0] = entries.warnings
    if not any(row.action == "project" for row in changed) and (isinstance(layout, str) or not changed):
        report.warnings.insert(0, "nothing was projected; see report.kept for the reasons")
    report.seconds = time.perf_counter() - start
    for warning in report.warnings:
        warnings.warn(warning, FireWarning, stacklevel=2)
    return report


def _untrained(
    optimizers: list[Optimizer], entries: list[Entry], changed: set[str], masters: list[Master]
) -> list[str]:
    """A line if weights that were changed, and are not frozen, are in none of the optimizers."""
    held = parameters_of(optimizers) | {id(master.weight) for master in masters}
    found = [e for e in entries if e.label in changed and e.parameter.requires_grad and id(e.parameter) not in held]
    names = list(dict.fromkeys(entry.name for entry in found))
    if not names:
        return []
    return [
        f"{len(names)} changed weights are in none of the given optimizers: {listed(names)}. If another "
        "one trains them, give all optimizers as a list; if one trains copies of them, name these, masters=; if none "
        "does, exclude= keeps them"
    ]


@torch.no_grad()
def _apply(model: nn.Module, entries: list[Entry], how: Projection, init: Mapping[str, Tensor] | None) -> Report:
    """Check, project, reset, and report what was done; nothing is changed when a check fails."""
    projected = [entry for entry in entries if entry.action == "project" and entry.parameter.numel()]
    reset = [entry for entry in entries if entry.action == "reinit"]
    check_weights(unwrap(model), [*projected, *reset])
    initial = initial_weights(init, [*projected, *reset])
    for entry in reset:
        initial_of(entry, initial)
    starts = [(f"init[{e.name!r}]", s) for e in projected if (s := given(e, initial)) is not None]
    starts += [(f"init[{e.name!r}]", initial_of(e, initial).to(e.parameter.dtype)) for e in reset]  # as it is written
    check_finite([*((entry.name, entry.parameter) for entry in projected), *starts])
    scales = {entry.label: scale_of(entry, how.scale, how.variance_factor, initial) for entry in projected}
    batches = make_batches(projected, distributed.ddp_group(model))
    rows: dict[str, Row] = {}
    with full_precision(projected[0].parameter.device.type if projected else "cpu"):
        check_results(batches, how, scales)
        for batch in batches:
            rows |= project(batch, how, scales, initial)
    for entry in reset:
        rows[entry.label] = reinitialise(entry, initial)
    ordered = [rows[entry.label] for entry in entries if entry.label in rows]
    kept = {
        e.label: Kept(tuple(e.parameter.shape), e.size, e.reason or "it is empty")
        for e in entries
        if e.label not in rows
    }
    changed = {id(e.parameter): e.parameter for e in entries if e.label in rows and rows[e.label].action != "skip"}
    return Report(ordered, kept, list(changed.values()), warnings=[*_zeros(ordered, how), *_lost(ordered, how)])


def _zeros(rows: list[Row], how: Projection) -> list[str]:
    names = [f"{row.name} ({row.zeros})" if row.zeros < row.matrices else row.name for row in rows if row.zeros]
    whole_way = "blend=1, " if how.blend < 1 else ""
    way = f'{whole_way}solver="exact" with other values in init fills them'
    if how.scale == "keep_norm":
        way = (
            'scale="keep_norm" keeps their norm, which is 0: '
            f'{whole_way}another scale and solver="exact" fill them from init'
        )
    return [f"zero matrices have no nearest isometry and stay zero: {listed(names, 5)}; {way}"] if names else []


def _lost(rows: list[Row], how: Projection) -> list[str]:
    """A line if part of the way has left weights rank-deficient; the whole way with `exact` fills their null space."""
    if how.blend == 1:
        return []
    names = [
        f"{row.name} (rank {row.rank} of {min(row.shape)})"
        for row in rows
        if row.action == "project" and row.rank is not None and row.rank < min(row.shape)
    ]
    if not names:
        return []
    return [
        f"blend={how.blend:g} does not bring back directions that a weight has lost: {listed(names, 5)}; "
        'blend=1 with solver="exact" fills them'
    ]


def reinitialise(entry: Entry, initial: Mapping[str, Tensor]) -> Row:
    """Write the initial value of an entry's rows."""
    weight = distributed.full(entry.parameter)
    changed = weight.to(working_dtype(weight), copy=True)
    where = ... if entry.rows is None else (*[slice(None)] * entry.row_dim, entry.where)
    target, source = changed[where], initial_of(entry, initial).to(changed.device, changed.dtype)[where]
    moved, before, after = (float(x.double().square().sum()) for x in (source - target, target, source))
    changed[where] = source
    distributed.write_(entry.parameter, changed)
    shape, count = (tuple(target.shape), 1) if entry.kind == "vector" else (entry.shape, entry.count)
    return Row(
        entry.label,
        shape,
        count,
        "reinit",
        sfe=moved,
        norm_before=math.sqrt(before),
        norm_after=math.sqrt(after),
        solver="init",
    )


def _reset(
    optimizers: list[Optimizer], entries: list[Entry], changed: set[str], masters: list[Master]
) -> tuple[int, list[str]]:
    """Reset the optimizer state of what was changed: whole parameters, or the changed blocks of a fused one.

    The state of a weight with a master in an optimizer's groups is that of the master; of a part of a flat master it is
    the whole weight's, whichever blocks were changed.
    """
    parts: dict[int, list[Entry]] = {}
    for entry in entries:
        if entry.label in changed:
            parts.setdefault(id(entry.parameter), []).append(entry)
    sizes = {key: sum(entry.size for entry in siblings) for key, siblings in parts.items()}
    copies = {id(master.weight): master for master in masters if master.start is None}
    whole = [siblings[0].parameter for key, siblings in parts.items() if sizes[key] == siblings[0].parameter.numel()]
    reset = StateReset(optimizers)
    reset.whole([*whole, *(copies[id(p)].tensor for p in whole if id(p) in copies)])
    done = {id(parameter) for parameter in whole}
    for key, siblings in parts.items():
        if key not in done:
            held = [siblings[0].parameter, *([copies[key].tensor] if key in copies else [])]
            for entry in siblings:
                reset.rows(held, entry.where, entry.row_dim)
    for master in masters:
        if master.rows is not None and id(master.weight) in parts:
            reset.rows([master.tensor], master.rows)
    return reset.count, list(reset.notes)
