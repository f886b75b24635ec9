"""Muon: torch's own for matrices, the same direction for filters, the head and the rest by Adam; exact resume."""

from pathlib import Path

import torch
from torch import nn

from fire_core.methods import Net
from fire_core.methods.muon import CombinedOptimizer, MuonOptimizer, hidden_weights
from fire_core.weights.optimizer_state import reset_optimizer_state
from tests.programs import VISION, rows
from vision.models import ViT


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


def test_channels_last_filters_take_the_same_steps() -> None:
    torch.manual_seed(0)
    plain, other = (nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 5, 3), nn.Conv2d(5, 4, 1)) for _ in range(2))
    other.load_state_dict(plain.state_dict())
    other = other.to(memory_format=torch.channels_last)
    for model in (plain, other):
        steps(optimizer_of(model), model, 3)
    for a, b in zip(plain.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-3)  # bfloat16 sums in another order, steps of 1e-2


def test_who_is_trained_by_whom() -> None:
    model = ViT(5, image_size=8, dim=12, depth=1, heads=2, dim_head=5, mlp_dim=14)
    names = {p: name for name, p in model.named_parameters()}
    own = Net({"model": model}, {})
    hidden = {names[p] for p in hidden_weights(own)}
    assert all(name.endswith("weight") and "norm" not in name for name in hidden)
    assert "head.weight" not in hidden
    assert "backbone.transformer.layers.0.0.to_q.weight" in hidden
    others = {names[p] for p in hidden_weights(own, "fire_paper")} - hidden
    assert others == {"backbone.pos_embedding", "backbone.cls_token", "backbone.to_patch_embedding.2.weight"}
    optimizer = optimizer_of(model)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(names)


def test_its_parts_forget_like_any_optimizer() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 5, 3), nn.Conv2d(5, 2, 1))
    optimizer = optimizer_of(model)
    steps(optimizer, model, 1)
    reset_optimizer_state(optimizer.parts, [model[1].weight], torch.tensor([2]))
    momentum = optimizer.parts[0].state[model[1].weight]["momentum_buffer"]
    assert (momentum[2] == 0).all()
    assert (momentum[[0, 1, 3, 4]] != 0).all()


def test_the_paper_s_first_phase_of_warm_start_is_trained_by_adam(tmp_path: Path) -> None:
    folder = VISION.run(tmp_path, "method=muon", "lr=2e-3", "dataset.train_size=256", "variant=fire_paper")
    rates = {row["phase"]: row["lr"] for row in rows(folder) if "lr" in row}
    assert rates == {0: 2e-3, 1: 1e-2}
