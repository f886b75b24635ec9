"""Where every trainer lets a method act: at the boundary between two phases, where a trigger fired, after a row."""

import functools
from collections.abc import Callable
from typing import Any, Literal, Protocol

import torch

from fire_core.methods import BoundaryReport, Context
from fire_core.triggers import Firing
from harness.config.errors import TrainingError
from harness.run.folder import Run
from harness.training.learner import LearnerBase
from harness.training.measure import (
    Matrices,
    Meter,
    Weights,
    each_dfi,
    find_matrices,
    from_reports,
    total,
    total_sfe,
    weight_stable_rank,
)

# When a context is made: before a phase, where a trigger has fired, after a row, around an optimizer step.
At = Literal["boundary", "firing", "row", "step"]


def moment_of(learner: LearnerBase, at: At) -> tuple[str, int]:
    """What the seed of newly built networks is derived from: the phase that begins, or the step of the firing."""
    return ("firing", learner.step) if at == "firing" else ("phase", learner.phase)


class Task(Protocol):
    """The part of a task that is asked for here."""

    @property
    def config(self) -> Any:
        """The program's options."""

    @property
    def device(self) -> torch.device:
        """Whose work is waited for and whose memory is measured."""


def act_at_boundary(
    task: Task,
    learner: LearnerBase,
    context: Context,
    run: Run | None,
    *,
    measure: Callable[[], dict[str, float]],
    level: str = "cheap",
    afterwards: Callable[[], None] | None = None,
    also: dict[str, float] | None = None,
    firing: Firing | None = None,
) -> None:
    """Let the learner's method act on its networks, in place, and log a row of what it did.

    The row has `kind` ("boundary"), `step`, `phase`, `boundary/<number>_before` and `_after` for DfI and what `measure`
    gives, `boundary/sfe`, what the method reports, and the seconds that it took. The layout is resolved once, and again
    only if the method has put in new parameters. Where a trigger fired, `kind` and prefix are `firing`, and the
    trigger's numbers and its `reason` are in the row too.

    Args:
        task: of the learner.
        learner: with its phase and step already those of the phase that begins, or of the firing.
        context: as the program makes it.
        run: takes the row; None (a process that is not the first of its run) takes none.
        measure: numbers of the networks' features, taken before and after.
        level: of the weights' numbers: off (only SFE), weights or cheap (DfI too) or full (stable rank too).
        afterwards: done with the networks before they are measured again.
        also: further numbers for the row, by name without prefix.
        firing: why the method acts, if it is not for a boundary.

    Raises:
        TrainingError: the method cannot work on these weights.
    """
    net, method = learner.net, learner.method
    found, before = find_matrices(net), measure()
    parameters = list(net.parameters())
    old = {key: {k: v.clone() for k, v in module.state_dict().items()} for key, module in net.modules.items()}
    meter = Meter(task.device)
    with meter:
        try:
            done = method.at_boundary(net, context)
        except ValueError as error:
            where = f"before phase {context.phase}" if firing is None else f"at step {learner.step}"
            raise TrainingError(f"method={task.config.method['name']} {where}: {error}") from error
    report = done if isinstance(done, BoundaryReport) else BoundaryReport(done)
    if afterwards is not None:
        afterwards()
    after = measure()
    replaced = [id(p) for p in parameters] != [id(p) for p in net.parameters()]
    found_after = find_matrices(net) if replaced else found
    new = {key: module.state_dict() for key, module in net.modules.items()}
    numbers = _of_weights(report, (found, old), (found_after, new), level)
    numbers |= {f"{key}_before": value for key, value in before.items()}
    numbers |= {f"{key}_after": value for key, value in after.items()}
    numbers |= {**report.numbers, **(also or {}), **(firing.numbers if firing else {})}
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


def _of_weights(
    report: BoundaryReport, before: tuple[Matrices, Weights], after: tuple[Matrices, Weights], level: str
) -> dict[str, float]:
    """DfI, SFE and stable rank of the matrices, as far as `level` asks; the method's own report saves the work."""
    sfe = functools.partial(total_sfe, after[0], before[1], after[1])
    if level == "off":
        return {"sfe": sfe()}
    numbers = from_reports(report.weights, after[0])
    if numbers is None:
        old = each_dfi(*before)
        new = each_dfi(*after, before[1], old) if after[0] is before[0] else each_dfi(*after)
        numbers = {"dfi_before": total(old), "dfi_after": total(new), "sfe": sfe()}
    if level == "full":
        numbers["weight_stable_rank_before"] = weight_stable_rank(*before)
        numbers["weight_stable_rank_after"] = weight_stable_rank(*after)
    return numbers


def act_after_row(learner: LearnerBase, context: Context, last: bool) -> None:
    """Let the learner's method act after an evaluation; its numbers and its seconds since the row before join the row.

    The seconds are those of the hooks that the trainer calls, which `method_meter` has counted. What a method does
    within the networks' own passes is not in them.

    Args:
        learner: with the row.
        context: as the program makes it.
        last: whether the run ends with this row. Then the method may measure, but the networks are given their weights
            back: what is saved is what was evaluated.
    """
    modules = learner.net.modules.values() if last else ()
    weights = [{key: value.clone() for key, value in module.state_dict().items()} for module in modules]
    with learner.method_meter:
        numbers = learner.method.after_epoch(learner.net, context)
    for module, evaluated in zip(modules, weights, strict=True):
        module.load_state_dict(evaluated)
    learner.row |= {f"method/{key}": value for key, value in numbers.items()}
    learner.row["method/seconds"] = learner.method_meter.take()
