"""Each promise of docs/reliability.md names tests, which are there."""

import re

import pytest

from tests.zygote import ROOT

PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.partition("## Promises")[2].partition("\n## ")[0].splitlines() if line.startswith("| ")]
PROMISES = ROWS[1:]  # the first has the columns' names
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


@pytest.mark.parametrize("row", PROMISES, ids=lambda row: row[2:50])
def test_a_promise_has_tests_that_are_there(row: str) -> None:
    promise, _, tests = (cell.strip() for cell in row.strip("|").split("|"))
    assert promise.endswith(".")
    named = NAMED.findall(tests)
    assert named, f"no test shows: {promise}"
    for file, test in named:
        places = [place for place in (ROOT / "tests").rglob("test_*.py") if str(place).endswith(f"/{file}")]
        assert any(f"def {test}(" in place.read_text() for place in places), f"{file} has no {test}"


def test_there_are_promises() -> None:
    assert len(PROMISES) > 20
