"""What the stacks of both agents share: runs that differ in their seed alone, trained together (`stack=10`).

Each run has its own learner, whose weights, optimizer state and replay are views of common tensors. So a step is made
for all at once, while whatever happens between steps (boundaries, rows, checkpoints, hooks of methods) is done for each
run by the code that also serves a run alone, on its own networks and generators.
"""

import contextlib
import functools
import resource
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from omegaconf import DictConfig
from torch import Tensor

from fire_core.harness.options.checks import check_options
from fire_core.harness.options.errors import ConfigError, TrainingError
from fire_core.harness.run.checkpoint import loading
from fire_core.harness.run.folder import Run
from fire_core.harness.run.stack import with_seed
from fire_core.harness.stacked.method import SeparateMethods
from fire_core.harness.stacked.runs import StackedRuns
from fire_core.harness.training import seeding
from fire_core.harness.training.boundary import act_after_row
from fire_core.harness.training.loop import Loop
from fire_core.methods import Context, Net
from fire_core.triggers import Firing
from rl.common import checkpoint
from rl.common.learner import AgentLearner, ask_trigger
from rl.common.phases import Phase
from rl.common.replay_store import RingStore

State = dict[str, Any]
FILES = 64  # that a process holds open beside those of its runs
FOLLOW = 32  # steps between two looks for full segments of the replays


class Task(Protocol):
    """What is needed of a run's task."""

    @property
    def config(self) -> Any:
        """The run's options."""

    @property
    def phases(self) -> list[Phase]:
        """Of the run."""

    @property
    def total_steps(self) -> int:
        """Of the run."""

    def method_acts_in(self, index: int) -> bool:
        """Whether the method shapes what happens within phase `index`."""


T = TypeVar("T", bound=Task)
L = TypeVar("L", bound=AgentLearner)
BeginPhase = Callable[[T, L, int, Run], None]  # lets the method act at the boundary before a phase
Fire = Callable[[T, L, Run, Firing], None]


