"""Record where the numbers of a committed table come from, in `name.provenance.json` beside `name.csv`.

The file holds an entry for each part of the table (a method, where methods are written one at a time), or one for all
of it, under `*`:

    {"*": {"program": "vision", "numerics": 5, "commit": "1a2c...", "command": "python -m vision.train ...",
           "cpu": "AMD EPYC", "precision": "float32"}}

A value that differs between the runs of a part is a list. `numerics` of a table from before this file existed is text,
such as "4 or older", and its commit is the one that brought the table into the repository.
"""

import json
import logging
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.config.errors import ConfigError
from harness.run import NUMERICS
from harness.run.files import write_atomically

log = logging.getLogger(__name__)
ALL = "*"
FIELDS = ("program", "numerics", "commit", "command", "cpu", "precision")
PRIVATE = re.compile(r"(paths|cache|checkpoint|tracker|progress|hydra)[.=]")  # where and for whom runs are kept
FOLDERS = re.compile(r"(?<![\w.-])(?:~|[A-Za-z]:)?[/\\](?:[^/\\=,]+[/\\])*")  # the folders of an absolute path
COMMIT = re.compile(r"[0-9a-f]{40}(-dirty)?")
OF_A_START = ("time", "command", "step", "earlier")  # these may differ between two starts in one environment
Entry = dict[str, Any]


def of_process(program: str | None, precision: str = "float32") -> Entry:
    """Return the entry of a table that this process computes; `program` is None if nothing is trained."""
    from harness.run.environment import environment  # imported late: it needs torch, which figures do not

    numerics = NUMERICS[program] if program else None
    return of_run({"program": program, "numerics": numerics, "precision": precision}, environment())


def of_run(identity: Mapping[str, Any], environment: Mapping[str, Any], device: str = "cpu") -> Entry:
    """Return the entry of a run.

    Args:
        identity: `run` of its identity.json.
        environment: one start's environment, of its env.json.
        device: `execution.device` of its identity.json.
    """
    command, hardware = environment.get("command"), environment.get("processor")
    if device == "cuda" and (gpus := environment.get("gpus")):
        hardware = f"{gpus[0]} beside {hardware}"
    return {
        "program": identity.get("program"),
        "numerics": identity.get("numerics"),
        "commit": environment.get("git"),
        "command": shown(command) if command else None,
        "cpu": hardware,
        "precision": identity.get("precision", "float32"),
    }


def starts(env_file: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the environments in an env.json, one for each start of its run, oldest first."""
    newest = {key: value for key, value in env_file.items() if key != "earlier"}
    return [*env_file.get("earlier", []), newest]


def without_repeats(environments: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the environments of starts, with successive equal ones merged into the first, with the smallest `step`."""
    distinct: list[Mapping[str, Any]] = []
    for environment in environments:
        if distinct and not changes(distinct[-1], environment):
            first = distinct[-1]
            distinct[-1] = {**first, "step": min(first.get("step", 0), environment.get("step", 0))}
        else:
            distinct.append(environment)
    return distinct


def environments_of_rows(env_file: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the environments of an env.json in which the run's rows were trained, oldest first.

    A start removes the rows from its step on, so earlier starts that began there or later have left no rows.
    """
    with_rows: list[Mapping[str, Any]] = []
    for start in starts(env_file):
        with_rows = [earlier for earlier in with_rows if earlier.get("step", 0) < start.get("step", 0)]
        with_rows.append(start)
    return with_rows


def changes(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> str:
    """Return how two environments differ, such as `git 1a2c3d4 -> 5e6f7a8`; empty if they are alike."""

    def parts(environment: Mapping[str, Any]) -> dict[str, Any]:
        plain = {key: value for key, value in environment.items() if key not in OF_A_START}
        return plain | dict(plain.pop("packages", None) or {})

    before, after = parts(earlier), parts(later)
    perhaps_missing = {"code", *(later.get("packages") or {})}  # older versions have not recorded all of these
    not_compared = {key for key in perhaps_missing if key not in before or key not in after}
    if before.get("git") != after.get("git"):  # which already says that the code is another
        not_compared.add("code")
    compared = [key for key in {**before, **after} if key not in not_compared]
    return ", ".join(
        f"{key} {_short(before.get(key))} -> {_short(after.get(key))}"
        for key in compared
        if before.get(key) != after.get(key)
    )


def _short(value: Any) -> str:
    """Return a value as text, with a commit cut to seven digits."""
    text = "unknown" if value is None else str(value)
    return text[:7] + text[40:] if COMMIT.fullmatch(text) else text


def of_folders(folders: Iterable[Path]) -> Entry:
    """Return the common entry of run folders."""
    entries = []
    for folder in folders:
        identity = json.loads((folder / "identity.json").read_text())
        env_file = json.loads((folder / "env.json").read_text())
        device = identity["execution"].get("device", "cpu")
        entries += [of_run(identity["run"], environment, device) for environment in environments_of_rows(env_file)]
    return joined(entries)


def joined(entries: Sequence[Entry]) -> Entry:
    """Return one entry for several; a field in which they differ becomes a list of the distinct values."""
    common: Entry = {}
    for field in FIELDS:
        distinct: list[Any] = []
        for entry in entries:
            value = entry.get(field)
            for element in value if isinstance(value, list) else [value]:
                if element not in distinct:
                    distinct.append(element)
        common[field] = distinct[0] if len(distinct) == 1 else distinct
    return common


def shown(command: Sequence[str]) -> str:
    """Return a command line without options that say where runs are kept, and without folders of absolute paths."""
    return shlex.join(FOLDERS.sub("", argument) for argument in command if not PRIVATE.match(argument))


def file_of(table: Path) -> Path:
    """Return the path of a table's provenance file, which lies beside it."""
    return table.with_suffix(".provenance.json")


def read(table: Path) -> dict[str, Entry]:
    """Return the entries of a table by part; empty if it has no provenance file.

    Raises:
        ConfigError: the file is damaged.
    """
    file = file_of(table)
    try:
        entries = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise ConfigError(f"{file} is damaged ({error}): remove it") from None
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise ConfigError(f"{file} is damaged (it does not say where a table comes from): remove it")
    return entries


def write(table: Path, entry: Entry, part: str = ALL, more: bool = False) -> None:
    """Write an entry into a table's provenance file.

    Args:
        table: the csv file.
        entry: says where the rows that were just written come from.
        part: the part of the table that these rows are; other parts keep their entries.
        more: whether the rows were added to older rows of the part, so that the older entry still holds too.
    """
    try:
        entries = {} if part == ALL and not more else read(table)
    except ConfigError as error:  # a new file says where the new rows come from; the damaged one stays beside it
        log.warning("%s: it is kept as damaged-%s", error, file_of(table).name)
        file_of(table).rename(file_of(table).with_name(f"damaged-{file_of(table).name}"))
        entries = {}
    if more and part in entries:
        entry = joined([entries[part], entry])
    entries[part] = entry
    text = json.dumps(dict(sorted(entries.items())), indent=1, ensure_ascii=False)
    write_atomically(file_of(table), f"{text}\n".encode())


if __name__ == "__main__":  # TABLE COMMAND ...: a table that a tool of the library has just written
    write(Path(sys.argv[1]), of_process(None) | {"command": shown(sys.argv[2:])})
