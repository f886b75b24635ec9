"""Several methods in one run: what each does alone they do together; conflicts are refused in one line."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from fire_core.methods import Context, Fuse, Method, Net, OptimizerReset, RandomIsometry
from fire_core.methods.base import Base
from fire_core.methods.chain import Chain
from fire_core.methods.contrib.c_chain import ChurnReduction
from fire_core.methods.contrib.hare_tortoise import HareTortoise
from fire_core.methods.contrib.l2_er import L2EffectiveRank
from fire_core.methods.contrib.trac import Trac
from fire_core.methods.contrib.upgd import UPGD
from fire_core.methods.contrib.weight_clipping import WeightClipping
from fire_core.methods.dash import Dash
from fire_core.methods.fire import Fire
from fire_core.methods.full_reset import FullReset
from fire_core.methods.l2init import L2Init
from fire_core.methods.muon import CombinedOptimizer, MuonOptimizer, hidden_weights
from fire_core.methods.pi import PlasticityInjection
from fire_core.methods.redo import ReDo
from fire_core.methods.snp import ShrinkAndPerturb
from fire_core.methods.weight_decay import WeightDecay
from fire_core.units.trace import unit_graph
from fire_core.units.watch import Watch, mean_magnitude
from harness.config.chain import chained
from harness.config.errors import ConfigError
from tests.programs import VISION, rows


def network() -> Net:
    torch.manual_seed(0)
    return Net.of({"model": nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))})


def moment() -> Context:
    return Context(1, 0, torch.Generator().manual_seed(0))


def weights(net: Net) -> list[torch.Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def test_boundaries_follow_one_another() -> None:
    apart, together = network(), network()
    for method in (ShrinkAndPerturb(0.3), Fire()):
        method.at_boundary(apart, moment())
    Chain({"snp": ShrinkAndPerturb(0.3), "fire": Fire()}).at_boundary(together, moment())
    assert all(torch.equal(a, b) for a, b in zip(weights(apart), weights(together), strict=True))
    other = network()
    Chain({"fire": Fire(), "snp": ShrinkAndPerturb(0.3)}).at_boundary(other, moment())
    assert not torch.equal(weights(other)[0], weights(together)[0])


def test_penalties_add_up_and_the_optimizer_is_the_one_that_replaces() -> None:
    net = network()
    chain = Chain({"l2init": L2Init(0.1), "weight_decay": WeightDecay(0.2), "muon": MuonOptimizer()})
    expected = L2Init(0.1).penalty(net) + WeightDecay(0.2).penalty(net)
    torch.testing.assert_close(chain.penalty(net), expected)
    assert isinstance(chain.optimizer(net, torch.optim.Adam), CombinedOptimizer)
    assert chain.acts_within_phases
    plain = Chain({"fire": Fire(), "snp": ShrinkAndPerturb()})
    assert plain.penalty(net) is None
    assert isinstance(plain.optimizer(net, torch.optim.Adam), torch.optim.Adam)
    assert not plain.acts_within_phases


ACTS = (Fire(), RandomIsometry(), ShrinkAndPerturb(), FullReset(), Fuse(), Dash(), OptimizerReset())


@pytest.mark.parametrize("method", ACTS, ids=lambda method: type(method).__name__)
def test_an_act_spares_muon_s_weights_and_their_state_if_asked_to(method: Method) -> None:
    for apart in (False, True):
        net, x = network(), torch.ones(2, 6)
        model, optimizer = net.modules["model"], torch.optim.Adam(net.parameters())
        model(x).square().sum().backward()
        optimizer.step()
        before = weights(net)
        context = replace(moment(), optimizers=[optimizer], batches=lambda x=x: iter([(x, x)]))
        context.loss = lambda x, _, model=model: model(x).square().mean()
        Chain({"one": method, "muon": MuonOptimizer()}, apart).at_boundary(net, context)
        changed = [
            p for old, p in zip(before, net.parameters(), strict=True)
            if not (torch.equal(old, p) and optimizer.state.get(p))
        ]  # fmt: skip
        (owned,) = hidden_weights(net)
        assert (owned in set(changed)) != apart
        assert model[0].weight in set(changed)
        assert not optimizer.state.get(model[0].weight), "the state of old weights"


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"upgd": UPGD(), "muon": MuonOptimizer()}, "upgd and muon each replace the optimizer"),
        ({"fire": Fire(), "full_reset": FullReset()}, "full_reset undoes the methods before it"),
        ({"fire": Fire(), "pi": PlasticityInjection()}, "pi cannot be combined"),
        ({"fire": Fire(), "base": Base()}, "base cannot be combined"),
        ({"inject": PlasticityInjection(), "act": Fire()}, "inject cannot be combined"),
        ({"clip": WeightClipping(), "t": Trac()}, "t takes .* so it must come before clip"),
        ({"weight_clipping": WeightClipping(), "trac": Trac()}, "trac takes .* so it must come before weight_clipping"),
        ({}, "at least one"),
    ],
)
def test_conflicts(methods: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        Chain(methods)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "methods", [{"redo": ReDo(), "muon": MuonOptimizer()}, {"fire": Fire(), "upgd": UPGD()}, {"fire": Fire()}]
)
def test_apart_needs_an_act_and_weights_that_it_can_spare(methods: dict[str, Method]) -> None:
    with pytest.raises(ValueError, match=r"^apart=True has no effect: it needs a method that acts at boundaries"):
        Chain(methods, apart=True)


def test_hare_s_copy_begins_again_after_another_s_boundary() -> None:
    net = network()
    hare, fire = HareTortoise(momentum=0.999, every=1), Fire(solver="exact")
    chain = Chain({"fire": fire, "hare": hare})
    chain.before_step(net, moment())
    chain.after_step(net, moment())
    chain.at_boundary(net, moment())  # or where a trigger has fired, within a phase
    projected = weights(net)
    chain.before_step(net, moment())
    chain.after_step(net, moment())
    chain.after_epoch(net, moment())
    assert all(torch.allclose(old, p, atol=1e-6) for old, p in zip(projected, net.parameters(), strict=True))
    alone = Chain({"hare": hare, "l2init": L2Init()})
    kept = hare.slow
    alone.at_boundary(net, moment())
    assert hare.slow is kept, "nobody acted at the boundary"


def test_a_method_s_own_pass_is_none_of_training_to_the_others() -> None:
    net = network()
    model, churn, ranks = net.modules["model"], ChurnReduction(warmup=1), L2EffectiveRank(every=2)
    seen = Watch(unit_graph(net.modules), mean_magnitude)
    with churn.watch(net), ranks.watch(net), seen.on():
        for step in range(4):
            x = torch.full((2, 6), float(step))
            model(x)
            churn.penalty(net)
            churn.before_step(net, moment())
            ranks.after_step(net, moment())
            churn.after_step(net, replace(moment(), step_loss=torch.tensor(1.0)))
            assert seen.samples == 2
            assert torch.equal(churn.inputs.kept["model"][-1][0][0], x)
            assert churn.churns.count or churn._coefficient() == churn.coef, "no churn is known"


def test_unknown_and_repeated_names() -> None:
    parts = {"fire": {"_target_": "fire_core.methods.fire.Fire"}}
    with pytest.raises(ConfigError, match=r"^method\.of=fires is unknown; accepted: .*\bfire, .*\bweight_decay$"):
        chained("fires", parts)
    with pytest.raises(ConfigError, match="names fire twice"):
        chained("fire+fire", parts)
    with pytest.raises(ConfigError, match=r"^method\.parts\.fire\.iterations must be in \[1, 1000\]"):
        chained("fire", {"fire": {**parts["fire"], "iterations": 0}})


def test_from_the_command_line(tmp_path: Path) -> None:
    parts = ("method.parts.fire.iterations=5", "method.parts.redo.threshold=0.9", "dataset.train_size=256")
    folder = VISION.run(tmp_path, "method=chain", "method.of=fire+redo+muon", *parts)
    assert "-fire+redo+muon-" in folder.name
    assert "method/dormant_ratio" in rows(folder)[-1]
    assert rows(folder)[-1]["lr"] == 1e-2
