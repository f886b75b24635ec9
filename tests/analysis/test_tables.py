"""Tables from runs whose numbers are known."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import formats, plotting, rl, tables
from analysis.curves import mean_curve
from analysis.estimates import holm, paired
from analysis.runs import settings
from analysis.sources import load
from tests.analysis.synthetic import rows, write_run

FINAL = {"base": [0.70, 0.72, 0.69], "snp": [0.75, 0.74, 0.78], "fire": [0.80, 0.79, 0.83]}


def ending(method: str, seed: int, value: float, metric: str = "test/accuracy") -> list[dict]:
    out = rows(method, seed, 3, metric)
    out[-1][metric] = value
    return out


def only_setting(root):
    (setting,) = settings(load([str(root)])[0])
    return setting


@pytest.fixture
def setting(tmp_path):
    for method, values in FINAL.items():
        for seed, value in enumerate(values):
            write_run(tmp_path, method, seed, rows_=ending(method, seed, value))
    write_run(tmp_path, "fire", 7, rows_=ending("fire", 7, 0.1))  # base has no such seed
    return only_setting(tmp_path)


def test_differences_are_paired_and_holm_corrected(setting):
    frame = tables.results(setting).set_index("method")
    assert list(frame.index) == ["Base", "S&P", "FIRE"]
    assert frame.loc["FIRE", "final"].n == 4
    against = [("snp", "base"), ("fire", "base"), ("snp", "fire")]  # both columns are one family
    pairs = [paired(dict(enumerate(FINAL[one])), dict(enumerate(FINAL[other]))) for one, other in against]
    corrected = holm([pair.p for pair in pairs])[:2]
    for name, pair, p in zip(("S&P", "FIRE"), pairs[:2], corrected, strict=True):
        got = frame.loc[name, "vs Base"]
        assert got.difference == pair.difference
        assert got.difference.n == 3
        assert got.p_holm == pytest.approx(p)
    assert frame.loc["Base", "vs Base"] is None
    assert frame.loc["Base", "vs FIRE"].p_holm == frame.loc["FIRE", "vs Base"].p_holm
    assert frame.loc["Base", "vs FIRE"].difference.mean == pytest.approx(-frame.loc["FIRE", "vs Base"].difference.mean)


def test_variants_that_differ_in_an_option_that_one_lacks_have_numbers_of_their_own(tmp_path) -> None:
    """As where a method has got an option whose default is null since the first of the runs."""
    for hyper, end in (({}, 0.1), ({"extra": None}, 0.9)):
        write_run(tmp_path, "snp", 0, rows_=ending("snp", 0, end), hyper=hyper, name=f"run-{end}")
    frame = tables.results(only_setting(tmp_path)).set_index("method")
    assert {name: value.mean for name, value in frame["final"].items()} == {"S&P": 0.1, "S&P (extra=None)": 0.9}


def test_fire_against_base_counts_once_where_both_are_references() -> None:
    """Worked by hand. With three seeds the two-sided p of Student's t is 1 - sqrt(t^2 / (t^2 + 2)):

    FIRE - base   1, 2, 3     mean 2, deviation 1,   t^2 = 12   p = 0.0742
    S&P - base    2, 0, 1     mean 1, deviation 1,   t^2 = 3    p = 0.2254
    S&P - FIRE    1, -2, -2   mean -1, deviation 3^.5, t^2 = 1  p = 0.4226

    Holm over these three: 3 x 0.0742, 2 x 0.2254, and the last no smaller than the one before it.
    """
    values = {"base": (0.0, 0.0, 0.0), "fire": (1.0, 2.0, 3.0), "snp": (2.0, 0.0, 1.0)}
    numbers = {name: dict(enumerate(of_seeds)) for name, of_seeds in values.items()}
    pairs = tables.compare(numbers, ["base", "fire"], lambda ours, theirs: (numbers[ours], numbers[theirs]))
    first, second = (1 - (t2 / (t2 + 2)) ** 0.5 for t2 in (12, 3))
    assert {methods: pair.p_holm for methods, pair in pairs.items()} == pytest.approx(
        {
            ("fire", "base"): 3 * first,
            ("base", "fire"): 3 * first,
            ("snp", "base"): 2 * second,
            ("snp", "fire"): 2 * second,
        }
    )


def test_final_and_best_of_a_loss_and_a_run_that_diverged_is_in_no_mean(tmp_path):
    for seed, end in enumerate((2.5, float("nan"))):
        lines = [{"step": i, "val/loss": v} for i, v in enumerate((3.0, 2.0 - seed, end))]
        write_run(tmp_path, seed=seed, metric="val/loss", rows_=lines)
    frame = tables.results(only_setting(tmp_path))
    assert frame["n"][0] == "2 (1 diverged)"
    assert (frame["final"][0].mean, frame["final"][0].n) == (2.5, 1)
    assert (frame["best"][0].mean, frame["best"][0].n) == (2.0, 1)


def test_a_boundary_s_table_says_what_was_done_and_how_long_it_took(tmp_path):
    write_run(tmp_path, "fire")
    frame = tables.at_boundaries(only_setting(tmp_path)).set_index("method")
    assert (frame.loc["FIRE", "phase"], frame.loc["FIRE", "DfI after"]) == (1, 0.5)
    assert frame.loc["FIRE", "seconds"] == pytest.approx(0.2)


def test_table_10_has_the_exact_projection_and_what_it_is_measured_by(tmp_path):
    for method, hyper in (
        ("base", {}),
        ("full_reset", {}),
        ("snp", {"coef": 0.8}),
        ("fire", {"solver": "newton_schulz", "iterations": 5, "layout": "qk"}),
        ("fire_exact", {"solver": "exact", "layout": "qk"}),
    ):
        write_run(tmp_path, method, hyper=hyper)
    frame = tables.convergence([only_setting(tmp_path)])
    assert list(frame["method"]) == ["Base", "Full reset", "FIRE (iterations=5)", "FIRE exact"]
    assert list(frame) == ["method", "DfI before", "DfI after", "SFE"]
    assert list(frame["DfI after"].map(lambda cell: cell.mean)) == pytest.approx([0.5] * 4)
    (tmp_path / "other").mkdir()
    write_run(tmp_path / "other", "base")
    assert tables.convergence([only_setting(tmp_path / "other")]).empty


def test_rl_table_takes_normalised_scores_and_the_environments_all_share(tmp_path):
    for env, scale in (("A", 1), ("B", 10)):
        for method, value in (("base", 1.0), ("fire", 2.0)):
            for seed in range(2):
                row = {"step": 1, "eval/return": scale * value, rl.NORMALISED: value}
                write_run(tmp_path / env, method, seed, metric="eval/return", rows_=[row], dataset={"name": env})
    write_run(tmp_path / "C", "fire", metric="eval/return", rows_=[row], dataset={"name": "C"})
    frame = rl.table(settings(load([str(tmp_path)])[0])).set_index("method")
    assert frame.loc["FIRE", "environments"] == 2
    assert frame.loc["FIRE", "IQM"].mean == 2
    assert frame.loc["FIRE", "P(better than base)"].mean == 1


def test_rl_table_counts_environments_and_names_the_setting_that_it_takes(tmp_path):
    env = {"name": "cartpole", "game": "CartPole-v1"}
    for place, game, lr, seeds in (
        ("a", "CartPole-v1", 0.1, 1),
        ("b", "CartPole-v1", 0.2, 2),
        ("c", "Acrobot-v1", 1, 1),
    ):
        for method, value in (("base", 1.0), ("fire", 2.0)):
            for seed in range(seeds):
                row = {"step": 1, "eval/return": lr * value, rl.NORMALISED: lr * value}
                write_run(
                    tmp_path / place, method, seed, metric="eval/return", rows_=[row],
                    env=env | {"game": game}, benchmark=None, dataset=None, lr=lr,
                )  # fmt: skip
    found = settings(load([str(tmp_path / "a"), str(tmp_path / "b")])[0])
    frame = rl.table(found).set_index("method")
    assert list(frame["environments"]) == [1, 1]
    assert list(frame["n"]) == [2, 2]
    assert [estimate.mean for estimate in frame["IQM"]] == [0.2, 0.4]
    assert all("lr=0.2 (1 of 2 settings)" in text for text in frame["shown"])
    frame = rl.table(settings(load([str(tmp_path / "b"), str(tmp_path / "c")])[0]))
    assert list(frame["environments"]) == [2, 2], "another game in the same preset is another environment"
    assert "shown" not in frame


def test_rl_table_compares_with_base_whatever_restarts_with_it(tmp_path):
    for method, optimizer in (("base", "keep"), ("fire", "auto")):
        rows = [{"step": 1, "eval/return": 1.0}]
        write_run(tmp_path, method, metric="eval/return", rows_=rows, boundary={"optimizer": optimizer})
    frame = rl.table([only_setting(tmp_path)]).set_index("method")
    assert list(frame.index) == ["Base (optimizer=keep)", "FIRE"]
    assert frame.loc["FIRE", "P(better than base)"].mean == 0.5


def test_tables_of_agents_have_both_returns_and_best_is_of_what_came_after_the_act(tmp_path):
    """A best value of the first half, which all methods share, says nothing of a method."""
    returns = zip((1.0, 9.0, 2.0, 2.0, 3.0, 5.0, 4.0, 4.5), (1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 7.0), strict=True)
    rows = [
        {"step": i + 1, "phase": i // 4, "eval/return": evaluation, "train/return": training}
        for i, (evaluation, training) in enumerate(returns)
    ]
    write_run(tmp_path, metric="eval/return", rows_=rows)
    frame = tables.results(only_setting(tmp_path))
    assert list(frame)[2:5] == ["final", "best", "training return"]
    assert [frame[name][0].mean for name in list(frame)[2:5]] == [4.5, 5.0, 7.0]  # 7: of the last quarter of the phase


def diverge(folder: Path) -> None:
    (folder / "FAILED").write_text("Diverged: the loss is not finite\n")


def test_a_run_that_ended_since_it_diverged_counts_as_a_seed_and_is_in_no_mean(tmp_path: Path) -> None:
    """It has no DONE, and its rows are finite."""
    for seed, value in enumerate((0.7, 0.72)):
        write_run(tmp_path, "base", seed, rows_=ending("base", seed, value))
    write_run(tmp_path, "snp", 0, rows_=ending("snp", 0, 0.8))
    diverge(write_run(tmp_path, "snp", 1, rows_=ending("snp", 1, 0.9), done=False))
    for include_unfinished in (False, True):
        runs, _ = load([str(tmp_path)], include_unfinished)
        (setting,) = settings(runs)
        frame = tables.results(setting).set_index("method")
        assert frame["n"].tolist() == [2, "2 (1 diverged)"]
        assert (frame["final"]["S&P"].mean, frame["final"]["S&P"].n) == (0.8, 1)
        assert rl.scores({"here": setting.groups[1]}, ["here"], None)[0].tolist() == [0.8, -np.inf]


def test_a_run_that_diverged_before_its_first_row_counts_as_a_seed(tmp_path: Path) -> None:
    """As with a rate that is much too high. Of a method of which no run has a row nothing but the seeds is shown."""
    for seed, value in enumerate((0.7, 0.72)):
        write_run(tmp_path, "base", seed, rows_=ending("base", seed, value))
    write_run(tmp_path, "snp", 0, rows_=ending("snp", 0, 0.8))
    for name, seed in (("snp", 1), ("dash", 0)):
        diverge(folder := write_run(tmp_path, name, seed, done=False))
        (folder / "metrics.jsonl").write_text("")
    runs, left_out = load([str(tmp_path)])
    (setting,) = settings(runs)
    frame = tables.results(setting).set_index("method")
    assert not left_out
    assert frame["n"].to_dict() == {"Base": 2, "S&P": "2 (1 diverged)", "DASH": "1 (1 diverged)"}
    assert (frame["final"]["Base"].mean, frame["final"]["S&P"].mean) == pytest.approx((0.71, 0.8))
    assert [frame[column][name].n for column in ("final", "best") for name in ("S&P", "DASH")] == [1, 0, 1, 0]
    drawn = [(group, mean_curve(group, setting.metric)) for group in setting.groups]
    assert "Seeds that diverged: of S&P 1, of DASH 1." in plotting.caption(drawn)
    assert {group.label: c.n.max(initial=0) for group, c in drawn} == {"Base": 2, "S&P": 1, "DASH": 0}, (
        "no point is made up"
    )


def test_what_a_run_without_a_row_would_have_measured_is_read_from_a_run_that_is_shown(tmp_path: Path) -> None:
    """And from the longest of them: a short one may lack the number by which the setting is shown."""
    diverge(folder := write_run(tmp_path, "fire", 0, done=False))
    (folder / "metrics.jsonl").write_text("")
    write_run(tmp_path, "base", 0, done=False)
    runs, left_out = load([str(tmp_path)])
    assert (len(runs), len(left_out)) == (0, 2)
    diverge(write_run(tmp_path, "base", 1, rows_=[{"step": 1, "phase": 0, "val/loss": 1.0}], done=False))
    write_run(tmp_path, "base", 2)
    runs, _ = load([str(tmp_path)])
    assert {run.metric for run in runs if run.method == "fire"} == {"test/accuracy"}


def test_a_run_that_diverged_without_a_row_is_left_out_where_nothing_says_what_it_would_have_measured(
    tmp_path: Path,
) -> None:
    diverge(folder := write_run(tmp_path, "snp", 0, done=False))
    (folder / "metrics.jsonl").write_text("")
    runs, (left_out,) = load([str(tmp_path)])
    assert not runs
    assert "failed: Diverged: the loss is not finite" in str(left_out)


def test_several_variants_of_a_reference_are_told(tmp_path: Path) -> None:
    for iterations in (5, 10):
        write_run(tmp_path, "fire", 0, name=f"fire-{iterations}", hyper={"iterations": iterations})
    write_run(tmp_path, "base", 0)
    setting = only_setting(tmp_path)
    assert "vs FIRE" not in tables.results(setting)
    note = "There are no differences to method=fire, of which there are several variants."
    assert tables.without_differences(setting) == note
    assert note in formats.write(tables.results(setting), tmp_path / "table.md", note).read_text()


def test_what_a_trigger_did_is_no_boundary_s(tmp_path: Path) -> None:
    lines = rows("fire", 0, 3)
    firing = {"kind": "firing", "step": lines[-1]["step"], "phase": 1, "method/seconds": 9.0, "boundary/sfe": 5.0}
    write_run(tmp_path, "fire", rows_=[*lines, firing])
    frame = tables.at_boundaries(only_setting(tmp_path)).set_index("method")
    assert frame.loc["FIRE", "seconds"] == pytest.approx(0.2)


def test_rl_table_says_where_options_differ_between_environments(tmp_path: Path) -> None:
    for env, iterations in (("A", 5), ("B", 10)):
        for method, hyper in (("base", {}), ("fire", {"iterations": iterations})):
            row = {"step": 1, "eval/return": 1.0}
            write_run(tmp_path / env, method, metric="eval/return", rows_=[row], dataset={"name": env}, hyper=hyper)
    frame = rl.table(settings(load([str(tmp_path)])[0]))
    assert [name.endswith("(other options in each environment)") for name in frame["method"]] == [False, True]


def test_names_are_no_html_no_link_and_no_escape_sequence() -> None:
    frame = pd.DataFrame(
        {"method": ["<img src=x onerror=alert(1)>", "[x](javascript:alert(1))", "a\x1b[31mb", "p<0.001"]}
    )
    text = formats.as_markdown(frame)
    assert "<img" not in text
    assert "](" not in text
    assert "\x1b" not in text
    assert "p<0.001" in text
    assert "\x1b" not in formats.as_text(frame)
