"""MNIST from its published files, without augmentation."""

from pathlib import Path

import torch
from filelock import FileLock
from torch import Tensor

from fire_core.ranges import checked
from harness.config.errors import ConfigError, one_line
from vision.data.images import ImageData, Statistics

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"


@checked
def load_mnist(root: str = "data", download: bool = False, test_statistics: Statistics = "train") -> ImageData:
    """MNIST (LeCun, Cortes and Burges 1998): 60,000 training and 10,000 test images of 28x28 in 10 classes.

    Args:
        root: folder of `MNIST/raw` with the four files, unpacked.
        download: whether to fetch and unpack the files that are not there; published archives that are there already
            are unpacked without the network.
        test_statistics: `train`, or `test`: normalise the test images by their own mean and deviation.

    Returns:
        uint8 images (N, 1, 28, 28).

    Raises:
        ConfigError: the files are not there, are damaged, or do not fit together.
        ValueError: if `test_statistics` is unknown.
    """
    from torchvision import datasets  # here, as torchvision takes seconds to import

    folder = Path(root) / "MNIST" / "raw"
    try:
        if download:
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / "download.lock"):  # the runs of a sweep may start together
                datasets.MNIST(root, download=True)
        train, test = (_split(datasets.MNIST(root, train=train)) for train in (True, False))
    except Exception as error:  # torchvision's assertions of damaged files among them
        raise ConfigError(
            f"dataset=mnist cannot be read from {folder} ({one_line(error)}): put the four files of {MIRROR} there, "
            "unpacked, or let dataset.download=true do so; dataset.root= looks elsewhere"
        ) from error
    return ImageData.of(train, test, 10, test_statistics)


def _split(dataset: "torch.utils.data.Dataset[tuple[Tensor, Tensor]]") -> tuple[Tensor, Tensor]:
    images, labels = dataset.data, dataset.targets  # type: ignore[attr-defined]
    if len(images) != len(labels) or not len(images) or images.shape[1] != images.shape[2] or labels.max() > 9:
        raise ValueError(f"images {tuple(images.shape)} and {len(labels)} labels up to {labels.max()} do not fit")
    return images[:, None], labels