def make_tasks(config: DictConfig, make: Callable[[DictConfig], T]) -> list[T]:
    """The tasks of the runs of a stack; `make`: that of one run.

    Raises:
        ConfigError: an option is wrong, or there are not enough open files for so many runs.
    """
    check_options(config)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if (most := (files - FILES) // 2) < config.stack:
        raise ConfigError(f"stack={config.stack} needs {2 * config.stack} open files: at most {most}")
    return [make(with_seed(config, seed)) for seed in range(config.seed, config.seed + config.stack)]


@contextlib.contextmanager
def thrown_away(learner: L) -> Iterator[L]:
    """A learner that is only looked at."""
    try:
        yield learner
    finally:
        learner.close()


def try_state(task: T, state: State, make: Callable[[T], AgentLearner]) -> None:
    """Load a state, without its replay, into a learner that is thrown away.

    Raises:
        DamagedStateError: it cannot be loaded.
    """
    with thrown_away(make(task)) as learner, loading():
        learner.load_state_dict(task, state)


def train_together(
    tasks: Sequence[T],
    runs: Sequence[Run],
    states: Sequence[State | None],
    stop: int | None,
    make: "Callable[[Sequence[T], Sequence[Run], contextlib.ExitStack], AgentStack[T, L]]",
) -> list[dict[str, Any] | TrainingError]:
    """Train each run from its state (None: from the start) up to phase `stop` (None: to the end).

    Runs that stand at one step train together; those that stand elsewhere, in a stack of their own, as replays are too
    large to be moved about.

    Args:
        tasks: of the runs.
        runs: their folders, open.
        states: where each stands; its replay is on the disk.
        stop: the phase before which to stop.
        make: the stack of some of them.

    Returns:
        For each run its summary, or why it cannot go on.
    """
    results: dict[int, dict[str, Any] | TrainingError] = {}
    end = tasks[0].phases[len(tasks[0].phases[:stop]) - 1].end
    groups: dict[int, list[int]] = {}
    for i, state in enumerate(states):
        groups.setdefault(0 if state is None else int(state["step"]), []).append(i)
    for _, together in sorted(groups.items()):
        with contextlib.ExitStack() as opened:
            stack = make([tasks[i] for i in together], [runs[i] for i in together], opened)
            stack.load([states[i] for i in together])
            stack.train_until(end, stop)
            for place, i in enumerate(together):
                results[i] = stack.failed.get(place) or stack.summarise(place)
    return [results[i] for i in range(len(tasks))]


class AgentStack(StackedRuns, ABC, Generic[T, L]):
    """Runs at one step, and what they have in common.

    Args:
        tasks: of the runs.
        runs: their folders, open.
        learners: of the runs.
        stores: of their replays.
        opened: closes environments, threads and files.
        act: the trainer's `begin_phase`.
        fire: lets the method of a run act where its trigger fired.
    """

    def __init__(
        self,
        tasks: Sequence[T],
        runs: Sequence[Run],
        learners: Sequence[L],
        stores: Sequence[RingStore],
        opened: contextlib.ExitStack,
        act: "BeginPhase[T, L]",
        fire: "Fire[T, L]",
    ) -> None:
        super().__init__(tasks, runs)
        self.tasks, self.act, self.fire, self.config = tasks, act, fire, tasks[0].config
        self.learners, self.stores = list(learners), list(stores)
        for store, learner in zip(stores, learners, strict=True):
            opened.callback(store.close)
            opened.callback(learner.close)
        self.seconds, self.phase, self.phase_step, self.step, self.updates = 0.0, 0, 0, 0, 0
        self.methods: dict[str, SeparateMethods] = {}  # by network, in a phase in which they act
        self.losses: Tensor | None = None  # of the step's last update, (S,)

    # ------------------------------------------------------------------------------------------- what each agent says

    @abstractmethod
    def interact(self) -> None:
        """A step of every run's environment and the updates that are due."""

    @abstractmethod
    def row_due(self, ended: bool) -> bool:
        """Whether this step has a row; `ended`: the phase ends with it."""

    @abstractmethod
    def row(self, i: int) -> dict[str, Any]:
        """The row of a run at this step."""

    @abstractmethod
    def after_row(self, i: int) -> tuple[Net, Context]:
        """What the method of a run acts on after a row, and the moment."""

    @abstractmethod
    def summarise(self, i: int) -> dict[str, Any]:
        """What is kept of a run that has ended."""

    @abstractmethod
    def save_one(self, i: int) -> None:
        """Write a run's checkpoint."""

    @abstractmethod
    def take_over(self, i: int) -> None:
        """Go on with what a run's learner holds: its sums, what its environment shows."""

    @abstractmethod
    def choose_methods(self) -> dict[str, SeparateMethods]:
        """The methods for the steps of a phase in which they act."""

    @abstractmethod
    def renew_updates(self) -> None:
        """The updates of a phase, with the optimizers as they are now."""

    @abstractmethod
    def write_optimizers(self) -> None:
        """Bring the runs' optimizers up to date."""

    @abstractmethod
    def clear_sums(self) -> None:
        """Start counting for the next rows."""

    @abstractmethod
    def start_trigger(self, i: int) -> Net:
        """Make a run's trigger ready, if it has one; the networks that it measures."""

    def begun(self, i: int) -> None:
        """A run has begun a phase."""

    # ------------------------------------------------------------------------------------------------------- the loop

    def load(self, states: Sequence[State | None]) -> None:
        """Go on from these, all of one step."""
        for i, state in enumerate(states):
            learner = self.learners[i]
            if state is None:
                continue
            with loading():
                checkpoint.load_replay(self.stores[i], learner.replay, state)
                learner.load_state_dict(self.tasks[i], state)
            self.generators[i], self.before[i] = state["rng"], learner.seconds
            self.phase, self.phase_step, self.step = learner.phase, learner.phase_step, learner.step
            self.updates = learner.updates
            self.take_over(i)
        self.seen = [self.start_trigger(i) for i in range(len(self.runs))]

    def train_until(self, end: int, stop: int | None) -> None:
        """Train up to step `end`, the last of phase `stop` - 1."""
        task, config = self.tasks[0], self.config
        seeds = f"{config.seed} to {self.tasks[-1].config.seed}"
        title = f"{config.method['name']}, {len(self.tasks)} seeds ({seeds})"
        with Loop(self, self.runs[0], task.total_steps, title, config.progress) as loop:
            for index, phase in enumerate(task.phases[:stop]):
                if index < self.phase:
                    continue
                if index > self.phase or self.step == 0:
                    self.begin_phase(index)
                self.methods = self.choose_methods() if task.method_acts_in(index) else {}
                self.renew_updates()
                with contextlib.ExitStack() as watching:
                    for methods in self.methods.values():
                        watching.enter_context(methods.watch())
                    while self.step < phase.end and self.going:
                        self.interact()
                        self.follow()
                        loop.advance()
                        if self.row_due(self.step >= phase.end):
                            loop.read_clock()
                            self.make_rows()
                        self.ask_triggers()
                        if not self.going:
                            return
                        loop.run = self.runs[self.going[0]]
                        loop.end_step(self.save, ended=self.step == end)

    def begin_phase(self, index: int) -> None:
        """The boundary before phase `index`, for each run as if it were alone."""
        self.write_back()
        for i in self.going:
            self.bring_up_to_date(i)
            self.attempt(i, functools.partial(self.act, self.tasks[i], self.learners[i], index, self.runs[i]))
            self.generators[i] = seeding.rng_state()
            self.begun(i)
        self.phase, self.phase_step = index, 0

    def follow(self) -> None:
        """Write segments of the replays that have become full."""
        segment = min(self.stores[0].rows, self.learners[0].replay.rows)
        if self.step % FOLLOW == 0 or segment < 2 * FOLLOW:
            for i in self.going:
                self.stores[i].follow(self.learners[i].replay)

    def ask_triggers(self) -> None:
        """Let the methods act whose triggers say so."""
        fired: dict[int, Firing] = {}
        for i in self.going if self.learners[0].trigger is not None else ():
            self.bring_up_to_date(i)
            firing = ask_trigger(self.learners[i], self.seen[i], None if self.losses is None else self.losses[i])
            if firing is not None:
                fired[i] = firing
        if not fired:
            return
        self.write_back()
        for i, firing in fired.items():
            with self.as_seed(i):
                do = functools.partial(self.fire, self.tasks[i], self.learners[i], self.runs[i], firing)
                self.attempt(i, do)
        self.read_methods()

    def read_methods(self) -> None:
        """Go on with what the single methods and optimizers hold."""
        for methods in self.methods.values():
            methods.read_again()
        self.renew_updates()

    def make_rows(self) -> None:
        """The rows of this step."""
        touched = bool(self.methods) and self.learners[0].method.overrides("after_epoch")
        if touched:
            self.write_back()
        for methods in self.methods.values():
            methods.share_time()
        for i in self.going:
            self.bring_up_to_date(i)
            self.attempt(i, functools.partial(self.make_one_row, i))
        if touched:
            self.read_methods()
        self.clear_sums()

    def make_one_row(self, i: int) -> None:
        """One of them."""
        learner = self.learners[i]
        learner.row = self.row(i)
        if self.methods:
            with self.as_seed(i):
                act_after_row(learner, *self.after_row(i), learner.step >= self.tasks[i].total_steps)
        self.runs[i].log(learner.row)

    def save(self) -> None:
        """A checkpoint of each run."""
        self.write_back()
        for i in self.going:
            self.bring_up_to_date(i)
            seeding.set_rng_state(self.generators[i])
            self.attempt(i, functools.partial(self.save_one, i))

    def write_back(self) -> None:
        """Bring the runs' optimizers and methods up to date."""
        self.write_optimizers()
        for methods in self.methods.values():
            methods.write_back()

    def bring_up_to_date(self, i: int) -> None:
        """A learner's counters, of which the stack keeps those of all runs."""
        learner = self.learners[i]
        learner.phase, learner.phase_step, learner.step = self.phase, self.phase_step, self.step
        learner.updates = self.updates
        learner.seconds = self.before[i] + self.seconds / len(self.runs)  # a run's share
