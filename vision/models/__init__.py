"""Image classifiers: `num_classes` and `in_channels` by keyword; (N, C, H, W) -> (N, num_classes)."""

from vision.models.small_resnet import SmallResNet

__all__ = ["SmallResNet"]
