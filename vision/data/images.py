"""Image data sets, held in memory as whole tensors."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from fire_core.ranges import Count, checked, one_of
from harness.config.errors import ConfigError

Statistics = Annotated[str, one_of("train", "test")]  # the split whose mean and deviation normalise the test images


@dataclass(frozen=True)
class ImageData:
    """Training and test images as stored, and the statistics that normalise them.

    Attributes:
        train_images: (N, C, H, W), uint8, or float32 if a user's own images are floats.
        train_labels: int64 (N,).
        test_images: (M, C, H, W), of the dtype of the training images.
        test_labels: int64 (M,).
        num_classes: labels are in [0, num_classes).
        mean: mean of the training images, float32 (C, 1, 1), in the units of the stored pixels.
        std: standard deviation of the training images, float32 (C, 1, 1).
        test_mean: mean that is subtracted from the test images; `mean` unless a preset says otherwise.
        test_std: deviation by which the test images are divided; `std` unless a preset says otherwise.
        published: whether these are known to be the images of a published set, by its digests or because a package
            brings them. If so, a run is identified by the set's name, otherwise by a digest of the images.
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
        """Return a data set of these images and labels, with the statistics that normalise them.

        Args:
            train: training images (N, C, H, W) with H = W, uint8 or floats of any range, which are normalised too;
                integer labels (N,) in [0, num_classes). NumPy arrays will do.
            test: test images and labels; the images have the type and the sizes of the training images.
            num_classes: number of classes.
            test_statistics: `train`, or `test`: normalise the test images by their own mean and deviation.

        Raises:
            ValueError: images or labels have another shape, type or range, or `test_statistics` is unknown.
        """
        train, test = ((torch.as_tensor(images), torch.as_tensor(labels)) for images, labels in (train, test))
        for split, (images, labels) in (("train", train), ("test", test)):
            _check(split, images, labels, num_classes)
        if not len(train[0]):
            raise ValueError("there are no training images")
        kinds = [("floats" if x.is_floating_point() else "uint8", *x.shape[1:]) for x, _ in (train, test)]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"training images are {kinds[0][0]} {kinds[0][1:]} and test images {kinds[1][0]} {kinds[1][1:]}: "
                "give both in one form"
            )
        train, test = ((images if images.dtype == torch.uint8 else images.float(), y) for images, y in (train, test))
        mean, std = channel_statistics(train[0])
        test_mean, test_std = (mean, std) if test_statistics == "train" else channel_statistics(test[0])
        return cls(train[0], train[1].long(), test[0], test[1].long(), num_classes, mean, std, test_mean, test_std)

    @property
    def in_channels(self) -> int:
        """Number of channels of an image."""
        return self.train_images.shape[1]

    @property
    def image_size(self) -> int:
        """Height and width of an image in pixels."""
        return self.train_images.shape[2]

    def normalise_train(self, images: Tensor) -> Tensor:
        """Return stored training images (n, C, H, W) as float32, centred and scaled, on their own device."""
        return images.to(torch.float32, copy=True).sub_(self.mean).div_(self.std)

    def normalise_test(self, images: Tensor) -> Tensor:
        """Return stored test images (n, C, H, W) as float32, centred and scaled, on their own device."""
        return images.to(torch.float32, copy=True).sub_(self.test_mean).div_(self.test_std)

    def held_out(self, share: float) -> "ImageData":
        """Return a data set for choosing options, whose test set is a share of each class's training images.

        The held-out images are the same in all runs of a search. At least one image of each class stays in the training
        set, and at least one is held out.

        Raises:
            ConfigError: a class has only one image.
        """
        order = torch.randperm(len(self.train_labels), generator=torch.Generator().manual_seed(0))
        held_out = torch.zeros(len(order), dtype=torch.bool)
        for label in self.train_labels.unique():
            members = order[self.train_labels[order] == label]
            if len(members) == 1:
                raise ConfigError(f"holdout={share}: the class {label} has one training image")
            number = min(max(1, round(share * len(members))), len(members) - 1)
            held_out[members[:number]] = True
        train, test = ((self.train_images[mask], self.train_labels[mask]) for mask in (~held_out, held_out))
        statistics = "train" if torch.equal(self.test_mean, self.mean) else "test"
        return replace(ImageData.of(train, test, self.num_classes, statistics), published=self.published)

    def to(self, device: torch.device | str) -> "ImageData":
        """Return the data set with all its tensors on `device`."""
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)


def _check(split: str, images: Tensor, labels: Tensor, num_classes: int) -> None:
    """Raise a ValueError if a network cannot be trained on these images or labels of a split."""
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise ValueError(f"{split} images must be uint8 or floats, got {images.dtype}: convert them")
    if images.ndim != 4 or images.shape[2] != images.shape[3]:
        shape = tuple(images.shape)
        raise ValueError(f"{split} images must be (N, C, H, W) with H = W, got {shape}: unsqueeze or permute them")
    if images.is_floating_point() and not images.float().isfinite().all():
        raise ValueError(f"{split} images hold NaN or infinity, or numbers beyond the range of float32")
    if labels.is_floating_point() or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{split} labels must be integers ({len(images)},), one for each image, got {labels.dtype} "
            f"{tuple(labels.shape)}"
        )
    if len(labels) and (labels.min() < 0 or labels.max() >= num_classes):
        low, high = int(labels.min()), int(labels.max())
        raise ValueError(f"{split} labels must be in [0, num_classes) = [0, {num_classes}), got {low} to {high}")


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of every channel over all pixels of all images.

    Args:
        images: uint8 or float32 (N, C, H, W).

    Returns:
        Two float32 tensors (C, 1, 1). A constant channel gets the deviation 1, so that it becomes 0.
    """
    if images.is_floating_point():
        pixels = images.transpose(0, 1).flatten(1).double()  # (C, N H W)
        deviation = pixels.std(dim=1, correction=0)
        std = torch.where(deviation > 0, deviation, 1.0)
        return pixels.mean(dim=1).float()[:, None, None], std.float()[:, None, None]
    # A histogram of the 256 values of each channel, (C, 256), gives exact sums.
    histograms = [torch.bincount(images[:, c].flatten(), minlength=256) for c in range(images.shape[1])]
    counts = torch.stack(histograms).double()
    values = torch.arange(256, dtype=torch.float64)
    total = counts.sum(dim=1)
    mean = counts @ values / total
    variance = (counts * (values - mean[:, None]) ** 2).sum(dim=1) / total
    std = torch.where(variance > 0, variance.sqrt(), 1.0)
    return mean.float()[:, None, None], std.float()[:, None, None]
