"""The table of a search: a csv file with a row for each trial."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.config.errors import ConfigError
from harness.run import provenance
from harness.run.files import content_of, reading, write_atomically
from harness.run.lock import Lock

ROUNDING = 1e-4  # how far the score of a row may be from the mean of its seeds, relative to it beyond 1


@dataclass(frozen=True)
class Trial:
    """One choice of options for a method, and the scores of its runs.

    Attributes:
        setting: digest of everything that the trials of one search have in common.
        method: name of the method; in a chain the names joined by +.
        number: number of the trial among the method's; trial 0 has the defaults.
        options: options as on the command line, separated by spaces.
        scores: score of each seed; NaN if the run diverged.
    """

    setting: str
    method: str
    number: int
    options: str
    scores: tuple[float, ...]

    @property
    def score(self) -> float:
        """The mean score over seeds; NaN if a seed diverged."""
        return math.fsum(self.scores) / len(self.scores)


def columns(seeds: Sequence[int]) -> list[str]:
    """Return the names of the table's columns, in order."""
    return ["setting", "method", "trial", "options", "score", *(f"seed {seed}" for seed in seeds)]


def read_table(path: Path, setting: str, method: str, seeds: Sequence[int]) -> dict[int, Trial]:
    """Return the trials of a method in a table by their numbers; empty if there is no table.

    Raises:
        ConfigError: the table belongs to another setting or other seeds, is damaged, or is no table of a search.
        TrainingError: it cannot be read at the moment.
    """
    with reading(path):
        content = content_of(path)
    if content is None:
        return {}
    try:
        rows = _rows_of(content, path, columns(seeds))
        if others := {row["setting"] for row in rows} - {setting}:
            raise ConfigError(
                f"table={path} is a search of other options ({others.pop()}, not {setting}): name another table"
            )
        trials = {}
        for row in rows:
            if row["method"] == method:
                number = int(row["trial"])
                scores = tuple(float(row[f"seed {seed}"]) for seed in seeds)
                trial = Trial(setting, method, number, row["options"], scores)
                if number in trials:
                    raise ValueError(f"it has two rows of trial {number} of {method}")
                if abs(float(row["score"]) - trial.score) > ROUNDING * max(1.0, abs(trial.score)):
                    raise ValueError(f"trial {number} of {method} has a score that is not the mean of its seeds")
                trials[number] = trial
        return trials
    except ConfigError:
        raise
    except (csv.Error, ValueError, TypeError) as error:  # a line that was cut short has None in its last columns
        raise ConfigError(f"table={path} is damaged, or no table of a search: name another ({error})") from None


def _rows_of(content: bytes, path: Path, names: list[str]) -> list[dict[str, str]]:
    """Return the rows of a table from its content; it must have exactly the columns `names`. The path is for errors."""
    reader = csv.DictReader(io.StringIO(content.decode("utf-8"), newline=""))
    if reader.fieldnames != names:
        raise ConfigError(f"table={path} has not the columns of these seeds ({', '.join(names)})")
    return list(reader)


def append(path: Path, trial: Trial, seeds: Sequence[int], program: str) -> None:
    """Add a trial to the table and its provenance to the file beside it; the table is created if there is none.

    The table is replaced atomically, and a lock lets two searches add rows to it at the same time. A trial that the
    other search has added meanwhile stays as it is.

    Args:
        path: the csv file.
        trial: the trial, with a score for each seed.
        seeds: seeds of the search.
        program: name of the program that trained the runs.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    values = [
        trial.setting,
        trial.method,
        trial.number,
        trial.options,
        f"{trial.score:.5f}",
        *(repr(score) for score in trial.scores),  # all digits, so that a resumed search compares the same numbers
    ]
    with Lock(path.with_name(f".{path.name}.lock")):
        is_new = not path.exists()
        rows_so_far = "" if is_new else path.read_text(encoding="utf-8")
        if rows_so_far and not rows_so_far.endswith("\n"):
            rows_so_far += "\n"  # some editors leave out the last one
        text = io.StringIO(rows_so_far)
        text.seek(0, io.SEEK_END)
        writer = csv.writer(text, lineterminator="\n")
        known = csv.reader(io.StringIO(text.getvalue()))
        if [trial.setting, trial.method, str(trial.number)] in [row[:3] for row in known]:
            return
        if is_new:
            writer.writerow(columns(seeds))
            provenance.file_of(path).unlink(missing_ok=True)  # left behind by a removed table
        writer.writerow(values)
        provenance.write(path, provenance.of_process(program), trial.method, more=True)
        write_atomically(path, text.getvalue().encode())


def best(trials: Sequence[Trial], more: bool) -> Trial | None:
    """Return the trial with the best score, the earliest of equal ones; None if all diverged.

    Args:
        trials: in the order of their numbers.
        more: whether a higher score is better.
    """
    finite = [trial for trial in trials if math.isfinite(trial.score)]
    return max(finite, key=lambda trial: trial.score if more else -trial.score, default=None)
