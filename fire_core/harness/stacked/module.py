"""Stacked networks as a module, for methods that act on all of them at once."""

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fire_core.harness.stacked.network import StackedNetworks, put
from fire_core.methods import Net
from fire_core.units.find import unit_graph
from fire_core.units.graph import Units
from fire_core.units.stacked import StackedLinear


class StackedNorm(nn.BatchNorm1d):
    """One batch norm of S networks: (S, b, h) -> (S, b, h), with parameters and statistics (S, h)."""

    def forward(self, x: Tensor) -> Tensor:
        S, b, h = x.shape
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        if self.training:
            self.num_batches_tracked += 1
        mean, var, w, bias = (t.reshape(-1) for t in (self.running_mean, self.running_var, self.weight, self.bias))
        x = x.transpose(0, 1).reshape(b, S * h)
        flat = F.batch_norm(x, mean, var, w, bias, self.training, self.momentum, self.eps)
        return flat.view(b, S, h).transpose(0, 1)


def stacked_module(networks: StackedNetworks) -> nn.Module:
    """A module with the names of one network's, whose weights are those of all: (S, b, ...) -> (S, b, outputs).

    Args:
        networks: perceptrons (`layers` is not None).
    """
    model = networks.models[0]
    module, whole = copy.deepcopy(model), {**networks.parameters, **networks.buffers}
    for name, tensor in whole.items():
        put(module, name, tensor)
    for name, own in model.named_modules():
        layer: nn.Module | None = None
        if type(own) is nn.Linear:
            layer = StackedLinear(own, networks.parameters[f"{name}.weight"], networks.parameters.get(f"{name}.bias"))
        elif type(own) is nn.BatchNorm1d:
            module.get_submodule(name).__class__ = StackedNorm
        elif type(own) is nn.Flatten:
            layer = nn.Flatten(2)
        if layer is not None:
            path, _, last = name.rpartition(".")
            setattr(module.get_submodule(path), last, layer)
    module.unit_graph = functools.partial(_units, model, module)  # type: ignore[assignment]
    return module.train()


def _units(model: nn.Module, module: nn.Module) -> list[Units]:
    """The units of one network, with the stacked layers in the place of its own."""
    place = dict(zip(model.modules(), module.modules(), strict=True))
    return [
        replace(
            units,
            producers=tuple(replace(one, layer=place[one.layer]) for one in units.producers),
            consumers=tuple(replace(one, layer=place[one.layer]) for one in units.consumers),
            norms=tuple(place[norm] for norm in units.norms),
        )
        for units in unit_graph({"": model})
    ]


def stacked_net(nets: Sequence[Net], networks: Mapping[str, StackedNetworks]) -> Net:
    """The networks of S runs as one.

    Args:
        nets: of each run.
        networks: the stacked networks, by their module's name.
    """
    first = nets[0]
    init = {
        key: {name: torch.stack([net.init[key][name] for net in nets]) for name in first.init[key]} for key in networks
    }
    modules = {key: stacked_module(each) for key, each in networks.items()}
    return Net(modules, init, first.layout, parts=nets)
