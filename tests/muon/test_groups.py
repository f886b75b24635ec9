"""Which weights muon_groups gives to Muon; tests of check_muon and of SplitMuon use it on many more models."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fire_core import matrices, muon_groups
from fire_core.errors import FireWarning
from tests.networks import UnevenFused


def test_a_fused_weight_that_is_not_known_is_left_to_the_other_optimizer() -> None:
    model = UnevenFused()
    assert any("qkv" in line for line in matrices(model).warnings)
    with (
        pytest.warns(FireWarning, match=r"qkv\.weight is kept; it looks fused"),
        pytest.raises(ValueError, match="no hidden matrix"),
    ):
        muon_groups(model)
    (group,) = muon_groups(model, blocks={"qkv.weight": {"q": 16, "k": 12, "v": 12}}).muon
    assert group["params"] == [model.qkv.weight]
    assert len(group["cuts"]) == 3


def test_nothing_is_left_out_where_no_linear_layer_reads_the_input() -> None:
    rnn = nn.ModuleDict({"rnn": nn.LSTM(4, 8), "fc1": nn.Linear(8, 8), "fc2": nn.Linear(8, 2)})
    assert any(rnn["fc1"].weight in set(group["params"]) for group in muon_groups(rnn).muon)


class UNet(nn.Module):
    """Input and output have the same number of channels, and the layer that is registered first reads the time."""

    def __init__(self, c: int = 16) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(c, c), nn.SiLU(), nn.Linear(c, c))
        self.out = nn.Sequential(nn.GroupNorm(4, c), nn.SiLU(), nn.Conv2d(c, 4, 3, padding=1))
        self.blocks = nn.ModuleList([nn.Conv2d(4, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)])

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        time = self.time(torch.cos(t[:, None] * torch.arange(16)))
        for block in self.blocks:
            x = block(x) + time[:, :, None, None]
        return self.out(x)


class FinalLayer(nn.Module):
    def __init__(self, d: int, outputs: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(d, elementwise_affine=False), nn.Linear(d, outputs)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(d, 2 * d))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale = self.modulation(condition).chunk(2, dim=1)
        return self.linear(self.norm(x) * (1 + scale) + shift)


class Diffusing(nn.Module):
    """A transformer whose output is put together from patches, and whose last layer is registered before another."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.embed, self.condition, self.final = nn.Linear(8, d), nn.Linear(4, d), FinalLayer(d, 8)
        self.mid = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        x = self.embed(x)
        x = self.final(x + self.mid(x), self.condition(t)).reshape(len(x), 2, 4)
        return torch.einsum("nab->nba", x).reshape(len(x), 8)


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(17, 32), nn.Linear(32, 32)
        self.fc_mean, self.fc_log_std = nn.Linear(32, 3), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Any:
        x = self.fc2(self.fc1(x).relu()).relu()
        return torch.distributions.Independent(torch.distributions.Normal(self.fc_mean(x), self.fc_log_std(x).exp()), 1)


class Scaled(nn.Module):
    """A deterministic policy, whose action is scaled and shifted to the range of the environment."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc_mu = nn.Linear(17, 32), nn.Linear(32, 32), nn.Linear(32, 3)
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("bias", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.fc_mu(self.fc2(self.fc1(x).relu()).relu())) * self.scale + self.bias


class Block(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear2(self.linear1(x).relu())


class TransformerClassifier(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.blocks, self.fc = nn.Sequential(Block(d), Block(d)), nn.Linear(d, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(x).mean(1))


class Compact(nn.Module):
    """Nearly the whole network is called `classifier`, as that of the compact transformers is."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.tokenizer, self.mid, self.classifier = nn.Linear(12, d), nn.Linear(d, d), TransformerClassifier(d)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.mid(self.tokenizer(x)).relu())


IN_BLOCKS = [f"classifier.blocks.{i}.linear{j}.weight" for i in (0, 1) for j in (1, 2)]
NETWORKS: dict[type[nn.Module], tuple[list[str], set[str]]] = {  # the weights of Muon, and the heads
    UNet: (["time.2.weight", "blocks.1.weight"], set()),
    Diffusing: (["final.modulation.1.weight", "mid.0.weight", "mid.2.weight"], {"final.linear.weight"}),
    Policy: (["fc2.weight"], {"fc_mean.weight", "fc_log_std.weight"}),
    Scaled: (["fc2.weight"], {"fc_mu.weight"}),
    Compact: (["mid.weight", *IN_BLOCKS], {"classifier.fc.weight"}),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_input_and_output_layers_are_those_of_the_forward_pass(network: type[nn.Module]) -> None:
    model, (names, heads) = network(), NETWORKS[network]
    given = {p for group in muon_groups(model).muon for p in group["params"]}
    assert [name for name, p in model.named_parameters() if p in given] == names
    assert {entry.name for entry in matrices(model) if entry.role == "head"} == heads


class Recurrent(nn.Module):
    def __init__(self, start: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.x2h, self.h2h, self.out, self.start = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 3), start

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x)
        for t in range(x.shape[1]):
            h = torch.tanh(self.x2h(x[:, t]) + self.h2h(h))
        return self.out(h)


@pytest.mark.parametrize(
    "start",
    [
        lambda x: torch.zeros(x.shape[0], 16),
        lambda x: x.new_zeros(len(x), 16),
        lambda x: torch.zeros(x.size(0), 16, device=x.device, dtype=x.dtype),
        lambda x: torch.zeros_like(x[:, 0, :1]).expand(-1, 16),
    ],
)
def test_the_state_of_a_recurrent_cell_is_no_input(start: Callable[[Tensor], Tensor]) -> None:
    model = Recurrent(start)
    model(torch.randn(2, 3, 12))
    assert [p for group in muon_groups(model).muon for p in group["params"]] == [model.h2h.weight]


class Features(nn.Module):
    """A classifier that returns its features too."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.fc1, self.classifier = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.c2(self.c1(x).relu())
        return self.classifier(self.fc1(features.relu().mean((2, 3))).relu()), features


class Perceptual(nn.Module):
    """Only features are returned."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2, self.c3 = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)

    def forward(self, x: Tensor) -> list[Tensor]:
        a = self.c1(x)
        b = self.c2(a.relu())
        return [a, b, self.c3(b.relu())]


@pytest.mark.parametrize(("network", "names"), [(Features, ["c2.weight", "fc1.weight"]), (Perceptual, ["c2.weight"])])
def test_convolutions_whose_features_are_returned_are_hidden(network: type[nn.Module], names: list[str]) -> None:
    model = network()
    given = {p for group in muon_groups(model).muon for p in group["params"]}
    assert [name for name, p in model.named_parameters() if p in given] == names


class OfManyDimensions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.raw = nn.Linear(32, 32), nn.Linear(32, 32), nn.Parameter(torch.randn(2, 3, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x).relu()) * self.raw.sum()


def test_a_raw_parameter_of_many_dimensions_is_named_as_no_matrix() -> None:
    read = matrices(OfManyDimensions())
    assert [line.split(":")[0] for line in read.unread] == ["raw"]
    assert "raw: a raw kernel or stack of more than three dimensions" in str(read)
