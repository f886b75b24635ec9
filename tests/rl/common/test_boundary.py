"""What happens to optimizers and targets at a boundary under a chain."""

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from fire_core.methods import Context, Net
from fire_core.methods.chain import Chain
from fire_core.methods.fire import Fire
from fire_core.methods.muon import MuonOptimizer
from fire_core.methods.redo import ReDo
from rl.common.boundary import update_targets
from tests.programs import compose


def boundary(program: str, *options: str) -> dict[str, str]:
    return {
        str(key): value
        for key, value in OmegaConf.to_container(compose(program, *options).boundary, resolve=True).items()
    }


@pytest.mark.parametrize("program", ["dqn", "sac"])
@pytest.mark.parametrize("first", ["fire", "fire_exact", "snp", "full_reset"])
def test_a_chain_restarts_what_its_first_part_alone_restarts(program: str, first: str) -> None:
    alone = boundary(program, f"method={first}")
    for parts in (f"{first},redo", f"l2init,{first}"):
        assert boundary(program, "method=chain", f"method.of=[{parts}]") == alone, parts


def test_chains_of_others() -> None:
    assert boundary("dqn", "method=chain") == boundary("dqn", "method=fire") | {"optimizer": "new"}  # Muon's
    assert boundary("dqn", "method=chain", "method.of=[fire,snp]")["target"] == "follow"
    assert boundary("dqn", "method=chain", "method.of=[snp,fire]")["target"] == "act"
    for program in ("dqn", "sac"):
        never = boundary(program, "method=chain", "method.of=[redo,l2init]")
        assert never == boundary(program, "method=base")
    chosen = boundary("dqn", "method=chain", "method.of=[fire,redo]", "boundary.target=keep", "boundary.optimizer=new")
    assert chosen == {"optimizer": "new", "target": "keep"}
    assert boundary("sac", "method=chain", "method.of=[fire,l2init]", "boundary.temperature=keep")["target"] == "copy"


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize("apart", [False, True])
def test_follow_takes_what_a_part_projects_by_its_own_layout(apart: bool) -> None:
    layout = {"linear": "project", "4": "keep"}
    fire = Fire(layout=layout)
    method = Chain({"fire": fire, "other": MuonOptimizer() if apart else ReDo()}, apart=apart)
    trained, target = network(0), network(1)
    before = {key: value.clone() for key, value in target.state_dict().items()}
    net = Net.of({"q": trained})
    net.targets["q"] = target
    context = Context(1, 0, torch.Generator().manual_seed(0))
    method.at_boundary(net, context)
    update_targets(method, net, context, "follow")
    taken = {key for key, p in target.named_parameters() if torch.equal(p, trained.get_parameter(key))}
    kept = {key for key, p in target.named_parameters() if torch.equal(p, before[key])}
    own = {id(p): key for key, p in trained.named_parameters()}
    alone = {own[id(p)] for p in method.left_alone(net)}
    assert bool(alone) == apart
    assert taken == {"0.weight", "2.weight"} - alone
    assert kept == set(before) - taken
