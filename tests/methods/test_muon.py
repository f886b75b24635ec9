"""Muon: torch's own for matrices, the same direction for filters, the head and the rest by Adam; exact resume."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from fire_core import fire_
from fire_core.methods import Context, Method, Net
from fire_core.methods.contrib.adamo import AdamO
from fire_core.methods.contrib.upgd import UPGD
from fire_core.methods.fire import Fire
from fire_core.methods.muon import CombinedOptimizer, MuonOptimizer, hidden_weights
from rl.dqn.networks import MLP
from tests.programs import VISION, rows


def steps(optimizer: torch.optim.Optimizer, model: nn.Module, number: int, start: int = 0) -> None:
    for i in range(start, start + number):
        generator = torch.Generator().manual_seed(i)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def optimizer_of(model: nn.Module, **options: object) -> CombinedOptimizer:
    chosen = MuonOptimizer(**options).optimizer(Net({"model": model}, {}), torch.optim.Adam)
    assert isinstance(chosen, CombinedOptimizer)
    return chosen


def test_matrices_take_torch_s_own_steps_bit_for_bit() -> None:
    torch.manual_seed(0)
    mine, theirs = (nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 4), nn.Linear(4, 2)) for _ in range(2))
    theirs.load_state_dict(mine.state_dict())
    steps(optimizer_of(mine), mine, 3)
    muon = torch.optim.Muon([theirs[1].weight], lr=1e-2, weight_decay=0, momentum=0.95)
    rest = [p for p in theirs.parameters() if p is not theirs[1].weight]
    adam = torch.optim.AdamW(rest, lr=1e-3, betas=(0.9, 0.95), eps=1e-10, weight_decay=0)
    steps(CombinedOptimizer(muon, adam), theirs, 3)
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


def test_hidden_layers_of_a_head_are_muon_s_and_a_network_without_hidden_layers_is_refused() -> None:
    """DQN's perceptron has one hidden matrix, which lies in its head; the FIRE paper's code leaves heads to Adam."""
    network = MLP(2, (1, 4), 16)
    assert [*hidden_weights(Net({"q": network}, {}))] == [network.head.fc1.weight]
    MuonOptimizer().check(Net({"q": network}, {}))
    assert network.head.fc1.weight not in hidden_weights(Net({"q": network}, {}), "fire_paper")
    shallow = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(ValueError, match="Muon would train no weight"):
        MuonOptimizer().check(Net({"model": shallow}, {}))


def test_the_paper_s_first_phase_of_warm_start_is_trained_by_adam(tmp_path: Path) -> None:
    folder = VISION.run(tmp_path, "method=muon", "lr=2e-3", "dataset.train_size=256", "variant=fire_paper")
    rates = {row["phase"]: row["lr"] for row in rows(folder) if "lr" in row}
    assert rates == {0: 2e-3, 1: 1e-2}


def test_the_rate_of_a_convolution_is_read_off_its_kernel_s_sides() -> None:
    layers = {
        nn.Conv2d(64, 64, 1, groups=32): 1,
        nn.ConvTranspose2d(64, 3, 2): 1,
        nn.Conv1d(64, 64, 3): 1,
        nn.Conv2d(64, 8, (4, 1)): 2,
    }
    for layer, factor in layers.items():
        model = nn.Sequential(nn.Conv2d(3, 64, 3), layer, nn.Linear(8, 2))
        before = layer.weight.detach().clone()
        optimizer = optimizer_of(model, lr=1.0)
        layer.weight.grad = torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(0))
        optimizer.step()
        moved = before - layer.weight.detach()
        groups = layer.groups
        if isinstance(layer, nn.ConvTranspose2d):
            moved = moved.transpose(0, 1)
        sizes = torch.linalg.svdvals(torch.unflatten(moved, 0, (groups, -1)).flatten(2))
        assert 0.65 * factor < sizes.mean() < 1.25 * factor, layer


def largest_moment(optimizer: CombinedOptimizer, parameter: nn.Parameter) -> float:
    """The largest number in the states that the parts hold of a weight, without the count of steps."""
    states = [part.state[parameter] for part in optimizer.parts if parameter in part.state]
    moments = [value for state in states for name, value in state.items() if name != "step"]
    return max((float(value.abs().max()) for value in moments), default=0.0)


def test_the_parts_state_is_reset_through_the_whole_and_a_copy_has_its_own() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 4), nn.Linear(4, 2))
    optimizer = optimizer_of(model)
    steps(optimizer, model, 2)
    copied = copy.deepcopy((model, optimizer))
    assert largest_moment(optimizer, model[1].weight) > 0
    fire_(model, optimizer=optimizer)
    assert largest_moment(optimizer, model[1].weight) == 0
    assert largest_moment(copied[1], copied[0][1].weight) > 0
    before = copied[0][1].weight.clone()
    steps(copied[1], copied[0], 1)
    assert not torch.equal(before, copied[0][1].weight), "the copy trains the copied weights"
    steps(optimizer, model, 1)
    context = Context(phase=1, step=0, generator=torch.Generator(), optimizers=[optimizer])
    Fire().at_boundary(Net.of({"model": model}), context)
    assert largest_moment(optimizer, model[1].weight) == 0
    with pytest.raises(ValueError, match="add the group to one of the parts"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


@pytest.mark.parametrize("make", [MuonOptimizer, UPGD, AdamO])
def test_an_optimizer_of_a_method_calls_a_closure(make: type[Method]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 4), nn.Linear(4, 2))
    optimizer, before = make().optimizer(Net.of({"model": model}), torch.optim.Adam), model[1].weight.clone()

    def closure() -> torch.Tensor:
        loss = model(torch.ones(1, 6)).square().sum()
        loss.backward()
        return loss

    expected = model(torch.ones(1, 6)).square().sum().item()
    with torch.no_grad():
        assert optimizer.step(closure).item() == pytest.approx(expected)
    assert not torch.equal(before, model[1].weight)
