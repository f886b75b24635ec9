"""Fetch, check and unpack published archives, one process at a time; error messages say what to do."""

import hashlib
import os
import shutil
import tarfile
import tempfile
from http.client import HTTPException
from pathlib import Path

from filelock import FileLock

from harness.config.errors import ConfigError, first_line
from harness.run.files import reading


def unpacked(folder: Path, archive: Path, url: str, md5: str, download: bool, dataset: str) -> Path:
    """Return the folder of a published archive, after unpacking and downloading the archive if needed.

    Args:
        folder: the folder into which the archive unpacks, beside it.
        archive: a .zip or .tar.gz file.
        url: address at which it is published.
        md5: its published checksum.
        download: whether it may be downloaded.
        dataset: name of the data set, for messages.

    Raises:
        ConfigError: folder and archive are missing and may not be downloaded, the download fails, or the archive is
            damaged.
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
    """Return the MD5 checksum of a file, in hexadecimal."""
    with reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def fetch(url: str, path: Path, md5: str) -> None:
    """Download a file, which is called `<path>.part` until its checksum has been verified.

    Raises:
        ConfigError: there is no answer, the download was interrupted, or the checksum is wrong.
    """
    from torchvision.datasets.utils import download_url  # here, as torchvision takes seconds to import

    part = path.with_name(path.name + ".part")
    try:
        download_url(url, str(part.parent), part.name, md5)
    except (OSError, HTTPException, RuntimeError, ValueError) as error:
        raise ConfigError(f"cannot download {url} ({first_line(error)}): put the file at {path}") from error
    part.replace(path)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a verified archive with one top folder, such that `folder` appears only when it is complete."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        filters = archive.suffix != ".zip" and hasattr(tarfile, "data_filter")  # Python 3.11.2 (Debian 12) has none
        shutil.unpack_archive(archive, scratch, **({"filter": "data"} if filters else {}))  # type: ignore[arg-type]
        os.replace(Path(scratch) / folder.name, folder)
