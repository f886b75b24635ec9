"""Rivals since 2024 against the public code of their authors (tests/parity/originals), or against own arithmetic."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fire_core.methods import FullReset, Method, Net
from fire_core.methods.contrib.cpr import CalibratedPartialResets
from fire_core.methods.contrib.hare_tortoise import HareTortoise
from fire_core.methods.contrib.regrama import ReGraMa, gradient_scores
from fire_core.methods.contrib.swr import SelectiveWeightReinitialization
from fire_core.methods.contrib.trac import Trac, erfi
from fire_core.methods.contrib.upgd import UPGD
from fire_core.methods.contrib.weight_clipping import WeightClipping
from fire_core.methods.snr import SelfNormalizedResets
from tests.methods.small import Layers, moment
from tests.parity import public


def replay(name: str, method: Method, base: type[torch.optim.Optimizer], rtol: float, atol: float, **options: float):
    """Take the recorded steps with our method and compare every parameter after each."""
    data = public.load(name)
    net = public.Perceptron(6, 10, 8, 3)
    net.load_state_dict(public.tensors(name, "start."))
    own = Net.of({"model": net})
    optimizer = method.optimizer(own, lambda parameters: base(parameters, **options))
    with method.watch(own):
        for t in range(data["steps"]):
            optimizer.zero_grad()
            F.cross_entropy(net(torch.from_numpy(data["x"][t])), torch.from_numpy(data["y"][t])).backward()
            optimizer.step()
            method.after_step(own, moment(t))
            for key, value in public.tensors(name, "after.", t).items():
                torch.testing.assert_close(net.get_parameter(key).detach(), value, rtol=rtol, atol=atol)


@pytest.mark.parametrize(("weights", "gradients"), [([1.0, 2.0], [0.0, 0.0]), ([1.0, 2.0], [1.0, 0.01])])
def test_upgd_where_no_weight_is_of_use(weights: list[float], gradients: list[float]) -> None:
    """The largest utility is 0 or less: all weights make half of a step, and none becomes NaN."""
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([weights]))
    optimizer = UPGD(lr=0.1, weight_decay=0.0, beta=0.0, sigma=0.0).optimizer(Net.of({"model": model}), torch.optim.SGD)
    model.weight.grad = torch.tensor([gradients])
    optimizer.step()
    expected = torch.tensor([weights]) - 0.1 * 0.5 * torch.tensor([gradients])
    torch.testing.assert_close(model.weight.detach(), expected)


def test_hare_and_tortoise_stay_as_they_are_until_a_step_has_made_the_slow_copy() -> None:
    model = nn.Linear(2, 1)
    before, method = model.weight.clone(), HareTortoise(every=1)
    method.after_epoch(Net.of({"model": model}), moment())
    assert torch.equal(model.weight, before)


def test_upgd() -> None:
    options = {key.removeprefix("option."): v for key, v in public.load("upgd").items() if key.startswith("option.")}
    method = UPGD(options["lr"], options["weight_decay"], options["beta_utility"], options["sigma"])
    replay("upgd", method, torch.optim.SGD, 1e-5, 1e-6)


def test_weight_clipping() -> None:
    data = public.load("clipping")
    replay("clipping", WeightClipping(data["option.zeta"]), torch.optim.Adam, 1e-5, 1e-6, lr=data["option.lr"])


def test_clipping_spares_norms_and_if_asked_the_output() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(3)
    WeightClipping(2.0, clip_last_layer=False).after_step(Net({"m": net}, {}), moment())
    assert (net[0].weight == 1).all()
    assert (net[0].bias == 1).all()
    assert all((p == 3).all() for layer in net[1:] for p in layer.parameters())


@pytest.mark.parametrize("decay", [0.0, 0.6])
@pytest.mark.parametrize("pruning", ["threshold", "proportional"])
@pytest.mark.parametrize("utility", ["gradient", "magnitude"])
def test_swr_replaces_the_same_weights_as_the_public_code(utility: str, pruning: str, decay: float) -> None:
    """Each step begins with the recorded weights. Draws differ, and with them what becomes of the part of a weight that
    is left over of a share: the smaller set of replaced weights then lies within the larger.
    """
    data, case = public.load("swr"), f"{utility}.{pruning}.{'running' if decay else 'now'}."
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))
    net.load_state_dict(public.tensors("swr", f"{case}start."))
    own = Net.of({"model": net})
    method = SelectiveWeightReinitialization(utility, pruning, data[pruning], data["every"], decay=decay)
    replaced = spared = 0
    for t in range(data["steps"]):
        net.zero_grad()
        x, y = (torch.from_numpy(data[case + name][t]) for name in ("x", "y"))
        F.cross_entropy(net(x), y).backward()
        stepped, after = (public.tensors("swr", f"{case}{when}.", t) for when in ("stepped", "after"))
        net.load_state_dict(stepped)
        method.after_step(own, moment(t))
        for name, parameter in net.named_parameters():
            ours, theirs = parameter != stepped[name], after[name] != stepped[name]
            if pruning == "threshold":
                assert torch.equal(ours, theirs), (t, name)
            else:
                assert torch.equal(ours & theirs, ours if ours.sum() < theirs.sum() else theirs), (t, name)
                share = data[pruning] * parameter.numel() * (t % data["every"] == data["every"] - 1)
                assert {int(ours.sum()), int(theirs.sum())} <= {math.floor(share), math.ceil(share)}
            new = torch.zeros(1) if name.endswith("bias") else own.init["model"][name]
            assert torch.isin(parameter[ours], new).all(), "biases go back to 0, as in the public code's own networks"
            replaced, spared = replaced + int(ours.sum()), spared + int((~ours).sum())
        net.load_state_dict(after)
    assert replaced > 20
    assert spared > 20


def test_swr_draws_from_the_initial_distribution_or_takes_its_mean() -> None:
    for reinit in ("resample", "mean"):
        net = nn.Sequential(nn.Linear(400, 50), nn.LayerNorm(50), nn.Linear(50, 3))
        nn.init.zeros_(net[0].bias)
        own = Net.of({"m": net})
        with torch.no_grad():
            for p in net.parameters():
                p.fill_(7.0)
                p.grad = torch.zeros_like(p)
        method = SelectiveWeightReinitialization(factor=1.0, every=1, reinit=reinit)
        method.after_step(own, moment())
        assert (net[0].bias == 0).all()
        assert (net[1].weight == 1).all()
        assert (net[1].bias == 0).all()
        assert (net[2].bias == 0).all(), "drawn at initialisation, with mean 0"
        if reinit == "mean":
            assert (net[0].weight == 0).all()
        else:
            assert net[0].weight.abs().max() <= 0.05  # uniform in 1 / sqrt(400)
            assert net[0].weight.std().item() == pytest.approx(0.05 / 3**0.5, rel=0.02)


def test_trac() -> None:
    """Step by step from the recorded weights, so that roundings do not add up; with an exact erfi in both."""
    data = public.load("trac")
    net, start = public.Perceptron(6, 10, 8, 3), public.tensors("trac", "start.")
    net.load_state_dict(start)
    own, method = Net.of({"model": net}), Trac(scale=data["option.scale"])
    optimizer = torch.optim.Adam(net.parameters(), lr=data["option.lr"])
    with method.watch(own):
        for t in range(data["steps"]):
            optimizer.zero_grad()
            F.cross_entropy(net(torch.from_numpy(data["x"][t])), torch.from_numpy(data["y"][t])).backward()
            method.before_step(own, moment(t))
            optimizer.step()
            method.after_step(own, moment(t))
            after = public.tensors("trac", "after.", t)
            for name, value in after.items():
                apart = (net.get_parameter(name).detach() - value).norm()
                assert apart <= 0.01 * (value - start[name]).norm() + 1e-5, (t, name)
            net.load_state_dict(after)
    assert np.abs(data["after.0.weight"] - data["start.0.weight"]).max() > 0.01


def test_erfi() -> None:
    x = torch.linspace(-9, 9, 37, dtype=torch.float64)
    grids = [torch.linspace(0, v, 400_001, dtype=torch.float64) for v in x.tolist()]
    exact = [2 / math.sqrt(math.pi) * torch.trapezoid(torch.exp(t**2), t).item() for t in grids]
    torch.testing.assert_close(erfi(x), torch.tensor(exact, dtype=torch.float64), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("transform", ["sigmoid", "exp", "softplus", "linear"])
def test_cpr_and_regrama_score_and_reset_as_the_public_code(transform: str) -> None:
    """With transform=exp, CPR is what its code called CCBP before."""
    data, suffix = public.load("cpr"), "" if transform == "sigmoid" else f".{transform}"
    net = Layers(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    layers = {"a": net[0], "b": net[2], "output": net[4]}
    with torch.no_grad():
        for name, layer in layers.items():
            layer.weight.copy_(torch.from_numpy(data[f"before.{name}"]).T)
    own = Net.of({"model": net})
    own.init["model"] = {name: torch.full_like(value, 0.5) for name, value in own.init["model"].items()}
    steps = data["steps"]
    options = (data[name] for name in ("rate", "sharpness", "threshold", "decay"))
    method = CalibratedPartialResets(*options, steps - 1, transform)
    biases = [layer.bias.detach().clone() for layer in layers.values()]
    with method.watch(own):
        for t in range(steps):
            for name in ("a", "b"):
                layers[name].weight.grad = torch.from_numpy(data[f"gradient.{name}"][t]).T
            scores = [gradient_scores(units).numpy() for units in net.unit_graph()]
            utility = method.utility
            method.after_step(own, moment(t))
            for i, name in enumerate(("a", "b")):
                np.testing.assert_allclose(scores[i], data[f"score.{name}"][t], rtol=1e-5)
                if t < steps - 1:
                    np.testing.assert_allclose(method.utility[i].numpy(), data[f"utility.{name}"][t], rtol=1e-5)
    assert utility
    assert all((u == 1).all() for u in method.utility)
    for name, layer in layers.items():
        np.testing.assert_allclose(layer.weight.detach().numpy().T, data[f"after{suffix}.{name}"], rtol=1e-5, atol=1e-6)
    assert all(torch.equal(old, layer.bias) for old, layer in zip(biases, layers.values(), strict=True))


@pytest.mark.parametrize("method", [ReGraMa(threshold=0.01, every=2), SelfNormalizedResets(max_age=200)])
def test_a_silent_unit_is_recycled_and_still_says_nothing(method: Method) -> None:
    torch.manual_seed(0)
    net = Layers(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    own, x = Net.of({"model": net}), torch.randn(64, 5)
    with torch.no_grad():
        net[0].bias[3] = -100
        net[0].weight += 1
    expected = net(x)
    with method.watch(own):
        for step in range(4):
            net.zero_grad()
            net(x).square().sum().backward()
            method.after_step(own, moment(step))
    assert net[0].bias[3] == 0
    changed = (net[0].weight - own.init["model"]["0.weight"] - 1).abs().max(1).values > 1e-6
    assert changed.nonzero().flatten().tolist() == [3]
    assert (net[2].weight[:, 3] == 0).all()
    torch.testing.assert_close(net(x), expected)
    assert not any(module._forward_pre_hooks for module in net.modules())


class KeepsBeside(nn.Linear):
    """A layer with extra state, as layers of FP8 libraries have: a value of any type, or bytes of any length."""

    def __init__(self, value: Any) -> None:
        super().__init__(3, 2)
        self.value = value

    def get_extra_state(self) -> Any:
        return self.value

    def set_extra_state(self, state: Any) -> None:
        self.value = state


@pytest.mark.parametrize("value", [{"scale": 0.5}, torch.tensor([1, 2, 3], dtype=torch.uint8), torch.tensor(1.5)])
@pytest.mark.parametrize("weights", ["initial", "new"])
def test_a_full_reset_leaves_what_modules_keep_beside_their_weights(value: Any, weights: str) -> None:
    net = nn.Sequential(KeepsBeside(value))
    own = Net.of({"m": net})
    other = nn.Sequential(KeepsBeside("of the new network"))
    net[0].value = later = torch.zeros(7, dtype=torch.uint8)
    with torch.no_grad():
        net[0].weight.add_(1)
    context = replace(moment(), new_networks=lambda: {"m": other.state_dict()})
    FullReset(weights).at_boundary(own, context)
    assert net[0].value is later
    assert torch.equal(net[0].weight, own.init["m"]["0.weight"] if weights == "initial" else other[0].weight)


@pytest.mark.parametrize("value", [{"scale": 0.5}, torch.tensor([1, 2, 3], dtype=torch.uint8), torch.tensor(1.5)])
def test_hare_and_tortoise_leave_what_modules_keep_beside_their_weights(value: Any) -> None:
    net = nn.Sequential(KeepsBeside(value))
    own, method, before = Net.of({"m": net}), HareTortoise(momentum=0.5, every=1), net[0].weight.detach().clone()
    method.before_step(own, moment())
    with torch.no_grad():
        net[0].weight.add_(1)
    net[0].value = later = torch.zeros(7, dtype=torch.uint8)
    method.after_step(own, moment())
    method.after_epoch(own, moment())
    assert net[0].value is later
    torch.testing.assert_close(net[0].weight.detach(), before + 0.5)


def test_hare_and_tortoise_by_hand() -> None:
    net = nn.Sequential(nn.BatchNorm1d(1, affine=False), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        net[1].weight.fill_(0)
    own, method = Net.of({"m": net}), HareTortoise(momentum=0.5, every=2)
    slow = 0.0
    for epoch in range(1, 5):
        for _ in range(2):
            method.before_step(own, moment())
            with torch.no_grad():
                net[1].weight.add_(1)
                net[0].running_mean.add_(1)
            fast = net[1].weight.item()
            slow = 0.5 * slow + 0.5 * fast
            method.after_step(own, moment())
        method.after_epoch(own, moment())
        expected = slow if epoch % 2 == 0 else fast
        assert net[1].weight.item() == pytest.approx(expected)
        assert net[0].running_mean.item() == pytest.approx(expected)
