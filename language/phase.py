"""What surrounds the steps of a phase: what is measured, rows, learning rates, checkpoints."""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from fire_core.methods import Context
from harness.run.folder import Run
from harness.training import seeding
from harness.training.boundary import At, moment_of
from harness.training.measure import check_finite
from language.learner import Learner
from language.task import Task, batch_at

EARLIER = 16  # earlier tasks that are measured at most
LOGIT = 25  # bytes that a divergence takes for each logit: two float32 networks' logits, logarithms, and what is summed
ROOM = 3 * 2**29  # bytes of one batch of them, unless a single sequence has more


def save(task: Task, learner: Learner, run: Run | None) -> None:
    """Write a checkpoint of what all processes know together."""
    check_finite(learner.step, learner.loss_sum, *learner.model.parameters())
    sums = torch.zeros(task.group.size, dtype=learner.loss_sum.dtype, device=learner.loss_sum.device)  # (ranks,)
    sums[task.group.rank] = learner.loss_sum
    task.group.sum_(sums)  # each rank's own, exactly: the others add 0
    whole = {"loss_sum": sums.sum(), "seen": learner.seen * task.group.size, "rank_sums": sums}
    if run is not None:
        run.checkpoint(learner.step, learner.state_dict() | whole)


def pass_probe(task: Task, learner: Learner) -> None:
    """Pass a fixed batch of the phase through the network, for a trigger that looks at activations."""
    with task.autocast():
        learner.model(*batch_at(task, learner.phase, 0, 0))


def evaluate(task: Task, learner: Learner) -> dict[str, float]:
    """Mean loss on the phase's held-out tokens: each corpus's, and weighted as training mixes them."""
    losses = losses_on(task, learner, task.held_out(learner.phase))
    each = {f"val/loss_{name}": loss for name, loss in losses.items()}
    return {"val/loss": weighted(task, learner.phase, losses), **(each if len(each) > 1 else {})}


def weighted(task: Task, index: int, losses: Mapping[str, float]) -> float:
    """The loss of phase `index`, from that of each of its names."""
    total = 0.0
    for name, (_, weight) in task.phases[index].val.items():
        total += weight * losses[name]
    return total


@torch.no_grad()
def losses_on(task: Task, learner: Learner, rows: Mapping[str, Tensor]) -> dict[str, float]:
    """Mean loss in evaluation mode on held-out tokens (n, block_size + 1) by name, over all processes."""
    learner.model.eval()
    losses = {}
    for name, sequences in rows.items():
        total = torch.zeros((), dtype=torch.float64)
        for batch in dealt(task, sequences):
            batch = batch.to(task.device)
            with task.autocast():
                total += learner.model(batch[:, :-1], batch[:, 1:])[1].double().cpu() * len(batch)
        losses[name] = task.group.sum_(total).item() / len(sequences)
    learner.model.train()
    return losses


