"""The agents' networks: norms and activations."""

from typing import Any

import pytest
import torch

from rl.dqn.networks import MLP, MinAtarCNN, NatureCNN, QNetwork

SIZES: dict[type[QNetwork], Any] = {  # observations, options, layers of units
    NatureCNN: ((4, 84, 84), {"width": 0.25}, 4),
    MLP: ((1, 4), {"hidden": 8}, 2),
    MinAtarCNN: ((1, 5, 10, 10), {"filters": 4, "hidden": 8}, 2),
}


@torch.no_grad()
@pytest.mark.parametrize("activation", ["relu", "crelu", "fourier"])
@pytest.mark.parametrize("kind", SIZES)
def test_the_columns_of_every_unit_are_known(kind: type[QNetwork], activation: str) -> None:
    """With a unit's columns zero, its incoming weights do not matter; with the others' columns zero, they do."""
    torch.manual_seed(0)
    shape, size, count = SIZES[kind]
    x = (torch.rand(2, *shape) < 0.3).float()
    for i in range(count):
        network = kind(3, shape, activation=activation, **size)  # type: ignore[call-arg]
        units = network.unit_graph()[i]
        (consumer,), (producer,) = units.consumers, units.producers
        columns = torch.tensor([1]) if consumer.columns is None else consumer.columns[1]
        consumer.layer.weight[:, columns] = 0
        silent = network(x)
        producer.layer.weight[1] += 1
        torch.testing.assert_close(network(x), silent)
        consumer.layer.weight[:, columns] = 1
        assert not torch.allclose(network(x), silent)


def test_layer_norm_stands_before_every_activation() -> None:
    network = NatureCNN(3, width=0.25, norm=True)
    hidden = network.encoder[:2](torch.rand(2, 4, 84, 84) * 255)
    torch.testing.assert_close(hidden.mean((1, 2, 3)), torch.zeros(2), rtol=0, atol=1e-5)
    torch.testing.assert_close(hidden.std((1, 2, 3)), torch.ones(2), rtol=1e-3, atol=0)
    assert [len(units.norms) for units in network.unit_graph()] == [1, 1, 1, 1]
