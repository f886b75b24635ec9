"""What is kept of a boundary besides the numbers in a row."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fire_core.methods import Net
from harness.run.folder import Run
from harness.training.measure import KEPT, find_matrices, spectra
from tests.programs import VISION


def spectra_of(modules: dict[str, nn.Module]) -> dict[str, list[float]]:
    """The singular values of these networks."""
    return spectra(find_matrices(Net.of(modules)), {name: module.state_dict() for name, module in modules.items()})


def test_spectra_are_singular_values() -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(20, 400), nn.Linear(400, 300))
    found = spectra_of({"model": model})
    assert list(found) == ["0.weight", "3.weight", "4.weight"]
    kernel, *linear = [model[i].weight.detach().double().numpy() for i in (0, 3, 4)]
    positions = np.sort(np.linalg.svd(np.moveaxis(kernel, (0, 1), (-2, -1)), compute_uv=False).ravel())[::-1]
    np.testing.assert_allclose(found["0.weight"], positions, rtol=1e-4)
    whole = np.linalg.svd(linear[0], compute_uv=False)
    np.testing.assert_allclose(found["3.weight"], whole, rtol=1e-4)
    many = np.linalg.svd(linear[1], compute_uv=False)
    assert len(found["4.weight"]) == KEPT < len(many)
    np.testing.assert_allclose([found["4.weight"][0], found["4.weight"][-1]], many[[0, -1]], rtol=1e-3)


def test_spectra_of_two_networks_have_two_names() -> None:
    found = spectra_of({"actor": nn.Linear(2, 3), "critic": nn.Linear(2, 3)})
    assert list(found) == ["actor.weight", "critic.weight"]


def test_a_run_keeps_its_spectra(tmp_path: Path) -> None:
    VISION.run(tmp_path / "runs", "method=fire_exact")
    (file,) = tmp_path.glob("runs/vision/*/spectra.json")
    phases = json.loads(file.read_text())
    assert list(phases) == ["1"]
    for name, both in phases["1"].items():
        before, after = both["before"], both["after"]
        assert max(after) / min(after) < 1 + 1e-4 < max(before) / min(before), name
        assert before == sorted(before, reverse=True)


def test_spectra_of_each_boundary(tmp_path: Path) -> None:
    with Run(tmp_path / "run", {"a": 1}, "a: 1\n") as it:
        it.keep_spectra(1, {"w": [2.0], "gone": [1.0]}, {"w": [1.0]})
        it.keep_spectra(2, {"w": [3.0]}, {"w": [1.0]})
        it.keep_spectra(1, {"w": [4.0]}, {"w": [1.0]})  # after a resume the boundary is made again
        torch.testing.assert_close(json.loads((it.folder / "spectra.json").read_text())["1"]["w"]["before"], [4.0])
        assert set(json.loads((it.folder / "spectra.json").read_text())) == {"1", "2"}
        (it.folder / "spectra.json").write_text("{")  # half a file, of a disk that was full, stops nothing
        it.keep_spectra(3, {}, {})
