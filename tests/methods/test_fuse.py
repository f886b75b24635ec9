"""Fusion with a base model's weights, against its formula."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fire_core.methods import Context, Fuse, Net, ShrinkAndPerturb
from harness.config.errors import ConfigError
from tests.programs import DQN, SAC, VISION, rows


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.body, self.norm = nn.Embedding(4, 3), nn.Linear(3, 5), nn.BatchNorm1d(5)
        self.head = nn.Linear(3, 4)
        self.head.weight = self.table.weight


def net_of(*names: str, seed: int = 0) -> Net:
    """Networks whose weights are no longer the initial ones."""
    torch.manual_seed(seed)
    net = Net.of({name: Network() for name in names})
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn_like(p))
    return net


def moment(*optimizers: torch.optim.Optimizer) -> Context:
    return Context(1, 0, torch.Generator().manual_seed(0), optimizers=list(optimizers))


def states(net: Net) -> dict[str, dict[str, torch.Tensor]]:
    return {name: {k: v.clone() for k, v in m.state_dict().items()} for name, m in net.modules.items()}


def assert_fused(net: Net, before: dict, base: dict, keep: float) -> None:
    for name, module in net.modules.items():
        parameters = dict(module.named_parameters(remove_duplicate=False))
        for key, value in module.state_dict().items():
            expected = before[name][key]
            if key in parameters:
                expected = keep * expected + (1 - keep) * base[name][key]
            torch.testing.assert_close(value, expected, msg=key)


@pytest.mark.parametrize("keep", [0.0, 0.4, 0.75])
def test_every_parameter_moves_towards_the_initial_one_and_buffers_stay(keep: float) -> None:
    net = net_of("model")
    net.modules["model"].norm.running_mean += 3
    before = states(net)
    optimizer = torch.optim.Adam(net.parameters())
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    Fuse(keep).at_boundary(net, moment(optimizer))
    assert_fused(net, before, net.init, keep)
    assert not optimizer.state
    assert net.modules["model"].head.weight is net.modules["model"].table.weight


def test_with_initial_weights_it_is_the_fire_papers_shrink_and_perturb() -> None:
    one, two = net_of("model"), net_of("model")
    Fuse(0.25).at_boundary(one, moment())
    ShrinkAndPerturb(0.75, variant="fire_paper").at_boundary(two, moment())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize("how", ["bare", "by name", "safetensors", "compiled"])
def test_weights_of_a_file(how: str, tmp_path: Path) -> None:
    net, base = net_of("model"), net_of("model", seed=1)
    state, path = base.modules["model"].state_dict(), tmp_path / "base.pt"
    if how == "safetensors":
        path = tmp_path / "base.safetensors"
        save_file({key: value.clone() for key, value in state.items()}, path)
    else:
        prefix = "_orig_mod." if how == "compiled" else ""
        renamed = {prefix + key: value for key, value in state.items()}
        torch.save({"model": renamed} if how == "by name" else renamed, path)
    before, method = states(net), Fuse(0.3, str(path))
    method.check(Net(net.modules, {}))
    method.at_boundary(net, moment())
    assert_fused(net, before, {"model": state}, 0.3)


def test_several_networks_of_one_file(tmp_path: Path) -> None:
    """As of an agent, and then of its target network."""
    net, base, path = net_of("actor", "critic"), net_of("actor", "critic", seed=1), tmp_path / "base.pt"
    torch.save(states(base), path)
    before = states(net)
    Fuse(0.3, str(path)).at_boundary(net, moment())
    assert_fused(net, before, states(base), 0.3)
    targets = Net({"critic": net_of("critic", seed=2).modules["critic"]}, net.init)
    before = states(targets)
    Fuse(0.3, str(path)).at_boundary(targets, moment())
    assert_fused(targets, before, states(base), 0.3)


def test_a_file_of_another_network_is_refused(tmp_path: Path) -> None:
    net, path = net_of("model"), tmp_path / "base.pt"
    state = net.modules["model"].state_dict()
    for content, words in (
        ({key: value for key, value in state.items() if key != "body.bias"}, "has no body.bias"),
        (state | {"body.bias": torch.zeros(6)}, r"body.bias is \(6,\), the network's \(5,\)"),
        ({"critic": state}, "has no table.weight"),
        ({"text": "nothing"}, "holds no tensors"),
    ):
        torch.save(content, path)
        with pytest.raises(ValueError, match=words):
            Fuse(weights=str(path)).check(net)
    torch.save({"actor": state}, path)
    with pytest.raises(ValueError, match=r"has no critic\.table\.weight"):
        Fuse(weights=str(path)).check(net_of("actor", "critic"))
    with pytest.raises(ValueError, match="no such file"):
        Fuse(weights=str(tmp_path / "none.pt")).check(net)


def test_in_programs(tmp_path: Path) -> None:
    """A missing file is refused before anything runs; a run moves its weights by the share that is not kept."""
    for program in (VISION, DQN, SAC):
        with pytest.raises(ConfigError, match=r"none\.pt: no such file"):
            program.run(tmp_path, "method=fuse", "method.weights=none.pt")
    folder = VISION.run(tmp_path, "method=fuse", "epochs=1")
    assert next(row for row in rows(folder) if "kind" in row)["boundary/sfe"] > 0
