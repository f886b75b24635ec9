"""Units read off a trace: the declared ones again, and of other networks only what a permutation confirms."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet
from torchvision.models.vision_transformer import VisionTransformer

from fire_core.methods import Net
from fire_core.methods.redo import ReDo
from fire_core.units.graph import Units
from fire_core.units.trace import traced_units, unit_graph
from fire_core.units.watch import Watch, mean_magnitude
from tests.units.test_graph import permute_
from vision.models import MLP, VGG16, ResNet18, SmallResNet


def facts(units: Units) -> object:
    """What a group of units consists of, its name apart."""
    readers = {
        (id(c.layer), None if c.columns is None else tuple(c.columns.flatten().tolist()), c.probed)
        for c in units.consumers
    }
    writers = {(id(p.layer), p.start) for p in units.producers}
    return units.count, frozenset(writers), frozenset(readers), frozenset(map(id, units.norms))


@pytest.mark.parametrize(
    "build",
    [
        lambda: MLP(4, 3),
        lambda: MLP(4, 3, norm=False),
        lambda: SmallResNet(4, 3, width=4, stages=3, depth=2),
        lambda: ResNet18(4, width=4),
        lambda: VGG16(4, image_size=64, hidden=32),
    ],
    ids=["mlp", "mlp_biases", "small_resnet", "resnet18", "vgg16"],
)
def test_a_trace_finds_what_our_networks_declare(build: Callable[[], nn.Module]) -> None:
    model = build()
    assert {facts(units) for units in traced_units(model)} == {facts(units) for units in model.unit_graph()}


def check_permutations(model: nn.Module, *shape: int) -> list[Units]:
    """Every group may be permuted without a trace in the output, in float64 with nothing symmetric."""
    torch.manual_seed(0)
    model.double().eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor) * (0.5 if name.endswith("running_var") else 0.05))
    images = torch.randn(*shape, dtype=torch.float64)
    graph = traced_units(model)
    with torch.no_grad():
        before = model(images)
        for units in graph:
            permute_(units, torch.randperm(units.count))
            torch.testing.assert_close(model(images), before, rtol=1e-7, atol=1e-9 * before.abs().max().item())
    return graph


MODELS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    # name: (network, image size, groups of units)
    "resnet": (lambda: ResNet(BasicBlock, [1, 2, 1, 1], num_classes=5), 32, 9),
    "vit": (lambda: VisionTransformer(8, 4, 2, 2, 12, 10, num_classes=5), 8, 2),
}


@pytest.mark.parametrize("name", MODELS)
def test_torchvision_networks(name: str) -> None:
    build, size, groups = MODELS[name]
    assert len(check_permutations(build(), 2, 3, size, size)) == groups


class Net2(nn.Module):
    """Two convolutions and what is done between and after them."""

    def __init__(self, way: Callable[["Net2", Tensor], Tensor], last: int = 6) -> None:
        super().__init__()
        self.way = way
        self.one, self.two = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.grouped, self.back = nn.Conv2d(6, 6, 1, groups=2), nn.ConvTranspose2d(6, 6, 1)
        self.head, self.norm, self.layer_norm = nn.Linear(last, 4), nn.BatchNorm2d(6), nn.LayerNorm(6)
        self.scale = nn.Parameter(torch.rand(6, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


WAYS: dict[str, tuple[Callable[[Net2, Tensor], Tensor], int, int]] = {
    # name: (forward, inputs of the head, groups of units)
    "plain": (lambda m, x: m.head(m.two(F.relu(m.one(x))).mean((2, 3))), 6, 2),
    "flattened by view": (lambda m, x: m.head(m.norm(m.two(m.one(x).tanh())).view(x.size(0), -1)), 96, 2),
    "flattened by reshape": (lambda m, x: m.head(m.two(m.one(x)).reshape(x.shape[0], -1)), 96, 2),
    "flattened twice over": (lambda m, x: m.head(torch.flatten(m.two(m.one(x)), 1).relu()), 96, 2),
    "a skip": (lambda m, x: m.head((m.two(y := m.one(x)) + y).mean((-1, -2))), 6, 1),
    "a gate": (lambda m, x: m.head((m.two(y := m.one(x)).sigmoid() * y).mean((-1, -2))), 6, 1),
    "times a number": (lambda m, x: m.head((2 * m.two(m.one(x) + 1)).mean((2, 3))), 6, 2),
    "times a weight": (lambda m, x: m.head((m.scale * m.two(m.one(x))).mean((2, 3))), 6, 1),
    "side by side": (lambda m, x: m.head(torch.cat([m.two(y := m.one(x)), y], 1).mean((2, 3))), 12, 0),
    "a shared layer": (lambda m, x: m.head(m.two(m.two(m.one(x))).mean((2, 3))), 6, 0),
    "a shared norm": (lambda m, x: m.head(m.norm(m.two(m.norm(m.one(x)))).mean((2, 3))), 6, 0),
    "groups": (lambda m, x: m.head(m.two(m.grouped(m.one(x))).mean((2, 3))), 6, 1),
    "transposed": (lambda m, x: m.head(m.two(m.back(m.one(x))).mean((2, 3))), 6, 1),
    "a transpose": (lambda m, x: m.head(m.two(m.one(x)).mT.mean((2, 3))), 6, 1),
    "a slice": (lambda m, x: m.head(m.two(m.one(x))[:, :3].mean((2, 3))), 3, 1),
    "tokens": (lambda m, x: m.head(m.layer_norm(m.two(m.one(x)).flatten(2).transpose(1, 2)).mean(1)), 6, 1),
    "the output too": (lambda m, x: m.two(m.one(x)).flatten(1), 6, 1),
    "a weight read": (lambda m, x: m.head(m.two(m.one(x)).mean((2, 3))) * m.head.weight.sum(1) + m.one.bias[:4], 6, 0),
    "clamped by a weight": (lambda m, x: m.head((m.two(y := m.one(x)) + y.clamp(max=m.scale)).mean((2, 3))), 6, 0),
    "flattened elsewhere": (lambda m, x: m.head(m.two(m.one(x)).flatten(end_dim=1)), 4, 1),
    "not by the batch": (lambda m, x: m.head(m.two(m.one(x)).view(x.size(0) * 6, -1)), 16, 1),
    "by keyword": (lambda m, x: m.head(input=m.two(m.one(x)).mean((2, 3))), 6, 1),
    "max pool": (lambda m, x: m.head(F.adaptive_avg_pool2d(F.max_pool2d(m.two(m.one(x)), 2), 1).flatten(1)), 6, 2),
}


class Gained(nn.Linear):
    """A gain for each unit beside its weight."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.gain = nn.Parameter(torch.rand(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.gain


