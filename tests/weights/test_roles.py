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
