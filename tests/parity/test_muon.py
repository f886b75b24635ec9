"""Muon with its auxiliary Adam against the authors' code (tests/golden/muon.npz and muon_groups.json)."""

import math
import re

import pytest
import torch
from torch import Tensor, nn

from fire_core.methods import Net
from fire_core.methods.muon import CombinedOptimizer, MuonOptimizer, hidden_weights
from tests.parity import golden
from vision.models import VGG16, ResNet18, ViT

META = golden.meta("muon")
CASES = sorted({key.split(".")[1] for key in golden.load("muon") if key.startswith("grad.")})
GROUPS = golden.facts("muon_groups")["models"]
MODELS = {"RESNET18": ResNet18, "TinyViT": ViT, "VGG16": VGG16}
FACTS = {name.split("_")[0]: facts for name, facts in golden.facts("models_facts").items()}
FILLS = {name.split("_")[0]: spec for name, spec in golden.facts("models_fill").items()}


def close_direction(actual: Tensor, expected: Tensor) -> None:
    """The README's criterion: bfloat16 inside."""
    actual, expected = actual.flatten().double(), expected.flatten().double()
    assert (actual - expected).norm() <= 0.1 * expected.norm()
    assert torch.dot(actual, expected) >= 0.995 * actual.norm() * expected.norm()


class Wrapped(nn.Module):
    """One parameter as a hidden weight: a linear layer, a convolution, or free tokens."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        if value.ndim == 4:
            self.layer = nn.Conv2d(value.shape[1], value.shape[0], value.shape[2:], bias=False)
            self.layer.weight = nn.Parameter(value)
        elif value.ndim == 2:
            self.layer = nn.Linear(value.shape[1], value.shape[0], bias=False)
            self.layer.weight = nn.Parameter(value)
        else:
            self.tokens = nn.Parameter(value)


def optimizer_for(model: nn.Module, variant: str = "fire_paper", lr: float = META["opt_lr_muon"]) -> CombinedOptimizer:
    method = MuonOptimizer(
        lr=lr, adam_lr=META["opt_lr_adam"], momentum=META["opt_momentum"], betas=META["adam_betas"],
        eps=META["adam_eps"], variant=variant,
    )  # fmt: skip
    return method.optimizer(Net({"model": model}, {}), torch.optim.Adam)


FILTERS = [case for case in CASES if golden.load("muon")[f"grad.{case}.t0"].ndim == 4]


@pytest.mark.parametrize(
    ("case", "channels_last"), [(case, False) for case in CASES] + [(case, True) for case in FILTERS]
)
def test_direction_and_momentum(case: str, channels_last: bool) -> None:
    gradients = golden.tensors("muon", f"grad.{case}.t")
    start = torch.zeros_like(gradients["0"])
    if channels_last:
        start = start.to(memory_format=torch.channels_last)
    model = Wrapped(start)
    (parameter,) = model.parameters()
    optimizer = optimizer_for(model, lr=1.0)
    assert parameter in hidden_weights(Net({"model": model}, {}), "fire_paper")
    for t in range(len(gradients)):
        with torch.no_grad():
            parameter.zero_()
        parameter.grad = gradients[str(t)].clone()
        optimizer.step()
        update = golden.tensors("muon", f"update.{case}.t")[str(t)]
        close_direction(-parameter.detach().contiguous(), update)
        momentum = optimizer.parts[0].state[parameter]["momentum_buffer"]
        torch.testing.assert_close(momentum, golden.tensors("muon", f"momentum.{case}.t")[str(t)], rtol=0, atol=1e-6)
        nesterov = gradients[str(t)].lerp(momentum, META["beta"])  # what the reference leaves in the gradient
        after = golden.tensors("muon", f"grad_after.{case}.t")[str(t)]
        torch.testing.assert_close(nesterov, after, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", sorted(golden.tensors("muon", "zp_in.")))
def test_orthogonalisation_alone(case: str) -> None:
    """A first step is that of the gradient itself, whose scale does not matter."""
    gradient = golden.tensors("muon", "zp_in.")[case]
    model = Wrapped(torch.zeros_like(gradient))
    model.layer.weight.grad = gradient.clone()
    optimizer_for(model, lr=1.0).step()
    factor = math.sqrt(max(1, gradient.shape[0] / gradient.shape[1]))
    exact = quintic(gradient.double())
    torch.testing.assert_close(golden.tensors("muon", "zp_out_fp32.")[case].double(), exact, rtol=0, atol=1e-4)
    for expected in (golden.tensors("muon", "zp_out.")[case], exact):
        close_direction(-model.layer.weight.detach() / factor, expected)


def quintic(X: Tensor) -> Tensor:
    """The iteration in the precision of `X`."""
    a, b, c = META["coeffs"]
    X = X / (X.norm() + 1e-7)
    for _ in range(META["ns_steps"]):
        A = X @ X.mT
        X = a * X + (b * A + c * A @ A) @ X
    return X


class Parts(nn.Module):
    """The golden optimizer's parameters where the rule by module finds them."""

    def __init__(self, start: dict[str, Tensor]) -> None:
        super().__init__()
        self.backbone = nn.ModuleDict()
        self.head = nn.ModuleDict()
        for name, value in start.items():
            kind, leaf = name.split(".")
            if kind == "muon":
                self.backbone[leaf] = Wrapped(value)
            elif value.ndim == 2:
                self.head[leaf] = Wrapped(value)
            else:
                self.backbone.register_parameter(leaf, nn.Parameter(value))

    def parameter(self, name: str) -> nn.Parameter:
        kind, leaf = name.split(".")
        if kind == "muon":
            return self.backbone[leaf].layer.weight
        return self.head[leaf].layer.weight if leaf in self.head else getattr(self.backbone, leaf)


