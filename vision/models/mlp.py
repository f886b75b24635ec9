"""A perceptron on the pixels of small images: the default on the digits."""

from collections import OrderedDict

from torch import Tensor, nn

from fire_core.units.graph import Units, between
from vision.models.checks import check_positive


class MLP(nn.Module):
    """Linear layers, each with batch norm (Ioffe and Szegedy, arXiv 1502.03167) and a ReLU, and a linear head.

    Args:
        num_classes: number of outputs.
        in_channels: channels of an image.
        image_size: height and width of an image in pixels.
        hidden: units of each hidden layer.
        depth: number of hidden layers.
        norm: batch norm before each ReLU; without it the layers have biases.

    Raises:
        ValueError: if a size is not a whole number of at least one.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 1,
        image_size: int = 8,
        hidden: int = 64,
        depth: int = 5,
        norm: bool = True,
    ) -> None:
        super().__init__()
        check_positive(
            num_classes=num_classes, in_channels=in_channels, image_size=image_size, hidden=hidden, depth=depth
        )
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        inputs = in_channels * image_size**2
        for i in range(depth):
            layers[f"fc{i}"] = nn.Linear(inputs, hidden, bias=not norm)
            if norm:
                layers[f"norm{i}"] = nn.BatchNorm1d(hidden)
            layers[f"relu{i}"] = nn.ReLU(inplace=True)
            inputs = hidden
        self.backbone = nn.Sequential(layers)
        self.head = nn.Linear(hidden, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(images))  # (N, num_classes)
        return logits

    def unit_graph(self) -> list[Units]:
        """The hidden units, see `fire_core.units.graph`: each layer is read by the next one, the last by the head."""
        layers = [m for m in self.backbone if isinstance(m, nn.Linear)]
        found = [m for m in self.backbone if isinstance(m, nn.BatchNorm1d)]
        norms: list[nn.Module | None] = [*found] if found else [None] * len(layers)
        readers = [*layers[1:], self.head]
        chain = zip(layers, readers, norms, strict=True)
        return [between(f"fc{i}", layer, reader, norm) for i, (layer, reader, norm) in enumerate(chain)]
