"""Read how one layer of a module is cut off a forward pass of that module alone, on random input.

For modules that no rule knows. What runs is a copy: no hook, buffer or mode of the user's module is touched.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fire_core.weights.fused import Cut
from fire_core.weights.read import read
from fire_core.weights.topology import unwrap


def read_module(module: nn.Module, layer: nn.Module) -> Cut | None:
    """How one layer of a module is cut, read off a forward pass of a copy of the module on random input.

    None if the module does not run on one tensor alone, or if nothing was seen.
    """
    copies: dict[int, nn.Module] = {}
    with torch.random.fork_rng([]):
        clone = _copy(module, copies)
    weight = copies[id(layer)].weight if id(layer) in copies else None
    if not isinstance(weight, Tensor):
        return None
    draw = torch.Generator().manual_seed(0)
    for shape in _shapes(layer):
        try:
            found = read(clone, (torch.randn(shape, generator=draw).to(weight),), {}, [weight])
        except Exception:  # whatever a module of somebody's may raise on input that it does not take
            continue
        if id(weight) in found:
            return found[id(weight)]
    return None


def _copy(module: nn.Module, copies: dict[int, nn.Module]) -> nn.Module:
    """The module in evaluation mode without hooks and wrappers. Weights are shared; sharded ones and those without
    numbers are drawn anew."""
    if id(module) in copies:
        return copies[id(module)]
    kind: Any = next(
        c for c in type(module).__mro__ if not c.__name__.startswith("FSDP")
    )  # `fully_shard` changes the class
    new: nn.Module = kind.__new__(kind)
    copies[id(module)] = new
    plain = {key: copy.copy(v) if isinstance(v, (list, dict)) else v for key, v in vars(module).items()}
    vars(new).update(plain | vars(nn.Module()), training=False)
    for key, p in module._parameters.items():
        new._parameters[key] = p
        if p is not None and (p.is_meta or hasattr(p, "device_mesh")):
            drawn = torch.randn(p.shape, device="cpu" if p.is_meta else p.device, dtype=p.dtype)
            new._parameters[key] = nn.Parameter(drawn)
    for key, buffer in module._buffers.items():
        if buffer is not None:
            buffer = torch.zeros_like(buffer, device="cpu") if buffer.is_meta else buffer.clone()
        new._buffers[key] = buffer
    for key, child in module._modules.items():
        new._modules[key] = None if child is None else _copy(unwrap(child), copies)
    return new


def _shapes(layer: nn.Module) -> list[tuple[int, ...]]:
    if isinstance(layer, _ConvNd):
        sides = (8,) * len(layer.kernel_size)
        return [(2, layer.in_channels, *sides), (2, layer.in_channels, *(7 for _ in sides))]
    weight: Any = layer.weight
    width = weight.shape[1 if isinstance(layer, nn.Linear) else 0]
    return [(2, 16, width), (2, 4, 4, width), (2, 49, width), (16, width)]
