"""Spectral regularisation, NaP, L2-ER and C-CHAIN: against public code (tests/parity/originals), or by hand."""

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fire_core.methods import Method, Net, layers
from fire_core.methods.contrib.adamo import AdamO
from fire_core.methods.contrib.c_chain import ChurnReduction
from fire_core.methods.contrib.inputs import InputWatch
from fire_core.methods.contrib.l2_er import L2EffectiveRank
from fire_core.methods.contrib.nap import NormalizeAndProject
from fire_core.methods.contrib.spectral import SpectralRegularisation
from fire_core.methods.contrib.weight_clipping import WeightClipping
from fire_core.methods.dash import Dash
from fire_core.methods.l2init import L2Init
from fire_core.methods.parseval import Parseval
from fire_core.methods.weight_decay import WeightDecay
from fire_core.units.graph import Units, between
from tests.methods.small import Layers, moment
from tests.parity import public


@pytest.mark.parametrize("method", [WeightClipping(), Dash(), AdamO(), NormalizeAndProject()])
def test_what_would_be_written_into_a_computed_weight_is_refused(method: Method) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    method.check(Net.of({"m": net}))
    nn.utils.parametrizations.weight_norm(net[0])
    with pytest.raises(ValueError, match=r"^0 is parametrised: its weight or bias is no parameter"):
        method.check(Net.of({"m": net}))


@pytest.mark.parametrize("method", [WeightClipping(clip_last_layer=False), Dash(), NormalizeAndProject()])
def test_a_computed_weight_that_stays_is_not_refused(method: Method) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    nn.utils.parametrizations.weight_norm(net[2]).requires_grad_(requires_grad=False)
    method.check(Net.of({"m": net}))


# ------------------------------------------------------------------------------------------------------------- spectral


@pytest.mark.parametrize(
    "build", [SpectralRegularisation, functools.partial(Parseval, variant="fire_paper")], ids=["spectral", "parseval"]
)
def test_slopes_of_activations_are_no_scales_of_norms(build: Callable[[], Method]) -> None:
    class Gained(nn.LayerNorm):
        """A norm under another name."""

    net = nn.Sequential(nn.Linear(4, 4), Gained(4), nn.PReLU(4), nn.InstanceNorm1d(4, affine=True), nn.Linear(4, 2))
    build().penalty(Net.of({"m": net})).backward()
    assert net[2].weight.grad is None
    assert net[1].weight.grad is not None
    assert net[3].weight.grad is not None


def test_spectral_goes_on_with_a_network_that_has_changed() -> None:
    method, net = SpectralRegularisation(), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for changed in (net, net.double(), nn.Sequential(*net, nn.Linear(4, 4)).double(), net.half()):
        old, new = method.penalty(Net.of({"m": changed})), SpectralRegularisation().penalty(Net.of({"m": changed}))
        torch.testing.assert_close(old, new, rtol=1e-2, atol=0)


def test_spectral_has_the_public_code_s_penalty_and_gradient() -> None:
    """lop-jax with target 1; biases, which it treats otherwise, are zero."""
    data = public.load("spectral")
    root = nn.ModuleDict({"layer_0": nn.Linear(6, 10), "layer_1": nn.Linear(10, 8), "conv": nn.Conv2d(2, 5, 3)})
    root["ln"] = nn.LayerNorm(10)
    names = {"layer_0": (1, 0), "layer_1": (1, 0), "conv": (3, 2, 0, 1)}  # a kernel's axes in torch's order
    with torch.no_grad():
        for bias in (p for name, p in root.named_parameters() if name.endswith("bias")):
            bias.zero_()
        for name, axes in names.items():
            root[name].weight.copy_(torch.from_numpy(data[f"before.{name}.kernel"]).permute(axes))
        root["ln"].weight.copy_(torch.from_numpy(data["before.ln.scale"]))
    penalty = SpectralRegularisation(data["coef"], iterations=2000).penalty(Net({"m": root}, {}))
    penalty.backward()
    assert penalty.item() == pytest.approx(data["loss"], rel=1e-4)
    for name, axes in names.items():
        expected = torch.from_numpy(data[f"gradient.{name}.kernel"]).permute(axes)
        torch.testing.assert_close(root[name].weight.grad, expected, rtol=1e-3, atol=2e-3)
    torch.testing.assert_close(root["ln"].weight.grad, torch.from_numpy(data["gradient.ln.scale"]))
    assert all(not p.grad.any() for name, p in root.named_parameters() if name.endswith("bias"))


# ------------------------------------------------------------------------------------------------------------------ NaP


