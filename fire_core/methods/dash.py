"""DASH, direction-aware shrinking (Shin, Oh, Cho and Yun, "DASH: Warm-Starting Neural Network Training in Stationary
Settings without Loss of Plasticity", NeurIPS 2024, arXiv 2410.23495; public code: NAVER-INTEL-Co-Lab/gaudi-dash)."""

from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Annotated, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from fire_core.methods.layers import check_plain, layers_of
from fire_core.methods.protocol import Context, Method, Net, Variant
from fire_core.polar.steps import to_working, working_dtype
from fire_core.ranges import Share, checked, one_of
from fire_core.reinit.checks import check_finite
from fire_core.weights import distributed
from fire_core.weights.optimizer_state import reset_optimizer_state

Batches = Iterator[tuple[Tensor, Tensor]]


class Dash(Method):
    """Shrink weights misaligned with the negative gradient.

    `variant=original`: the next phase's data come in chunks, the oldest first, unshuffled. Without an optimizer step,
    each chunk in order updates a smoothed direction of descent G, which starts from 0:
        G <- (1 - alpha) G - alpha g          g: gradient of the chunk's mean loss
    Then every filter w of a convolution (the slice of one output and one input channel), every row w of a linear layer
    and every bias vector w of either becomes w * clip(cos(w, G_w), minimum, 1), G_w being the same entries of G. Norms,
    embeddings, buffers and frozen weights stay. A chunk is as large as the first phase's data. Where a trainer has no
    chunks (agents, language), each batch counts as one. Of half-precision weights G and the cosines are computed in
    float32, and the result is rounded once. As in the public code, the cosine takes each norm for 1e-8 at
    least, so that a filter or a gradient of a smaller norm counts as less aligned than it is.

    `variant=fire_paper`: the same with g of each shuffled minibatch of one pass over the data, so that only the last
    1 / alpha of them count.

    Args:
        alpha: weight of the newest gradient.
        minimum: the DASH paper's lambda, the strongest shrinking. The default is the public code's; the FIRE paper has
            0.05 to 0.3.
        mode: mode of the network while the gradients are taken, eval or train. The public code uses eval mode. In train
            mode a convolution's bias in front of a batch norm has no gradient but rounding noise, so that its factor is
            arbitrary; the FIRE authors' code uses train mode in `warm_start` and eval mode elsewhere.
        variant: original or fire_paper.
    """

    follows_gradients = True
    uses_initial_weights = False

    @checked
    def __init__(
        self,
        alpha: Share = 0.3,
        minimum: Share = 0.3,
        mode: Annotated[str, one_of("eval", "train")] = "eval",
        variant: Variant = "original",
    ) -> None:
        self.alpha, self.minimum, self.mode, self.variant = alpha, minimum, mode, variant

    def check(self, net: Net) -> None:
        check_plain(net, (layer for layer in layers_of(net) if any(p.requires_grad for p in layer.parameters())))
        if any(map(distributed.is_sharded, shrinkable(net))):
            raise ValueError("DASH takes gradients of whole weights, and these are sharded over ranks")

    def at_boundary(self, net: Net, context: Context) -> dict[str, float]:
        parameters = shrinkable(net, context.spared)
        buffers = [(buffer, buffer.clone()) for buffer in net.buffers()]
        with net.mode(training=self.mode == "train"), without_sharing_buffers(net):
            try:
                groups = map(distributed.ddp_group, net.modules.values())
                group = next((group for group in groups if group is not None), None)
                alone = {p for module in net.modules.values() for p in distributed.ignored_by_ddp(module)}
                descent = smoothed_descent(parameters, context, self.alpha, self.variant == "original", group, alone)
            finally:
                with torch.no_grad():
                    for buffer, value in buffers:  # train mode has moved the running statistics of batch norms
                        buffer.copy_(value)
        names: dict[Tensor, str] = {p: name for module in net.modules.values() for name, p in module.named_parameters()}
        named = [(names.get(p, "a weight"), p, direction) for p, direction in descent.items()]
        check_finite(((name, p) for name, p, _ in named), group)
        check_finite(((f"the gradient of {name}", direction) for name, _, direction in named), group)
        shrink_(descent, self.minimum)
        reset_optimizer_state(context.optimizers, descent)
        return {}


@contextmanager
def without_sharing_buffers(net: Net) -> Iterator[None]:
    """Let DistributedDataParallel copy no buffers between the processes, which may have other numbers of batches."""
    uncompiled = [getattr(module, "_orig_mod", module) for module in net.modules.values()]
    wrapped = [module for module in uncompiled if isinstance(module, nn.parallel.DistributedDataParallel)]
    copied = [module.broadcast_buffers for module in wrapped]
    for module in wrapped:
        module.broadcast_buffers = False
    try:
        yield
    finally:
        for module, broadcast_buffers in zip(wrapped, copied, strict=True):
            module.broadcast_buffers = broadcast_buffers


