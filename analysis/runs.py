"""A training run as tables and figures see it, and which runs belong together.

Two runs share a *setting* when everything but the method and the seed is the same; within a setting, runs of
one *variant* (the method with its hyperparameters) differ by their seed alone and are averaged.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any

import numpy as np
import pandas as pd

from analysis import streams
from analysis.boundaries import split, trigger_of
from analysis.differences import by_number, deviations, differences, flatten, looks
from analysis.forms import label_of_config

# History key -> (axis label, whether more is better). A run's main metric is the first one that its history has;
# metrics of training count only in streams of tasks.
METRICS = {
    "test/accuracy": ("Test accuracy", True),
    "val/loss": ("Validation loss", False),
    "task/return": ("Return in the last quarter of a task", True),
    "eval/return": ("Evaluation return", True),
    "train/accuracy": ("Training accuracy", True),
    "train/loss": ("Training loss", False),
    # (raw - random) / (human - random); no run's main metric, since such a run has eval/return, too
    "eval/normalized_return": ("Human-normalised return", True),
}
OF_AGENTS = ("task/return", "eval/return", "eval/normalized_return")
DOMAINS = dict.fromkeys(METRICS, "vision") | {"val/loss": "language"} | dict.fromkeys(OF_AGENTS, "rl")

# What a metric lies between; returns have no bounds.
BOUNDS = {"accuracy": (0.0, 1.0), "loss": (0.0, float("inf"))}
MEASURING = ("metrics", "eval_batch_size")  # options of measuring: runs that differ only in them train alike
AXES = ("step", "phase", "epoch", "iteration", "env_steps", "seconds")  # where a row stands in its run
RECORDING = ("paths", "tracker")  # options of where a run is recorded
DIGEST = re.compile("[0-9a-f]{64}")
MAX_VALUES = 1_000_000  # of a run's options, which are a few hundred
LARGEST = 1e30  # a value beyond it cannot be drawn
# The order of methods in tables and legends; others come after these, by name.
ORDER = (
    "base", "full_reset", "snp", "dash", "parseval", "l2init", "cbp", "redo", "snr", "muon", "pi", "fire", "fire_exact",
)  # fmt: skip
AT_FIRST = ("boundary", "auto")  # what the trigger and the options of `boundary` are where nobody has set them
DIVERGED = "Diverged: "  # begins the text of FAILED if a loss, a weight or the like was not finite
FULL_RESETS = ("full_reset", "fresh")  # methods after which nothing of earlier phases is left


class BadRun(ValueError):
    """A run that cannot be used; the message says why."""


class SourceError(RuntimeError):
    """A source of runs cannot be read at all; the message says why."""


@dataclass(frozen=True)
class LeftOut:
    """A run that is not used, and the reason."""

    name: str
    reason: str

    def __str__(self) -> str:
        return " ".join(f"left out {self.name}: {self.reason}".split())


@dataclass(frozen=True, eq=False)
class Run:
    """One training run.

    Args:
        name: the folder's name, or the id of a wandb run.
        source: where the run was read from, for messages.
        config: the resolved config, nested.
        history: one row for each logged measurement, numbers only; has `step` and mostly `phase` and `epoch`. Empty if
            the run diverged before the first one, until `select` has found out which measurements are missing.
        finished: whether the run reached its end.
        environment: versions, commit and hardware, from its env.json.
        boundaries: one row for each boundary at which the method acted; has `step` (of the row before it) and `phase`
            (the one that begins). Also one for each firing of a trigger, with 1 in the column `firing`.
        identity: `run` of its identity.json; None for a run without this file, whose config takes its place.
        execution: `execution` of its identity.json, which has the device; empty if that is not known.
        failure: text of the file FAILED: why training stopped; empty if there is none.
    """

    name: str
    source: str
    config: dict[str, Any]
    history: pd.DataFrame
    finished: bool = True
    environment: dict[str, Any] = field(default_factory=dict)
    boundaries: pd.DataFrame = field(default_factory=pd.DataFrame)
    identity: dict[str, Any] | None = None
    execution: dict[str, Any] = field(default_factory=dict)
    failure: str = ""

    @classmethod
    def of(cls, name: str, source: str, meta: dict[str, Any], table: pd.DataFrame) -> "Run":
        """Return a run from what a source holds.

        Args:
            name: see the class.
            source: see the class.
            meta: `config`, `finished` and `environment`, and if known `identity`, `execution` and `failure`.
            table: all rows, with those of boundaries marked in the column `boundary`.

        Raises:
            BadRun: the run cannot be used (see `check`).
        """
        history, boundaries = split(table) if "step" in table else (table, pd.DataFrame())
        if streams.is_stream(history):
            history = streams.with_tasks(history, meta["finished"])
        run = cls(
            name,
            source,
            config=meta["config"],
            history=history,
            finished=meta["finished"],
            environment=meta["environment"],
            boundaries=boundaries,
            identity=meta.get("identity"),
            execution=meta.get("execution") or {},
            failure=meta.get("failure", ""),
        )
        return check(run)

    @property
    def method(self) -> str:
        return group_name(self.config, "method")

    @property
    def benchmark(self) -> str:
        return group_name(self.config, "benchmark")

    @property
    def dataset(self) -> str:
        dataset = self.config.get("dataset")
        if isinstance(dataset, dict) and dataset.get("name") == "folder" and dataset.get("path"):
            return PurePath(str(dataset["path"])).name or "folder"  # a user's own images
        return group_name(self.config, "dataset") or group_name(self.config, "env")

    @property
    def model(self) -> str:
        return group_name(self.config, "model")

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @cached_property
    def metric(self) -> str:
        return metric_of(self.history) or ""

    @property
    def domain(self) -> str:
        return DOMAINS[self.metric]

    @cached_property
    def setting(self) -> str:
        """Everything but method and seed, as text: two runs of the same setting have the same text."""
        return json.dumps([self.metric, json.loads(self.options)], sort_keys=True)

    @cached_property
    def options(self) -> str:
        """Every option but those of the method, the seed and of measuring, as text."""
        identity = from_config(self.config) if self.identity is None else self.identity
        rest = {k: v for k, v in identity.items() if k not in ("method", "boundary", "trigger", "seed", *MEASURING)}
        return json.dumps(with_whole_numbers(rest), sort_keys=True, default=str)

    @cached_property
    def variant(self) -> str:
        """The method with its options, its trigger and `boundary`, as text: equal for runs that differ only by seed.

        The options are those of the run's identity: it has the digests of files that options name, and of a chain the
        options of its own methods alone, whatever other chains the sweep had.
        """
        described = (self.identity or {}).get("method")
        method, boundary = described or self.config.get("method"), self.config.get("boundary")
        if isinstance(method, dict) and isinstance(boundary, dict):
            method = {**method, "boundary": boundary}
        if isinstance(method, dict) and (when := trigger_of(with_whole_numbers(self.config))) != "boundary":
            method = {**method, "trigger": when}
        return json.dumps(with_whole_numbers(method), sort_keys=True, default=str)

    @property
    def acts(self) -> dict[str, Any]:
        """When the method acts (`trigger`), and what restarts then (the options of `boundary`)."""
        config = with_whole_numbers(self.config)
        boundary = config.get("boundary")
        return (boundary if isinstance(boundary, dict) else {}) | {"trigger": trigger_of(config)}

    @property
    def is_stream(self) -> bool:
        """Whether each phase is a new task."""
        return streams.TASK in self.history

    @property
    def x(self) -> str:
        """The column of the history that is the horizontal axis."""
        if self.is_stream:
            return streams.TASK
        return next(key for key in ("epoch", "iteration", "env_steps", "step") if key in self.history)

    @property
    def has_diverged(self) -> bool:
        """Whether training stopped because a loss, a weight or the like was not finite."""
        return self.failure.startswith(DIVERGED)

    def score(self, metric: str | None = None) -> float:
        """Return the run's number of a metric (None: the main metric): its last value; inf if the run diverged.

        For a stream it is the mean over tasks of each task's last value. Tasks without a value, as an agent's in which
        no episode has ended, are left out.
        """
        if not self.is_stream or self.has_diverged:
            return self.final(metric)
        values = streams.values(self.history, metric or self.metric)
        return streams.mean(values[~np.isnan(values)])

    def final(self, metric: str | None = None) -> float:
        """Return the last value of a metric (None: the main metric); inf if the run diverged."""
        if self.has_diverged:
            return float("inf")
        values = self.history[metric or self.metric].to_numpy(dtype=float)
        values = values[~np.isnan(values)]
        return float(values[-1]) if len(values) else float("nan")

    @property
    def phases(self) -> pd.Series:
        """The phase of each row of the history; 0 if the run has logged no phase."""
        return self.history["phase"] if "phase" in self.history else pd.Series(0, self.history.index)

    @property
    def after_the_act(self) -> pd.DataFrame:
        """The rows after the first boundary, from which on methods differ; all rows of a run without a boundary."""
        phase = self.phases
        rows: pd.DataFrame = self.history.loc[(phase > phase.min()) | (phase.max() == phase.min())]
        return rows

    @property
    def last_quarter(self) -> pd.DataFrame:
        """The rows of the last quarter of the last phase."""
        step, phase = self.history["step"], self.phases
        start = step[phase < phase.max()].max() if phase.nunique() > 1 else 0
        rows: pd.DataFrame = self.history.loc[step > step.max() - (step.max() - start) / 4]
        return rows

    def best(self) -> float:
        """Return the best value after the first boundary; inf if the run diverged.

        The first phase is the same for all methods of a sweep.
        """
        if self.has_diverged:
            return float("inf")
        values = self.after_the_act[self.metric].where(np.isfinite)
        return float(values.max() if METRICS[self.metric][1] else values.min())


def with_whole_numbers(config: Any) -> Any:
    """Return a configuration with 1.0 written as 1, so that two spellings of one value compare as equal.

    As `harness.run.identity._with_whole_numbers`; it stands here too since the harness needs torch.
    """
    if isinstance(config, dict):
        return {key: with_whole_numbers(value) for key, value in config.items()}
    if isinstance(config, list):
        return [with_whole_numbers(value) for value in config]
    return int(config) if isinstance(config, float) and config.is_integer() else config


def short_digests(config: Any) -> Any:
    """Return a configuration with each SHA-256 in it cut to eight digits, which suffice to distinguish two runs."""
    if isinstance(config, dict):
        return {key: short_digests(value) for key, value in config.items()}
    if isinstance(config, list):
        return [short_digests(value) for value in config]
    return config[:8] if isinstance(config, str) and DIGEST.fullmatch(config) else config


def metric_of(history: pd.DataFrame) -> str | None:
    """Return the main metric: the first of METRICS that a history has; None if it has none."""
    is_stream = streams.is_stream(history)
    return next((key for key in METRICS if key in history and (is_stream or not key.startswith("train/"))), None)


def from_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the identity of a run that has no identity.json, from its config."""
    from harness.run.identity import EXECUTION, NOT_IDENTITY  # imported late: it needs torch

    left_out = (*NOT_IDENTITY, *EXECUTION, *(() if config.get("holdout") else ("holdout",)))
    return {key: value for key, value in config.items() if key not in left_out}


