"""What a layer is for: heads below wrappers, and routers beside experts, whatever their names."""

import warnings

import pytest
import torch
from torch import nn

from fire_core import fire_, muon_groups
from fire_core.errors import FireWarning
from fire_core.weights.layout import resolve


class Images(nn.Module):
    """A small network whose last layer is called `fc`, as torchvision's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.layer1, self.fc = nn.Conv2d(3, 4, 3), nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 2)


class Wrapped(nn.Module):
    """As a LightningModule holds its network, with a loss that has no layers."""

    def __init__(self, *networks: nn.Module) -> None:
        super().__init__()
        self.loss = nn.CrossEntropyLoss()
        for i, network in enumerate(networks):
            self.add_module(f"net{i}", network)


def roles(model: nn.Module) -> dict[str, str]:
    return {entry.name: entry.role for entry in resolve(model) if entry.kind != "vector"}


@pytest.mark.parametrize(
    ("wrap", "prefixes"),
    [
        (lambda: Images(), [""]),
        (lambda: Wrapped(Images()), ["net0."]),
        (lambda: nn.DataParallel(Images()), ["module."]),
        (lambda: nn.DataParallel(Wrapped(Images())), ["module.net0."]),
        (lambda: Wrapped(Wrapped(Images())), ["net0.net0."]),
        (lambda: Wrapped(Images(), Images()), ["net0.", "net1."]),
    ],
    ids=["bare", "Lightning", "DataParallel", "both", "twice", "student and teacher"],
)
def test_a_head_is_a_head_below_wrappers(wrap, prefixes):
    model = wrap()
    found = {name for name, role in roles(model).items() if role == "head"}
    assert found == {f"{prefix}fc.weight" for prefix in prefixes}
    report = fire_(model, layout={"linear": "project", "head": "keep"})
    assert {row.name for row in report} == {f"{prefix}layer1.0.weight" for prefix in prefixes}


def test_a_layer_called_fc_within_a_network_is_no_head():
    block = nn.ModuleDict({"fc": nn.Linear(4, 4), "proj": nn.Linear(4, 4)})
    assert "head" not in roles(nn.Sequential(block, nn.Linear(4, 4))).values()


@pytest.mark.parametrize("name", ["head", "classifier", "lm_head"])
def test_a_head_beside_the_projections_of_a_network_of_one_module(name):
    layers = {part: nn.Linear(8, 8) for part in ("q", "k", "v", "out")} | {name: nn.Linear(8, 3)}
    expected = {"q": "q", "k": "k", "v": "v", "out": "attention_out", name: "head"}
    assert roles(nn.ModuleDict(layers)) == {f"{part}.weight": role for part, role in expected.items()}


def test_a_network_that_names_its_own_classifier():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.last_linear = nn.Linear(4, 4), nn.Linear(4, 3)

        def get_classifier(self) -> nn.Module:
            return self.last_linear

    assert roles(Wrapped(Named())) == {"net0.body.weight": "mlp", "net0.last_linear.weight": "head"}


@pytest.mark.filterwarnings("ignore")
def test_the_output_layers_of_stable_baselines3_are_heads():
    sb3, gym = pytest.importorskip("stable_baselines3"), pytest.importorskip("gymnasium")
    policy = sb3.PPO("MlpPolicy", gym.make("CartPole-v1"), device="cpu").policy
    assert {name for name, role in roles(policy).items() if role == "head"} == {"action_net.weight", "value_net.weight"}
    policy = sb3.SAC("MlpPolicy", gym.make("Pendulum-v1"), device="cpu").policy
    heads = {name for name, role in roles(policy).items() if role == "head" and "target" not in name}
    outputs = {"actor.mu.weight", "actor.log_std.weight", "critic.qf0.4.weight", "critic.qf1.4.weight"}
    assert heads == outputs


# ----------------------------------------------------------------------------- output layers that have no name as such


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, outputs))


class Actor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 32), nn.Linear(32, 32)
        self.mean, self.log_std = nn.Linear(32, 2), nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.second(self.first(x).relu()).relu()
        return self.mean(h).tanh(), self.log_std(h)


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(7, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, x: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(self.first(torch.cat([x, action], -1)).relu()).relu())


class Unlike(nn.Module):
    """An actor in a mapping, a critic as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.nets, self.critic = nn.ModuleDict({"actor": mlp(5, 2)}), mlp(7, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        action = self.nets["actor"](x)
        return action, self.critic(torch.cat([x, action], -1))


class Agent(nn.Module):
    """Networks without a forward pass of their holder."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critics = Actor(), nn.ModuleList([Critic(), Critic()])


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(10, 3), mlp(3, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(x))


class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(10, 32)[:4], mlp(3, 10)
        self.mean, self.spread = nn.Linear(32, 3), nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        h = self.encoder(x)
        mean, spread = self.mean(h), self.spread(h)
        return self.decoder(mean + torch.randn_like(mean) * spread.exp()), mean, spread


class Dueling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.value, self.gain = nn.Linear(32, 1), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.trunk(x)
        gain = self.gain(h)
        return self.value(h) + gain - gain.mean(-1, keepdim=True)


HEADS = {
    Unlike: {"nets.actor.4", "critic.4"},
    Agent: {"actor.mean", "actor.log_std", "critics.0.third", "critics.1.third"},
    Autoencoder: {"encoder.4", "decoder.4"},
    Variational: {"mean", "spread", "decoder.4"},
    Dueling: {"value", "gain"},
}


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("wrap", [lambda model: model, Wrapped, nn.DataParallel], ids=["bare", "Lightning", "parallel"])
def test_every_networks_output_layer_is_a_head_and_not_muons(kind, wrap):
    model = wrap(kind())
    inside = next(module for module in model.modules() if isinstance(module, kind))
    heads = {id(inside.get_submodule(name).weight) for name in HEADS[kind]}
    found = {id(entry.parameter) for entry in resolve(model) if entry.role == "head" and entry.kind == "matrix"}
    assert found == heads
    hidden = {id(p) for group in muon_groups(model).muon for p in group["params"]}
    assert hidden.isdisjoint(heads)
    inputs = {id(layer.weight) for layer in model.modules() if isinstance(layer, nn.Linear) and layer.in_features > 3}
    middle = {id(p) for p in model.parameters() if p.shape == (32, 32)}
    assert middle <= hidden
    assert hidden.isdisjoint(inputs - middle - {id(p) for p in model.parameters() if p.shape[-1] == 32})


class Residual(nn.Module):
    """Blocks, and the sum of what they put out: a body."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = mlp(8, 8), mlp(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.near(x)
        return x + self.far(x)


class InARow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([mlp(8, 8) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Trunk(nn.Module):
    """What reads a trunk are networks of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.actor, self.critic = (nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, n)) for n in (2, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.trunk(x)
        return self.actor(h), self.critic(h)


class ReturnsAll(Residual):
    """What the blocks put out is returned beside their sum."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        near = self.near(x)
        x = x + near
        far = self.far(x)
        return x + far, near, far


@pytest.mark.parametrize(
    ("kind", "heads"),
    [(Residual, set()), (ReturnsAll, set()), (InARow, {"blocks.2.4"}), (Trunk, {"actor.2", "critic.2"})],
)
def test_a_hidden_layer_at_the_end_of_a_part_is_no_head(kind, heads):
    assert {name.removesuffix(".weight") for name, role in roles(kind()).items() if role == "head"} == heads


# ------------------------------------------------------------------------------------------------------------ routers


@pytest.mark.parametrize("name", ["gate", "w_g", "switch", "gating_layer", "selector", "anything", "to_logits"])
def test_a_layer_with_an_output_for_each_expert_is_a_router(name):
    experts = nn.ModuleList([nn.Linear(24, 24) for _ in range(4)])
    report = fire_(nn.Sequential(nn.ModuleDict({"experts": experts, name: nn.Linear(24, 4)})))
    assert "router" in report.kept[f"0.{name}.weight"].reason
    assert len(report.rows) == 4


@pytest.mark.parametrize(
    "experts",
    [
        lambda: {"expert_list": nn.ModuleList([nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8)) for _ in range(3)])},
        lambda: {"experts": nn.ModuleDict({f"e{i}": nn.Linear(8, 8) for i in range(3)})},
        lambda: {f"expert{i}": nn.Linear(8, 8) for i in range(3)},
        lambda: {"experts": nn.ParameterDict({"w1": torch.randn(3, 8, 16), "w2": torch.randn(3, 16, 8)})},
    ],
    ids=["list", "mapping", "numbered", "stacked"],
)
@pytest.mark.filterwarnings("ignore")
def test_experts_come_in_many_forms(experts):
    found = roles(nn.ModuleDict({**experts(), "scores": nn.Linear(8, 3), "shared": nn.Linear(8, 8)}))
    assert found["scores.weight"] == "router"
    assert found["shared.weight"] != "router"


def test_blocks_in_a_row_make_no_router_of_the_layer_after_them():
    blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
    assert roles(nn.ModuleDict({"blocks": blocks, "out": nn.Linear(8, 4)}))["out.weight"] != "router"
    assert roles(nn.ModuleDict({"ffns": blocks, "gate": nn.Linear(8, 4)}))["gate.weight"] == "router"


class Mixture(nn.Module):
    """Nothing in it is called a gate or an expert; the code weighs each module's output with one number."""

    def __init__(self, hidden: bool) -> None:
        super().__init__()
        inner = [nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)] if hidden else [nn.Linear(8, 4)]
        self.a = nn.Sequential(*inner)
        self.b = nn.ModuleList([nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(4)])
        self.c = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.a(x).softmax(-1)
        return self.c(sum(weights[..., i : i + 1] * part(x) for i, part in enumerate(self.b)))  # type: ignore[arg-type]


