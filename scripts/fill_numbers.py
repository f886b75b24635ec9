"""Numbers in the text of the documentation, taken from its tables, which are made from committed results.

    python scripts/fill_numbers.py            write the numbers anew
    python scripts/fill_numbers.py --check    name those that are stale, and exit with 1 if there are any

A number stands between marks that nobody sees: `<!--=PAGE; ROW; COLUMN; FORMAT-->0.90<!--/-->`. PAGE is below docs/,
ROW the text of the first column, COLUMN the heading; the first table of the page that has both is meant, or with
`PAGE#heading` the first below that heading (or bold line). FORMAT is Python's, such as .2f or +.3f; `100 .1f` takes a
hundred times the number. The number is a cell's first one; with `low`, `high`, `n`, `d` or `p` before the format it is
that part of a cell such as `+0.04 [0.02, 0.06] (n=20, d=1.2, p=0.003)`. That the tables are those of the committed
results is tested apart (tests/analysis/test_small_results.py and the others).
"""

import argparse
import functools
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARK = re.compile(r"(<!--=([^>]*?)-->)(.*?)(<!--/-->)", re.S)
NUMBER = r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
PARTS = {
    "low": rf"\[({NUMBER}),", "high": rf"\[{NUMBER}, ({NUMBER})\]", "n": r"n=(\d+)", "d": rf"d=({NUMBER})",
    "p": rf"p=<?({NUMBER})",
}  # fmt: skip
Table = dict[tuple[str, str], str]  # (row, column) -> cell


class StaleError(Exception):
    """A mark that asks for something that is not there."""


@functools.cache
def tables_of(page: Path) -> list[tuple[str, Table]]:
    """The tables of a page in their order, each with the heading above it."""
    found: list[tuple[str, Table]] = []
    heading, columns = "", list[str]()
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if line.startswith("#") or re.fullmatch(r"\*\*.*\*\*", line):
            heading = line.strip("#* ")
        if not cells:
            columns = []
        elif not columns:
            columns = cells
            found.append((heading, {}))
        elif set(line) - set("|-: "):
            found[-1][1].update({(cells[0], column): cell for column, cell in zip(columns, cells, strict=False)})
    return found


def value(key: str) -> str:
    """What stands in the place of a mark.

    Raises:
        StaleError: there is no such page, cell or part.
    """
    where, *rest = [part.strip() for part in key.split(";")]
    if len(rest) not in (3, 4):
        raise StaleError(f"{key}: PAGE; ROW; COLUMN; [PART;] FORMAT")
    row, column, part, form = rest if len(rest) == 4 else [*rest[:2], "", rest[2]]
    name, _, heading = where.partition("#")
    page = ROOT / "docs" / name
    if not page.is_file():
        raise StaleError(f"{key}: there is no docs/{name}")
    for above, table in tables_of(page):
        if (not heading or above == heading) and (row, column) in table:
            found = re.search(PARTS[part] if part else f"({NUMBER})", table[row, column])
            if found is None:
                raise StaleError(f"{key}: the cell is {table[row, column]!r}")
            times, _, form = form.rpartition(" ")
            return format(float(found[1]) * float(times or 1), form)
    raise StaleError(f"{key}: no table has this row and column")


def renewed(text: str) -> tuple[str, list[str]]:
    """A page with its numbers written anew, and a line for each that was another or cannot be found."""
    wrong: list[str] = []

    def one(match: re.Match[str]) -> str:
        try:
            now = value(match[2])
        except StaleError as error:
            wrong.append(str(error))
            return match[0]
        if now != match[3]:
            wrong.append(f"{match[2].strip()}: {match[3]} is {now} now")
        return f"{match[1]}{now}{match[4]}"

    return MARK.sub(one, text), wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check, count = parser.parse_args().check, 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text, wrong = renewed(page.read_text(encoding="utf-8"))
        for line in wrong:
            print(f"{page.relative_to(ROOT)}: {line}")
        count += len(wrong)
        if not check:
            page.write_text(text, encoding="utf-8")
    return int(check and count > 0)


if __name__ == "__main__":
    sys.exit(main())