def group_name(config: dict[str, Any], group: str) -> str:
    """Return the name of a config group's choice, written `group: {name: x}` or `group: x`; empty if absent."""
    value = config.get(group)
    if isinstance(value, dict):
        value = value.get("name")
    return "" if value is None else str(value)


def check(run: Run) -> Run:
    """Return the run unchanged if figures can use it.

    Raises:
        BadRun: a required key is missing, or options or history are not valid.
    """
    check_plain([run.config, run.identity, run.execution], iter(range(MAX_VALUES)))
    if not run.method or "seed" not in run.config:
        raise BadRun("not a run of this project: its config has no `method.name` or no `seed`")
    if not isinstance(run.config["seed"], int) or not run.method.isprintable():
        raise BadRun(f"corrupt: seed={run.config['seed']!r} of method {run.method!r}")
    if "step" not in run.history or not run.metric:
        if not run.has_diverged:
            raise BadRun(why_nothing_to_show(run))
        run = replace(run, history=pd.DataFrame(), boundaries=pd.DataFrame())
    elif not run.history["step"].is_monotonic_increasing or not run.history["step"].is_unique:
        raise BadRun("corrupt: `step` does not increase from row to row")
    else:
        axis = [key for key in ("step" if run.is_stream else run.x, "phase") if key in run.history]
        if run.history.loc[run.history[run.metric].notna(), axis].isna().any(axis=None):
            raise BadRun(f"corrupt: a row with `{run.metric}` lacks {' or '.join(axis)}")
        if run.is_stream and not any(key in run.history for key in streams.ONLINE):
            raise BadRun("corrupt: its rows have tasks, and no number that is averaged over them")
    try:
        label_of_config(run.config)
        run.setting, run.variant  # noqa: B018  # kept by the run; a fault of its options shows here
    except (KeyError, TypeError, ValueError) as error:
        raise BadRun(f"corrupt: its options cannot be read ({type(error).__name__}: {error})") from None
    return run