@pytest.mark.parametrize("hidden", [False, True])
def test_what_weighs_modules_with_no_name_is_a_router(hidden: bool) -> None:
    found = roles(Mixture(hidden))
    assert found.pop("a.2.weight" if hidden else "a.0.weight") == "router"
    assert found.pop("c.weight") == "head"
    assert set(found.values()) == {"mlp"}
    fire_(Mixture(hidden), example=torch.randn(5, 8), strict=True)


def test_a_cell_written_by_hand_has_no_head() -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.i, self.h = nn.Linear(8, 32), nn.Linear(8, 32)

        def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            i, f, g, o = (self.i(x) + self.h(h)).view(-1, 4, 8).unbind(1)
            return o.sigmoid() * (f.sigmoid() * c + i.sigmoid() * g.tanh()).tanh()

    assert set(roles(Cell()).values()) == {"mlp"}


# --------------------------------------------------------------------------------------------------------------- Muon


def test_muon_warns_of_raw_stacks_that_it_leaves_to_the_other_optimizer():
    model = nn.ModuleDict({"embed": nn.Embedding(10, 8), "mix": nn.Linear(8, 8), "head": nn.Linear(8, 10)})
    model.register_parameter("qkvo", nn.Parameter(torch.randn(4, 8, 8)))
    with pytest.warns(FireWarning, match=r"raw parameters are left to the other optimizer: qkvo\. .*transposed="):
        groups = muon_groups(model)
    assert [p for group in groups.muon for p in group["params"]] == [model.mix.weight]


def test_muon_does_not_warn_of_tables_of_positions_and_tokens():
    model = nn.ModuleDict({"embed": nn.Embedding(10, 8), "mix": nn.Linear(8, 8), "head": nn.Linear(8, 10)})
    for name in ("pos_embed", "positional_embedding", "relative_position_bias_table", "rel_pos_h", "register_tokens"):
        model.register_parameter(name, nn.Parameter(torch.randn(1, 4, 8)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", FireWarning)
        muon_groups(model)
    model.register_parameter("position_proj", nn.Parameter(torch.randn(1, 4, 8)))
    with pytest.warns(FireWarning, match=r"left to the other optimizer: position_proj\. "):
        muon_groups(model)


def test_the_input_layer_of_every_tower_is_not_muons():
    class TwoTowers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.text = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8))
            self.patches, self.image = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 8)
            self.table = nn.Sequential(nn.Linear(13, 8), nn.Linear(8, 8))

    model = TwoTowers()
    hidden = {id(p) for group in muon_groups(model).muon for p in group["params"]}
    assert id(model.patches.weight) not in hidden
    assert id(model.table[0].weight) not in hidden
    assert {id(model.text[1].weight), id(model.image.weight)} <= hidden
