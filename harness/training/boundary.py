"""Let the method act in every trainer: at the boundary between two phases, where a trigger fired, or after a row."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import torch

from fire_core.methods import BoundaryReport, Context
from fire_core.methods.protocol import load_tensors, tensors_of
from fire_core.triggers import Firing
from harness.config.errors import TrainingError
from harness.run.folder import Run
from harness.training.learner import LearnerBase
from harness.training.measure import (
    Matrices,
    Meter,
    Weights,
    dfi_of_projected,
    each_dfi,
    find_matrices,
    from_reports,
    sum_in_order,
    total_sfe,
    weight_stable_rank,
)
from harness.training.uncompiled import uncompiled

# When a context is made: before a phase, where a trigger has fired, after a row, around an optimizer step.
At = Literal["boundary", "firing", "row", "step"]


def seed_of_new_networks(learner: LearnerBase, at: At) -> tuple[str, int]:
    """Return the names from which the seed of newly built networks is derived.

    They are ("phase", number of the phase that begins), or ("firing", step) where a trigger fired. A network that is
    built twice for one phase is the same, and one that is built for another phase is not.
    """
    return ("firing", learner.step) if at == "firing" else ("phase", learner.phase)


class Task(Protocol):
    """The part of a program's task that this module needs."""

    @property
    def config(self) -> Any:
        """The program's options."""

    @property
    def device(self) -> torch.device:
        """The device that the networks are on; a GPU's pending work belongs to the time that is measured."""


@uncompiled
def act_at_boundary(
    task: Task,
    learner: LearnerBase,
    context: Context,
    run: Run | None,
    *,
    measure: Callable[[], dict[str, float]],
    level: str = "cheap",
    afterwards: Callable[[], None] | None = None,
    measure_change: Callable[[], dict[str, float]] | None = None,
    firing: Firing | None = None,
) -> None:
    """Let the learner's method act on its networks, in place, and log a row of what it did.

    The row has `kind` ("boundary"), `step`, `phase`, `boundary/<number>_before` and `_after` for DfI and each number
    that `measure` returns, `boundary/sfe`, the numbers that the method reports, and `method/seconds`. Where a trigger
    fired, `kind` and prefix are `firing`, and the row also has the trigger's numbers and its `reason`.

    The weight matrices are looked up once, and a second time only if the method has put in new parameters.

    Args:
        task: the program's task, which the learner trains.
        learner: its `phase` and `step` are already those of the phase that begins, or of the firing.
        context: what the method may know of the training, as the program builds it.
        run: logs the row; None in a process that keeps no run folder.
        measure: returns numbers of the networks' features by name; called before and after the act.
        level: which numbers of the weights are logged: off (only SFE), weights or cheap (DfI too), or full (stable
            rank too).
        afterwards: called after the act and before the second measurement, to bring the networks into the state that
            training goes on from.
        measure_change: returns numbers of the act as a whole, by their names without the prefix; called once, after the
            second measurement.
        firing: the trigger's firing, if the method does not act for a boundary.

    Raises:
        TrainingError: the method cannot work on these weights.
    """
    net, method, name = learner.net, learner.method, f"method={task.config.method['name']}"
    matrices, numbers_before = find_matrices(net), measure()
    parameters_before = list(net.parameters())
    weights_before = {key: {k: v.clone() for k, v in tensors_of(module).items()} for key, module in net.modules.items()}
    meter = Meter(task.device)
    with meter:
        try:
            returned = method.at_boundary(net, context)
        except ValueError as error:
            where = f"before phase {context.phase}" if firing is None else f"at step {learner.step}"
            raise TrainingError(f"{name} {where}: {error}") from error
    report = returned if isinstance(returned, BoundaryReport) else BoundaryReport(returned or {})
    if afterwards is not None:
        afterwards()
    numbers_after = measure()
    change = {} if measure_change is None else measure_change()
    has_new_parameters = [id(p) for p in parameters_before] != [id(p) for p in net.parameters()]
    matrices_after = find_matrices(net) if has_new_parameters else matrices
    weights_after = {key: tensors_of(module) for key, module in net.modules.items()}
    numbers = _weight_changes(report, (matrices, weights_before), (matrices_after, weights_after), level)
    numbers |= {f"{key}_before": value for key, value in numbers_before.items()}
    numbers |= {f"{key}_after": value for key, value in numbers_after.items()}
    numbers |= {**as_logged(report.numbers, name), **change, **(firing.numbers if firing else {})}
    kind = "boundary" if firing is None else "firing"
    row = {
        "kind": kind,
        "step": learner.step,
        "phase": context.phase,
        **({"reason": firing.reason} if firing else {}),
        **{f"{kind}/{key}": value for key, value in numbers.items()},
        "method/seconds": meter.take() - report.measuring,
    }
    if run is not None:
        run.log(row)