def check_plain(value: Any, remaining: Iterator[int]) -> None:
    """Check that options are mappings with text keys, lists, and plain values, and not too many or too large.

    Args:
        value: the options, or a part of them.
        remaining: gives a number for each value that may still come.

    Raises:
        BadRun: they are something else.
    """
    if next(remaining, None) is None:
        raise BadRun("corrupt: its options hold too many values")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise BadRun("corrupt: a name of an option is no text")
        for inner in value.values():
            check_plain(inner, remaining)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_plain(inner, remaining)
    elif isinstance(value, int) and abs(value) >= 2**64:
        raise BadRun("corrupt: an option is a number of more than 64 bits")


def why_nothing_to_show(run: Run) -> str:
    """Return why a run cannot be shown whose rows have no number that figures show."""
    if not run.finished:
        return f"failed: {run.failure}" if run.failure else "unfinished: nothing that figures show is in its rows yet"
    if "step" in run.history and "env" in run.config:
        return (
            "nothing to show: none of its rows has eval/return, as no episode of an evaluation has ended; set a time "
            "limit, such as env.options={max_episode_steps:1000}"
        )
    return f"nothing to show: its rows have no `step`, or none of {', '.join(METRICS)}"


def select(runs: Iterable[Run], include_unfinished: bool = False) -> tuple[list[Run], list[LeftOut]]:
    """Separate usable runs from unfinished ones and from copies; of several copies the most complete one is used.

    A run that diverged counts, since it is a result of its options: tables say how many seeds did.

    Returns:
        The runs in the order of their sources, and what was left out with the reason.
    """
    selected: dict[tuple[str, str, int], Run] = {}
    left_out = []
    all_runs = [*runs]
    for run in sorted(
        (run for run in all_runs if len(run.history)), key=lambda r: (not r.finished, -len(r.history), r.source)
    ):
        if not run.finished and not run.has_diverged and not include_unfinished:
            reason = f"failed: {run.failure}" if run.failure else "unfinished"
            left_out.append(LeftOut(run.source, f"{reason} (--include-unfinished takes it in)"))
            continue
        if run.is_stream and run.history[streams.TASK].isna().all() and not run.has_diverged:
            left_out.append(LeftOut(run.source, "unfinished: none of its tasks has ended yet"))
            continue
        first = selected.setdefault((run.setting, run.variant, run.seed), run)
        if first is not run:
            left_out.append(LeftOut(run.source, f"duplicate: same config as {first.source}{except_for(run, first)}"))
    measured = [*selected.values()]
    for lost in (run for run in all_runs if not len(run.history)):
        if (run_with_row := with_lost_row(lost, measured)) is None:
            left_out.append(LeftOut(lost.source, f"failed: {lost.failure}"))
            continue
        first = selected.setdefault((run_with_row.setting, lost.variant, lost.seed), run_with_row)
        if first is not run_with_row:
            left_out.append(LeftOut(lost.source, f"duplicate: same config as {first.source}{except_for(lost, first)}"))
    return sorted(selected.values(), key=lambda r: r.source), left_out


