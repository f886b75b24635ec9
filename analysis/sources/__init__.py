"""Where runs come from. Each source yields a `Run`, or a `LeftOut` for what it could not use, one at a time.

runs/...                 run folders (the default)
wandb-local:wandb        .wandb files on disk, synced or not
wandb:entity/project     the wandb service
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from analysis.runs import LeftOut, Run, select
from analysis.sources import folders


class SourceError(RuntimeError):
    """A source as a whole cannot be read."""


def read(source: str, cache: bool = True) -> Iterator[Run | LeftOut]:
    """Everything that a source holds.

    Raises:
        SourceError: there is no such source.
    """
    root = Path(source)
    if not root.is_dir():
        raise SourceError(f"no folder {source}; train something first, or name another with --runs")
    return folders.read(root, cache=cache)


def load(
    sources: Iterable[str], cache: bool = True, include_unfinished: bool = False
) -> tuple[list[Run], list[LeftOut]]:
    """The usable runs of all sources, and what was left out."""
    found = [item for source in sources for item in read(source, cache)]
    runs, left_out = select((item for item in found if isinstance(item, Run)), include_unfinished)
    return runs, [item for item in found if isinstance(item, LeftOut)] + left_out
