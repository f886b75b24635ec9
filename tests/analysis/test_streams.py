"""Streams of tasks: one point a task, the columns of their table, and agents."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import rl, tables
from analysis.curves import boundaries, mean_curve
from analysis.runs import Setting, settings
from analysis.sources import load, small
from tests.analysis.synthetic import write_run

ENDS = {"base": [0.9, 0.5, 0.1, 0.1], "fire": [0.9, 0.8, 0.9, 0.7]}


def stream_rows(ends: list[float], kept: float = 0.2, epochs: int = 3) -> list[dict[str, Any]]:
    """Tasks of `epochs` rows: half of the end, then the end; a boundary between two tasks."""
    rows: list[dict[str, Any]] = []
    seen: list[float] = []
    for phase, end in enumerate(ends):
        if phase:
            about = {"boundary/previous_accuracy_before": 0.9, "boundary/previous_accuracy_after": kept}
            rows.append({"kind": "boundary", "step": 10 * len(seen), "phase": phase, **about})
        for epoch in range(epochs):
            seen.append(end if epoch == epochs - 1 else end / 2)
            place = {"step": 10 * len(seen), "phase": phase, "epoch": len(seen)}
            rows.append(
                {**place, "train/loss": 1.0, "train/accuracy": seen[-1], "online/accuracy": float(np.mean(seen))}
            )
    return rows


def write(root: Path, seeds: int = 2, **options: Any) -> Setting:
    for method, ends in ENDS.items():
        for seed in range(seeds):
            shifted = [end + 0.01 * seed for end in ends]
            write_run(root, method, seed, rows_=stream_rows(shifted), metric="online/accuracy",
                      benchmark={"name": "random_labels"}, **options)  # fmt: skip
    (setting,) = settings(load([str(root)])[0])
    return setting


def test_the_horizontal_axis_is_the_task(tmp_path: Path) -> None:
    setting = write(tmp_path)
    assert (setting.metric, setting.x, setting.y_label) == ("train/accuracy", "task", "Training accuracy, end of task")
    group = setting.group("fire")
    assert group is not None
    c = mean_curve(group, setting.metric)
    assert c.x.tolist() == [1, 2, 3, 4]
    assert c.mean == pytest.approx([end + 0.005 for end in ENDS["fire"]])
    assert boundaries(group.runs) == []


def test_the_table_of_a_stream(tmp_path: Path) -> None:
    frame = tables.results(write(tmp_path)).set_index("method")
    assert list(frame.columns[:6]) == ["n", "all tasks", "first 1", "last 1", "online", "previous task"]
    row = {name: value.mean for name, value in frame.loc["FIRE", frame.columns[1:6]].items()}
    ends = np.array(ENDS["fire"]) + 0.005
    assert row["all tasks"] == pytest.approx(ends.mean())
    assert (row["first 1"], row["last 1"]) == pytest.approx((ends[0], ends[-1]))
    assert row["online"] == pytest.approx((ends * 2 / 3).mean())
    assert row["previous task"] == pytest.approx(0.2)


def test_an_agent_s_tasks_are_points_by_their_last_quarter(tmp_path: Path) -> None:
    for method, ends in {"base": [200.0, 50.0], "fire": [200.0, 210.0]}.items():
        rows = [
            {"step": 100 * (2 * phase + part), "phase": phase, "online/return": 1.0, "train/return": 3.0}
            | ({"task/return": end, "eval/return": 9.0} if part == 2 else {})
            for phase, end in enumerate(ends)
            for part in (1, 2)
        ]
        write_run(tmp_path, method, 0, rows_=rows, metric="task/return")
    (setting,) = settings(load([str(tmp_path)])[0])
    assert (setting.metric, setting.domain, setting.x) == ("task/return", "rl", "task")
    assert setting.y_label == "Return in the last quarter of a task"
    assert [group.runs[0].score() for group in setting.groups] == [125.0, 205.0]
    assert [group.runs[0].final() for group in setting.groups] == [50.0, 210.0]


def test_a_mixture_before_the_first_task_is_no_task(tmp_path: Path) -> None:
    """Its rows have no averages over the tasks; `benchmark.pretrain` of `language.train` makes such a phase."""
    for method, losses in {"base": [4.0, 3.0, 2.0], "fire": [4.0, 2.0, 1.0]}.items():
        rows = [
            {"step": 100 * (phase + 1), "phase": phase, "val/loss": loss, "train/loss": loss}
            | ({"online/loss": loss} if phase else {})
            for phase, loss in enumerate(losses)
        ]
        write_run(tmp_path, method, 0, rows_=rows, metric="val/loss", benchmark={"name": "domains", "pretrain": 8})
    (setting,) = settings(load([str(tmp_path)])[0])
    (base, fire) = setting.groups
    assert (base.runs[0].score(), fire.runs[0].score()) == (2.5, 1.5)
    assert mean_curve(base, setting.metric).x.tolist() == [1, 2]
    assert [estimate.mean for estimate in tables.results(setting)["all tasks"]] == [2.5, 1.5]


def agent_rows(returns: list[float | None]) -> list[dict[str, Any]]:
    """Two rows for each task; a return of None: no episode has ended in the task."""
    rows: list[dict[str, Any]] = []
    for phase, end in enumerate(returns):
        for part in (1, 2):
            row = {"step": 100 * (2 * phase + part), "phase": phase, "online/return": 1.0, "env_steps": 9.0}
            rows.append(row | ({"task/return": end} if part == 2 and end is not None else {}))
    return rows


def write_agents(root: Path, ours: list[float | None], theirs: list[float | None], **options: Any) -> None:
    for method, returns in (("base", theirs), ("fire", ours)):
        for seed in range(3):
            shifted = [None if end is None else end + seed for end in returns]
            write_run(root, method, seed, rows_=agent_rows(shifted), metric="task/return", **options)


def test_methods_are_compared_on_the_tasks_that_both_have(tmp_path: Path) -> None:
    write_agents(tmp_path, [100.0, 200.0, 300.0, None], [50.0, 150.0, 250.0, 900.0])
    (setting,) = settings(load([str(tmp_path)])[0])
    frame = tables.results(setting).set_index("method")
    assert frame["vs Base"]["FIRE"].difference.mean == pytest.approx(50)
    assert rl.scores({"here": setting.groups[1]}, ["here"], None)[0].tolist() == [200, 201, 202]


def test_unfinished_runs_are_compared_on_what_they_have_done_and_are_named(tmp_path: Path) -> None:
    for method, tasks, done in (("base", 6, True), ("fire", 3, False)):
        for seed in range(3):
            write_run(tmp_path, method, seed, rows_=stream_rows([0.1 * task for task in range(1, tasks + 1)]),
                      metric="online/accuracy", benchmark={"name": "random_labels"}, done=done)  # fmt: skip
    for source in (tmp_path, tmp_path / "small.csv"):
        runs, _ = load([str(source)], include_unfinished=True)
        (setting,) = settings(runs)
        frame = tables.results(setting).set_index("method")
        assert frame["n"].tolist() == [3, "3 (3 unfinished)"]
        assert frame["vs Base"]["FIRE"].difference.mean == pytest.approx(0)
        small.write(runs, tmp_path / "small.csv")
    assert {run.method for run in load([str(tmp_path / "small.csv")])[0]} == {"base"}


def test_a_stream_that_diverged_has_no_mean_over_its_tasks(tmp_path: Path) -> None:
    for seed in range(2):
        folder = write_run(tmp_path, "base", seed, rows_=stream_rows([0.9, 0.8, 0.7]), done=seed == 0,
                           metric="online/accuracy", benchmark={"name": "random_labels"})  # fmt: skip
    (folder / "FAILED").write_text("Diverged: the loss is not finite\n")
    (setting,) = settings(load([str(tmp_path)])[0])
    frame = tables.results(setting)
    assert frame["n"][0] == "2 (1 diverged)"
    assert (frame["all tasks"][0].mean, frame["all tasks"][0].n) == (pytest.approx(0.8), 1)
    assert [frame[column][0].n for column in ("first 1", "online", "previous task")] == [1, 1, 1], "nor has any column"


def test_a_stream_that_diverged_before_its_first_row_counts_as_a_seed(tmp_path: Path) -> None:
    write(tmp_path)
    folder = write_run(tmp_path, "snp", 0, done=False, benchmark={"name": "random_labels"})
    (folder / "metrics.jsonl").write_text("")
    (folder / "FAILED").write_text("Diverged: the loss is not finite\n")
    runs, left_out = load([str(tmp_path)])
    (setting,) = settings(runs)
    frame = tables.results(setting).set_index("method")
    assert not left_out
    assert frame["n"].to_dict() == {"Base": 2, "FIRE": 2, "S&P": "1 (1 diverged)"}
    assert frame["all tasks"]["S&P"].n == frame["online"]["S&P"].n == 0
    small.write(runs, tmp_path / "small.csv")
    again, _ = load([str(tmp_path / "small.csv")])
    assert {run.method: run.has_diverged for run in again} == {"base": False, "fire": False, "snp": True}


def test_an_agent_s_stream_is_one_when_it_is_read_from_its_export_too(tmp_path: Path) -> None:
    write_agents(tmp_path / "runs", [100.0, 200.0], [50.0, 150.0])
    runs, _ = load([str(tmp_path / "runs")])
    small.write(runs, tmp_path / "small.csv")
    again, _ = load([str(tmp_path / "small.csv")])
    assert sorted((run.is_stream, run.x, run.score()) for run in again) == sorted(
        (True, "task", run.score()) for run in runs
    )


def test_runs_of_one_name_are_two_in_an_export(tmp_path: Path) -> None:
    for place, lr in (("a", 0.1), ("b", 0.2)):
        write_run(tmp_path / place, name="run0", rows_=stream_rows([0.5, 0.6]), metric="online/accuracy", lr=lr,
                  benchmark={"name": "random_labels"})  # fmt: skip
    small.write(load([str(tmp_path)])[0], tmp_path / "small.csv")
    again, left_out = load([str(tmp_path / "small.csv")])
    assert {run.name: run.config["lr"] for run in again} == {"run0": 0.1, "run0-2": 0.2}
    assert left_out == []
