"""The tables of the result pages: against numbers worked out by hand, from runs, and as they are committed."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis import make_tables
from analysis.pages import AGENTS, STREAM, TEXTS, outcome_of_triggers
from analysis.runs import BadRun, Run
from analysis.sources import load
from analysis.stream_rows import TEXT_COLUMNS, of_streams, of_texts
from analysis.summary import ranks, spearman, summarise
from harness.run import provenance
from tests.analysis.synthetic import write_run
from tests.analysis.test_streams import stream_rows

ENDS = {"base": 0.3, "full_reset": 0.6, "fire": 0.8, "snp": 0.7}
SEEDS = 5


def write(root: Path, seeds: int = SEEDS, **options: object) -> None:
    for number, (method, end) in enumerate(ENDS.items()):
        for seed in range(1, seeds + 1):
            ends = [end + 0.01 * seed * (number + 1), end, end]
            write_run(root, method, seed, rows_=stream_rows(ends), metric="online/accuracy",
                      benchmark={"name": "random_labels"}, lr=0.001 * (number + 1), **options)  # fmt: skip


def frame(values: dict[str, list[float]]) -> pd.DataFrame:
    """One task a run, the values by seed."""
    rows = [(m, seed, 1, v, v, np.nan) for m, vs in values.items() for seed, v in enumerate(vs, 1)]
    return pd.DataFrame(rows, columns=["method", "seed", "task", "value", "online", "kept"])


def text_run(method: str, seed: int, losses: list[float], pretrain: int = 0) -> Run:
    """A run with two rows a task; the second has the loss of the task's last quarter."""
    rows: list[dict[str, Any]] = []
    for phase, loss in enumerate(losses):
        for step in (1, 2):
            row = {"step": 2 * phase + step, "phase": phase, "train/loss": loss + 2 - step, "val/loss": loss + 0.5}
            row |= {"online/loss": 3.0, "task/loss": loss + 0.25}
            if step == 2 and phase:
                row["stability/earlier_loss"] = 7.0 + phase
            rows.append(row)
        if phase + 1 < len(losses):
            before = {"previous_loss_before": 2.0, "previous_loss_after": 2.5, "kl": 0.125}
            before |= {"earlier_loss_before": 4.0, "earlier_loss_after": 4.0 + seed}
            numbers = {f"boundary/{key}": value for key, value in before.items()}
            rows.append({"boundary": 1.0, "step": 2 * phase + 2, "phase": phase + 1, **numbers})
    config = {"method": {"name": method}, "seed": seed, "benchmark": {"name": "domains", "pretrain": pretrain}}
    return Run.of(
        f"{method}{seed}", "here", {"config": config, "finished": True, "environment": {}}, pd.DataFrame(rows)
    )


# ------------------------------------------------------------------------------------------------------------ from runs


def test_runs_that_differ_in_method_and_rate_are_one_table(tmp_path: Path) -> None:
    write(tmp_path)
    (name,) = tables = of_streams(load([str(tmp_path)])[0])
    assert name == "random_labels_digits"
    rows = tables[name]
    assert len(rows) == len(ENDS) * SEEDS * 3
    one = rows[(rows["method"] == "fire") & (rows["seed"] == 2)]
    assert one["value"].tolist() == pytest.approx([0.86, 0.8, 0.8])
    assert one["kept"].tolist() == pytest.approx([np.nan, 0.2, 0.2], nan_ok=True)
    write(tmp_path / "other", seeds=1, batch_size=32)
    with pytest.raises(BadRun, match="differ in more than the method"):
        of_streams(load([str(tmp_path)])[0])


def test_of_a_warm_start_only_what_follows_the_boundary_counts(tmp_path: Path) -> None:
    ends = [(0, 0.2), (0, 0.4), (1, 0.5), (1, 0.7)]
    rows = [{"step": i, "epoch": i, "phase": phase, "test/accuracy": end} for i, (phase, end) in enumerate(ends, 1)]
    boundary = {"kind": "boundary", "step": 2, "phase": 1, "boundary/test_accuracy_after": 0.1}
    write_run(tmp_path, "fire", 1, rows_=[*rows[:2], boundary, *rows[2:]], benchmark={"name": "warm_start"})
    (table,) = of_streams(load([str(tmp_path)])[0]).values()
    assert table.drop(columns="method").to_numpy().tolist() == [pytest.approx([1, 1, 0.7, 0.6, 0.1])]


