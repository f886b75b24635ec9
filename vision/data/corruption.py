"""Label and pixel noise, the same for the same seed."""

import torch
from torch import Tensor


def noisy_labels(labels: Tensor, num_classes: int, fraction: float, seed: int) -> Tensor:
    """Give a random fraction of the samples a wrong label, uniform over the other classes.

    Args:
        labels: int64 (N,).
        num_classes: labels are in [0, num_classes).
        fraction: of the samples, in [0, 1]; round(fraction * N) labels change.
        seed: of the choice of samples and of their new labels.

    Returns:
        A new tensor of labels.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(labels), generator=generator)[: round(fraction * len(labels))]
    shift = torch.randint(1, num_classes, (len(chosen),), generator=generator)  # never 0: never the right label
    noisy = labels.clone()
    noisy[chosen] = (labels[chosen] + shift) % num_classes
    return noisy


def noisy_pixels(images: Tensor, sigma: float, seed: int, maximum: int = 255) -> Tensor:
    """Add Gaussian noise to every pixel, round, and cut off at 0 and `maximum`.

    Args:
        images: uint8 (N, C, H, W).
        sigma: standard deviation of the noise, as a fraction of `maximum`.
        seed: of the noise.
        maximum: the brightest stored value.

    Returns:
        New uint8 images.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(images.shape, generator=generator) * (sigma * maximum)
    return (images.float() + noise).round_().clamp_(0, maximum).to(torch.uint8)
