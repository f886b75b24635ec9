"""Hare and Tortoise (Lee, Cho, Kim, Kim, Min, Choo and Lyle, "Slow and Steady Wins the Race: Maintaining Plasticity
with Hare and Tortoise Networks", ICML 2024; public code: dojeon-ai/Hare-Tortoise)."""

import torch
from torch import Tensor

from fire_core.methods.protocol import Context, Method, Net
from fire_core.ranges import Count, Decay, checked


class HareTortoise(Method):
    """Let a slow copy follow the network, and set the network back to the copy every `every` epochs.

    After each step, for parameters and buffers: slow <- momentum slow + (1 - momentum) fast. The optimizer's state
    stays. The network that trains, the hare, is the one that is evaluated; the paper also evaluates the slow copy.

    In a chain, the copy starts anew after a boundary at which another method has acted. Otherwise what that method did,
    such as FIRE's isometries, would be gone when the network is next set back.

    Args:
        momentum: how much of itself the slow copy keeps at each step.
        every: epochs after which the network is set back to the copy.
    """

    FIELDS = ("epochs", "slow")

    @checked
    def __init__(self, momentum: Decay = 0.999, every: Count = 10) -> None:
        self.momentum, self.every, self.epochs = momentum, every, 0
        self.slow: dict[str, dict[str, Tensor]] = {}

    def before_step(self, net: Net, context: Context) -> None:
        self.slow = self.slow or Net.of(net.modules).init  # copies of the weights and buffers as they are now

    @torch.no_grad()
    def after_step(self, net: Net, context: Context) -> None:
        for key, module in net.modules.items():
            for name, fast in module.state_dict().items():
                slow = self.slow[key][name]
                if slow.is_floating_point():
                    slow.mul_(self.momentum).add_(fast, alpha=1 - self.momentum)
                else:  # a counter, as batch norm's number of batches
                    slow.copy_(fast)

    def after_epoch(self, net: Net, context: Context) -> dict[str, float]:
        self.epochs += 1
        if self.epochs % self.every == 0:
            for key, module in net.modules.items():
                module.load_state_dict(self.slow[key])
        return {}

    def forget_weights(self) -> None:
        self.slow = {}  # the next step begins with a new copy
