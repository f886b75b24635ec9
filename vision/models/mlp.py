"""A perceptron on the pixels of small images: the default."""

from collections import OrderedDict
from typing import Literal

from torch import Tensor, nn

from fire_core.activations import Activation, activation_of, units_of
from fire_core.ranges import Count, Depth, Width, checked
from fire_core.units.graph import Units, between

NORMS = {True: nn.BatchNorm1d, "layer": nn.LayerNorm, False: None}


class MLP(nn.Module):
    """Linear layers, each with batch norm (Ioffe and Szegedy, arXiv 1502.03167) and a ReLU, and a linear head.

    Layer norm (Ba, Kiros and Hinton, arXiv 1607.06450) is the control of methods that keep networks plastic; CReLU and
    deep Fourier features (`fire_core.activations`) keep them plastic by their form.

    Args:
        num_classes: number of outputs.
        in_channels: channels of an image.
        image_size: height and width of an image in pixels.
        hidden: units of each hidden layer; with fourier its features, two of each unit.
        depth: number of hidden layers.
        norm: before each activation, True for batch norm, "layer" for layer norm; with False the layers have biases.
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
        """The hidden units, see `fire_core.units.graph`: each layer is read by the next one, the last by the head."""
        layers = [m for m in self.backbone if isinstance(m, nn.Linear)]
        found = [m for m in self.backbone if isinstance(m, nn.BatchNorm1d | nn.LayerNorm)]
        norms: list[nn.Module | None] = [*found] if found else [None] * len(layers)
        readers = [*layers[1:], self.head]
        chain = zip(layers, readers, norms, strict=True)
        return [between(f"fc{i}", one, two, norm, self.copies) for i, (one, two, norm) in enumerate(chain)]