def with_lost_row(run: Run, measured: Iterable[Run]) -> Run | None:
    """Return a run that diverged before its first measurement with one row, in which every number is inf.

    Which numbers these are is known from the runs of the same options, of which the one with most rows is taken.

    Args:
        run: the run.
        measured: runs with rows.

    Returns:
        The run with its row; None if there is no run of the same options.
    """
    alike = [other for other in measured if other.options == run.options]
    if not alike:
        return None
    row = max(alike, key=lambda other: len(other.history)).history.iloc[:1].copy()
    row[[str(key) for key in row if key not in AXES]] = np.inf
    if streams.TASK in row:
        row[streams.TASK] = np.nan  # no task has ended
    return replace(run, history=row)


def except_for(run: Run, other: Run) -> str:
    """Return the options in which a run differs from a duplicate of it, ` but for threads=2 (there 1)`; mostly empty.

    Such options are those of how a run is executed or measured. Those of where it is recorded are not named.
    """
    flats = []
    for each in (run, other):
        described = (each.identity or {}).get("method")  # of a chain its own methods alone
        config = with_whole_numbers(each.config | ({"method": described} if described else {}))
        flats.append(dict(flatten({key: value for key, value in config.items() if key not in RECORDING})))
    own, others = flats
    keys = [key for key in own | others if str(own.get(key)) != str(others.get(key))]
    texts = [f"{key}={own.get(key)} (there {others.get(key)})" for key in keys]
    return f" but for {', '.join(texts)}" if texts else ""


