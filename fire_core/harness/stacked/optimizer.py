"""The optimizers of S networks: fused Adam over all their weights in one call, else each network's own."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from fire_core.harness.stacked.layers import fills_vectors
from fire_core.harness.stacked.network import StackedNetworks
from fire_core.methods.stack import join
from fire_core.weights.optimizer_state import parts_of, set_rate_factor


class StackedAdam:
    """Steps of S fused Adam(W) optimizers in one call, without what `torch.optim` does around it.

    The single optimizers keep their state, whose moments become views of common tensors. A weight stays one tensor for
    each network if its last numbers fill no whole vector, so that a network's numbers are those that it has alone, and
    if its steps are counted differently.

    Args:
        optimizers: one for each network, over its own parameters, with equal options.
        networks: whose stacked weights are moved.
    """

    def __init__(self, optimizers: Sequence[Optimizer], networks: StackedNetworks) -> None:
        self.optimizers = optimizers
        self.counts: dict[float, Tensor] = {}  # of steps, by the count with which they begin here
        self.counted: list[tuple[dict[str, Tensor], Tensor]] = []  # each state with its count
        # Of each group: weights, gradients, both moments, counts.
        self.lists: list[tuple[list[Tensor], ...]] = [([], [], [], [], []) for _ in optimizers[0].param_groups]
        names = {id(parameter): name for name, parameter in networks.models[0].named_parameters()}
        for number, group in enumerate(optimizers[0].param_groups):
            for place, parameter in enumerate(group["params"]):
                whole = networks.parameters[names[id(parameter)]]
                states = [o.state[o.param_groups[number]["params"][place]] for o in optimizers]
                self._add(self.lists[number], whole, states)

    def _add(self, lists: tuple[list[Tensor], ...], whole: nn.Parameter, states: list[dict[str, Tensor]]) -> None:
        """Take in a weight (S, ...), with the state that each optimizer has of it, none in the beginning."""
        begun = [float(state.get("step", 0.0)) for state in states]
        counts = [self.counts.setdefault(count, torch.tensor(count)) for count in begun]
        moments = []
        for key in ("exp_avg", "exp_avg_sq"):
            moments.append(torch.zeros_like(whole, requires_grad=False))
            for state, part in zip(states, moments[-1], strict=True):
                if key in state:
                    part.copy_(state[key])
                state[key] = part
        for state, count in zip(states, counts, strict=True):
            state["step"] = count.clone()
            self.counted.append((state, count))
        assert whole.grad is not None
        apart = not fills_vectors(whole) or len(set(begun)) > 1
        for column, tensor in zip(lists, (whole.detach(), whole.grad, *moments), strict=False):
            column.extend(tensor if apart else [tensor])
        lists[-1].extend(counts if apart else counts[:1])

    @torch.no_grad()
    def step(self, factor: float | None = None) -> None:
        """One step, at this part of the learning rates; None: at the rates as they are."""
        if factor is not None:
            set_rate_factor(self.optimizers[0], factor)
        for count in self.counts.values():
            count += 1
        for group, (weights, gradients, first, second, counts) in zip(
            self.optimizers[0].param_groups, self.lists, strict=True
        ):
            update = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
            update(
                weights,
                gradients,
                first,
                second,
                [],
                counts,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=group["maximize"],
            )

    def write_back(self) -> None:
        """Bring the single optimizers up to date: learning rates and counts of steps."""
        for optimizer in self.optimizers[1:]:
            for group, whole in zip(optimizer.param_groups, self.optimizers[0].param_groups, strict=True):
                group.update({key: value for key, value in whole.items() if key != "params"})
        for state, count in self.counted:
            state["step"].copy_(count)


class StackedOptimizer:
    """An optimizer of a method's own over the stacked weights. What the single ones keep are views of its state.

    Args:
        optimizers: one for each network.
        whole: the same over the stacked weights.
        as_seed: a context in which torch draws what the run of this network would draw alone.

    Raises:
        ValueError: the optimizers have counted different numbers of steps.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        whole: Optimizer,
        as_seed: Callable[[int], contextlib.AbstractContextManager[None]],
    ) -> None:
        self.optimizers, self.whole = optimizers, whole
        self.states: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []  # of a stacked weight, of each single one
        self.linked = False
        for part, singles in zip(parts_of(whole), zip(*map(parts_of, optimizers), strict=True), strict=True):
            if hasattr(part, "as_run"):
                part.as_run = as_seed
            for number, group in enumerate(part.param_groups):
                groups = [single.param_groups[number] for single in singles]
                group.update({key: value for key, value in groups[0].items() if key != "params"})
                for place, parameter in enumerate(group["params"]):
                    own = [o.state[g["params"][place]] for o, g in zip(singles, groups, strict=True)]
                    for key, value in own[0].items():
                        together = value if value.ndim == 0 else join([state[key] for state in own])
                        if any(value.ndim == 0 and not value.equal(state[key]) for state in own):
                            raise ValueError("the optimizers have made different numbers of steps")
                        part.state[parameter][key] = together.clone()
                    self.states.append((part.state[parameter], own))

    def step(self, factor: float | None = None) -> None:
        """See `StackedAdam.step`."""
        if factor is not None:
            set_rate_factor(self.whole, factor)
        self.whole.step()
        if not self.linked:
            self.write_back()
            self.linked = True

    def write_back(self) -> None:
        """Bring the single optimizers up to date: learning rates, counts of steps and views of the rest."""
        for optimizer in self.optimizers:
            for group, whole in zip(optimizer.param_groups, self.whole.param_groups, strict=True):
                group.update({key: value for key, value in whole.items() if key != "params"})
        for state, own in self.states:
            for key, value in state.items():
                for place, single in enumerate(own):
                    single[key] = value.clone() if value.ndim == 0 else value[place]


class SeparateOptimizers:
    """Each network's own optimizer makes its step.

    Args:
        optimizers: one for each network.
        as_seed: a context in which torch draws what the run of this network would draw alone.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], as_seed: Callable[[int], contextlib.AbstractContextManager[None]]
    ) -> None:
        self.optimizers, self.as_seed = optimizers, as_seed

    def step(self, factor: float | None = None) -> None:
        """See `StackedAdam.step`."""
        for seed, optimizer in enumerate(self.optimizers):
            if factor is not None:
                set_rate_factor(optimizer, factor)
            with self.as_seed(seed):
                optimizer.step()

    def write_back(self) -> None:
        """Nothing to do: each optimizer holds its own state."""


def can_step_together(optimizer: Optimizer) -> bool:
    """Whether `StackedAdam` makes the same step as S such optimizers of equal options."""
    groups: list[dict[str, Any]] = optimizer.param_groups
    plain = not any(group.get("amsgrad") or isinstance(group["lr"], Tensor) for group in groups)
    return isinstance(optimizer, Adam) and plain and all(group["fused"] for group in groups)


Steps = StackedAdam | StackedOptimizer | SeparateOptimizers
