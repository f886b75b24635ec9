"""Numbers in the text are those of the tables."""

import json

import pytest

from analysis import numbers
from harness.run import NUMERICS, provenance
from tests.zygote import ROOT


def test_a_stale_number_is_found_and_written_anew(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(numbers, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    table = "| method | final |\n|---|---|\n| FIRE | 0.{} [0.61, 0.82] (p<0.001) |\n"
    (tmp_path / "docs/a.md").write_text(f"# One\n\n{table.format('713')}\n## Two\n\n{table.format('9')}")
    text = "ends at <!--=a.md; FIRE; final; .2f-->0.70<!--/--> and <!--=a.md#Two; FIRE; final; .1f-->0.9<!--/-->"
    new, wrong = numbers.renewed(text)
    assert new == text.replace("0.70", "0.71")
    assert wrong == ["a.md; FIRE; final; .2f: 0.70 is 0.71 now"]
    parts = {"low": "0.61", "high": "0.82", "p": "0.00"}
    assert {part: numbers.value(f"a.md; FIRE; final; {part}; .2f") for part in parts} == parts


def test_a_mark_at_the_beginning_of_a_line_is_named() -> None:
    """Markdown takes such a line for HTML and ends the paragraph before it."""
    mark = "<!--=results/digits.md; Base; final; .2f-->0.67<!--/-->"
    assert numbers.renewed(f"base has {mark}")[1] == []
    assert "a line begins with a mark" in numbers.renewed(f"base has\n  {mark} and")[1][0]


def test_numbers_from_committed_rows(tmp_path, monkeypatch) -> None:
    """Against numbers worked out by hand: means over seeds of means over rows, pairs, options of runs."""
    monkeypatch.setattr(numbers, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    lines = ["method,seed,task,value", "a,1,1,1", "a,1,2,3", "a,2,1,4", "a,2,2,", "b,1,1,1", "b,2,1,2", "c,3,1,9e3"]
    (tmp_path / "docs/a.csv").write_text("\n".join(lines))
    text = "is <!--=a.csv; method=a & task>=1; value; .2f-->2.99<!--/-->"
    assert numbers.renewed(text) == (text.replace("2.99", "3.00"), [
        "a.csv; method=a & task>=1; value; .2f: 2.99 is 3.00 now"])  # fmt: skip
    for key, wanted in {
        "method=a; value; low; .3f": "2.000",  # of two seeds both
        "method=a; value; high; .3f": "4.000",
        "method=a; value; n; .0f": "2",
        "method=a minus method=b; value; .1f": "1.5",
        "method=*; value; 1e-3 .1f": "3.0",
    }.items():
        assert numbers.value(f"a.csv; {key}") == wanted, key
    (tmp_path / "docs/r.csv").write_text("run,value\none,1\none,3\ntwo,5\n")
    options = {"one": {"seed": 1, "method": {"name": "x"}}, "two": {"seed": 1, "method": {"name": "y"}}}
    (tmp_path / "docs/r.runs.json").write_text(json.dumps({"runs": options}))
    assert numbers.value("r.csv; method.name=x; value; .1f") == "2.0"


def test_a_row_is_in_the_headline_once_its_table_names_its_numerics(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(numbers, "ROOT", tmp_path)
    monkeypatch.setattr(numbers, "OVERVIEW", "results/all.md")
    results = tmp_path / "docs/results"
    (results / "streams").mkdir(parents=True)
    for name in ("a", "b", "streams/c"):
        (results / f"{name}.csv").write_text("method,value\nx,1\n")
        old = {"program": "vision", "numerics": "4 or older", "commit": "abcdefgh"}
        provenance.write(results / f"{name}.csv", old)
    table = "| method | final |\n|---|---|\n| FIRE | 1 |\n"
    (results / "a.md").write_text(table)
    (results / "d.md").write_text(f"<!-- source: results/b.csv -->\n{table}")
    (results / "streams.md").write_text(f"<!-- table: c -->\n{table}<!-- end -->\n")
    marks = {"a": "a.md", "d": "d.md", "c": "streams.md"}
    rows = [f"| [{n}]({f}) | 5 | <!--=results/{f}; FIRE; final; .0f-->1<!--/--> |" for n, f in marks.items()]
    (results / "all.md").write_text("\n".join(["| where | n | FIRE |", "|---|---|---|", *rows, ""]))
    readme, block = tmp_path / "README.md", "<!-- table: headline -->\n<!-- end -->\n"

    def made() -> str:
        numbers.tables_of.cache_clear()
        return numbers.renewed(block, readme)[0]

    assert "[The whole table](docs/results/all.md) has 3 rows of older tables, which do not say" in made()
    assert "| where" not in made()
    frozen = old | {"numerics": NUMERICS["vision"] - 1}  # results stay what they were when numerics go on
    provenance.write(results / "a.csv", frozen | {"numerics": [4, 5]})
    assert "| where" not in made()
    for number, (name, entry) in enumerate(
        [("a", old | {"numerics": NUMERICS["vision"]}), ("b", frozen), ("streams/c", frozen)], 1
    ):
        provenance.write(results / f"{name}.csv", entry)
        assert made().count("docs/results/") - ("whole table" in made()) == number
    assert "| [d](docs/results/d.md) | 5 | 1 |" in made()
    assert "whole table" not in made()
    (results / "all.md").write_text((results / "all.md").read_text().replace("| 5 |", "| 4 |", 1))
    assert "has 1 more rows" in made(), "fewer than five seeds"
    asked = "<!--=results/a.csv; numerics-->x<!--/-->"
    assert f">numerics {NUMERICS['vision']}, commit abcdefg<" in numbers.renewed(asked, readme)[0]


def test_a_number_of_unknown_numerics_in_a_headline_is_named() -> None:
    """The first result of all lies in the repository as it was then."""
    mark = "is <!--=results/gpt_tiny.csv; method.name=fire & seed=0; step; .0f-->0<!--/-->"
    said = "does not say with which numerics"
    (line,) = (line for line in numbers.renewed(mark, ROOT / "README.md")[1] if said in line)
    assert line.startswith("results/gpt_tiny.csv; method.name=fire")
    assert not [line for line in numbers.renewed(mark)[1] if said in line], "other pages may have it"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("results/vision/bfloat16.csv; precision=int8; final; .2f", "no row of bfloat16.csv has precision=int8"),
        ("results/vision/bfloat16.csv; speed=1; final; .2f", "'speed=1' is no condition"),
        ("results/vision/bfloat16.csv; precision=bfloat16; final; mode; .2f", "mode is no part of rows"),
        ("b.md; FIRE; final; .2f", "there is no docs/b.md"),
        ("results/digits.md; FIER; final; .2f", "no table has this row and column"),
        ("results/digits.md; FIRE", "PAGE; ROW; COLUMN"),
        ("results/digits.md; Base; vs Base; .2f", "the cell is '–'"),
    ],
)
def test_a_mark_that_asks_for_nothing_is_named(key: str, message: str) -> None:
    assert message in numbers.renewed(f"is <!--={key}-->1<!--/-->")[1][0]
