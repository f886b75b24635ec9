"""The printer of tables: numbers to the right, text to the left, nothing lost."""

import pytest

from fire_core.text_table import text_table


def test_numbers_are_set_to_the_right_and_text_to_the_left() -> None:
    rows = [("a", "5x3", "12.1", "inf", ""), ("long.name", "100x64", "1.3e+04", "", "yes")]
    assert text_table(("name", "shape", "DfI", "condition", "would benefit"), rows) == (
        "name       shape       DfI  condition  would benefit\n"
        "a          5x3        12.1        inf\n"
        "long.name  100x64  1.3e+04             yes"
    )


def test_one_cell_that_is_no_number_makes_a_column_text() -> None:
    assert text_table(("rank", "n"), [("3 (+2)", "1"), ("10", "10")]) == "rank     n\n3 (+2)   1\n10      10"


def test_a_table_without_rows_is_its_head() -> None:
    assert text_table(("name", "n"), []) == "name  n"


def test_a_row_of_another_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        text_table(("name", "n"), [("a",)])
