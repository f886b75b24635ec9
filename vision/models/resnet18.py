"""ResNet-18 for small images: the paper's network for CIFAR-10."""

from collections import OrderedDict
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from fire_core.ranges import Count, Width, checked, one_of
from fire_core.units.graph import Units, between
from vision.models.small_resnet import residual_units, stage, stem

Variant = Annotated[str, one_of("original", "fire_paper")]


@torch.no_grad()
def move_statistics(backbone: nn.Module, in_channels: int, image_size: int) -> None:
    """Pass one zero image through the network in train mode, as the FIRE authors' code does when it builds a model.

    Every batch norm then starts with a running variance of 0.9 or somewhat more instead of 1 and, behind convolutions
    with a bias, with a running mean that is not 0 (`variant=fire_paper`).
    """
    backbone.train()
    backbone(torch.zeros(1, in_channels, image_size, image_size))


class ResNet18(nn.Module):
    """ResNet-18 (He et al., arXiv 1512.03385) with a 3x3 stem, no max-pool and a head of two layers.

    The blocks are torchvision's with torch's default initialisation, as in the authors' code;
    torchvision's own ResNet draws its convolutions from another distribution.

    Args:
        num_classes: number of outputs.
        in_channels: channels of an image.
        width: channels of the first of four stages, 64 in the paper; stage i has `width * 2**i`.
        variant: `original`, or `fire_paper`: batch-norm statistics start moved by one zero image.

    Raises:
        ValueError: if a size is not a whole number of at least one, or `variant` is unknown.
    """

    @checked
    def __init__(
        self, num_classes: Count, in_channels: Count = 3, width: Width = 64, variant: Variant = "original"
    ) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            OrderedDict(
                stem=stem(in_channels, width),
                layer1=stage(width, width, blocks=2, stride=1),
                layer2=stage(width, 2 * width, blocks=2, stride=2),
                layer3=stage(2 * width, 4 * width, blocks=2, stride=2),
                layer4=stage(4 * width, 8 * width, blocks=2, stride=2),
            )
        )
        features = 8 * width
        self.head = nn.Sequential(
            nn.Linear(features, features), nn.ReLU(inplace=True), nn.Linear(features, num_classes)
        )
        if variant == "fire_paper":
            move_statistics(self.backbone, in_channels, image_size=32)

    def forward(self, images: Tensor) -> Tensor:
        features = self.backbone(images)  # (N, 8 * width, H / 8, W / 8)
        logits: Tensor = self.head(features.mean(dim=(2, 3)))  # (N, num_classes)
        return logits

    def unit_graph(self) -> list[Units]:
        """Return the hidden units, see `fire_core.units.graph`."""
        children: Any = self.backbone
        first, *stages = children
        hidden, _, last = self.head
        return [*residual_units(first, stages, hidden), between("head", hidden, last)]
