"""Shrink and perturb against the authors' code (tests/golden/snp.npz)."""

import itertools

import pytest
import torch

from fire_core import shrink_and_perturb_
from tests.parity import golden
from tests.parity.trees import module_from

ATOL = 5e-7


@pytest.mark.parametrize("coef", golden.meta("snp")["coefs"])
def test_every_tensor(coef):
    before, init = golden.tensors("snp", "before."), golden.tensors("snp", "init.")
    matrices = [name for name, value in before.items() if name.endswith(".weight") and value.ndim == 2]
    tied = [(a, b) for a, b in itertools.combinations(matrices, 2) if torch.equal(before[a], before[b])]
    model = module_from(before, [name for pair in tied for name in pair])
    for first, second in tied:  # one tensor, two names: mixed once
        model.get_submodule(second.rpartition(".")[0]).weight = model.get_parameter(first)
    shrink_and_perturb_(model, init, coef)
    after = golden.tensors("snp", f"after_c{coef}.")
    assert after.keys() == before.keys()
    for name, value in after.items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=ATOL)
