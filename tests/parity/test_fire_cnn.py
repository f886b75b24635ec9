"""FIRE on a convolutional network against the authors' code (tests/golden/fire_cnn.npz)."""

import pytest
import torch

from fire_core import fire_
from tests.parity import golden
from tests.parity.trees import module_from

ATOL = 2e-6


@pytest.mark.parametrize("layout", ["all", "resnet", "vgg"])
@pytest.mark.parametrize("iterations", golden.meta("fire_cnn")["iterations"])
def test_every_tensor(iterations, layout):
    before = golden.tensors("fire_cnn", "before.")
    after = golden.tensors("fire_cnn", f"after_it{iterations}.")
    unchanged = set(golden.load("fire_cnn")["unchanged_names"])
    # A matrix that the reference leaves alone can only be an embedding.
    model = module_from(before, [name for name in unchanged if name.endswith(".weight") and before[name].ndim == 2])
    report = fire_(model, iterations=iterations, layout=layout)
    state = model.state_dict()
    for name, value in after.items():
        torch.testing.assert_close(state[name], value, rtol=0, atol=ATOL)
    for name in before.keys() - after.keys():
        assert torch.equal(state[name], before[name]), name
    assert {row.name for row in report} == set(golden.load("fire_cnn")["changed_names"])
    assert unchanged == before.keys() - after.keys()
