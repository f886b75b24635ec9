"""DASH, direction-aware shrinking (Shin, Oh, Cho and Yun, "DASH: Warm-Starting Neural Network Training in Stationary
Settings without Loss of Plasticity", NeurIPS 2024, arXiv 2410.23364; public code: NAVER-INTEL-Co-Lab/gaudi-dash)."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from fire_core.methods.protocol import Context, Method, Net
from fire_core.ranges import Count, Share, away_from_default, checked, one_of
from fire_core.weights.optimizer_state import reset_optimizer_state

Batches = Iterator[tuple[Tensor, Tensor]]


class Dash(Method):
    """Shrink weights misaligned with the negative gradient.

    `variant=original`. The next phase's data come in chunks, the oldest first, unshuffled. Without a step, for each
    chunk in order
        G <- (1 - alpha) G - alpha g          g: gradient of the chunk's mean loss, G from 0
    then every filter w (the slice of one output and one input channel), every row of a linear layer and every bias
    vector of the two becomes w * clip(cos(w, G_w), minimum, 1). Norms, embeddings and buffers stay. A chunk is as large
    as the first phase's data. Where a trainer has no chunks (agents, language), each batch counts as one.

    `variant=fire_paper`: the same with g of each shuffled minibatch of one pass over the data, so that only the last
    1 / alpha of them count.

    `variant=step`: after every `every` optimizer steps each neuron's row w (a filter with all its input channels)
    becomes w * clip(1 - rate * max(cos(w, g_w) - alpha, 0), 0.5, 1), g the gradient of that step. Biases stay.

    Args:
        alpha: weight of the newest gradient; cosine from which on a row is shrunk (step).
        minimum: the paper's lambda, the strongest shrinking.
        mode: of the network while the gradients are taken: eval or train. The public code is in eval mode. In train
            mode a convolution's bias in front of a batch norm has no gradient but rounding noise, and its factor is
            arbitrary; the FIRE authors' code is in train mode in `warm_start` and in eval mode elsewhere.
        variant: original, fire_paper or step.
        every: optimizer steps between two shrinkings (step).
        rate: strength (step).

    Raises:
        ValueError: an option is out of its range.
    """

    @checked
    def __init__(
        self,
        alpha: Share = 0.3,
        minimum: Share = 0.05,
        mode: Annotated[str, one_of("eval", "train")] = "eval",
        variant: Annotated[str, one_of("original", "fire_paper", "step")] = "original",
        every: Count = 2000,
        rate: Share = 0.005,
    ) -> None:
        self.alpha, self.minimum, self.mode, self.variant = alpha, minimum, mode, variant
        self.every, self.rate = every, rate
        self.acts_within_phases = variant == "step"
        self.follows_gradients = self.spares_frozen = variant != "step"

    def idle_options(self) -> dict[str, str]:
        values: dict[str, Any] = {"every": self.every, "rate": self.rate}
        if self.variant == "step":
            values = {"minimum": self.minimum, "mode": self.mode}
        return dict.fromkeys(away_from_default(Dash, values), f"variant={self.variant}")

    def overrides(self, hook: str) -> bool:
        return super().overrides(hook) and not (hook == "at_boundary" and self.variant == "step")

    def at_boundary(self, net: Net, context: Context) -> dict[str, float]:
        if self.variant == "step":
            return {}
        buffers = {b: b.clone() for module in net.modules.values() for b in module.buffers()}
        with net.mode(training=self.mode == "train"):
            descent = smoothed_descent(net, context, self.alpha, in_chunks=self.variant == "original")
        with torch.no_grad():
            for buffer, value in buffers.items():  # running statistics moved in train mode
                buffer.copy_(value)
        shrink_(descent, self.minimum)
        reset_optimizer_state(context.optimizers, descent)
        return {}

    @torch.no_grad()
    def after_step(self, net: Net, context: Context) -> None:
        if self.variant != "step" or context.step % self.every:
            return
        for parameter in shrinkable(net):
            if parameter.grad is not None and parameter.ndim > 1:
                cosine = F.cosine_similarity(parameter.flatten(1), parameter.grad.flatten(1), dim=1)  # (d_out,)
                factor = (1 - self.rate * (cosine - self.alpha).clamp(min=0)).clamp(0.5, 1)
                parameter.mul_(factor.view(-1, *[1] * (parameter.ndim - 1)))


def shrinkable(net: Net) -> list[Tensor]:
    """Weights and biases of linear layers and convolutions, shared ones once."""
    found: dict[Tensor, None] = {}
    for root in net.modules.values():
        for module in root.modules():
            if isinstance(module, (nn.Linear, _ConvNd)):
                found |= dict.fromkeys(p for p in (module.weight, module.bias) if p is not None and p.requires_grad)
    return list(found)


def smoothed_descent(net: Net, context: Context, alpha: float, in_chunks: bool) -> dict[Tensor, Tensor]:
    """The negative gradient over one pass of the data, exponentially smoothed, by parameter.

    Args:
        net: the networks.
        context: with batches, chunks and the loss.
        alpha: weight of the newest gradient.
        in_chunks: one gradient for each chunk, if the trainer has chunks; else one for each batch.

    Raises:
        ValueError: the trainer gives no batches.
    """
    if context.batches is None or context.loss is None:
        raise ValueError("DASH needs batches of the next phase, which this trainer does not give")
    parameters = shrinkable(net)
    descent = [torch.zeros_like(p) for p in parameters]
    single = (iter([batch]) for batch in context.batches())
    for chunk in context.chunks() if in_chunks and context.chunks is not None else single:
        gradients = mean_gradients(parameters, context.loss, chunk)
        for direction, gradient in zip(descent, gradients, strict=True):
            direction.mul_(1 - alpha).add_(gradient, alpha=-alpha)
    return dict(zip(parameters, descent, strict=True))


def mean_gradients(
    parameters: list[Tensor], loss: Callable[[Tensor, Tensor], Tensor], batches: Batches
) -> list[Tensor]:
    """The gradient of the mean loss over all samples of some batches."""
    total: list[Tensor] = []
    samples = 0
    for inputs, targets in batches:
        size = len(targets)
        gradients = torch.autograd.grad(loss(inputs, targets), parameters, materialize_grads=True)
        if total:
            share = size / (samples + size)
            for mean, gradient in zip(total, gradients, strict=True):
                mean.mul_(1 - share).add_(gradient, alpha=share)
        else:
            total = list(gradients)
        samples += size
    return total


@torch.no_grad()
def shrink_(descent: dict[Tensor, Tensor], minimum: float) -> None:
    """Multiply each filter, row and bias by its clipped cosine with the direction of descent."""
    for parameter, direction in descent.items():
        first = {1: 0, 2: 1}.get(parameter.ndim, 2)  # bias: one vector; linear: d_out rows; filters: (c_out, c_in)
        shape = parameter.shape[:first]
        cosine = F.cosine_similarity(parameter.reshape(*shape, -1), direction.reshape(*shape, -1), dim=-1)
        parameter.mul_(cosine.clamp(minimum, 1).view(*shape, *[1] * (parameter.ndim - first)))
