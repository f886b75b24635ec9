"""Weight clipping (Elsayed, Lan, Lyle and Mahmood, "Weight Clipping for Deep Continual and Reinforcement Learning", RLC
2024, arXiv 2407.01704; public code: mohmdelsayed/weight-clipping)."""

import math

import torch

from fire_core.methods.layers import Layer, check_plain, layers_of, output_layers
from fire_core.methods.protocol import Context, Method, Net
from fire_core.ranges import Positive, checked


class WeightClipping(Method):
    """After each step, clip weights and biases to zeta / sqrt(fan_in), the bound of their uniform initialisation.

    Linear layers and convolutions are clipped; norms, embeddings, frozen weights and layers without inputs stay. (The
    public code clips the one-dimensional parameters of norms as if they were biases; its paper has networks without
    norms.)

    Args:
        zeta: factor of the bound.
        clip_last_layer: clip the output layers too.
    """

    @checked
    def __init__(self, zeta: Positive = 1.0, clip_last_layer: bool = True) -> None:
        self.zeta, self.clip_last_layer = zeta, clip_last_layer

    def check(self, net: Net) -> None:
        check_plain(net, self.clipped_layers(net))

    def clipped_layers(self, net: Net) -> list[Layer]:
        """Return the layers whose weights and biases are clipped."""
        if self.clip_last_layer:
            return layers_of(net)
        outputs = {layer for root in net.modules.values() for layer in output_layers(root)}
        return [layer for layer in layers_of(net) if layer not in outputs]

    @torch.no_grad()
    def after_step(self, net: Net, context: Context) -> None:
        for layer in self.clipped_layers(net):
            if not layer.weight.numel():
                continue
            bound = self.zeta / math.sqrt(math.prod(layer.weight.shape[1:]))
            for parameter in (layer.weight, layer.bias):
                if parameter is not None and parameter.requires_grad:
                    parameter.clamp_(-bound, bound)
