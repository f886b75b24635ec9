"""The README's table of results against the rows that it was written from.

The table stands in the README as text. Each of its numbers is named here with its file of rows (below docs/), which of
those rows, and their column; it is the mean over seeds of a seed's mean. Who changes a number, a row or a file changes
this list with it: a number without an entry fails, and an entry without a number too.
"""

import re
from typing import NamedTuple

import pandas as pd
import pytest

from tests.zygote import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


class Number(NamedTuple):
    """A number in the README's table, and the rows that it is the mean of."""

    row: str  # how the first cell of the table's row begins, without its link
    column: str  # the table's heading, without its arrow
    file: str  # below docs/
    rows: str  # which rows of the file, a query of pandas
    value: str  # their column


def along(row: str, file: str, value: str, **queries: str) -> list[Number]:
    """The numbers of one row of the table that stand in the same column of one file."""
    return [Number(row, column.replace("_", " "), file, query, value) for column, query in queries.items()]


TABLE = [
    *along(
        "random labels, all at the rate 3e-3", "studies/random_labels/random_labels.csv", "train/accuracy",
        base="run.str.contains('-base-')", full_reset="run.str.contains('-full_reset-')",
        FIRE="run.str.contains('-fire-')",
    ),
    *along(
        "random labels, all at the rate 3e-3", "studies/accumulation/accumulation.curves.csv", "train/accuracy",
        best_other="row == 'random_isometry' and phase < 20",
    ),
    *along(
        "permuted pixels, each seen once", "studies/ranking/ranking_online.csv", "online/accuracy",
        base="row == 'base'", full_reset="row == 'full_reset'", best_other="row == 'parseval'", FIRE="row == 'fire'",
    ),
    *along(
        "SAC, double pendulum", "studies/restarts/sac_rows.curves.csv", "task/return",
        base="row == 'base' and phase >= 2", full_reset="row == 'full_reset' and phase >= 2",
        best_other="row == 'snp' and phase >= 2", FIRE="row == 'fire' and phase >= 2",
    ),
    *along(
        "CIFAR-10 JPEGs, warm start", "studies/figure2_small/figure2_small_a.csv", "test/accuracy",
        base="row == 'base'", full_reset="row == 'full_reset'", best_other="row == 'muon'", FIRE="row == 'fire'",
    ),
]  # fmt: skip

# (words of the README around a difference, with {} where its number stands; file; rows; minus these rows; column)
DIFFERENCES = [
    (
        "is higher by {} when every label is new", "studies/how_far/labels.csv",
        "row == 'half' and setting == 'share 1'", "row == 'fire' and setting == 'share 1'", "online/accuracy",
    ),
    (
        "a [warm start](docs/studies/figure2_small/index.md), on average by {} of accuracy",
        "studies/figure2_small/figure2_small_a.csv", "row == 'fire'", "row == 'base'", "test/accuracy",
    ),
    (
        "in nine of ten seeds, on average by {} (0.009 to 0.030", "studies/how_far/warm_start.csv",
        "row == 'fire'", "row == 'base'", "test/accuracy",
    ),
    (
        "it ended above base by {} (three", "studies/figure2_small/figure2_small_b.curves.csv",
        "row == 'fire' and epoch == 30", "row == 'base' and epoch == 30", "test/accuracy",
    ),
]  # fmt: skip

# (words of the README around a mean, with {} where it stands; file; rows; column)
HALF = "studies/how_far/labels.csv", "setting == 'share 1' and row == 'half'", "online/accuracy"
MEANS = [
    ("is new: {} and FIRE's", *HALF),
    ("and FIRE's {}), worse", HALF[0], HALF[1].replace("half", "fire"), HALF[2]),
    ("(a return of {} and FIRE's", "studies/how_far/cartpole.csv", "row == 'half'", "task/return"),
    ("and FIRE's {} of 500; 95", "studies/how_far/cartpole.csv", "row == 'fire'", "task/return"),
    ("has a training return of {} and", "studies/how_far/cartpole.csv", "row == 'base'", "task/return"),
]


def of_seeds(file: str, rows: str, value: str) -> "pd.Series[float]":
    """The mean of a column over some rows of a file, for each seed (for each run where the file names no seeds)."""
    frame = pd.read_csv(ROOT / "docs" / file)
    chosen = frame.query(rows, engine="python").dropna(subset=value)
    assert len(chosen), f"{file} has no rows with {rows}"
    return chosen.groupby("seed" if "seed" in frame else "run")[value].mean()


def table() -> dict[str, dict[str, str]]:
    """The README's table as plain text: the first cell of a row -> heading -> cell."""
    (text,) = re.findall(r"^\| where \|.*\n(?:\|.*\n)+", README, re.MULTILINE)
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text.replace("**", ""))
    headings, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in plain.splitlines()]
    headings = [heading.rstrip(" ↑↓") for heading in headings]
    return {first: dict(zip(headings[1:], others, strict=True)) for first, *others in lines}


def begins(row: str, label: str) -> bool:
    return re.match(re.escape(label) + "[,:]", row) is not None


def like(number: float, written: str) -> str:
    """A number with as many decimals as another has, and with its separators of thousands."""
    return format(number, f"{',' * (',' in written)}.{len(written.partition('.')[2])}f")


@pytest.mark.parametrize("number", TABLE, ids=lambda number: f"{number.row}, {number.column}")
def test_a_number_of_the_table_is_that_of_its_rows(number: Number) -> None:
    (line,) = [line for row, line in table().items() if begins(row, number.row)]
    written, *seeds = re.findall(r"[\d.,]+", line[number.column])
    seed_means = of_seeds(number.file, number.rows, number.value)
    assert written == like(seed_means.mean(), written)
    assert len(seed_means) == int(seeds[0] if seeds else line["seeds"]), "another number of seeds"


def test_the_table_has_no_number_without_rows() -> None:
    known = [(number.row, number.column) for number in TABLE]
    assert len(known) == len({*known}), "a number is named twice"
    for row, line in table().items():
        for heading, cell in line.items():
            if heading != "seeds" and re.search(r"\d", cell):
                assert any(begins(row, label) and heading == column for label, column in known), (row, heading)


@pytest.mark.parametrize(("words", "file", "rows", "minus", "value"), DIFFERENCES)
def test_a_difference_is_that_of_its_rows(words: str, file: str, rows: str, minus: str, value: str) -> None:
    """It is paired by seed."""
    pattern = r"([\d.]*\d)".join(re.escape(part) for part in words.split("{}"))
    (written,) = re.findall(pattern, " ".join(README.split()))
    difference = (of_seeds(file, rows, value) - of_seeds(file, minus, value)).mean()
    assert written == like(difference, written)


@pytest.mark.parametrize(("words", "file", "rows", "value"), MEANS)
def test_a_mean_in_the_text_is_that_of_its_rows(words: str, file: str, rows: str, value: str) -> None:
    pattern = r"([\d.]*\d)".join(re.escape(part) for part in words.split("{}"))
    (written,) = re.findall(pattern, " ".join(README.split()))
    assert written == like(of_seeds(file, rows, value).mean(), written)
