"""The table of a search: a row for each trial."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.config.errors import ConfigError
from harness.run import provenance
from harness.run.checkpoint import write_atomically
from harness.run.lock import Lock


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
        ConfigError: the table is that of another setting or of other seeds, or no table of a search.
    """
    if not path.exists():
        return {}
    try:
        rows = _read_rows(path, columns(seeds))
        if others := {row["setting"] for row in rows} - {setting}:
            raise ConfigError(
                f"table={path} is a search of other options ({others.pop()}, not {setting}): name another table"
            )
        numbered = {int(row["trial"]): row for row in rows if row["method"] == method}
        return {
            number: Trial(setting, method, number, row["options"], tuple(float(row[f"seed {s}"]) for s in seeds))
            for number, row in numbered.items()
        }
    except ConfigError:
        raise
    except (csv.Error, ValueError, TypeError) as error:  # a line that was cut short has None in its last columns
        raise ConfigError(f"table={path} is damaged, or no table of a search: name another ({error})") from None


def _read_rows(path: Path, names: list[str]) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != names:
            raise ConfigError(f"table={path} has not the columns of these seeds ({', '.join(names)})")
        return list(reader)


def append(path: Path, trial: Trial, seeds: Sequence[int], program: str) -> None:
    """Add a row, with its provenance, and the table if there is none. `program` trained it.

    The file is the old one or the new one, whenever this process is killed; another search may add rows beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    values = [
        trial.setting,
        trial.method,
        trial.number,
        trial.options,
        f"{trial.score:.5f}",
        *(repr(score) for score in trial.scores),  # whole, so that a search which goes on compares the same numbers
    ]
    with Lock(path.with_name(f".{path.name}.lock")):
        new = not path.exists()
        text = io.StringIO("" if new else path.read_text(encoding="utf-8"))
        text.seek(0, io.SEEK_END)
        writer = csv.writer(text, lineterminator="\n")
        if new:
            writer.writerow(columns(seeds))
            provenance.file_of(path).unlink(missing_ok=True)  # a search of before left it
        writer.writerow(values)
        provenance.write(path, provenance.of_process(program), trial.method, more=True)
        write_atomically(path, text.getvalue().encode())


def best(trials: Sequence[Trial], more: bool) -> Trial | None:
    """The trial of the best score, the earliest of equal ones; None if all diverged. `more`: more is better."""
    known = [trial for trial in trials if math.isfinite(trial.score)]
    return max(known, key=lambda trial: trial.score if more else -trial.score, default=None)
