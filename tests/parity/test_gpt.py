"""GPT-0.1B against the reference: shapes, counts, initialisation, loss, logits and gradients."""

import numpy as np
import pytest
import torch

from language.learner import Learner
from language.model import GPT
from tests.parity import fill, golden
from tests.parity.golden import close

FACTS = golden.facts("models_facts")
NAMES = [name for name in FACTS if name.startswith("gpt")]
FILLED = [name for name in golden.facts("models_fill") if name.startswith("gpt")]
SMALLEST = min(FILLED, key=lambda name: FACTS[name]["n_params"])


@pytest.mark.parametrize("name", NAMES)
def test_names_shapes_and_counts(name):
    facts = FACTS[name]
    with torch.device("meta"):
        model = GPT(**facts["config"])
    assert [[n, list(p.shape)] for n, p in model.named_parameters()] == facts["params"]
    count = sum(p.numel() for p in model.parameters())
    assert count == facts["n_params"]
    assert count - model.transformer["wpe"].weight.numel() == facts["n_params_without_wpe"]
    assert len(model.state_dict()) == facts["state_dict_keys"]
    assert model.lm_head.weight is model.transformer["wte"].weight


@pytest.mark.parametrize("name", NAMES)
def test_optimizer_groups(name):
    expected = FACTS[name]["adamw_groups"]
    with torch.device("meta"):
        model = GPT(**FACTS[name]["config"])
    names = {id(p): n for n, p in model.named_parameters()}
    weight_decay = expected[0]["weight_decay"]
    groups = torch.optim.AdamW(
        Learner.parameter_groups(list(model.parameters())), weight_decay=weight_decay
    ).param_groups
    assert len(groups) == len(expected)
    for group, facts in zip(groups, expected, strict=True):
        assert group["weight_decay"] == facts["weight_decay"]
        assert len(group["params"]) == facts["n_tensors"]
        assert sum(p.numel() for p in group["params"]) == facts["n_scalars"]
        assert [names[id(p)] for p in group["params"]][: len(facts["first"])] == facts["first"]


def test_initial_deviations():
    """As drawn by the reference, up to sampling noise: those of the default and of the residual projections."""
    name = min(NAMES, key=lambda n: FACTS[n]["n_params"])
    torch.manual_seed(0)
    heads = FACTS[name]["config"]["n_head"]
    width = heads * -(-240 // heads)  # enough numbers for a deviation
    model = GPT(**{**FACTS[name]["config"], "n_embd": width, "vocab_size": 500, "bias": True})
    layers = FACTS[name]["config"]["n_layer"]
    expected = FACTS[name]["expected_std"]
    for key, parameter in model.named_parameters():
        std = float(parameter.detach().std(correction=0))
        if parameter.dim() == 2:
            want = expected["c_proj" if "c_proj" in key else "default"]
            assert std == pytest.approx(want, rel=4 / parameter.numel() ** 0.5), key
        else:
            assert set(parameter.tolist()) == {0.0 if key.endswith("bias") else 1.0}, key
    assert expected["c_proj"] == pytest.approx(expected["default"] / (2 * layers) ** 0.5)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n != SMALLEST)) for n in FILLED])
def test_forward_and_backward(name):
    spec = golden.facts("models_fill")[name]
    expected = {
        key.removeprefix(f"{name}."): v for key, v in golden.load("models").items() if key.startswith(f"{name}.")
    }
    with torch.device("meta"):
        model = GPT(**FACTS[name]["config"])
    model.to_empty(device="cpu")  # no time spent on drawing weights that are filled at once
    model.lm_head.weight = model.transformer["wte"].weight
    fill.fill_(model.parameters(), spec["params"])
    idx = fill.integers(spec["idx"])
    np.testing.assert_array_equal(idx.numpy(), expected["idx"])
    targets = torch.from_numpy(expected["targets"])
    assert (targets == -1).any()

    logits, loss = model(idx, targets)
    loss.backward()
    close(loss, expected["loss"])
    logits = logits.detach()
    if "logits" in expected:
        close(logits, expected["logits"])
    else:
        (step,) = (int(k.split("_")[2].removesuffix("th")) for k in expected if k.startswith("logits_every"))
        close(logits[..., ::step], expected[f"logits_every_{step}th_vocab"])
    close(logits.double().abs().sum(-1), expected["logits_abs_sum_per_position"])
    close([float(p.grad.norm(dtype=torch.float64)) for p in model.parameters()], expected["grad_norms"])

    with torch.no_grad():
        last, none = model(idx)
    assert none is None
    assert list(last.shape) == expected["inference_logits_shape"].tolist()
    close(last[:, 0], logits[:, -1])


def test_stored_small_gpt_with_biases():
    data, config = golden.load("fire_gpt"), golden.meta("fire_gpt")["config"]
    model = GPT(**config)
    weights = golden.tensors("fire_gpt", "before.")
    model.load_state_dict({**weights, "lm_head.weight": weights["transformer.wte.weight"]})
    logits, loss = model(torch.from_numpy(data["idx"]), torch.from_numpy(data["targets"]))
    close(logits, data["logits_before"])
    close(loss, data["loss_before"])
