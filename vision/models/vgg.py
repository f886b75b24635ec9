"""VGG-16 with batch norm: the paper's network for Tiny-ImageNet."""

from torch import Tensor, nn

from fire_core.ranges import Count, Width, checked
from fire_core.units.graph import Units, between
from vision.models.resnet18 import Variant, move_statistics


class VGG16(nn.Module):
    """VGG-16-BN (Simonyan and Zisserman, arXiv 1409.1556) with a head of three layers for small images.

    The convolutions are torchvision's, with torch's default initialisation. They halve the image five times, so that
    64x64 pixels leave 512 x 2 x 2 features.

    Args:
        num_classes: number of outputs.
        in_channels: channels of an image.
        image_size: height and width of an image in pixels, a multiple of 32.
        hidden: width of the two hidden layers of the head.
        variant: `original`, or `fire_paper`: batch-norm statistics start moved by one zero image.

    Raises:
        ValueError: if a size is out of range, or `variant` is unknown.
    """

    @checked
    def __init__(
        self,
        num_classes: Count,
        in_channels: Count = 3,
        image_size: Count = 64,
        hidden: Width = 1024,
        variant: Variant = "original",
    ) -> None:
        from torchvision.models.vgg import cfgs, make_layers  # here, as torchvision takes seconds to import

        super().__init__()
        if image_size % 32:
            raise ValueError(f"image_size must be a multiple of 32 for VGG-16, got {image_size}")
        self.backbone = make_layers(cfgs["D"], batch_norm=True)
        if in_channels != 3:
            self.backbone[0] = nn.Conv2d(in_channels, 64, 3, padding=1)
        self.head = nn.Sequential(
            nn.Linear(512 * (image_size // 32) ** 2, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, num_classes),
        )
        if variant == "fire_paper":
            move_statistics(self.backbone, in_channels, image_size)

    def forward(self, images: Tensor) -> Tensor:
        features = self.backbone(images)  # (N, 512, H / 32, W / 32)
        logits: Tensor = self.head(features.flatten(1))  # (N, num_classes)
        return logits

    def unit_graph(self) -> list[Units]:
        """Return the hidden units, see `fire_core.units.graph`: each layer is read by the next one."""
        layers = [layer for layer in (*self.backbone, *self.head) if isinstance(layer, (nn.Conv2d, nn.Linear))]
        norms: list[nn.Module | None] = [layer for layer in self.backbone if isinstance(layer, nn.BatchNorm2d)]
        norms += [None] * (len(layers) - len(norms))
        chain = zip(layers, layers[1:], norms, strict=False)
        return [between(str(i), layer, reader, norm) for i, (layer, reader, norm) in enumerate(chain)]
