"""A small residual network for images of 8x8 to 32x32 pixels."""

from collections import OrderedDict
from typing import Annotated, Any

from torch import Tensor, nn

from fire_core.ranges import Count, Depth, Width, checked, within
from fire_core.units.graph import Consumer, Producer, Units, between


def stem(in_channels: int, width: int) -> nn.Sequential:
    """Build the first layers of a residual network for small images: a 3x3 convolution of stride 1, no max-pool."""
    return nn.Sequential(
        nn.Conv2d(in_channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
    )


def stage(in_channels: int, out_channels: int, blocks: int, stride: int) -> nn.Sequential:
    """Build a stage of basic blocks (He et al., arXiv 1512.03385); the first one changes width and resolution.

    Args:
        in_channels: input channels.
        out_channels: output channels.
        blocks: number of blocks.
        stride: stride of the first block.

    Returns:
        The blocks with torch's default initialisation, (N, in, H, W) -> (N, out, H / stride, W / stride).
    """
    from torchvision.models.resnet import BasicBlock, conv1x1  # here, as torchvision takes seconds to import

    shortcut = None
    if stride != 1 or in_channels != out_channels:
        shortcut = nn.Sequential(conv1x1(in_channels, out_channels, stride), nn.BatchNorm2d(out_channels))
    first = BasicBlock(in_channels, out_channels, stride, shortcut)
    return nn.Sequential(first, *(BasicBlock(out_channels, out_channels) for _ in range(blocks - 1)))


def residual_units(first: nn.Sequential, stages: Any, reader: nn.Module) -> list[Units]:
    """Return the hidden units of a residual network: those inside each block, and the channels of each stream.

    A residual stream reaches from one shortcut convolution to the next. All blocks in it write to the same channels, so
    that a channel is one unit with many producers and readers.

    Args:
        first: the stem.
        stages: sequences of basic blocks.
        reader: the linear layer that reads the last stream's pooled channels.
    """
    graph: list[Units] = []
    producers, norms = [Producer(first[0])], [first[1]]
    consumers: list[Consumer] = []

    def close_stream() -> None:
        weight = producers[0].layer.weight
        assert isinstance(weight, Tensor)
        width = len(weight)
        graph.append(Units(f"stream{width}", width, tuple(producers), tuple(consumers), tuple(norms)))

    for s, blocks in enumerate(stages):
        for b, block in enumerate(blocks):
            graph.append(between(f"stage{s + 1}.{b}.conv1", block.conv1, block.conv2, block.bn1))
            consumers.append(Consumer(block.conv1))
            if block.downsample is not None:
                consumers.append(Consumer(block.downsample[0], probed=False))  # it reads the same tensor as conv1
                close_stream()
                producers, norms, consumers = [Producer(block.downsample[0])], [block.downsample[1]], []
            producers.append(Producer(block.conv2))
            norms.append(block.bn2)
    consumers.append(Consumer(reader))
    close_stream()
    return graph


class SmallResNet(nn.Module):
    """Residual stages of doubling width and halving resolution, global average pooling, a linear head.

    Args:
        num_classes: number of outputs.
        in_channels: channels of an image.
        width: channels of the first stage; stage i has `width * 2**i`.
        stages: number of stages.
        depth: basic blocks in a stage.

    Raises:
        ValueError: if a size is not a whole number of at least one.
    """

    @checked
    def __init__(
        self,
        num_classes: Count,
        in_channels: Count = 1,
        width: Width = 16,
        stages: Annotated[int, within(1, 10)] = 2,
        depth: Depth = 1,
    ) -> None:
        super().__init__()
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            stem=stem(in_channels, width), stage1=stage(width, width, depth, stride=1)
        )
        for i in range(1, stages):
            layers[f"stage{i + 1}"] = stage(width * 2 ** (i - 1), width * 2**i, depth, stride=2)
        self.backbone = nn.Sequential(layers)
        self.head = nn.Linear(width * 2 ** (stages - 1), num_classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.backbone(images)  # (N, width * 2**(stages - 1), h, w)
        logits: Tensor = self.head(features.mean(dim=(2, 3)))  # (N, num_classes)
        return logits

    def unit_graph(self) -> list[Units]:
        """Return the hidden units, see `fire_core.units.graph`."""
        children: Any = self.backbone
        first, *stages = children
        return residual_units(first, stages, self.head)
