"""Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; public code: KellerJordan/Muon)
instead of the trainer's optimizer."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from fire_core.methods.layers import input_layers, linear_layers, output_layers
from fire_core.methods.protocol import MakeOptimizer, Method, Net, Variant
from fire_core.ranges import Decay, NonNegative, Positive, checked
from fire_core.split_muon import WHOLE, Cuts, SplitMuon, cut_of, entries_of, matrices_of
from fire_core.weights.layout import resolve


class MuonOptimizer(Method):
    """Orthogonalised momentum for hidden weights, Adam for the rest (input layer, head, biases, norms, embeddings).

    Hidden weights are those of the linear layers and convolutions but the output layers' and the one that reads the
    network's input (the first convolution, a patch embedding). In a head of several layers, such as DQN's, only the
    last one is an output layer. A convolution is the matrix (c_out, c_in k_h k_w). The direction of an m x n matrix is
    multiplied by sqrt(max(1, m/n)), that of a convolution, as in the public code, by sqrt(max(1, k_h/k_w)), which is 1
    for square kernels.

    A fused weight is cut into its true matrices (`SplitMuon`); with `split=False` it is one matrix, as
    `torch.optim.Muon` takes it.

    `variant=fire_paper` does what the FIRE authors' code does: the input layer, the class token and the position
    embedding of a vision transformer are trained by Muon too, no layer of a head is, and a fused weight is one matrix.

    Args:
        lr: of the hidden weights.
        adam_lr: of the rest.
        momentum: of Muon, Nesterov's.
        betas: of Adam.
        eps: of Adam.
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
            groups.setdefault((_factor(parameter, cuts), cuts), []).append(parameter)
        parts: list[torch.optim.Optimizer] = []
        if groups:
            muon = [{"params": p, "lr": self.lr * factor, "cuts": cuts} for (factor, cuts), p in groups.items()]
            parts.append(SplitMuon(muon, weight_decay=0.0, momentum=self.momentum))
        if rest:
            parts.append(torch.optim.AdamW(rest, lr=self.adam_lr, betas=self.betas, eps=self.eps, weight_decay=0.0))
        return CombinedOptimizer(*parts)

    def owned(self, net: Net) -> Iterable[nn.Parameter]:
        """The weights that Muon itself trains."""
        return hidden_weights(net, self.variant)


def _factor(parameter: nn.Parameter, cuts: Cuts) -> float:
    """The public code's factor over that of `SplitMuon`: it reads a convolution's off the kernel's sides."""
    (entry, *_) = entries_of(parameter, cuts)
    if not entry.kind.startswith("conv"):
        return 1.0
    rows, columns = matrices_of(entry, parameter).shape[-2:]
    sides = parameter.shape[-2] / parameter.shape[-1] if parameter.ndim > 3 else 1
    return math.sqrt(max(1, sides) / max(1, rows / columns))


def hidden_weights(net: Net, variant: str = "original", split: bool = True) -> dict[nn.Parameter, Cuts]:
    """What Muon trains, and how each weight is cut into matrices; see `MuonOptimizer`."""
    found: dict[nn.Parameter, Cuts] = {}
    paper = variant == "fire_paper"
    for module in net.modules.values():
        layers = {m.weight for m in linear_layers(module).values()}
        if not paper:
            layers -= {m.weight for m in input_layers(module) | output_layers(module)}
        for entry in resolve(module, "all"):
            free = paper and entry.role == "other" and entry.parameter.ndim > 1
            if free or (entry.parameter in layers and not (paper and entry.role == "head")):
                assert isinstance(entry.parameter, nn.Parameter)
                whole = (paper and entry.parameter.ndim < 4) or (not split and entry.parameter.ndim == 2)
                cut = WHOLE if whole else cut_of(entry)
                found[entry.parameter] = tuple(dict.fromkeys((*found.get(entry.parameter, ()), cut)))
    return found


class CombinedOptimizer(torch.optim.Optimizer):
    """Several optimizers as one; each keeps its own parameters.

    Args:
        *parts: the optimizers.
    """

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of all parts."""
        return [group for part in self.parts for group in part.param_groups]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in every optimizer."""
        for part in self.parts:
            part.zero_grad(set_to_none)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of each part."""
        for part in self.parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        """Those of the parts."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
