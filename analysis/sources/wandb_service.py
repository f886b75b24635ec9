"""Read runs of the wandb service, `wandb:entity/project`, by `wandb.Api` only, as the wire format may change."""

from collections.abc import Iterator
from typing import Any

from analysis.runs import BadRun, LeftOut, Run, SourceError
from analysis.sources.wandb_local import run_of

PAGE = 10_000  # history steps (not rows) in each request


def read(path: str, page: int = 50) -> Iterator[Run | LeftOut]:
    """Yield the runs of `entity/project`; wandb itself repeats requests that fail.

    Raises:
        SourceError: there is no such project, no key, or no answer.
    """
    if path.count("/") != 1 or not all(path.split("/")):
        raise SourceError(f"wandb:{path}: write wandb:entity/project")
    import wandb

    try:
        remote_runs = list(wandb.Api(timeout=30).runs(path, per_page=page))
    except (ValueError, wandb.errors.Error) as error:
        raise SourceError(f"wandb:{path}: {str(error).splitlines()[0]}") from None
    for remote in remote_runs:
        source = f"wandb:{path}/{remote.id}"
        try:
            yield read_run(remote, source)
        except BadRun as reason:
            yield LeftOut(source, str(reason))
        except wandb.errors.Error as error:
            yield LeftOut(source, f"unreadable: {str(error).splitlines()[0]}")


def read_run(remote: Any, source: str) -> Run:
    """Read one run of the service.

    Raises:
        BadRun: the run is no run of this project.
    """
    config = {key: value for key, value in dict(remote.config).items() if not key.startswith("_")}
    has_summary = any(key.startswith("final/") for key in dict(remote.summary))
    finished = remote.state == "finished" and has_summary
    return run_of(remote.name, source, config, remote.scan_history(page_size=PAGE), finished)
