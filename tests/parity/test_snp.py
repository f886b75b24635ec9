"""Shrink and perturb against the reference (golden README, snp.npz)."""

import pytest
import torch

from fire_core import shrink_and_perturb_
from tests.parity import golden
from tests.parity.trees import module_from

ATOL = 5e-7


@pytest.mark.parametrize("coef", golden.meta("snp")["coefs"])
def test_every_tensor(coef):
    before, init = golden.tensors("snp", "before."), golden.tensors("snp", "init.")
    model = module_from(before)
    assert torch.equal(before["emb.weight"], before["tied.weight"])
    model.tied.weight = model.emb.weight  # one tensor, two names: mixed once
    shrink_and_perturb_(model, init, coef)
    for name, value in golden.tensors("snp", f"after_c{coef}.").items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=ATOL)
