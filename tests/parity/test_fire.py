"""FIRE on a CNN, a ViT and SAC's trees against the authors' code (tests/golden: fire_cnn, fire_vit, sac)."""

import re
from collections.abc import Collection
from typing import Any

import pytest
import torch
from torch import Tensor

from fire_core import fire_
from fire_core.polar.factor import newton_schulz
from fire_core.weights.layout import resolve
from tests.parity import golden
from tests.parity.trees import module_from
from vision.models import ViT

CNN, VIT, SAC = golden.load("fire_cnn"), golden.load("fire_vit"), golden.load("sac")
SCALES = {"muon": "modular", "ortho_init": "orthogonal"}


def check(file: str, start: str, end: str, changed: str, embeddings: Collection[str] = (), **options: Any) -> None:
    """Every tensor is the reference's after `fire_`, what it left out is untouched, and the report names the rest."""
    before, after = golden.tensors(file, start), golden.tensors(file, end)
    model = module_from(before, embeddings)
    if isinstance(options["layout"], dict):  # raw kernels stored (d_in, d_out), pairs of critics stacked in front
        options["layout"] = resolve(model, options["layout"], transposed=("*.kernel",))
    report = fire_(model, **options)
    state = model.state_dict()
    for name, value in after.items():
        torch.testing.assert_close(state[name], value, rtol=2e-5 if file == "sac" else 0, atol=2e-6)
    for name in before.keys() - after.keys():
        assert torch.equal(state[name], before[name]), name
    assert {row.name for row in report} == set(golden.load(file)[changed])


@pytest.mark.parametrize("layout", ["all", "resnet", "vgg"])
@pytest.mark.parametrize("iterations", golden.meta("fire_cnn")["iterations"])
def test_cnn(iterations: int, layout: str) -> None:
    unchanged = set(CNN["unchanged_names"])
    before, after = (golden.tensors("fire_cnn", prefix) for prefix in ("before.", f"after_it{iterations}."))
    assert unchanged == before.keys() - after.keys()
    # A matrix that the reference leaves alone can only be an embedding.
    tables = [name for name in unchanged if name.endswith(".weight") and before[name].ndim == 2]
    given: dict[str, Any] = {"iterations": iterations, "layout": layout}
    check("fire_cnn", "before.", f"after_it{iterations}.", "changed_names", tables, **given)


@pytest.mark.parametrize(("layout", "case"), [("vit", "is_vit"), ("qk", "is_vit"), ("all", "not_vit")])
def test_vit(layout: str, case: str) -> None:
    steps = golden.meta("fire_vit")["iteration"]
    check("fire_vit", "before.", f"after_{case}.", f"changed_{case}", iterations=steps, layout=layout)


def test_logits_of_the_projects_own_vit() -> None:
    meta = golden.meta("fire_vit")
    channels, size, _ = meta["in_shape"]
    sizes = {key: meta[key] for key in ("patch_size", "dim", "depth", "heads", "dim_head", "mlp_dim")}
    model = ViT(num_classes=meta["classes"], image_size=size, in_channels=channels, **sizes).eval()
    weights = golden.tensors("fire_vit", "before.")
    model.load_state_dict({name.replace("head.fc.0.", "head."): weight for name, weight in weights.items()})
    for key in ("logits_before", "logits_after_is_vit"):
        with torch.no_grad():
            logits = model(torch.from_numpy(VIT["x"]))
        torch.testing.assert_close(logits, torch.from_numpy(VIT[key]), rtol=0, atol=1e-5)
        fire_(model, iterations=meta["iteration"], layout="vit")


@pytest.mark.parametrize("case", sorted(set(re.findall(r"tree\.after_(\w+?_it\d+)\.", " ".join(SAC)))))
def test_sac_tree(case: str) -> None:
    scaler, iterations = case.rsplit("_it", 1)
    given: dict[str, Any] = {"iterations": int(iterations), "scale": SCALES[scaler]}
    check("sac", "tree.before.", f"tree.after_{case}.", "tree.changed", layout={"*.Dense_*.kernel": "project"}, **given)


@pytest.mark.parametrize("key", sorted(golden.tensors("sac", "ns.out.")))
def test_sac_newton_schulz(key: str) -> None:
    """With an epsilon in the reference, so that its zero matrices stay zero too."""
    name, iterations = key.rsplit(".it", 1)
    W: Tensor = golden.tensors("sac", "ns.in.")[name]
    X = newton_schulz(W, int(iterations))
    torch.testing.assert_close(X, golden.tensors("sac", "ns.out.")[key], rtol=2e-5, atol=2e-6)
