"""Runs that differ in their seed alone, trained together (`stack=20`). Read from `train` down; beside `vision.train`.

Each run has its own `Learner`, whose weights and optimizer state are views of common tensors (`StackedNetworks`,
`StackedAdam`). So a step is made for all at once, while whatever happens between steps (boundaries, rows, checkpoints,
hooks of methods) is done for each run by the code that also serves a run alone, on its own networks and generators.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fire_core.harness.options.errors import TrainingError
from fire_core.harness.run.folder import Run
from fire_core.harness.stacked.method import SeparateMethods, choose_methods, choose_optimizer
from fire_core.harness.stacked.network import StackedNetworks, clip_gradients
from fire_core.harness.stacked.optimizer import Steps
from fire_core.harness.stacked.runs import StackedRuns
from fire_core.harness.training import seeding
from fire_core.harness.training.boundary import act_after_row
from fire_core.harness.training.loop import Loop
from fire_core.harness.training.measure import check_finite
from fire_core.methods import Context
from fire_core.weights.optimizer_state import set_rate_factor
from vision.learner import Learner
from vision.phase import make_context, make_row, no_denormals, rate_factor, save, summarise
from vision.stack.data import PhaseData
from vision.stack.loss import cross_entropy, squared_error
from vision.task import Task

State = dict[str, Any]
BeginPhase = Callable[[Task, Learner, int, Run], None]


def train(
    tasks: Sequence[Task],
    runs: Sequence[Run],
    states: Sequence[State | None],
    stop: int | None = None,
    *,
    begin_phase: BeginPhase,
) -> list[dict[str, Any] | TrainingError]:
    """Train each run from its state (None: from the start) up to phase `stop` (None: to the end).

    Runs that stand at one step train together. Where some are ahead, the others train until they are there too.

    Args:
        tasks: of the runs.
        runs: their folders, open.
        states: where each stands.
        stop: the phase before which to stop.
        begin_phase: the trainer's (`vision.train`), which lets a method act at a boundary.

    Returns:
        For each run its summary, or why it cannot go on.
    """
    now, failed = list(states), dict[int, TrainingError]()
    end = sum(phase.steps(tasks[0].config.batch_size) for phase in tasks[0].phases[:stop])

    def step(i: int) -> int:
        state = now[i]
        return 0 if state is None else int(state["step"])

    while going := [i for i in range(len(tasks)) if i not in failed and step(i) < end]:
        last = min(map(step, going))
        together = [i for i in going if step(i) == last]
        of_these = [tasks[i] for i in together], [runs[i] for i in together], [now[i] for i in together]
        stack = Stack(*of_these, begin_phase)
        stack.train_until(min((step(i) for i in going if step(i) > last), default=end), end)
        failed |= {together[i]: error for i, error in stack.failed.items()}
        for i, state in zip(together, stack.states(), strict=True):
            now[i] = state
    return [failed[i] if i in failed else summarise(state or {}) for i, state in enumerate(now)]


class Stack(StackedRuns):
    """Runs at one step, and what they have in common.

    Args:
        tasks: of equal phases but for what is drawn by the seed.
        runs: their folders, open.
        states: to go on from, all of one step.
        act: the trainer's `begin_phase`.
    """

    def __init__(
        self, tasks: Sequence[Task], runs: Sequence[Run], states: Sequence[State | None], act: BeginPhase
    ) -> None:
        super().__init__(tasks, runs)
        self.tasks, self.act = tasks, act
        self.task, self.config = tasks[0], tasks[0].config
        self.learners = [Learner.new(task) for task in tasks]
        self.networks = StackedNetworks([learner.model for learner in self.learners])
        self.optimizer: Steps | None = None
        self.methods: SeparateMethods | None = None  # in a phase in which they act
        self.seconds, self.phase, self.phase_step, self.step = 0.0, 0, 0, 0
        self.factor: float | None = None  # of the learning rates in the last step
        self.clear_sums()
        for i, state in enumerate(states):
            if state is not None:
                learner = self.learners[i]
                learner.load_state_dict(tasks[i], state)
                self.generators[i], self.before[i] = state["rng"], learner.seconds
                self.phase, self.phase_step, self.step = learner.phase, learner.phase_step, learner.step
                self.loss_sum[i], self.correct[i], self.seen = learner.loss_sum, learner.correct, learner.seen

    def train_until(self, until: int, end: int) -> None:
        """Train up to step `until` of the runs, or to the end of a phase in which a run failed.

        Checkpoints are written when they are due and at step `end`, the last; not at the end of each phase, as phases
        may be short and runs many.
        """
        size = self.config.batch_size
        seeds = f"{self.task.config.seed} to {self.tasks[-1].config.seed}"
        title = f"{self.config.method['name']}, {len(self.tasks)} seeds ({seeds})"
        with Loop(self, self.runs[0], self.task.total_steps, title, self.config.progress) as loop, no_denormals():
            for index, phase in enumerate(self.task.phases):
                if index < self.phase:
                    continue
                if index > self.phase and self.failed:
                    return
                if index > self.phase or self.learners[0].optimizer is None:
                    self.begin_phase(index)
                acts, per_epoch = self.task.method_acts_in(index), phase.steps_per_epoch(size)
                self.begin_steps(acts)
                with contextlib.nullcontext() if self.methods is None else self.methods.watch():
                    for images, labels in PhaseData(self.tasks, index).batches(self.phase_step):
                        self.train_step(images, labels)
                        self.phase_step += 1
                        self.step += 1
                        loop.advance()
                        if self.phase_step % per_epoch == 0:
                            loop.read_clock()
                            self.make_rows()
                            loop.show(**self.mean_row())
                        if not self.going:
                            return
                        loop.run = self.runs[self.going[0]]
                        loop.end_step(self.save, ended=self.step == end)
                        if self.step == until:
                            return

    def begin_phase(self, index: int) -> None:
        """The boundary before phase `index`, for each run as if it were alone."""
        self.write_back()
        for i in self.going:
            self.bring_up_to_date(i)
            self.attempt(i, functools.partial(self.act, self.tasks[i], self.learners[i], index, self.runs[i]))
            self.generators[i] = seeding.rng_state()
        self.phase, self.phase_step = index, 0
        self.clear_sums()

    def begin_steps(self, acts: bool) -> None:
        """How the steps of a phase are made. `acts`: whether the methods act in it."""
        parts = (self.learners, lambda: self.going, self.moment, self.as_seed)
        self.methods = choose_methods(*parts, {"model": self.networks}) if acts else None
        self.renew_optimizer()

    def renew_optimizer(self) -> None:
        """For the steps of a phase."""
        self.optimizer = choose_optimizer(self.learners, self.networks, self.methods, self.as_seed)
        first = self.learners[0]
        assert first.optimizer is not None
        held = [p for group in first.optimizer.param_groups for p in group["params"]]
        names = {id(parameter): name for name, parameter in first.model.named_parameters()}
        gradients = [self.networks.parameters[names[id(p)]].grad for p in held]
        self.gradients = [g for g in gradients if g is not None]  # in the optimizer's order, as norms are summed

    def moment(self, i: int, loss: Tensor | None) -> Context:
        """A run's context after a step."""
        self.bring_up_to_date(i)
        return make_context(self.tasks[i], self.learners[i], loss)

    def train_step(self, images: Tensor, labels: Tensor) -> None:
        """One step of each run, with the methods' penalties and their hooks after the step."""
        outputs = self.networks.forward(images)  # (S, b, outputs)
        losses, gradient = (cross_entropy if self.task.classifies else squared_error)(outputs, labels)
        self.networks.backward(gradient)
        penalties = None if self.methods is None else self.methods.add_penalties()
        totals = losses if penalties is None else losses + penalties
        norms = clip_gradients(self.gradients, self.config.grad_clip)
        self.check_finite(totals, norms)
        assert self.optimizer is not None
        self.factor = rate_factor(self.task, self.phase, self.phase_step)
        self.optimizer.step(self.factor)
        if self.methods is not None:
            self.methods.after_step(losses)
        self.loss_sum += losses * labels.shape[1]
        if self.task.classifies:
            self.correct += (outputs.argmax(2) == labels).sum(1)
        self.seen += labels.shape[1]

    def check_finite(self, *values: Tensor) -> None:
        """Take out the runs of which a value (S,) is not finite."""
        together = torch.stack(values)
        if together.isfinite().all():
            return
        for i in self.going:
            self.attempt(i, functools.partial(check_finite, self.step, together[:, i]))

    def make_rows(self) -> None:
        """The rows that end a displayed epoch."""
        touched = self.methods is not None and self.learners[0].method.overrides("after_epoch")
        if touched:
            self.write_back()
        if self.methods is not None:
            self.methods.share_time()
        for i in self.going:
            self.bring_up_to_date(i)
            self.attempt(i, functools.partial(self.make_row, i))
        if touched and self.methods is not None:
            self.methods.read_again()
            self.renew_optimizer()
        self.clear_sums()

    def make_row(self, i: int) -> None:
        """One of them."""
        task, learner = self.tasks[i], self.learners[i]
        learner.row = make_row(task, learner)
        if self.methods is not None:
            with self.as_seed(i):
                act_after_row(learner, learner.net, make_context(task, learner), learner.step == task.total_steps)
        self.runs[i].log(learner.row)

    def mean_row(self) -> dict[str, float]:
        """What is shown beside the progress bar: means over the runs."""
        rows = [self.learners[i].row for i in self.going]
        shown = [key for key in ("train/loss", "train/accuracy", "test/accuracy") if rows and key in rows[0]]
        return {key: sum(row[key] for row in rows) / len(rows) for key in shown}

    def save(self) -> None:
        """A checkpoint of each run."""
        self.write_back()
        for i in self.going:
            self.bring_up_to_date(i)
            seeding.set_rng_state(self.generators[i])
            self.attempt(i, functools.partial(save, self.tasks[i], self.learners[i], self.runs[i]))

    def states(self) -> list[State | None]:
        """Of each run, as a checkpoint would hold it; None of those that have failed."""
        self.write_back()
        states: list[State | None] = [None] * len(self.runs)
        for i in self.going:
            self.bring_up_to_date(i)
            seeding.set_rng_state(self.generators[i])
            states[i] = self.learners[i].state_dict()
        return states

    def write_back(self) -> None:
        """Bring the runs' optimizers and methods up to date."""
        if self.optimizer is not None:
            self.optimizer.write_back()
        if self.methods is not None:
            self.methods.write_back()

    def bring_up_to_date(self, i: int) -> None:
        """A learner's counters and sums, of which the stack keeps those of all runs."""
        learner = self.learners[i]
        learner.phase, learner.phase_step, learner.step = self.phase, self.phase_step, self.step
        learner.seconds = self.before[i] + self.seconds / len(self.runs)  # a run's share
        learner.loss_sum, learner.correct, learner.seen = self.loss_sum[i].clone(), self.correct[i].clone(), self.seen
        if learner.optimizer is not None and self.factor is not None:
            set_rate_factor(learner.optimizer, self.factor)

    def clear_sums(self) -> None:
        """Start counting for the next rows."""
        self.loss_sum = torch.zeros(len(self.runs), device=self.task.device)
        self.correct, self.seen = torch.zeros_like(self.loss_sum), 0
