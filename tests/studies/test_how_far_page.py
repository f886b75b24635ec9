"""The numbers on the page of the study how_far against the rows beside it."""

import re
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest

from analysis.estimates import mean
from tests.zygote import ROOT

FOLDER = ROOT / "docs" / "studies" / "how_far"
PAGES = {name: (FOLDER / f"{name}.md").read_text() for name in ("index", "streams")}
SETTINGS = ("share 1", "share 0.5", "share 0.25")  # in the order of the columns
COMPARED = {
    "random labels, 100 % new": ("labels", "share 1"),
    "permuted Fashion-MNIST": ("permuted_fashion", ""),
    "random labels, 50 % new": ("labels", "share 0.5"),
    "random labels, 25 % new": ("labels", "share 0.25"),
    "CartPole": ("cartpole", ""),
    "double pendulum": ("pendulum", ""),
    "CIFAR-10, warm start": ("warm_start", ""),
    "permuted text": ("permuted_text", ""),
}
RIVALS = ("fire", "random_isometry", "full_reset", "snp")  # likewise
DIGITS = {"labels": 3, "cartpole": 1, "permuted_fashion": 4, "pendulum": 1, "permuted_text": 3, "warm_start": 3}
ROWS = {
    "base: nothing": "base",
    "a new network for each task": "fresh",
    "optimizer reset alone": "optimizer_reset",
    "layer norm with weight decay, no act": "layer_norm_decay",
    "full reset": "full_reset",
    "S&P, coefficients searched": "snp",
    "DASH, lambda searched": "dash",
    "a quarter of the way": "quarter",
    "half": "half",
    "three quarters": "three_quarters",
    "FIRE": "fire",
    "FIRE, exact": "fire_exact",
    "random isometry": "random_isometry",
    "a quarter, biases put back": "quarter_biases",
    "half, biases put back": "half_biases",
    "three quarters, biases put back": "three_quarters_biases",
    "FIRE, biases put back": "fire_biases",
    "FIRE, exact, biases put back": "fire_exact_biases",
    "random isometry, biases put back": "random_isometry_biases",
}
ENDS = {
    "base": "base",
    "layer norm with decay": "layer_norm_decay",
    "new network": "fresh",
    "full reset": "full_reset",
    "S&P": "snp",
    "FIRE": "fire",
    "half": "half",
    "random isometry": "random_isometry",
    "FIRE, biases back": "fire_biases",
    "half, biases back": "half_biases",
    "random isometry, biases back": "random_isometry_biases",
}
AGENT_ROWS = {
    "base: nothing": "base",
    "a new network for each task": "fresh",
    "full reset": "full_reset",
    "S&P, coefficients searched": "snp",
    "random isometry": "random_isometry",
    "FIRE": "fire",
    "half": "half",
    "half, output layer kept": "half_head_kept",
}
SAC_ROWS = {name.replace("output layer kept", "output layers kept"): row for name, row in AGENT_ROWS.items()}


def table(page: str, heading: str) -> Iterator[list[str]]:
    """Yield the cells of each line of the table whose heading begins so, its heading first."""
    (text,) = re.findall(rf"^\| {re.escape(heading)}.*\n(?:\|.*\n)+", PAGES[page], re.MULTILINE)
    for line in text.replace("*", "").splitlines():
        if not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip()[1:-1].split("|")]


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """The means over seeds by row and setting."""
    lines = pd.read_csv(FOLDER / "labels.csv")
    numbers = ["online/accuracy", "task_end/accuracy", "previous_accuracy_before", "previous_accuracy_after"]
    return lines.groupby(["row", "setting"])[numbers].mean()


def test_effects_intervals_and_outcomes() -> None:
    """The table holds each comparison of the family, once, and no others."""
    outcomes = pd.read_csv(FOLDER / "outcomes.csv").fillna({"setting": ""})
    told = {}
    for line in outcomes.itertuples():
        digits = DIGITS[line.stream]
        rival, biases = str(line.rival).removesuffix("_biases"), "put back" if "_biases" in line.row else "kept"
        numbers = f"{line.effect:.{digits}f} ({line.low:.{digits}f} to {line.high:.{digits}f}), {line.outcome}"
        words = f"{numbers}, descriptive" if line.descriptive else numbers
        told[line.stream, line.setting, biases, rival] = words
    _, *lines = table("index", "half minus | biases")
    shown, place = {}, ("", "")
    for name, cell, *cells in lines:
        biases = "kept" if cell == "none" else cell  # a network without biases
        place = COMPARED[name] if name else place  # an empty cell repeats the one above
        shown |= {(*place, biases, rival): words for rival, words in zip(RIVALS, cells, strict=True) if words}
    assert shown == told
    on_labels, on_pixels, on_text = (
        outcomes[outcomes.stream == stream] for stream in ("labels", "permuted_fashion", "permuted_text")
    )
    assert on_labels.p_difference.max() < 1e-4
    assert on_text.p_difference.max() < 1e-4
    assert on_pixels[["p_difference", "p_equivalence"]].max(axis=None) < 1e-4
    assert 0 < on_pixels.low.min() < on_pixels.high.max() < 0.01


