"""Where runs come from. Each source yields a `Run`, or a `LeftOut` for what it could not use, one at a time.

runs                     a folder of run folders
wandb-local:wandb        .wandb files on disk, synced or not
wandb:entity/project     the wandb service
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from analysis.runs import LeftOut, Run, SourceError, select
from analysis.sources import folders, small, wandb_local, wandb_service


def read(source: str) -> Iterator[Run | LeftOut]:
    """Everything that a source holds.

    Raises:
        SourceError: there is no such source.
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
    root = Path(name)
    if not root.is_dir():
        raise SourceError(f"no folder {name!r}; train something first, or name another with --runs")
    return root


def load(sources: Iterable[str], include_unfinished: bool = False) -> tuple[list[Run], list[LeftOut]]:
    """The usable runs of all sources, and what was left out."""
    found = [item for source in sources for item in read(source)]
    runs, left_out = select((item for item in found if isinstance(item, Run)), include_unfinished)
    return runs, [item for item in found if isinstance(item, LeftOut)] + left_out
