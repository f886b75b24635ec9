"""The process that mirrors a run into wandb: it follows metrics.jsonl until its input ends.

Its first line of input says what to mirror and where to (see `harness.run.tracker.Wandb`). The whole file is
mirrored each time a run resumes, under the same id: the last offline copy is complete. Online, wandb drops the rows
that it has already.
"""

import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAUSE = 1.0  # seconds between two reads of the file


def main() -> None:
    """Mirror one run; an error is printed as one line on the standard output."""
    report, quiet = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)  # wandb may print, and the standard output is for the error alone
    try:
        mirror(json.loads(sys.stdin.readline()))
    except BaseException as error:  # wandb raises its own errors, and SystemExit
        first_line = str(error).strip().split("\n")[0]
        os.write(report, f"{type(error).__name__}: {first_line}\n".encode())
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        for service in children.read_text().split() if children.exists() else []:
            os.kill(int(service), signal.SIGKILL)  # wandb's service, which may hang
        os._exit(1)  # wandb's exit hooks would wait for it


def mirror(request: dict[str, Any]) -> None:
    """Log existing and new rows to wandb until the input ends.

    Args:
        request: folder, id, config, mode, project and entity, as `harness.run.tracker.Wandb` sends them.
    """
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.pop("WANDB_SERVICE", None)  # another run's service, which may end or hang before this one
    import wandb

    folder = Path(request["folder"])
    # A settings object, since keyword names of wandb.init come and go between releases.
    settings = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True)
    run = wandb.init(
        project=request["project"],
        entity=request["entity"],
        id=request["id"],
        name=folder.name,
        dir=str(folder),
        config=request["config"],
        mode="online" if request["mode"] == "online" else "offline",
        resume="allow" if request["mode"] == "online" else None,
        settings=settings,
    )
    # wandb counts rows, since two rows may have the same step (a boundary's row and the one before it).
    run.define_metric("*", step_metric="step")
    for number, row in enumerate(rows(folder / "metrics.jsonl"), 1):
        run.log(row, step=number)
    is_done = (folder / "DONE").exists()
    if is_done:
        summary = json.loads((folder / "DONE").read_text())
        run.summary.update({f"final/{key}": value for key, value in summary.items()})
    run.finish(exit_code=0 if is_done else 1)


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of a growing file as rows, until the input of this process ends."""
    position, ended = 0, False
    while True:
        if path.exists():
            with open(path, "rb") as file:
                file.seek(position)
                data = file.read()
            complete_lines = data[: data.rfind(b"\n") + 1]  # the rest is being written
            position += len(complete_lines)
            for line in complete_lines.splitlines():
                yield json.loads(line)
        if ended:
            return
        ended = bool(select.select([sys.stdin], [], [], PAUSE)[0])  # readable only at its end, as nothing more is sent


if __name__ == "__main__":
    main()