# -------------------------------------------------------------------------------------------------------------- numbers


def test_methods_are_compared_with_two_references_and_the_best_stands_first() -> None:
    values = {method: [end, end + 0.01, end + 0.03 * end] for method, end in ENDS.items()}
    table = summarise(frame(values), STREAM)
    assert table["method"].tolist() == ["fire", "snp", "full_reset", "base"]
    assert summarise(frame(values), STREAM, more=False)["method"].tolist() == ["base", "full_reset", "snp", "fire"]
    assert table.loc[0, "vs fire"] is None
    assert list(table) == ["method", "n", "all tasks", "vs base", "vs fire"], "one task"


def test_fire_against_base_counts_once_where_both_are_columns() -> None:
    """Worked by hand. With three seeds the two-sided p of Student's t is 1 - sqrt(t^2 / (t^2 + 2)):

    FIRE - base   1, 2, 3     mean 2, deviation 1,   t^2 = 12   p = 0.0742
    S&P - base    2, 0, 1     mean 1, deviation 1,   t^2 = 3    p = 0.2254
    S&P - FIRE    1, -2, -2   mean -1, deviation 3^.5, t^2 = 1  p = 0.4226

    Holm over these three: 3 x 0.0742, 2 x 0.2254, and the last no smaller than the one before it.
    """
    values = {"base": (0, 0, 0), "fire": (1, 2, 3), "snp": (2, 0, 1)}
    rows = [(method, seed, v) for method, of_seeds in values.items() for seed, v in enumerate(of_seeds)]
    table = summarise(pd.DataFrame(rows, columns=["method", "seed", "value"]), STREAM).set_index("method")
    first, second = (1 - (t2 / (t2 + 2)) ** 0.5 for t2 in (12, 3))
    for method, against, p in (
        ("fire", "base", 3 * first),
        ("base", "fire", 3 * first),
        ("snp", "base", 2 * second),
        ("snp", "fire", 2 * second),
    ):
        assert table.loc[method, f"vs {against}"].p_holm == pytest.approx(p), (method, against)


def test_texts_are_compared_by_the_loss_at_the_end_of_tasks() -> None:
    runs = [
        text_run(m, seed, [9.0, x + seed, x - 1], 5) for m, x in (("base", 3.0), ("fire", 2.0)) for seed in (1, 2, 4)
    ]
    rows = of_texts(runs)
    assert list(rows) == TEXT_COLUMNS
    found = summarise(rows[rows["task"] > 0], TEXTS, more=False).set_index("method")
    assert list(found.index) == ["fire", "base"]
    assert found.loc["base", "last quarter"].mean == pytest.approx(np.mean([(3 + s + 2) / 2 for s in (1, 2, 4)]))
    assert found.loc["fire", "earlier at the end"].mean == 9.0
    assert found.loc["fire", "lost"].mean == pytest.approx(7 / 3)
    assert found.loc["fire", "vs base"].difference.mean == pytest.approx(-1.0)
    with pytest.raises(BadRun, match="two runs of method fire with seed 1"):
        of_texts([*runs, text_run("fire", 1, [1.0])])


def agent_rows() -> pd.DataFrame:
    """Two methods, three seeds, six tasks; base loses 10 a task, fire stays."""
    return pd.DataFrame(
        [
            {"method": method, "seed": seed, "task": task, "evaluation": 200 + task}
            | {"return": 100 + seed - (10 * task if method == "base" else 0)}
            for method in ("base", "fire")
            for seed in range(3)
            for task in range(6)
        ]
    )


def test_an_agent_s_score_is_the_mean_of_the_last_third() -> None:
    found = summarise(agent_rows(), AGENTS)
    assert found["method"].tolist() == ["fire", "base"]
    assert [one.mean for one in found["last third"]] == [101.0, 56.0]
    assert [one.mean for one in found["first task"]] == [101.0, 101.0]
    assert found["P(better than base)"][0].mean == 1.0
    assert found["P(better than base)"][1] is None
    assert [one.mean for one in found["evaluation, last third"]] == [204.5, 204.5]


