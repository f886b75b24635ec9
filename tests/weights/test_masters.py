"""Four ways in which loops keep float32 masters of half-precision weights: an act is not undone by the next step."""

import copy
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fire_core import dfi, fire_, reset_optimizer_state, shrink_and_perturb_
from fire_core.weights.masters import find_masters


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).bfloat16()


class Loop:
    """A model in bfloat16 that is trained through copies; `step` writes them over the weights.

    Attributes:
        masters: what `fire_` cannot see, to be given to it.
    """

    def __init__(self) -> None:
        self.model = network()
        self.masters: Any = None
        self.optimizer: torch.optim.Optimizer
        self.pairs: list[tuple[Tensor, Tensor]]
        self.build(list(self.model.parameters()))

    def build(self, weights: list[nn.Parameter]) -> None:
        raise NotImplementedError

    def step(self) -> None:
        x = torch.randn(32, 8).bfloat16()
        self.model.zero_grad()
        self.model(x).square().mean().backward()
        for weight, master in self.pairs:
            assert weight.grad is not None
            master.grad = weight.grad.float().view_as(master)
        self.optimizer.step()
        with torch.no_grad():
            for weight, master in self.pairs:
                weight.copy_(master.view_as(weight))


class MastersOnly(Loop):
    """As apex's O2 and hand-written loops: the optimizer holds the copies and nothing else."""

    def build(self, weights: list[nn.Parameter]) -> None:
        self.pairs = [(p, nn.Parameter(p.detach().float())) for p in weights]
        self.optimizer = torch.optim.AdamW([master for _, master in self.pairs], lr=1e-3)


class Mixed(Loop):
    """As Megatron: copies of half-precision weights beside the float32 weights of norms themselves."""

    def build(self, weights: list[nn.Parameter]) -> None:
        self.model[1].float()
        self.model[1].register_forward_pre_hook(lambda module, args: args[0].float())
        self.model[1].register_forward_hook(lambda module, args, out: out.bfloat16())
        own = list(self.model[1].parameters())
        self.pairs = [
            (p, nn.Parameter(p.detach().float())) for p in self.model.parameters() if p.dtype != torch.float32
        ]
        groups: list[dict[str, Any]] = [{"params": own}, {"params": [m for _, m in self.pairs]}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3)


class InState(Loop):
    """As TransformerEngine: the optimizer holds the weights, its state their copies."""

    def build(self, weights: list[nn.Parameter]) -> None:
        self.pairs = []
        self.optimizer = FusedAdam(weights, lr=1e-3)


class FusedAdam(torch.optim.Optimizer):
    """Adam, far enough, with `master_param` in its state, made where a weight has none."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state["master_param"] = p.detach().float()
                state["exp_avg"] = torch.zeros_like(state["master_param"])
            state["exp_avg"].lerp_(p.grad.float(), 0.1)
            state["master_param"].sub_(state["exp_avg"].sign(), alpha=self.param_groups[0]["lr"])
            p.copy_(state["master_param"])


class BesideGroups(Loop):
    """As apex: the optimizer's groups hold the weights, an attribute of the same form their copies."""

    def build(self, weights: list[nn.Parameter]) -> None:
        self.pairs = []
        self.optimizer = ApexAdam(weights, lr=1e-3)


