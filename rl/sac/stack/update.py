"""SAC's update of S agents at once: `rl.sac.quick` on stacked weights."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fire_core.harness.stacked.layers import fills_vectors
from fire_core.harness.stacked.method import SeparateMethods
from fire_core.harness.stacked.network import StackedNetworks
from fire_core.harness.stacked.optimizer import Steps
from rl.sac.networks import Actor, Critics
from rl.sac.quick import Affine, Gradients, MakeAffine, Policy, QuickUpdate, Values
from rl.sac.update import Update


class StackedStep:
    """The step of the optimizers of S networks, with the methods' penalties.

    Args:
        networks: whose weights are moved.
        optimizer: of all of them.
        methods: in a phase in which they act.
    """

    def __init__(self, networks: StackedNetworks, optimizer: Steps, methods: SeparateMethods | None) -> None:
        self.optimizer, self.methods = optimizer, methods
        self.gradients = [(id(whole), whole.grad) for whole in networks.parameters.values()]

    def __call__(self, found: Gradients) -> None:
        """One step along these gradients."""
        for name, gradient in self.gradients:
            assert gradient is not None
            gradient.copy_(found[name].view_as(gradient))
        if self.methods is not None:
            with torch.enable_grad():
                self.methods.add_penalties()
        self.optimizer.step()


def stacked_update(
    agent: Update,
    networks: Mapping[str, StackedNetworks],
    optimizers: Mapping[str, Steps],
    methods: Mapping[str, SeparateMethods],
) -> QuickUpdate:
    """The update of S agents; what it is given and what it returns have a first dimension of S.

    Args:
        agent: one of them.
        networks: `actor`, `critic`, `target` and `temperature` of all.
        optimizers: of each but the target.
        methods: of networks, in a phase in which they act.
    """
    actor, critic, target = (networks[name].models[0] for name in ("actor", "critic", "target"))
    assert isinstance(actor, Actor)
    assert isinstance(critic, Critics)
    assert isinstance(target, Critics)
    return QuickUpdate(
        Policy(actor, stacked_affine(networks["actor"])),
        Values(critic, stacked_affine(networks["critic"])),
        Values(target, stacked_affine(networks["target"])),
        networks["temperature"].parameters["log"],
        {name: StackedStep(networks[name], steps, methods.get(name)) for name, steps in optimizers.items()},
        pieces(networks["target"]),
        pieces(networks["critic"]),
        agent.gamma,
        agent.tau,
        agent.target_entropy,
    )


class Thin(Affine):
    """Layers of one unit each, forward one by one: several are rounded in another way than one, as matrices."""

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        parts = zip(self.row.unbind(), x.unbind(), self.transposed.unbind(), strict=True)
        return torch.stack([torch.addmm(*part) for part in parts])


def stacked_affine(networks: StackedNetworks) -> MakeAffine:
    """A linear layer of one of the networks -> that of all; batched ones (n layers in parallel) become S n."""
    model = networks.models[0]
    stacked = {id(own): networks.parameters[name] for name, own in model.named_parameters()}

    def affine(module: nn.Linear) -> Affine:
        weight, bias = stacked[id(module.weight)], stacked[id(module.bias)]
        kind = Thin if module.weight.ndim == 2 and len(module.weight) == 1 else Affine
        return kind(weight.detach().flatten(0, -3), bias.detach().flatten(), (id(weight), id(bias)))

    return affine


def pieces(networks: StackedNetworks) -> list[Tensor]:
    """The stacked weights, each network's alone where kernels would round the numbers at its end in another way."""
    return [part for w in networks.parameters.values() for part in ([w.detach()] if fills_vectors(w) else w.detach())]
