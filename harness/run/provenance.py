"""Where the numbers of a committed table come from: `name.provenance.json` beside `name.csv`.

The file holds an entry for each part of the table (a method, where methods are written one at a time), or one for all
of it, under `*`:

    {"*": {"program": "vision", "numerics": 5, "commit": "1a2c...", "command": "python -m vision.train ...",
           "cpu": "AMD EPYC", "precision": "float32"}}

A value that differs between the runs of a part is a list. `numerics` of a table from before this file existed is text,
such as "4 or older", and its commit is the one that brought the table into the repository.
"""

import json
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.run import NUMERICS

ALL = "*"
FIELDS = ("program", "numerics", "commit", "command", "cpu", "precision")
PRIVATE = re.compile(r"(paths|cache|checkpoint|tracker|progress|hydra)[.=]")  # where and for whom runs are kept
FOLDERS = re.compile(r"(?<![\w.-])(?:~|[A-Za-z]:)?[/\\](?:[^/\\=,]+[/\\])*")  # of paths from the root or from home
COMMIT = re.compile(r"[0-9a-f]{40}(-dirty)?")
OF_A_START = ("time", "command", "step", "earlier")  # what two starts in one environment differ in
Entry = dict[str, Any]


def of_process(program: str | None, precision: str = "float32") -> Entry:
    """The entry of a table that this process computes; `program` is None where nothing is trained."""
    from harness.run.environment import environment  # here: it imports torch, which figures do not need

    numerics = NUMERICS[program] if program else None
    return of_run({"program": program, "numerics": numerics, "precision": precision}, environment())


def of_run(identity: Mapping[str, Any], about: Mapping[str, Any], device: str = "cpu") -> Entry:
    """The entry of a run, from what its identity.json (`run`, and `execution`'s device) and its env.json hold."""
    command, hardware = about.get("command"), about.get("processor")
    if device == "cuda":
        hardware = f"{about['gpus'][0]} beside {hardware}"
    return {
        "program": identity.get("program"),
        "numerics": identity.get("numerics"),
        "commit": about.get("git"),
        "command": shown(command) if command else None,
        "cpu": hardware,
        "precision": identity.get("precision", "float32"),
    }


def starts(about: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The environments that an env.json holds, one for each start of its run, oldest first."""
    newest = {key: value for key, value in about.items() if key != "earlier"}
    return [*about.get("earlier", []), newest]


def without_repeats(environments: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Environments of starts, less those that are as the one before; the first of them stays, with the first step."""
    different: list[Mapping[str, Any]] = []
    for about in environments:
        if different and not changes(different[-1], about):
            first = different[-1]
            different[-1] = {**first, "step": min(first.get("step", 0), about.get("step", 0))}
        else:
            different.append(about)
    return different


def that_trained(about: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The environments of an env.json that wrote a run's rows, less those whose rows a later start cut off."""
    trained: list[Mapping[str, Any]] = []
    for start in starts(about):
        trained = [other for other in trained if other.get("step", 0) < start.get("step", 0)]
        trained.append(start)
    return trained


def changes(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """In which parts two environments differ, such as `git 1a2c3d4 -> 5e6f7a8`; empty if they are alike."""

    def parts(about: Mapping[str, Any]) -> dict[str, Any]:
        plain = {key: value for key, value in about.items() if key not in OF_A_START}
        return plain | dict(plain.pop("packages", None) or {})

    before, after = parts(one), parts(other)
    return ", ".join(
        f"{key} {_short(before.get(key))} -> {_short(after.get(key))}"
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    )


def _short(value: Any) -> str:
    text = "unknown" if value is None else str(value)
    return text[:7] + text[40:] if COMMIT.fullmatch(text) else text


def of_folders(folders: Iterable[Path]) -> Entry:
    """The common entry of run folders."""
    entries = []
    for folder in folders:
        identity, about = (json.loads((folder / name).read_text()) for name in ("identity.json", "env.json"))
        device = identity["execution"].get("device", "cpu")
        entries += [of_run(identity["run"], environment, device) for environment in that_trained(about)]
    return joined(entries)


def joined(entries: Sequence[Entry]) -> Entry:
    """One entry for several; what differs becomes a list."""
    found: Entry = {}
    for field in FIELDS:
        values: list[Any] = []
        for entry in entries:
            value = entry.get(field)
            values += [one for one in (value if isinstance(value, list) else [value]) if one not in values]
        found[field] = values[0] if len(values) == 1 else values
    return found


def shown(command: Sequence[str]) -> str:
    """A command line without the options that say where runs are kept, and without the folders of absolute paths."""
    return shlex.join(FOLDERS.sub("", argument) for argument in command if not PRIVATE.match(argument))


def file_of(table: Path) -> Path:
    """The file beside a table."""
    return table.with_suffix(".provenance.json")


def read(table: Path) -> dict[str, Entry]:
    """The entries of a table by part; none if it has no file."""
    file = file_of(table)
    found: dict[str, Entry] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return found


def write(table: Path, entry: Entry, part: str = ALL, more: bool = False) -> None:
    """Put an entry beside a table.

    Args:
        table: the csv file.
        entry: of the rows that were just written.
        part: which rows of the table; those of all others keep their entries.
        more: the rows were added to those that the part had, so that both entries hold.
    """
    from harness.run.checkpoint import write_atomically  # here: it imports torch, which figures do not need

    entries = {} if part == ALL and not more else read(table)
    if more and part in entries:
        entry = joined([entries[part], entry])
    entries[part] = entry
    text = json.dumps(dict(sorted(entries.items())), indent=1, ensure_ascii=False)
    write_atomically(file_of(table), f"{text}\n".encode())


if __name__ == "__main__":  # TABLE COMMAND ...: a table that a tool of the library has just written
    write(Path(sys.argv[1]), of_process(None) | {"command": shown(sys.argv[2:])})
