"""Published archives: fetched, checked and unpacked by one process at a time; an error says what to do."""

import hashlib
import os
import shutil
import tarfile
import tempfile
from http.client import HTTPException
from pathlib import Path

from filelock import FileLock

from harness.config.errors import ConfigError, one_line


def unpacked(folder: Path, archive: Path, url: str, md5: str, download: bool, dataset: str) -> Path:
    """The unpacked folder of a published archive: found, or unpacked from the archive, or downloaded first.

    Args:
        folder: the top folder of the archive, beside it.
        archive: a .zip or .tar.gz file.
        url: where it is published.
        md5: its published checksum.
        download: whether to try the network.
        dataset: name for messages.

    Raises:
        ConfigError: nothing is there and nothing may be downloaded, or the download or the archive is bad.
    """
    if folder.is_dir():
        return folder
    if not archive.exists() and not download:
        raise ConfigError(
            f"dataset={dataset} is not there: put {url} at {archive} (or its content at {folder}), "
            "or let dataset.download=true fetch it; dataset.root= looks elsewhere"
        )
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{archive}.lock"):  # the runs of a sweep may start together
            if not archive.exists():
                fetch(url, archive, md5)
            elif md5_of(archive) != md5:
                raise ConfigError(
                    f"{archive} is damaged or not the published file (its MD5 is not {md5}): "
                    f"remove it and get it again from {url}"
                )
            if not folder.is_dir():
                unpack(archive, folder)
    except OSError as error:
        raise ConfigError(f"dataset={dataset}: cannot write below {archive.parent}: {error}") from error
    return folder


def md5_of(path: Path) -> str:
    """The MD5 checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def fetch(url: str, path: Path, md5: str) -> None:
    """Download a file, which is called `<path>.part` until its checksum is right.

    Raises:
        ConfigError: no answer, an interrupted answer, or a wrong checksum.
    """
    from torchvision.datasets.utils import download_url  # here, as torchvision takes seconds to import

    part = path.with_name(path.name + ".part")
    try:
        download_url(url, str(part.parent), part.name, md5)
    except (OSError, HTTPException, RuntimeError, ValueError) as error:
        raise ConfigError(f"cannot download {url} ({one_line(error)}): put the file at {path}") from error
    part.replace(path)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive, whose checksum was right, with one top folder; `folder` is complete or absent."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        filters = archive.suffix != ".zip" and hasattr(tarfile, "data_filter")  # Python 3.11.2 (Debian 12) has none
        shutil.unpack_archive(archive, scratch, **({"filter": "data"} if filters else {}))  # type: ignore[arg-type]
        os.replace(Path(scratch) / folder.name, folder)
