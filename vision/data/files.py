"""Published archives: download, check, unpack; every error names the file and what to do."""

import hashlib
import http.client
import os
import shutil
import stat
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path, PurePosixPath

from filelock import FileLock
from tqdm import tqdm

from harness.config.errors import ConfigError

CHUNK = 1 << 20  # bytes


def md5_of(path: Path) -> str:
    """The MD5 checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def unpacked(folder: Path, archive: Path, url: str, md5: str, download: bool, dataset: str) -> Path:
    """The unpacked folder of a published archive: found, or unpacked from the archive, or downloaded first.

    Args:
        folder: the unpacked top folder of the archive, beside `archive`.
        archive: a .zip or .tar.gz file.
        url: where the archive is published.
        md5: its published checksum.
        download: whether to try the network.
        dataset: name for messages.

    Returns:
        `folder`, which is there and came from an archive with the right checksum, or was there before.

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


def fetch(url: str, path: Path, md5: str, timeout: float = 10.0) -> None:
    """Download a file with a progress bar; an interrupted download resumes where it stopped.

    Args:
        url: where from.
        path: where to; until the checksum is right the file is called `<path>.part`.
        md5: the expected checksum.
        timeout: seconds without an answer after which to give up.

    Raises:
        ConfigError: no answer, an interrupted answer, or a wrong checksum.
    """
    part = path.with_name(path.name + ".part")
    try:
        _fetch_rest(url, part, timeout)
    except (OSError, http.client.HTTPException, ValueError) as error:  # URLError and timeouts are OSErrors
        reason = getattr(error, "reason", None) or error
        kept = "; started again, the download resumes where it stopped" if part.exists() else ""
        raise ConfigError(f"cannot download {url} ({reason}){kept}; or put the file at {path}") from error
    if md5_of(part) != md5:
        part.unlink()
        raise ConfigError(f"{url} gave a file with a wrong checksum (its MD5 is not {md5}); it was removed")
    part.replace(path)


def _fetch_rest(url: str, part: Path, timeout: float) -> None:
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        answer = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and done:
            return  # nothing is left to fetch
        raise
    with answer:
        if answer.status != http.client.PARTIAL_CONTENT:
            done = 0  # the server starts from the first byte
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length else None
        bar = tqdm(total=total, initial=done, unit="B", unit_scale=True, desc=part.stem)
        with part.open("ab" if done else "wb") as file, bar:
            while block := answer.read(CHUNK):
                file.write(block)
                bar.update(len(block))
    if total is not None and part.stat().st_size < total:
        raise OSError("the connection broke off")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive that holds one top folder; `folder` is complete or absent.

    Raises:
        ConfigError: the archive is damaged, lacks the folder, or has an entry that would land elsewhere.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        try:
            if archive.suffix == ".zip":
                _unpack_zip(archive, Path(scratch))
            else:
                with tarfile.open(archive) as tar:
                    tar.extractall(scratch, filter="data")
        except tarfile.FilterError as error:
            raise ConfigError(f"{archive} is refused: {error}") from error
        except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
            raise ConfigError(f"{archive} is damaged ({error}): remove it and get it again") from error
        inside = Path(scratch) / folder.name
        if not inside.is_dir():
            raise ConfigError(f"{archive} does not hold the folder {folder.name}")
        os.replace(inside, folder)


def _unpack_zip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        for entry in file.infolist():
            name = entry.filename.replace("\\", "/")
            outside = PurePosixPath(name).is_absolute() or ".." in name.split("/") or ":" in name
            if outside or stat.S_ISLNK(entry.external_attr >> 16):
                raise ConfigError(f"{archive} is refused: its entry {entry.filename!r} points outside")
        for entry in tqdm(file.infolist(), desc=f"unpack {archive.name}", unit="file", mininterval=1):
            target = folder / entry.filename
            if entry.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with file.open(entry) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
