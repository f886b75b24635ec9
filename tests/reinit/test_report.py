"""The report of fire_: what it says of every number in the model, and how it prints."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from fire_core import FireWarning, fire_
from tests.networks import GPT


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 3))


def test_it_accounts_for_every_number_once():
    model = GPT()  # with a tied head
    report = fire_(model, exclude="transformer.h.0.mlp")
    projected = sum(row.numel for row in report if row.action == "project")
    assert projected == sum(p.numel() for p in report.parameters)
    assert projected + sum(kept.numel for kept in report.kept.values()) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("solver", ["newton_schulz", "exact"])
def test_norms_and_measures_agree_with_float64(solver):
    """Shapes of one block and of several, wide, tall and square; far above and below size 1."""
    torch.manual_seed(0)
    shapes = [(300, 300), (300, 140), (129, 260), (1, 40), (40, 40)]
    model = nn.Sequential(*(nn.Linear(n, m, bias=False) for m, n in shapes), nn.Conv2d(140, 130, 3, bias=False))
    with torch.no_grad():
        model[1].weight.mul_(1e6)
        model[2].weight.mul_(1e-6)
    before = weights64(model)
    report = fire_(model, solver)
    for row, old, new in zip(report, before, weights64(model), strict=True):
        for value, W in ((row.dfi_before, old), (row.dfi_after, new)):
            expected = float(((torch.linalg.svdvals(W) / row.scale).square() - 1).square().sum())
            assert value == pytest.approx(expected, rel=3e-6, abs=1e-12 * min(row.shape) ** 2)
        assert row.norm_before == pytest.approx(float(torch.linalg.vector_norm(old)), rel=1e-6)
        assert row.norm_after == pytest.approx(float(torch.linalg.vector_norm(new)), rel=1e-6)
        assert row.sfe == pytest.approx(float((new - old).square().sum()), rel=3e-6)
    assert report.total("dfi_after") == pytest.approx(sum(row.dfi_after for row in report))


def weights64(model: nn.Module) -> list[Tensor]:
    """The matrices of each weight, (..., d_out, d_in), in float64."""
    every = [p.detach().double() for p in model.parameters() if p.ndim > 1]
    return [w.flatten(2).movedim(-1, 0) if w.ndim == 4 else w for w in every]


def test_success_is_said_against_a_tolerance():
    model = network()
    with torch.no_grad():
        model[1].weight[0] *= 1e-3
    assert not fire_(copy.deepcopy(model), iterations=3).success()
    report = fire_(copy.deepcopy(model), "exact")
    assert report.success(1e-5)
    assert not report.success(0.0)
    row = report.rows[0]
    assert row.deviation == pytest.approx(math.sqrt(row.dfi_after / 5))
    with pytest.raises(ValueError, match="measure=True"):
        fire_(model, measure=False).success()


def test_nothing_projected_is_a_warning_and_no_success():
    model = nn.Sequential(nn.Embedding(4, 3), nn.LayerNorm(3))
    with pytest.warns(FireWarning, match="nothing was projected"):
        report = fire_(model)
    assert report.warnings == ["nothing was projected; see report.kept for the reasons"]
    assert not report.success()
    assert "warning: nothing was projected" in str(report)


def test_it_prints_at_a_glance():
    model = nn.ModuleDict({"a_rather_long_name_of_a_module": GPT(n_layer=2), "zero": nn.Linear(3, 3)})
    model["frozen"] = nn.Linear(4, 4).requires_grad_(False)
    model["many"] = nn.ModuleList(nn.Embedding(3, 2) for _ in range(4))
    nn.init.zeros_(model["zero"].weight)
    with pytest.warns(FireWarning, match="stay zero: zero"):
        report = fire_(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    header, first, *_ = str(report).splitlines()
    assert header.split()[:4] == ["name", "shape", "n", "action"]
    assert first.startswith("a_rather_long_name")
    assert first.split()[0].endswith("wte.weight")
    projected = sum(row.action == "project" for row in report)
    for part in (
        "projected ", "kept ", "skipped ", "of the model's numbers", "0 optimizer states reset",
        f"of {projected} weights within 0.01 of an isometry", "kept: an embedding", "many.*.weight 3x2",
        "frozen.weight 4x4", "warning: zero matrices", "biases, scales and other vectors",
    ):  # fmt: skip
        assert part in str(report)


def test_unmeasured_report():
    report = fire_(network(), measure=False)
    assert all(math.isnan(row.dfi_after) and math.isnan(row.norm_after) for row in report)
    assert math.isnan(report.total("sfe"))
    assert "nan" not in str(report).lower()