def tied() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3))
    model[3].weight = model[2].weight
    return model


def test_layers_with_more_than_a_weight_of_their_own_are_left_alone() -> None:
    gained = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.ReLU(), Gained(8, 8), nn.ReLU(), nn.Linear(8, 3))
    assert len(check_permutations(gained, 5, 6)) == 1
    assert check_permutations(tied(), 5, 6) == []
    assert check_permutations(nn.Sequential(nn.Linear(6, 8), nn.AvgPool1d(2), nn.Linear(4, 3)), 5, 2, 6) == []
    trunk = nn.Linear(6, 8)
    actor, critic = (nn.Sequential(trunk, nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, out)) for out in (2, 1))
    assert [units.name for units in unit_graph({"actor": actor, "critic": critic})] == ["1", "1"]


@pytest.mark.parametrize("name", WAYS)
def test_what_is_not_understood_is_left_alone(name: str) -> None:
    way, last, groups = WAYS[name]
    assert len(check_permutations(Net2(way, last), 2, 3, 4, 4)) == groups


class Noting(nn.Module):
    """Keeps what it has seen, counts its calls and drops out by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.head, self.kept = nn.Linear(6, 6), nn.Linear(6, 6), None
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, extra: Tensor | None = None) -> Tensor:
        self.kept, self.calls = x, self.calls + 1
        return x if extra is not None else self.head(F.dropout(self.one(x).relu(), training=self.training))


def test_the_network_stays_as_it_is() -> None:
    model = Noting().eval()
    assert len(check_permutations(model, 5, 6)) == 1
    kept, drawn = model.kept, torch.get_rng_state()
    traced_units(model)
    assert model.kept is kept
    assert not model.training
    assert torch.equal(drawn, torch.get_rng_state())


def test_a_network_that_cannot_be_traced_is_refused_in_one_line() -> None:
    model = Net2(lambda m, x: m.one(x) if x.sum() > 0 else m.two(x))
    with pytest.raises(
        ValueError,
        match=r"^Net2 does not declare its units and cannot be traced \([^\n]+\): give it, or a subclass, [^\n]+$",
    ):
        unit_graph({"model": model})
    with pytest.raises(ValueError, match="cannot be traced"):
        ReDo().check(Net({"model": model}, {}))


def test_what_is_left_out_is_said_by_the_method_that_needs_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for name in ("groups", "plain"):
            traced_units(Net2(WAYS[name][0]))
        ReDo().check(Net({"model": Net2(WAYS["groups"][0])}, {}))
        ReDo().check(Net({"model": nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))}, {}))
    (record,) = caplog.records
    expected = "units of Net2 by tracing: 4 of 5 layers are left alone: one, grouped, back, head"
    assert record.getMessage() == expected


# ------------------------------------------------------------------------------------------- what a trace does not see


class FrameStack(nn.Module):
    """Frames are encoded one by one, (B, T, C, H, W), and their maps are read together."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.hidden, self.head = nn.Conv2d(3, 4, 3), nn.Linear(2 * 4 * 36, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        maps = F.relu(self.conv(x.flatten(0, 1)))
        return self.head(F.relu(self.hidden(maps.view(batch, -1))))


