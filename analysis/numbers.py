"""Numbers in the text of the documentation, taken from its tables, which are made from committed results.

`python analysis/make_tables.py` writes them anew, with `--check` it names those that are stale. A number stands between
marks that nobody sees: `<!--=PAGE; ROW; COLUMN; FORMAT-->0.90<!--/-->`. PAGE is below docs/, ROW the text of the first
column, COLUMN the heading; the first table of the page that has both is meant, or with `PAGE#heading` the first below
that heading (or bold line). FORMAT is Python's, such as .2f or +.3f; `100 .1f` takes a hundred times the number. The
number is a cell's first one; with `low`, `high`, `n` or `p` before the format it is that part of a cell such as
`+0.04 [0.02, 0.06] (p=0.003)`. That the tables are those of the committed results is tested apart.

PAGE may be a committed `.csv` as well, for numbers that no table has. ROW then says which rows, such as
`method=base & task>=8` (a column of the file or, beside `name.runs.json`, an option of the run; `*` matches any text),
COLUMN which numbers; the mean over seeds is written, or another part: `low` and `high` (95 % t-interval), `n`.
`ROW minus ROW` is the difference, paired by seed.

`<!--=CSV; numerics-->` says with which numerics and at which commit a `.csv` was made. Results are frozen: a later
version of the numerics does not make them untrue, and they are not run again. The numbers of the HEADLINES stand on
files that name their version of the numerics, or the check fails: between `<!-- table: headline -->` and `<!-- end -->`
they show the first columns of those rows of OVERVIEW of which this is so, which have at least five seeds and of whose
metric more is better, at most ten, and count the others. The file of a table is `page.csv` beside `page.md`, with `<!--
source: FILE -->` above it FILE (below docs/), and within `<!-- table: name -->` `page/name.csv`.
"""

import functools
import json
import operator
import os
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pandas as pd

from analysis.differences import flatten
from analysis.estimates import mean
from harness.run import provenance

ROOT = Path(__file__).resolve().parent.parent
HEADLINES = ("README.md", "docs/index.md")
MARK = re.compile(r"(<!--=(.*?)-->)(.*?)(<!--/-->)", re.S)
BEGINS = re.compile(r"^[ ]*<!--=(.*?)-->", re.M)
OVERVIEW = "results/overview.md"
BLOCK = re.compile(r"(<!-- table: headline -->\n)(.*?)(<!-- end -->)", re.S)
SHOWN = 6  # columns of OVERVIEW: where, n, base, full reset, random isometry, FIRE
MOST = 10  # rows
FEWEST = 5  # seeds
SOURCE = re.compile(r"<!-- (?:(source|table): (.+?)|end) -->")
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#]+)")
NUMBER = r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
CONDITION = re.compile(r"([^=<>]+?)\s*(>=|<=|=)\s*(.*)")
PARTS = {
    "low": rf"\[({NUMBER}),", "high": rf"\[{NUMBER}, ({NUMBER})\]", "p": rf"p[=<]({NUMBER})",
}  # fmt: skip
Table = dict[tuple[str, str], str]  # (row, column) -> cell


class StaleError(Exception):
    """A mark that asks for something that is not there."""


@functools.cache
def tables_of(page: Path) -> list[tuple[str, Table, Path]]:
    """The tables of a page in their order, each with the heading above it and the file that it is made from."""
    found: list[tuple[str, Table, Path]] = []
    heading, columns = "", list[str]()
    of_page = source = page.with_suffix(".csv")
    for line in page.read_text(encoding="utf-8").splitlines():
        if comment := SOURCE.fullmatch(line.strip()):
            if comment[1] == "source":
                of_page = ROOT / "docs" / comment[2]
            own = page.with_suffix("") / f"{of_table(comment[2])}.csv" if comment[1] == "table" else of_page
            source = own if own.is_file() else of_page
        line = re.sub(r"<!--.*?-->", "", line)  # a cell may hold a mark itself
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if line.startswith("#") or re.fullmatch(r"\*\*.*\*\*", line):
            heading = line.strip("#* ")
        if not cells:
            columns = []
        elif not columns:
            columns = cells
            found.append((heading, {}, source))
        elif set(line) - set("|-: "):
            found[-1][1].update({(cells[0], column): cell for column, cell in zip(columns, cells, strict=False)})
    return found


