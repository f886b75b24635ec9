"""SplitMuon against torch.optim.Muon on the parts of fused weights, which are cut here by rows written by hand."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fire_core import SplitMuon, muon_groups
from tests.weights.test_blocks import MODULES
from tests.zoo.checks import Cuts, Fused

OPTIONS: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9}


def vit() -> nn.Module:
    timm = pytest.importorskip("timm")
    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 4, "num_classes": 5}
    model: nn.Module = timm.models.VisionTransformer(**sizes, class_token=False, global_pool="avg")
    return model


CASES = ["gpt2", "phi3", "gpt_neox", "qwen3_moe", "vit", "torch's attention", "LSTM"]
VIT = (vit, torch.randn(4, 3, 8, 8), {"blocks.0.attn.qkv.weight": Fused("q 32 k 32 v 32")})


class Case:
    """A model of the tables of cuts, an input of it, and the weights that Muon trains."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.cuts: Cuts
        if name in {"vit": VIT} | MODULES:
            build, inputs, self.cuts = ({"vit": VIT} | MODULES)[name]
            self.model, self.given = build(), {"args": (inputs,)}
        else:
            from tests.zoo import test_transformers as zoo

            kind, settings, self.cuts = zoo.FAMILIES[name]
            eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
            self.model, self.given = zoo.build(kind, settings | eager).eval(), {"args": (), "kwargs": zoo.tokens()}
        chosen = {id(p) for group in muon_groups(self.model).muon for p in group["params"]}
        self.weights = {key: p for key, p in self.model.named_parameters() if id(p) in chosen}
        assert self.cuts.keys() <= self.weights.keys()

    def split(self, name: str, weight: Tensor) -> list[Tensor]:
        """The true matrices of a weight, (d_out, d_in) each."""
        stack = weight.mT if any(fused.transposed for fused in self.cuts.values()) else weight  # as all of GPT-2's
        rows = self.cuts[name].rows().values() if name in self.cuts else [slice(None)]
        return [matrix for part in rows for matrix in stack[..., part, :].reshape(-1, *stack[..., part, :].shape[-2:])]

    def joined(self, name: str, parts: list[nn.Parameter]) -> Tensor:
        places = self.split(name, torch.arange(self.weights[name].numel()).view_as(self.weights[name]))
        order = torch.cat([place.flatten() for place in places]).argsort()
        return torch.cat([part.flatten() for part in parts])[order].view_as(self.weights[name])

    def parts(self) -> dict[str, list[nn.Parameter]]:
        """The true matrices, as parameters of their own."""
        pieces = {name: self.split(name, weight.detach()) for name, weight in self.weights.items()}
        return {name: [nn.Parameter(piece.contiguous().clone()) for piece in pieces[name]] for name in pieces}

    def loss(self, model: nn.Module, weights: Mapping[str, Tensor]) -> Tensor:
        out = functional_call(model, dict(weights), **self.given)
        while not isinstance(out, Tensor):
            out = out[0]
        return out.square().mean()


@pytest.mark.parametrize(("name", "nesterov"), [*((name, True) for name in CASES), ("phi3", False)])
def test_fed_the_same_gradients_a_fused_weight_changes_as_its_parts(name: str, nesterov: bool) -> None:
    case = Case(name)
    parts = case.parts()
    ours = SplitMuon(muon_groups(case.model).muon, nesterov=nesterov, **OPTIONS)
    theirs = torch.optim.Muon([p for several in parts.values() for p in several], nesterov=nesterov, **OPTIONS)
    for _ in range(50):
        for key, weight in case.weights.items():
            weight.grad = torch.randn_like(weight)
            for part, piece in zip(parts[key], case.split(key, weight.grad), strict=True):
                part.grad = piece.contiguous()
        ours.step()
        theirs.step()
    for key, weight in case.weights.items():
        assert torch.equal(weight, case.joined(key, parts[key])), key


@pytest.mark.parametrize("name", CASES)
def test_trained_end_to_end_a_fused_and_an_unfused_copy_agree(name: str) -> None:
    case = Case(name)
    case.model.double()
    case.given["args"] = tuple(x.double() for x in case.given["args"])
    start = {key: p.detach().clone() for key, p in case.model.named_parameters()}
    parts, unfused = case.parts(), copy.deepcopy(case.model)
    others = {n: nn.Parameter(p.clone()) for n, p in start.items() if n not in case.weights}
    ours = SplitMuon(muon_groups(case.model).muon, **OPTIONS)
    theirs = torch.optim.Muon([p for several in parts.values() for p in several], **OPTIONS)
    rest = [torch.optim.SGD(some, lr=0.1) for some in (muon_groups(case.model).adam, [*others.values()]) if some]
    for _ in range(5):
        weights = others | {key: case.joined(key, parts[key]) for key in parts}
        for optimizer in (ours, theirs, *rest):
            optimizer.zero_grad()
        (case.loss(case.model, dict(case.model.named_parameters())) + case.loss(unfused, weights)).backward()
        for optimizer in (ours, theirs, *rest):
            optimizer.step()
    for key, weight in case.weights.items():
        torch.testing.assert_close(weight.detach(), case.joined(key, parts[key]).detach(), atol=1e-6, rtol=0)
        assert not torch.equal(weight, start[key])


