"""Hooks on loops with master copies: they are changed with the weights, and a step that undoes an act is noticed."""

import copy

import pytest
import torch
from torch import nn

from fire_core.integrations.intervention import Intervention
from fire_core.integrations.torch import FireHook
from fire_core.methods import Chain, Fire, FullReset, Method, RandomIsometry, ShrinkAndPerturb
from fire_core.triggers import At, Every
from tests.weights.test_masters import Flat, InState, Loop, MastersOnly, error, network


def test_another_method_changes_them_too() -> None:
    loop = MastersOnly()
    start = loop.model.get_parameter("2.weight").detach().clone()
    FireHook(loop.optimizer, loop.model, At([6]), method=ShrinkAndPerturb(coef=1.0))
    for _ in range(6):
        loop.step()
    (master,) = (m for p, m in loop.pairs if p is loop.model.get_parameter("2.weight"))
    assert torch.equal(master.bfloat16(), loop.model.get_parameter("2.weight"))
    assert (master - start).norm() > start.norm() / 2, "a new draw, which the loop has not undone"
    assert master not in loop.optimizer.state or not loop.optimizer.state[master]


class Hidden(Loop):
    """A loop that keeps its copies where no optimizer shows them, and writes them over the weights."""

    def build(self, weights: list[nn.Parameter]) -> None:
        self.pairs = []
        self.copies = [p.detach().float() for p in weights]
        self.optimizer = torch.optim.SGD(weights, lr=1e-3)
        self.skips = False

    def step(self) -> None:
        self.optimizer.step()
        if not self.skips:
            with torch.no_grad():
                for weight, master in zip(self.model.parameters(), self.copies, strict=True):
                    weight.copy_(master.mul_(0.999))


def test_a_step_that_undoes_the_act_is_noticed_and_a_skipped_one_is_not_taken_for_it() -> None:
    loop = Hidden()
    FireHook(loop.optimizer, loop.model, At([1]), solver="exact")
    loop.skips = True  # as a gradient scaler does
    loop.step()
    loop.step()
    loop.skips = False
    loop.step()
    loop.step()
    with pytest.raises(RuntimeError, match=r"weight is back at its old values: .* which masters= can name"):
        loop.step()


def test_a_flat_copy_is_named_in_a_hook() -> None:
    loop = Flat()
    with pytest.raises(ValueError, match="masters="):
        FireHook(loop.optimizer, loop.model, At([1]))
    before = error(loop.model)
    FireHook(loop.optimizer, loop.model, At([2]), solver="exact", masters=loop.masters)
    for _ in range(3):
        loop.step()
    assert error(loop.model) < before / 10


@pytest.mark.parametrize(
    "method", [RandomIsometry(), Chain({"snp": ShrinkAndPerturb(0.2), "fire": Fire(solver="exact")})]
)
def test_methods_that_change_weights_before_they_project(method: Method) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)]
    model = nn.Sequential(layers[0].bfloat16(), layers[1], layers[2].bfloat16())
    pairs = [(p, p.detach().float()) for p in model.parameters() if p.dtype == torch.bfloat16]
    optimizer = torch.optim.Adam([*(master for _, master in pairs), *model[1].parameters()], lr=1e-3)
    hook = FireHook(optimizer, model, At(1), method=method)
    for _, master in pairs:
        master.grad = torch.ones_like(master)
    optimizer.step()
    assert hook.intervention.firings == 1
    assert all(torch.equal(copy.bfloat16(), p) for p, copy in pairs)


@pytest.mark.parametrize(
    "method",
    [None, Fire(), ShrinkAndPerturb(layout=None), Chain({"snp": ShrinkAndPerturb(layout=None), "fire": Fire()})],
    ids=["fire_", "Fire", "S&P", "chain"],
)
@pytest.mark.parametrize("kind", [MastersOnly, InState, Flat, Hidden])
def test_a_network_that_is_refused_leaves_the_masters_of_another_as_they_were(
    kind: type[Loop], method: Method | None
) -> None:
    def acted(refused: bool) -> tuple[Loop, Intervention]:
        actor, critic = kind(), network()
        masters = actor.masters
        if isinstance(actor, Hidden):
            masters = dict(zip(dict(actor.model.named_parameters()), actor.copies, strict=True))
        intervention = Intervention(At([3]), copy.deepcopy(method), masters=masters)
        optimizers = [actor.optimizer, torch.optim.Adam(critic.parameters())]
        intervention.begin({"actor": actor.model, "critic": critic}, optimizers)
        torch.manual_seed(1)
        for _ in range(3):
            actor.step()
        if refused:
            with torch.no_grad():
                critic.get_parameter("2.weight")[0, 0] = torch.nan
            with pytest.raises(ValueError, match=r"NaN or Inf in .*2\.weight"):
                intervention.ask(3)
        for _ in range(2):
            actor.step()
        return actor, intervention

    (actor, intervention), (undisturbed, _) = acted(refused=True), acted(refused=False)
    for weight, expected in zip(actor.model.parameters(), undisturbed.model.parameters(), strict=True):
        assert torch.equal(weight, expected)
    assert not intervention.fired
    assert intervention.firings == 0, "no action has happened"


@pytest.mark.parametrize("method", [FullReset(), ShrinkAndPerturb()])
@pytest.mark.parametrize("act_after", [1, 20])
def test_an_act_as_small_as_a_step_is_not_taken_for_one_that_was_undone(method: Method, act_after: int) -> None:
    """A weight may come back to its old values by itself: the bias of one number moves by Adam's rate each time."""
    for seed in range(6):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
        inputs, targets = torch.randn(64, 4), torch.randn(64, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        FireHook(optimizer, model, Every(act_after), method=copy.deepcopy(method))
        for step in range(10 if act_after == 1 else 200):
            rows = slice(None) if act_after == 1 else torch.arange(step * 8, step * 8 + 8) % 64
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs[rows]), targets[rows]).backward()
            optimizer.step()
