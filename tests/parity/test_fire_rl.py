"""The projections of DQN and SAC against the authors' code (tests/golden/dqn.npz and sac.npz)."""

import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fire_core import fire_, shrink_and_perturb_
from fire_core.polar.factor import newton_schulz
from fire_core.weights.layout import resolve
from tests.parity import fill, golden
from tests.parity.trees import module_from

DQN = golden.facts("dqn_facts")


def dqn(which: str) -> nn.Module:
    return module_from({spec["name"]: fill.values(spec) for spec in DQN["fill"][which]})


def test_dqn_projects_convolutions_and_restores_linear_layers():
    q, old, init = dqn("q"), dqn("q").state_dict(), dqn("init").state_dict()
    fire_(q, layout="dqn", init=init)
    for name, status in DQN["fire_q"].items():
        expected = {"unchanged": old[name], "init": init[name]}.get(status)
        if expected is None:
            expected = torch.from_numpy(golden.load("dqn")[f"fire.q.{name}"])
            torch.testing.assert_close(q.state_dict()[name], expected, rtol=0, atol=1e-6)
        else:
            assert torch.equal(q.state_dict()[name], expected), name
            check_stored("q", name, expected)
    close_outputs("fire.q_out", q)


def check_stored(net: str, name: str, value: Tensor) -> None:
    """What is stored besides the convolutions' weights."""
    if (stored := golden.load("dqn").get(f"fire.{net}.{name}")) is not None:
        assert torch.equal(torch.from_numpy(stored), value), name


def close_outputs(key: str, net: nn.Module) -> None:
    """The values of the stored observations, for the network of `DQN["qnetwork"]["forward"]`."""
    x = fill.integers(DQN["batch"]["obs"]).float() / 255
    state = net.state_dict()
    for name, stride in (("conv1", 4), ("conv2", 2), ("conv3", 1)):
        x = F.conv2d(x, state[f"{name}.weight"], state[f"{name}.bias"], stride).relu()
    x = F.linear(x.flatten(1), state["fc1.weight"], state["fc1.bias"]).relu()
    x = F.linear(x, state["fc2.weight"], state["fc2.bias"])
    torch.testing.assert_close(x, torch.from_numpy(golden.load("dqn")[key]), rtol=2e-5, atol=2e-6)


def test_dqn_target_takes_the_online_convolutions():
    """The trainer copies the projected weights; the layout restores the target's own linear layers."""
    q, target, init = dqn("q"), dqn("target"), dqn("init").state_dict()
    old = dqn("target").state_dict()
    fire_(q, layout="dqn", init=init)
    fire_(target, layout="dqn", init=init)
    target.load_state_dict({n: v for n, v in q.state_dict().items() if v.ndim == 4}, strict=False)
    sources = {"unchanged": old, "init": init, "same_as_new_q": q.state_dict()}
    for name, status in DQN["fire_target"].items():
        assert torch.equal(target.state_dict()[name], sources[status][name]), name
        check_stored("target", name, sources[status][name])
    close_outputs("fire.target_out", target)


def sac_tree(prefix: str) -> dict[str, Tensor]:
    return golden.tensors("sac", prefix)


def sac_cases() -> list[tuple[str, int]]:
    found = re.findall(r"tree\.after_(\w+?)_it(\d+)\.", " ".join(golden.load("sac")))
    return sorted({(scaler, int(iterations)) for scaler, iterations in found})


@pytest.mark.parametrize("key", sorted(sac_tree("ns.out.")))
def test_sac_newton_schulz(key):
    """With an epsilon in the reference, so that its zero matrices stay zero too."""
    name, iterations = re.fullmatch(r"(.+)\.it(\d+)", key).groups()
    X = newton_schulz(sac_tree("ns.in.")[name], int(iterations))
    torch.testing.assert_close(X, sac_tree("ns.out.")[key], rtol=2e-5, atol=2e-6)


SCALES = {"muon": "modular", "ortho_init": "orthogonal"}


@pytest.mark.parametrize(("scaler", "iterations"), sac_cases())
def test_sac_tree(scaler, iterations):
    """Raw kernels stored (d_in, d_out), pairs of critics stacked in front: a layout made of patterns."""
    before, after = sac_tree("tree.before."), sac_tree(f"tree.after_{scaler}_it{iterations}.")
    model = module_from(before)
    layout = resolve(model, {"*.Dense_*.kernel": "project"}, transposed=("*.kernel",))
    report = fire_(model, iterations=iterations, layout=layout, scale=SCALES[scaler])
    for name, value in after.items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=2e-5, atol=2e-6)
    for name in before.keys() - after.keys():
        assert torch.equal(model.state_dict()[name], before[name]), name
    assert {row.name for row in report} == set(golden.load("sac")["tree.changed"])


def as_linear(tree: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tree as torch layers: kernels (in, out) -> weights (out, in), a pair of critics as two layers."""
    names = {"kernel": "weight", "scale": "weight"}
    out = {}
    for name, value in tree.items():
        prefix, _, leaf = name.rpartition(".")
        value = value.mT if leaf == "kernel" else value
        pair = "VmapSimbaCritic" in name
        for i, part in enumerate(value if pair else [value]):
            out[f"{prefix}.{i}.{names.get(leaf, leaf)}" if pair else f"{prefix}.{names.get(leaf, leaf)}"] = part
    return out


@pytest.mark.parametrize("scaler", SCALES)
def test_sac_agent(scaler):
    """The agent as linear layers under the `sac` preset; the reference's 10 steps are the default."""
    before, after = as_linear(sac_tree("agent.pre.")), as_linear(sac_tree(f"agent.after_fire_{scaler}."))
    nets = [name for name in before if name.startswith(("actor.", "critic."))]
    model = module_from({name: before[name].contiguous() for name in nets})
    projected = {row.name for row in fire_(model, layout="sac", scale=SCALES[scaler])}
    assert projected == {name for name in nets if name.endswith(".weight") and before[name].ndim == 2}
    for name in nets:
        if name in projected:
            torch.testing.assert_close(model.state_dict()[name], after[name], rtol=2e-5, atol=2e-6)
        else:
            assert torch.equal(model.state_dict()[name], before[name]), name
            assert torch.equal(after[name], before[name]), name


def test_sac_shrink_and_perturb():
    pre, init, after = (as_linear(sac_tree(f"agent.{part}.")) for part in ("pre", "init", "after_snp"))
    nets = [name for name in after if name.startswith(("actor.", "critic."))]
    model = module_from({name: pre[name].contiguous() for name in nets})
    shrink_and_perturb_(model, {name: init[name] for name in nets}, golden.meta("sac")["shrink"])
    for name in nets:
        atol = 1e-6 * float(after[name].abs().max())  # some biases are tiny as a whole
        torch.testing.assert_close(model.state_dict()[name], after[name], rtol=2e-5, atol=atol)