def test_a_bfloat16_momentum_is_not_overwritten_by_its_direction() -> None:
    """torch's own step does that with nesterov=False."""
    weight = nn.Parameter(torch.randn(8, 8, dtype=torch.bfloat16))
    ours, momentum = SplitMuon([weight], nesterov=False, momentum=0.9), torch.zeros(8, 8, dtype=torch.bfloat16)
    for _ in range(3):
        weight.grad = torch.randn_like(weight)
        momentum.lerp_(weight.grad, 0.1)
        ours.step()
        assert torch.equal(ours.state[weight]["momentum_buffer"], momentum)


@pytest.mark.parametrize(
    ("groups", "blocks", "adjust"),
    [(1, 1, "original"), (1, 1, "match_rms_adamw"), (1, 1, "spectral_unclamped"), (2, 1, None), (1, 2, None)],
)
def test_each_group_and_block_of_a_convolution_is_one_matrix(groups: int, blocks: int, adjust: str | None) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(8, 8, 3, groups=groups)
    if blocks > 1:
        conv.matrix_blocks = lambda: {"weight": (4, 4)}  # type: ignore[assignment]
    muon, adam = muon_groups(nn.Sequential(nn.Conv2d(3, 8, 1), conv, nn.Flatten(), nn.Linear(8, 2)))
    assert [group["params"] for group in muon] == [[conv.weight]]
    assert len(adam) == 5
    parts = [nn.Parameter(part.detach().flatten(1).clone()) for part in conv.weight.chunk(groups * blocks)]
    conv.weight.grad = torch.randn_like(conv.weight)
    for part, gradient in zip(parts, conv.weight.grad.chunk(groups * blocks), strict=True):
        part.grad = gradient.flatten(1)
    SplitMuon(muon, adjust_lr_fn=adjust).step()
    torch.optim.Muon(parts, adjust_lr_fn=adjust).step()
    assert torch.equal(conv.weight.flatten(1), torch.cat([*parts]))


def test_a_checkpoint_goes_on_bit_for_bit(tmp_path: Path) -> None:
    def steps(model: nn.MultiheadAttention, optimizer: SplitMuon, seeds: range) -> None:
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed)
            model.in_proj_weight.grad = torch.randn(model.in_proj_weight.shape, generator=generator)
            optimizer.step()

    model, resumed = nn.MultiheadAttention(16, 2), nn.MultiheadAttention(16, 2)
    ours, again = (SplitMuon(muon_groups(each).muon) for each in (model, resumed))
    steps(model, ours, range(3))
    torch.save([ours.state_dict(), model.state_dict()], tmp_path / "state.pt")
    state, weights = torch.load(tmp_path / "state.pt", weights_only=True)
    resumed.load_state_dict(weights)
    again.load_state_dict(state)
    for each, optimizer in ((model, ours), (resumed, again)):
        steps(each, optimizer, range(3, 6))
    assert torch.equal(resumed.in_proj_weight, model.in_proj_weight)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SplitMuon([nn.Parameter(torch.zeros(4))]), "is no matrix"),
        (lambda: SplitMuon([nn.Parameter(torch.zeros(2, 4, 4))]), "is no matrix"),
        (lambda: SplitMuon([nn.Parameter(torch.zeros(4, 4))], lr=-1), "lr=-1"),
        (lambda: SplitMuon([nn.Parameter(torch.zeros(4, 4))], adjust_lr_fn="no"), "one of None, original"),
        (lambda: SplitMuon([{"params": [nn.Parameter(torch.zeros(4, 4))], "lr": -1.0}]), "lr=-1"),
        (lambda: SplitMuon([{"params": [nn.Parameter(torch.zeros(4, 4))], "adjust_lr_fn": "no"}]), "one of None"),
        (lambda: SplitMuon([nn.Parameter(torch.zeros(4, 4))], ns_steps=5.0), "ns_steps=5.0"),  # type: ignore[arg-type]
        (lambda: muon_groups(nn.Linear(4, 4)), "no hidden matrix"),
    ],
)
def test_what_cannot_be_trained_is_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_states_of_torch_load_and_what_muon_does_not_train_is_refused() -> None:
    model = nn.Sequential(nn.Embedding(9, 6), nn.MultiheadAttention(6, 2), nn.Linear(6, 6))
    groups, _ = muon_groups(model)
    parameters = [p for group in groups for p in group["params"]]
    theirs = torch.optim.Muon([{"params": group["params"]} for group in groups])
    ours = SplitMuon(groups)
    ours.load_state_dict(theirs.state_dict())
    for p in parameters:
        p.grad = torch.randn_like(p)
    ours.step()
    of_adam = torch.optim.Adam(parameters)
    of_adam.step()
    before = copy.deepcopy(ours.state_dict())
    with pytest.raises(ValueError, match="state of another optimizer than Muon"):
        ours.load_state_dict(torch.optim.Adam.state_dict(of_adam) | {"param_groups": before["param_groups"]})
    assert ours.state_dict()["state"].keys() == before["state"].keys(), "nothing was loaded"
    with pytest.raises(ValueError, match="complex"):
        SplitMuon([torch.zeros(3, 3, dtype=torch.complex64, requires_grad=True)])
    for wrong in ({"lr": "a"}, {"eps": -1}, {"ns_steps": 200}, {"ns_coefficients": (1, 2)}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            SplitMuon(muon_groups(model)[0], **wrong)


def test_a_group_that_is_refused_is_not_taken_in() -> None:
    optimizer = SplitMuon([nn.Parameter(torch.ones(2, 2))])
    with pytest.raises(ValueError, match="no matrix"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    assert len(optimizer.param_groups) == 1
