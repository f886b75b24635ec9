"""A multilayer perceptron on the pixels of small images: the default network of `vision.train`."""

from collections import OrderedDict
from typing import Literal

from torch import Tensor, nn

from fire_core.activations import Activation, activation_of, units_of
from fire_core.ranges import Count, Depth, Width, checked
from fire_core.units.graph import Units, between

NORMS = {True: nn.BatchNorm1d, "layer": nn.LayerNorm, False: None}


class MLP(nn.Module):
    """Linear layers, each with batch norm (Ioffe and Szegedy, arXiv 1502.03167) and a ReLU, and a linear head.

    Layer norm (Ba, Kiros and Hinton, arXiv 1607.06450) is a control for methods that keep networks plastic; CReLU and
    deep Fourier features (`fire_core.activations`) are activations that do.

    Args:
        num_classes: number of outputs.
        in_channels: channels of an image.
        image_size: height and width of an image in pixels.
        hidden: units of each hidden layer; with fourier the number of its features, two for each unit.
        depth: number of hidden layers.
        norm: the norm before each activation: True for batch norm, "layer" for layer norm. With False there is none,
            and the linear layers have biases.
        activation: relu, crelu (the next layer reads twice as many features) or fourier.

    Raises:
        ValueError: if a size is not a whole number of at least one, or `norm` or `activation` is unknown.
    """

    @checked
    def __init__(
        self,
        num_classes: Count,
        in_channels: Count = 1,
        image_size: Count = 8,
        hidden: Width = 64,
        depth: Depth = 5,
        norm: bool | Literal["layer"] = True,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        make_norm, (make_activation, self.copies) = NORMS[norm], activation_of(activation)
        units = units_of(activation, hidden)
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        inputs = in_channels * image_size**2
        for i in range(depth):
            layers[f"fc{i}"] = nn.Linear(inputs, units, bias=not norm)
            if make_norm is not None:
                layers[f"norm{i}"] = make_norm(units)
            layers[f"{activation}{i}"] = make_activation()
            inputs = units * self.copies
        self.backbone = nn.Sequential(layers)
        self.head = nn.Linear(inputs, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(images))  # (N, num_classes)
        return logits

    def unit_graph(self) -> list[Units]:
        """Return the hidden units (`fire_core.units.graph`): each layer is read by the next, the last by the head."""
        layers = [m for m in self.backbone if isinstance(m, nn.Linear)]
        norms: list[nn.Module | None] = [m for m in self.backbone if isinstance(m, nn.BatchNorm1d | nn.LayerNorm)]
        if not norms:
            norms = [None] * len(layers)
        readers = [*layers[1:], self.head]
        return [
            between(f"fc{i}", layer, reader, norm, self.copies)
            for i, (layer, reader, norm) in enumerate(zip(layers, readers, norms, strict=True))
        ]
