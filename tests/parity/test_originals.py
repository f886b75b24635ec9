"""Methods against the public code of their own authors, run on small networks (scripts/record_originals.py)."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fire_core.methods import Context, Net
from fire_core.methods.cbp import ContinualBackprop
from fire_core.methods.dash import Dash
from fire_core.methods.muon import MuonOptimizer
from fire_core.methods.parseval import Parseval
from fire_core.methods.snr import Silences
from fire_core.metrics import dormant
from fire_core.units.graph import between
from fire_core.units.recycle import initial_draw, recycle_
from tests.parity import public
from tests.parity.test_muon import close_direction


def test_cbp_replaces_the_same_units_at_every_step() -> None:
    """loss-of-plasticity, `GnT`: the weights of each step are loaded, so that only what is replaced is compared.

    It works layer by layer: a row drawn in the second layer brings a column back that the first layer's unit has just
    zeroed. Ours zeroes columns after all drawing.
    """
    data = public.load("cbp")
    net = public.Perceptron(6, 10, 8, 3)
    net.load_state_dict(public.tensors("cbp", "start."))
    names = {"rate": "replacement_rate", "maturity": "maturity_threshold", "decay": "decay_rate"}
    method = ContinualBackprop(**{ours: data[f"option.{theirs}"] for ours, theirs in names.items()})
    own, replaced = Net.of({"model": net}), 0
    with method.watch(own):
        for t in range(data["steps"]):
            net(torch.from_numpy(data["x"][t]))
            stepped, after = public.tensors("cbp", "stepped.", t), public.tensors("cbp", "after.", t)
            net.load_state_dict(stepped)
            method.after_step(own, Context(0, t, torch.Generator().manual_seed(t)))
            ages = np.concatenate([data[f"age.{i}"][t] for i in range(2)])
            np.testing.assert_array_equal(method.state["age"].numpy(), ages)
            utilities = np.concatenate([data[f"utility.{i}"][t] for i in range(2)])
            np.testing.assert_allclose(method.state["utility"].numpy(), utilities, rtol=1e-4, atol=1e-7)
            new = [torch.from_numpy(data[f"age.{i}"][t] == 0) for i in range(2)]
            for name, value in net.state_dict().items():
                both = torch.outer(new[1], new[0]) if name == "2.weight" else torch.zeros_like(value, dtype=torch.bool)
                assert torch.equal(value != stepped[name], after[name] != stepped[name]), (t, name)
                assert torch.equal((value == 0) & ~both, (after[name] == 0) & ~both), (t, name)
                assert (value[both] == 0).all()
            replaced += int((ages == 0).sum())
            net.load_state_dict(after)
    assert replaced > 10


def test_redo_finds_and_recycles_the_same_units() -> None:
    """dopamine, `NeuronRecycler`: scores, who is drawn anew, what is zero, which moments are forgotten.

    It takes a flattened map's columns for channel-major, as torch has them; flax flattens channel-minor, so that in its
    own networks it zeroes columns of other channels. Ours follow the map.
    """
    data = public.load("redo")
    net = nn.Sequential(nn.Conv2d(2, 6, 3), nn.Flatten(), nn.Linear(24, 10), nn.Linear(10, 4))
    kernel = lambda when: torch.from_numpy(data[f"{when}.conv.kernel"]).permute(3, 2, 0, 1)  # noqa: E731
    names = {"2": "dense", "3": "final"}

    def weights(when: str) -> dict[str, torch.Tensor]:
        dense = {f"{k}.weight": torch.from_numpy(data[f"{when}.{v}.kernel"]).T for k, v in names.items()}
        layers = {"0": "conv", **names}
        biases = {f"{k}.bias": torch.from_numpy(data[f"{when}.{v}.bias"]) for k, v in layers.items()}
        return {"0.weight": kernel(when), **dense, **biases}

    net.load_state_dict(weights("before"))
    adam = torch.optim.Adam(net.parameters())
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    adam.step()
    net.load_state_dict(weights("before"))
    seen = [torch.from_numpy(data["seen.conv_act"]), torch.from_numpy(data["seen.dense_act"])]
    masks = [dormant(x, data["threshold"]) for x in seen]
    graph = [between("conv", net[0], net[2]), between("dense", net[2], net[3])]
    own = Net.of({"model": net})
    init = {name: torch.randn_like(value) for name, value in net.state_dict().items()}  # a drawn entry differs surely
    draw = initial_draw(own.modules, {"model": init})
    recycle_(zip(graph, masks, strict=True), draw, torch.Generator().manual_seed(0), [adam])
    before, after, moments = (weights(when) for when in ("before", "after", "moment"))
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter != before[name], after[name] != before[name]), name
        assert torch.equal(parameter == 0, after[name] == 0), name
        if parameter.ndim > 1:  # theirs keeps the moments of biases
            forgotten = moments[name] == 0
            assert torch.equal(adam.state[parameter]["exp_avg"] == 0, forgotten), name
    assert sum(int(mask.sum()) for mask in masks) == 5


@pytest.mark.parametrize("percentile", [0.9, 0.99])
@pytest.mark.parametrize("layer", ["Dense_0", "Dense_1"])
def test_snr_counts_and_resets_as_the_original(layer: str, percentile: float) -> None:
    """SelfNormalizedResets: ages, resets at every step, thresholds after every task (one pass over its data)."""
    data, key = public.load("snr"), f"{layer}.{percentile}"
    silences = Silences(12, percentile, data["every"], data["max_age"], data["growth"], batch=data["batch"])
    for task in range(data["tasks"]):
        for step in range(task * data["steps"], (task + 1) * data["steps"]):
            reset = silences.step(torch.from_numpy(data[f"fired.{key}"][step]), data["batch"])
            np.testing.assert_array_equal(reset.numpy(), data[f"reset.{key}"][step], f"step {step}")
            np.testing.assert_array_equal(silences.age.numpy(), data[f"age.{key}"][step], f"step {step}")
        silences.end_epoch()
        np.testing.assert_array_equal(silences.threshold.numpy(), data[f"threshold.{key}"][task], f"task {task}")
    assert data[f"reset.{key}"].sum() > 5


def test_dash_shrinks_to_the_same_weights() -> None:
    """gaudi-dash: one gradient for each chunk, here given in two batches of unequal size."""
    data = public.load("dash")
    net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(80, 4))
    net.load_state_dict(public.tensors("dash", "before."), strict=False)
    pairs = list(zip(torch.from_numpy(data["x"]), torch.from_numpy(data["y"]), strict=True))
    context = Context(1, 0, torch.Generator(), lambda: iter([]), lambda x, y: F.cross_entropy(net(x), y))
    context.chunks = lambda: (iter([(x[:3], y[:3]), (x[3:], y[3:])]) for x, y in pairs)
    Dash(data["option.alpha"], data["option.lambda"]).at_boundary(Net.of({"model": net}), context)
    for name, value in public.tensors("dash", "after.").items():
        torch.testing.assert_close(net.state_dict()[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["wide", "tall", "conv"])
def test_muon_takes_the_same_steps(name: str) -> None:
    """KellerJordan/Muon in bfloat16, ours too: the same direction within its rounding, the same size."""
    data = public.load("muon")
    gradients = data[f"gradient.{name}"]
    shape = gradients[0].shape
    hidden = nn.Conv2d(shape[1], shape[0], 3, bias=False) if name == "conv" else nn.Linear(shape[1], shape[0], False)
    net = nn.Sequential(nn.Linear(2, 2, False), hidden, nn.Linear(2, 2, False))  # it is neither first nor last
    optimizer = MuonOptimizer(lr=data["lr"]).optimizer(Net({"model": net}, {}), torch.optim.Adam)
    with torch.no_grad():
        hidden.weight.zero_()
    for t, gradient in enumerate(gradients):
        hidden.weight.grad = torch.from_numpy(gradient)
        optimizer.step()
        close_direction(hidden.weight.detach(), torch.from_numpy(data[f"parameter.{name}"][t]))


def test_parseval_has_the_same_penalty_and_gradient() -> None:
    data = public.load("parseval")
    net = public.Perceptron(5, 32, 32, 3)
    net.load_state_dict(public.tensors("parseval", "before."))
    penalty = Parseval(data["coef"]).penalty(Net({"model": net}, {}))
    penalty.backward()
    assert penalty.item() == pytest.approx(data["loss"], rel=1e-5)
    gradients = public.tensors("parseval", "gradient.")
    assert sorted(gradients) == ["0.weight", "2.weight"]
    for name, parameter in net.named_parameters():
        if name in gradients:
            torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-7)
        else:
            assert parameter.grad is None
