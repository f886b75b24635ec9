"""What runs there are and how they stand: `python -m harness.runs ls|prune`.

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

from filelock import FileLock, Timeout

LAST_ROW = 2**14  # bytes at the end of a file that hold its last row
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
    """

    folder: Path
    state: str
    step: int
    total: int | None
    result: str

    @classmethod
    def of(cls, folder: Path) -> "Status":
        """Look at a run folder."""
        row, summary = _last_row(folder / "metrics.jsonl"), _json(folder / "DONE")
        if summary:
            state, result = "done", _numbers(summary)
        elif is_running(folder):
            state, result = "running", _numbers(row)
        elif (folder / "FAILED").exists():
            state, result = "failed", (folder / "FAILED").read_text().strip()
        else:
            state, result = "interrupted", _numbers(row)
        return cls(folder, state, row.get("step", 0), _json(folder / "env.json").get("total_steps"), result)

    @property
    def progress(self) -> str:
        """Part of the steps that is done, or their number."""
        return f"{self.step / self.total:4.0%}" if self.total else str(self.step)


def find(root: Path, cache: bool = False) -> list[Path]:
    """Run folders below `root` (those of the shared first phases with `cache`), sorted by name."""
    folders = (path.parent for path in root.rglob("env.json"))
    return sorted(folder for folder in folders if (".cache" in folder.relative_to(root).parts) == cache)


def is_running(folder: Path) -> bool:
    """Whether another process holds the run's lock now."""
    try:
        with FileLock(folder / ".lock", timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # nothing can be written here
        return False


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and do it; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m harness.runs", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs lie (paths.runs=)")
    verbs = parser.add_subparsers(dest="verb", required=True)
    ls = verbs.add_parser("ls", help="one line a run")
    prune = verbs.add_parser("prune", help="remove runs or their checkpoints; without --yes, say which")
    for verb in (ls, prune):
        verb.add_argument("--state", help=f"only these, with commas: {', '.join(STATES)}")
        verb.add_argument("--cache", action="store_true", help="the shared first phases, not the runs")
    prune.add_argument("--checkpoints", action="store_true", help="keep the runs; only remove checkpoints of done ones")
    prune.add_argument("--yes", action="store_true", help="do it")
    options = parser.parse_args(arguments)
    wanted = options.state.split(",") if options.state else list(STATES)
    if unknown := set(wanted) - set(STATES):
        parser.error(f"--state {','.join(sorted(unknown))} is unknown; accepted: {', '.join(STATES)}")
    if not options.runs.is_dir():
        parser.error(f"--runs {options.runs} is not a folder")
    chosen = [status for folder in find(options.runs, options.cache) if (status := Status.of(folder)).state in wanted]
    if options.verb == "ls":
        _ls(chosen)
    elif not options.state and not options.checkpoints and not options.cache:
        parser.error("say which: --state failed,interrupted, or --checkpoints, or --cache")
    else:
        _prune(chosen, options.checkpoints, options.yes)
    return 0


def _ls(chosen: list[Status]) -> None:
    width = max((len(status.folder.name) for status in chosen), default=0)
    for status in chosen:
        print(f"{status.folder.name:<{width}}  {status.state:<11}  {status.progress:>5}  {status.result}")
    counts = [f"{sum(status.state == state for status in chosen)} {state}" for state in STATES]
    print(f"{len(chosen)} in all: {', '.join(counts)}", file=sys.stderr)


def _prune(chosen: list[Status], checkpoints: bool, yes: bool) -> None:
    for status in chosen:
        parts = [status.folder / "checkpoints", status.folder / "replay"] if checkpoints else [status.folder]
        if is_running(status.folder) or (checkpoints and status.state != "done"):
            continue
        for target in [part for part in parts if part.exists() and not part.is_symlink()]:
            print(f"{'removed' if yes else 'would remove'} {target} ({status.state})")
            if yes:
                shutil.rmtree(target)


def _json(path: Path) -> dict[str, Any]:
    """The content of a file, empty if there is none or it is damaged."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _last_row(path: Path) -> dict[str, Any]:
    """The last whole line of a metrics file; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LAST_ROW))
            return dict(json.loads(file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]))
    except (OSError, ValueError, TypeError):
        return {}


def _numbers(row: dict[str, Any]) -> str:
    """The first few numbers of a row or summary, those of the bookkeeping apart."""
    named = [key for key in row if key not in ("step", "steps", "lr") and isinstance(row[key], int | float)]
    return "  ".join(f"{key} {row[key]:.4g}" for key in named[:5])


if __name__ == "__main__":
    sys.exit(main())