def test_whole_optimizer() -> None:
    start = golden.tensors("muon", "opt.param_t-1.")
    model = Parts({name: value.clone() for name, value in start.items()})
    optimizer = optimizer_for(model)
    steps = len({key for key in golden.load("muon") if key.startswith("opt.param_t")}) // len(start) - 1
    previous = start
    for t in range(steps):
        for name, gradient in golden.tensors("muon", f"opt.grad_t{t}.").items():
            model.parameter(name).grad = gradient
        optimizer.step()
        expected = golden.tensors("muon", f"opt.param_t{t}.")
        for name, value in expected.items():
            actual = model.parameter(name).detach()
            if name.startswith("muon."):
                lr = META["opt_lr_muon"]
                close_direction((actual - previous[name]) / lr, (value - previous[name]) / lr)
                with torch.no_grad():
                    model.parameter(name).copy_(value)  # each step's own direction, from the same weights
            else:
                torch.testing.assert_close(actual, value, rtol=0, atol=1e-6)
        previous = expected
    for key, value in golden.tensors("muon", "opt.state.").items():
        kind, name = key.split(".", 1)
        state = optimizer.parts[0 if name.startswith("muon.") else 1].state[model.parameter(name)]
        if kind in state:
            torch.testing.assert_close(state[kind].double(), value.double(), rtol=0, atol=1e-6)
        else:  # the reference keeps a state for a parameter without gradient too
            assert model.parameter(name).grad is None
            assert (value == (steps if kind == "step" else 0)).all(), key


@pytest.mark.parametrize("model", sorted(MODELS))
def test_groups(model: str) -> None:
    muon, adam = GROUPS[model]
    with torch.device("meta"):
        network = MODELS[model](num_classes=FILLS[model.lower()]["labels"]["modulus"])
    names = [name for name, _ in FACTS[model.lower()]["params"]]  # the reference's, in the order of ours
    theirs = dict(zip(network.parameters(), names, strict=True))
    counts = {}
    for variant in ("fire_paper", "original"):
        method = MuonOptimizer(lr=muon["lr"], adam_lr=adam["lr"], variant=variant)
        optimizer = method.optimizer(Net({"model": network}, {}), torch.optim.Adam)
        first, second = optimizer.parts
        if variant == "fire_paper":
            for part, facts in ((first, muon), (second, adam)):
                assert {theirs[p] for group in part.param_groups for p in group["params"]} == set(facts["params"])
                assert {group["weight_decay"] for group in part.param_groups} == {facts["weight_decay"]}
        counts[variant] = sum(p.numel() for group in first.param_groups for p in group["params"])
        assert counts[variant] + sum(p.numel() for p in second.param_groups[0]["params"]) == sum(
            p.numel() for p in network.parameters()
        )
    assert counts["fire_paper"] == muon["n_scalars"]
    assert sum(p.numel() for p in network.parameters()) == muon["n_scalars"] + adam["n_scalars"]
    assert {group["momentum"] for group in first.param_groups} == {muon["momentum"]}
    assert second.param_groups[0]["lr"] == adam["lr"]
    assert second.param_groups[0]["betas"] == tuple(adam["betas"])
    assert second.param_groups[0]["eps"] == adam["eps"]
    free = sum(p.numel() for name, p in network.named_parameters() if name.endswith(("pos_embedding", "cls_token")))
    reads_input = next(p for p in network.parameters() if p.ndim == (2 if model == "TinyViT" else 4))
    layers = [p for name, p in network.named_parameters() if re.fullmatch(r"head(\.\d+)?\.weight", name)]
    hidden_in_head = sum(p.numel() for p in layers[:-1])  # the reference leaves whole heads to Adam
    assert counts["original"] == counts["fire_paper"] - free - reads_input.numel() + hidden_in_head
    for group in first.param_groups:
        linear = {p.ndim for p in group["params"]} == {2}
        rates = {muon["lr"] / (1 if linear else math.sqrt(max(1, ratio))) for ratio in ratios(group)}
        assert group["lr"] == pytest.approx(rates.pop())
        assert len(rates) == 0


def ratios(group: dict[str, list[Tensor]]) -> set[float]:
    return {len(p) ** 2 / p.numel() for p in group["params"]}
