"""L2-ER, L2 and effective rank (Prakash, He, Guo, Tiwari, Serapio, Tao, Greenwald and Konidaris, "Spectral Collapse
Drives Loss of Plasticity in Deep Continual Learning", ICML 2026, arXiv 2509.22335; public code: KevinGuo27/lop-jax)."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch import Tensor, nn

from fire_core.methods.contrib.inputs import InputWatch
from fire_core.methods.layers import norms
from fire_core.methods.protocol import Context, Method, Net
from fire_core.ranges import Count, NonNegative, checked
from fire_core.units.graph import Units
from fire_core.units.trace import unit_graph
from fire_core.units.watch import own_pass

EPS = 1e-8


class L2EffectiveRank(Method):
    """L2 regularisation, and every `every` steps a step of gradient ascent on the effective rank of the features.

    Loss + weight_decay / 2 * ||theta||^2. After every `every`-th step, with the inputs of these steps in one batch
    (under gradient accumulation, each step's last micro-batch):
        p = singular values of a layer's features (samples, units), divided by their sum
        rank = exp(-sum p log p), averaged over the layers;  theta <- theta + lr * gradient of the rank
    without the optimizer; the pass moves batch norm's running statistics once more. Features are the inputs of the
    linear layers that read hidden units
    (`fire_core.units.graph`), after norm and nonlinearity; a token counts as a sample. Maps of convolutions are left
    out: the public code takes the last two layers of its convolutional networks, which are linear.

    Args:
        weight_decay: at least 0.
        lr: of the ascent, at least 0.
        every: steps between two ascents.
    """

    FIELDS = ("steps", "inputs")

    @checked
    def __init__(self, weight_decay: NonNegative = 1e-4, lr: NonNegative = 1e-3, every: Count = 10) -> None:
        self.weight_decay, self.lr, self.every, self.steps = weight_decay, lr, every, 0
        self.inputs = InputWatch(every)

    def check(self, net: Net) -> None:
        if not readers(unit_graph(net.modules, say=True)):
            raise ValueError("no linear layer reads hidden units, so there are no features to take the rank of")

    def watch(self, net: Net) -> AbstractContextManager[None]:
        self.readers = readers(unit_graph(net.modules))
        return self.inputs.on(net)

    def penalty(self, net: Net) -> Tensor:
        return self.weight_decay / 2 * norms(net.parameters()).square().sum()

    def after_step(self, net: Net, context: Context) -> None:
        self.inputs.end_step()
        self.steps += 1
        if self.steps % self.every:
            return
        features: list[Tensor] = []
        with own_pass(), collected(self.readers, features):
            for name, module in net.modules.items():
                module(*(torch.cat(argument) for argument in zip(*self.inputs.kept[name], strict=True)))
        self.inputs.kept = {}
        parameters = [p for p in net.parameters() if p.requires_grad]
        rank = torch.stack([effective_rank(x) for x in features]).mean()
        gradients = torch.autograd.grad(rank, parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.add_(gradient, alpha=self.lr)


def effective_rank(features: Tensor) -> Tensor:
    """exp of the entropy of the singular values of features (samples, units) divided by their sum (Roy and Vetterli,
    2007), as a number with a gradient; between 1 and the smaller dimension.

    `metrics.effective_rank` is the same without `EPS`, which keeps the gradient finite where a singular value is 0; the
    last digits differ.
    """
    sizes = torch.linalg.svdvals(features.float())
    p = sizes / sizes.sum().clamp(min=EPS)
    entropy: Tensor = -(p * (p + EPS).log()).sum()
    return entropy.exp()


def readers(graph: list[Units]) -> list[nn.Module]:
    """The linear layers that read units, one for each tensor of features."""
    found = {consumer.layer: None for units in graph for consumer in units.consumers if consumer.probed}
    return [layer for layer in found if isinstance(layer, nn.Linear)]


@contextmanager
def collected(layers: list[nn.Module], into: list[Tensor]) -> Iterator[None]:
    """The inputs of these layers (samples, units), with their gradients, in the order in which they run."""

    def look(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        into.append(inputs[0].flatten(0, -2))

    with ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(look).remove)
        yield
