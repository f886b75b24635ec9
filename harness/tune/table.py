"""The table of a search, and the table in conf/tuned that its best trials go to."""

import csv
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from harness.config.errors import ConfigError
from harness.run import provenance

HEADER = """\
# @package _global_
# The best options of each method in a search on a stream, by `python -m vision.tune`; docs/results/plasticity has the
# whole searches. Taken only where they are named: tuned/searched=random_labels_digits_fire.
"""


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


def write_winner(path: Path, entry: str, options: str, lr: float, chain: Sequence[str] = ()) -> None:
    """Write a method's best options into a table of tuned values, beside the entries that it has.

    Args:
        path: the table.
        entry: name of the entry.
        options: as on the command line.
        lr: of the setting, which the entry has where the options have none.
        chain: the parts of the method, if it is a chain.
    """
    table: dict[str, Any] = {}
    if path.exists():
        table = OmegaConf.to_container(OmegaConf.load(path)) or {}  # type: ignore[assignment]
    parts: Any = [{"method": {"of": list(chain)}}] if chain else []
    values = OmegaConf.merge(*parts, OmegaConf.from_dotlist([f"lr={lr}", *options.split()]))
    table[entry] = OmegaConf.to_container(values)
    written = path.with_name(f".{path.name}.new")
    path.parent.mkdir(parents=True, exist_ok=True)
    written.write_text(HEADER + "".join(f"{name}: {flow(table[name])}\n" for name in sorted(table)))
    os.replace(written, path)


def flow(values: dict[str, Any]) -> str:
    """A mapping on one line of yaml."""
    return yaml.safe_dump(values, default_flow_style=True, width=100_000, sort_keys=False).strip()
