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
from fire_core.reinit.checks import check_finite, check_module, check_same_init, check_weights
from fire_core.reinit.initial import find_initial_value, initial_weights, require_initial_value
from fire_core.reinit.project import Projection, check_results, make_batches, project
from fire_core.reinit.report import KeptWeight, Report, Row, running_statistics
from fire_core.reinit.scales import scale_of
from fire_core.weights import distributed
from fire_core.weights.entry import Declared, Entry
from fire_core.weights.layout import Layout, Selector, listed, matches, resolve, selectors_of
from fire_core.weights.masters import Master, Masters, copied_to_masters, find_masters
from fire_core.weights.optimizer_state import StateReset
from fire_core.weights.optimizers import optimizers_of, optimizers_that_hold, parameters_of
from fire_core.weights.topology import FLAT_SHARD, unwrap


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
    says which deviation from isometry (DfI) each weight has reached. Parameters keep their identity, so ties,
    optimizers, DDP and compiled models keep working. Half precision is computed in float32 and rounded once. Nothing is
    random, except that `solver="exact"` with `blend=1` fills null spaces, from `init` or else from `seed`.

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
    - gradients in `.grad` are kept. Where they accumulate over several batches, act right after the optimizer's step,
      since those of the batches before the act belong to the old weights.

    Every weight that no rule selects is in `report.kept` with its reason. A selected one that stays because it is zero
    or below `min_norm` has a row with the action "skip".

    DistributedDataParallel, and sharded weights (FSDP2, DTensor): call it on every rank. The matrices are divided
    among the ranks, and all end with the same numbers. Given the bare module inside DDP, every rank does all the work
    itself.

    Args:
        model: any module.
        solver: "newton_schulz" (the paper), "exact" or "muon"; see `PolarOptions`. A `blend` below 1 is computed
            exactly with either of the first two, and refused with "muon".
        iterations: steps of the iterative solvers, at least 1. If it is not the default, it is refused with "exact",
            and with any `blend` below 1.
        norm_init: the norm by which W is divided before the first step of "newton_schulz", see `PolarOptions`; refused
            with another solver and a `blend` below 1 if it is not the default.
        layout: which weights are projected, and how each is cut into matrices; see `layout.resolve`.
        optimizer: optimizer(s) whose state of exactly the changed weights is reset. Give all that train the model; with
            None the moments of the old weights act on the new ones. The float32 master copies of half-precision weights
            that they hold are found and changed too.
        init: copies of the initial weights by parameter name (`copy.deepcopy(model.state_dict())` at the start). Needed
            for `reinit` actions and the scales `match_init` and `init_norm`; with `solver="exact"` it fills the null
            space of rank-deficient and zero matrices.
        scale: the value that every singular value is to have. d_out x d_in is the matrix, k its number of kernel
            positions. "modular": sqrt(d_out / d_in) / k, the paper's. "orthogonal": 1. "match_init": the weight gets
            the root mean square that it was initialised with, whatever the scheme (uniform, Kaiming, residual-scaled).
            "init_norm": each matrix gets the Frobenius norm that it was initialised with, which is the same where a
            weight is one matrix. "keep_norm": each matrix keeps its own Frobenius norm. "variance_factor":
            sqrt(variance_factor * max(d_out, d_in) / (d_in k)), so that for white input the mean square of the outputs
            is `variance_factor` times that of the inputs. docs/scales.md says which to take when.
        min_norm: matrices whose Frobenius norm lies below this stay as they are.
        blend: how far to go, t in [0, 1], from the old spectrum to the isometric one: the old singular vectors get the
            singular values sigma^(1-t) scale^t. 1 is the projection itself. Below 1 the result is that of an SVD in
            float64 (to 1e-5 up to condition 1e6; see `polar.blend`). Directions that a weight has lost stay lost: the
            report has the rank, and a warning names the weights. docs/scales.md says how far to go when.
        include: selectors (a name pattern, a module type, a module or a parameter) of weights to project in addition to
            the layout's; one that matches nothing is an error.
        exclude: selectors of weights to keep.
        blocks: how fused weights are cut, by pattern; see `layout.resolve`.
        transposed: pattern(s) of weights that are stored (d_in, d_out).
        example: input for one forward pass, which shows how fused weights are cut where that is neither declared nor
            known; see `layout.resolve`.
        strict: refuse a model with a weight that looks fused and is not known, instead of keeping it with a warning.
        trainable_only: keep frozen weights unless they are included by name. That is the default because FIRE restores
            the ability to train, which a frozen weight does not use, and training could not repair what the
            projection takes from it.
        variance_factor: factor of the scale "variance_factor"; refused with another scale.
        tol: stop Newton-Schulz early once the largest DfI of a batch lies below this; refused with another solver and
            a `blend` below 1.
        seed: seed of the Gaussian that fills the null space of a rank-deficient matrix when `init` cannot.
        measure: False leaves DfI, SFE and norms out of the report and saves about a tenth of the time.
        masters: master copies that the optimizers do not show, by parameter name: the copy, or (flat tensor, offset)
            for a part of a flat one; see `masters.find_masters`. They must be changed too, because the next step writes
            them over the weights.

    Returns:
        A `Report` with a row for each parameter or block.

    Raises:
        TypeError: `model` is no module, or one without layers (TorchScript, export); an optimizer is given as `solver`.
        ValueError: an option that is not accepted; optimizers that hold none of the model's weights; a NaN or Inf in
            a weight or its `init`; a meta, complex or sparse weight, a flat shard of FSDP1 that is not excluded, or a
            weight made in inference mode; `init` that lacks a needed entry, has another shape or is the model's own
            memory. Names are given, and nothing is changed.

    Warns:
        FireWarning: nothing was projected, a matrix is zero, a blend leaves directions lost, a weight looks fused and
            is not cut, an optimizer cannot be reset fully, or a changed weight is in none of the optimizers. The
            warnings are in `report.warnings` too.
    """
    start = time.perf_counter()
    if isinstance(solver, Optimizer) or hasattr(solver, "param_groups"):
        raise TypeError(f"solver is an optimizer ({type(solver).__name__}): give it as optimizer=")
    options = Projection(
        solver=solver,
        iterations=iterations,
        norm_init=norm_init,
        tol=tol,
        seed=seed,
        scale=scale,
        min_norm=min_norm,
        blend=blend,
        variance_factor=variance_factor,
        measure=measure,
    )
    options.check_idle()
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
    check_flat_shards(entries, exclude)
    changing = [entry.parameter for entry in entries if entry.action != "keep"]
    all_masters = find_masters(unwrap(model), optimizers, masters, changing)
    is_trained = bool(optimizers_that_hold(optimizers, model.parameters()) or all_masters)
    has_parameters = any(True for _ in model.parameters())
    if optimizers and has_parameters and not is_trained:
        raise ValueError(
            "the optimizers hold none of the model's weights: give those that train it; if they train copies from "
            "which the weights are written, name them, masters={name: copy}"
        )
    with copied_to_masters(all_masters):
        report = _apply(model, entries, options, init)
    changed_rows = [row for row in report.rows if row.action != "skip"]
    if optimizers:
        changed_labels = {row.name for row in changed_rows}
        report.optimizer_states_reset, notes = _reset(optimizers, entries, changed_labels, all_masters)
        report.warnings += [*notes, *_untrained_warnings(optimizers, entries, changed_labels, all_masters)]
    report.statistics = running_statistics(model) if changed_rows else 0
    report.warnings[:0] = entries.warnings
    # A layout of one's own may only re-initialise; that projects nothing, and on purpose.
    if not any(row.action == "project" for row in changed_rows) and (isinstance(layout, str) or not changed_rows):
        report.warnings.insert(0, "nothing was projected; see report.kept for the reasons")
    report.seconds = time.perf_counter() - start
    for warning in report.warnings:
        warnings.warn(warning, FireWarning, stacklevel=2)
    return report


def check_flat_shards(entries: Iterable[Entry], exclude: Selector | Iterable[Selector] = ()) -> None:
    """Refuse a model some of whose weights are flat shards of FSDP1, since most of it would be kept.

    Args:
        entries: of a model.
        exclude: selectors of weights that the caller wants to keep.

    Raises:
        ValueError: there is such a weight, and no selector names it.
    """
    excluded = selectors_of("exclude", exclude)
    flat = [e.name for e in entries if e.reason == FLAT_SHARD and not any(matches(e, other) for other in excluded)]
    if flat:
        raise ValueError(f"{listed(flat)}: {FLAT_SHARD}; exclude= keeps it")


def _untrained_warnings(
    optimizers: list[Optimizer], entries: list[Entry], changed_labels: set[str], masters: list[Master]
) -> list[str]:
    """Return a warning, in a list, if changed weights that are not frozen are in none of the optimizers."""
    trained_ids = parameters_of(optimizers) | {id(master.weight) for master in masters}
    untrained = []
    for entry in entries:
        if entry.label in changed_labels and entry.parameter.requires_grad and id(entry.parameter) not in trained_ids:
            untrained.append(entry.name)
    names = list(dict.fromkeys(untrained))
    if not names:
        return []
    return [
        f"{len(names)} changed weights are in none of the given optimizers: {listed(names)}. If another "
        "one trains them, give all optimizers as a list; if one trains copies of them, name these, masters=; if none "
        "does, exclude= keeps them"
    ]


@torch.no_grad()
def _apply(model: nn.Module, entries: list[Entry], options: Projection, init: Mapping[str, Tensor] | None) -> Report:
    """Check, project and re-initialise the entries, and report what was done; if a check fails, nothing is changed."""
    to_project = [entry for entry in entries if entry.action == "project" and entry.parameter.numel()]
    to_reinitialise = [entry for entry in entries if entry.action == "reinit"]
    check_weights(unwrap(model), [*to_project, *to_reinitialise])
    initial = initial_weights(init, [*to_project, *to_reinitialise])
    for entry in to_reinitialise:
        require_initial_value(entry, initial)  # raises if it is missing
    tensors = [(entry.name, entry.parameter) for entry in to_project]
    for entry in to_project:
        initial_value = find_initial_value(entry, initial)
        if initial_value is not None:
            tensors.append((f"init[{entry.name!r}]", initial_value))
    for entry in to_reinitialise:  # in the dtype in which it will be written, where it may overflow
        tensors.append((f"init[{entry.name!r}]", require_initial_value(entry, initial).to(entry.parameter.dtype)))
    check_finite(tensors, distributed.ddp_group(model))
    reads_init = options.scale in ("match_init", "init_norm") or (options.solver == "exact" and options.blend == 1)
    check_same_init(model, [*(to_project if reads_init else ()), *to_reinitialise], initial)
    scales = {entry.label: scale_of(entry, options.scale, options.variance_factor, initial) for entry in to_project}
    batches = make_batches(to_project, distributed.ddp_group(model), distributed.ignored_by_ddp(model))
    rows: dict[str, Row] = {}
    with full_precision(to_project[0].parameter.device.type if to_project else "cpu"):
        check_results(batches, options, scales, distributed.ddp_group(model))
        for batch in batches:
            try:
                rows |= project(batch, options, scales, initial)
            except BaseException as error:  # the device has no memory left, or the user interrupts
                if rows:
                    error.add_note(
                        f"fire_ had changed {len(rows)} of {len(to_project)} weights of {type(unwrap(model)).__name__} "
                        "before this error, and no optimizer state"
                    )
                raise
    for entry in to_reinitialise:
        rows[entry.label] = reinitialise(entry, initial)
    ordered_rows = []
    kept = {}
    changed: dict[int, Tensor] = {}
    for entry in entries:
        if entry.label not in rows:
            kept[entry.label] = KeptWeight(tuple(entry.parameter.shape), entry.size, entry.reason or "it is empty")
            continue
        ordered_rows.append(rows[entry.label])
        if rows[entry.label].action != "skip":
            changed[id(entry.parameter)] = entry.parameter
    warnings_of_rows = [*_zero_warnings(ordered_rows, options), *_rank_warnings(ordered_rows, options)]
    return Report(ordered_rows, kept, list(changed.values()), warnings=warnings_of_rows)


def _zero_warnings(rows: list[Row], options: Projection) -> list[str]:
    """Return a warning, in a list, if weights have zero matrices, which stay zero."""
    names = [f"{row.name} ({row.zeros})" if row.zeros < row.matrices else row.name for row in rows if row.zeros]
    if not names:
        return []
    full_blend = "blend=1, " if options.blend < 1 else ""
    advice = f'{full_blend}solver="exact" with other values in init fills them'
    if options.scale == "keep_norm":
        advice = (
            'scale="keep_norm" keeps their norm, which is 0: '
            f'{full_blend}another scale and solver="exact" fill them from init'
        )
    return [f"zero matrices have no nearest isometry and stay zero: {listed(names, 5)}; {advice}"]


def _rank_warnings(rows: list[Row], options: Projection) -> list[str]:
    """Return a warning, in a list, if a blend below 1 has left weights rank-deficient."""
    if options.blend == 1:
        return []
    names = [
        f"{row.name} (rank {row.rank} of {min(row.shape)})"
        for row in rows
        if row.action == "project" and row.rank is not None and row.rank < min(row.shape)
    ]
    if not names:
        return []
    return [
        f"blend={options.blend:g} does not bring back directions that a weight has lost: {listed(names, 5)}; "
        'blend=1 with solver="exact" fills them'
    ]


def reinitialise(entry: Entry, initial: Mapping[str, Tensor]) -> Row:
    """Set an entry's rows to their initial values, in place, and return a report of it.

    Raises:
        ValueError: `initial` lacks the weight, or has it in another shape.
    """
    weight = distributed.full(entry.parameter)
    result = weight.to(working_dtype(weight), copy=True)
    rows = ... if entry.rows is None else (*[slice(None)] * entry.row_dim, entry.where)
    old, new = result[rows], require_initial_value(entry, initial).to(result.device, result.dtype)[rows]
    squares = [float(x.double().square().sum()) for x in (new - old, old, new)]
    result[rows] = new
    distributed.write_(entry.parameter, result)
    shape, count = (tuple(old.shape), 1) if entry.kind == "vector" else (entry.shape, entry.count)
    return Row(
        entry.label,
        shape,
        count,
        "reinit",
        sfe=squares[0],
        norm_before=math.sqrt(squares[1]),
        norm_after=math.sqrt(squares[2]),
        solver="init",
    )


def _reset(
    optimizers: list[Optimizer], entries: list[Entry], changed_labels: set[str], masters: list[Master]
) -> tuple[int, list[str]]:
    """Reset the optimizer state of whole parameters that were changed, and of the changed blocks of fused ones.

    Where an optimizer holds a master copy of a weight, the state of the master is reset. If the master is a part of a
    flat tensor, the state of the whole weight is reset, whichever blocks were changed.

    Returns:
        How many (optimizer, parameter) states were reset, and warnings.
    """
    changed_entries: dict[int, list[Entry]] = {}  # by the id of their parameter
    for entry in entries:
        if entry.label in changed_labels:
            changed_entries.setdefault(id(entry.parameter), []).append(entry)
    masters_by_weight = {id(master.weight): master.tensor for master in masters if master.start is None}
    whole_tensors: list[Tensor] = []
    blocks: list[tuple[list[Tensor], Entry]] = []
    for key, siblings in changed_entries.items():
        parameter = siblings[0].parameter
        if sum(entry.size for entry in siblings) == parameter.numel():
            whole_tensors.append(parameter)
        else:
            tensors = [parameter, *([masters_by_weight[key]] if key in masters_by_weight else [])]
            blocks += [(tensors, entry) for entry in siblings]
    whole_tensors += [masters_by_weight[id(p)] for p in whole_tensors if id(p) in masters_by_weight]
    reset = StateReset(optimizers)
    reset.whole(whole_tensors)
    for tensors, entry in blocks:
        reset.rows(tensors, entry.where, entry.row_dim)
    for master in masters:
        if master.rows is not None and id(master.weight) in changed_entries:
            reset.rows([master.tensor], master.rows)
    return reset.count, list(reset.notes)
