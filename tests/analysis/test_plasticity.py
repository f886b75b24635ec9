"""The table of many methods on a stream: what it keeps, compares and ranks, and the page that shows it."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis import make_plasticity
from analysis.runs import BadRun
from analysis.sources import load
from analysis.stream_results import collect, compare, ranks
from analysis.stream_results import write as write_small
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


def test_runs_that_differ_in_method_and_rate_are_one_table(tmp_path: Path) -> None:
    write(tmp_path)
    (name,) = tables = collect(load([str(tmp_path)], cache=False)[0])
    assert name == "random_labels_digits"
    rows = tables[name]
    assert len(rows) == len(ENDS) * SEEDS * 3
    one = rows[(rows["method"] == "fire") & (rows["seed"] == 2)]
    assert one["value"].tolist() == pytest.approx([0.86, 0.8, 0.8])
    assert one["kept"].tolist() == pytest.approx([np.nan, 0.2, 0.2], nan_ok=True)


def test_of_a_warm_start_only_what_follows_the_boundary_counts(tmp_path: Path) -> None:
    ends = [(0, 0.2), (0, 0.4), (1, 0.5), (1, 0.7)]
    rows = [{"step": i, "epoch": i, "phase": phase, "test/accuracy": end} for i, (phase, end) in enumerate(ends, 1)]
    boundary = {"kind": "boundary", "step": 2, "phase": 1, "boundary/test_accuracy_after": 0.1}
    write_run(tmp_path, "fire", 1, rows_=[*rows[:2], boundary, *rows[2:]], benchmark={"name": "warm_start"})
    (table,) = collect(load([str(tmp_path)], cache=False)[0]).values()
    assert table.drop(columns="method").to_numpy().tolist() == [pytest.approx([1, 1, 0.7, 0.6, 0.1])]


def test_runs_that_differ_in_more_are_refused(tmp_path: Path) -> None:
    write(tmp_path, batch_size=64)
    write(tmp_path / "other", batch_size=32)
    with pytest.raises(BadRun, match="differ in more than the method"):
        collect(load([str(tmp_path)], cache=False)[0])


def test_methods_are_compared_with_three_references_and_the_best_stands_first() -> None:
    rng = np.random.default_rng(0)
    values = {method: (end + 0.05 * rng.standard_normal(20)).tolist() for method, end in ENDS.items()}
    table = compare(frame(values))
    assert table["method"].tolist() == ["fire", "snp", "full_reset", "base"]
    assert compare(frame(values), more=False)["method"].tolist() == ["base", "full_reset", "snp", "fire"]
    pair = table.loc[1, "vs full_reset"]
    expected = stats.ttest_rel(values["snp"], values["full_reset"])
    assert pair.p == pytest.approx(expected.pvalue)  # type: ignore[union-attr]
    assert pair.p_holm > pair.p  # type: ignore[union-attr]
    low, high = expected.confidence_interval()
    assert (pair.difference.low, pair.difference.high) == pytest.approx((low, high))  # type: ignore[union-attr]
    assert table.loc[0, "vs fire"] is None


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


def test_a_stream_on_which_few_methods_have_run_is_not_ranked(tmp_path: Path) -> None:
    for name, methods in {"a_digits": ENDS, "b_digits": ENDS, "c_bits": ["base", "fire"]}.items():
        write_small(frame({method: [ENDS[method]] * 5 for method in methods}), tmp_path / f"{name}.csv")
    made = make_plasticity.make_tables(tmp_path)
    assert "| S&P " in made["ranks"]
    assert "C" not in made["ranks"].splitlines()[0]
    assert "| FIRE " in made["c_bits"]


def test_the_page_is_filled_from_runs_and_remade_from_small_results(tmp_path: Path) -> None:
    write(tmp_path / "runs")
    results, page = tmp_path / "results", tmp_path / "page.md"
    results.mkdir()
    (results / "search_random_labels_digits.csv").write_text(
        "setting,method,trial,options,score,seed 10000\n"
        "ab,base,0,,0.1,0.1\nab,base,1,lr=0.1,0.2,0.2\nab,base,2,lr=9,nan,nan\n"
    )
    text = (
        "before\n<!-- table: random_labels_digits -->\nold\n<!-- end -->\n<!-- table: chosen random_labels_digits -->\n"
    )
    text += "<!-- end -->\n<!-- table: ranks -->\nstays\n<!-- end -->\nafter\n"
    page.write_text(text)
    where = ["--results", str(results), "--page", str(page)]
    assert make_plasticity.main(["--runs", str(tmp_path / "runs"), *where]) == 0
    made = page.read_text()
    assert "old" not in made
    assert "stays" in made
    assert "| FIRE " in made
    assert "| Base   | 3      | 1        | 0.1      | 0.2  | lr=0.1" in made
    assert (results / "random_labels_digits.png").stat().st_size > 1000
    assert provenance.read(results / "random_labels_digits.csv")["*"]["precision"] == "float32"
    assert make_plasticity.main(where) == 0
    assert page.read_text() == made


def test_a_seed_of_a_search_is_not_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "runs")
    results = tmp_path / "results"
    results.mkdir()
    (results / "search_random_labels_digits.csv").write_text(
        "setting,method,trial,options,score,seed 3\nab,base,0,,1,1\n"
    )
    assert make_plasticity.main(["--runs", str(tmp_path / "runs"), "--results", str(results), "--page", "none"]) == 1
    assert "options were chosen on seed 3, which is reported" in capsys.readouterr().err