def test_settings_without_a_loss_are_marked() -> None:
    outcomes = pd.read_csv(FOLDER / "outcomes.csv").fillna({"setting": ""})
    shown = outcomes.groupby(["stream", "setting"]).loss_shown.first()
    for name, place in COMPARED.items():
        assert (f"| *{name}* |" in PAGES["index"]) is not shown[place], name


def test_all_rows(rows: pd.DataFrame) -> None:
    _, *lines = table("streams", "row | 100 %")
    assert {name for name, *_ in lines} == ROWS.keys()
    for name, *cells in lines:
        for setting, cell in zip(SETTINGS, cells, strict=True):
            told = rows.loc[ROWS[name], setting]
            left = told.previous_accuracy_after / told.previous_accuracy_before
            words = "guessing" if left < 0.11 else f"{left:.2f}"
            assert cell == f"{told['online/accuracy']:.3f} ({words})", (name, setting)


def test_ends_of_tasks(rows: pd.DataFrame) -> None:
    (_, *names), *lines = table("streams", "|")
    assert {*names} == ENDS.keys()
    for setting, (_, *cells) in zip(SETTINGS, lines, strict=True):
        told = [f"{rows.loc[ENDS[name], setting]['task_end/accuracy']:.3f}" for name in names]
        assert cells == told, setting


def test_rows_on_permuted_pixels() -> None:
    runs = pd.read_csv(FOLDER / "permuted_fashion.csv").set_index(["row", "seed"])
    ends = pd.read_csv(FOLDER / "permuted_fashion.tasks.csv").set_index("row")
    means = runs.groupby("row")["online/accuracy"].mean()
    _, *lines = table("streams", "row | accuracy")
    assert {ROWS[name] for name, *_ in lines} == {*means.index}
    for name, *cells in lines:
        row = ROWS[name]
        part = (means[row] - means.base) / (means.fresh - means.base)
        left = runs.loc[row].previous_accuracy_after.mean() / runs.loc[row].previous_accuracy_before.mean()
        last = ends.loc[row].query("task >= 450")["train/accuracy"].mean()
        words = "guessing" if left < 0.13 else f"{left:.2f}"
        assert cells == [f"{means[row]:.4f}", f"{last:.3f}", f"{part:.2f}", words], name


def test_rows_on_cartpole() -> None:
    runs = pd.read_csv(FOLDER / "cartpole.csv").set_index(["row", "seed"])
    _, *lines = table("streams", "row | seeds")
    assert [name for name, *_ in lines] == [*AGENT_ROWS]
    assert {*AGENT_ROWS.values()} == {*runs.index.get_level_values("row")}
    for name, *cells in lines:
        mine = runs.loc[AGENT_ROWS[name]]
        base, fresh = (runs.loc[row].loc[mine.index, "task/return"].mean() for row in ("base", "fresh"))
        part = (mine["task/return"].mean() - base) / (fresh - base)
        left = mine.previous_return_after.mean() / mine.previous_return_before.mean()
        told = [str(len(mine)), f"{mine['task/return'].mean():.0f}", f"{part:.2f}", f"{left:.2f}"]
        assert cells == told, name


def test_rows_on_the_double_pendulum() -> None:
    runs = pd.read_csv(FOLDER / "pendulum.csv").groupby("row").mean(numeric_only=True)
    ends = pd.read_csv(FOLDER / "pendulum.tasks.csv").groupby("row")["eval/return"].mean()
    base, fresh = (runs.loc[row, "task/return"] for row in ("base", "fresh"))
    _, *lines = table("streams", "row | return | part")
    assert [name for name, *_ in lines] == [*SAC_ROWS]
    assert {*SAC_ROWS.values()} == {*runs.index}
    for name, *cells in lines:
        mine = runs.loc[SAC_ROWS[name]]
        part = (mine["task/return"] - base) / (fresh - base)
        left = mine.previous_return_after / mine.previous_return_before
        told = [f"{mine['task/return']:.0f}", f"{part:.2f}", f"{left:.2f}", f"{ends[SAC_ROWS[name]]:.0f}"]
        assert cells == told, name


