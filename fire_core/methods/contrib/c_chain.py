"""C-CHAIN, continual churn approximated reduction (Tang, Obando-Ceron, Castro, Courville and Berseth, "Mitigating
Plasticity Loss in Continual Reinforcement Learning by Reducing Churn", ICML 2025, arXiv 2506.00592; public code:
bluecontra/C-CHAIN, `crl_minatar/agents/double_dqn_c_chain.py`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from fire_core.methods.contrib.inputs import InputWatch, first_tensor
from fire_core.methods.protocol import Context, Method, Net
from fire_core.ranges import Count, NonNegative, checked


class ChurnReduction(Method):
    """Loss + c * mean squared churn: how far the last update moved the outputs for inputs that it was not made on.

    For a step with the weights theta_t, reference inputs x and theta_t-1 the weights before the last update:
        churn = mean (f(x; theta_t) - f(x; theta_t-1))^2, without a gradient through the second term
        c = coef in the first `warmup` steps, then scale * mean |loss| / mean churn over the last `window` steps
    Meant for agents (f: the action values). The public code draws x from the replay; here x are the inputs of the
    second step before (under gradient accumulation its last micro-batch), which neither this update nor the last one is
    made on. With batch norm both outputs are those of the batch; running statistics stay.

    In a chain, the weights before the last update and the kept inputs are dropped at a boundary at which another method
    has acted: its act is no churn.

    Args:
        scale: of the churn's part of the loss in the task's.
        coef: c at first.
        warmup: steps until c follows the losses.
        window: steps over which means are taken.

    Raises:
        ValueError: an option is out of its range.
    """

    acts_within_phases = True

    @checked
    def __init__(
        self, scale: NonNegative = 0.01, coef: NonNegative = 50.0, warmup: Count = 10_000, window: Count = 50_000
    ) -> None:
        self.scale, self.coef, self.warmup, self.window = scale, coef, warmup, window
        self.inputs = InputWatch(3)  # of this step and the two before
        self.before: dict[str, dict[str, Tensor]] = {}  # the weights before the last update
        self.churn: Tensor | None = None
        self.means: dict[str, Window] = {}

    @contextmanager
    def watch(self, net: Net) -> Iterator[None]:
        if not self.means:
            device = next(net.parameters()).device
            self.means = {name: Window(self.window, device) for name in ("loss", "churn")}
        with self.inputs.on(net):
            yield

    def penalty(self, net: Net) -> Tensor | None:
        kept, self.churn = self.inputs.kept, None
        if self.before and all(len(kept[name]) == self.inputs.steps for name in net.modules):
            self.churn = torch.stack([self._churn(net, name) for name in net.modules]).mean()
        self.before = {
            name: {key: p.detach().clone() for key, p in module.named_parameters()}
            for name, module in net.modules.items()
        }
        return None if self.churn is None else self._coefficient() * self.churn

    def _churn(self, net: Net, name: str) -> Tensor:
        module, inputs = net.modules[name], self.inputs.kept[name][0]

        def outputs(weights: dict[str, Any]) -> Tensor:
            buffers = {key: buffer.clone() for key, buffer in module.named_buffers()}
            return first_tensor(functional_call(module, weights | buffers, inputs))

        with self.inputs.off():
            now = outputs(dict(module.named_parameters()))
            with torch.no_grad():
                then = outputs(self.before[name])
        return (now - then).square().mean()

    def _coefficient(self) -> Tensor | float:
        loss, churn = self.means["loss"], self.means["churn"]
        return self.coef if loss.count < self.warmup else self.scale * loss.mean() / (churn.mean() + 1e-8)

    def after_step(self, net: Net, context: Context) -> None:
        self.inputs.end_step()
        if context.step_loss is None:
            raise ValueError("C-CHAIN needs the loss of each step, which this trainer does not give")
        self.means["loss"].add(context.step_loss.detach().abs())
        if self.churn is not None:
            self.means["churn"].add(self.churn.detach())

    def forget_weights(self) -> None:
        self.before = {}
        self.inputs.load_state_dict({})

    def state_dict(self) -> dict[str, Any]:
        means = {name: mean.state_dict() for name, mean in self.means.items()}
        return {"inputs": self.inputs.state_dict(), "before": self.before, "means": means}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inputs.load_state_dict(state["inputs"])
        self.before = state["before"]
        for name, kept in state["means"].items():
            self.means[name] = Window(self.window, kept["values"].device)
            self.means[name].load_state_dict(kept)


class Window:
    """The last numbers of a series and their mean, on a device, which nobody waits for.

    Args:
        size: how many are kept.
        device: of the numbers.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.values, self.count = torch.zeros(size, device=device), 0

    def add(self, value: Tensor) -> None:
        """Keep one more."""
        self.values[self.count % len(self.values)].copy_(value)
        self.count += 1

    def mean(self) -> Tensor:
        """Of what is kept; 0 of nothing."""
        return self.values.sum() / max(1, min(self.count, len(self.values)))

    def state_dict(self) -> dict[str, Any]:
        """For a resume."""
        return {"values": self.values, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.values, self.count = state["values"].clone(), state["count"]
