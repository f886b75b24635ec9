"""Forgetting optimizer state: the next step is that of a new optimizer for what was reset, and unmoved for the rest."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adagrad, Adam, AdamW, Muon, NAdam, RMSprop

from fire_core import fire_, reset_optimizer_state

CASES = {
    "sgd": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "sgd-dampened": lambda p: SGD(p, lr=0.1, momentum=0.9, dampening=0.5, foreach=True),
    "adam": lambda p: Adam(p, lr=0.1),
    "adam-amsgrad-foreach": lambda p: Adam(p, lr=0.1, amsgrad=True, foreach=True),
    "adam-fused": lambda p: Adam(p, lr=0.1, fused=True),
    "adamw": lambda p: AdamW(p, lr=0.1, weight_decay=0.1),
    "adamw-fused": lambda p: AdamW(p, lr=0.1, fused=True),
    "rmsprop": lambda p: RMSprop(p, lr=0.1, momentum=0.5, centered=True),
    "nadam": lambda p: NAdam(p, lr=0.1),
    "adagrad": lambda p: Adagrad(p, lr=0.1, initial_accumulator_value=0.3),
    "muon": lambda p: Muon([q for q in p if q.ndim == 2], lr=0.1),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def trained(make) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = network()
    optimizer = make(list(model.parameters()))
    for seed in range(4):
        step(model, optimizer, seed)
    return model, optimizer


def twin(model: nn.Module, optimizer: torch.optim.Optimizer, make) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """The same weights with the same optimizer state."""
    other = copy.deepcopy(model)
    copied = make(list(other.parameters()))
    copied.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return other, copied


@pytest.mark.parametrize("make", CASES.values(), ids=CASES.keys())
def test_next_steps_are_those_of_a_new_optimizer(make):
    model, optimizer = trained(make)
    fresh, untouched = copy.deepcopy(model), copy.deepcopy(model)
    fresh_optimizer = make(list(fresh.parameters()))
    untouched, untouched_optimizer = twin(model, optimizer, make)
    chosen = [model[0].weight]
    assert reset_optimizer_state(optimizer, chosen) == 1
    # The same gradients for all three, several steps: only then do step counters and bias correction show.
    for seed in range(10, 13):
        for net in (model, fresh, untouched):
            grads = torch.Generator().manual_seed(seed)
            for p in net.parameters():
                p.grad = torch.randn(p.shape, generator=grads)
        for each in (optimizer, fresh_optimizer, untouched_optimizer):
            each.step()
    # Weight decay couples a weight to itself alone, so the histories stay comparable tensor by tensor.
    assert torch.equal(model[0].weight, fresh[0].weight)
    assert torch.equal(model[2].weight, untouched[2].weight)
    assert not torch.equal(model[0].weight, untouched[0].weight)
    if any(model[2].bias is p for group in optimizer.param_groups for p in group["params"]):
        assert torch.equal(model[2].bias, untouched[2].bias)


def test_several_optimizers_and_foreign_parameters():
    model = network()
    first, second = Adam([model[0].weight, model[0].bias]), SGD([model[2].weight], lr=0.1, momentum=0.9)
    for seed in range(2):
        model(torch.randn(8, 5, generator=torch.Generator().manual_seed(seed))).sum().backward()
        first.step()
        second.step()
    everything = [*model.parameters(), nn.Parameter(torch.zeros(2)), model[0].weight]
    assert reset_optimizer_state([first, second], everything) == 3
    assert not first.state
    assert not second.state
    assert reset_optimizer_state([first, second], everything) == 0


def test_capturable_state_keeps_its_memory():
    """A captured CUDA graph reads the old addresses: the tensors stay and hold what a new optimizer would."""
    weight = nn.Parameter(torch.ones(3, 2))
    optimizer = Adam([weight], lr=0.1)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    optimizer.param_groups[0]["capturable"] = True  # the step itself needs a GPU
    before = dict(optimizer.state[weight])
    reset_optimizer_state(optimizer, [weight])
    assert set(optimizer.state[weight]) == {"step", "exp_avg", "exp_avg_sq"}
    for key, value in optimizer.state[weight].items():
        assert value is before[key]
        assert not value.any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="capturable optimizers step on a GPU only")
def test_capturable_step_is_that_of_a_new_optimizer():
    weight = nn.Parameter(torch.ones(3, 2, device="cuda"))
    other = nn.Parameter(torch.ones(3, 2, device="cuda"))
    optimizer, new = Adam([weight], lr=0.1, capturable=True), Adam([other], lr=0.1, capturable=True)
    weight.grad = torch.full_like(weight, 2.0)
    optimizer.step()
    reset_optimizer_state(optimizer, [weight])
    with torch.no_grad():
        weight.fill_(1.0)
    weight.grad = torch.ones_like(weight)
    other.grad = torch.ones_like(other)
    optimizer.step()
    new.step()
    assert torch.equal(weight, other)


@pytest.mark.parametrize(
    "rows", [torch.tensor([1, 4]), [1, 4], torch.tensor([0, 1, 0, 0, 1, 0]).bool(), slice(1, 5, 3)]
)
def test_rows_of_the_moments(rows):
    model, optimizer = trained(CASES["adam"])
    weight, bias = model[0].weight, model[0].bias
    before = copy.deepcopy(optimizer.state_dict())["state"]
    reset_optimizer_state(optimizer, [weight, bias], rows=rows)
    for index, p in ((0, weight), (1, bias)):
        for key in ("exp_avg", "exp_avg_sq"):
            now, old = optimizer.state[p][key], before[index][key]
            assert not now[[1, 4]].any()
            assert torch.equal(now[[0, 2, 3, 5]], old[[0, 2, 3, 5]])
        assert optimizer.state[p]["step"] == 4


def test_columns_of_the_moments():
    model, optimizer = trained(CASES["adam"])
    reset_optimizer_state(optimizer, [model[2].weight], rows=[0, 5], dim=1)
    moment = optimizer.state[model[2].weight]["exp_avg"]
    assert not moment[:, [0, 5]].any()
    assert moment[:, 1:5].any()


def test_fire_resets_what_it_projects_and_nothing_else():
    model, optimizer = trained(CASES["adamw"])
    other = Adam([nn.Parameter(torch.zeros(2))])
    report = fire_(model, optimizer=[optimizer, other])
    assert {id(p) for p in report.parameters} == {id(model[0].weight), id(model[2].weight)}
    assert {id(p) for p in optimizer.state} == {id(model[0].bias), id(model[2].bias)}


def task(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """256 samples of a small classification task: ten noisy prototypes."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(10, 20, generator=torch.Generator().manual_seed(77))
    y = torch.randint(10, (256,), generator=generator)
    return centres[y] + 0.8 * torch.randn(256, 20, generator=generator), y


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """Losses of full-batch steps."""
    losses = []
    x, y = task(0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def spike(losses: list[float]) -> float:
    """The highest rise above the lowest loss so far."""
    return max(loss - min(losses[: i + 1]) for i, loss in enumerate(losses))


def make_adam(params: list[nn.Parameter]) -> Adam:
    return Adam(params, lr=2e-3)


@pytest.fixture
def one_thread():
    """Many small steps: threads only get in each other's way, and numbers depend on how many there are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_no_loss_spike_after_fire_and_reset():
    """A deep network trained until its gradients are tiny, projected, and trained on.

    The second moments of converged gradients are tiny too, so with a stale state the first steps after the projection
    are several times the learning rate, and the loss leaps. With the state reset it falls.
    """
    stale, reset = [], []
    for seed in range(3):
        torch.manual_seed(seed)
        layers = [module for _ in range(8) for module in (nn.Linear(64, 64), nn.ReLU())]
        model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), *layers, nn.Linear(64, 10))
        optimizer = make_adam(list(model.parameters()))
        train(model, optimizer, 300)
        other, other_optimizer = twin(model, optimizer, make_adam)
        fire_(model)
        fire_(other, optimizer=other_optimizer)
        after, after_reset = train(model, optimizer, 30), train(other, other_optimizer, 30)
        assert after[0] == after_reset[0]  # the same projected network
        stale.append(spike(after))
        reset.append(spike(after_reset))
    assert sum(stale) / 3 > 0.5
    assert max(reset) < 0.1