def _weight_changes(
    report: BoundaryReport, before: tuple[Matrices, Weights], after: tuple[Matrices, Weights], level: str
) -> dict[str, float]:
    """Measure how an act changed the weight matrices.

    Args:
        report: the method's own; a projection has measured the same numbers already, and they are taken from there.
        before: the weight matrices and all weights before the act.
        after: the weight matrices and all weights after it.
        level: off, weights, cheap or full.

    Returns:
        `sfe`; unless `level` is off `dfi_before` and `dfi_after`, and where a projection left some of the matrices
        `dfi_projected_before` and `_after`; for full the mean stable ranks before and after.
    """
    matrices_before, weights_before = before
    matrices_after, weights_after = after
    if level == "off":
        return {"sfe": total_sfe(matrices_after, weights_before, weights_after)}
    numbers = from_reports(report.weights, matrices_after)
    if numbers is None:
        dfi_before = each_dfi(*before)
        if matrices_after is matrices_before:
            dfi_after = each_dfi(*after, weights_before, dfi_before)
        else:
            dfi_after = each_dfi(*after)
        numbers = {
            "dfi_before": sum_in_order(dfi_before),
            "dfi_after": sum_in_order(dfi_after),
            "sfe": total_sfe(matrices_after, weights_before, weights_after),
            **dfi_of_projected(report.weights),
        }
    if level == "full":
        numbers["weight_stable_rank_before"] = weight_stable_rank(*before)
        numbers["weight_stable_rank_after"] = weight_stable_rank(*after)
    return numbers


def as_logged(numbers: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a method's numbers as a row of the log holds them: tensors and NumPy's numbers as those of Python.

    Args:
        numbers: what a hook has returned.
        name: of the method, for the message.

    Raises:
        TrainingError: a value is no number, and nothing else that JSON can hold.
    """
    plain = {}
    for key, value in numbers.items():
        try:
            plain[key] = value.item() if hasattr(value, "item") else value
            json.dumps(plain[key])
        except (RuntimeError, TypeError, ValueError) as error:  # several elements, or nothing of JSON's
            raise TrainingError(f"{name} returns {key} as a {type(value).__name__}: a row holds numbers") from error
    return plain


@uncompiled
def act_after_row(learner: LearnerBase, context: Context, last: bool) -> None:
    """Let the learner's method act after an evaluation, by its hook `after_epoch`, before the row is logged.

    Its numbers are added to the learner's row as `method/<name>`, and its seconds as `method/seconds`, which counts the
    hooks that the trainer has called since the row before, by `method_meter`. What a method does within the networks'
    own passes is not in it.

    Args:
        learner: its `row` is the row of this evaluation, which the caller logs next.
        context: what the method may know of the training, as the program builds it.
        last: whether the run ends with this row. Then the method may measure, but the networks (not their targets, nor
            the optimizers) get their weights and buffers back, so that the saved weights are those that were evaluated.
    """
    modules = learner.net.modules.values() if last else ()
    evaluated_weights = [{key: value.clone() for key, value in tensors_of(module).items()} for module in modules]
    with learner.method_meter:
        numbers = learner.method.after_epoch(learner.net, context)
    for module, weights in zip(modules, evaluated_weights, strict=True):
        load_tensors(module, weights)
    numbers = as_logged(numbers or {}, type(learner.method).__name__)
    learner.row |= {f"method/{key}": value for key, value in numbers.items()}
    learner.row["method/seconds"] = learner.method_meter.take()
