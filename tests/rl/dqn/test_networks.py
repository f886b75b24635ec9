"""The agents' networks: norms and activations."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.config.errors import ConfigError
from rl.dqn.networks import MLP, MinAtarCNN, NatureCNN, QNetwork
from rl.dqn.task import Task
from tests.programs import DQN

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


class Returning(nn.Module):
    """A network of a user's own, which returns what `returns` names."""

    def __init__(self, actions: int, observation: tuple[int, ...], returns: str, **sizes: Any) -> None:
        super().__init__()
        self.head, self.returns = nn.Linear(observation[-1], actions), returns

    def forward(self, x: Tensor) -> Any:
        if self.returns == "error":
            raise ValueError("no such observation")
        values = self.head(x.flatten(1))
        others = {"tuple": (values, values), "more": values.repeat(1, 2), "one": values[:, 0], "best": values.argmax(1)}
        return others.get(self.returns, values)


@pytest.mark.parametrize(
    ("returns", "says"),
    [
        ("error", r"cannot take observations \(1, 1, 4\): no such observation$"),
        ("tuple", r"must return a tensor, and returns a tuple$"),
        ("more", r"must return floats of shape \(1, 2\), a value for each action, and returns float32 of .*\(1, 4\)$"),
        ("one", r"must return floats of .* float32 of shape \(1,\)$"),
        ("best", r"must return floats of .* int64 of shape \(1,\)$"),
        ("values", None),
    ],
)
def test_a_network_without_a_value_for_each_action_is_refused_before_a_run(returns: str, says: str | None) -> None:
    config = DQN.compose(f"model._target_={__name__}.Returning", f"+model.returns={returns}")
    if says is None:
        Task.from_config(config)
        return
    with pytest.raises(ConfigError, match=rf"^model=\w+ {says}"):
        Task.from_config(config)


def test_a_network_of_ones_own_needs_neither_a_layout_nor_a_file_of_ours(tmp_path: Path) -> None:
    config = DQN.compose("method=fire", "total_steps=80", "midpoint=60")
    config.model = {"_target_": f"{__name__}.Returning", "name": "mine", "returns": "values"}
    folder = DQN.run_composed(tmp_path, config)
    assert (folder / "DONE").exists()


def test_what_a_network_is_given_is_told_if_it_does_not_take_it() -> None:
    config = DQN.compose()
    config.model = {"_target_": f"{__name__}.Narrow", "name": "mine"}
    with pytest.raises(ConfigError, match=r"model=mine: .*'actions' \(besides its options it is given actions, observ"):
        Task.from_config(config)


class Narrow(nn.Module):
    """It takes no sizes."""

    def __init__(self) -> None:
        super().__init__()
