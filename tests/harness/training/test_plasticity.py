"""Plasticity numbers of a boundary against direct computation."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fire_core.methods import Net
from harness.config.errors import Diverged
from harness.training.plasticity import plasticity, resolve_level
from tests.programs import SMALL, rows
from tests.units.test_graph import MODELS

CHEAP = {"stable_rank", "dormant_ratio"}
FULL = CHEAP | {"effective_rank", "srank", "sharpness", "output_scale", "alignment"}


def test_numbers_are_those_of_the_probe() -> None:
    torch.manual_seed(0)
    model = MODELS["vgg"]()
    with torch.no_grad():
        model.head[0].bias[2] = -100  # one dead unit
    state = {key: value.clone() for key, value in model.state_dict().items()}
    x, y = torch.randn(20, 3, 8, 8), torch.arange(20) % 4
    numbers = plasticity(Net.of({"model": model}), lambda: F.cross_entropy(model(x), y), "full")
    assert numbers.keys() == FULL
    assert model.training
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    model.eval()
    with torch.no_grad():
        flat = model.backbone(x).flatten(1)
        hidden = F.relu(model.head[0](flat)).double()
        first = model.backbone[:4](x).abs().mean((0, 2, 3))
        second = model.backbone(x).abs().mean((0, 2, 3))
    values = torch.linalg.svdvals(hidden)
    assert numbers["stable_rank"] == pytest.approx(float(values.square().sum() / values[0] ** 2), rel=1e-4)
    layers = [first, second, hidden.abs().mean(0)]
    dormant = sum(int((layer <= 0.1 * layer.mean()).sum()) for layer in layers)
    assert numbers["dormant_ratio"] == pytest.approx(dormant / sum(map(len, layers)))
    assert dormant >= 1
    with torch.no_grad():
        assert numbers["output_scale"] == pytest.approx(float(model(x).square().mean().sqrt()), rel=1e-5)
    writer, reader = model.head[0].weight.detach().double(), model.head[-1].weight.detach().double()
    (U, S, _), (_, R, Vh) = torch.linalg.svd(writer), torch.linalg.svd(reader)
    overlap = (Vh[: len(R)] @ U[:, : len(S)]).square() * R.square()[:, None] * S.square()
    share = overlap.sum() / (R.square().sum() * S.square().sum())
    assert numbers["alignment"] == pytest.approx(float(len(writer) * share), rel=1e-5)


def test_a_network_whose_units_are_not_known_has_no_dormant_ratio() -> None:
    for between, known in ((nn.ReLU(), True), (nn.LayerNorm(7), False)):
        model = nn.Sequential(nn.Linear(5, 7), between, nn.Linear(7, 3))
        loss = lambda model=model: model(torch.randn(9, 5)).sum()  # noqa: E731
        numbers = plasticity(Net.of({"model": model}), loss)
        assert numbers.keys() == (CHEAP if known else CHEAP - {"dormant_ratio"})
        assert plasticity(Net.of({"model": model}), loss, "off") == {}


def test_large_networks_are_measured_by_their_weights_alone() -> None:
    assert resolve_level("auto", nn.Linear(999, 1000)) == "cheap"
    assert resolve_level("auto", nn.Linear(1000, 1000)) == "weights"
    assert resolve_level("full", nn.Linear(1000, 1000)) == "full"
    assert plasticity(Net.of({"model": nn.Linear(2, 2)}), lambda: torch.zeros(()), "weights") == {}


def test_a_boundary_s_row_has_them_before_and_after(tmp_path: Path) -> None:
    folder = SMALL.run(tmp_path, "method=fire", "metrics=full")
    (row,) = [row for row in rows(folder) if row.get("kind") == "boundary"]
    for key in (*FULL, "dfi", "weight_stable_rank", "test_accuracy"):
        assert f"boundary/{key}_before" in row
        assert f"boundary/{key}_after" in row
    assert row["boundary/dfi_after"] < row["boundary/dfi_before"]
    assert row["boundary/weight_stable_rank_after"] > row["boundary/weight_stable_rank_before"]


def test_the_deviation_of_what_is_projected_stands_beside_that_of_all_matrices(tmp_path: Path) -> None:
    """Of a ViT the paper projects q and k alone; what is left is most of the deviation of all its matrices."""
    numbers = {}
    for layout in ("all", "first"):
        options = (
            "method=fire_exact",
            "metrics=weights",
            *(["method.layout={*.fc0.weight:project}"] * (layout == "first")),
        )
        (row,) = [row for row in rows(SMALL.run(tmp_path / layout, *options)) if row.get("kind") == "boundary"]
        numbers[layout] = row
    assert "boundary/dfi_projected_after" not in numbers["all"]
    assert numbers["first"]["boundary/dfi_projected_after"] < 1e-6
    assert numbers["first"]["boundary/dfi_projected_before"] > 1
    assert numbers["first"]["boundary/dfi_after"] == pytest.approx(
        numbers["first"]["boundary/dfi_before"] - numbers["first"]["boundary/dfi_projected_before"], rel=1e-5
    )


def test_a_hidden_layer_that_is_not_finite_is_no_healthy_one() -> None:
    """Behind a tanh the features of the last layer are finite all the same."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    with torch.no_grad():
        model[0].bias[1] = torch.inf
        model[2].weight.clamp_(min=0.1)
    x, y = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
    with pytest.raises(Diverged, match="the activations of a hidden layer are not finite"):
        plasticity(Net.of({"model": model}), lambda: F.cross_entropy(model(x), y), "basic")


def test_modes_are_restored_by_train_where_a_layer_does_more_than_set_its_flag() -> None:
    class Merging(nn.Linear):
        merged = False

        def train(self, mode: bool = True) -> "Merging":
            self.merged = not mode
            return super().train(mode)

    model = nn.Sequential(Merging(2, 2), nn.Dropout())
    model[1].eval()
    with Net({"model": model}, {}).mode(training=False):
        assert model[0].merged
    assert not model[0].merged
    assert [part.training for part in (model, model[0], model[1])] == [True, True, False]