class Scaled(FrameStack):
    """The same batch size, of images that are scaled before the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4 * 36, 6)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        maps = F.relu(self.conv(x.float() / 255.0))
        return self.head(F.relu(self.hidden(maps.view(batch, -1))))


def test_the_batch_of_an_input_is_that_of_a_map_only_if_samples_stay_samples() -> None:
    assert [units.name for units in check_permutations(FrameStack(), 3, 2, 3, 8, 8)] == ["hidden"]
    assert [units.name for units in traced_units(Scaled())] == ["conv", "hidden"]


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.head, self.other = nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class ActorCritic(Body):
    def value(self, x: Tensor) -> Tensor:
        return self.other(self.body(x))


class OtherHeadInEvaluation(Body):
    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return self.head(h) if self.training else self.other(h)


class ChosenHead(Body):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"a": self.head, "b": nn.Linear(8, 3)})

    def forward(self, x: Tensor, task: str = "a") -> Tensor:
        return self.heads[task](self.body(x))


class EarlyExit(Body):
    """Another method reads the units of the first layer by a layer that the forward pass calls, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.second(F.relu(self.first(x)))))


class EarlyHead(EarlyExit):
    def early(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.first(x)))


class EarlyProduct(EarlyExit):
    def early(self, x: Tensor) -> Tensor:
        return F.linear(F.relu(self.first(x)), self.head.weight)


class EarlyCell(EarlyExit):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(8, 4)

    def early(self, x: Tensor, state: Tensor) -> Tensor:
        return self.cell(F.relu(self.first(x)), state)


class EarlyJoin(EarlyExit):
    def __init__(self) -> None:
        super().__init__()
        self.joined = nn.Linear(10, 1)

    def early(self, x: Tensor, action: Tensor) -> Tensor:
        return self.joined(torch.cat([F.relu(self.first(x)), action], -1))


class SecondInTrainingAlone(EarlyExit):
    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        if self.training:
            h = F.relu(self.second(h))
        return self.head(h)


@pytest.mark.parametrize("model", [EarlyHead, EarlyProduct, EarlyCell, EarlyJoin, SecondInTrainingAlone])
def test_units_that_another_branch_or_method_reads_are_left_out(model: type[nn.Module]) -> None:
    assert [units.name for units in traced_units(EarlyExit())] == ["first", "second"]
    assert [units.name for units in traced_units(model())] == ["second"]


class Residual(nn.Module):
    """Blocks with a skip each, on frames that are folded into the batch."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 1), nn.Linear(2 * 4 * 4, 2)
        self.blocks = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        h = self.first(x.flatten(0, 1))
        for block in self.blocks:
            h = h + F.relu(block(h))
        return self.last(h.view(batch, -1))


def test_many_residual_blocks_are_followed_once_each() -> None:
    assert not traced_units(Residual(60))  # a way through each choice of blocks would never end


class SkipsLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(5, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 8)) for width in (11, 12, 13, 14, 15, 16)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            if self.training and torch.rand(()).item() < 0.5:
                continue
            x = x + block(x)
        return self.head(x)


@pytest.mark.parametrize("model", [ActorCritic, OtherHeadInEvaluation, ChosenHead])
def test_units_that_a_layer_off_the_trace_may_read_are_left_out(model: type[nn.Module]) -> None:
    assert [units.name for units in traced_units(model())] == ["body.0"]
    assert [units.name for units in traced_units(Body())] == ["body.0", "body.2"], "no code calls `other`"


def test_a_network_that_skips_layers_by_chance_has_the_same_units_each_time() -> None:
    model = SkipsLayers()
    state = torch.get_rng_state()
    names = []
    for seed in range(4):
        torch.manual_seed(seed)
        names.append([units.name for units in traced_units(model)])
    assert names[0]
    assert names == names[:1] * 4
    assert not any("first" in name for name in names[0])
    torch.set_rng_state(state)
    traced_units(model)
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_that_share_memory_are_shared() -> None:
    model = nn.Sequential(
        nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
    )
    assert len(unit_graph({"model": model})) == 3
    encoder: Any = model[2]
    decoder: Any = model[4]
    decoder.weight = nn.Parameter(encoder.weight.t())  # another parameter, of the same memory
    with pytest.raises(ValueError, match="no hidden units"):
        unit_graph({"model": model})


def look(module: nn.Module, args: Any, output: Tensor) -> None:
    module.seen = output


def centre_in_place(module: nn.Module, args: Any, output: Tensor) -> None:
    output.sub_(output.mean(1, keepdim=True))


def centre(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output - output.mean(1, keepdim=True)


def test_a_hook_that_changes_values_is_told_from_one_that_looks() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    model[1].register_forward_hook(look)
    assert len(traced_units(model)) == 1
    for hook in (centre, centre_in_place):
        handle = model[1].register_forward_hook(hook)
        assert not traced_units(model)
        handle.remove()
    assert len(traced_units(model)) == 1
    with Watch(unit_graph({"model": model}), mean_magnitude).on():  # this library's own hooks only look
        assert len(traced_units(model)) == 1
    model[2].register_forward_pre_hook(lambda module, args: (args[0] - args[0].mean(),))
    assert not traced_units(model)
