"""CIFAR-10 and CIFAR-100 from torchvision's files, without augmentation."""

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fire_core.ranges import checked
from harness.config.errors import ConfigError
from harness.config.paths import Place, expanded
from vision.data.files import unpacked
from vision.data.images import ImageData, Statistics


@checked
def load_cifar10(root: Place = "data", download: bool = False, test_statistics: Statistics = "train") -> ImageData:
    """CIFAR-10 (Krizhevsky 2009): 50,000 training and 10,000 test images of 32x32 in 10 classes.

    Args:
        root: folder of `cifar-10-batches-py` or of the published archive.
        download: whether to fetch the archive if neither is there.
        test_statistics: `train`, or `test`: normalise the test images by their own mean and deviation.

    Returns:
        uint8 images (N, 3, 32, 32).

    Raises:
        ConfigError: the files are not there, or are damaged.
        ValueError: if `test_statistics` is unknown.
    """
    from torchvision import datasets  # here, as torchvision takes seconds to import

    return _load(datasets.CIFAR10, "cifar10", 10, root, download, test_statistics)


@checked
def load_cifar100(root: Place = "data", download: bool = False, test_statistics: Statistics = "train") -> ImageData:
    """CIFAR-100 (Krizhevsky 2009): 32x32 images as in CIFAR-10, in 100 classes, from `cifar-100-python`.

    Arguments, result and errors are those of `load_cifar10`. The FIRE authors' code has `test_statistics=test` here
    (and only here).
    """
    from torchvision import datasets  # here, as torchvision takes seconds to import

    return _load(datasets.CIFAR100, "cifar100", 100, root, download, test_statistics)


def _load(kind: Any, name: str, classes: int, root: str, download: bool, test_statistics: str) -> ImageData:
    base = expanded(root)
    folder = unpacked(base / kind.base_folder, base / kind.filename, kind.url, kind.tgz_md5, download, name)
    # The files are pickles: torchvision reads them only if their checksums are the published ones.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions of NumPy warn about dtypes pickled in 2009
        try:
            train, test = (_tensors(kind(root, train=train)) for train in (True, False))
        except RuntimeError as error:
            raise ConfigError(
                f"{folder} has a damaged or missing file: remove it and put {kind.url} at {base / kind.filename}"
            ) from error
    return replace(ImageData.of(train, test, classes, test_statistics), published=True)


def _tensors(dataset: Any) -> tuple[Tensor, Tensor]:
    images = torch.from_numpy(dataset.data).permute(0, 3, 1, 2).contiguous()  # (N, 32, 32, 3) -> (N, 3, 32, 32)
    return images, torch.tensor(dataset.targets)
