"""The parts of a phase around its steps: evaluation, rows of the log, and what methods are given."""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from fire_core.methods import Context
from fire_core.methods.protocol import Net
from fire_core.triggers import Firing
from harness.training import seeding
from harness.training.boundary import At, seed_of_new_networks
from harness.training.firing import ask
from harness.training.measure import check_finite
from language.learner import Learner
from language.task import Task, batch_at

EARLIER = 16  # largest number of earlier tasks that are evaluated
BYTES_PER_LOGIT = 25  # that `divergence` needs: logits and logarithms of two networks, and their products
MAX_BATCH_BYTES = 3 * 2**29  # that a batch of `divergence` may need, unless a single sequence needs more


def pass_probe(task: Task, learner: Learner) -> None:
    """Pass a fixed batch of the phase through the network, for a trigger that measures activations."""
    with task.autocast():
        learner.model(*batch_at(task, learner.phase, 0, 0))


def evaluate(task: Task, learner: Learner) -> dict[str, float]:
    """Return the mean loss on the phase's held-out tokens.

    val/loss weights the corpora as training mixes them. If there are several, val/loss_<name> is the loss of each.
    """
    losses = losses_on(task, learner, task.held_out(learner.phase))
    scores = {"val/loss": weighted_loss(task, learner.phase, losses)}
    if len(losses) > 1:
        scores |= {f"val/loss_{name}": loss for name, loss in losses.items()}
    return scores


def weighted_loss(task: Task, index: int, losses: Mapping[str, float]) -> float:
    """Return the loss of phase `index`, the weighted sum of the losses on its held-out tokens by name."""
    total = 0.0
    for name, (_, weight) in task.phases[index].val.items():
        total += weight * losses[name]
    return total