def bounds_of(metric: str) -> tuple[float, float]:
    """Return (lower bound, upper bound) of a metric's values, infinite where there is none."""
    return BOUNDS.get(metric.rpartition("/")[2], (-float("inf"), float("inf")))


@dataclass(frozen=True)
class Group:
    """The runs of one variant of a method in one setting: they differ by seed."""

    method: str
    # Options that distinguish this variant from others of the method, and its trigger and what restarts at boundaries
    # where these are not as in the other groups; empty if there are none.
    detail: str
    place: tuple[int, int]  # indices of its colour and its dash among them, see `differences.looks`
    runs: list[Run]

    @property
    def key(self) -> str:
        """The name in the files of results: the method's name in conf/, with `detail`."""
        return f"{self.method} ({self.detail})" if self.detail else self.method

    @property
    def label(self) -> str:
        """The name in figures and tables, such as `FIRE (iterations=5)`."""
        return label_of_config(self.runs[0].config, self.detail)


@dataclass(frozen=True)
class Setting:
    """All runs that may be compared with each other."""

    benchmark: str
    dataset: str
    model: str
    detail: str  # options that distinguish it from settings with the same three names
    metric: str
    groups: list[Group]

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]

    @property
    def domain(self) -> str:
        return DOMAINS[self.metric]

    @property
    def x(self) -> str:
        return self.groups[0].runs[0].x

    @property
    def y_label(self) -> str:
        """The label of the vertical axis."""
        run, label = max(self.runs, key=lambda run: len(run.history)), METRICS[self.metric][0]
        if not run.is_stream or self.metric == "task/return":
            return label
        one_row_a_task = run.history["phase"].is_unique
        sees_examples_once = one_row_a_task and run.history.get("epoch", pd.Series(1)).iloc[0] == 1
        if sees_examples_once and self.metric.startswith("train/"):
            return label.replace("Training", "Online")
        return f"{label}, end of task"

    @property
    def name(self) -> str:
        names = [part for part in (self.benchmark, self.dataset, self.model) if part]
        return "-".join(names) + (f" ({self.detail})" if self.detail else "")

    def group(self, method: str) -> Group | None:
        """Return the only variant of a method; None if there is none, or if there are several."""
        variants = [group for group in self.groups if group.method == method]
        return variants[0] if len(variants) == 1 else None


