"""C-CHAIN, continual churn approximated reduction (Tang, Obando-Ceron, Castro, Courville and Berseth, "Mitigating
Plasticity Loss in Continual Reinforcement Learning by Reducing Churn", ICML 2025, arXiv 2506.00592; public code:
bluecontra/C-CHAIN, `crl_minatar/agents/double_dqn_c_chain.py`)."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from fire_core.methods.contrib.inputs import InputWatch, first_tensor
from fire_core.methods.protocol import Context, Method, Net, Saved
from fire_core.ranges import Count, NonNegative, checked
from fire_core.units.watch import own_pass


class ChurnReduction(Method):
    """Add c * churn to the loss: the squared change that the last update made to outputs for inputs outside its batch.

    For a step with the weights theta_t, reference inputs x and theta_t-1 the weights before the last update:
        churn = mean (f(x; theta_t) - f(x; theta_t-1))^2, without a gradient through the second term
        c = coef in the first `warmup` steps, then scale * mean |loss| / mean churn over the last `window` steps
    The method is meant for agents (f: the action values). The public code draws x from the replay; here x is the batch
    of two steps ago (under gradient accumulation its last micro-batch), which neither this update nor the last one was
    computed from. With batch norm both outputs use the statistics of the batch; running statistics stay.

    In a chain, the weights before the last update and the stored inputs are dropped at a boundary at which another
    method has acted, because what that method does to the weights is no churn.

    Args:
        scale: size of the churn term relative to the task's loss, once c follows the losses.
        coef: c in the first `warmup` steps.
        warmup: steps until c follows the losses.
        window: steps over which means are taken.
    """

    FIELDS = ("inputs", "before", "losses", "churns")

    @checked
    def __init__(
        self, scale: NonNegative = 0.01, coef: NonNegative = 50.0, warmup: Count = 10_000, window: Count = 50_000
    ) -> None:
        self.scale, self.coef, self.warmup = scale, coef, warmup
        self.losses, self.churns = Window(window), Window(window)
        self.inputs = InputWatch(2)  # the inputs of the last two steps; `penalty` uses those of the older one
        self.before: dict[str, dict[str, Tensor]] = {}  # the weights before the last update
        self.churn: Tensor | None = None

    def watch(self, net: Net) -> AbstractContextManager[None]:
        return self.inputs.on(net)

    def penalty(self, net: Net) -> Tensor | None:
        inputs, self.churn = self.inputs.kept, None
        if self.before and all(len(inputs.get(name, [])) == self.inputs.steps for name in net.modules):
            self.churn = torch.stack([self._churn(net, name) for name in net.modules]).mean()
        return None if self.churn is None else self._coefficient() * self.churn

    def _churn(self, net: Net, name: str) -> Tensor:
        """Return the mean squared churn of one network's outputs for the inputs of two steps ago, a scalar."""
        module, (by_position, by_name) = net.modules[name], self.inputs.kept[name][0]

        def outputs(weights: dict[str, Any]) -> Tensor:
            buffers = {key: buffer.clone() for key, buffer in module.named_buffers()}
            return first_tensor(functional_call(module, weights | buffers, by_position, by_name))

        with own_pass():
            outputs_now = outputs(dict(module.named_parameters()))
            with torch.no_grad():
                outputs_before = outputs(self.before[name])
        return (outputs_now - outputs_before).square().mean()

    def _coefficient(self) -> Tensor | float:
        """Return c, by which the churn is multiplied in the loss."""
        if self.losses.count < self.warmup or not self.churns.count:
            return self.coef
        return self.scale * self.losses.mean() / (self.churns.mean() + 1e-8)

    def before_step(self, net: Net, context: Context) -> None:
        self.before = {
            name: {key: p.detach().clone() for key, p in module.named_parameters()}
            for name, module in net.modules.items()
        }

    def after_step(self, net: Net, context: Context) -> None:
        self.inputs.end_step()
        if context.step_loss is None:
            raise ValueError("C-CHAIN needs the loss of each step, which this trainer does not give")
        self.losses.add(context.step_loss.detach().abs())
        if self.churn is not None:
            self.churns.add(self.churn.detach())

    def forget_weights(self) -> None:
        self.before, self.inputs.kept = {}, {}


class Window(Saved):
    """The mean over the last numbers of a series, kept on the numbers' device so that the host never waits for it.

    Args:
        size: over how many numbers the mean is taken.
    """

    FIELDS = ("values", "count")

    def __init__(self, size: int) -> None:
        self.values, self.count = torch.zeros(size, dtype=torch.float32, device="cpu"), 0

    def add(self, value: Tensor) -> None:
        """Append a scalar; the oldest one is overwritten once there are more than `size`."""
        self.values = self.values.to(value.device, non_blocking=True)
        self.values[self.count % len(self.values)].copy_(value)
        self.count += 1

    def mean(self) -> Tensor:
        """Return the mean of the last `size` numbers, a scalar; 0 before the first number."""
        return self.values.sum() / max(1, min(self.count, len(self.values)))
