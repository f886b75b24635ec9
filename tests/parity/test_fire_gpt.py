"""FIRE and S&P on a GPT with fused projections and a tied head, as the authors' code (tests/golden/fire_gpt.npz)."""

import pytest
import torch
from torch.nn import functional as F

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


@pytest.mark.parametrize("iterations", META["iterations"])
def test_singular_values_and_loss(iterations):
    model = model_of("before.")
    report = {row.name: row for row in fire_(model, iterations=iterations, layout="gpt")}
    for key, values in golden.tensors("fire_gpt", f"sv_it{iterations}.").items():
        weight = model.get_parameter(key).detach().double()
        blocks = weight.unflatten(0, (len(values), -1)) if values.ndim == 2 else weight
        torch.testing.assert_close(torch.linalg.svdvals(blocks), values, rtol=0, atol=1e-5)
        # The report's DfI is the one that these singular values imply, in units of the scale.
        rows = [row for name, row in report.items() if name.split("[")[0] == key]
        pairs = zip(values.view(len(rows), -1), rows, strict=True)
        expected = sum(((s / row.scale) ** 2 - 1).square().sum() for s, row in pairs)
        assert sum(row.dfi_after for row in rows) == pytest.approx(float(expected), abs=1e-4)
    tokens, targets = torch.from_numpy(DATA["idx"]), torch.from_numpy(DATA["targets"])
    with torch.no_grad():
        logits = model(tokens)
    torch.testing.assert_close(logits, torch.from_numpy(DATA[f"logits_after_it{iterations}"]), rtol=0, atol=2e-5)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert float(loss) == pytest.approx(float(DATA[f"loss_after_it{iterations}"]), abs=2e-5)


def test_shrink_and_perturb():
    model = model_of("before.")
    shrink_and_perturb_(model, golden.tensors("fire_gpt", "snp_init."), META["snp_coef"])
    check(model, golden.tensors("fire_gpt", "snp_after."))
