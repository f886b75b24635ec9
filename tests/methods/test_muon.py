"""Muon: torch's own for matrices, the same direction for filters, the head and the rest by Adam; exact resume."""

from pathlib import Path

import torch
from torch import nn

from fire_core.methods import Net
from fire_core.methods.muon import CombinedOptimizer, MuonOptimizer
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


def test_the_paper_s_first_phase_of_warm_start_is_trained_by_adam(tmp_path: Path) -> None:
    folder = VISION.run(tmp_path, "method=muon", "lr=2e-3", "dataset.train_size=256", "variant=fire_paper")
    rates = {row["phase"]: row["lr"] for row in rows(folder) if "lr" in row}
    assert rates == {0: 2e-3, 1: 1e-2}
