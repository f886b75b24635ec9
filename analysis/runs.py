"""A run, whatever it was read from, and which runs belong together.

Two runs share a *setting* when everything but the method and the seed is the same; within a setting, runs of
one *variant* (the method with its hyperparameters) differ by their seed alone and are averaged.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any

import numpy as np
import pandas as pd

from analysis import streams
from analysis.boundaries import split, trigger_of
from analysis.differences import by_number, differences, places
from analysis.forms import label_of_config

# The main metric: history key -> (axis label, whether more is better). The first one present decides; those of training
# count in streams of tasks alone.
METRICS = {
    "test/accuracy": ("Test accuracy", True),
    "val/loss": ("Validation loss", False),
    "task/return": ("Return in the last quarter of a task", True),
    "eval/return": ("Evaluation return", True),
    "train/accuracy": ("Training accuracy", True),
    "train/loss": ("Training loss", False),
}
DOMAINS = dict.fromkeys(METRICS, "vision") | {"val/loss": "language", "task/return": "rl", "eval/return": "rl"}

# What a metric lies between; returns have no bounds.
BOUNDS = {"accuracy": (0.0, 1.0), "loss": (0.0, float("inf"))}
MEASURING = ("metrics", "eval_batch_size")  # what is measured, and in which pieces: runs that differ in it train alike
DIGEST = re.compile("[0-9a-f]{64}")
LARGEST = 1e30  # a value beyond it cannot be drawn
# The order of methods in tables and legends; others come after these, by name.
ORDER = (
    "base", "full_reset", "snp", "dash", "parseval", "l2init", "cbp", "redo", "snr", "muon", "pi", "fire", "fire_exact",
)  # fmt: skip
FULL_RESETS = ("full_reset", "fresh")  # after these nothing of earlier phases is left


class BadRun(ValueError):
    """Something that cannot be used as a run; the message says why."""


class SourceError(RuntimeError):
    """A source as a whole cannot be read."""


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
        source: where it was read, for messages.
        config: the resolved config, nested.
        history: one row a log step, numbers only; holds `step` and, mostly, `phase` and `epoch`.
        finished: whether it reached its end.
        environment: versions, commit, hardware.
        boundaries: one row for each boundary at which a method acted; holds `step` (of the row before it) and `phase`
            (that begins there). Also one for each firing of a trigger, with 1 in the column `firing`.
        identity: what the run is, from its identity.json; None: made from the config.
        failure: why it has stopped before its end, if it has said so.
    """

    name: str
    source: str
    config: dict[str, Any]
    history: pd.DataFrame
    finished: bool = True
    environment: dict[str, Any] = field(default_factory=dict)
    boundaries: pd.DataFrame = field(default_factory=pd.DataFrame)
    identity: dict[str, Any] | None = None
    failure: str = ""

    @classmethod
    def of(cls, name: str, source: str, meta: dict[str, Any], table: pd.DataFrame) -> "Run":
        """A run from what a source holds: `meta` with config, finished, environment and perhaps identity.

        Raises:
            BadRun: see `check`.
        """
        history, boundaries = split(table) if "step" in table else (table, pd.DataFrame())
        if streams.is_stream(history):
            history = streams.with_tasks(history, meta["finished"])
        about = meta["config"], history, meta["finished"], meta["environment"]
        return check(cls(name, source, *about, boundaries, meta.get("identity"), meta.get("failure", "")))

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
        """Everything but method and seed, as text that is equal when the settings are."""
        what = from_config(self.config) if self.identity is None else self.identity
        rest = {k: v for k, v in what.items() if k not in ("method", "boundary", "trigger", "seed", *MEASURING)}
        return json.dumps([self.metric, one_spelling(rest)], sort_keys=True, default=str)

    @cached_property
    def variant(self) -> str:
        """The method with its hyperparameters, when it acts and what restarts beside it, as comparable text."""
        method, boundary = self.config.get("method"), self.config.get("boundary")
        if isinstance(method, dict) and isinstance(boundary, dict):
            method = {**method, "boundary": boundary}
        if isinstance(method, dict) and (when := trigger_of(self.config)) != "boundary":
            method = {**method, "trigger": when}
        return json.dumps(one_spelling(method), sort_keys=True, default=str)

    @property
    def is_stream(self) -> bool:
        """Whether each phase is a new task."""
        return streams.TASK in self.history

    @property
    def x(self) -> str:
        """The column for the horizontal axis."""
        if self.is_stream:
            return streams.TASK
        return next(key for key in ("epoch", "iteration", "env_steps", "step") if key in self.history)

    def score(self) -> float:
        """What the run counts for: of a stream the mean over tasks of the last value in each, else the last value."""
        return streams.mean(streams.values(self.history, self.metric)) if self.is_stream else self.final()

    def final(self, metric: str | None = None) -> float:
        """The last value logged; inf if the run diverged."""
        values = self.history[metric or self.metric].to_numpy(dtype=float)
        values = values[~np.isnan(values)]
        return float(values[-1]) if len(values) else float("nan")

    @property
    def phases(self) -> pd.Series:
        """The phase of each row; 0 where a run has logged none."""
        return self.history["phase"] if "phase" in self.history else pd.Series(0, self.history.index)

    @property
    def after_the_act(self) -> pd.DataFrame:
        """The rows after the first boundary, where methods act; of a run without a boundary, all."""
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
        """The best value after the act: what all methods of a sweep share is not theirs."""
        values = self.after_the_act[self.metric].where(np.isfinite)
        return float(values.max() if METRICS[self.metric][1] else values.min())