@torch.no_grad()
def losses_on(task: Task, learner: Learner, rows: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the mean loss in evaluation mode by name; all processes share the work.

    Args:
        task: the task of the run.
        learner: the learner, whose network is evaluated.
        rows: held-out tokens by name, int64 (n, block_size + 1) each.
    """
    losses = {}
    with Net({"model": learner.model}, {}).mode(training=False):
        for name, sequences in rows.items():
            total = torch.zeros((), dtype=torch.float64)
            for batch in own_batches(task, sequences):
                batch = batch.to(task.device)
                with task.autocast():
                    total += learner.model(batch[:, :-1], batch[:, 1:])[1].double().cpu() * len(batch)
            losses[name] = task.group.sum_(total).item() / len(sequences)
    return losses


def own_batches(task: Task, sequences: Tensor) -> Sequence[Tensor]:
    """Return the batches of this process, which together with those of the other processes have all sequences.

    Process r of p processes takes the batches r, r + p, r + 2p, and so on. Each batch is cut so small that the logits
    of two networks fit into `MAX_BATCH_BYTES`. The list may be empty, its pieces differ in size, and they stay on the
    device of `sequences`.

    Args:
        task: the task of the run.
        sequences: held-out tokens, (n, block_size + 1).
    """
    largest = max(1, MAX_BATCH_BYTES // (BYTES_PER_LOGIT * task.vocab_size * (sequences.shape[1] - 1)))
    batches = sequences.split(task.config.batch_size)[task.group.rank :: task.group.size]
    return [piece for batch in batches for piece in batch.split(largest)]


def earlier_tasks(task: Task, index: int) -> dict[str, Tensor]:
    """Return the held-out tokens of tasks that were trained before phase `index` and are not trained in it, by name.

    If there are more than `EARLIER` tasks, evenly spaced ones are taken, the oldest and the newest among them.
    """
    last_phase = {name: i for i in range(task.first_phase, index) for name in task.phases[i].val}
    names = [name for name in last_phase if name not in task.phases[index].val]
    if len(names) > EARLIER:
        names = [names[i] for i in np.linspace(0, len(names) - 1, EARLIER).round().astype(int)]
    return {name: task.held_out(last_phase[name])[name] for name in names}


def mean(losses: Mapping[str, float]) -> float:
    """Return the mean of numbers by name."""
    return math.fsum(losses.values()) / len(losses)


class BoundaryMeasurement:
    """Measures the network around an act of the method. Create it before the act, as it copies the weights.

    Args:
        task: the task of the run.
        learner: the learner, at a boundary or when a trigger has fired.
        firing: whether a trigger has fired.
    """

    def __init__(self, task: Task, learner: Learner, firing: bool = False) -> None:
        self.task, self.learner, self.firing = task, learner, firing
        self.measures_losses = task.config.metrics not in ("off", "weights")
        self.weights_before: dict[str, Tensor] = {}
        if self.measures_losses:
            self.weights_before = {name: p.detach().clone() for name, p in learner.model.named_parameters()}

    def losses(self) -> dict[str, float]:
        """Return `val_loss`, `previous_loss` and `earlier_loss` of the network as it is now.

        `val_loss` is the loss of the phase that begins, or if a trigger fired of the present phase. At a boundary after
        the first task, `previous_loss` is the loss of the phase before, and `earlier_loss` is the mean over all earlier
        tasks that are not trained now, if there are such tasks. The result is empty where `metrics` asks for no losses.
        """
        task, learner = self.task, self.learner
        if not self.measures_losses:
            return {}
        numbers = {key.replace("/", "_"): value for key, value in evaluate(task, learner).items()}
        if not self.firing and learner.phase > task.first_phase:
            earlier = earlier_tasks(task, learner.phase)
            losses = losses_on(task, learner, task.held_out(learner.phase - 1) | earlier)
            numbers["previous_loss"] = weighted_loss(task, learner.phase - 1, losses)
            if earlier:
                numbers["earlier_loss"] = mean({name: losses[name] for name in earlier})
        return numbers

    def change(self) -> dict[str, float]:
        """Return `kl`, how far the act moved the function, and for a pair of corpora `start_iteration`.

        `kl` is the mean KL divergence, in nats, of the next token's distribution before the act from that after it, on
        held-out tokens of the phase before (if a trigger fired, of the present phase). It is left out where `metrics`
        asks for no losses. `start_iteration` is the iteration of phase 0 from whose weights phase 1 starts.
        """
        task, learner = self.task, self.learner
        numbers: dict[str, float] = {}
        if not self.firing and not task.benchmark.new_tasks:
            numbers["start_iteration"] = learner.start_iteration
        if self.measures_losses:
            trained_phase = learner.phase if self.firing else max(learner.phase - 1, 0)
            numbers["kl"] = divergence(task, learner, self.weights_before, task.held_out(trained_phase))
        return numbers


@torch.no_grad()
def divergence(task: Task, learner: Learner, old: dict[str, Tensor], rows: Mapping[str, Tensor]) -> float:
    """Return the mean over tokens of KL(p_old || p_now) in nats, p being the distribution of the next token.

    Args:
        task: the task of the run.
        learner: the learner, whose network has the present weights.
        old: earlier weights of the network, by parameter name.
        rows: held-out tokens by name, int64 (n, block_size + 1) each.
    """
    total, count = torch.zeros((), dtype=torch.float64), 0
    with Net({"model": learner.model}, {}).mode(training=False):
        for sequences in rows.values():
            for batch in own_batches(task, sequences):
                batch = batch.to(task.device)
                with task.autocast():
                    old_logits = functional_call(learner.model, old, (batch[:, :-1], batch[:, 1:]))[0]
                    new_logits = learner.model(batch[:, :-1], batch[:, 1:])[0]
                # (B, T, vocab_size)
                log_p, log_q = (logits.float().log_softmax(-1) for logits in (old_logits, new_logits))
                total += (log_p.exp() * (log_p - log_q)).sum().double().cpu()
            count += sequences[:, 1:].numel()
    return task.group.sum_(total).item() / count


def make_row(task: Task, learner: Learner) -> dict[str, Any]:
    """Return the row of the log at this step, and set the sums to zero; all ranks must call it, as all evaluate."""
    sums = task.group.sum_(torch.stack([learner.loss_sum.double().cpu(), torch.tensor(float(learner.seen)).double()]))
    check_finite(learner.step, sums)  # of all ranks, so that all stop
    row = {
        "step": learner.step,
        "phase": learner.phase,
        "iteration": learner.step,
        "train/loss": (sums[0] / sums[1]).item(),
        **evaluate(task, learner),
        "lr": learner.optimizer.param_groups[0]["lr"],
        "tokens": learner.step * task.tokens_per_step,
        "seconds": round(learner.seconds, 3),
    }
    if task.benchmark.new_tasks:
        ended, lead = learner.phase_step == task.phases[learner.phase].length.steps, task.benchmark.lead
        if learner.phase >= lead:
            new_row, previous_row = since_first_task(task, row), since_first_task(task, learner.row)
            row |= averages(new_row, previous_row, learner.phase_step, ended)
        if ended:
            row |= stability(task, learner, row)
    learner.clear_sums()
    return row


def since_first_task(task: Task, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its step and phase counted from the start of the first task; an empty row stays empty."""
    if not row:
        return row
    lead = task.benchmark.lead
    lead_steps = sum(phase.length.steps for phase in task.phases[:lead])
    return row | {"step": row["step"] - lead_steps, "phase": row["phase"] - lead}


def averages(row: dict[str, Any], previous_row: dict[str, Any], phase_step: int, ended: bool) -> dict[str, float]:
    """Return how fast a stream's tasks are learned: means of the training loss, of each batch before its update.

    task/loss is the mean over the steps of this task so far, online/loss over all steps of the run. The last row of a
    task covers its last quarter; task_end/loss is the mean of these rows over the tasks that have ended.

    Args:
        row: the new row.
        previous_row: the row before; empty at the start of a run.
        phase_step: steps of the task so far.
        ended: whether the task ends with the new row.
    """
    loss: float = row["train/loss"]
    steps = row["step"] - previous_row.get("step", 0)
    same_task = previous_row.get("phase") == row["phase"]

    def updated_average(previous: float, share: float) -> float:
        return previous + (loss - previous) * share

    numbers = {
        "online/loss": updated_average(previous_row.get("online/loss", 0.0), steps / row["step"]),
        "task/loss": updated_average(previous_row["task/loss"] if same_task else 0.0, steps / phase_step),
    }
    if ended:
        numbers["task_end/loss"] = updated_average(previous_row.get("task_end/loss", 0.0), 1 / (row["phase"] + 1))
    elif "task_end/loss" in previous_row:
        numbers["task_end/loss"] = previous_row["task_end/loss"]
    return numbers


def stability(task: Task, learner: Learner, row: Mapping[str, float]) -> dict[str, float]:
    """Return the held-out loss of earlier tasks at the end of a task, and the backward transfer.

    Backward transfer is the mean over earlier tasks of the loss at the task's own end minus the loss now. Below 0,
    tasks have been forgotten.
    """
    names = task.phases[learner.phase].val
    for name in names:
        learner.own_loss[name] = row["val/loss"] if len(names) == 1 else row[f"val/loss_{name}"]
    if not (earlier := earlier_tasks(task, learner.phase)):
        return {}
    losses = losses_on(task, learner, earlier)
    transfer = {name: learner.own_loss[name] - loss for name, loss in losses.items()}
    return {"stability/earlier_loss": mean(losses), "stability/backward_transfer": mean(transfer)}


def loss_of(task: Task, learner: Learner, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of a batch, a scalar, in the run's precision."""
    with task.autocast():
        loss: Tensor = learner.model(inputs, targets)[1]
    return loss


def ask_trigger(task: Task, learner: Learner, loss: Tensor) -> Firing | None:
    """Ask the run's trigger after a step; None if it does not fire, or is not asked in this phase."""
    return ask(learner, loss=loss) if task.asks_in(learner.phase) else None


def make_context(task: Task, learner: Learner, at: At, step_loss: Tensor | None = None) -> Context:
    """Return what a method is given when it acts. Its `batches` are those of the training steps between two rows.

    Args:
        task: the task of the run.
        learner: the learner.
        at: when the method acts.
        step_loss: around a step, the loss of the step's last micro-batch.
    """
    seed_names = ("firing", learner.step) if at == "firing" else ("method", learner.phase, learner.phase_step)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(task.phases[learner.phase].rows_every):
            for number in range(task.config.accumulation):
                yield batch_at(task, learner.phase, step, number)

    return Context(
        phase=learner.phase,
        step=learner.step,
        generator=seeding.generator(task.config.seed, *seed_names),
        batches=batches,
        loss=functools.partial(loss_of, task, learner),
        optimizers=learner.optimizer_parts,
        step_loss=step_loss,
        new_networks=functools.partial(task.new_networks, *seed_of_new_networks(learner, at)),
    )
