"""Hare and Tortoise (Lee, Cho, Kim, Kim, Min, Choo and Lyle, "Slow and Steady Wins the Race: Maintaining Plasticity
with Hare and Tortoise Networks", ICML 2024; public code: dojeon-ai/Hare-Tortoise)."""

import torch
from torch import Tensor

from fire_core.methods.protocol import Context, Method, Net, load_tensors, tensors_of
from fire_core.polar.steps import to_working
from fire_core.ranges import Count, Decay, checked


class HareTortoise(Method):
    """Let a slow copy follow the network, and set the network back to the copy every `every` epochs.

    After each step, for parameters and buffers: slow <- momentum slow + (1 - momentum) fast. The optimizer's state
    stays. The network that trains, the hare, is the one that is evaluated; the paper also evaluates the slow copy.
    Frozen weights and constant buffers stay as they are, bit for bit. The slow copy of half-precision weights is
    float32, because half precision would round its small steps away.

    In a chain, the copy starts anew after a boundary at which another method has acted. Otherwise what that method did,
    such as FIRE's isometries, would be gone when the network is next set back.

    Args:
        momentum: how much of itself the slow copy keeps at each step.
        every: epochs after which the network is set back to the copy; in an agent rows of its log.
    """

    FIELDS = ("epochs", "slow")

    @checked
    def __init__(self, momentum: Decay = 0.999, every: Count = 10) -> None:
        self.momentum, self.every, self.epochs = momentum, every, 0
        self.slow: dict[str, dict[str, Tensor]] = {}

    def before_step(self, net: Net, context: Context) -> None:
        if not self.slow:
            for key, state in Net.of(net.modules).init.items():  # copies of the weights and buffers as they are now
                self.slow[key] = {name: to_working(x) if x.is_floating_point() else x for name, x in state.items()}

    @torch.no_grad()
    def after_step(self, net: Net, context: Context) -> None:
        for key, module in net.modules.items():
            parameters = dict(module.named_parameters(remove_duplicate=False))
            for name, fast in tensors_of(module).items():
                slow, parameter = self.slow[key][name], parameters.get(name)
                if parameter is not None and parameter.requires_grad:
                    slow.mul_(self.momentum).add_(fast, alpha=1 - self.momentum)
                elif parameter is not None or not slow.is_floating_point():  # frozen, or a counter, as batch norm's
                    slow.copy_(fast)
                else:  # a buffer; the average of two equal numbers would be rounded
                    average = (slow * self.momentum).add_(fast, alpha=1 - self.momentum)
                    slow.copy_(torch.where(slow == fast, slow, average))

    def after_epoch(self, net: Net, context: Context) -> dict[str, float]:
        self.epochs += 1
        if self.epochs % self.every == 0 and self.slow:  # there is no copy until a step has been made
            for key, module in net.modules.items():
                load_tensors(module, self.slow[key])
        return {}

    def idle_reason(self) -> str:
        return "" if self.epochs >= self.every else f"every={self.every} epochs, of which it has seen {self.epochs}"

    def forget_weights(self) -> None:
        self.slow = {}  # the next step begins with a new copy
