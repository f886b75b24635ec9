"""The projections of DQN and SAC against the authors' code (tests/golden/dqn.npz and sac.npz)."""

import re

import pytest
import torch
from torch import Tensor

from fire_core import fire_
from fire_core.polar.factor import newton_schulz
from fire_core.weights.layout import resolve
from tests.parity import golden
from tests.parity.trees import module_from


def sac_tree(prefix: str) -> dict[str, Tensor]:
    return golden.tensors("sac", prefix)


def sac_cases() -> list[tuple[str, int]]:
    found = re.findall(r"tree\.after_(\w+?)_it(\d+)\.", " ".join(golden.load("sac")))
    return sorted({(scaler, int(iterations)) for scaler, iterations in found})


@pytest.mark.parametrize("key", sorted(sac_tree("ns.out.")))
def test_sac_newton_schulz(key):
    """With an epsilon in the reference, so that its zero matrices stay zero too."""
    name, iterations = re.fullmatch(r"(.+)\.it(\d+)", key).groups()
    X = newton_schulz(sac_tree("ns.in.")[name], int(iterations))
    torch.testing.assert_close(X, sac_tree("ns.out.")[key], rtol=2e-5, atol=2e-6)


SCALES = {"muon": "modular", "ortho_init": "orthogonal"}


@pytest.mark.parametrize(("scaler", "iterations"), sac_cases())
def test_sac_tree(scaler, iterations):
    """Raw kernels stored (d_in, d_out), pairs of critics stacked in front: a layout made of patterns."""
    before, after = sac_tree("tree.before."), sac_tree(f"tree.after_{scaler}_it{iterations}.")
    model = module_from(before)
    layout = resolve(model, {"*.Dense_*.kernel": "project"}, transposed=("*.kernel",))
    report = fire_(model, iterations=iterations, layout=layout, scale=SCALES[scaler])
    for name, value in after.items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=2e-5, atol=2e-6)
    for name in before.keys() - after.keys():
        assert torch.equal(model.state_dict()[name], before[name]), name
    assert {row.name for row in report} == set(golden.load("sac")["tree.changed"])
