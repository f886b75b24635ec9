"""MNIST from its files in the idx format, as published or unpacked, without augmentation."""

import gzip
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fire_core.ranges import checked
from harness.config.errors import ConfigError
from vision.data.files import fetch
from vision.data.images import ImageData, Statistics

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
MD5 = {  # of the published archives
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
UNSIGNED_BYTE = 8  # the only type of number in these files
LARGEST = 1 << 30  # bytes that one file may unpack to


@checked
def load_mnist(root: str = "data", download: bool = False, test_statistics: Statistics = "train") -> ImageData:
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
    splits = [_split(Path(root), part, download) for part in ("train", "t10k")]
    return ImageData.of(splits[0], splits[1], 10, test_statistics)


def _split(root: Path, part: str, download: bool) -> tuple[Tensor, Tensor]:
    images_path, labels_path = (
        _find(root, f"{part}-{what}-ubyte.gz", download) for what in ("images-idx3", "labels-idx1")
    )
    images, labels = read_idx(images_path, dimensions=3), read_idx(labels_path, dimensions=1)
    if len(images) != len(labels):
        raise ConfigError(f"{images_path} has {len(images)} images, {labels_path} {len(labels)} labels")
    if images.shape[1] != images.shape[2] or not len(images):
        raise ConfigError(f"{images_path} holds no square images: its shape is {images.shape}")
    if labels.max() > 9:
        raise ConfigError(f"{labels_path} is damaged: it has the label {labels.max()}")
    return torch.from_numpy(images)[:, None], torch.from_numpy(labels).long()


def _find(root: Path, archive: str, download: bool) -> Path:
    """The packed or unpacked file, fetched first if need be."""
    folder = root / "MNIST" / "raw"
    for place in (folder, root):
        for name in (archive.removesuffix(".gz"), archive):
            if (place / name).is_file():
                return place / name
    if not download:
        raise ConfigError(
            f"dataset=mnist is not there: put {MIRROR}{archive} and the other three files into {folder}, "
            "or let dataset.download=true fetch them; dataset.root= looks elsewhere"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"dataset=mnist: cannot write below {root}: {error}") from error
    fetch(MIRROR + archive, folder / archive, MD5[archive])
    return folder / archive


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
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(4 + 4 * dimensions)
            if len(head) < 4 + 4 * dimensions or head[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]):
                raise ConfigError(f"{path} is no idx file of {dimensions} dimensions of unsigned bytes")
            shape = [int(size) for size in np.frombuffer(head, ">u4", offset=4)]
            count = int(np.prod(shape, dtype=object))
            if count > LARGEST:
                raise ConfigError(f"{path} is damaged: it announces {count} bytes")
            numbers = file.read(count + 1)  # one more, to see whether the file ends there
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path} cannot be read ({error}): remove it and get it again") from error
    if len(numbers) != count:
        there = "more" if len(numbers) > count else f"only {len(numbers)}"
        raise ConfigError(f"{path} is damaged: it should have {count} bytes of data, it has {there}")
    return np.frombuffer(numbers, np.uint8).reshape(shape).copy()
