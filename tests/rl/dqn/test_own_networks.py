"""A user's own network and optimizer in `rl.dqn`, on the stream that the program runs without options."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.programs import ALIKE, compose, start_here

STREAM = ("benchmark.tasks=2", "benchmark.steps=200", "learning_starts=40", "eval.episodes=1", "metrics=cheap")
HALVES = ("total_steps=120", "midpoint=60", "learning_starts=20", "eval.steps=20", "eval.every=60", "log_every=60")
# What leaves base as it is, but acts within phases, so that the trainer calls its hooks.
IDLE = ("method=l2init", "method.coef=0")


class Own(nn.Module):
    """A network without any of the sizes that the project's networks have.

    Args:
        actions: number of actions.
        observation: shape of an observation with its stacked frames.
        middle: what stands between the layers.
    """

    def __init__(self, actions: int, observation: tuple[int, ...], middle: str = "nothing") -> None:
        super().__init__()
        layers = {"nothing": nn.Identity, "dropout": nn.Dropout, "batch norm": lambda: nn.BatchNorm1d(32)}
        size = torch.Size(observation).numel()
        middle_layers = nn.Linear(size, 32), layers[middle](), nn.ReLU()
        self.body = nn.Sequential(nn.Flatten(), *middle_layers, nn.Linear(32, actions))

    def forward(self, x: Tensor) -> Any:
        return self.body(x)


class WithUnusedHead(Own):
    """Its auxiliary head takes no part in the values."""

    def __init__(self, actions: int, observation: tuple[int, ...]) -> None:
        super().__init__(actions, observation)
        self.auxiliary = nn.Linear(32, 1)


class OfVolumes(nn.Module):
    """Frames that are stacked along an axis of a volume."""

    def __init__(self, actions: int, observation: tuple[int, ...]) -> None:
        super().__init__()
        _, *frame = observation
        self.filters, self.head = nn.Conv3d(1, 2, 1), nn.Linear(2 * torch.Size(frame).numel(), actions)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.filters(x.float()).flatten(1))


def train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[nn.Module], *words: str, **options: Any
) -> list[Any]:
    """Train with this network by the words of a command line, and return the rows."""
    (tmp_path / "conf" / "model").mkdir(parents=True, exist_ok=True)
    values = {"_target_": f"{__name__}.{kind.__name__}", "name": "own", **options}
    (tmp_path / "conf" / "model" / "own.yaml").write_text(json.dumps(values))
    runs = tmp_path / f"runs{len(list(tmp_path.iterdir()))}"
    given = (f"paths.runs={runs}", "model=own", f"--config-dir={tmp_path / 'conf'}", *words)
    assert start_here("dqn", [*ALIKE, "cache=false", *given], monkeypatch) == 0
    (folder,) = (runs / "dqn").iterdir()
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("middle", ["nothing", "dropout", "batch norm"])
def test_all_methods_act_with_the_network_as_it_is_evaluated(
    middle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else base alone would explore with dropout; and batch norm cannot take a single observation in training."""
    returns = []
    for words in (("method=base",), IDLE):
        torch.manual_seed(0)
        rows = train(tmp_path, monkeypatch, Own, *STREAM, "num_envs=1", *words, middle=middle)
        returns.append([row["train/return"] for row in rows if "train/return" in row])
    assert returns[0] == returns[1]
    assert returns[0]


def test_a_parameter_that_the_values_do_not_use_has_no_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = train(tmp_path, monkeypatch, WithUnusedHead, *STREAM)
    assert any(row.get("plasticity/gradient_norm", 0) > 0 for row in rows)


def test_a_convolution_of_volumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch has another memory format for its weights than for those of images."""
    assert train(tmp_path, monkeypatch, OfVolumes, "env=minatar_breakout", *HALVES)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adam"])
def test_each_optimizer_of_the_group_trains(optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path, monkeypatch, Own, *STREAM, f"optimizer={optimizer}")


@pytest.mark.parametrize(
    ("program", "chosen", "option", "value"),
    [
        ("dqn", (), "model.hidden", 64),
        ("dqn", ("model=q_mlp",), "model.hidden", 128),
        ("sac", (), "networks.actor_width", 64),
        ("sac", ("networks=simba",), "networks.critic_width", 128),
    ],
)
def test_the_stream_leaves_the_sizes_of_chosen_networks_alone(
    program: str, chosen: tuple[str, ...], option: str, value: int
) -> None:
    config = compose(program, "scale=small", *chosen)
    group, name = option.split(".")
    assert config[group][name] == value