def test_rows_on_permuted_text() -> None:
    means = pd.read_csv(FOLDER / "permuted_text.csv").groupby("row").mean(numeric_only=True)
    means["left"] = np.exp(means.previous_loss_before - means.previous_loss_after)
    _, *lines = table("streams", "row | loss, last")
    assert {ROWS[name] for name, *_ in lines} == {*means.index}
    for name, *cells in lines:
        mine = means.loc[ROWS[name]]
        assert cells == [f"{mine['task_end/loss']:.3f}", f"{mine['online/loss']:.3f}", f"{mine.left:.2f}"], name


def test_rows_on_the_warm_start() -> None:
    means = pd.read_csv(FOLDER / "warm_start.csv").groupby("row").mean(numeric_only=True)
    base, fresh = (means.loc[row, "test/accuracy"] for row in ("base", "fresh"))
    names = ROWS | {"a new network for the second phase": "fresh"}
    _, *lines = table("streams", "row | test accuracy")
    assert {names[name] for name, *_ in lines} == {*means.index}
    for name, *cells in lines:
        mine = means.loc[names[name]]
        part = (mine["test/accuracy"] - base) / (fresh - base)
        after = "test_accuracy_after"
        assert cells == [f"{value:.{digits}f}" for value, digits in (
            (mine["test/accuracy"], 3), (part, 2), (mine["train/accuracy"], 3), (mine[after], 3)
        )], name  # fmt: skip


def test_what_the_warm_start_leaves_with_new_statistics() -> None:
    """It is measured on the networks of the study's rows, which had the same accuracy before and after the act."""
    measured = pd.read_csv(FOLDER / "warm_start.batch_norm.csv").set_index(["row", "seed"])
    rows = pd.read_csv(FOLDER / "warm_start.csv").set_index(["row", "seed"]).loc[measured.index]
    assert measured.before.to_numpy() == pytest.approx(rows.test_accuracy_before.to_numpy(), abs=5e-5)
    assert measured.after.to_numpy() == pytest.approx(rows.test_accuracy_after.to_numpy(), abs=5e-5)
    means = measured.groupby("row").mean()
    half, fire = means.loc["half"], means.loc["fire"]
    told = f"{half.new_statistics:.3f} after half and {fire.new_statistics:.3f} after FIRE"
    assert told in PAGES["streams"]
    gap = mean(measured.loc["half"].new_statistics - measured.loc["fire"].new_statistics)
    assert f"Half minus FIRE is {gap.mean:.3f} ({gap.low:.3f} to {gap.high:.3f})" in PAGES["streams"]
    left = [f"{row.new_statistics / row.before:.2f}" for row in (half, fire)]
    assert f"{left[0]} and {left[1]} of it are left" in PAGES["streams"]
    assert f"half has {left[0]} and FIRE {left[1]} of the old accuracy left" in PAGES["index"]


def test_ten_steps_on_permuted_text() -> None:
    """The rows that were run beside the study, with the whole tasks of all rows of that table."""
    ten = pd.read_csv(FOLDER / "permuted_text.ten_steps.csv").query("seed < 20000").set_index("seed")
    half = pd.read_csv(FOLDER / "permuted_text.csv").query("row == 'half'").set_index("seed")
    assert f"lower by {(ten['task_end/loss'] - half['task_end/loss']).mean():.3f}, -0.003 to 0.036" in PAGES["index"]
    assert f"its loss is higher by {(half['online/loss'] - ten['online/loss']).mean():.3f}" in PAGES["index"]
    ends = pd.read_csv(FOLDER / "permuted_text.tasks.csv").set_index("row")[["task", "task/loss"]]
    more = pd.read_csv(FOLDER / "permuted_text.ten_steps.tasks.csv")[["task", "task/loss"]]
    (text,) = re.findall(r"^ *\| \| task 2 .*\n(?: *\|.*\n)+", PAGES["streams"], re.MULTILINE)
    lines = [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in text.splitlines()[2:]]
    assert len(lines) == 5
    for name, *cells in lines:
        row = {"FIRE, five steps": "fire", "S&P": "snp"}.get(name, name.replace(" ", "_"))
        mine = more if name == "FIRE, ten steps" else ends.loc[row]
        means = [mine[mine.task.between(*tasks)]["task/loss"].mean() for tasks in ((1, 1), (1, 3), (9, 11), (11, 11))]
        assert cells == [f"{mean:.3f}" for mean in means], name
