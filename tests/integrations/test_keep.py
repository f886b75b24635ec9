"""`keep=` takes the selectors of `exclude=`, whatever the method; what matches nothing is refused at the start."""

import copy

import pytest
import torch
from torch import nn

from fire_core import fire_
from fire_core.integrations.intervention import Intervention
from fire_core.methods import Chain, Fire, Method, Net, RandomIsometry, ShrinkAndPerturb
from fire_core.triggers import At


class Model(nn.Module):
    """A body with batch norm, a fused layer and a head of two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
        self.attention = nn.MultiheadAttention(6, 2)
        self.head = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))


def moved(modules: dict[str, nn.Module], keep: object, **options: object) -> set[str]:
    """Names of the matrices that an action changes."""
    named = {f"{n}.{key}": p for n, module in modules.items() for key, p in module.named_parameters() if p.ndim > 1}
    with torch.no_grad():
        for p in named.values():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    before = {name: p.detach().clone() for name, p in named.items()}
    optimizer = torch.optim.SGD(named.values(), lr=0.1)
    intervention = Intervention(At(1), keep=keep, **options)
    intervention.begin(modules, [optimizer])
    assert intervention.ask(1) is not None
    return {name.partition(".")[2] for name, p in named.items() if not torch.equal(p, before[name])}


MODEL = Model()
METHODS = [{"solver": "exact"}, {"method": ShrinkAndPerturb()}]
HEAD = {"head.0.weight", "head.2.weight"}
BODY = {"body.0.weight"}
ATTENTION = {"attention.in_proj_weight", "attention.out_proj.weight"}


@pytest.mark.parametrize("options", METHODS, ids=["fire", "snp"])
@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ((), set()),
        ("head", HEAD),  # a word of a layout, which means the last layer, and the name of a module of two
        ("head.2.weight", {"head.2.weight"}),
        (["body", "head"], BODY | HEAD),
        (nn.MultiheadAttention, ATTENTION),
        ([MODEL.head, MODEL.body[0].weight], HEAD | BODY),
        ("model.head", HEAD),
    ],
)
def test_selectors(options, keep, kept):
    assert moved({"model": MODEL}, keep, **options) == (HEAD | BODY | ATTENTION) - kept
    if options == METHODS[0] and keep != "model.head":
        assert {row.name.partition("[")[0] for row in fire_(MODEL, exclude=keep)} == (HEAD | BODY | ATTENTION) - kept


@pytest.mark.filterwarnings("ignore:nothing was projected")  # in the critic
@pytest.mark.parametrize("options", METHODS, ids=["fire", "snp"])
def test_names_of_several_networks(options):
    for keep in ("critic", "1"):
        networks = {"actor": nn.Sequential(nn.Linear(4, 4)), "critic": nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 5))}
        assert moved(networks, keep, **options) == {"0.weight"}


@pytest.mark.parametrize("method", [None, ShrinkAndPerturb(coef=0.5), RandomIsometry()])
def test_a_common_body_is_changed_once(method):
    body = nn.Linear(4, 4)
    alone, both = copy.deepcopy(body), {"actor": nn.Sequential(body), "critic": nn.Sequential(body, nn.Linear(4, 2))}
    for modules, first in (({"actor": nn.Sequential(alone)}, alone), (both, body)):
        intervention = Intervention(At(1), method=method, **({} if method else {"blend": 0.5}))
        intervention.begin(modules, [torch.optim.SGD(Net(modules, {}).parameters(), lr=0.1)])
        with torch.no_grad():
            first.weight.copy_(torch.eye(4) * 3)
        intervention.ask(1)
    assert torch.equal(body.weight, alone.weight)


def test_what_is_frozen_counts_when_the_trigger_fires():
    model = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4))
    intervention = Intervention(At(1))
    intervention.begin({"model": model}, [torch.optim.SGD(model.parameters(), lr=0.1)])
    model[0].requires_grad_(True), model[1].requires_grad_(False)
    intervention.ask(1)
    assert [row.name for row in intervention.report.weights["model"]] == ["0.weight"]


@pytest.mark.parametrize("options", METHODS, ids=["fire", "snp"])
@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ("hed", r"^keep: no parameter matches 'hed'; near it: head"),
        (nn.LSTM, r"^keep: no parameter matches LSTM$"),
        ("qk", r"^keep='qk' means a part of attention\.in_proj_weight and not its v: keep all$"),
    ],
)
def test_what_matches_nothing_is_refused_at_the_start(options, keep, message):
    model = Model()
    with pytest.raises(ValueError, match=message):
        Intervention(At(5), keep=keep, **options).begin({"model": model}, [torch.optim.SGD(model.parameters(), lr=0.1)])


def test_frozen_weights_change_if_that_is_asked_for_of_the_method_too() -> None:
    def changed(method: Method | None) -> set[str]:
        model = Model()
        model.body.requires_grad_(requires_grad=False)
        return moved({"model": model}, (), method=method, trainable_only=False)

    for method in (None, Fire(trainable_only=False), RandomIsometry(trainable_only=False), ShrinkAndPerturb()):
        assert "body.0.weight" in changed(method)
    for method in (Fire(), Chain({"snp": ShrinkAndPerturb(), "fire": Fire()})):
        with pytest.raises(ValueError, match=r"has no effect on Fire\(\): give Fire\(trainable_only=False\) too"):
            changed(method)
