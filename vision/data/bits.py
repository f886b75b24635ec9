"""A regression that needs no data: from random bits to the output of a random network of threshold units."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fire_core.ranges import Share, Width, checked
from vision.data.images import ImageData


@dataclass(frozen=True)
class BitData(ImageData):
    """A data set of the regression, which is empty until `examples` makes examples.

    An example is an image of one pixel with a channel for each bit, uint8 (N, inputs, 1, 1); its label is a float32
    target. Bits are not normalised.

    Attributes:
        units: hidden units of the target network.
        beta: a unit is active if at least about this fraction of its inputs agrees with its weights.
    """

    units: int = 100
    beta: float = 0.7

    @property
    def inputs(self) -> int:
        """Number of input bits m, without the constant input of 1."""
        return self.in_channels

    def examples(self, slow: Tensor, number: int, target: torch.Generator, bits: torch.Generator) -> "BitData":
        """Return the data set with the training examples of one task.

        Args:
            slow: the first bits, which all examples share, uint8 (flipping,).
            number: number of examples.
            target: generator of the target network; in the same state it gives the same network.
            bits: generator of the other bits.
        """
        other_bits = torch.randint(2, (number, self.inputs - len(slow)), dtype=torch.uint8, generator=bits)
        all_bits = torch.cat([slow.expand(number, -1), other_bits], dim=1)  # (number, inputs)
        targets = self.target(all_bits.float(), target)
        device = self.mean.device
        return replace(self, train_images=all_bits[:, :, None, None].to(device), train_labels=targets.to(device))

    def target(self, bits: Tensor, generator: torch.Generator) -> Tensor:
        """Return the output (N,) of the target network that a generator draws, for bits (N, inputs).

        All weights are 1 or -1. Unit i is active if its weighted sum, a constant input of 1 included, exceeds
        (m + 1) beta - S_i, where S_i is the number of its weights that are -1 (Dohare et al. 2024, Methods). The public
        code (shibhansh/loss-of-plasticity, lop/nets/fix_ltu_net.py) has S_i = (m - sum of weights + weight of the
        constant input) / 2 instead.
        """

        def signs(*shape: int) -> Tensor:
            return torch.randint(2, shape, generator=generator).float() * 2 - 1

        weights, constant = signs(self.units, self.inputs + 1), torch.ones(len(bits), 1)
        thresholds = (self.inputs + 1) * self.beta - (weights < 0).sum(1)  # (units,)
        active = torch.cat([bits, constant], dim=1) @ weights.T > thresholds  # (N, units)
        return active.float() @ signs(self.units) + signs(1)


@checked
def load_bits(inputs: Width = 20, units: Width = 100, beta: Share = 0.7) -> BitData:
    """Return the regression from random bits (Dohare et al. 2024) without examples, which a stream makes.

    Args:
        inputs: bits of an example, without the constant input of 1.
        units: hidden units of the target network.
        beta: a unit is active if at least about this fraction of its inputs agrees with its weights.

    Raises:
        ValueError: if an argument is out of range.
    """
    no_images, no_targets = torch.zeros(0, inputs, 1, 1, dtype=torch.uint8), torch.zeros(0)
    mean, std = torch.zeros(inputs, 1, 1), torch.ones(inputs, 1, 1)
    return BitData(
        train_images=no_images,
        train_labels=no_targets,
        test_images=no_images,
        test_labels=no_targets,
        num_classes=1,
        mean=mean,
        std=std,
        test_mean=mean,
        test_std=std,
        units=units,
        beta=beta,
        published=True,
    )
