"""The 1,797 handwritten digits that come with scikit-learn: real images, no download."""

import sklearn.datasets
import torch
from sklearn.model_selection import train_test_split

from vision.data.corruption import noisy_labels, noisy_pixels
from vision.data.images import ImageData

BRIGHTEST = 16  # pixels are whole numbers from 0 to 16
SPLIT_SEED = 0  # the test set is the same for every run, whatever its seed


def load_digits(
    test_fraction: float = 0.2, label_noise: float = 0.0, pixel_noise: float = 0.0, noise_seed: int = 0
) -> ImageData:
    """Digits of 8x8 pixels in ten classes (Alpaydin and Kaynak 1998; in scikit-learn), split stratified.

    Args:
        test_fraction: part of every class that is kept for testing, in (0, 1).
        label_noise: part of the training labels that are replaced by wrong ones.
        pixel_noise: deviation of Gaussian noise on the training images, as a fraction of the brightest pixel.
        noise_seed: of both kinds of noise.

    Returns:
        uint8 images (N, 1, 8, 8) with values from 0 to 16; the test split is always clean.

    Raises:
        ValueError: if an argument is out of range.
    """
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction must be in (0, 1), got {test_fraction}")
    pixels, labels = sklearn.datasets.load_digits(return_X_y=True)
    train, test = train_test_split(
        range(len(labels)), test_size=test_fraction, stratify=labels, random_state=SPLIT_SEED
    )
    images = torch.from_numpy(pixels).to(torch.uint8).reshape(-1, 1, 8, 8)
    targets = torch.from_numpy(labels)
    train_images, train_labels = images[train], targets[train]
    if label_noise:
        train_labels = noisy_labels(train_labels, 10, label_noise, noise_seed)
    if pixel_noise:
        train_images = noisy_pixels(train_images, pixel_noise, noise_seed, BRIGHTEST)
    return ImageData.of((train_images, train_labels), (images[test], targets[test]), num_classes=10)
