"""Unit graphs: what models declare is true, recycled units are new and say nothing, observation leaves no trace."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fire_core.methods.fire_paper import Link, OutputWatch, rectified
from fire_core.units.graph import Units, between, weight
from fire_core.units.trace import unit_graph
from fire_core.units.watch import Watch, mean_magnitude, peak
from language.model import GPT
from vision.models import MLP, VGG16, ResNet18, SmallResNet, ViT

GPT_SIZES = {"vocab_size": 11, "block_size": 6, "n_layer": 2, "n_embd": 16, "hidden": 10}
VIT_SIZES = {"image_size": 8, "dim": 12, "depth": 2, "heads": 2, "dim_head": 5, "mlp_dim": 14}


class Tiny(VGG16):
    """VGG-16's code on narrow layers: a flattened 2x2 map in front of the head."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(5, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(24, 7), nn.ReLU(), nn.Linear(7, 4))


MODELS = {
    "mlp": lambda: MLP(4, 3, image_size=8, hidden=6, depth=3),
    "mlp_biases": lambda: MLP(4, 3, image_size=8, hidden=6, depth=3, norm=False),
    "mlp_crelu": lambda: MLP(4, 3, image_size=8, hidden=6, depth=3, activation="crelu"),
    "mlp_layer_crelu": lambda: MLP(4, 3, image_size=8, hidden=6, depth=3, norm="layer", activation="crelu"),
    "mlp_fourier": lambda: MLP(4, 3, image_size=8, hidden=12, depth=3, activation="fourier"),
    "small_resnet": lambda: SmallResNet(4, 3, width=4, stages=3, depth=2),
    "resnet18": lambda: ResNet18(4, width=4),
    "vgg": Tiny,
    "vit": lambda: ViT(4, **VIT_SIZES),
    "gpt": lambda: GPT(n_head=4, bias=True, **GPT_SIZES),
    "gpt_gqa_swiglu": lambda: GPT(n_head=4, n_kv_head=2, activation="swiglu", **GPT_SIZES),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    network = MODELS[request.param]()
    with torch.no_grad():
        for parameter in network.parameters():  # norms and biases too: nothing symmetric by its initial value
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return network


def outputs(model: nn.Module) -> Tensor:
    """In train mode, so that batch statistics are looked at too; running statistics stay."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        if isinstance(model, GPT):
            tokens = torch.randint(11, (5, 6), generator=generator)
            result = model(tokens, tokens)[0]
        else:
            result = model(torch.randn(5, 3, 8, 8, generator=generator))
    model.load_state_dict(state)
    return result


def permutation(units: Units, model: nn.Module) -> Tensor:
    """Values may change places within their head alone: another head looks at other tokens."""
    width = units.count
    if units.name.endswith("values"):
        width = 5 if isinstance(model, ViT) else GPT_SIZES["n_embd"] // 4
    return torch.arange(units.count).view(-1, width).roll(1, dims=1).flatten()


@torch.no_grad()
def permute_(units: Units, order: Tensor) -> None:
    """Put units into another order: rows of their writers, entries of their norms, columns of their readers."""
    for producer in units.producers:
        rows = slice(producer.start, producer.start + units.count)
        for tensor in (producer.layer.weight, producer.layer.bias):
            if tensor is not None:
                tensor[rows] = tensor[rows][order]
    for norm in units.norms:
        for name in ("weight", "bias", "running_mean", "running_var"):
            if (tensor := getattr(norm, name, None)) is not None:
                tensor.copy_(tensor[order])
    for consumer in units.consumers:
        columns = torch.arange(units.count)[:, None] if consumer.columns is None else consumer.columns
        w = weight(consumer.layer)
        new = w.clone()
        new[:, columns.flatten()] = w[:, columns[order].flatten()]
        w.copy_(new)


def test_units_are_interchangeable(model: nn.Module) -> None:
    """Permuting a group's rows, norm entries and columns leaves the function alone: no reader or writer is missing."""
    before = outputs(model)
    for units in unit_graph({"model": model}):
        permute_(units, permutation(units, model))
        after = outputs(model)
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


def test_watch_sees_what_readers_see() -> None:
    torch.manual_seed(0)
    network = Tiny()
    graph = unit_graph({"model": network})
    x = torch.randn(6, 3, 8, 8)
    for reduce, expected in (
        (mean_magnitude, lambda h: h.abs().double().mean((0, 2, 3))),
        (peak, lambda h: h.flatten(2).amax((0, 2)).double()),
    ):
        watch = Watch(graph, reduce)
        with watch.on():
            network(x)
            seen = watch.read()
            network.eval()
            network(torch.full_like(x, 1e3))  # an evaluation is no training
            network.train()
        assert all(torch.equal(a, b) for a, b in zip(seen, watch.read(), strict=True))
        assert watch.samples == 6
        hidden = network.backbone[:4](x)
        torch.testing.assert_close(seen[0].double(), expected(hidden), rtol=1e-5, atol=1e-6)
        flat = network.backbone(x)
        at_head = expected(flat) if reduce is mean_magnitude else flat.flatten(2).amax(0).mean(1).double()
        torch.testing.assert_close(seen[1].double(), at_head, rtol=1e-5, atol=1e-6)
        last = F.relu(network.head[0](flat.flatten(1)))
        size = last.abs().mean(0) if reduce is mean_magnitude else last.amax(0)
        torch.testing.assert_close(seen[2], size, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduce", [mean_magnitude, peak])
def test_watch_in_any_number_format(reduce) -> None:
    x = torch.randn(32, 5)
    expected = reduce(x, [0])
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        measured = reduce(x.to(dtype), [0])
        assert measured.dtype == torch.float32
        torch.testing.assert_close(measured, expected, rtol=2e-2, atol=0)


def test_a_pass_that_was_not_measured_is_told() -> None:
    links = [Link("one", nn.Linear(3, 2))]
    watch = OutputWatch(links, rectified)
    with watch.on():
        with pytest.raises(RuntimeError, match="no pass with samples went through one"):
            watch.read()
        links[0].layer(torch.randn(0, 3))  # without samples
        with pytest.raises(RuntimeError, match="no pass with samples went through one"):
            watch.read()
        links[0].layer(torch.randn(4, 3))
        assert len(watch.read()) == 1


def test_watch_is_compiled_with_the_network() -> None:
    """Without a break in the graph, and as often as the network runs."""
    torch._dynamo.reset()
    network = SmallResNet(4, 3, width=4, stages=2)
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    watch = Watch(unit_graph({"model": network}), mean_magnitude)
    with pytest.raises(RuntimeError, match="no pass with samples was seen"):
        watch.read()
    x = torch.randn(5, 3, 8, 8)
    with watch.on():
        for batch in (x, 3 * x):
            compiled(batch)
            seen = watch.read()
            network(batch)
            for a, b in zip(seen, watch.read(), strict=True):
                torch.testing.assert_close(a, b)
    torch._dynamo.reset()


def test_a_stream_is_the_mean_of_its_readers() -> None:
    torch.manual_seed(0)
    network = SmallResNet(4, 3, width=4, stages=2, depth=2)
    graph = unit_graph({"model": network})
    inputs = []
    for block in network.backbone.stage1:
        block.conv1.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    network.backbone.stage2[0].conv1.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    watch = Watch(graph, mean_magnitude)
    with watch.on():
        network(torch.randn(5, 3, 8, 8))
    (stream,) = [i for i, units in enumerate(graph) if units.name == "stream4"]
    expected = torch.stack([x.abs().mean((0, 2, 3)) for x in inputs]).mean(0)
    torch.testing.assert_close(watch.read()[stream], expected)


def test_a_network_without_a_graph_is_refused_with_advice() -> None:
    with pytest.raises(ValueError, match=r"no hidden units of Linear .*: give it a method unit_graph\(\)"):
        unit_graph({"model": nn.Linear(2, 2)})


def test_layers_that_cannot_be_neighbours() -> None:
    with pytest.raises(ValueError, match="5 units do not divide the 12 inputs"):
        between("x", nn.Linear(3, 5), nn.Linear(12, 2))
