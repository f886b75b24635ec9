"""Read runs from their sources. Each source yields a `Run`, or a `LeftOut` for one that cannot be used, one at a time.

runs                     a folder of run folders
wandb-local:wandb        .wandb files on disk, synced or not
wandb:entity/project     the wandb service
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from analysis.runs import LeftOut, Run, SourceError, select
from analysis.sources import folders, small, wandb_local, wandb_service


def read(source: str) -> Iterator[Run | LeftOut]:
    """Return an iterator over all runs of a source.

    Raises:
        SourceError: the source does not exist or cannot be read.
    """
    kind, _, rest = source.partition(":")
    if kind == "wandb":
        return wandb_service.read(rest)
    if kind == "wandb-local":
        return wandb_local.read(existing(rest))
    if source.endswith(".csv"):
        return small.read(Path(source))
    return folders.read(existing(source))


def existing(name: str) -> Path:
    """Return the path of a folder.

    Raises:
        SourceError: there is no such folder.
    """
    root = Path(name)
    if not root.is_dir():
        raise SourceError(f"no folder {name!r}; train something first, or name another with --runs")
    return root


def load(sources: Iterable[str], include_unfinished: bool = False) -> tuple[list[Run], list[LeftOut]]:
    """Return the usable runs of all sources, and those that were left out."""
    runs: list[Run] = []
    unusable: list[LeftOut] = []
    for source in sources:
        for item in read(source):
            if isinstance(item, Run):
                runs.append(item)
            else:
                unusable.append(item)
    selected, left_out = select(runs, include_unfinished)
    return selected, unusable + left_out
