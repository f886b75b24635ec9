"""Numbers in the text are those of the tables."""

import subprocess
import sys

import pytest

from scripts import fill_numbers as numbers
from tests.zygote import ROOT


def test_no_number_of_the_documentation_is_stale() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/fill_numbers.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    marks = sum(path.read_text().count("<!--=") for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    assert marks > 10


def test_a_stale_number_is_found_and_written_anew(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(numbers, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    table = "| method | final |\n|---|---|\n| FIRE | 0.{} [0.61, 0.82] (n=20, d=-1.5, p=<0.001) |\n"
    (tmp_path / "docs/a.md").write_text(f"# One\n\n{table.format('713')}\n## Two\n\n{table.format('9')}")
    text = "ends at <!--=a.md; FIRE; final; .2f-->0.70<!--/--> and <!--=a.md#Two; FIRE; final; .1f-->0.9<!--/-->"
    new, wrong = numbers.renewed(text)
    assert new == text.replace("0.70", "0.71")
    assert wrong == ["a.md; FIRE; final; .2f: 0.70 is 0.71 now"]
    parts = {"low": "0.61", "high": "0.82", "n": "20.00", "d": "-1.50", "p": "0.00"}
    assert {part: numbers.value(f"a.md; FIRE; final; {part}; .2f") for part in parts} == parts


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("b.md; FIRE; final; .2f", "there is no docs/b.md"),
        ("results/digits.md; FIER; final; .2f", "no table has this row and column"),
        ("results/digits.md; FIRE", "PAGE; ROW; COLUMN"),
        ("results/digits.md; Base; vs Base; .2f", "the cell is '–'"),
    ],
)
def test_a_mark_that_asks_for_nothing_is_named(key: str, message: str) -> None:
    assert message in numbers.renewed(f"<!--={key}-->1<!--/-->")[1][0]
