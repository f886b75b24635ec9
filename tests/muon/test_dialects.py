"""Groups for other packages' Muon: fed the same gradients, fused weights change as their parts do in that package."""

import importlib
import math
import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fire_core import SplitMuon, gram_newton_schulz_groups, muon_groups, muonium_groups
from fire_core.errors import FireWarning
from tests.muon.test_optimizer import Case
from tests.networks import GPT

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of torch's Muon, at each of five steps
Make = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]


@pytest.fixture(autouse=True)
def _on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without compilation, and with a product of matrices in place of muonium's kernel X X^T, which needs a GPU."""

    def gram(X: Tensor, out: Tensor) -> None:
        out.copy_(X @ X.mT)

    with suppress(ImportError):
        importlib.import_module("muonium")
        monkeypatch.setattr("muonium.orthogonalize.newton_schulz.gram_", gram)
    with torch.compiler.set_stance("force_eager"):
        yield


def muonium(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    package = pytest.importorskip("muonium")
    options = {"use_cautious_wd": False, "orthogonalization_strategy": "newton_schulz"}
    made: torch.optim.Optimizer = package.Muon(groups, lr=0.02, wd=0.0, **options)
    return made


def gram_newton_schulz(groups: list[dict[str, Any]], scalar: Any = None) -> torch.optim.Optimizer:
    package = pytest.importorskip("gram_newton_schulz", reason=".ci/run installs it without its packages for GPUs")
    made: torch.optim.Optimizer = package.Muon(
        groups,
        lr=0.02,
        weight_decay=0.0,
        adjust_lr=lambda lr, shape: lr * math.sqrt(max(1, shape[-2] / shape[-1])),
        ns_algorithm="standard_newton_schulz",
        ns_coefficients=[COEFFICIENTS] * 5,
        ns_use_kernels=False,
        scalar_optimizer=scalar,
    )
    return made


def in_muonium(model: nn.Module) -> list[dict[str, Any]]:
    return [group for group in muonium_groups(model) if group["algorithm"] == "muon"]


def in_gram(model: nn.Module) -> list[dict[str, Any]]:
    return gram_newton_schulz_groups(model).muon


def distance(some: Tensor, other: Tensor, start: Tensor) -> float:
    """Between two trained weights, as a share of the way that one has gone."""
    return float((some - other).detach().norm() / (some - start).detach().norm())


def ten_steps(case: Case, groups: list[dict[str, Any]], make: Make, apart: Make) -> dict[str, float]:
    """Ten steps of fused weights and of their parts, on the same gradients: how far they end from each other."""
    start, parts = {key: p.detach().clone() for key, p in case.weights.items()}, case.parts()
    taken = {id(p) for group in groups for p in group["params"]}
    chosen = {key: weight for key, weight in case.weights.items() if id(weight) in taken}
    assert chosen
    ours, theirs = make(groups), apart([{"params": [part]} for key in chosen for part in parts[key]])
    for _ in range(10):
        for key, weight in chosen.items():
            weight.grad = torch.randn_like(weight)
            for part, piece in zip(parts[key], case.split(key, weight.grad), strict=True):
                part.grad = piece.contiguous()
        ours.step()
        theirs.step()
    return {key: distance(weight, case.joined(key, parts[key]), start[key]) for key, weight in chosen.items()}


def as_split_muon(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return SplitMuon(groups, lr=0.02, weight_decay=0.0)


@pytest.mark.parametrize("apart", [muonium, None], ids=["its own parts", "SplitMuon's parts"])
@pytest.mark.parametrize("name", ["phi3", "vit", "torch's attention", "LSTM"])
def test_muonium_trains_the_parts_of_fused_weights(name: str, apart: Make | None) -> None:
    case = Case(name)
    ends = ten_steps(case, in_muonium(case.model), muonium, apart or as_split_muon)
    assert case.cuts.keys() <= ends.keys()
    assert max(ends.values()) < 0.03, ends


@pytest.mark.parametrize("apart", [gram_newton_schulz, None], ids=["its own parts", "SplitMuon's parts"])
@pytest.mark.parametrize("name", ["gpt2", "phi3", "gpt_neox", "qwen3_moe", "vit", "torch's attention", "LSTM"])
def test_gram_newton_schulz_trains_the_parts_of_fused_weights(name: str, apart: Make | None) -> None:
    case = Case(name)
    ends = ten_steps(case, in_gram(case.model), gram_newton_schulz, apart or as_split_muon)
    assert ends.keys() == case.weights.keys()
    assert max(ends.values()) < 0.03, ends


@pytest.mark.parametrize("which", ["muonium", "gram_newton_schulz"])
def test_a_convolution_is_one_matrix(which: str) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(8, 6, 3)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), conv, nn.Flatten(), nn.Linear(6, 2))
    make, groups = {"muonium": (muonium, in_muonium), "gram_newton_schulz": (gram_newton_schulz, in_gram)}[which]
    matrix, start = nn.Parameter(conv.weight.detach().flatten(1).clone()), conv.weight.detach().flatten(1).clone()
    ours, theirs = make(groups(model)), make([{"params": [matrix]}])
    for _ in range(10):
        conv.weight.grad = torch.randn_like(conv.weight)
        matrix.grad = conv.weight.grad.flatten(1)
        ours.step()
        theirs.step()
    assert distance(conv.weight.flatten(1), matrix, start) < 0.01


@pytest.mark.parametrize("which", ["muonium", "gram_newton_schulz"])
def test_a_gpt_trains_with_all_its_parameters(which: str) -> None:
    torch.manual_seed(0)
    model, tokens = GPT(), torch.randint(40, (8, 16))
    if which == "muonium":
        optimizer = muonium(muonium_groups(model))
    else:
        muon, adam = gram_newton_schulz_groups(model)
        optimizer = gram_newton_schulz(muon, torch.optim.AdamW(adam, lr=0.02))
    before, losses = {key: p.detach().clone() for key, p in model.named_parameters()}, []
    for _ in range(10):
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1, losses
    assert not [key for key, p in model.named_parameters() if torch.equal(p, before[key])]


def test_muonium_has_no_words_for_a_transposed_weight() -> None:
    with pytest.raises(ValueError, match=r"any hidden matrix of the model \(.*stored \(d_in, d_out\)\): SplitMuon"):
        muonium_groups(Case("gpt2").model)


def test_what_muonium_has_no_words_for_goes_to_the_other_optimizer() -> None:
    model = Case("gpt_neox").model
    with pytest.warns(FireWarning, match=r"muonium has no option for weights that are interleaved.*query_key_value"):
        groups = muonium_groups(model)
    every = [p for group in groups for p in group["params"]]
    assert {id(p) for p in every} == {id(p) for p in model.parameters()}
    assert len(every) == len({id(p) for p in every})
    adam = [id(p) for group in groups if group["algorithm"] == "adamw" for p in group["params"]]
    assert {id(p) for name, p in model.named_parameters() if name.endswith("query_key_value.weight")} <= {*adam}


def test_the_functions_are_saved_with_the_state() -> None:
    model = GPT()
    for group in gram_newton_schulz_groups(model).muon:
        split, recombine = (pickle.loads(pickle.dumps(group[f"param_{word}_fn"])) for word in ("split", "recombine"))
        weight = torch.randn(group["params"][0].shape)
        assert torch.equal(recombine(split(weight)), weight)
    assert len(gram_newton_schulz_groups(model).adam) == len(muon_groups(model).adam)