def test_nap_by_hand() -> None:
    """After each second step hidden weights and (scale, shift) have their first norms, and the output layer is free."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6, bias=False), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3))
    own, method = Net.of({"m": net}), NormalizeAndProject(every=2)
    start = {name: p.detach().clone() for name, p in net.named_parameters()}
    for step in range(4):
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(1.5).add_(0.1)
        before = {name: p.detach().clone() for name, p in net.named_parameters()}
        method.after_step(own, moment(step))
        after = dict(net.named_parameters())
        if step % 2 == 0:
            assert all(torch.equal(before[name], after[name]) for name in before)
            continue
        torch.testing.assert_close(
            after["0.weight"], before["0.weight"] * start["0.weight"].norm() / before["0.weight"].norm()
        )
        size = torch.cat([before["1.weight"], before["1.bias"]]).norm()
        for name in ("1.weight", "1.bias"):  # scales of 1 and shifts of 0 at first
            torch.testing.assert_close(after[name], before[name] * 6**0.5 / size)
        assert torch.equal(after["3.weight"], before["3.weight"])
        assert torch.equal(after["3.bias"], before["3.bias"])


# ---------------------------------------------------------------------------------------------------------------- L2-ER


def test_l2_er_climbs_as_the_public_code() -> None:
    """lop-jax, `effective_rank_loss`: every parameter after each of its own steps."""
    data = public.load("l2_er")
    net = Layers(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))
    layers = {"layer_0": net[0], "layer_1": net[2]}

    def arrays(prefix: str, step: int | None = None) -> dict[str, Tensor]:
        return {
            name: value.T if name.endswith("kernel") else value
            for name, value in public.tensors("l2_er", prefix, step).items()
        }

    with torch.no_grad():
        for name, layer in layers.items():
            layer.weight.copy_(arrays("start.")[f"{name}.kernel"])
            layer.bias.copy_(arrays("start.")[f"{name}.bias"])
    own, method = Net.of({"m": net}), L2EffectiveRank(0.0, data["lr"], every=2)
    head = net[4].weight.detach().clone()
    with method.watch(own):
        for t in range(data["steps"]):
            for half in torch.from_numpy(data["x"][t]).split(7):  # of 12 samples: batches of unequal size
                net(half)
                method.after_step(own, moment())
            for name, layer in layers.items():
                after = arrays("after.", t)
                torch.testing.assert_close(layer.weight.detach(), after[f"{name}.kernel"], rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(layer.bias.detach(), after[f"{name}.bias"], rtol=1e-4, atol=1e-5)
    assert torch.equal(net[4].weight, head)
    assert data["rank"][-1] > data["rank"][0]


# -------------------------------------------------------------------------------------------------------------- C-CHAIN


def test_c_chain_takes_the_public_code_s_steps() -> None:
    """DoubleDQN_CCHAIN with the reference batch of the second update before: parameters and c after each update."""
    data = public.load("c_chain")
    net = nn.Sequential(nn.Flatten(), *public.Perceptron(6, 10, 8, 3))
    net.load_state_dict(public.tensors("c_chain", "start."))
    own = Net.of({"q": net})
    method = ChurnReduction(data["scale"], data["coef"], data["warmup"], window=100)
    optimizer = torch.optim.Adam(net.parameters(), lr=data["lr"])
    with method.watch(own):
        for t in range(data["steps"]):
            x, action = torch.from_numpy(data["x"][t]), torch.from_numpy(data["action"][t])
            values = net(x).gather(1, action[:, None])[:, 0]
            loss = F.mse_loss(values, torch.from_numpy(data["target"][t]))
            optimizer.zero_grad()
            loss.backward()
            if (penalty := method.penalty(own)) is not None:
                penalty.backward()
            assert (penalty is None) == (t < 2)
            if penalty is not None:  # of the means after the update before
                used = float(penalty.detach() / method.churn.detach())
                assert used == pytest.approx(data["coefficient"][t - 1], rel=2e-2)
            method.before_step(own, moment(t))
            optimizer.step()
            method.after_step(own, moment(t, step_loss=loss))
            after = public.tensors("c_chain", "after.", t)
            for name, value in after.items():
                torch.testing.assert_close(net.get_parameter(name).detach(), value, rtol=5e-3, atol=5e-4)
            net.load_state_dict(after)  # so that roundings, which c multiplies, do not add up
    assert data["coefficient"][-2] != data["coefficient"][1], "the last and the first that a penalty was made with"


@pytest.mark.parametrize("method", [ChurnReduction(), L2EffectiveRank(every=10)])
def test_inputs_are_kept_by_step_not_by_micro_batch(method: ChurnReduction | L2EffectiveRank) -> None:
    """Of accumulated micro-batches each step keeps its last; that of a skipped step gives way to the next one's."""
    net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    own = Net.of({"m": net})
    with method.watch(own):
        for step in range(4):
            for micro in range(8):
                net(torch.full((2, 1), float(10 * step + micro)))
            method.penalty(own)
            if step != 2:
                method.after_step(own, moment(step, step_loss=torch.tensor(1.0)))
    assert [int(by_position[0][0]) for by_position, _ in method.inputs.kept["m"]] == [7, 17, 37][-method.inputs.steps :]
    resumed = InputWatch(10)
    resumed.load_state_dict(method.inputs.state_dict())
    assert len(resumed.kept["m"]) == len(method.inputs.kept["m"])


