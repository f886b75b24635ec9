"""Ways in which public models are written, of which each was once read wrongly without a word."""

from collections.abc import Callable
from typing import Any

import einops
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F

from fire_core import matrices, muon_groups
from fire_core.weights import source

D = 8

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.(fork|wait)` is deprecated:FutureWarning"),
]


@pytest.fixture(autouse=True)
def _errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "STRICT", True)


class NormalParamExtractor(nn.Module):
    """As torchrl's: no norm, although its name holds the word."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        loc, scale = x.chunk(2, -1)
        return loc, F.softplus(scale)


class NormGate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x[..., :D], (D,)) * x[..., D:].sigmoid()


class Net(nn.Module):
    """A layer `fc` between two others, several `heads`, a buffer `mask`; `body` is the forward pass."""

    def __init__(self, body: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.fc, self.out = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, 3)
        self.heads = nn.ModuleList(nn.Linear(D, 2 * D) for _ in range(2))
        self.distribution, self.norm_gate = NormalParamExtractor(), NormGate()
        self.register_buffer("mask", torch.rand(2 * D, D) < 0.5)
        self.body = body

    def forward(self, x: Tensor) -> Any:
        return self.body(self, x)

    def gate(self, h: Tensor) -> Tensor:
        a, b = h.chunk(2, -1)
        return a * b.sigmoid()

    def masked(self) -> Tensor:
        weight = self.fc.weight.clone()
        weight[weight.abs() < 0.2] = 0
        return weight


def heads_of(net: Any, x: Tensor) -> list[Tensor]:
    h = net.first(x).relu()
    return [head(h) for head in net.heads]


def mean_and_scale(h: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_scale = h.chunk(2, dim=-1)
    return mean, log_scale.exp()


def actions(net: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    choices = [Categorical(logits=part) for part in torch.split(net.fc(net.first(x)), [3, 2 * D - 3], dim=1)]
    taken = torch.stack([choice.sample() for choice in choices])
    return taken, torch.stack([choice.log_prob(a) for a, choice in zip(taken, choices, strict=True)]).sum(0)


def sample_by_sample(net: Any, x: Tensor) -> Tensor:
    h = net.fc(x)
    rows = []
    for i in range(len(x)):
        a, b = h[i].chunk(2)
        rows.append(a + b.exp())
    return net.out(torch.stack(rows))


# What each does with `fc.weight`, or with that of the first of the heads, and the heights of its parts.
DIVIDED: dict[str, tuple[Callable[[Any, Tensor], Any], str, tuple[int, ...]]] = {
    "torchrl's actor": (lambda s, x: s.distribution(s.fc(s.first(x))), "fc", (D, D)),
    "a gate called a norm": (lambda s, x: s.out(s.norm_gate(s.fc(x))), "fc", (D, D)),
    "an ensemble of heads": (lambda s, x: mean_and_scale(torch.stack(heads_of(s, x))), "heads.0", (D, D)),
    "heads along the batch": (lambda s, x: mean_and_scale(torch.cat(heads_of(s, x), 0)), "heads.0", (D, D)),
    "their mean": (lambda s, x: mean_and_scale(torch.stack(heads_of(s, x)).mean(0)), "heads.0", (D, D)),
    "their slices": (
        lambda s, x: (lambda h: (h[..., :D], h[..., D:].exp()))(torch.stack(heads_of(s, x))), "heads.0", (D, D)
    ),
    "several discrete actions": (actions, "fc", (3, 2 * D - 3)),
    "sample by sample": (sample_by_sample, "fc", (D, D)),
    "the first sample": (lambda s, x: s.out(torch.mul(*s.fc(x)[0].chunk(2))), "fc", (D, D)),
    "torch.jit.fork": (lambda s, x: s.out(torch.jit.wait(torch.jit.fork(s.gate, s.fc(x)))), "fc", (D, D)),
}  # fmt: skip
KEPT: dict[str, Callable[[Any, Tensor], Any]] = {
    "a copy with zeros": lambda s, x: F.linear(x, s.masked()),
    "a copy without its diagonal": lambda s, x: F.linear(x, s.fc.weight.clone().fill_diagonal_(0)),
    "where": lambda s, x: F.linear(x, torch.where(s.mask, s.fc.weight, 0.0)),
    "a masked call": lambda s, x: torch.func.functional_call(s.fc, {"weight": s.fc.weight * s.mask}, (x,)),
    "einsum as a mask": lambda s, x: F.linear(x, torch.einsum("oi,oi->oi", s.fc.weight, s.mask.float())),
    "distances": lambda s, x: torch.cdist(x, s.fc.weight),
    "differences": lambda s, x: (x[:, None] - s.fc.weight).abs().sum(-1),
    "sums and a maximum": lambda s, x: (x[:, None] + s.fc.weight).amax(-1),
}


@pytest.mark.parametrize("name", DIVIDED)
@pytest.mark.parametrize("with_example", [False, True])
def test_parts_are_matrices_of_their_own(name: str, with_example: bool) -> None:
    body, layer, heights = DIVIDED[name]
    model = Net(body)
    entries = matrices(model, example=torch.randn(4, D) if with_example else None)
    rows = [entry.rows for entry in entries if entry.name == f"{layer}.weight"]
    assert [stop - start for start, stop in rows] == [*heights]


@pytest.mark.parametrize("with_example", [False, True])
def test_a_function_of_each_row_is_read_or_the_weight_is_kept(with_example: bool) -> None:
    model = Net(lambda s, x: s.out(torch.vmap(s.gate)(s.fc(x))))
    entries = [e for e in matrices(model, example=torch.randn(4, D) if with_example else None) if "fc" in e.name]
    assert len(entries) == 2 or "looks fused" in entries[0].reason


@pytest.mark.parametrize("name", KEPT)
def test_a_weight_that_is_not_multiplied_as_it_is_stored_is_kept(name: str) -> None:
    (entry,) = [entry for entry in matrices(Net(KEPT[name])) if entry.name == "fc.weight"]
    assert entry.role == "changed"
    assert entry.reason


def test_words_in_an_equation_of_einops_are_no_letters() -> None:
    """All letters of `mid_out dim` are in `batch mid_out`, but the sum is over `dim`."""
    model = Net(lambda s, x: einops.einsum(x, s.fc.weight, "batch dim, mid_out dim -> batch mid_out"))
    (entry,) = [entry for entry in matrices(model) if entry.name == "fc.weight"]
    assert entry.role != "changed"


def test_with_an_example_a_copy_with_other_numbers_is_not_the_weight() -> None:
    def hidden(weight: Tensor) -> Tensor:
        copy = weight.clone()
        getattr(copy, "zero" + "_")()  # which the reading of the source does not follow
        return copy

    model = Net(lambda s, x: F.linear(x, hidden(s.fc.weight)))
    (entry,) = [e for e in matrices(model, example=torch.randn(4, D)) if e.name == "fc.weight"]
    assert entry.reason


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(D, 2 * D)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.fc(x).chunk(2, -1)
        return a * b.sigmoid()


@pytest.mark.parametrize("with_example", [False, True])
def test_a_part_that_torch_fx_has_traced(with_example: bool) -> None:
    model = nn.Sequential(torch.fx.symbolic_trace(Gate()), nn.Linear(D, 3))
    entries = matrices(model, example=torch.randn(4, D) if with_example else None)
    assert [entry.rows for entry in entries if entry.name == "0.fc.weight"] == [(0, D), (D, 2 * D)]


class Critics(nn.Module):
    """Two critics, of which the smaller value counts."""

    def __init__(self, smaller: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = (nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, 4)) for _ in range(2))
        self.smaller = smaller

    def forward(self, x: Tensor) -> Tensor:
        return self.smaller(self.first(x), self.second(x))


@pytest.mark.parametrize("smaller", [lambda a, b: torch.min(a, b), lambda a, b: torch.minimum(a, b)])
def test_both_of_two_critics_have_a_head(smaller: Callable[[Tensor, Tensor], Tensor]) -> None:
    roles = {entry.name: entry.role for entry in matrices(Critics(smaller))}
    assert roles["first.2.weight"] == roles["second.2.weight"] == "head"


class RawExperts(nn.Module):
    """A mixture whose experts are stacks of raw matrices beside the router."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mlp, self.out = nn.Linear(4, D), nn.Linear(D, D), nn.Linear(D, 5)
        self.gate = nn.Linear(D, 3, bias=False)
        self.up, self.down = nn.Parameter(torch.randn(3, D, D)), nn.Parameter(torch.randn(3, D, D))

    def forward(self, x: Tensor) -> Tensor:
        x = self.mlp(self.embed(x).relu()).relu()
        weights = self.gate(x).softmax(-1)
        each = torch.bmm(torch.bmm(x.expand(3, -1, -1), self.up).relu(), self.down)
        return self.out(torch.einsum("ebd,be->bd", each, weights))


def test_the_router_of_raw_experts_is_kept_and_not_muons() -> None:
    model = RawExperts()
    assert {entry.name: entry.role for entry in matrices(model)}["gate.weight"] == "router"
    trained = {id(p) for group in muon_groups(model).muon for p in group["params"]}
    assert id(model.mlp.weight) in trained
    assert id(model.gate.weight) not in trained
