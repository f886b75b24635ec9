"""FIRE and S&P on a GPT with fused projections and a tied head, as the authors' code (tests/golden/fire_gpt.npz)."""

import pytest
import torch

from fire_core import fire_, shrink_and_perturb_
from tests.networks import GPT
from tests.parity import golden

ATOL = 3e-6
META = golden.meta("fire_gpt")
DATA = golden.load("fire_gpt")


def model_of(prefix: str) -> GPT:
    model = GPT(**META["config"])
    arrays = golden.tensors("fire_gpt", prefix)
    model.load_state_dict({**arrays, "lm_head.weight": arrays["transformer.wte.weight"]})
    return model


def check(model: GPT, expected: dict[str, torch.Tensor]) -> None:
    actual = dict(model.named_parameters())
    for name, value in expected.items():
        torch.testing.assert_close(actual[name].detach(), value, rtol=0, atol=ATOL)
    assert model.lm_head.weight is model.transformer["wte"].weight


@pytest.mark.parametrize("layout", ["gpt", "all"])
@pytest.mark.parametrize("iterations", META["iterations"])
def test_every_tensor(iterations, layout):
    model = model_of("before.")
    report = fire_(model, iterations=iterations, layout=layout)
    check(model, golden.tensors("fire_gpt", f"after_it{iterations}."))
    names = dict(model.named_parameters())
    unchanged = set(DATA["unchanged_names"])
    for name in unchanged:
        assert torch.equal(names[name].detach(), golden.tensors("fire_gpt", "before.")[name]), name
    assert {row.name.split("[")[0] for row in report} == set(DATA["changed_names"]) == names.keys() - unchanged


def test_shrink_and_perturb():
    model = model_of("before.")
    shrink_and_perturb_(model, golden.tensors("fire_gpt", "snp_init."), META["snp_coef"])
    check(model, golden.tensors("fire_gpt", "snp_after."))
