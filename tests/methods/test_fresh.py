"""What methods draw anew follows the networks' own initialisers; the FIRE authors' code takes the run's own weights."""

import pytest
import torch
from torch import nn

from fire_core.integrations.intervention import check_method
from fire_core.methods import Chain, Context, Fire, FullReset, Net
from fire_core.methods.pi import PlasticityInjection
from fire_core.methods.snp import ShrinkAndPerturb
from fire_core.units.graph import between
from fire_core.units.recycle import initial_draw, recycle_
from rl.dqn.networks import NatureCNN


def moment(seed: int = 0) -> Context:
    return Context(1, 0, torch.Generator().manual_seed(seed))


class TwoLayers(nn.Module):
    injectable = ("head",)

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(300, 40), nn.LayerNorm(40), nn.Linear(40, 60)
        nn.init.uniform_(self.body.weight, 2, 3)


def test_snp_s_layout_takes_a_part_of_a_fused_weight_back() -> None:
    torch.manual_seed(0)
    net = Net.of({"m": nn.MultiheadAttention(8, 2)})
    weight = net.modules["m"].in_proj_weight
    began = weight.detach().clone()
    with torch.no_grad():
        weight.mul_(3)
    ShrinkAndPerturb(coef=0.5, layout={"qk": "reinit"}, variant="fire_paper").at_boundary(net, moment())
    assert torch.equal(weight[:16], began[:16])
    assert not torch.equal(weight[16:], began[16:])


def test_recycled_rows_have_the_initial_distribution_and_no_bias() -> None:
    """Nature DQN's first hidden layer is Xavier: its bound is 0.042, that of torch's default 0.018."""
    torch.manual_seed(0)
    network = NatureCNN(4)
    net = Net.of({"q": network})
    layers = [m for m in network.modules() if isinstance(m, nn.Linear)]
    first, second = layers[0], layers[-1]
    with torch.no_grad():
        for p in network.parameters():
            p.zero_()
            p += 7
    units = between("fc1", first, second)
    recycle_([(units, torch.arange(20))], initial_draw(net.modules, net.init), torch.Generator().manual_seed(0))
    drawn = first.weight[:20]
    bound = (6 / (sum(first.weight.shape))) ** 0.5
    assert bound == pytest.approx(0.0387, abs=0.003)
    assert bound * 0.99 < drawn.abs().max() <= bound
    assert drawn.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
    assert drawn.mean().abs() < 1e-3
    assert (first.bias[:20] == 0).all()
    assert (first.bias[20:] == 7).all()


def test_perturbations_are_drawn_anew_each_time_unless_the_fire_paper_s_are_asked_for() -> None:
    torch.manual_seed(0)
    results = []
    for variant in ("original", "original", "fire_paper"):
        model = TwoLayers()
        net = Net.of({"model": model})
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        ShrinkAndPerturb(0.5, perturb=None, variant=variant).at_boundary(net, moment(len(results)))
        assert torch.equal(model.body.weight, net.init["model"]["body.weight"] / 2) == (variant == "fire_paper")
        assert 1 <= model.body.weight.min() <= model.body.weight.max() <= 1.5  # half of a draw from [2, 3]
        assert torch.equal(model.norm.weight, torch.full((40,), 0.5))  # a constant stays one
        assert torch.equal(model.norm.bias, torch.zeros(40))
        results.append(model.body.weight.detach().clone())
    assert not torch.equal(results[0], results[1])


def test_snp_s_defaults_are_its_authors_values() -> None:
    """JordanAsh/warm_start, `run.py`: `--shrink` 0.4 and `--perturb` 0.1 of a new network."""
    torch.manual_seed(0)
    model = TwoLayers()
    net = Net.of({"model": model})
    with torch.no_grad():
        model.body.weight.fill_(100)
        model.norm.weight.fill_(10)
    ShrinkAndPerturb().at_boundary(net, moment())
    torch.testing.assert_close(model.norm.weight, torch.full((40,), 0.4 * 10 + 0.1 * 1))
    noise = model.body.weight - 40  # a tenth of draws from [2, 3]
    assert 0.2 - 1e-4 <= noise.min() < 0.22 < 0.28 < noise.max() <= 0.3 + 1e-4


def test_a_target_network_gets_the_same_draws() -> None:
    model, target = TwoLayers(), TwoLayers()
    target.load_state_dict(model.state_dict())
    net, context = Net.of({"model": model}), moment()
    ShrinkAndPerturb(0.5, perturb=0.5).at_boundary(net, context)
    ShrinkAndPerturb(0.5, perturb=0.5).at_boundary(Net({"model": target}, net.init), context)
    assert torch.equal(model.body.weight, target.body.weight)


@pytest.mark.parametrize("variant", ["original", "fire_paper"])
def test_an_injected_head_is_a_fresh_one(variant: str) -> None:
    torch.manual_seed(0)
    model, target = TwoLayers(), TwoLayers()
    net = Net.of({"model": model})
    net.targets["model"] = target
    x = torch.randn(5, 40)
    expected = model.head(x)
    PlasticityInjection(variant).at_boundary(net, moment())
    torch.testing.assert_close(model.head(x), expected)
    init = net.init["model"]["head.weight"]
    assert torch.equal(model.head.new.weight, init) == (variant == "fire_paper")
    assert model.head.new.weight.std().item() == pytest.approx(init.std().item(), rel=0.05)
    assert torch.equal(model.head.new.weight, target.head.new.weight)


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)


def test_a_full_reset_to_a_new_network_takes_all_its_weights_and_buffers() -> None:
    """Against a network built by hand; what is spared stays, and the optimizer forgets all but that."""
    torch.manual_seed(0)
    model = Normalised()
    net, optimizer = Net.of({"model": model}), torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    model.norm.running_mean += 3
    new, head = Normalised(), model.head.weight.detach().clone()
    context = moment()
    context.optimizers, context.spared = [optimizer], frozenset([model.head.weight])
    context.new_networks = lambda: {"model": new.state_dict()}
    FullReset(weights="new").at_boundary(net, context)
    for name, value in model.state_dict().items():
        assert torch.equal(value, head if name == "head.weight" else new.state_dict()[name]), name
    assert set(optimizer.state) == {model.head.weight}
    FullReset().at_boundary(net, context)
    assert torch.equal(model.body.weight, net.init["model"]["body.weight"])


def test_a_new_network_is_refused_where_none_can_be_built() -> None:
    with pytest.raises(ValueError, match="weights=new needs newly built networks, which this trainer does not give"):
        FullReset(weights="new").at_boundary(Net.of({"model": Normalised()}), moment())
    chain = Chain({"fresh": FullReset(weights="new"), "fire": Fire()})
    for method in (FullReset(weights="new"), chain):
        with pytest.raises(ValueError, match="needs newly built networks, and a loop of others builds none"):
            check_method(method, has_data=False)
    with pytest.raises(ValueError, match="fresh undoes the methods before it"):
        Chain({"fire": Fire(), "fresh": FullReset(weights="new")})