def shrinkable(net: Net, spared: Set[Tensor] = frozenset()) -> list[Tensor]:
    """Return the trainable weights and biases of linear layers and convolutions, except `spared`, shared ones once.

    Raises:
        ValueError: there are none.
    """
    parameters = dict.fromkeys(p for layer in layers_of(net) for p in (layer.weight, layer.bias) if p is not None)
    chosen = [p for p in parameters if p.requires_grad and p not in spared and p.numel()]
    if not chosen:
        raise ValueError(
            "no weight or bias of a linear layer or convolution can be shrunk: each is frozen (requires_grad=False), "
            "kept or empty"
        )
    return chosen


def smoothed_descent(
    parameters: list[Tensor],
    context: Context,
    alpha: float,
    in_chunks: bool,
    group: Any = None,
    alone: Set[Tensor] = frozenset(),
) -> dict[Tensor, Tensor]:
    """Return the negative gradient of each parameter, exponentially smoothed over one pass of the next phase's data.

    It is float32, or float64 of a float64 parameter.

    Args:
        parameters: the parameters to differentiate by.
        context: gives the batches, the chunks and the loss.
        alpha: weight of the newest gradient.
        in_chunks: take one gradient for each chunk, if the trainer has chunks; otherwise one for each batch.
        group: process group of replicas, each of which has batches of its own; the result is their mean.
        alone: parameters that differ between the replicas, of which each takes its own gradient.

    Raises:
        ValueError: the trainer gives no batches, or there is no sample in them.
    """
    if context.batches is None or context.loss is None:
        raise ValueError("DASH needs batches of the next phase, which this trainer does not give")
    descent = [torch.zeros_like(p, dtype=working_dtype(p)) for p in parameters]
    if in_chunks and context.chunks is not None:
        chunks = context.chunks()
    else:
        chunks = (iter([batch]) for batch in context.batches())
    seen = False
    for chunk in chunks:
        gradients = mean_gradients(parameters, context.loss, chunk)
        if not gradients:
            continue
        seen = True
        for direction, gradient in zip(descent, gradients, strict=True):
            direction.mul_(1 - alpha).add_(gradient, alpha=-alpha)
    seen_here = seen
    if group is not None:
        replicas_with_samples = torch.tensor(float(seen), device=descent[0].device)
        dist.all_reduce(replicas_with_samples, group=group)
        seen = bool(replicas_with_samples)
        for parameter, direction in zip(parameters, descent, strict=True):
            if parameter in alone:
                continue
            dist.all_reduce(direction, group=group)
            direction.div_(replicas_with_samples.clamp(min=1))
    if not seen:  # without a direction every weight would be shrunk as far as it may
        raise ValueError("DASH needs batches of the next phase, and there is no sample: the model is unchanged")
    directions = dict(zip(parameters, descent, strict=True))
    return directions if seen_here else {p: direction for p, direction in directions.items() if p not in alone}


def mean_gradients(
    parameters: list[Tensor], loss: Callable[[Tensor, Tensor], Tensor], batches: Batches
) -> list[Tensor]:
    """Return the gradient of the mean loss over all samples of these batches, one tensor for each parameter.

    The list is empty if there are no samples.
    """
    means: list[Tensor] = []
    samples = 0
    for inputs, targets in batches:
        size = len(targets)
        if not size:  # its mean loss is NaN, and its gradient NaN or zero
            continue
        gradients = [
            to_working(gradient)
            for gradient in torch.autograd.grad(loss(inputs, targets), parameters, materialize_grads=True)
        ]
        if means:
            share = size / (samples + size)
            for mean, gradient in zip(means, gradients, strict=True):
                mean.mul_(1 - share).add_(gradient, alpha=share)
        else:
            means = gradients
        samples += size
    return means


@torch.no_grad()
def shrink_(descent: dict[Tensor, Tensor], minimum: float) -> None:
    """Multiply each filter, row and bias by its clipped cosine with the direction of descent."""
    for parameter, direction in descent.items():
        # A bias is one vector; a linear layer has d_out rows; a convolution has (c_out, c_in) filters.
        leading_dims = {1: 0, 2: 1}.get(parameter.ndim, 2)
        shape = parameter.shape[:leading_dims]
        old = to_working(parameter)
        cosine = F.cosine_similarity(old.reshape(*shape, -1), direction.reshape(*shape, -1), dim=-1)
        parameter.copy_(old * cosine.clamp(minimum, 1).view(*shape, *[1] * (parameter.ndim - leading_dims)))