def dealt(task: Task, sequences: Tensor) -> Sequence[Tensor]:
    """The batches of some sequences that this process looks at, as small as memory asks; the others look at others."""
    most = max(1, ROOM // (LOGIT * task.vocab_size * (sequences.shape[1] - 1)))
    batches = sequences.split(task.config.batch_size)[task.group.rank :: task.group.size]
    return [part for batch in batches for part in batch.split(most)]


def earlier_tasks(task: Task, index: int) -> dict[str, Tensor]:
    """Held-out tokens of what was trained before phase `index` and is not trained in it, by name.

    Of more than `EARLIER` names, evenly spaced ones, the oldest and the newest among them.
    """
    last = {name: i for i in range(task.first_phase, index) for name in task.phases[i].val}
    names = [name for name in last if name not in task.phases[index].val]
    if len(names) > EARLIER:
        names = [names[i] for i in np.linspace(0, len(names) - 1, EARLIER).round().astype(int)]
    return {name: task.held_out(last[name])[name] for name in names}


def mean(losses: Mapping[str, float]) -> float:
    """Over names."""
    return math.fsum(losses.values()) / len(losses)


class BothSides:
    """Numbers of the network before and after a method acts: call it before, then after.

    `val_loss` is that of the phase that begins, `previous_loss` of the one before, `earlier_loss` the mean over all
    earlier tasks that are not trained now. `between["kl"]` is how far the method moved the function: the mean KL
    divergence of the next token's distribution, before from after, in nats, on held-out tokens of the phase before;
    where a trigger fired, of the phase itself.

    Args:
        task: what is fixed.
        learner: at the boundary, or where a trigger fired.
        firing: which of the two.
    """

    def __init__(self, task: Task, learner: Learner, firing: bool = False) -> None:
        self.task, self.learner, self.firing = task, learner, firing
        self.known = learner.phase if firing else max(learner.phase - 1, 0)
        self.old: dict[str, Tensor] | None = None
        starts = not firing and not task.benchmark.new_tasks
        self.between: dict[str, float] = {"start_iteration": learner.start_iteration} if starts else {}

    def __call__(self) -> dict[str, float]:
        """The numbers of this side."""
        task, learner = self.task, self.learner
        if task.config.metrics in ("off", "weights"):
            return {}
        numbers = {key.replace("/", "_"): value for key, value in evaluate(task, learner).items()}
        if not self.firing and learner.phase > task.first_phase:
            earlier = earlier_tasks(task, learner.phase)
            losses = losses_on(task, learner, task.held_out(learner.phase - 1) | earlier)
            numbers["previous_loss"] = weighted(task, learner.phase - 1, losses)
            if earlier:
                numbers["earlier_loss"] = mean({name: losses[name] for name in earlier})
        if self.old is None:
            self.old = {name: p.detach().clone() for name, p in learner.model.named_parameters()}  # tied ones once
        else:
            self.between["kl"] = divergence(task, learner, self.old, task.held_out(self.known))
        return numbers


@torch.no_grad()
def divergence(task: Task, learner: Learner, old: dict[str, Tensor], rows: Mapping[str, Tensor]) -> float:
    """Mean over tokens of KL(p_old || p_now) in nats, p the distribution of the next token."""
    learner.model.eval()
    total, count = torch.zeros((), dtype=torch.float64), 0
    for sequences in rows.values():
        for batch in dealt(task, sequences):
            batch = batch.to(task.device)
            with task.autocast():
                before = functional_call(learner.model, old, (batch[:, :-1], batch[:, 1:]))[0]
                now = learner.model(batch[:, :-1], batch[:, 1:])[0]
            p, q = (logits.float().log_softmax(-1) for logits in (before, now))  # (B, T, vocab_size)
            total += (p.exp() * (p - q)).sum().double().cpu()
        count += sequences[:, 1:].numel()
    learner.model.train()
    return task.group.sum_(total).item() / count


def make_row(task: Task, learner: Learner) -> dict[str, Any]:
    """What is known at this step; on every rank, for all take part in the evaluation."""
    check_finite(learner.step, learner.loss_sum)  # waits for the GPU
    loss = task.group.sum_(torch.stack([learner.loss_sum.double().cpu(), torch.tensor(float(learner.seen)).double()]))
    row = {
        "step": learner.step,
        "phase": learner.phase,
        "iteration": learner.step,
        "train/loss": (loss[0] / loss[1]).item(),
        **evaluate(task, learner),
        "lr": learner.optimizer.param_groups[0]["lr"],
        "tokens": learner.step * task.tokens_per_step,
        "seconds": round(learner.seconds, 3),
    }
    if task.benchmark.new_tasks:
        ended, lead = learner.phase_step == task.phases[learner.phase].length.steps, task.benchmark.lead
        if learner.phase >= lead:
            begin = {"step": sum(phase.length.steps for phase in task.phases[:lead]), "phase": lead}
            now, before = (one and one | {key: one[key] - begin[key] for key in begin} for one in (row, learner.row))
            row |= averages(now, before, learner.phase_step, ended)
        if ended:
            row |= stability(task, learner, row)
    learner.clear_sums()
    return row


def averages(row: dict[str, Any], before: dict[str, Any], phase_step: int, ended: bool) -> dict[str, float]:
    """How fast a stream's tasks are learned: means of the training loss, each batch's before the update that it causes.

    task/loss: over the steps of the task so far. online/loss: over all steps so far. task_end/loss: over the tasks that
    have ended, of the mean over the steps since the last row but one, a task's last quarter.

    Args:
        row: the new row.
        before: the row before; empty at the start of a run.
        phase_step: steps of the task so far.
        ended: whether the task ends with this row.
    """
    loss, steps = row["train/loss"], row["step"] - before.get("step", 0)
    same = before.get("phase") == row["phase"]

    def average(name: str, last: float, value: float, share: float) -> dict[str, float]:
        return {name: last + (value - last) * share}

    numbers = average("online/loss", before.get("online/loss", 0.0), loss, steps / row["step"])
    numbers |= average("task/loss", before["task/loss"] if same else 0.0, loss, steps / phase_step)
    name = "task_end/loss"
    if ended:
        return numbers | average(name, before.get(name, 0.0), loss, 1 / (row["phase"] + 1))
    return numbers | ({name: before[name]} if name in before else {})


def stability(task: Task, learner: Learner, row: Mapping[str, float]) -> dict[str, float]:
    """At the end of a task: the held-out loss of earlier ones, and backward transfer.

    The latter is the mean over earlier tasks of what the loss was at the task's own end less what it is now: below 0,
    the task was forgotten.
    """
    own = task.phases[learner.phase].val
    learner.own_loss |= {name: row["val/loss"] if len(own) == 1 else row[f"val/loss_{name}"] for name in own}
    if not (earlier := earlier_tasks(task, learner.phase)):
        return {}
    losses = losses_on(task, learner, earlier)
    transfer = {name: learner.own_loss[name] - loss for name, loss in losses.items()}
    return {"stability/earlier_loss": mean(losses), "stability/backward_transfer": mean(transfer)}


def loss_of(task: Task, learner: Learner, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean loss of a batch, in the run's precision."""
    with task.autocast():
        loss: Tensor = learner.model(inputs, targets)[1]
    return loss


def make_context(task: Task, learner: Learner, at: At, step_loss: Tensor | None = None) -> Context:
    """What a method is told when it acts; a pass is what comes between two rows.

    Args:
        task: what is fixed.
        learner: as it is now.
        at: when.
        step_loss: around a step, the loss of its last batch.
    """
    names = ("firing", learner.step) if at == "firing" else ("method", learner.phase, learner.phase_step)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(task.phases[learner.phase].rows_every):
            for number in range(task.config.accumulation):
                yield batch_at(task, learner.phase, step, number)

    return Context(
        phase=learner.phase,
        step=learner.step,
        generator=seeding.generator(task.config.seed, *names),
        batches=batches,
        loss=functools.partial(loss_of, task, learner),
        optimizers=learner.optimizer_parts,
        step_loss=step_loss,
        new_networks=functools.partial(task.new_networks, *moment_of(learner, at)),
    )
