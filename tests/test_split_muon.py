"""SplitMuon against torch.optim.Muon on the parts of fused weights, which are cut here by hand."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fire_core import SplitMuon, matrices, muon_groups

Split = Callable[[Tensor], list[Tensor]]
Join = Callable[[Sequence[Tensor]], Tensor]


@dataclass
class Case:
    """A model, an input of it, and how its fused weights are cut and joined again."""

    model: nn.Module
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    cuts: dict[str, tuple[Split, Join]]  # end of the weight's name -> the true matrices, (d_out, d_in) each, and back

    def loss(self, model: nn.Module, weights: Mapping[str, Tensor]) -> Tensor:
        out = functional_call(model, dict(weights), self.arguments, self.options)
        while not isinstance(out, Tensor):
            out = out[0]
        return out.square().mean()

    def cut_of(self, name: str) -> tuple[Split, Join]:
        found = [cut for end, cut in self.cuts.items() if name.endswith(end)]
        return found[0] if found else (lambda weight: [weight], lambda parts: parts[0])

    def parts(self, names: list[str]) -> dict[str, list[nn.Parameter]]:
        """The true matrices of some weights, as parameters of their own."""
        weights = dict(self.model.named_parameters())
        pieces = {name: self.cut_of(name)[0](weights[name].detach()) for name in names}
        return {name: [nn.Parameter(piece.contiguous().clone()) for piece in pieces[name]] for name in names}


def rows(*heights: int) -> tuple[Split, Join]:
    return lambda weight: list(weight.split(heights)), joined


def joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([*parts])


def thirds(weight: Tensor) -> list[Tensor]:
    return list(weight.chunk(3))


def text(kind: str, **settings: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    common = {"vocab_size": 40, "attn_implementation": "eager", "experts_implementation": "eager", "use_cache": False}
    common |= {"tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = transformers.AutoConfig.for_model(kind, **common, **settings)
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(config)
    return model


TOKENS = {"input_ids": torch.arange(24).reshape(2, 12)}
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}


def gpt2() -> Case:
    model = text("gpt2", n_embd=32, n_layer=1, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    turned = (lambda weight: [weight.T], lambda parts: parts[0].T)
    qkv = (
        lambda weight: [part.T for part in weight.chunk(3, dim=1)],
        lambda parts: torch.cat([p.T for p in parts], dim=1),
    )
    return Case(model, (), TOKENS, {"c_attn.weight": qkv, "c_proj.weight": turned, "c_fc.weight": turned})


def phi3() -> Case:
    model = text("phi3", intermediate_size=48, num_key_value_heads=2, **SMALL)
    return Case(model, (), TOKENS, {"qkv_proj.weight": rows(32, 16, 16), "gate_up_proj.weight": rows(48, 48)})


def neox() -> Case:
    model = text("gpt_neox", intermediate_size=48, **SMALL)

    def split(weight: Tensor) -> list[Tensor]:
        return [part.reshape(32, 32) for part in weight.view(4, 3, 8, 32).unbind(1)]

    def join(parts: Sequence[Tensor]) -> Tensor:
        return torch.stack([part.view(4, 8, 32) for part in parts], 1).reshape(96, 32)

    return Case(model, (), TOKENS, {"query_key_value.weight": (split, join)})


def experts() -> Case:
    few = {"num_experts": 3, "num_experts_per_tok": 2, "num_key_value_heads": 2, "head_dim": 8}
    model = text("qwen3_moe", intermediate_size=48, moe_intermediate_size=24, **few, **SMALL)

    def halves(weight: Tensor) -> list[Tensor]:
        return [half for expert in weight for half in expert.chunk(2)]

    def join(parts: Sequence[Tensor]) -> Tensor:
        return torch.stack([torch.cat([*parts[i : i + 2]]) for i in range(0, len(parts), 2)])

    down = (lambda weight: list(weight), lambda parts: torch.stack([*parts]))
    return Case(model, (), TOKENS, {"experts.gate_up_proj": (halves, join), "experts.down_proj": down})


def vit() -> Case:
    timm = pytest.importorskip("timm")
    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 4, "num_classes": 5}
    model = timm.models.VisionTransformer(**sizes, class_token=False, global_pool="avg")
    return Case(model, (torch.randn(4, 3, 8, 8),), {}, {"qkv.weight": (thirds, joined)})


def attention() -> Case:
    x = torch.randn(2, 6, 32)
    model = nn.MultiheadAttention(32, 4, batch_first=True)
    return Case(model, (x, x, x), {"need_weights": False}, {"in_proj_weight": (thirds, joined)})


def lstm() -> Case:
    gates = (lambda weight: list(weight.chunk(4)), joined)
    return Case(nn.LSTM(16, 32), (torch.randn(6, 2, 16),), {}, {"weight_ih_l0": gates, "weight_hh_l0": gates})


CASES = [gpt2, phi3, neox, experts, vit, attention, lstm]
OPTIONS: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9}


def built(make: Callable[[], Case]) -> tuple[Case, list[str]]:
    """A case, and the names of what Muon trains."""
    torch.manual_seed(0)
    case = make()
    chosen = {id(p) for group in muon_groups(case.model).muon for p in group["params"]}
    names = [name for name, p in case.model.named_parameters() if id(p) in chosen]
    assert all(any(name.endswith(end) for name in names) for end in case.cuts)
    return case, names


@pytest.mark.parametrize(("make", "nesterov"), [*((make, True) for make in CASES), (phi3, False)])
def test_fed_the_same_gradients_a_fused_weight_changes_as_its_parts(make: Callable[[], Case], nesterov: bool) -> None:
    case, names = built(make)
    fused = dict(case.model.named_parameters())
    parts = case.parts(names)
    ours = SplitMuon(muon_groups(case.model).muon, nesterov=nesterov, **OPTIONS)
    theirs = torch.optim.Muon([p for several in parts.values() for p in several], nesterov=nesterov, **OPTIONS)
    for _ in range(50):
        for name in names:
            gradient = torch.randn_like(fused[name])
            fused[name].grad = gradient
            for part, piece in zip(parts[name], case.cut_of(name)[0](gradient), strict=True):
                part.grad = piece.contiguous()
        ours.step()
        theirs.step()
    for name in names:
        for part, piece in zip(parts[name], case.cut_of(name)[0](fused[name]), strict=True):
            assert torch.equal(part, piece), name


@pytest.mark.parametrize("make", CASES)
def test_trained_end_to_end_a_fused_and_an_unfused_copy_agree(make: Callable[[], Case]) -> None:
    case, names = built(make)
    case.model.double()
    case.arguments = tuple(x.double() if x.is_floating_point() else x for x in case.arguments)
    start = {name: p.detach().clone() for name, p in case.model.named_parameters()}
    parts = case.parts(names)
    others = {n: nn.Parameter(p.clone()) for n, p in start.items() if n not in names}
    unfused = copy.deepcopy(case.model)
    ours = SplitMuon(muon_groups(case.model).muon, **OPTIONS)
    theirs = torch.optim.Muon([p for several in parts.values() for p in several], **OPTIONS)
    rest = [torch.optim.SGD(some, lr=0.1) for some in (muon_groups(case.model).adam, [*others.values()]) if some]
    fused = dict(case.model.named_parameters())
    for _ in range(5):
        weights = others | {name: case.cut_of(name)[1](parts[name]) for name in names}
        for optimizer in (ours, theirs, *rest):
            optimizer.zero_grad()
        (case.loss(case.model, fused) + case.loss(unfused, weights)).backward()
        for optimizer in (ours, theirs, *rest):
            optimizer.step()
    for name in names:
        torch.testing.assert_close(fused[name].detach(), case.cut_of(name)[1](parts[name]).detach(), atol=1e-6, rtol=0)
        assert not torch.equal(fused[name], start[name])


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
    ("groups", "adjust"), [(1, "original"), (1, "match_rms_adamw"), (1, "spectral_unclamped"), (2, None)]
)
def test_each_group_of_a_convolution_is_one_matrix(groups: int, adjust: str | None) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(8, 8, 3, groups=groups)
    muon, adam = muon_groups(nn.Sequential(nn.Conv2d(3, 8, 1), conv, nn.Flatten(), nn.Linear(8, 2)))
    assert [group["params"] for group in muon] == [[conv.weight]]
    assert len(adam) == 5
    parts = [nn.Parameter(part.detach().flatten(1).clone()) for part in conv.weight.chunk(groups)]
    conv.weight.grad = torch.randn_like(conv.weight)
    for part, gradient in zip(parts, conv.weight.grad.chunk(groups), strict=True):
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
        (lambda: muon_groups(nn.Linear(4, 4)), "no hidden matrix"),
    ],
)
def test_what_cannot_be_trained_is_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_a_fused_weight_that_is_not_known_is_left_to_the_other_optimizer() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.qkv, self.head = nn.Linear(8, 16), nn.Linear(16, 40), nn.Linear(40, 2)

    model = Odd()
    assert any("qkv" in line for line in matrices(model).warnings)
    with pytest.raises(ValueError, match="no hidden matrix"):
        muon_groups(model)
    (group,) = muon_groups(model, blocks={"qkv.weight": {"q": 16, "k": 12, "v": 12}}).muon
    assert group["params"] == [model.qkv.weight]
    assert len(group["cuts"]) == 3


def test_sharded_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fire_core.weights.distributed.is_sharded", lambda tensor: True)
    with pytest.raises(ValueError, match="is sharded: each rank needs whole matrices"):
        SplitMuon([nn.Parameter(torch.zeros(4, 4))])