class WithOptions(nn.Module):
    """A network with a second argument that may be missing, as agents of others have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
        hidden = self.first(x).relu()
        return scale * self.second(hidden if mask is None else hidden * mask)

    def unit_graph(self) -> list[Units]:
        return [between("first", self.first, self.second)]


PASSES: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "by position": lambda net, x: net(x, None),
    "by name": lambda net, x: net(x=x, scale=2.0),
    "both": lambda net, x: net(x, mask=x[:, :1], scale=2.0),
}


@pytest.mark.parametrize("how", PASSES)
@pytest.mark.parametrize("make", [lambda: ChurnReduction(), lambda: L2EffectiveRank(every=2)])
def test_inputs_may_be_given_by_name_and_be_no_tensors(make: Callable[[], Method], how: str) -> None:
    """The penalty is that of a network whose arguments are all bound before."""
    results = []
    for bound in (False, True):
        torch.manual_seed(0)
        net = WithOptions()
        whole = net if not bound else Bound(net, PASSES[how])
        own, method, penalties = Net.of({"q": whole, "idle": nn.Linear(1, 1)}), make(), list[float]()
        own.modules.pop("idle") if isinstance(method, ChurnReduction) else None
        with method.watch(own):
            for t in range(4):
                x = torch.randn(5, 3, generator=torch.Generator().manual_seed(t))
                (whole(x) if bound else PASSES[how](net, x)).square().mean().backward()
                penalty = method.penalty(own)
                penalties.append(0.0 if penalty is None else penalty.item())
                method.before_step(own, moment(t))
                with torch.no_grad():
                    net.first.weight.mul_(1.1)
                method.after_step(own, moment(t, step_loss=torch.tensor(1.0)))
        results.append([*penalties, *net.second.weight.flatten().tolist()])
    assert results[0] == pytest.approx(results[1])
    assert results[0][3] > 0


class Bound(nn.Module):
    """A network whose passes are made in one way."""

    def __init__(self, net: nn.Module, how: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.how = net, how

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self.net, x)

    def unit_graph(self) -> list[Units]:
        return self.net.unit_graph()  # type: ignore[operator,no-any-return]


PENALTIES = {
    "parseval": Parseval,
    "parseval, fire_paper": lambda: Parseval(variant="fire_paper"),
    "spectral": SpectralRegularisation,
    "l2init": L2Init,
    "weight_decay": WeightDecay,
    "l2_er": L2EffectiveRank,
}


@pytest.mark.parametrize("name", PENALTIES)
def test_a_penalty_may_be_computed_under_autocast(name: str) -> None:
    torch.manual_seed(0)
    gradients = []
    net = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 2))
    own, method = Net.of({"m": net}), PENALTIES[name]()
    with torch.no_grad():
        net[2].weight.add_(0.1)
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            penalty = method.penalty(own)
        assert penalty is not None
        net.zero_grad()
        penalty.backward()
        gradients.append(net[2].weight.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0.02, atol=1e-5)
    assert gradients[0].abs().max() > 0


@pytest.mark.parametrize("make", [L2Init, WeightDecay, L2EffectiveRank])
def test_the_penalty_of_half_precision_weights_does_not_overflow(make: type[Method]) -> None:
    net = nn.Linear(300, 300, bias=False).half()
    own = Net.of({"m": net})
    with torch.no_grad():
        net.weight.fill_(1.0)
        own.init["m"]["weight"].zero_()
    penalty = make().penalty(own)
    assert penalty is not None
    assert penalty.item() == pytest.approx(90_000 / 2 * (1e-4 if make is L2EffectiveRank else 1e-3), rel=1e-2)
    penalty.backward()
    assert net.weight.grad.isfinite().all()


def test_c_chain_leaves_running_statistics_alone() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    own, method = Net.of({"q": net}), ChurnReduction()
    with method.watch(own):
        for t in range(4):
            net(torch.randn(5, 2))
            mean = net[1].running_mean.clone()
            penalty = method.penalty(own)
            assert torch.equal(net[1].running_mean, mean)
            method.before_step(own, moment(t))
            with torch.no_grad():
                net[0].weight.add_(torch.randn(3, 2))
            method.after_step(own, moment(t, step_loss=torch.tensor(1.0)))
    assert penalty is not None
    assert penalty > 0


def test_spectral_sees_a_layer_that_was_zero_at_the_first_step() -> None:
    layer = nn.Linear(8, 8, bias=False)
    method, net = SpectralRegularisation(), Net.of({"model": layer})
    with torch.no_grad():
        layer.weight.zero_()
    method.penalty(net)
    with torch.no_grad():
        layer.weight.copy_(2 * torch.eye(8))
    assert method.penalty(net).item() == pytest.approx(1e-3 * (2**2 - 1) ** 2, rel=1e-4)


def test_output_layers_are_looked_for_once_until_layers_change(monkeypatch: pytest.MonkeyPatch) -> None:
    net, asked = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), list[nn.Module]()
    monkeypatch.setattr(layers, "resolve", lambda module, layout: asked.append(module) or [])
    assert [layers.hidden_layers(net) for _ in range(2)] == [[net[0]], [net[0]]]
    net[1] = nn.Linear(4, 3)
    assert (layers.output_layers(net), len(asked)) == ({net[1]}, 2)
