"""The streams of docs/results/triggers.md: which program trains each, how long it is, and what is tried on it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from omegaconf import DictConfig


class When(NamedTuple):
    """A choice of `trigger=` and its options."""

    name: str
    options: dict[str, Any]

    def __str__(self) -> str:
        shown = (
            f"{key}={value}" if isinstance(value, str) else f"{key}={value:g}" for key, value in self.options.items()
        )
        return " ".join([self.name, *shown])

    @property
    def chosen(self) -> list[str]:
        """The options of a program that choose it."""
        return [f"trigger={self.name}", *(f"trigger.{key}={value}" for key, value in self.options.items())]


class Stream(NamedTuple):
    """A stream of tasks whose boundaries are hidden.

    Attributes:
        program: name of its root in conf/.
        options: of it. Streams are shorter than the default ones.
        smoke: what makes them seconds.
        length: steps of a task, as rows count them, by the configuration and the task.
        score: the number that stands in the tables, of the summary or of the last row.
        at_end: another one, kept beside it; of the digits and of text that of the ends of tasks.
        sign: 1 where more is better, -1 where less is.
        grids: what is tried of each trigger.
        periods: of fixed schedules: no divisors and no multiples of a task's length, which would be known boundaries.
        known: what acts at the known boundary: `trigger=boundary`, or `every` with a task's length.
    """

    program: str
    options: tuple[str, ...]
    smoke: tuple[str, ...]
    length: Callable[[DictConfig, Any], int]
    score: str
    at_end: str
    sign: int
    grids: dict[str, list[dict[str, Any]]]
    periods: tuple[int, int, int]
    known: str = "boundary"


def grids(every: int, samples: int, **values: list[float]) -> dict[str, list[dict[str, Any]]]:
    """The settings of each trigger that are tried.

    Args:
        every: steps between two measurements.
        samples: of each of the 16 mini-batches of readiness.
        values: of each trigger's threshold.
    """
    side = {"dormancy": "above", "rank": "below", "drift": "above", "readiness": "below"}
    more = {"readiness": {"batches": 16, "samples": samples}}
    plateau = [{"every": every, "patience": p, "min_delta": delta} for p in (1, 2, 4) for delta in (0.0, 0.05)]
    return {"plateau": plateau} | {
        name: [{"every": every, side[name]: value} | more.get(name, {}) for value in several]
        for name, several in values.items()
    }


ON_DIGITS: dict[str, Any] = {
    "program": "vision",
    "smoke": ("benchmark.tasks=4", "epochs=2"),
    "length": lambda config, task: task.phases[0].steps(config.batch_size),
    "score": "online/accuracy",
    "at_end": "task_end/accuracy",
    "sign": 1,
}
DIGITS: dict[str, list[float]] = {
    "dormancy": [0.1, 0.2, 0.3, 0.4],
    "rank": [0.2, 0.3, 0.4, 0.5],
    "drift": [10, 30, 100, 300],
}
# on_nan=skip, as in the runs of the page: without it perceptrons had a faster loop of their own then (commit 2ad50d1).
STREAMS = {
    "random_labels": Stream(
        options=(
            "benchmark=random_labels", "benchmark.samples=600", "benchmark.tasks=8", "epochs=40", "batch_size=64",
            "metrics=off", "on_nan=skip",
        ),
        grids=grids(20, 32, **DIGITS, readiness=[0.0003, 0.001, 0.003, 0.01]),
        periods=(150, 350, 900),
        **ON_DIGITS,
    ),
    "permuted": Stream(
        options=(
            "benchmark=permuted", "benchmark.samples=640", "benchmark.tasks=10", "epochs=10", "batch_size=32",
            "metrics=off", "on_nan=skip",
        ),
        grids=grids(20, 32, **DIGITS, readiness=[0.003, 0.01, 0.03, 0.1]),
        periods=(75, 175, 450),
        **ON_DIGITS,
    ),
    "permuted_text": Stream(
        program="language",
        options=(
            "experiment=permuted_text", "model.n_layer=1", "model.n_embd=32", "model.block_size=32", "batch_size=8",
            "eval_sequences=1", "benchmark.tasks=8", "benchmark.iterations=100",
        ),
        smoke=("benchmark.tasks=4", "benchmark.iterations=20"),
        length=lambda config, task: int(task.phases[0].length.steps),
        score="online/loss",
        at_end="task_end/loss",
        sign=-1,
        grids=grids(
            10, 4, dormancy=[0.01, 0.02, 0.04, 0.06], rank=[0.08, 0.1, 0.12, 0.15], drift=[0.3, 1, 3, 10],
            readiness=[0.0003, 0.001, 0.003, 0.01],
        ),
        periods=(37, 87, 225),
    ),
    # The agent starts no task anew: its replay holds transitions of the task before.
    "continual_cartpole": Stream(
        program="dqn",
        options=(
            "experiment=continual_cartpole", "benchmark.boundaries=hidden", "benchmark.tasks=4", "benchmark.steps=1200",
            "num_envs=8", "updates_per_step=1", "batch_size=32", "lr=3e-3", "target_every=96", "replay.capacity=800",
            "learning_starts=104", "epsilon.start=0.1", "epsilon.end=0.1", "log_every=80", "eval.every=100000000",
            "eval.episodes=1", "metrics=off",
        ),
        smoke=("benchmark.steps=160", "replay.capacity=100"),
        length=lambda config, task: int(config.benchmark.steps),
        score="task/return",
        at_end="online/return",
        sign=1,
        grids={
            **grids(
                80, 32, dormancy=[0.5, 0.6, 0.65, 0.7], rank=[0.02, 0.03, 0.04, 0.06], drift=[10, 30, 100, 300],
                readiness=[0.01, 0.1, 0.3, 1],
            ),
            "plateau": [
                {"metric": metric, "mode": mode, "every": 80, "patience": patience, "min_delta": 0.0}
                for metric, mode, several in (("loss", "min", (1, 2, 4)), ("return", "max", (2, 4, 8)))
                for patience in several
            ],
        },
        periods=(450, 1050, 2700),
        known="every",
    ),
}  # fmt: skip
METHODS = ("fire", "snp", "full_reset")
FIRE_ALONE = ("never", "readiness")  # arms: never is the same for all, readiness costs most
TUNING, SEEDS = range(100, 103), range(20)
