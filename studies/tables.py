"""A study's tables: a line for each run that has ended, in csv files with their provenance."""

import csv
import io
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.run import provenance
from harness.run.files import write_atomically

TASKS_SHOWN = 50  # lines of a run in <stream>.tasks.csv at most
Row = dict[str, Any]


@dataclass(frozen=True)
class Key:
    """Identifies the run of a line in a table."""

    setting: str
    row: str
    searched: str  # options that the search tries or has chosen
    length: str  # "prefix" or "full"
    seed: int


class Table:
    """The finished runs of a search or a report; the csv file is read at the start and written after each run.

    Args:
        path: the csv file.
        command: the command that continues the table, for its provenance.
        tasks: whether a second file has the tasks of each run.
    """

    def __init__(self, path: Path, command: str, tasks: bool = False) -> None:
        self.path, self.command = path, command
        self.lines: dict[Key, Row] = {key_of(line): line for line in read_csv(path)}
        self.tasks: dict[Key, list[Row]] | None = None
        if tasks:
            self.tasks = {key: [] for key in self.lines}
            for line in read_csv(self.tasks_path):
                if (key := key_of(line)) in self.tasks:  # after a kill, tasks may stand there of a run without a line
                    self.tasks[key].append(line)

    @property
    def tasks_path(self) -> Path:
        """The file of the runs' tasks."""
        return self.path.with_suffix(".tasks.csv")

    def add(self, key: Key, folder: Path, cpu_seconds: float) -> Row:
        """Add a finished run from its folder, write the files, and return the run's line."""
        entry = provenance.of_folders([folder])
        line = vars(key) | result_of(folder) | {"cpu_seconds": round(cpu_seconds, 1)}
        line |= {name: entry[name] for name in ("cpu", "precision", "commit")}
        self.lines[key] = {name: in_six_digits(value) for name, value in line.items()}  # as a restart reads them
        if self.tasks is not None:
            self.tasks[key] = [vars(key) | task for task in tasks_of(folder)]
        self.write()
        for path in (self.path,) if self.tasks is None else (self.path, self.tasks_path):
            provenance.write(path, entry | {"command": self.command}, more=True)
        return self.lines[key]

    def drop(self, keys: Iterable[Key]) -> None:
        """Remove these runs from the table, so that they will be run again."""
        for key in keys:
            self.lines.pop(key, None)
            if self.tasks is not None:
                self.tasks.pop(key, None)
        self.write()

    def write(self) -> None:
        """Write the files, the table of runs last: a run that is in it counts as done."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.tasks is not None:
            write_csv(self.tasks_path, [line for key in sorted_keys(self.tasks) for line in self.tasks[key]])
        write_csv(self.path, [self.lines[key] for key in sorted_keys(self.lines)])


def sorted_keys(keys: Iterable[Key]) -> list[Key]:
    """Return keys sorted by their values: setting, row, searched, length, seed."""
    return sorted(keys, key=lambda key: tuple(vars(key).values()))


def key_of(line: Row) -> Key:
    """Return the key of a table's line."""
    return Key(line["setting"], line["row"], line["searched"], line["length"], int(line["seed"]))


def has_diverged(line: Row) -> bool:
    """Return whether a line of a table, fresh or read from its file, is of a run that diverged."""
    return line.get("diverged") in (True, "True")


def summary_of(folder: Path) -> Row:
    """Return the summary of a finished run; empty for one that diverged."""
    file = folder / "DONE"
    return {} if not file.exists() else dict(json.loads(file.read_text()))


def logged(folder: Path) -> Iterator[Row]:
    """Yield the rows of a run's metrics.jsonl, in their order."""
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        yield json.loads(line)


def result_of(folder: Path) -> Row:
    """Return a run's numbers for its line: its summary's, and means over boundaries of the old task's numbers."""
    if not (summary := summary_of(folder)):
        return {"diverged": True}
    boundaries = [row for row in logged(folder) if row.get("kind") == "boundary"]
    numbers = {key: value for key, value in summary.items() if isinstance(value, int | float)}
    for name in ("previous_accuracy", "previous_return", "previous_loss", "test_accuracy"):
        for side in ("before", "after"):
            values = [row[f"boundary/{name}_{side}"] for row in boundaries if f"boundary/{name}_{side}" in row]
            if values:
                numbers[f"{name}_{side}"] = statistics.fmean(values)
    return numbers | {"act_seconds": sum(row["method/seconds"] for row in boundaries)}


def tasks_of(folder: Path) -> list[Row]:
    """Return numbers at the ends of a finished run's tasks: of up to `TASKS_SHOWN` evenly spaced ones and the last."""
    if not summary_of(folder):
        return []
    ends: dict[int, Row] = {}
    for row in logged(folder):
        if "kind" not in row:
            ends[row["phase"]] = row
    interval = math.ceil(len(ends) / TASKS_SHOWN)
    shown = [phase for phase in ends if (phase + 1) % interval == 0 or phase == len(ends) - 1]
    names = ("train/accuracy", "test/accuracy", "task/return", "eval/return", "task/loss", "val/loss")
    return [{"task": phase} | {name: ends[phase][name] for name in names if name in ends[phase]} for phase in shown]


def read_csv(path: Path) -> list[Row]:
    """Return the lines of a csv file as texts by column; an empty list if there is no such file."""
    return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []


def write_derived(path: Path, lines: Sequence[Row], sources: Sequence[Path], command: str) -> None:
    """Write a table that is computed from other tables, and its provenance, which is theirs but for the command."""
    write_csv(path, lines)
    entries = [entry for source in sources for entry in provenance.read(source).values()]
    provenance.write(path, provenance.joined(entries) | {"command": command})


def in_six_digits(value: Any) -> Any:
    """Return a float as text with six digits, anything else unchanged."""
    return f"{value:.6g}" if isinstance(value, float) else value


def write_csv(path: Path, lines: Sequence[Row]) -> None:
    """Write a csv file with the columns of all lines; floats have six digits."""
    text = io.StringIO()
    columns = dict.fromkeys(itertools.chain.from_iterable(lines))
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({key: in_six_digits(value) for key, value in line.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.getvalue().encode())
