"""SAC against the authors' code (tests/golden/sac.npz and sac_facts.json): networks, losses, steps, statistics."""

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fire_core.methods import Context, Method, Net
from fire_core.methods.fire import Fire
from fire_core.methods.full_reset import FullReset
from fire_core.methods.snp import ShrinkAndPerturb
from harness.training.measure import Meter
from rl.common.continual import split
from rl.sac.control import Statistics
from rl.sac.learner import NAMES, Learner, adamw
from rl.sac.networks import Actor, Networks, Temperature, log_probability
from rl.sac.task import Task, discount
from rl.sac.train import restart, train_step
from rl.sac.transitions import Batch
from tests.parity import golden
from tests.programs import compose

FACTS = golden.facts("sac_facts")
STRUCTURE = FACTS["structure"]
WORDS = STRUCTURE["words"]
CRITICS = ("critic0", "critic1")
CLOSE = {"rtol": 2e-5, "atol": 2e-6}


def ours(reference: str) -> str:
    """Our name for one of the reference's parameters."""
    name = reference.removeprefix("VmapSimbaCritic_0.")
    name = re.sub(r"ResidualBlock_(\d+)", r"blocks.\1", name)
    if "blocks" in name:
        name = name.replace("Dense_0", "up").replace("Dense_1", "down")
    elif name.startswith("predictor"):
        name = name.replace("Dense_0", "mean").replace("Dense_1", "log_std")
    name = name.replace("encoder.Dense_0", "encoder.input").replace("predictor", "head").replace("LayerNorm_0", "norm")
    return name.replace("kernel", "weight").replace("scale", "weight")


def translated(tree: dict[str, Tensor], critic: int | None = None) -> dict[str, Tensor]:
    """Kernels (in, out) as weights (out, in) under our names: the actor's, or one of the stacked critics'."""
    found = {}
    for name, value in tree.items():
        key = ours(name) if critic is None else ours(name).replace("head.mean", "head")
        own = value if critic is None else value[critic]
        found[key] = own if own.ndim == 1 else own.mT.contiguous()
    return found


def loaded(net: nn.Module, tree: dict[str, Tensor], critic: int | None = None) -> Any:
    """The network with the weights of a golden tree."""
    net.load_state_dict(translated(tree, critic))
    return net


def sizes(actor: dict[str, Tensor], critic: dict[str, Tensor]) -> Networks:
    """Read off the shapes."""

    def blocks(tree: dict[str, Tensor]) -> int:
        return len({m[1] for name in tree if (m := re.search(r"ResidualBlock_(\d+)", name))})

    width = {id(tree): next(v.shape[-1] for k, v in tree.items() if "encoder.Dense_0" in k) for tree in (actor, critic)}
    return Networks("simba", width[id(actor)], blocks(actor), width[id(critic)], blocks(critic))


