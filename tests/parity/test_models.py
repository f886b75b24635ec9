"""The paper's three networks against the reference: shapes, counts, initialisation, forward and backward."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.parity import fill, golden
from tests.parity.golden import close
from vision.models import VGG16, ResNet18, ViT

# A unit at 0 up to rounding has a gradient or none: for some images a single one moves the norms by more than 1e-4.
RTOL_GRADIENTS = 5e-4

BUILD = {"resnet18": ResNet18, "tinyvit": ViT, "vgg16": VGG16}
IMAGE_MODELS = [name for name in golden.facts("models_facts") if name.split("_")[0] in BUILD]


def build(name: str, **options) -> torch.nn.Module:
    """The network of a golden key, sized by the golden input and labels."""
    spec = golden.facts("models_fill")[name]
    _, channels, size, _ = spec["input"]["shape"]
    kind = name.split("_")[0]
    if kind != "resnet18":
        options["image_size"] = size
    return BUILD[kind](num_classes=spec["labels"]["modulus"], in_channels=channels, **options)


def filled(name: str) -> torch.nn.Module:
    spec = golden.facts("models_fill")[name]
    model = build(name)
    fill.fill_(model.parameters(), spec["params"])
    fill.fill_(model.buffers(), spec["buffers"])
    return model


def test_fill_is_the_one_of_the_golden_data():
    spec = golden.meta("models")["fill_check"]
    data = golden.load("models")
    values = fill.values({**spec["values"], "shape": data["fill_check.values"].shape})
    integers = fill.integers(spec["ints"], data["fill_check.ints"].shape)
    np.testing.assert_array_equal(values.numpy(), data["fill_check.values"])
    np.testing.assert_array_equal(integers.numpy(), data["fill_check.ints"])


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_shapes_and_counts(name):
    facts = golden.facts("models_facts")[name]
    model = build(name)
    assert [list(p.shape) for p in model.parameters()] == [shape for _, shape in facts["params"]]
    assert [list(b.shape) for b in model.buffers()] == [shape for _, shape in facts["buffers"]]
    for part, count in ((model, "n_params"), (model.backbone, "n_backbone"), (model.head, "n_head")):
        assert sum(p.numel() for p in part.parameters()) == facts[count]


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_initial_distribution(name):
    """The same uniform bounds and deviations as the reference's fresh networks, up to sampling noise."""
    facts = golden.facts("models_facts")[name]
    torch.manual_seed(0)
    ours = dict(zip([n for n, _ in facts["params"]], (p.detach() for p in build(name).parameters()), strict=True))
    for spec in facts["init"]:
        tensor = ours[spec["name"]]
        noise = 4 / tensor.numel() ** 0.5  # four deviations of a sample deviation, relative
        assert float(tensor.std(correction=0)) == pytest.approx(spec["std"], rel=noise), spec["name"]
        if spec["expected_uniform_bound"] is not None:
            assert 0.95 * spec["absmax"] < float(tensor.abs().max()) <= spec["expected_uniform_bound"]


@pytest.mark.parametrize("name", [n for n in IMAGE_MODELS if golden.facts("models_facts")[n]["buffers"]])
def test_reference_variant_starts_with_moved_statistics(name):
    facts = golden.facts("models_facts")[name]["bn_state_after_construction"]
    torch.manual_seed(0)
    state = build(name, variant="fire_paper").state_dict()
    least = [float(v.min()) for k, v in state.items() if k.endswith("running_var")]
    # Variances that have not moved are 1, means 0. How far VGG-16's move depends on its biases, and another CPU's
    # kernels draw others from the same seed.
    assert [min(least), max(least)] == pytest.approx(facts["running_var_min"], abs=2e-2)
    assert {int(v) for k, v in state.items() if k.endswith("num_batches_tracked")} == set(facts["num_batches_tracked"])
    means = [float(v.abs().max()) for k, v in state.items() if k.endswith("running_mean")]
    assert (max(means) > 1e-3) == (max(facts["running_mean_absmax"]) > 1e-3)
    plain = build(name).state_dict()
    assert all(bool((v == 1).all()) for k, v in plain.items() if k.endswith("running_var"))


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_forward_and_backward(name):
    spec = golden.facts("models_fill")[name]
    stored = golden.load("models").items()
    expected = {key.removeprefix(f"{name}."): value for key, value in stored if key.startswith(f"{name}.")}
    model = filled(name)
    images, labels = fill.values(spec["input"]), fill.integers(spec["labels"])
    np.testing.assert_array_equal(labels.numpy(), expected["labels"])
    sums = [float(p.detach().double().abs().sum()) for p in model.parameters()]
    np.testing.assert_allclose(sums, expected["param_sum_abs"], rtol=1e-9)

    model.eval()
    with torch.no_grad():
        features = model.backbone(images)
        close(model(images), expected["logits_eval"])
    shape = expected["backbone_out_shape"]  # ours may lack the sides of 1
    assert (len(features), features.numel()) == (shape[0], np.prod(shape))
    checksum = [float(features.double().sum()), float(features.double().abs().sum())]
    close(checksum, expected["feature_eval_checksum"])

    model.train()
    logits = model(images)
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    close(logits, expected["logits_train"])
    close(loss, expected["loss_train"])
    norms = [float(p.grad.double().norm()) for p in model.parameters()]
    close(norms, expected["grad_norms_train"], RTOL_GRADIENTS)
    for statistic in ("running_mean", "running_var"):
        if f"{statistic}_after_train_sum" in expected:
            sums = [float(b.double().sum()) for n, b in model.named_buffers() if n.endswith(statistic)]
            close(sums, expected[f"{statistic}_after_train_sum"])
