"""The files of a user's own folder: hidden and system files are left out and counted; links that loop are refused."""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from harness.config.errors import ConfigError

# Names of files and folders that systems, editors, network drives and archives leave beside a user's files, in lower
# case.
SYSTEM_FILES = {
    "$recycle.bin", "recycler", "system volume information", "thumbs.db", "ehthumbs.db", "desktop.ini",  # Windows
    "__macosx", "icon\r", "network trash folder", "temporary items",  # macOS
    "lost+found",  # Linux
    "@eadir", "@tmp", "#recycle", "#snapshot", "@recycle", "@recently-snapshot",  # network drives
    "__pycache__", "cvs", "nohup.out",  # Python, version control, shells
}  # fmt: skip
MARK_OF_A_DOWNLOAD = ":Zone.Identifier"  # end of the name that Windows' mark of a download becomes on Linux
SHOWN = 5  # at most so many names are shown beside a count


def is_hidden(name: str) -> bool:
    """Return whether a file or folder of this name is hidden, or was made by a system or an editor."""
    return name.startswith((".", "~$")) or name.endswith(("~", MARK_OF_A_DOWNLOAD)) or name.casefold() in SYSTEM_FILES


@dataclass
class LeftOut:
    """Counts of the files that are left out, by the reason and by the file's name or ending."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, reason: str, name: str, number: int = 1) -> None:
        """Count files that are left out, under a reason and a name (or ending) of theirs."""
        self.counts.setdefault(reason, Counter())[name] += number

    def __str__(self) -> str:
        """Return all reasons on one line, `hidden or system files (3: .DS_Store, Thumbs.db)`; "" if there are none."""
        texts = []
        for reason, names in self.counts.items():
            shown = ", ".join([*names][:SHOWN]) + (", ..." if len(names) > SHOWN else "")
            texts.append(f"{reason} ({sum(names.values())}: {shown})")
        return ", ".join(texts)


def files_below(root: Path, left_out: LeftOut) -> list[Path]:
    """Return all files below a folder, at any depth, sorted by folder and name; links are followed.

    Args:
        root: the folder, which is read even if its own name is a hidden one.
        left_out: receives the counts of the files that are left out.

    Raises:
        ConfigError: a folder cannot be read, a link leads to nothing, or a folder would be read twice, for example
            because a link leads back to a folder around it.
    """
    files, folders_to_read = list[Path](), [root]
    folders_by_inode: dict[tuple[int, int], Path] = {}  # the folders that have been read
    while folders_to_read:
        folder = folders_to_read.pop()
        try:
            status = folder.stat()
            other = folders_by_inode.setdefault((status.st_dev, status.st_ino), folder)
            if other != folder:
                raise ConfigError(
                    f"{folder} and {other} are the same folder, which would be read twice: remove the link"
                )
            files_here, folders_here = _content(folder, left_out)
        except OSError as error:  # the folder, or one of its entries, without the right to look into it
            raise ConfigError(f"{folder} cannot be read ({error.strerror or error}): repair or remove it") from error
        files += files_here
        folders_to_read += folders_here
    return sorted(files, key=lambda file: (str(file.parent), file.name))


def _content(folder: Path, left_out: LeftOut) -> tuple[list[Path], list[Path]]:
    """Return the files and the folders directly in a folder; see `files_below`.

    Raises:
        ConfigError: a link leads to nothing, or back to a folder that it stands in.
        OSError: the folder or an entry cannot be read.
    """
    files, folders = list[Path](), list[Path]()
    with os.scandir(folder) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        path = folder / entry.name
        if is_hidden(entry.name):
            left_out.add("hidden or system files", entry.name, _number_of_files(path))
        elif path.is_dir():
            if entry.is_symlink() and folder.resolve().is_relative_to(path.resolve()):
                raise ConfigError(f"{path} is a link back to {path.resolve()}, in which it stands: remove the link")
            folders.append(path)
        elif path.is_file():
            files.append(path)
        elif entry.is_symlink():
            raise ConfigError(f"{path} is a link to nothing that is there: repair or remove it")
        else:
            left_out.add("neither files nor folders", entry.name)
    return files, folders


def _number_of_files(path: Path) -> int:
    """Return how many files are in a folder that is left out, at any depth, without following links; 1 for a file."""
    if path.is_symlink() or not path.is_dir():
        return 1
    return sum(len(files) for _, _, files in os.walk(path))
