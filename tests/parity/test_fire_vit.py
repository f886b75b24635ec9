"""FIRE on a vision transformer against the authors' code (tests/golden/fire_vit.npz)."""

import pytest
import torch

from fire_core import fire_
from tests.parity import golden
from tests.parity.trees import module_from
from vision.models import ViT

ATOL = 2e-6
META = golden.meta("fire_vit")


@pytest.mark.parametrize(("layout", "case"), [("vit", "is_vit"), ("qk", "is_vit"), ("all", "not_vit")])
def test_every_tensor(layout, case):
    before, after = golden.tensors("fire_vit", "before."), golden.tensors("fire_vit", f"after_{case}.")
    model = module_from(before)
    report = fire_(model, iterations=META["iteration"], layout=layout)
    state = model.state_dict()
    for name, value in after.items():
        torch.testing.assert_close(state[name], value, rtol=0, atol=ATOL)
    for name in before.keys() - after.keys():
        assert torch.equal(state[name], before[name]), name
    assert {row.name for row in report} == set(golden.load("fire_vit")[f"changed_{case}"])


def test_logits_of_the_projects_own_vit():
    channels, size, _ = META["in_shape"]
    sizes = {key: META[key] for key in ("patch_size", "dim", "depth", "heads", "dim_head", "mlp_dim")}
    model = ViT(num_classes=META["classes"], image_size=size, in_channels=channels, **sizes).eval()
    weights = golden.tensors("fire_vit", "before.")
    model.load_state_dict({name.replace("head.fc.0.", "head."): weight for name, weight in weights.items()})
    fire_(model, iterations=META["iteration"], layout="vit")
    expected = torch.from_numpy(golden.load("fire_vit")["logits_after_is_vit"])
    with torch.no_grad():
        logits = model(torch.from_numpy(golden.load("fire_vit")["x"]))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
