"""Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; public code: KellerJordan/Muon)
instead of the trainer's optimizer."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from fire_core.methods.layers import input_layers, named_layers, output_layers
from fire_core.methods.protocol import MakeOptimizer, Method, Net, Variant
from fire_core.muon.cuts import WHOLE, Cuts, cut_of, entries_of, matrices_of
from fire_core.muon.optimizer import SplitMuon
from fire_core.ranges import Decay, NonNegative, Positive, checked
from fire_core.weights.layout import resolve
from fire_core.weights.optimizers import evaluated


class MuonOptimizer(Method):
    """Orthogonalised momentum for hidden weights, Adam for the rest (input layer, head, biases, norms, embeddings).

    Hidden weights are those of all linear layers and convolutions except the output layers and the layer that reads the
    network's input (the first convolution, a patch embedding). In a head of several layers, such as DQN's, only the
    last one is an output layer. A convolution is the matrix (c_out, c_in k_h k_w). The update of an m x n matrix is
    multiplied by sqrt(max(1, m/n)), that of a convolution, as in the public code, by sqrt(max(1, k_h/k_w)), which is 1
    for square kernels.

    A fused weight is cut into its true matrices (`SplitMuon`); with `split=False` it is one matrix, as
    `torch.optim.Muon` takes it.

    `variant=fire_paper` does what the FIRE authors' code does: the input layer, the class token and the position
    embedding of a vision transformer are trained by Muon too, no layer of a head is, and a fused weight is one matrix.

    Args:
        lr: Muon's learning rate, for the hidden weights.
        adam_lr: Adam's learning rate, for the rest.
        momentum: Muon's Nesterov momentum.
        betas: Adam's betas.
        eps: Adam's epsilon.
        variant: original or fire_paper.
        split: whether each part of a fused weight is a matrix of its own; never with fire_paper.
    """

    @checked
    def __init__(
        self,
        lr: Positive = 1e-2,
        adam_lr: NonNegative = 1e-3,
        momentum: Decay = 0.95,
        betas: tuple[Decay, Decay] = (0.9, 0.95),
        eps: NonNegative = 1e-10,
        variant: Variant = "original",
        split: bool = True,
    ) -> None:
        self.lr, self.adam_lr, self.momentum, self.betas, self.eps = lr, adam_lr, momentum, (betas[0], betas[1]), eps
        self.variant, self.split = variant, split

    def idle_options(self) -> dict[str, str]:
        return {"split": "variant=fire_paper"} if self.variant == "fire_paper" else {}

    def check(self, net: Net) -> None:
        if not hidden_weights(net, self.variant):
            raise ValueError(
                "Muon would train no weight: no linear layer or convolution lies between the network's first and last"
            )

    def optimizer(self, net: Net, default: MakeOptimizer) -> torch.optim.Optimizer:
        hidden = hidden_weights(net, self.variant, self.split)
        rest = [p for p in net.parameters() if p not in hidden]
        groups: dict[tuple[float, Cuts], list[nn.Parameter]] = {}
        for parameter, cuts in hidden.items():
            groups.setdefault((_rate_factor(parameter, cuts), cuts), []).append(parameter)
        parts: list[torch.optim.Optimizer] = []
        if groups:
            muon_param_groups = [
                {"params": parameters, "lr": self.lr * factor, "cuts": cuts}
                for (factor, cuts), parameters in groups.items()
            ]
            parts.append(SplitMuon(muon_param_groups, weight_decay=0.0, momentum=self.momentum))
        if rest:
            parts.append(torch.optim.AdamW(rest, lr=self.adam_lr, betas=self.betas, eps=self.eps, weight_decay=0.0))
        return CombinedOptimizer(*parts)

    def owned(self, net: Net) -> Iterable[nn.Parameter]:
        """Return the hidden weights, which Muon trains; Adam trains the rest."""
        return hidden_weights(net, self.variant)


def _rate_factor(parameter: nn.Parameter, cuts: Cuts) -> float:
    """Return the public code's update factor of a weight divided by that of `SplitMuon`; 1 but for convolutions.

    For a convolution the public code takes sqrt(max(1, k_h/k_w)) of the kernel's sides, `SplitMuon` takes
    sqrt(max(1, m/n)) of the m x n matrix. The quotient goes into the learning rate.
    """
    (entry, *_) = entries_of(parameter, cuts)
    if not entry.kind.startswith("conv"):
        return 1.0
    rows, columns = matrices_of(entry, parameter).shape[-2:]
    side_ratio = parameter.shape[-2] / parameter.shape[-1] if parameter.ndim > 3 else 1
    return math.sqrt(max(1, side_ratio) / max(1, rows / columns))


def hidden_weights(net: Net, variant: str = "original", split: bool = True) -> dict[nn.Parameter, Cuts]:
    """Return the weights that Muon trains, each with how it is cut into matrices.

    Args:
        net: the networks.
        variant: see `MuonOptimizer`.
        split: see `MuonOptimizer`.
    """
    cuts: dict[nn.Parameter, Cuts] = {}
    paper = variant == "fire_paper"
    for module in net.modules.values():
        layer_weights = {layer.weight for layer in named_layers(module).values()}
        if not paper:
            layer_weights -= {layer.weight for layer in input_layers(module) | output_layers(module)}
        for entry in resolve(module, "all"):
            is_embedding = paper and entry.role == "other" and entry.parameter.ndim > 1  # class token, positions
            if is_embedding or (entry.parameter in layer_weights and not (paper and entry.role == "head")):
                assert isinstance(entry.parameter, nn.Parameter)
                uncut = (paper and entry.parameter.ndim < 4) or (not split and entry.parameter.ndim == 2)
                cut = WHOLE if uncut else cut_of(entry)
                # A fused weight has an entry for each of its parts, and a cut for each.
                cuts[entry.parameter] = tuple(dict.fromkeys((*cuts.get(entry.parameter, ()), cut)))
    return cuts


class CombinedOptimizer(torch.optim.Optimizer):
    """Several optimizers behind one interface; each trains its own parameters.

    The parts hold all state: the `state` of the whole is empty.

    Args:
        *parts: the optimizers, whose parameters do not overlap.
    """

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        super().__init__(self.param_groups, {})

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Return the parameter groups of all parts, in their order."""
        return [group for part in self.parts for group in part.param_groups]

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        """Ignore what the base class's constructor sets: the groups are always those of the parts."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse a group that no part has, since it is not known which part should train it.

        Raises:
            ValueError: the group is new.
        """
        if not any(param_group is group for group in self.param_groups):
            raise ValueError("add the group to one of the parts: which one trains it is not known here")

    def __getstate__(self) -> dict[str, Any]:
        return {"parts": self.parts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        CombinedOptimizer.__init__(self, *state["parts"])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parts' parameters."""
        for part in self.parts:
            part.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step of each part, after `closure` (if given) has computed the gradients; return its value."""
        loss = evaluated(closure)
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each part, as a list under "parts"."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
