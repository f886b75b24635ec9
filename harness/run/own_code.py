"""Code of the user's own: the file that a `_target_` names, if it belongs neither to this project nor to a library."""

import inspect
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra.utils import get_object

from harness.run.environment import changed_sources

ROOT = Path(__file__).resolve().parents[2]
# Folders of Python's own modules and of installed packages.
LIBRARIES = tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def own_source(target: str) -> Path | None:
    """Return the source file of the class or function that a `_target_` names, if it is code of the user's own.

    Within this project these are files that git does not track, or that were changed since the last commit. Other
    modules that the file imports are not looked at.

    Args:
        target: a dotted name, such as `last.LastShrink`.

    Returns:
        None also for a name that cannot be imported, which building the object reports.
    """
    try:
        source = inspect.getsourcefile(inspect.unwrap(get_object(target)))
    except Exception:  # whatever a module may raise when it is imported
        return None
    path = None if source is None else Path(source).resolve()
    if path is None or any(path.is_relative_to(library) for library in LIBRARIES):
        return None
    return path if not path.is_relative_to(ROOT) or path in changed_sources() else None


def own_sources(identity: Any) -> Iterator[tuple[Path, str]]:
    """Yield the files with code of the user's own that an identity names, with the digests that they had then."""
    if isinstance(identity, dict):
        if "_target_ (content)" in identity and (source := own_source(identity["_target_"])) is not None:
            yield source, identity["_target_ (content)"]
        for value in identity.values():
            yield from own_sources(value)
