"""Find out by a run of a copy what a layer whose class has a forward pass of its own does with its weight."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fire_core.weights.forward_pass import copy_of
from fire_core.weights.generators import restored_generators
from fire_core.weights.nested import nested_tensors
from fire_core.weights.outside import state_outside_restored

_PLAIN_LAYERS: tuple[Any, ...] = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.MultiheadAttention, nn.LSTMCell, nn.GRUCell, nn.RNNCell, nn.LSTM, nn.GRU, nn.RNN,
)  # fmt: skip


def equals_plain(module: nn.Module) -> bool:
    """Return whether a layer with a forward pass of its own computes what torch's layer with its weights computes.

    Both are run once on random input, on a copy of the layer.

    Args:
        module: a layer of a subclass of torch's linear layer, convolutions, attention or recurrent layers.
    """
    kind = next((kind for kind in _PLAIN_LAYERS if isinstance(module, kind)), None)
    if kind is None:
        return False
    try:
        clone: Any = copy_of(module, {})
        reference: Any = kind.forward
        x = _input_of(clone)
        times = 3 if isinstance(module, nn.MultiheadAttention) else 1
        with state_outside_restored(clone), restored_generators([x]), torch.inference_mode(False), torch.no_grad():
            expected = nested_tensors(reference(clone, *[x] * times))[0]
            for count in dict.fromkeys((1, times)):
                with suppress(Exception):  # whatever the layer raises on arguments that it does not take
                    output = nested_tensors(clone(*[x] * count))[0]
                    if output.shape == expected.shape and torch.allclose(output, expected, rtol=1e-4, atol=1e-5):
                        return True
    except Exception:  # whatever torch's forward pass raises on a layer that was changed
        return False
    return False


def multiplies_by_stored(layer: nn.Linear) -> bool:
    """Return whether a linear layer with a forward pass of its own computes x W, up to a factor and a bias, not x W^T.

    Its weight W (d_out, d_in as torch names them) is then stored as (inputs, outputs). A copy of the layer is run on
    the unit vectors; a layer that does not run on one input alone, or computes something else, gives False.
    """
    try:
        clone: Any = copy_of(layer, {})
        weight = clone.weight.detach()
        units = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
        with state_outside_restored(clone), restored_generators([units]), torch.inference_mode(False), torch.no_grad():
            output = nested_tensors(clone(units))[0] - nested_tensors(clone(torch.zeros_like(units)))[0]
        factor = (output * weight).sum() / weight.square().sum()
        return bool(torch.allclose(output, factor * weight, rtol=1e-3, atol=1e-5)) and bool(factor.abs() > 1e-6)
    except Exception:  # whatever the layer raises on an input that it does not take
        return False


def convolves_backwards(layer: _ConvNd) -> bool:
    """Return whether a convolution's own forward pass takes `out_channels` channels and gives `in_channels`.

    That is what a transposed convolution with its weight does. A copy of the layer is run on random input; layers with
    as many inputs as outputs give False, as their shapes do not tell.
    """
    if layer.in_channels == layer.out_channels:
        return False
    try:
        clone: Any = copy_of(layer, {})
        sides = [max(4, d * (k - 1) + 2) for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
        draw = torch.Generator().manual_seed(0)
        x = torch.randn((2, layer.out_channels, *sides), generator=draw, device="cpu").to(clone.weight)
        with state_outside_restored(clone), restored_generators([x]), torch.inference_mode(False), torch.no_grad():
            return nested_tensors(clone(x))[0].shape[1] == layer.in_channels
    except Exception:  # whatever the layer raises on an input that it does not take
        return False


def _input_of(module: Any) -> Tensor:
    """Return a small random input for one of torch's layers."""
    weight = next(module.parameters())
    draw = torch.Generator().manual_seed(0)
    input_sizes = ("in_features", "in_channels", "embed_dim", "input_size")
    inputs = next(getattr(module, name) for name in input_sizes if hasattr(module, name))
    shape: tuple[int, ...] = (3, 2, inputs)
    if isinstance(module, _ConvNd):
        sides = [max(4, d * (k - 1) + 2) for k, d in zip(module.kernel_size, module.dilation, strict=True)]
        shape = (2, inputs, *sides)
    elif isinstance(module, (nn.RNNCellBase, nn.Linear)):
        shape = (3, inputs)
    return torch.randn(shape, generator=draw, dtype=torch.float32, device="cpu").to(weight)
