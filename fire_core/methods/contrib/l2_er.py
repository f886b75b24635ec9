"""L2-ER, L2 and effective rank (Prakash, He, Guo, Tiwari, Serapio, Tao, Greenwald and Konidaris, "Spectral Collapse
Drives Loss of Plasticity in Deep Continual Learning", ICML 2026, arXiv 2509.22335; public code: KevinGuo27/lop-jax)."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch import Tensor, nn

from fire_core.methods.contrib.inputs import InputWatch, joined
from fire_core.methods.layers import norms
from fire_core.methods.protocol import Context, Method, Net
from fire_core.ranges import Count, NonNegative, checked
from fire_core.units.graph import Units
from fire_core.units.trace import unit_graph
from fire_core.units.watch import own_pass

EPS = 1e-8  # keeps the gradient of the effective rank finite where a singular value is 0


class L2EffectiveRank(Method):
    """L2 regularisation, and every `every` steps a step of gradient ascent on the effective rank of the features.

    The penalty is weight_decay / 2 * ||theta||^2. After every `every`-th step, the inputs of the last `every` steps are
    passed through the networks in one batch (under gradient accumulation, each step's last micro-batch), and
        p = singular values of a layer's features (samples, units), divided by their sum
        rank = exp(-sum p log p), averaged over the layers;  theta <- theta + lr * gradient of the rank
    The ascent does not go through the optimizer, and its pass moves batch norm's running statistics once more. Features
    are the inputs of the linear layers that read hidden units (`fire_core.units.graph`), after norm and nonlinearity; a
    token counts as a sample. Maps of convolutions are left out: the public code takes the last two layers of its
    convolutional networks, which are linear.

    Args:
        weight_decay: strength of the L2 regularisation, at least 0.
        lr: learning rate of the ascent, at least 0.
        every: steps between two ascents.
    """

    FIELDS = ("steps", "inputs")

    @checked
    def __init__(self, weight_decay: NonNegative = 1e-4, lr: NonNegative = 1e-3, every: Count = 10) -> None:
        self.weight_decay, self.lr, self.every, self.steps = weight_decay, lr, every, 0
        self.inputs = InputWatch(every)

    def check(self, net: Net) -> None:
        if not feature_readers(unit_graph(net.modules, log_omitted=True)):
            raise ValueError("no linear layer reads hidden units, so there are no features to take the rank of")

    def watch(self, net: Net) -> AbstractContextManager[None]:
        self.readers = feature_readers(unit_graph(net.modules))
        return self.inputs.on(net)

    def penalty(self, net: Net) -> Tensor:
        return self.weight_decay / 2 * norms(net.parameters()).square().sum()

    def after_step(self, net: Net, context: Context) -> None:
        self.inputs.end_step()
        self.steps += 1
        if self.steps % self.every:
            return
        features: list[Tensor] = []
        with own_pass(), collect_inputs(self.readers, features):
            for name, passes in self.inputs.kept.items():  # a network without a pass in these steps has no features
                by_position = (joined(argument) for argument in zip(*(each for each, _ in passes), strict=True))
                by_name = {key: joined([each[key] for _, each in passes]) for key in passes[-1][1]}
                net.modules[name](*by_position, **by_name)
        self.inputs.kept = {}
        if not features:
            return
        parameters = [p for p in net.parameters() if p.requires_grad]
        rank = torch.stack([effective_rank(x) for x in features]).mean()
        gradients = torch.autograd.grad(rank, parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.add_(gradient, alpha=self.lr)


def effective_rank(features: Tensor) -> Tensor:
    """Return the effective rank of features as a scalar with a gradient, between 1 and the smaller dimension.

    It is exp of the entropy of the singular values divided by their sum (Roy and Vetterli, 2007).
    `metrics.effective_rank` is the same without `EPS` and differs in the last digits.

    Args:
        features: (samples, units).
    """
    values = torch.linalg.svdvals(features.float())
    p = values / values.sum().clamp(min=EPS)
    entropy: Tensor = -(p * (p + EPS).log()).sum()
    return entropy.exp()


def feature_readers(graph: list[Units]) -> list[nn.Module]:
    """Return the linear layers that read hidden units, one for each tensor of features."""
    layers = {consumer.layer: None for units in graph for consumer in units.consumers if consumer.probed}
    return [layer for layer in layers if isinstance(layer, nn.Linear)]


@contextmanager
def collect_inputs(layers: list[nn.Module], features: list[Tensor]) -> Iterator[None]:
    """Within this block, append the input of each of these layers to `features` when it runs.

    The inputs are appended as (samples, units), attached to the graph of gradients, in the order in which layers run.
    """

    def append_input(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        features.append(inputs[0].flatten(0, -2))

    with ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(append_input).remove)
        yield
