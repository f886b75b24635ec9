"""What restarts at a boundary: the table, and targets that follow a chain."""

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from fire_core.methods import Context, Net
from fire_core.methods.fire import Fire
from harness.config.build import find_target
from harness.config.groups import CONF
from rl.common.boundary import update_targets
from rl.common.task import build_benchmark, build_method
from tests.programs import compose


def boundary(program: str, *options: str) -> dict[str, str]:
    """What the options leave open is settled as a task would do it."""
    config = compose(program, *options)
    build_method(config, build_benchmark(config))
    return {str(key): value for key, value in OmegaConf.to_container(config.boundary, resolve=True).items()}


POLICY = {"optimizer": "new", "target": "copy", "replay": "keep"}
OF_SAC = {"temperature": "new", "statistics": "keep"}


def test_injection_alone_departs_from_the_policy() -> None:
    """Since it leaves the outputs as they are."""
    for path in (CONF / "method").glob("*.yaml"):
        restarts = find_target("method", OmegaConf.load(path)).restarts if path.stem != "chain" else {}
        assert bool(restarts) == (path.stem == "pi"), path.stem


@pytest.mark.parametrize("method", ["base", "pi"])
def test_one_policy_for_every_method_and_for_base(method: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    injects = method == "pi"
    target = {"target": "keep"} if injects else {}
    temperature = {"temperature": "keep"} if injects else {}
    assert boundary("dqn", "env=breakout", f"method={method}") == POLICY | target
    assert ("boundary.target=keep, as method=pi needs; otherwise copy" in caplog.text) == injects
    assert boundary("sac", "env=humanoid", f"method={method}") == POLICY | OF_SAC | target | temperature
    between = {"replay": "new"}
    assert boundary("dqn", "experiment=continual_cartpole", f"method={method}") == POLICY | target | between
    stream = boundary("sac", "experiment=continual_double_pendulum", f"method={method}")
    assert stream == POLICY | OF_SAC | {"statistics": "new"} | target | temperature | between
    hidden = boundary("dqn", "experiment=continual_cartpole", "benchmark.boundaries=hidden", f"method={method}")
    assert hidden == POLICY | target


def test_an_option_wins_over_the_table() -> None:
    options = ("env=breakout", "method=chain", "method.of=fire+redo")
    chosen = boundary("dqn", *options, "boundary.target=keep", "boundary.optimizer=forget")
    assert chosen == POLICY | {"target": "keep", "optimizer": "forget"}


def test_the_paper_s_presets_do_what_the_authors_code_does() -> None:
    """tests/parity holds the numbers of the first four; the authors' code has no injection for SAC."""
    expected = {
        "base": ("keep", "act", ("keep", "keep", "keep")),
        "full_reset": ("keep", "act", ("new", "new", "copy")),
        "snp": ("keep", "act", ("new", "new", "copy")),
        "fire": ("keep", "follow", ("new", "new", "copy")),
        "pi": ("new", "keep", ("new", "keep", "keep")),
    }
    for method, (optimizer, target, of_sac) in expected.items():
        dqn = boundary("dqn", "experiment=fig4a_asterix", f"method={method}")
        assert dqn == {"optimizer": optimizer, "target": target, "replay": "keep"}, method
        sac = boundary("sac", "experiment=fig4b_h1_walk", f"method={method}")
        assert sac == dict(zip(("optimizer", "temperature", "target"), of_sac, strict=True)) | {
            "statistics": "keep",
            "replay": "keep",
        }
    assert set(boundary("sac", "experiment=dmc100k").values()) == {"keep"}


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))


def test_follow_takes_what_the_method_projects_by_its_own_layout() -> None:
    method = Fire(layout={"linear": "project", "4": "keep"})
    trained, target = network(0), network(1)
    before = {key: value.clone() for key, value in target.state_dict().items()}
    net = Net.of({"q": trained})
    net.targets["q"] = target
    context = Context(1, 0, torch.Generator().manual_seed(0))
    method.at_boundary(net, context)
    update_targets(method, net, context, "follow")
    taken = {key for key, p in target.named_parameters() if torch.equal(p, trained.get_parameter(key))}
    kept = {key for key, p in target.named_parameters() if torch.equal(p, before[key])}
    assert taken == {"0.weight", "2.weight"}
    assert kept == set(before) - taken