def one_spelling(config: Any) -> Any:
    """A configuration in which 1.0 is written 1, so that runs that spelled one value in two ways are alike."""
    if isinstance(config, dict):
        return {key: one_spelling(value) for key, value in config.items()}
    if isinstance(config, list):
        return [one_spelling(value) for value in config]
    return int(config) if isinstance(config, float) and config.is_integer() else config


def short_digests(config: Any) -> Any:
    """A configuration with eight digits of each SHA-256 in it, as of a folder's images: enough to tell two apart."""
    if isinstance(config, dict):
        return {key: short_digests(value) for key, value in config.items()}
    if isinstance(config, list):
        return [short_digests(value) for value in config]
    return config[:8] if isinstance(config, str) and DIGEST.fullmatch(config) else config


def metric_of(history: pd.DataFrame) -> str | None:
    """The first of METRICS that a history has."""
    is_stream = streams.is_stream(history)
    return next((key for key in METRICS if key in history and (is_stream or not key.startswith("train/"))), None)


def from_config(config: dict[str, Any]) -> dict[str, Any]:
    """What a run is, from the config of one that has no identity.json."""
    from harness.run.identity import EXECUTION, NOT_IDENTITY  # here: it imports torch

    left_out = (*NOT_IDENTITY, *EXECUTION, *(() if config.get("holdout") else ("holdout",)))
    return {key: value for key, value in config.items() if key not in left_out}


def group_name(config: dict[str, Any], group: str) -> str:
    """The name of a config group, written `group: {name: x}` or `group: x`; empty if absent."""
    value = config.get(group)
    if isinstance(value, dict):
        value = value.get("name")
    return "" if value is None else str(value)


def check(run: Run) -> Run:
    """The run itself.

    Raises:
        BadRun: a required key is missing, or its history is not valid.
    """
    if not run.method or "seed" not in run.config:
        raise BadRun("not a run of this project: its config has no `method.name` or no `seed`")
    if not isinstance(run.config["seed"], int) or not run.method.isprintable():
        raise BadRun(f"corrupt: seed={run.config['seed']!r} of method {run.method!r}")
    if "step" not in run.history or not run.metric:
        raise BadRun(why_nothing_to_show(run))
    if not run.history["step"].is_monotonic_increasing or not run.history["step"].is_unique:
        raise BadRun("corrupt: `step` does not increase from row to row")
    axis = [key for key in ("step" if run.is_stream else run.x, "phase") if key in run.history]
    if run.history.loc[run.history[run.metric].notna(), axis].isna().any(axis=None):
        raise BadRun(f"corrupt: a row with `{run.metric}` lacks {' or '.join(axis)}")
    return run


def why_nothing_to_show(run: Run) -> str:
    """Of a run whose rows have no number that figures show."""
    if not run.finished:
        return f"failed: {run.failure}" if run.failure else "unfinished: nothing that figures show is in its rows yet"
    if "step" in run.history and "env" in run.config:
        return (
            "nothing to show: none of its rows has eval/return, as no episode of an evaluation has ended; set a time "
            "limit, such as env.options={max_episode_steps:1000}"
        )
    return f"nothing to show: its rows have no `step`, or none of {', '.join(METRICS)}"


def select(runs: Iterable[Run], include_unfinished: bool = False) -> tuple[list[Run], list[LeftOut]]:
    """Drops unfinished runs, and of several copies of one run all but the most complete."""
    kept: dict[tuple[str, str, int], Run] = {}
    left_out = []
    for run in sorted(runs, key=lambda r: (not r.finished, -len(r.history), r.source)):
        if not run.finished and not include_unfinished:
            reason = f"failed: {run.failure}" if run.failure else "unfinished"
            left_out.append(LeftOut(run.source, f"{reason} (--include-unfinished takes it in)"))
            continue
        if run.is_stream and run.history[streams.TASK].isna().all():
            left_out.append(LeftOut(run.source, "unfinished: none of its tasks has ended yet"))
            continue
        first = kept.setdefault((run.setting, run.variant, run.seed), run)
        if first is not run:
            left_out.append(LeftOut(run.source, f"duplicate: same config as {first.source}"))
    return sorted(kept.values(), key=lambda r: r.source), left_out


