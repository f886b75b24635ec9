"""The searches of studies: independent where they are said to be, and past an edge."""

from dataclasses import replace
from pathlib import Path

import pytest

from scripts.studies import STUDIES, Finder, Study, Tables, extended, methods, rate_of
from tests.programs import ALIKE


def test_searches_are_independent_and_alike_for_all_rows() -> None:
    study = STUDIES["ranking_online"]
    seeds = [seed for setting in study.settings for seed in study.search_seeds(setting)]
    assert len({*seeds}) == 10
    assert not {*seeds} & {seed for row in study.rows for seed in study.report_seeds(row)}
    found = {(setting, row): study.trials(setting, row) for setting in study.settings for row in study.rows}
    assert {len(tried) for tried in found.values()} == {9}
    assert len({trial for (_, row), tried in found.items() if row == "fire" for trial in tried}) == 45
    rates = {setting: [rate_of(trial) for trial in found[setting, "fire"]] for setting in study.settings}
    assert all([rate_of(trial) for trial in tried] == rates[setting] for (setting, _), tried in found.items())
    assert all(len(trial) == 1 for trial in found["search 1", "fire"]), "FIRE's rate alone"
    assert all(len(trial) == 3 for trial in found["search 1", "snp"])


def test_a_search_goes_past_an_edge_with_the_other_options_of_the_best() -> None:
    tried = [("lr=0.001", "method.coef=0.3"), ("lr=0.003", "method.coef=0.1"), ("lr=0.01", "method.coef=0.2")]
    assert extended(tried, tried[1]) == tried
    assert extended(tried, tried[0]) == [("lr=3e-04", "method.coef=0.3"), *tried]
    assert extended(tried, tried[2]) == [*tried, ("lr=3e-02", "method.coef=0.2")]
    assert extended([("lr=1e-05",), ("lr=0.3",)], ("lr=0.3",)) == [("lr=1e-05",), ("lr=0.3",)], "not without end"


@pytest.mark.slow
def test_the_best_trial_of_each_search_is_reported_and_a_table_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("experiment=plasticity_random_labels", "benchmark.tasks=2", "epochs=1", *ALIKE, f"paths.runs={tmp_path}")
    settings: dict[str, tuple[str, ...]] = {"one": (), "other": ()}
    study = Study("vision", options, methods("base"), {"*": [101]}, settings, (1e-4, 1e-2), scrambled=2)
    table = tmp_path / "tables" / "a.csv"

    def run(study: Study) -> Tables:
        (row,) = study.rows
        finder = Finder(study, 1, Tables(table, "python -m scripts.studies a"))
        for setting in settings:
            chosen = finder.search(setting)
            trials = {key[2] for key in finder.tables.scores if key[:2] == (setting, row)}
            assert len(trials) >= 2
            best = max(trials, key=lambda trial: finder.score(setting, row, tuple(trial.split())))
            assert chosen[row] == tuple(best.split())
            finder.report(setting, chosen)
        return finder.tables

    ended = run(study).ends
    assert len({key[2] for key in ended}) == 2, "the searches found their own"
    texts = [path.read_text() for path in Tables(table, "").paths()]
    monkeypatch.setattr("scripts.studies.run_jobs", lambda jobs, workers: [pytest.fail("it is done")] if jobs else [])
    assert run(study).ends.keys() == ended.keys()
    assert [path.read_text() for path in Tables(table, "").paths()] == texts
    monkeypatch.undo()
    more = run(replace(study, rows=methods("fire")))
    assert {key[1] for key in more.ends} == {"base", "fire"}
    assert all(float(row["task_end/accuracy"]) > 0 and row["commit"] and row["cpu"] for row in more.ends.values())
    assert texts[0].splitlines()[1] in table.read_text(), "what was there stays to the letter"


def test_a_table_of_other_numerics_is_not_gone_on_with(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("setting,row,searched,seed\n,base,,101\n")
    with pytest.raises(SystemExit, match=r"a\.csv: made with other numerics"):
        Tables(table, "")
