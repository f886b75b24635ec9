"""Code of the user's own: the file that a `_target_` names, unless it is a library's or as this project ships it."""

import hashlib
import inspect
import json
import sysconfig
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path
from typing import Any

from hydra.utils import get_object

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = Path(__file__).with_name("shipped.json")  # path below ROOT -> digest; scripts/record_shipped.py writes it
# Folders of Python's own modules.
LIBRARIES = tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")})
PACKAGES = {"site-packages", "dist-packages"}  # names of folders of installed packages, wherever they lie


def own_source(target: str) -> Path | None:
    """Return the source file of the class or function that a `_target_` names, if it is code of the user's own.

    A file of this project counts as the user's own if it is new or was edited, committed or not: the numbers of a
    version (`NUMERICS`) are those of the files as they are shipped. Modules that the file imports are not looked at.

    Args:
        target: a dotted name, such as `last.LastShrink`.

    Returns:
        None also for a name that cannot be imported, which building the object reports.
    """
    path = source_of(target)
    return path if path is not None and is_own(path) else None


def is_own(path: Path) -> bool:
    """Return whether a source file is neither a library's nor one of this project as it is shipped."""
    if PACKAGES.intersection(path.parts) or any(path.is_relative_to(folder) for folder in LIBRARIES):
        return False
    if path.is_relative_to(ROOT):
        return shipped_digests().get(path.relative_to(ROOT).as_posix()) != digest_of_code(path)
    return True


def source_of(target: str) -> Path | None:
    """Return the file with the source of a module, class or function.

    Args:
        target: its dotted name.

    Returns:
        None if it cannot be imported or has no source.
    """
    try:
        source = inspect.getsourcefile(inspect.unwrap(get_object(target)))
    except Exception:  # whatever a module may raise when it is imported
        return None
    return None if source is None else Path(source).resolve()


@cache
def shipped_digests() -> dict[str, str]:
    """Return path below ROOT -> digest of each file that a `_target_` of `conf/` names, as this version ships it."""
    digests: dict[str, str] = json.loads(SHIPPED.read_text(encoding="utf-8"))
    return digests


def digest_of_code(path: Path) -> str:
    """Return a digest of a source file, the same with line endings of any system."""
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()[:16]


def own_sources(identity: Any, targets: Set[str]) -> Iterator[tuple[Path, str]]:
    """Yield the files with code of the user's own that an identity names, with the digests that they had then.

    Args:
        identity: what a run's `identity.json` holds, which may come from a stranger.
        targets: the dotted names that may be imported; others in the identity are passed over.
    """
    if isinstance(identity, dict):
        target = identity.get("_target_")
        known = target if isinstance(target, str) and target in targets else None
        if known and "_target_ (content)" in identity and (source := source_of(known)) is not None:
            yield source, str(identity["_target_ (content)"])
        for value in identity.values():
            yield from own_sources(value, targets)
