"""The searches of studies: independent where they are said to be, and past an edge."""

from pathlib import Path

import pytest

from scripts.studies import STUDIES, Finder, Study, extended, methods, rate_of, summary
from tests.programs import ALIKE


def test_searches_are_independent_and_alike_for_all_rows() -> None:
    study = STUDIES["ranking_labels"]
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
def test_the_best_trial_of_each_search_is_reported(tmp_path: Path) -> None:
    options = ("experiment=plasticity_random_labels", "benchmark.tasks=2", "epochs=1", *ALIKE, f"paths.runs={tmp_path}")
    settings: dict[str, tuple[str, ...]] = {"one": (), "other": ()}
    study = Study("vision", options, methods("base"), {"*": [101]}, settings, (1e-4, 1e-2), scrambled=2)
    finder = Finder(study, options, workers=1)
    for setting in settings:
        chosen = finder.search(setting)
        scores = {
            trial: finder.score(setting, "base", trial) for where, _, trial, _ in finder.searched if where == setting
        }
        assert len(scores) >= 2
        assert max(scores, key=scores.__getitem__) == chosen["base"]
        finder.report(setting, chosen)
        assert summary(finder.reported[setting, "base", chosen["base"], 101])["task_end/accuracy"] > 0
    assert len({key[2] for key in finder.reported}) == 2, "the searches found their own"
