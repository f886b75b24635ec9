"""The process that mirrors a run into wandb: it follows metrics.jsonl until its input ends.

Its first line of input says what to mirror and where to (see `harness.run.tracker.Wandb`). The whole file is
mirrored each time a run resumes, under the same id: wandb's last copy is complete.
"""

import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAUSE = 1.0  # seconds between looks at the file


def main() -> None:
    """Mirror one run; an error is one line on the standard output."""
    report, quiet = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)  # wandb may print
    try:
        mirror(json.loads(sys.stdin.readline()))
    except BaseException as error:  # wandb raises its own and SystemExit
        words = str(error).strip().split("\n")[0]
        os.write(report, f"{type(error).__name__}: {words}\n".encode())
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        for service in children.read_text().split() if children.exists() else []:
            os.kill(int(service), signal.SIGKILL)  # wandb's, which may hang
        os._exit(1)  # wandb's exit hooks would wait for it


def mirror(order: dict[str, Any]) -> None:
    """Log existing and new rows, until the input ends."""
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.pop("WANDB_SERVICE", None)  # another run's service, which may end or hang before this one
    import wandb

    folder = Path(order["folder"])
    # A settings object, since keyword names of wandb.init come and go between releases.
    settings = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True)
    run = wandb.init(
        project=order["project"],
        entity=order["entity"],
        id=folder.name[-64:],
        name=folder.name,
        dir=str(folder),
        config=order["config"],
        mode="online" if order["mode"] == "online" else "offline",
        resume="allow" if order["mode"] == "online" else None,
        settings=settings,
    )
    run.define_metric("*", step_metric="step")  # wandb's own count is that of the rows: a boundary has a step's second
    for number, row in enumerate(rows(folder / "metrics.jsonl"), 1):
        run.log(row, step=number)
    if (folder / "DONE").exists():
        summary = json.loads((folder / "DONE").read_text())
        run.summary.update({f"final/{key}": value for key, value in summary.items()})
    run.finish()


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a growing file, until the input of this process ends."""
    position, ended = 0, False
    while True:
        if path.exists():
            with open(path, "rb") as file:
                file.seek(position)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]  # the rest is being written
            position += len(whole)
            yield from (json.loads(line) for line in whole.splitlines())
        if ended:
            return
        ended = bool(select.select([sys.stdin], [], [], PAUSE)[0])  # only the end of the input comes


if __name__ == "__main__":
    main()