def of_table(name: str) -> str:
    """The file of a table: a page has several of one file, such as `state continual_cartpole`."""
    kind, _, rest = name.rpartition(" ")
    return f"search_{rest}" if kind == "chosen" else rest


@functools.cache
def rows_of(file: Path) -> pd.DataFrame:
    """The rows of a `.csv` as text, each with the options of its run where `name.runs.json` has them."""
    rows = pd.read_csv(file, dtype=object, keep_default_na=False)
    about = file.with_suffix(".runs.json")
    if about.is_file():
        runs = json.loads(about.read_text(encoding="utf-8"))["runs"]
        options = {name: {option: str(value) for option, value in flatten(run)} for name, run in runs.items()}
        table = pd.DataFrame.from_dict(options, orient="index", dtype=object).fillna("")
        rows = rows.join(table.drop(columns=[*rows], errors="ignore"), on="run")
    return rows


@functools.cache
def met(file: Path, condition: str) -> "pd.Series[bool]":
    """Which rows of a `.csv` meet a condition.

    Raises:
        StaleError: it is none on a column.
    """
    rows, parts = rows_of(file), CONDITION.fullmatch(condition)
    if parts is None or parts[1] not in rows:
        raise StaleError(f"{condition!r} is no condition on a column")
    name, sign, wanted = parts.groups()
    if sign == "=":
        return rows[name].map(lambda value: fnmatchcase(value, wanted)) if "*" in wanted else rows[name] == wanted
    numbers = pd.to_numeric(rows[name])
    return numbers >= float(wanted) if sign == ">=" else numbers <= float(wanted)


def by_seed(file: Path, conditions: str, column: str, unit: str = "seed") -> pd.Series:
    """The mean of a column over the rows that are asked for, for each seed or run (each row where there are none).

    Raises:
        StaleError: no row is left, or there is no such column.
    """
    rows = rows_of(file)
    asked = functools.reduce(operator.and_, (met(file, condition.strip()) for condition in conditions.split("&")))
    values = pd.to_numeric(rows.loc[asked, column]).dropna() if column in rows else pd.Series(dtype=float)
    if not len(values):
        raise StaleError(f"no row of {file.name} has {conditions} and a number under {column}")
    return values.groupby(rows.get(unit, values.index)).mean()


def from_rows(file: Path, row: str, column: str, part: str) -> float:
    """A number from the rows of a `.csv`."""
    first, minus, second = row.partition(" minus ")
    unit = "run" if not minus and file.with_suffix(".runs.json").is_file() else "seed"
    numbers = by_seed(file, first, column, unit)
    if minus:
        numbers = (numbers - by_seed(file, second, column)).dropna()
    if part not in ("", "low", "high", "n"):
        raise StaleError(f"{part} is no part of rows; they have low, high, n")
    return float(getattr(mean(numbers.to_numpy()), part or "mean"))


def written(number: float, form: str) -> str:
    return re.sub(r"e([-+])0(?=\d)", r"e\1", format(number, form))  # 5e-6, where Python writes 5e-06


def value(key: str) -> str:
    """What stands in the place of a mark.

    Raises:
        StaleError: there is no such page, cell or part.
    """
    return looked_up(key)[0]


def names_numerics(key: str) -> bool:
    """Whether the file of a mark's number names its version of the numerics, or the mark asks for that version."""
    source = looked_up(key)[1]
    return source is None or provenance.names_numerics(source)