def with_full_resets(runs: Iterable[Run]) -> list[Run]:
    """Return the runs, with each full reset of a language model repeated in the settings of the other checkpoints.

    A full reset does not depend on the checkpoint that the second phase starts from (`benchmark.start`), so it is
    trained from one checkpoint only, and its runs are compared with those of every other.
    """
    all_runs = list(runs)
    present = {(run.setting, run.variant, run.seed) for run in all_runs}
    starts = {str(value): value for run in all_runs if (value := start_of(run)) not in (None, "scratch")}
    other_settings = {run.setting for run in all_runs if run.method not in FULL_RESETS}
    full_resets = [run for run in all_runs if run.method in FULL_RESETS and start_of(run) is not None]
    for run in full_resets:
        for start in starts.values():
            benchmark = {**run.config["benchmark"], "start": start}
            identity = None if run.identity is None else {**run.identity, "benchmark": benchmark}
            repeated = replace(run, config={**run.config, "benchmark": benchmark}, identity=identity)
            key = (repeated.setting, repeated.variant, repeated.seed)
            if repeated.setting in other_settings and key not in present:
                present.add(key)
                all_runs.append(repeated)
    return all_runs


def start_of(run: Run) -> Any:
    """Return the first phase's checkpoint that a language run starts its second phase from; None for other runs."""
    benchmark = run.config.get("benchmark")
    return benchmark.get("start") if isinstance(benchmark, dict) else None


def settings(runs: Iterable[Run]) -> list[Setting]:
    """Group runs by setting, then by method variant, in a stable order."""
    by_setting: dict[str, list[Run]] = {}
    for run in with_full_resets(runs):
        by_setting.setdefault(run.setting, []).append(run)
    by_names: dict[tuple[str, str, str], list[list[Run]]] = {}  # benchmark, dataset, model -> runs of each setting
    for members in by_setting.values():
        first = members[0]
        by_names.setdefault((first.benchmark, first.dataset, first.model), []).append(members)
    result = []
    for names, same_names in sorted(by_names.items()):
        same_names.sort(key=lambda members: by_number(members[0].setting))
        configs = []
        for members in same_names:
            # The scale comes first: settings mostly differ by it, and then it alone is named. The metric comes last:
            # settings whose options are equal differ by it, as where no episode of some seeds has ended.
            scale = {"scale": members[0].config.get("scale")}
            metric = {"metric": members[0].metric}
            configs.append(scale | short_digests(json.loads(members[0].setting)[1]) | metric)
        for members, detail in zip(same_names, differences(configs), strict=True):
            result.append(Setting(*names, detail, members[0].metric, method_groups(members)))
    return result


def method_groups(runs: Iterable[Run]) -> list[Group]:
    """Return the groups of one setting's runs: a group for each variant of each method, in the order of ORDER."""
    by_method: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        by_method.setdefault(run.method, {}).setdefault(run.variant, []).append(run)
    groups = []
    for method in sorted(by_method, key=lambda m: (ORDER.index(m) if m in ORDER else len(ORDER), m)):
        variants = by_method[method]
        ordered = sorted(variants, key=by_number)
        configs = [short_digests(json.loads(variant)) for variant in ordered]
        for variant, detail, place in zip(ordered, differences(configs), looks(configs), strict=True):
            groups.append(Group(method, detail, place, sorted(variants[variant], key=lambda run: run.seed)))
    differing = deviations([group.runs[0].acts for group in groups], AT_FIRST)
    return [with_acts(group, acts) for group, acts in zip(groups, differing, strict=True)]


def with_acts(group: Group, acts: dict[str, str]) -> Group:
    """Return a group whose detail also names these options of its acts."""
    named = {part.partition("=")[0] for part in group.detail.split(", ")}
    notes = [f"{key}={value}" for key, value in acts.items() if key not in named]
    return replace(group, detail=", ".join(filter(None, [group.detail, *notes])))
