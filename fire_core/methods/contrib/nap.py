"""NaP, normalize and project (Lyle, Zheng, Khetarpal, Martens, van Hasselt, Pascanu and Dabney, "Normalization and
effective learning rates in reinforcement learning", NeurIPS 2024, arXiv 2407.01800)."""

import torch
from torch import Tensor, nn

from fire_core.methods.layers import check_plain, hidden_layers, hidden_layers_of
from fire_core.methods.protocol import Context, Method, Net
from fire_core.ranges import Count, checked

NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._BatchNorm)


class NormalizeAndProject(Method):
    """In a network with a norm before each nonlinearity, keep the weights' norms as they were at the start.

    Every `every` steps, after the step:
        W <- ||W_0|| / ||W|| W  for the weight W of each hidden layer (Frobenius norm)
        (g, b) <- ||(g_0, b_0)|| / ||(g, b)|| (g, b)  for the scale g and the shift b of each norm, jointly
    Behind a norm a weight's size changes nothing but the effective learning rate, which is so held at what the
    schedule says. The output layers, whose size matters, are left alone, and so are biases and embeddings. The norms
    are the network's own: `model.norm=layer` of vision's mlp, `model.norm=true` of DQN's networks.

    There is no public code of the authors. Which weights are projected and how often (each update and each 1000th gave
    nearly the same) is the paper's; that scale and shift are projected jointly is one of the ways that it gives.

    Args:
        every: steps between two projections.
    """

    FIELDS = ("steps",)

    @checked
    def __init__(self, every: Count = 1) -> None:
        self.every, self.steps = every, 0
        self.targets: list[tuple[list[Tensor], Tensor]] = []  # what is projected, and the norm that it keeps

    def check(self, net: Net) -> None:
        check_plain(net, hidden_layers_of(net))
        for root in net.modules.values():
            if not any(isinstance(module, NORMS) for module in root.modules()):
                raise ValueError(
                    "it needs norms before the nonlinearities, which this network has not: model.norm=layer (vision's "
                    "mlp), model.norm=true (networks of rl.dqn)"
                )

    @torch.no_grad()
    def after_step(self, net: Net, context: Context) -> None:
        self.steps += 1
        if self.steps % self.every:
            return
        self.targets = self.targets or [
            (held, nn.utils.get_total_norm([net.init[key][name] for name in names]))
            for key, root in net.modules.items()
            for names, held in projected(root)
        ]
        for tensors, target in self.targets:
            factor = (target / nn.utils.get_total_norm(tensors).clamp(min=1e-12)).to(tensors[0].dtype)
            for tensor in tensors:
                tensor.mul_(factor)


def projected(root: nn.Module) -> list[tuple[list[str], list[Tensor]]]:
    """What keeps its norm: each hidden layer's weight, and each norm's scale and shift together, with their names."""
    found = []
    hidden = hidden_layers(root)
    for path, module in root.named_modules():
        kinds = ("weight",) if module in hidden else ("weight", "bias") if isinstance(module, NORMS) else ()
        held = {f"{path}.{kind}": getattr(module, kind) for kind in kinds if getattr(module, kind, None) is not None}
        if held:
            found.append((list(held), list(held.values())))
    return found
