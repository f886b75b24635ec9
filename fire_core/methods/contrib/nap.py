"""NaP, normalize and project (Lyle, Zheng, Khetarpal, Martens, van Hasselt, Pascanu and Dabney, "Normalization and
effective learning rates in reinforcement learning", NeurIPS 2024, arXiv 2407.01800)."""

import torch
from torch import Tensor, nn

from fire_core.methods.layers import check_plain, hidden_layers, hidden_layers_of
from fire_core.methods.protocol import Context, Method, Net
from fire_core.polar.steps import to_working
from fire_core.ranges import Count, checked

NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._BatchNorm)


class NormalizeAndProject(Method):
    """In a network with a norm before each nonlinearity, keep the sizes of the weights as they were at the start.

    After every `every`-th step:
        W <- ||W_0|| / ||W|| W  for the weight W of each hidden layer (Frobenius norm)
        (g, b) <- ||(g_0, b_0)|| / ||(g, b)|| (g, b)  for the scale g and the shift b of each norm, jointly
    In front of a norm the size of a weight changes nothing but the effective learning rate, which is thereby held at
    what the schedule says. The output layers, whose size matters, stay as they are, and so do biases and embeddings,
    and each W or (g, b) of which something is frozen. Half precision is computed in float32 and rounded once.
    The network must have norms: `model.norm=layer` of vision's mlp, `model.norm=true` of DQN's networks.

    The authors have published no code. Which weights are projected and how often (each update and each 1000th gave
    nearly the same) is as in the paper; projecting scale and shift jointly is one of the ways that it describes.

    Args:
        every: steps between two projections.
    """

    FIELDS = ("steps",)

    @checked
    def __init__(self, every: Count = 1) -> None:
        self.every, self.steps = every, 0
        self.initial_norms: list[tuple[list[Tensor], Tensor]] = []  # tensors that are projected jointly, their norm

    def check(self, net: Net) -> None:
        check_plain(net, hidden_layers_of(net))
        for root in net.modules.values():
            if not any(isinstance(module, NORMS) for module in root.modules()):
                raise ValueError(
                    "it needs norms before the nonlinearities, which this network does not have; some of the programs' "
                    "networks get them by model.norm="
                )

    @torch.no_grad()
    def after_step(self, net: Net, context: Context) -> None:
        self.steps += 1
        if self.steps % self.every:
            return
        if not self.initial_norms:
            for key, root in net.modules.items():
                for group in projected_groups(root):
                    initial = [to_working(net.init[key][name]) for name in group]
                    self.initial_norms.append((list(group.values()), nn.utils.get_total_norm(initial)))
        for tensors, initial_norm in self.initial_norms:
            if not all(tensor.requires_grad for tensor in tensors):
                continue
            numbers = [to_working(tensor) for tensor in tensors]
            factor = (initial_norm / nn.utils.get_total_norm(numbers).clamp(min=1e-12)).to(numbers[0].dtype)
            for tensor, number in zip(tensors, numbers, strict=True):
                tensor.copy_(number * factor)


def projected_groups(root: nn.Module) -> list[dict[str, Tensor]]:
    """Return the groups of parameters that keep their joint norm, each group by name.

    A group is the weight of a hidden layer, or the scale and the shift of a norm.
    """
    groups = []
    hidden = hidden_layers(root)
    for path, module in root.named_modules():
        kinds: tuple[str, ...] = ()
        if module in hidden:
            kinds = ("weight",)
        elif isinstance(module, NORMS):
            kinds = ("weight", "bias")
        group = {f"{path}.{kind}": getattr(module, kind) for kind in kinds if getattr(module, kind, None) is not None}
        if group:
            groups.append(group)
    return groups
