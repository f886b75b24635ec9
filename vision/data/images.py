"""A data set as whole tensors: decoded once, kept in memory, on the device when it fits."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from fire_core.ranges import Count, checked, one_of
from harness.config.errors import ConfigError

Statistics = Annotated[str, one_of("train", "test")]  # that normalise test images


@dataclass(frozen=True)
class ImageData:
    """Training and test images as stored, and the statistics that normalise them.

    Attributes:
        train_images: uint8, or float32 where a user's own are floats, (N, C, H, W).
        train_labels: int64 (N,).
        test_images: likewise (M, C, H, W).
        test_labels: int64 (M,).
        num_classes: labels are in [0, num_classes).
        mean: float32 (C, 1, 1), of the training images, in the units of the stored pixels.
        std: float32 (C, 1, 1), likewise.
        test_mean: what the test images are centred by; `mean` unless a preset says otherwise.
        test_std: what the test images are divided by; `std` unless a preset says otherwise.
        published: whether these are known to be the images of a published set, by its digests or as a package brings
            them. Then the set's name says what they are; else their content is part of what a run is.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    num_classes: int
    mean: Tensor
    std: Tensor
    test_mean: Tensor
    test_std: Tensor
    published: bool = field(default=False, kw_only=True)

    @classmethod
    @checked
    def of(
        cls,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        num_classes: Count,
        test_statistics: Statistics = "train",
    ) -> "ImageData":
        """From images and labels of both splits.

        Args:
            train: images (N, C, H, W), uint8 or floats of any range, which are normalised all the same; integer labels
                (N,) in [0, num_classes).
            test: the same for the test split.
            num_classes: labels are in [0, num_classes).
            test_statistics: `train`, or `test`: test images are normalised by their own mean and deviation.

        Raises:
            ValueError: images or labels are of another shape, type or range, or `test_statistics` is unknown.
        """
        for split, (images, labels) in (("train", train), ("test", test)):
            _check(split, images, labels, num_classes)
        train, test = ((images if images.dtype == torch.uint8 else images.float(), y) for images, y in (train, test))
        mean, std = channel_statistics(train[0])
        test_mean, test_std = (mean, std) if test_statistics == "train" else channel_statistics(test[0])
        return cls(train[0], train[1].long(), test[0], test[1].long(), num_classes, mean, std, test_mean, test_std)

    @property
    def in_channels(self) -> int:
        """Channels of an image."""
        return self.train_images.shape[1]

    @property
    def image_size(self) -> int:
        """Height and width of an image in pixels."""
        return self.train_images.shape[2]

    def normalise_train(self, images: Tensor) -> Tensor:
        """Stored training images (n, C, H, W) as float32, centred and scaled on the device where they are."""
        return images.to(torch.float32, copy=True).sub_(self.mean).div_(self.std)

    def normalise_test(self, images: Tensor) -> Tensor:
        """Stored test images (n, C, H, W) as float32, centred and scaled on the device where they are."""
        return images.to(torch.float32, copy=True).sub_(self.test_mean).div_(self.test_std)

    def held_out(self, share: float) -> "ImageData":
        """The data set to choose options by: this share of each class's training images is tested on instead.

        They are the same in all runs of a search.

        Raises:
            ConfigError: a class has one image.
        """
        order = torch.randperm(len(self.train_labels), generator=torch.Generator().manual_seed(0))
        tested = torch.zeros(len(order), dtype=torch.bool)
        for label in self.train_labels.unique():
            members = order[self.train_labels[order] == label]
            if len(members) == 1:
                raise ConfigError(f"holdout={share}: the class {label} has one training image")
            tested[members[: min(max(1, round(share * len(members))), len(members) - 1)]] = True
        train, test = ((self.train_images[part], self.train_labels[part]) for part in (~tested, tested))
        statistics = "train" if torch.equal(self.test_mean, self.mean) else "test"
        return replace(ImageData.of(train, test, self.num_classes, statistics), published=self.published)

    def to(self, device: torch.device | str) -> "ImageData":
        """The same data set on `device`."""
        moved: dict[str, Any] = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)


def _check(split: str, images: Tensor, labels: Tensor, num_classes: int) -> None:
    """Raise a ValueError for images or labels of a split that a network cannot be trained on."""
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise ValueError(f"{split} images must be uint8 or floats, got {images.dtype}: convert them")
    if images.ndim != 4 or images.shape[2] != images.shape[3]:
        shape = tuple(images.shape)
        raise ValueError(f"{split} images must be (N, C, H, W) with H = W, got {shape}: unsqueeze or permute them")
    if images.is_floating_point() and not images.isfinite().all():
        raise ValueError(f"{split} images hold NaN or infinity")
    if labels.is_floating_point() or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{split} labels must be integers ({len(images)},), one for each image, got {labels.dtype} "
            f"{tuple(labels.shape)}"
        )
    if len(labels) and (labels.min() < 0 or labels.max() >= num_classes):
        low, high = int(labels.min()), int(labels.max())
        raise ValueError(f"{split} labels must be in [0, num_classes) = [0, {num_classes}), got {low} to {high}")


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of every channel over all pixels of all images.

    Args:
        images: uint8 or float32 (N, C, H, W).

    Returns:
        Two float32 tensors (C, 1, 1). A constant channel gets the deviation 1, so that it becomes 0.
    """
    if images.is_floating_point():
        exact = images.transpose(0, 1).flatten(1).double()  # (C, N H W)
        deviation = exact.std(dim=1, correction=0)
        std = torch.where(deviation > 0, deviation, 1.0)
        return exact.mean(dim=1).float()[:, None, None], std.float()[:, None, None]
    counts = torch.stack(  # exact: a histogram of the 256 values for each channel
        [torch.bincount(images[:, c].flatten(), minlength=256) for c in range(images.shape[1])]
    ).double()  # (C, 256)
    values = torch.arange(256, dtype=torch.float64)
    total = counts.sum(dim=1)
    mean = counts @ values / total
    variance = (counts * (values - mean[:, None]) ** 2).sum(dim=1) / total
    std = torch.where(variance > 0, variance.sqrt(), 1.0)
    return mean.float()[:, None, None], std.float()[:, None, None]
