"""The files of a user's own folder: hidden and system files are left out and counted, links that loop are refused."""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from harness.config.errors import ConfigError

# What systems, editors, network drives and archives leave beside a user's files; compared without regard to case.
SYSTEM = {
    "$recycle.bin", "recycler", "system volume information", "thumbs.db", "ehthumbs.db", "desktop.ini",  # Windows
    "__macosx", "icon\r", "network trash folder", "temporary items",  # macOS
    "lost+found",  # Linux
    "@eadir", "@tmp", "#recycle", "#snapshot", "@recycle", "@recently-snapshot",  # network drives
    "__pycache__", "cvs", "nohup.out",  # Python, version control, shells
}  # fmt: skip
SHOWN = 5  # names beside a count


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is hidden, or is one that a system or an editor made."""
    return name.startswith((".", "~$")) or name.endswith("~") or name.casefold() in SYSTEM


@dataclass
class LeftOut:
    """Counts of the files that are left out, by the reason and by what they are called."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, reason: str, name: str, number: int = 1) -> None:
        """Count files that are left out: why, and which name or ending they have."""
        self.counts.setdefault(reason, Counter())[name] += number

    def __str__(self) -> str:
        """All reasons on one line, `hidden or system files (3: .DS_Store, Thumbs.db)`; empty if there are none."""
        return ", ".join(
            f"{reason} ({sum(names.values())}: {', '.join([*names][:SHOWN])}{', ...' if len(names) > SHOWN else ''})"
            for reason, names in self.counts.items()
        )


def files_below(root: Path, left_out: LeftOut) -> list[Path]:
    """All files below a folder, at any depth, in the order of their folders and names; links are followed.

    Args:
        root: the folder; its own name may be anything.
        left_out: counts the files that are left out.

    Raises:
        ConfigError: a folder cannot be read, a link leads to nothing, or a folder would be read twice, as where a link
            leads back to a folder that it stands in.
    """
    files, waiting = list[Path](), [root]
    read_already: dict[tuple[int, int], Path] = {}
    while waiting:
        folder = waiting.pop()
        about = folder.stat()
        other = read_already.setdefault((about.st_dev, about.st_ino), folder)
        if other != folder:
            raise ConfigError(f"{folder} and {other} are the same folder, which would be read twice: remove the link")
        for entry in _entries(folder):
            path = folder / entry.name
            if is_hidden(entry.name):
                left_out.add("hidden or system files", entry.name, _number_of_files(path))
            elif path.is_dir():
                if entry.is_symlink() and folder.resolve().is_relative_to(path.resolve()):
                    raise ConfigError(f"{path} is a link back to {path.resolve()}, in which it stands: remove the link")
                waiting.append(path)
            elif path.is_file():
                files.append(path)
            elif entry.is_symlink():
                raise ConfigError(f"{path} is a link to nothing that is there: mend or remove it")
            else:
                left_out.add("neither files nor folders", entry.name)
    return sorted(files, key=lambda file: (str(file.parent), file.name))


def _entries(folder: Path) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read ({error.strerror or error}): mend or remove it") from error


def _number_of_files(path: Path) -> int:
    """Files in a folder that is left out, without following links; 1 for a file."""
    if path.is_symlink() or not path.is_dir():
        return 1
    return sum(len(files) for _, _, files in os.walk(path))
