"""The tables of a study, read again after a kill."""

from pathlib import Path

from studies.tables import Key, Table, write_csv


def test_tasks_of_a_run_without_a_line_are_forgotten(tmp_path: Path) -> None:
    """A kill between the two files leaves the tasks of a run that has no line yet, which then runs again."""
    ended, killed = (Key("", row, "", "full", 201) for row in ("base", "fire"))
    write_csv(tmp_path / "table.csv", [vars(ended)])
    write_csv(tmp_path / "table.tasks.csv", [vars(key) | {"task": 0} for key in (ended, killed)])
    table = Table(tmp_path / "table.csv", "", tasks=True)
    assert table.tasks is not None
    assert table.tasks.keys() == {ended}