class ApexAdam(torch.optim.Optimizer):
    """Adam, far enough, with its copies in `param_groups_master`."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.param_groups_master = [
            {"params": [p.detach().clone().float() for p in group["params"]]} for group in self.param_groups
        ]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group, copies_of_group in zip(self.param_groups, self.param_groups_master, strict=True):
            for p, master in zip(group["params"], copies_of_group["params"], strict=True):
                average = self.state[p].setdefault("exp_avg", torch.zeros_like(master)).lerp_(p.grad.float(), 0.1)
                master.sub_(average.sign(), alpha=group["lr"])
                p.copy_(master)


class Flat(Loop):
    """As ZeRO: all copies in one flat tensor."""

    def build(self, weights: list[nn.Parameter]) -> None:
        flat = nn.Parameter(torch.cat([p.detach().float().flatten() for p in weights]))
        self.pairs, self.masters, start = [], {}, 0
        self.flat = flat
        for name, p in self.model.named_parameters():
            self.masters[name] = (flat, start)
            start += p.numel()
        self.optimizer = torch.optim.AdamW([flat], lr=1e-3)

    def step(self) -> None:
        self.model.zero_grad()
        self.model(torch.randn(32, 8).bfloat16()).square().mean().backward()
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        self.flat.grad = torch.cat([grad.float().flatten() for grad in grads])
        self.optimizer.step()
        with torch.no_grad():
            start = 0
            for p in self.model.parameters():
                p.copy_(self.flat[start : start + p.numel()].view(p.shape))
                start += p.numel()


LOOPS = [MastersOnly, Mixed, InState, BesideGroups, Flat]


def error(model: nn.Module) -> float:
    weight = model.get_parameter("2.weight")
    return float(dfi(weight.detach().float()))


@pytest.mark.parametrize("make", LOOPS)
def test_the_next_step_does_not_undo_the_act(make: Callable[[], Loop]) -> None:
    """And a copy keeps the digits of what did not change."""
    loop = make()
    for _ in range(5):
        loop.step()
    kept, before = loop.model.get_parameter("0.weight"), error(loop.model)
    digits = copies(loop)[id(kept)].clone()
    assert not torch.equal(digits, kept.float())
    fire_(loop.model, solver="exact", optimizer=loop.optimizer, masters=loop.masters, exclude="0")
    assert torch.equal(copies(loop)[id(kept)], digits)
    assert error(loop.model) < before / 1000
    loop.step()
    assert error(loop.model) < before / 20
    if isinstance(loop, (MastersOnly, Mixed)):  # the optimizer is as a new one for what was projected
        (master,) = (m for p, m in loop.pairs if p is loop.model.get_parameter("2.weight"))
        assert loop.optimizer.state[master]["step"] == 1


def copies(loop: Loop) -> dict[int, Tensor]:
    found = find_masters(loop.model, [loop.optimizer], loop.masters)
    return {id(master.weight): master.pair()[1] for master in found}


def test_shrink_and_perturb_takes_the_copies_along() -> None:
    loop = MastersOnly()
    init = copy.deepcopy(loop.model.state_dict())
    for _ in range(5):
        loop.step()
    shrink_and_perturb_(loop.model, init, 1.0, optimizer=loop.optimizer, masters=loop.masters)
    for (weight, master), start in zip(loop.pairs, init.values(), strict=True):
        assert torch.equal(weight, start)
        assert torch.equal(master.bfloat16(), start)


def test_a_state_is_reset_without_the_master_in_it() -> None:
    loop = InState()
    for _ in range(3):
        loop.step()
    weight = loop.model.get_parameter("2.weight")
    state = loop.optimizer.state[weight]
    before = state["master_param"].clone()
    reset_optimizer_state(loop.optimizer, [weight], rows=[0, 1])
    assert torch.equal(state["master_param"], before)
    assert not state["exp_avg"][:2].any()
    assert state["exp_avg"][2:].any()
    reset_optimizer_state(loop.optimizer, [weight])
    assert torch.equal(loop.optimizer.state[weight]["master_param"], before)
    assert not loop.optimizer.state[weight]["exp_avg"].any()
    loop.step()


def test_what_cannot_be_matched_is_refused_with_what_to_pass() -> None:
    loop = Flat()
    before = copy.deepcopy(loop.model.state_dict())
    with pytest.raises(
        ValueError, match=r"holds 0.weight: .* masters=\{'0.weight': copy\}, or \(flat tensor, offset\)"
    ):
        fire_(loop.model, optimizer=loop.optimizer)
    for wrong, says in (
        ({"nothing": torch.zeros(1)}, "no weight 'nothing'"),
        ({"0.weight": torch.zeros(3, 3)}, "cannot hold it"),
        ({"0.weight": (loop.flat, 10**6)}, "cannot hold it"),
        ({"0.weight": torch.zeros(16, 8)}, "other values"),
    ):
        with pytest.raises(ValueError, match=says):
            fire_(loop.model, optimizer=loop.optimizer, masters=wrong)
    assert all(torch.equal(value, before[name]) for name, value in loop.model.state_dict().items())


def test_a_process_changes_its_part_of_zeros_partitions() -> None:
    """As DeepSpeed notes it at the weights: here a process whose part ends in the middle of `2.weight`."""
    loop, cut, start = Flat(), 200, 0
    own = nn.Parameter(loop.flat.detach()[:cut].clone())
    optimizer = torch.optim.AdamW([own])
    for p in loop.model.parameters():
        count = max(0, min(p.numel(), cut - start))
        address, copied = SimpleNamespace(start=start), own.detach()[start : start + count]
        part = SimpleNamespace(start=0, numel=count)
        noted = SimpleNamespace(hp_fragment=copied, hp_fragment_address=address, lp_fragment_address=part)
        p._hp_mapping = noted if count else None
        start += p.numel()
    with pytest.raises(ValueError, match=r"give its optimizer, optimizer=engine\.optimizer"):
        fire_(loop.model, optimizer=torch.optim.AdamW([torch.zeros(3)]))
    assert not fire_(loop.model, solver="exact", optimizer=optimizer).warnings
    weights = torch.cat([p.detach().flatten() for p in loop.model.parameters()])
    assert torch.equal(own.detach().bfloat16(), weights[:cut])
    assert not torch.equal(weights[cut:], loop.flat.detach().bfloat16()[cut:])


def test_other_models_in_the_optimizer_are_no_masters() -> None:
    """A float32 model whose optimizer trains another one too; and a copy, of which the optimizer holds nothing."""
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = torch.optim.Adam([*model.parameters(), *other.parameters()])
    assert find_masters(model, [optimizer]) == []
    with pytest.raises(ValueError, match="hold none of the model's weights"):
        fire_(copy.deepcopy(model), optimizer=optimizer)


def test_copies_of_float32_weights_are_named_by_the_caller_and_else_told() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    copies = [p.detach().clone().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.AdamW(copies)
    with pytest.raises(ValueError, match=r"masters=\{name: copy\}"):
        fire_(model, optimizer=optimizer)
    named = dict(zip((name for name, _ in model.named_parameters()), copies, strict=True))
    fire_(model, optimizer=optimizer, masters=named)
    assert torch.equal(copies[0], model[0].weight)
    for wrong, says in (({"0.weight": 3}, "no tensor"), ([1], "give a mapping")):
        with pytest.raises(ValueError, match=says):
            fire_(model, optimizer=optimizer, masters=wrong)