def test_triggers_are_compared_with_a_known_boundary_and_never() -> None:
    rows = [("boundary", 0, 0.5, 2), ("boundary", 1, 0.7, 2), ("never", 0, 0.1, 1), ("never", 1, 0.2, 2)]
    columns = ["arm", "seed", "online", "seconds"]
    found = summarise(pd.DataFrame(rows, columns=columns).assign(firings=3), outcome_of_triggers("score"))
    assert found["vs never"][0].difference.mean == pytest.approx(0.45)
    assert found["vs known boundary"][1].difference.mean == pytest.approx(-0.45)
    assert found["firings"].tolist() == ["3.0", "3.0"]
    assert spearman(pd.Series([1.0, 2.0, 3.0, 4.0]), pd.Series([4.0, 3.0, 1.0, 2.0])) == pytest.approx(-0.8)
    assert np.isnan(spearman(pd.Series([1.0, 1.0]), pd.Series([1.0, 2.0])))


def test_ranks_over_streams_have_an_interval_that_shows_what_seeds_can_tell() -> None:
    rng = np.random.default_rng(0)
    clear = frame({"base": [0.1] * 20, "fire": [0.9] * 20, "snp": (0.5 + 0.01 * rng.standard_normal(20)).tolist()})
    noise = rng.standard_normal((3, 20))
    unclear = frame(dict(zip(("base", "fire", "snp"), noise.tolist(), strict=True)))
    first = ranks({"a": clear}).set_index("method")["mean rank"]
    assert [first[m].mean for m in ("fire", "snp", "base")] == [1, 2, 3]
    assert (first["fire"].low, first["fire"].high) == (1, 1)
    both = ranks({"a": clear, "b": unclear}).set_index("method")["mean rank"]
    assert both["fire"].low < both["fire"].mean < both["fire"].high or both["fire"].high > 1
    losses = ranks({"a": clear}, ["a"]).set_index("method")["mean rank"]
    assert losses["base"].mean == 1


# ---------------------------------------------------------------------------------------------------------------- pages


def test_the_page_is_filled_from_runs_and_remade_from_small_results(tmp_path: Path) -> None:
    write(tmp_path / "runs")
    results, page = tmp_path / "results", tmp_path / "page.md"
    results.mkdir()
    (results / "search_random_labels_digits.csv").write_text(
        "setting,method,trial,options,score,seed 10000\n"
        "ab,base,0,,0.1,0.1\nab,base,1,lr=0.1,0.2,0.2\nab,base,2,lr=9,nan,nan\n"
    )
    names = ("random_labels_digits", "chosen random_labels_digits", "ranks")
    page.write_text("".join(f"before\n<!-- table: {name} -->\nold\n<!-- end -->\n" for name in names))
    where = ["plasticity", "--results", str(results), "--page", str(page)]
    assert make_tables.main([*where, "--runs", str(tmp_path / "runs")]) == 0
    made = page.read_text()
    assert made.count("old") == 1, "of the ranks, which one stream has not"
    assert "| FIRE " in made
    assert "| Base   | 1        | 0.1      | 0.2  | lr=0.1" in made
    assert (results / "random_labels_digits.png").stat().st_size > 1000
    assert provenance.read(results / "random_labels_digits.csv")["*"]["precision"] == "float32"
    assert make_tables.main([*where, "--check"]) == 0
    page.write_text(made.replace("| FIRE ", "| Fire "))
    assert make_tables.main([*where, "--check"]) == 1
    assert make_tables.main(where) == 0
    assert page.read_text() == made


def test_a_seed_of_a_search_is_not_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame({"base": [1.0] * 5}).to_csv(tmp_path / "a_digits.csv", index=False)
    (tmp_path / "search_a_digits.csv").write_text("setting,method,trial,options,score,seed 3\nab,base,0,,1,1\n")
    assert make_tables.main(["plasticity", "--results", str(tmp_path), "--page", "none"]) == 1
    assert "options were chosen on seed 3, which is reported" in capsys.readouterr().err
