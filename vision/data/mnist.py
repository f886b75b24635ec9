"""Load MNIST and Fashion-MNIST from their idx files, packed as published or unpacked."""

import gzip
import hashlib
import logging
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from fire_core.ranges import checked
from harness.config.errors import ConfigError
from harness.config.paths import Place, expanded
from harness.run.files import reading
from vision.data.files import fetch, md5_of
from vision.data.images import ImageData, Statistics

log = logging.getLogger(__name__)
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
# MD5 of MNIST's published archives.
MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
# MD5 of the unpacked files of each data set, which do not depend on the program that has packed them. The files of all
# data sets have the same names.
PUBLISHED = {
    "mnist": {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    "fashion_mnist": {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
}
# MD5 of the packed files of data sets whose unpacked digests are not known.
ARCHIVES = {
    "kmnist": {
        "train-images-idx3-ubyte": "bdb82020997e1d708af4cf47b453dcf7",
        "train-labels-idx1-ubyte": "e144d726b3acfaa3e44228e80efcd344",
        "t10k-images-idx3-ubyte": "5c965bf0a639b31b8f53240b1b52f4d7",
        "t10k-labels-idx1-ubyte": "7320c461ea6c1c855c0b718fb2a4b134",
    },
}
TITLES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "kmnist": "Kuzushiji-MNIST"}
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # where the package dataset-fashion-mnist puts its files


@checked
def load_mnist(root: Place = "data", download: bool = False, test_statistics: Statistics = "train") -> ImageData:
    """MNIST (LeCun, Cortes and Burges 1998): 60,000 training and 10,000 test images of 28x28 in 10 classes.

    Args:
        root: folder of the four files, in `MNIST/raw` (torchvision's place) or itself, packed (.gz) or not.
        download: whether to fetch the files that are not there.
        test_statistics: `train`, or `test`: normalise the test images by their own mean and deviation.

    Returns:
        uint8 images (N, 1, 28, 28).

    Raises:
        ConfigError: the files are not there, are damaged, do not fit together, or are known to be another set's.
        ValueError: if `test_statistics` is unknown.
    """
    places = [expanded(root) / "MNIST" / "raw", expanded(root)]
    hint = f"put {MIRROR}{{}} and the other three files into {places[0]}, or let dataset.download=true fetch them"
    if download:
        for archive in MD5:
            if _find_file(places, archive) is None:
                _fetch(places[0], archive)
    return _load("mnist", places, hint, test_statistics)


@checked
def load_fashion_mnist(root: Place = "data", test_statistics: Statistics = "train") -> ImageData:
    """Fashion-MNIST (Xiao, Rasul and Vollgraf 2017, arXiv 1708.07747): images of clothes, in MNIST's sizes and numbers.

    Args:
        root: folder of the four files, in `FashionMNIST/raw` (torchvision's place) or itself, packed (.gz) or not. If
            they are not there, those of Debian's package are taken.
        test_statistics: see `load_mnist`.

    Returns:
        uint8 images (N, 1, 28, 28).

    Raises:
        ConfigError: see `load_mnist`.
        ValueError: if `test_statistics` is unknown.
    """
    places = [expanded(root) / "FashionMNIST" / "raw", expanded(root), DEBIAN]
    hint = f"apt-get install dataset-fashion-mnist brings it, or put {{}} and the other three into {places[0]}"
    return _load("fashion_mnist", places, hint, test_statistics)


def _load(name: str, places: Sequence[Path], hint: str, test_statistics: str) -> ImageData:
    """Return the data set whose files lie in the first of these folders that has them.

    Args:
        name: name of the data set.
        places: folders.
        hint: what the user can do if a file is missing; {} stands for its name.
        test_statistics: see `load_mnist`.
    """
    files = dict[str, tuple[Path, bytes]]()
    for archive in MD5:
        if (path := _find_file(places, archive)) is None:
            raise ConfigError(f"dataset={name} is not there: {hint.format(archive)}; dataset.root= looks elsewhere")
        files[archive.removesuffix(".gz")] = path, _unpacked(path)
    folders = list(dict.fromkeys(str(path.parent) for path, _ in files.values()))
    if len(folders) > 1:
        raise ConfigError(f"dataset={name}: its files lie in {' and '.join(folders)}: put all four into one folder")
    changed = [file for file, (path, content) in files.items() if not _is_published(name, file, path, content)]
    data = ImageData.of(_split(files, "train"), _split(files, "t10k"), 10, test_statistics)
    if changed:
        log.warning(
            "dataset=%s: %s is not the published file (its MD5 is another): what is in it is part of what the run is",
            name,
            files[changed[0]][0],
        )
    return replace(data, published=not changed)


def _is_published(name: str, file: str, path: Path, content: bytes) -> bool:
    """Return whether a file is the published one of the data set `name`, by its digest.

    Raises:
        ConfigError: it is the file of another data set.
    """
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if PUBLISHED[name][file] == digest:
        return True
    owner = next((dataset for dataset, digests in PUBLISHED.items() if digests[file] == digest), None)
    if owner is None and path.suffix == ".gz":
        packed_digest = md5_of(path)
        owner = next((dataset for dataset, digests in ARCHIVES.items() if digests[file] == packed_digest), None)
    if owner is not None:
        advice = f": take dataset={owner}" if owner in PUBLISHED else ""
        raise ConfigError(
            f"{path} is {TITLES[owner]}'s and not {TITLES[name]}'s, whose files are called alike{advice}; "
            "dataset.root= looks elsewhere"
        )
    return False


def _split(files: Mapping[str, tuple[Path, bytes]], part: str) -> tuple[Tensor, Tensor]:
    """Return images (N, 1, 28, 28) and labels (N,) of the training set (`train`) or the test set (`t10k`)."""
    images_path, labels_path = (files[f"{part}-{what}-ubyte"][0] for what in ("images-idx3", "labels-idx1"))
    images = _array(*files[f"{part}-images-idx3-ubyte"], dimensions=3)
    labels = _array(*files[f"{part}-labels-idx1-ubyte"], dimensions=1)
    if len(images) != len(labels):
        raise ConfigError(f"{images_path} has {len(images)} images, {labels_path} {len(labels)} labels")
    if images.shape[1] != images.shape[2] or not len(images):
        raise ConfigError(f"{images_path} holds no square images: its shape is {images.shape}")
    if labels.max() > 9:
        raise ConfigError(f"{labels_path} is damaged: it has the label {labels.max()}")
    return torch.from_numpy(images)[:, None], torch.from_numpy(labels).long()


def _find_file(places: Iterable[Path], archive: str) -> Path | None:
    """Return the unpacked or packed file in the first of these folders that has it, None if none has."""
    names = (archive.removesuffix(".gz"), archive)
    return next((place / name for place in places for name in names if (place / name).is_file()), None)


def _fetch(folder: Path, archive: str) -> None:
    """Download one of MNIST's archives from its mirror into a folder, unless another process has just done so."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder / archive}.lock"):  # two jobs may start together
            if not (folder / archive).exists():
                fetch(MIRROR + archive, folder / archive, MD5[archive])
    except OSError as error:
        raise ConfigError(f"dataset=mnist: cannot write below {folder}: {error}") from error


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an array of unsigned bytes from a file in the idx format, packed by gzip if its name ends in .gz.

    The format is: two bytes 0, the type of number (8: unsigned byte), the number of dimensions, each dimension as a
    32-bit big-endian integer, and the numbers, the last dimension running fastest.

    Args:
        path: the file.
        dimensions: the number of dimensions that the array must have.

    Raises:
        ConfigError: the file is of another format, or has too few or too many bytes.
        TrainingError: it cannot be read at the moment.
    """
    return _array(path, _unpacked(path), dimensions)


def _unpacked(path: Path) -> bytes:
    """Return the content of a file, unpacked if it is a .gz file."""
    with reading(path):
        content = path.read_bytes()
    try:
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ConfigError(f"{path} cannot be read ({error}): remove it and get it again") from error


def _array(path: Path, data: bytes, dimensions: int) -> np.ndarray:
    """Return the array that the content of an idx file describes; see `read_idx`. The path is for messages."""
    header = 4 + 4 * dimensions  # bytes
    if len(data) < header or data[:4] != bytes([0, 0, 8, dimensions]):
        raise ConfigError(f"{path} is no idx file of {dimensions} dimensions of unsigned bytes")
    shape = np.frombuffer(data, ">u4", dimensions, offset=4).tolist()
    size = len(data) - header
    if size != math.prod(shape):
        raise ConfigError(f"{path} is damaged: it should have {math.prod(shape)} bytes of data, not {size}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape).copy()
