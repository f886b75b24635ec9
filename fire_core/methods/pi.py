"""Plasticity injection (Nikishin, Oh, Ostrovski, Lyle, Pascanu, Dabney and Barreto, "Deep Reinforcement Learning with
Plasticity Injection", NeurIPS 2023, arXiv 2305.15555)."""

import copy
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from fire_core.methods.protocol import Context, Method, Net, Variant
from fire_core.ranges import checked
from fire_core.units.recycle import resample


class Injected(nn.Module):
    """old(x) + new(x) - frozen(x): only `new` learns, and at first it equals `frozen`, so the output is old(x).

    Args:
        old: the head so far; frozen.
        new: a head at fresh weights; trained, and copied into `frozen`.
    """

    def __init__(self, old: nn.Module, new: nn.Module) -> None:
        super().__init__()
        self.old = old.requires_grad_(False)
        self.new = new.requires_grad_(True)
        self.frozen = copy.deepcopy(new).requires_grad_(False)

    @property
    def heads(self) -> list[nn.Module]:
        """Return the new, the old and the frozen head; all three read the same features."""
        return [self.new, self.old, self.frozen]

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return old(x) + (new(x) - frozen(x)), which has the shape of one head's output."""
        output: Tensor = self.old(*inputs) + (self.new(*inputs) - self.frozen(*inputs))
        return output


class PlasticityInjection(Method):
    """Replace every head by the frozen old head plus a new head minus a frozen copy of the new one.

    Outputs do not change at that moment. A target network gets the same two new heads around its own old head. The
    optimizer must be rebuilt, as it holds parameters that are now frozen (the trainers do so for this method).

    `variant=original`: both new heads start from a fresh draw, from the distribution of the head's own initial entries.
    `variant=fire_paper`: they start from the run's initial head.

    A network's attribute `injectable` lists the names of its heads.

    Args:
        variant: original or fire_paper.
    """

    FIELDS = ("injections",)
    not_combinable = "puts new modules into the network, which no other method knows"
    # The outputs stay, so target and temperature stay valid; the old optimizer does not know the new heads.
    restarts: Mapping[str, str] = {"optimizer": "new", "temperature": "keep", "target": "keep"}

    @checked
    def __init__(self, variant: Variant = "original") -> None:
        self.variant = variant
        self.injections = 0

    def check(self, net: Net) -> None:
        for name, module in net.modules.items():
            if not hasattr(module, "injectable"):
                raise ValueError(
                    f"{name} ({type(module).__name__}) does not say which of its submodules is the head: give it an "
                    'attribute such as injectable = ("head",)'
                )
            submodules = dict(module.named_modules())
            heads = cast(tuple[str, ...], module.injectable)
            if absent := [path for path in heads if path not in submodules]:
                raise ValueError(f"injectable of {name} names {absent[0]}, which {type(module).__name__} does not have")

    def at_boundary(self, net: Net, context: Context) -> dict[str, float]:
        self._inject(net, context.generator)
        self.injections += 1
        return {}

    def reshape(self, net: Net) -> None:
        for _ in range(self.injections):
            self._inject(net, torch.Generator())  # any generator will do: the weights are loaded afterwards

    def _inject(self, net: Net, generator: torch.Generator) -> None:
        """Put an `Injected` around every head of each network and its target network, with the same weights in both.

        Args:
            net: the networks, changed in place.
            generator: draws the weights of new heads; with `variant=fire_paper` they are the run's initial ones.
        """
        for name, module in net.modules.items():
            init = net.init[name]
            if self.variant == "original":
                head_prefixes = tuple(f"{path}." for path in cast(tuple[str, ...], module.injectable))
                init = {
                    key: resample(value, value.shape, generator)
                    for key, value in init.items()
                    if key.startswith(head_prefixes)
                }
            for network in filter(None, (module, net.targets.get(name))):
                for path in cast(tuple[str, ...], module.injectable):
                    inject(network, path, init)


@torch.no_grad()
def inject(module: nn.Module, path: str, init: dict[str, Tensor]) -> None:
    """Replace the head `path` of a network by an `Injected` around it.

    Args:
        module: the network, changed in place.
        path: the head's name in the network.
        init: weights of a new head, by their names in the network.
    """
    old = module.get_submodule(path)
    template = old
    while isinstance(template, Injected):  # an earlier injection is around the plain head
        template = template.new
    new = copy.deepcopy(template)
    for name, parameter in new.named_parameters():
        parameter.copy_(init[f"{path}.{name}"])
    module.set_submodule(path, Injected(old, new))
