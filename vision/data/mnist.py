"""MNIST and Fashion-MNIST from their files in the idx format, as published or unpacked, without augmentation."""

import gzip
import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fire_core.ranges import checked
from harness.config.errors import ConfigError
from harness.config.paths import Place, expanded
from vision.data.files import fetch
from vision.data.images import ImageData, Statistics

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
MD5 = {  # of the published archives
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
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
        ConfigError: the files are not there, are damaged, or do not fit together.
        ValueError: if `test_statistics` is unknown.
    """
    places = [expanded(root) / "MNIST" / "raw", expanded(root)]
    hint = f"put {MIRROR}{{}} and the other three files into {places[0]}, or let dataset.download=true fetch them"
    if download:
        for archive in MD5:
            if _found(places, archive) is None:
                _fetch(places[0], archive)
    return _load("mnist", places, hint, test_statistics)


@checked
def load_fashion_mnist(root: Place = "data", test_statistics: Statistics = "train") -> ImageData:
    """Fashion-MNIST (Xiao, Rasul and Vollgraf 2017, arXiv 1708.07747): clothes, in sizes as MNIST; errors as there.

    Args:
        root: folder of the four files, in `FashionMNIST/raw` (torchvision's place) or itself, packed (.gz) or not; if
            they are not there, those of Debian's package are taken.
        test_statistics: as of `load_mnist`.
    """
    places = [expanded(root) / "FashionMNIST" / "raw", expanded(root), DEBIAN]
    hint = f"apt-get install dataset-fashion-mnist brings it, or put {{}} and the other three into {places[0]}"
    return _load("fashion_mnist", places, hint, test_statistics)


def _load(name: str, places: Sequence[Path], hint: str, test_statistics: str) -> ImageData:
    """The data set whose files lie in these folders; `hint` says what to do where one does not."""

    def find(archive: str) -> Path:
        if (path := _found(places, archive)) is None:
            raise ConfigError(f"dataset={name} is not there: {hint.format(archive)}; dataset.root= looks elsewhere")
        return path

    return ImageData.of(_split(find, "train"), _split(find, "t10k"), 10, test_statistics)


def _split(find: Callable[[str], Path], part: str) -> tuple[Tensor, Tensor]:
    """Images and labels of `train` or `t10k`; `find` gives the file of an archive's name."""
    images_path, labels_path = (find(f"{part}-{what}-ubyte.gz") for what in ("images-idx3", "labels-idx1"))
    images, labels = read_idx(images_path, dimensions=3), read_idx(labels_path, dimensions=1)
    if len(images) != len(labels):
        raise ConfigError(f"{images_path} has {len(images)} images, {labels_path} {len(labels)} labels")
    if images.shape[1] != images.shape[2] or not len(images):
        raise ConfigError(f"{images_path} holds no square images: its shape is {images.shape}")
    if labels.max() > 9:
        raise ConfigError(f"{labels_path} is damaged: it has the label {labels.max()}")
    return torch.from_numpy(images)[:, None], torch.from_numpy(labels).long()


def _found(places: Iterable[Path], archive: str) -> Path | None:
    """The unpacked or packed file in the first of these folders that has it."""
    names = (archive.removesuffix(".gz"), archive)
    return next((place / name for place in places for name in names if (place / name).is_file()), None)


def _fetch(folder: Path, archive: str) -> None:
    """MNIST's file, from its mirror."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"dataset=mnist: cannot write below {folder}: {error}") from error
    fetch(MIRROR + archive, folder / archive, MD5[archive])


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """An array of unsigned bytes from a file in the idx format, packed by gzip if its name ends in .gz.

    The format: two bytes 0, the type of number (8: unsigned byte), the number of dimensions, each dimension as a 32-bit
    big-endian integer, and the numbers, the last dimension running fastest.

    Args:
        path: the file.
        dimensions: how many there must be.

    Raises:
        ConfigError: the file cannot be read, is of another format, or has too few or too many bytes.
    """
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path} cannot be read ({error}): remove it and get it again") from error
    head = 4 + 4 * dimensions
    if len(data) < head or data[:4] != bytes([0, 0, 8, dimensions]):
        raise ConfigError(f"{path} is no idx file of {dimensions} dimensions of unsigned bytes")
    shape = np.frombuffer(data, ">u4", dimensions, offset=4).tolist()
    if len(data) - head != math.prod(shape):
        raise ConfigError(f"{path} is damaged: it should have {math.prod(shape)} bytes of data, not {len(data) - head}")
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape).copy()
