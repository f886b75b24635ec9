"""The 1,797 handwritten digits that come with scikit-learn: real images, no download."""

import functools
from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from fire_core.ranges import Seed, checked, within
from vision.data.images import ImageData

BRIGHTEST = 16  # pixels are whole numbers from 0 to 16
SPLIT_SEED = 0  # the test set is the same for every run, whatever its seed


@functools.cache
def packaged() -> tuple[np.ndarray, np.ndarray]:
    """Return images (1797, 64) and labels (1797,) as scikit-learn has them; read once, so they must not be changed."""
    # Here, as the import takes a third of a program's start, which no other data need.
    from sklearn import datasets

    pixels, labels = datasets.load_digits(return_X_y=True)
    return pixels, labels


@checked
def load_digits(
    train_size: Annotated[int, within(10, 1787)] = 1280,
    pixel_noise: Annotated[float, within(0, 1000)] = 0.0,
    noise_seed: Seed = 0,
) -> ImageData:
    """Handwritten digits of 8x8 pixels in ten classes (Alpaydin and Kaynak 1998; in scikit-learn), split by class.

    Args:
        train_size: number of training images; the rest of the 1,797 is the test set. The split is the same for every
            seed.
        pixel_noise: standard deviation of Gaussian noise on all images, as a fraction of the brightest pixel.
        noise_seed: seed of the noise, which is drawn once, so that every run has the same data.

    Returns:
        uint8 images (N, 1, 8, 8) with values from 0 to 16.

    Raises:
        ValueError: if an argument is out of range.
    """
    from sklearn.model_selection import train_test_split  # as in `packaged`

    pixels, labels = packaged()
    train, test = train_test_split(range(len(labels)), train_size=train_size, stratify=labels, random_state=SPLIT_SEED)
    images = torch.from_numpy(pixels).to(torch.uint8).reshape(-1, 1, 8, 8)
    targets = torch.from_numpy(labels)
    if pixel_noise:
        images = noisy_pixels(images, pixel_noise, noise_seed)
    data = ImageData.of((images[train], targets[train]), (images[test], targets[test]), num_classes=10)
    return replace(data, published=True)


def noisy_pixels(images: Tensor, sigma: float, seed: int) -> Tensor:
    """Add Gaussian noise to every pixel, round, and cut off at 0 and `BRIGHTEST`.

    Args:
        images: uint8 (N, C, H, W).
        sigma: standard deviation of the noise, as a fraction of `BRIGHTEST`.
        seed: seed of the noise.

    Returns:
        New uint8 images (N, C, H, W).
    """
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(images.shape, generator=generator) * (sigma * BRIGHTEST)
    return (images.float() + noise).round_().clamp_(0, BRIGHTEST).to(torch.uint8)
