"""Augmentation of training batches: the random crops and flips that are usual on CIFAR-10 (He et al., CVPR 2016)."""

import torch
from torch import Tensor

PADDING = 4  # pixels on each side before an image is cropped to its size again


def crop_and_flip(images: Tensor, border: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image by up to four pixels in both directions, and mirror every other one, at random.

    Args:
        images: (b, C, H, W).
        border: (C, 1, 1), the value of the pixels that a shift brings in; a black pixel in the images' own units.
        generator: a CPU generator, so that the draws are the same on all devices.

    Returns:
        Images of the same shape, channels last in memory.
    """
    batch, channels, height, width = images.shape
    device = images.device
    offsets = torch.randint(0, 2 * PADDING + 1, (batch, 2), generator=generator).to(device)
    mirrored = torch.randint(0, 2, (batch, 1), generator=generator).bool().to(device)
    padded = border.expand(channels, height + 2 * PADDING, width + 2 * PADDING).repeat(batch, 1, 1, 1)
    padded[:, :, PADDING:-PADDING, PADDING:-PADDING] = images
    rows = offsets[:, :1] + torch.arange(height, device=device)  # (b, H)
    columns = offsets[:, 1:] + torch.arange(width, device=device)  # (b, W)
    columns = torch.where(mirrored, columns.flip(1), columns)
    image = torch.arange(batch, device=device)[:, None, None]
    return padded[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)  # (b, H, W, C) -> (b, C, H, W)
