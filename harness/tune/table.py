"""The table of a search: a row for each trial."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.config.errors import ConfigError
from harness.run import provenance


@dataclass(frozen=True)
class Trial:
    """One choice of options and what came of it.

    Attributes:
        setting: digest of all that the trials of one search have in common.
        method: name; of a chain, those of its parts joined by +.
        number: of the method's trials, from 0, which is the defaults.
        options: as on the command line, apart by spaces.
        scores: of each seed; NaN where it diverged.
    """

    setting: str
    method: str
    number: int
    options: str
    scores: tuple[float, ...]

    @property
    def score(self) -> float:
        """The mean; NaN if a seed diverged."""
        return math.fsum(self.scores) / len(self.scores)


def columns(seeds: Sequence[int]) -> list[str]:
    """Of the table, in order."""
    return ["setting", "method", "trial", "options", "score", *(f"seed {seed}" for seed in seeds)]


def read_table(path: Path, setting: str, method: str, seeds: Sequence[int]) -> dict[int, Trial]:
    """The trials of a method that a table has, by number; none if there is no table.

    Raises:
        ConfigError: the table is that of another setting, or of other seeds.
    """
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != columns(seeds):
            raise ConfigError(f"table={path} has not the columns of these seeds ({', '.join(columns(seeds))})")
        rows = list(reader)
    if others := {row["setting"] for row in rows} - {setting}:
        raise ConfigError(
            f"table={path} is a search of other options ({others.pop()}, not {setting}): name another table"
        )
    found = {}
    for row in rows:
        if row["method"] == method:
            scores = tuple(float(row[f"seed {seed}"]) for seed in seeds)
            found[int(row["trial"])] = Trial(setting, method, int(row["trial"]), row["options"], scores)
    return found


def append(path: Path, trial: Trial, seeds: Sequence[int], program: str) -> None:
    """Add a row, with its provenance, and the table if there is none. `program` trained it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = [
        trial.setting,
        trial.method,
        trial.number,
        trial.options,
        *(f"{x:.5f}" for x in (trial.score, *trial.scores)),
    ]
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(columns(seeds))
        writer.writerow(values)
    if new:  # a search of before left it
        provenance.file_of(path).unlink(missing_ok=True)
    provenance.write(path, provenance.of_process(program), trial.method, more=True)


def best(trials: Sequence[Trial], more: bool) -> Trial | None:
    """The trial of the best score, the earliest of equal ones; None if all diverged. `more`: more is better."""
    known = [trial for trial in trials if math.isfinite(trial.score)]
    return max(known, key=lambda trial: trial.score if more else -trial.score, default=None)
