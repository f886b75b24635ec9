"""ReDo on networks with skips, flattened maps and attention: it finds the dead, and the function stays."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fire_core.methods import Context, Net
from fire_core.methods.redo import ReDo
from fire_core.units.graph import Units
from fire_core.units.trace import unit_graph
from tests.units.test_graph import MODELS


def context(model: nn.Module, optimizers: tuple[torch.optim.Optimizer, ...] = ()) -> Context:
    generator = torch.Generator().manual_seed(0)
    batches = [(torch.randn(6, 3, 8, 8, generator=generator), torch.arange(6) % 4) for _ in range(3)]
    loss = lambda x, y: F.cross_entropy(model(x), y)  # noqa: E731
    return Context(0, 0, generator, lambda: iter(batches), loss, list(optimizers))


def kill(units: Units, unit: int) -> bool:
    """Make a unit silent for every input; False where it has no bias or norm to do it by."""
    with torch.no_grad():
        if units.norms:
            for norm in units.norms:
                norm.weight[unit] = 0
                norm.bias[unit] = -1 if norm is units.norms[0] else 0
            return True
        for producer in units.producers:
            if producer.layer.bias is None:
                return False
            producer.layer.weight[unit] = 0
            producer.layer.bias[unit] = -100
    return True


@pytest.mark.parametrize("name", ["mlp", "small_resnet", "resnet18", "vgg", "vit"])
def test_the_dead_are_found_and_made_new_and_the_function_stays(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    killed = [units for units in unit_graph({"model": model}) if kill(units, 1)]
    assert len(killed) >= 2
    adam = torch.optim.Adam(model.parameters(), lr=0)
    moment = context(model, (adam,))
    inputs, targets = next(moment.batches())
    moment.loss(inputs, targets).backward()
    adam.step()
    model.eval()
    expected = model(inputs)
    model.train()
    method = ReDo(threshold=0.0)
    numbers = method.after_epoch(Net.of({"model": model}), moment)
    total = sum(units.count for units in unit_graph({"model": model}))
    assert numbers["dormant_ratio"] >= len(killed) / total - 1e-6  # some units may be silent by themselves
    model.eval()
    torch.testing.assert_close(model(inputs), expected, rtol=1e-5, atol=1e-5)
    model.train()
    assert all(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())
    for units in killed:
        for producer in units.producers:
            assert producer.layer.weight[1].abs().max() > 0
            assert (adam.state[producer.layer.weight]["exp_avg_sq"][1] == 0).all()
    for units in killed:
        for consumer in units.consumers:
            columns = [1] if consumer.columns is None else consumer.columns[1]
            assert (consumer.layer.weight[:, columns] == 0).all()


def test_as_the_authors_have_it_networks_whose_layers_share_names_have_a_chain_each() -> None:
    """An agent's actor and critic: the units of one are not recycled by the activations of the other."""
    widths = {"actor": 4, "critic": 8}
    nets = {name: nn.Sequential(*(nn.Linear(4, n) for n in (first, 4, 4))) for name, first in widths.items()}
    for net in nets.values():
        for layer in net:
            nn.init.constant_(layer.bias, 1.0)
            nn.init.zeros_(layer.weight)
    nets["actor"][0].bias.data[2] = 0.0  # dead, as is a unit that only the critic has
    nets["critic"][0].bias.data[7] = 0.0

    def loss(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return sum((layer(x).sum() for net in nets.values() for layer in net), torch.zeros(()))

    moment = Context(0, 0, torch.Generator().manual_seed(0), lambda: iter([(torch.randn(6, 4), torch.zeros(6))]), loss)
    ReDo(threshold=0.0, variant="fire_paper").after_epoch(Net.of(nets), moment)
    changed = {
        name: [layer.weight.abs().amax(1).nonzero().flatten().tolist() for layer in net] for name, net in nets.items()
    }
    assert changed == {"actor": [[2], [], []], "critic": [[7], [], []]}


@pytest.mark.parametrize("variant", ["original", "fire_paper"])
@pytest.mark.parametrize("batches", [[], [(torch.zeros(0, 3, 8, 8), torch.zeros(0, dtype=torch.int64))]])
def test_without_a_sample_nothing_is_recycled(variant: str, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    model = MODELS["mlp"]()
    before = [p.detach().clone() for p in model.parameters()]
    moment = Context(0, 0, torch.Generator(), lambda: iter(batches), lambda x, y: F.cross_entropy(model(x), y))
    with pytest.raises(ValueError, match="there is no sample: the model is unchanged"):
        ReDo(variant=variant).after_epoch(Net.of({"m": model}), moment)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