def looked_up(key: str) -> tuple[str, Path | None]:
    """What stands in the place of a mark, and the committed file that it comes from.

    Raises:
        StaleError: there is no such page, cell or part.
    """
    where, *rest = [part.strip() for part in key.split(";")]
    name, _, heading = where.partition("#")
    page = ROOT / "docs" / name.strip()
    if not page.is_file():
        raise StaleError(f"{key}: there is no docs/{name}")
    if rest == ["numerics"]:
        return provenance.in_words(page), None
    if len(rest) not in (3, 4):
        raise StaleError(f"{key}: PAGE; ROW; COLUMN; [PART;] FORMAT")
    row, column, part, form = rest if len(rest) == 4 else [*rest[:2], "", rest[2]]
    times, _, form = form.rpartition(" ")
    if page.suffix == ".csv":
        return written(from_rows(page, row, column, part) * float(times or 1), form), page
    tables = [(table, source) for above, table, source in tables_of(page) if not heading or above == heading]
    cell, source = next(
        ((table[row, column], source) for table, source in tables if (row, column) in table), ("", page)
    )
    found = re.search(PARTS[part] if part else f"({NUMBER})", re.sub(r"(?<=\d),(?=\d{3}\b)", "", cell))
    if found is None:
        raise StaleError(f"{key}: no table has this row and column with such a number; the cell is {cell!r}")
    return written(float(found[1]) * float(times or 1), form), source


def headline(target: Path) -> str:
    """The head of OVERVIEW for another page: plain numbers, and how many rows are not shown."""
    page = ROOT / "docs" / OVERVIEW
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]

    def row(line: str) -> str:
        plain = re.sub(r"<!--.*?-->", "", line)
        moved = LINK.sub(lambda link: os.path.relpath(page.parent / link[1], target.parent), plain)
        return "|".join(moved.split("|")[: SHOWN + 1]) + "|"

    shown: list[str] = []
    old = other = 0
    for line in lines[2:]:
        if not all(names_numerics(key) for _, key, _, _ in MARK.findall(line)):
            old += 1
        elif "less is better" in line or seeds_of(line) < FEWEST or len(shown) == MOST:
            other += 1
        else:
            shown.append(row(line))
    head = ["| where | n | base ↑ | full reset ↑ | random isometry ↑ | FIRE ↑ |", row(lines[1])]
    text = "\n".join(["", *head, *shown, "", ""]) if shown else "\n"
    where = os.path.relpath(page, target.parent)
    older = f"{old} rows of older tables, which do not say with which numerics they were made"
    rest = ([f"{other} more rows"] if other else []) + ([older] if old else [])
    return f"{text}[The whole table]({where}) has {' and '.join(rest)}.\n\n" if rest else text


def seeds_of(line: str) -> int:
    """The number of seeds of a row of OVERVIEW, its second column."""
    return int(re.sub(r"<!--.*?-->", "", line).split("|")[2])


def renewed(text: str, page: Path | None = None) -> tuple[str, list[str]]:
    """A page with its numbers written anew, and a line for each that was another or cannot be found.

    Args:
        text: of the page.
        page: if it is one of the HEADLINES, whose numbers must name their numerics.
    """
    before = text
    if page is not None:
        text = BLOCK.sub(lambda block: block[1] + headline(page) + block[3], text)
    wrong = ["the rows of another page have changed"] if text != before else []
    wrong += [f"a line begins with a mark, where markdown ends the paragraph: {key}" for key in BEGINS.findall(text)]

    def one(match: re.Match[str]) -> str:
        try:
            now = value(match[2])
            if page is not None and not names_numerics(match[2]):
                wrong.append(f"{match[2].strip()}: its file does not say with which numerics it was made; take it out")
        except StaleError as error:
            wrong.append(str(error))
            return match[0]
        if now != match[3]:
            wrong.append(f"{match[2].strip()}: {match[3]} is {now} now")
        return f"{match[1]}{now}{match[4]}"

    return MARK.sub(one, text), wrong


def fill(check: bool = False) -> int:
    """Write the numbers of all pages anew, and print which were stale; how many.

    Args:
        check: write nothing.
    """
    count = 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        is_headline = str(page.relative_to(ROOT)) in HEADLINES
        text, wrong = renewed(page.read_text(encoding="utf-8"), page if is_headline else None)
        for line in wrong:
            print(f"{page.relative_to(ROOT)}: {line}")
        count += len(wrong)
        if not check:
            page.write_text(text, encoding="utf-8")
    return count