def bounds_of(metric: str) -> tuple[float, float]:
    """What the values of a metric cannot leave."""
    return BOUNDS.get(metric.rpartition("/")[2], (-float("inf"), float("inf")))


@dataclass(frozen=True)
class Group:
    """The runs of one variant of a method in one setting: they differ by seed."""

    method: str
    detail: str  # what distinguishes this variant from others of the same method; empty when there is one
    place: tuple[int, int]  # its colour and its dash among them: `differences.places`
    runs: list[Run]

    @property
    def key(self) -> str:
        """The method as the files of results name it."""
        return f"{self.method} ({self.detail})" if self.detail else self.method

    @property
    def label(self) -> str:
        """The method as figures and tables name it."""
        return label_of_config(self.runs[0].config, self.detail)


@dataclass(frozen=True)
class Setting:
    """All runs that may be compared with each other."""

    benchmark: str
    dataset: str
    model: str
    detail: str  # what distinguishes it from settings of the same three names
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
        """What the vertical axis shows."""
        run, label = self.groups[0].runs[0], METRICS[self.metric][0]
        if not run.is_stream or self.metric == "task/return":
            return label
        once = run.history["phase"].is_unique and run.history.get("epoch", pd.Series(1)).iloc[0] == 1  # each example
        if once and self.metric.startswith("train/"):
            return label.replace("Training", "Online")
        return f"{label}, end of task"

    @property
    def name(self) -> str:
        names = [part for part in (self.benchmark, self.dataset, self.model) if part]
        return "-".join(names) + (f" ({self.detail})" if self.detail else "")

    def group(self, method: str) -> Group | None:
        """The only variant of a method, else None: several have no single line to compare with."""
        found = [group for group in self.groups if group.method == method]
        return found[0] if len(found) == 1 else None


def with_full_resets(runs: Iterable[Run]) -> list[Run]:
    """The runs, and each full reset once more for every other checkpoint that runs of the same kind start from.

    A full reset of a language model, to initial weights or to a new network, does not depend on the checkpoint
    (`benchmark.start`), so it is trained from one.
    """
    found = list(runs)
    have = {(run.setting, run.variant, run.seed) for run in found}
    starts = {str(value): value for run in found if (value := start_of(run)) not in (None, "scratch")}
    others = {run.setting for run in found if run.method not in FULL_RESETS}
    for run in [run for run in found if run.method in FULL_RESETS and start_of(run) is not None]:
        for start in starts.values():
            benchmark = {**run.config["benchmark"], "start": start}
            identity = None if run.identity is None else {**run.identity, "benchmark": benchmark}
            moved = replace(run, config={**run.config, "benchmark": benchmark}, identity=identity)
            if moved.setting in others and (key := (moved.setting, moved.variant, moved.seed)) not in have:
                have.add(key)
                found.append(moved)
    return found


def start_of(run: Run) -> Any:
    """The checkpoint of the first phase that a language run starts its second from; None elsewhere."""
    benchmark = run.config.get("benchmark")
    return benchmark.get("start") if isinstance(benchmark, dict) else None


def settings(runs: Iterable[Run]) -> list[Setting]:
    """Groups runs by setting, then by method variant, in a stable order."""
    by_setting: dict[str, list[Run]] = {}
    for run in with_full_resets(runs):
        by_setting.setdefault(run.setting, []).append(run)
    by_names: dict[tuple[str, str, str], list[list[Run]]] = {}
    for members in by_setting.values():
        first = members[0]
        by_names.setdefault((first.benchmark, first.dataset, first.model), []).append(members)
    out = []
    for names, alike in sorted(by_names.items()):
        alike.sort(key=lambda members: by_number(members[0].setting))
        # Most often the scale differs; then it is enough.
        scales = [{"scale": members[0].config.get("scale")} for members in alike]
        rests = [short_digests(json.loads(members[0].setting)[1]) for members in alike]
        details = differences(scale | rest for scale, rest in zip(scales, rests, strict=True))
        for members, detail in zip(alike, details, strict=True):
            out.append(Setting(*names, detail, members[0].metric, method_groups(members)))
    return out


def method_groups(runs: Iterable[Run]) -> list[Group]:
    """The variants of each method among the runs of one setting."""
    by_method: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        by_method.setdefault(run.method, {}).setdefault(run.variant, []).append(run)
    out = []
    for method in sorted(by_method, key=lambda m: (ORDER.index(m) if m in ORDER else len(ORDER), m)):
        variants = by_method[method]
        ordered = sorted(variants, key=by_number)
        configs = [json.loads(variant) for variant in ordered]
        for variant, detail, place in zip(ordered, differences(configs), places(configs), strict=True):
            out.append(Group(method, detail, place, sorted(variants[variant], key=lambda run: run.seed)))
    return out
