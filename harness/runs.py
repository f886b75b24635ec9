"""What runs there are and how they stand: `python -m harness.runs ls|show|prune`.

A run is `done`, `running` (another process holds its lock), `failed` (it recorded why), or `interrupted`; the
command that made it resumes the last two.
"""

import argparse
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.run import PRUNED
from harness.run.lock import FolderLock, NoLocks, is_held

LAST, LAST_ROW = 2**20, 2**14  # bytes at the end of a file that are looked at
STATES = ("done", "running", "interrupted", "failed")


@dataclass
class Status:
    """How a run stands.

    Attributes:
        folder: the run folder.
        state: one of `STATES`.
        step: of the last row; 0 before the first.
        total: steps of the whole run, None if it does not say.
        result: the final numbers, why it failed, or the last row's.
        bytes: size of the folder.
    """

    folder: Path
    state: str
    step: int
    total: int | None
    result: str
    bytes: int

    @classmethod
    def of(cls, folder: Path) -> "Status":
        """Look at a run folder; nothing in it is changed."""
        row = _last_row(folder / "metrics.jsonl")
        summary = _json(folder / "DONE")
        failed = folder / "FAILED"
        if summary is not None:
            state, result = "done", _numbers(summary)
        elif is_held(folder):
            state, result = "running", _numbers(row)
        elif failed.exists():
            state, result = "failed", printable(_text(failed)).strip() or "it does not say why"
        else:
            state, result = "interrupted", _numbers(row)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
        total = _count((_json(folder / "env.json") or {}).get("total_steps"))
        return cls(folder, state, _count(row.get("step")) or 0, total, result, size)

    @property
    def progress(self) -> str:
        """Part of the steps that is done, or their number."""
        return f"{self.step / self.total:4.0%}" if self.total else str(self.step)


def find(root: Path, cache: bool = False) -> list[Path]:
    """Run folders below `root` (those of the shared first phases with `cache`), sorted by name."""
    folders = (path.parent for path in root.rglob("env.json"))
    return sorted(
        folder
        for folder in folders
        if (folder / ".lock").exists() and (".cache" in folder.relative_to(root).parts) == cache
    )


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and do it; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m harness.runs", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs lie (paths.runs=)")
    verbs = parser.add_subparsers(dest="verb", required=True)
    ls = verbs.add_parser("ls", help="one line a run")
    show = verbs.add_parser("show", help="all about one run")
    show.add_argument("name", help="the folder's name, or a part that only it has")
    prune = verbs.add_parser("prune", help="remove runs or their checkpoints; without --yes, say which")
    for verb in (ls, prune):
        verb.add_argument("--state", help=f"only these, with commas: {', '.join(STATES)}")
        verb.add_argument("--cache", action="store_true", help="the shared first phases, not the runs")
    prune.add_argument("--checkpoints", action="store_true", help="keep the runs; only remove checkpoints of done ones")
    prune.add_argument("--yes", action="store_true", help="do it")
    options = parser.parse_args(arguments)
    if unknown := set((getattr(options, "state", None) or "").split(",")) - {*STATES, ""}:
        parser.error(f"--state {','.join(sorted(unknown))} is unknown; accepted: {', '.join(STATES)}")
    if not options.runs.is_dir():
        parser.error(f"--runs {options.runs} is not a folder")
    if options.verb == "show":
        return _show(options.runs, options.name)
    chosen = [Status.of(folder) for folder in find(options.runs, options.cache)]
    if options.state:
        chosen = [status for status in chosen if status.state in options.state.split(",")]
    if options.verb == "ls":
        return _ls(chosen)
    if not options.state and not options.checkpoints and not options.cache:
        parser.error("say which: --state failed,interrupted, or --checkpoints, or --cache")
    return _prune(chosen, options.checkpoints, options.yes)


def _ls(chosen: list[Status]) -> int:
    width = max((len(status.folder.name) for status in chosen), default=0)
    for status in chosen:
        name, result = printable(status.folder.name), printable(status.result)
        print(f"{name:<{width}}  {status.state:<11}  {status.progress:>5}  {result}")
    counts = [f"{sum(status.state == state for status in chosen)} {state}" for state in STATES]
    print(f"{len(chosen)} in all: {', '.join(counts)}", file=sys.stderr)
    return 0


def _show(root: Path, name: str) -> int:
    found = [folder for folder in (*find(root), *find(root, cache=True)) if name in folder.name]
    if len(found) != 1:
        names = "".join(f"\n  {folder.name}" for folder in found)
        print(f"error: {len(found)} runs have {name!r} in their name{names}", file=sys.stderr)
        return 2
    status = Status.of(found[0])
    about = _json(status.folder / "env.json") or {}
    facts = {
        "folder": status.folder, "state": status.state, "progress": status.progress, "result": status.result,
        "size": f"{status.bytes / 1e6:.1f} MB", "started": about.get("time"), "code": about.get("git"),
    }  # fmt: skip
    for name, fact in facts.items():
        print(f"{name:<9} {printable(str(fact))}")
    for file in sorted((status.folder / "checkpoints").glob("step-*.pt")):
        print(f"checkpoint  {file.name}")
    what = _text(status.folder / "identity.json") or _text(status.folder / "config.yaml")  # older runs have the second
    print("\n" + printable(what).rstrip())
    return 0


def _prune(chosen: list[Status], checkpoints: bool, yes: bool) -> int:
    for status in chosen:
        parts = [status.folder / "checkpoints", status.folder / "replay"] if checkpoints else [status.folder]
        if status.state == "running" or (checkpoints and status.state != "done"):
            continue
        if yes and not _free(status.folder):
            continue
        for target in [part for part in parts if part.is_symlink()]:
            print(f"left {target}: it is a link")
        for target in [part for part in parts if part.exists() and not part.is_symlink()]:
            print(f"{'removed' if yes else 'would remove'} {target} ({status.state})")
            if yes:
                if checkpoints:  # else the run would be taken for one whose weights were never written
                    (status.folder / PRUNED).touch()
                shutil.rmtree(target)
    return 0


def _free(folder: Path) -> bool:
    """Whether no one else works on the run; if so, no one will until this process ends."""
    try:
        return FolderLock(folder).acquire()
    except NoLocks:
        return True


def _json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(_text(path))
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _text(path: Path, last: int = LAST) -> str:
    """The end of a regular file as text; empty if there is none (opening a pipe would wait)."""
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - last))
            return file.read(last).decode(errors="replace")
    except OSError:
        return ""


def printable(text: str) -> str:
    """The text without what a terminal would take for a command."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def _count(value: Any) -> int | None:
    """A number of steps, None for anything else."""
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**63 else None


def _last_row(path: Path) -> dict[str, Any]:
    """The last whole line of a metrics file; empty if there is none."""
    text = _text(path, LAST_ROW)
    whole = text[: text.rfind("\n") + 1].split("\n")[-2:-1]
    try:
        row = json.loads(whole[0]) if whole else {}
    except (ValueError, RecursionError):
        row = {}
    return row if isinstance(row, dict) else {}


def _numbers(row: dict[str, Any]) -> str:
    """The first few numbers of a row or summary, those of the bookkeeping apart."""
    named = [key for key in row if key not in ("step", "steps", "lr") and isinstance(row[key], int | float)]
    return "  ".join(f"{key} {row[key]:.4g}" for key in named[:5])


if __name__ == "__main__":
    sys.exit(main())