def trees(part_of: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return golden.tensors("sac", f"{part_of}.actor."), golden.tensors("sac", f"{part_of}.critic.")


def networks() -> tuple[Actor, nn.ModuleList, nn.ModuleList]:
    """Actor, critics and target critics of the golden steps."""
    actor_tree, critic_tree = trees("fwd")
    obs, act = golden.load("sac")["fwd.obs"].shape[1], golden.load("sac")["fwd.act"].shape[1]
    how = sizes(actor_tree, critic_tree)
    target_tree = golden.tensors("sac", "critic_step.target.")
    critics, targets = (
        nn.ModuleList(loaded(how.critic(obs, act), tree, i) for i in range(2)) for tree in (critic_tree, target_tree)
    )
    return loaded(how.actor(obs, act), actor_tree), critics, targets


def tensor(key: str) -> Tensor:
    return torch.from_numpy(golden.load("sac")[key].copy())


def batch() -> Batch:
    return Batch(*(tensor(f"critic_step.batch.{name}") for name in Batch._fields))


def gamma() -> float:
    """Of an episode of 1000 steps with an action repeat of 2 (docs/paper.md), unless the file says another."""
    return float(golden.meta("sac").get("gamma", discount(500)))


def test_structure_counts_and_initial_scales() -> None:
    torch.manual_seed(0)
    obs, act = STRUCTURE["obs_dim"], STRUCTURE["act_dim"]
    actor, critics = Networks().actor(obs, act), [Networks().critic(obs, act) for _ in range(2)]
    assert sum(p.numel() for p in actor.parameters()) == STRUCTURE["n_actor"]
    assert sum(p.numel() for critic in critics for p in critic.parameters()) == STRUCTURE["n_critic_cdq"]
    states = {"actor": actor.state_dict()}
    states["critic_cdq"] = {
        key: torch.stack([critic.state_dict()[key] for critic in critics]) for key in critics[0].state_dict()
    }
    for key, state in states.items():
        assert len(state) == len(STRUCTURE[key])
        for name, shape, std, largest in STRUCTURE[key]:
            own = state[ours(name) if key == "actor" else ours(name).replace("head.mean", "head")]
            if name.endswith("kernel"):
                assert [*own.shape[:-2], own.shape[-1], own.shape[-2]] == shape, name
                tolerance = max(0.01, 3 / own.numel() ** 0.5)  # of a sample's deviation
                assert own.std(correction=0).item() == pytest.approx(std, rel=tolerance), name
                if "ResidualBlock" in name:  # cut off at two deviations: the largest is there
                    assert own.abs().max().item() == pytest.approx(largest, rel=0.01), name
            else:
                assert own.numel() == torch.Size(shape).numel(), name
                assert own.unique().tolist() == [largest], name


def test_forward_and_log_probability() -> None:
    actor, critics, _ = networks()
    mean, log_std = actor(tensor("fwd.obs"))
    torch.testing.assert_close(mean, tensor("fwd.actor_mean"), **CLOSE)
    torch.testing.assert_close(log_std.exp(), tensor("fwd.actor_std"), **CLOSE)
    u = torch.atanh(tensor("fwd.logp_actions").double())
    noise = (u - mean) / log_std.exp()
    torch.testing.assert_close(log_probability(u, noise, log_std).float(), tensor("fwd.logp"), rtol=1e-4, atol=1e-5)
    q = torch.stack([critic(tensor("fwd.obs"), tensor("fwd.act")) for critic in critics])
    torch.testing.assert_close(q, tensor("fwd.q").squeeze(-1), **CLOSE)


def take_step() -> tuple[Any, dict[str, Tensor]]:
    """The trainer's own step on the golden batch, with the golden actions; the learner after it, and its numbers.

    The critics have gradients and stay where they are, so that their targets move towards the golden ones.
    """
    actor, critics, targets = networks()
    drawn = [
        (tensor("critic_step.next_actions"), tensor("critic_step.next_log_probs")),
        (tensor("actor_step.actions"), tensor("actor_step.log_probs")),
    ]

    def sample(observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        action, log_p = drawn.pop(0)
        return action + 0 * sum(p.sum() for p in actor.parameters()), log_p

    actor.sample = sample  # type: ignore[method-assign]
    size, words = golden.load("sac")["fwd.act"].shape[1], WORDS
    temperature = Temperature(STRUCTURE["temperature"])
    assert temperature().item() == pytest.approx(STRUCTURE["temperature"])
    with torch.no_grad():
        temperature.log.copy_(tensor("temp_step.log_temp_before"))
    lr = float(re.search(r"lr (\S+) constant", words["optimizer"])[1])  # type: ignore[index]
    learner: Any = SimpleNamespace(
        actor=actor,
        critics=critics,
        target_critics=targets,
        temperature=temperature,
        optimizers={
            "actor": torch.optim.SGD(actor.parameters(), lr=0.0),
            "critics": torch.optim.SGD(critics.parameters(), lr=0.0),
            "temperature": adamw(temperature.parameters(), lr, 0.0),
        },
        generator=torch.Generator(),
        updates=0,
        counted=0,
        sums=torch.zeros(len(NAMES)),
    )
    per_action = float(words["target_entropy"].split("*")[0])
    config = SimpleNamespace(tau=words["target_tau"], target_entropy=per_action)
    task: Any = SimpleNamespace(config=config, actions=size, gamma=gamma(), device=torch.device("cpu"))
    train_step(task, learner, batch(), acts=False)
    return learner, dict(zip(NAMES, learner.sums, strict=True))


def test_critic_loss_and_gradients() -> None:
    learner, numbers = take_step()
    torch.testing.assert_close(numbers["train/critic_loss"], tensor("critic_step.loss"), **CLOSE)
    for i, critic in enumerate(learner.critics):
        expected = translated(golden.tensors("sac", "critic_step.grad."), i)
        for name, parameter in critic.named_parameters():
            largest = float(expected[name].abs().max())
            torch.testing.assert_close(parameter.grad, expected[name], rtol=2e-5, atol=1e-5 * largest, msg=name)


def test_actor_loss_and_entropy() -> None:
    _, numbers = take_step()
    torch.testing.assert_close(numbers["train/actor_loss"], tensor("actor_step.loss"), **CLOSE)
    torch.testing.assert_close(numbers["train/entropy"], tensor("actor_step.entropy"), **CLOSE)


def test_temperature_step() -> None:
    log, before, after = (
        take_step()[0].temperature.log,
        *(tensor(f"temp_step.log_temp_{x}") for x in ("before", "after")),
    )
    assert (log - before).item() == pytest.approx((after - before).item(), rel=0.02)
    torch.testing.assert_close(log, after, rtol=2e-7, atol=0)
    gradient = tensor("temp_step.loss")  # the loss is the temperature times this difference, hence its own derivative
    torch.testing.assert_close(log.grad, gradient, **CLOSE)


def test_target_step() -> None:
    """Towards the critics of `fwd.*`."""
    learner, _ = take_step()
    tree = golden.tensors("sac", "target_step.after_one.")
    (key,) = tree
    for i, target in enumerate(learner.target_critics):
        expected = tree[key][i].mT
        torch.testing.assert_close(target.get_parameter(ours(key).replace("head.mean", "head")), expected, **CLOSE)


def test_decay_reaches_biases_and_norms() -> None:
    """A zero gradient moves every parameter by lr * decay, the scales of layer norms too."""
    assert FACTS["adamw_decays_layernorm_scale"]
    words = WORDS["optimizer"]
    lr = float(re.search(r"lr (\S+) constant", words)[1])  # type: ignore[index]
    decay = float(re.search(r"weight decay (\S+) on every parameter", words)[1])  # type: ignore[index]
    actor, critics, _ = networks()
    for network in (actor, critics):
        before = {key: value.clone() for key, value in network.state_dict().items()}
        optimizer = adamw(network.parameters(), lr, decay)
        for parameter in network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        for key, value in network.state_dict().items():
            torch.testing.assert_close(value, before[key] * (1 - lr * decay), rtol=1e-6, atol=0)


def test_running_statistics() -> None:
    numbers = sorted(int(key.removeprefix("rms.x")) for key in golden.load("sac") if key.startswith("rms.x"))
    statistics = Statistics(tensor("rms.x0").shape[-1])
    for i in numbers:
        statistics.update(golden.load("sac")[f"rms.x{i}"])
        torch.testing.assert_close(torch.from_numpy(statistics.mean).float(), tensor(f"rms.mean{i}")[0], **CLOSE)
        torch.testing.assert_close(torch.from_numpy(statistics.variance).float(), tensor(f"rms.var{i}")[0], **CLOSE)
        assert statistics.count == pytest.approx(float(golden.load("sac")[f"rms.count{i}"]), rel=1e-12)


def reinit_cases() -> dict[str, Method]:
    """The golden resets as our methods."""
    scale = {"muon": "modular", "ortho_init": "orthogonal"}
    snp = ShrinkAndPerturb(golden.meta("sac")["shrink"], perturb=None, variant="fire_paper")
    methods: dict[str, Method] = {"full_reset": FullReset(), "snp": snp}
    for case in FACTS["reinit"]:
        if case.startswith("fire_"):
            methods[case] = Fire(scale=scale[case.removeprefix("fire_")])
    return methods


@pytest.mark.parametrize("case", sorted(FACTS["reinit"]))
def test_reinitialisation_and_what_restarts(case: str) -> None:
    """Weights, optimizers, temperature and target after the method and boundary=sac_paper."""
    facts, method = FACTS["reinit"][case], reinit_cases()[case]
    name = case.split("_")[0] if case.startswith("fire") else case
    config = compose("sac", f"method={name}", "boundary=sac_paper")
    pre, init = trees("agent.pre"), trees("agent.init")
    how, small = sizes(*pre), FACTS["small_agent"]
    obs, act = small["obs_dim"], small["act_dim"]
    nets = {"actor": loaded(how.actor(obs, act), pre[0])}
    starts = {"actor": translated(init[0])}
    for i, critic in enumerate(CRITICS):
        nets[critic], starts[critic] = loaded(how.critic(obs, act), pre[1], i), translated(init[1], i)
    net = Net(nets, starts, "sac", {critic: how.critic(obs, act) for critic in CRITICS})
    task = Task(
        config=config,
        device=torch.device("cpu"),
        control=None,
        observations=obs,
        actions=act,
        gamma=0.99,
        phases=split(1, 2),
        benchmark=None,
        networks=how,
        modules=nets,
        method=method,
        trigger=None,
        tasks=None,
    )
    statistics = Statistics(obs)
    statistics.update(np.ones((3, obs)))
    temperature = Temperature(facts["temperature_before"])
    learner = Learner(
        net=net,
        critics=nn.ModuleList(nets[critic] for critic in CRITICS),
        target_critics=nn.ModuleList(net.targets.values()),
        method=method,
        method_meter=Meter(task.device),
        temperature=temperature,
        replay=None,
        statistics=statistics,
        workers=None,
        generator=torch.Generator(),
        sums=torch.zeros(len(NAMES)),
    )
    learner.renew_optimizers(task)
    for optimizer in learner.optimizers.values():
        for parameter in optimizer.param_groups[0]["params"]:
            optimizer.state[parameter] = {"step": torch.tensor(4.0), "exp_avg": torch.ones_like(parameter)}

    context = Context(1, 4, torch.Generator(), optimizers=list(learner.optimizers.values()))
    method.at_boundary(net, context)
    restart(task, learner, context)

    stored = dict(zip(("actor", "critic"), trees(f"agent.after_{case}"), strict=True))
    for name, module in nets.items():
        kind, i = ("actor", None) if name == "actor" else ("critic", CRITICS.index(name))
        unchanged = {ours(key) for key in facts[f"unchanged_{kind}"]}
        expected = translated(stored[kind], i) if stored[kind] else starts[name]
        before = translated(dict(zip(("actor", "critic"), pre, strict=True))[kind], i)
        for key, value in module.state_dict().items():
            golden_key = "head.mean" + key.removeprefix("head") if i is not None and key.startswith("head") else key
            largest = float(expected[key].abs().max())
            torch.testing.assert_close(value, expected[key], rtol=2e-5, atol=1e-6 + 1e-6 * largest, msg=key)
            assert torch.equal(value, before[key]) == (golden_key in unchanged), key
        initial = all(torch.equal(value, starts[name][key]) for key, value in module.state_dict().items())
        assert initial == facts[f"{kind}_equals_initial"]
    for critic, target in learner.net.targets.items():
        same = all(torch.equal(value, target.state_dict()[key]) for key, value in nets[critic].state_dict().items())
        assert same == facts["target_equals_critic"]
    assert learner.temperature().item() == pytest.approx(facts["temperature_after"], rel=1e-6)
    assert learner.statistics.count > 1  # kept
    for name, key in (("actor", "actor"), ("critics", "critic"), ("temperature", "temp")):
        assert len(learner.optimizers[name].state) == facts["optimizer_count_after"][key] == 0
