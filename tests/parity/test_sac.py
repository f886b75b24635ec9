"""SAC against the authors' code (tests/golden/sac.npz and sac_facts.json): networks, losses, steps, statistics."""

import re

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
from rl.sac.learner import Learner
from rl.sac.networks import Actor, Critics, Networks, part
from rl.sac.task import Task
from rl.sac.train import restart
from rl.sac.update import (
    NAMES,
    Batch,
    Temperature,
    Update,
    actor_loss,
    adamw,
    critic_loss,
    critic_target,
    discount,
    log_probability,
    move_target_,
    temperature_loss,
)
from tests.parity import golden
from tests.programs import compose

FACTS = golden.facts("sac_facts")
STRUCTURE = FACTS["structure"]
WORDS = STRUCTURE["words"]
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


def loaded(net: nn.Module, tree: dict[str, Tensor]) -> nn.Module:
    """The network with the weights of a golden tree."""
    net.load_state_dict(translated(tree, isinstance(net, Critics)))
    return net


def translated(tree: dict[str, Tensor], critics: bool) -> dict[str, Tensor]:
    """Kernels (in, out) as weights (out, in), under our names."""
    out = {}
    for name, value in tree.items():
        key = ours(name).replace("head.mean", "head") if critics else ours(name)
        vector = value.ndim == 1 or (critics and value.ndim == 2)
        out[key] = value.flatten() if vector else value.mT.contiguous()
    return out


def sizes(actor: dict[str, Tensor], critic: dict[str, Tensor]) -> Networks:
    """Read off the shapes."""

    def blocks(tree: dict[str, Tensor]) -> int:
        return len({m[1] for name in tree if (m := re.search(r"ResidualBlock_(\d+)", name))})

    width = {id(tree): next(v.shape[-1] for k, v in tree.items() if "encoder.Dense_0" in k) for tree in (actor, critic)}
    return Networks("simba", width[id(actor)], blocks(actor), width[id(critic)], blocks(critic))


def trees(part_of: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return golden.tensors("sac", f"{part_of}.actor."), golden.tensors("sac", f"{part_of}.critic.")


def networks() -> tuple[Actor, Critics, Critics]:
    """Actor, critics and target critics of the golden steps."""
    actor_tree, critic_tree = trees("fwd")
    obs, act = golden.load("sac")["fwd.obs"].shape[1], golden.load("sac")["fwd.act"].shape[1]
    how = sizes(actor_tree, critic_tree)
    n = next(v.shape[0] for k, v in critic_tree.items() if k.endswith("kernel"))
    target = loaded(how.critics(obs, act, n), golden.tensors("sac", "critic_step.target."))
    return loaded(how.actor(obs, act), actor_tree), loaded(how.critics(obs, act, n), critic_tree), target


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
    both = {"actor": Networks().actor(obs, act), "critic_cdq": Networks().critics(obs, act, 2)}
    assert sum(p.numel() for p in both["actor"].parameters()) == STRUCTURE["n_actor"]
    assert sum(p.numel() for p in both["critic_cdq"].parameters()) == STRUCTURE["n_critic_cdq"]
    for key, net in both.items():
        critics = key != "actor"
        state = net.state_dict()
        assert len(state) == len(STRUCTURE[key])
        for name, shape, std, largest in STRUCTURE[key]:
            own = state[ours(name).replace("head.mean", "head") if critics else ours(name)]
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
    q = critics(tensor("fwd.obs"), tensor("fwd.act"))
    torch.testing.assert_close(q, tensor("fwd.q").squeeze(-1), **CLOSE)


def test_critic_loss_and_gradients() -> None:
    _, critics, target = networks()
    b = batch()
    q = target(b.next_observation, tensor("critic_step.next_actions"))
    log_p, temperature = tensor("critic_step.next_log_probs"), tensor("critic_step.temperature")
    y = critic_target(q, log_p, temperature, b.reward, b.terminated, gamma())
    loss = critic_loss(critics(b.observation, b.action), y.detach())
    torch.testing.assert_close(loss, tensor("critic_step.loss"), **CLOSE)
    loss.backward()
    expected = translated(golden.tensors("sac", "critic_step.grad."), critics=True)
    for name, parameter in critics.named_parameters():
        assert parameter.grad is not None
        largest = float(expected[name].abs().max())
        torch.testing.assert_close(parameter.grad, expected[name], rtol=2e-5, atol=1e-5 * largest, msg=name)


def test_actor_loss_and_entropy() -> None:
    _, critics, _ = networks()
    log_p = tensor("actor_step.log_probs")
    q = critics(batch().observation, tensor("actor_step.actions"))
    loss = actor_loss(q, log_p, tensor("critic_step.temperature"))
    torch.testing.assert_close(loss, tensor("actor_step.loss"), **CLOSE)
    torch.testing.assert_close(-log_p.mean(), tensor("actor_step.entropy"), **CLOSE)


def agent(actor: Actor, critics: Critics, target: Critics) -> Update:
    temperature = Temperature(STRUCTURE["temperature"])
    lr = float(re.search(r"lr (\S+) constant", WORDS["optimizer"])[1])
    decay = float(re.search(r"weight decay (\S+) on every parameter", WORDS["optimizer"])[1])
    optimizers = {
        "actor": adamw(actor.parameters(), lr, decay),
        "critic": adamw(critics.parameters(), lr, decay),
        "temperature": adamw(temperature.parameters(), lr, 0.0),
    }
    per_action = float(WORDS["target_entropy"].split("*")[0])
    size = golden.load("sac")["fwd.act"].shape[1]
    return Update(actor, critics, target, temperature, optimizers, gamma(), WORDS["target_tau"], per_action * size)


def test_temperature_loss_and_step() -> None:
    update = agent(*networks())
    entropy = tensor("actor_step.entropy")
    assert update.temperature().item() == pytest.approx(STRUCTURE["temperature"])
    with torch.no_grad():
        update.temperature.log.copy_(tensor("temp_step.log_temp_before"))
    loss = temperature_loss(update.temperature.log, entropy, update.target_entropy)
    torch.testing.assert_close(loss, tensor("temp_step.loss"), **CLOSE)
    update.temperature_step(entropy)
    moved = tensor("temp_step.log_temp_after") - tensor("temp_step.log_temp_before")
    assert (update.temperature.log - tensor("temp_step.log_temp_before")).item() == pytest.approx(
        moved.item(), rel=0.02
    )
    torch.testing.assert_close(update.temperature.log, tensor("temp_step.log_temp_after"), rtol=2e-7, atol=0)


def test_target_step() -> None:
    """Towards the critics of `fwd.*`."""
    update = agent(*networks())
    move_target_(update.target, update.critic, update.tau)
    (key,) = golden.tensors("sac", "target_step.after_one.")
    name = ours(key).replace("head.mean", "head")
    expected = tensor(f"target_step.after_one.{key}").mT
    torch.testing.assert_close(update.target.state_dict()[name], expected, **CLOSE)


def test_decay_reaches_biases_and_norms() -> None:
    """A zero gradient moves every parameter by lr * decay, the scales of layer norms too."""
    assert FACTS["adamw_decays_layernorm_scale"]
    update = agent(*networks())
    for name in ("actor", "critic"):
        before = {k: v.clone() for k, v in getattr(update, name).state_dict().items()}
        for parameter in getattr(update, name).parameters():
            parameter.grad = torch.zeros_like(parameter)
        update.optimizers[name].step()
        group = update.optimizers[name].param_groups[0]
        for key, value in getattr(update, name).state_dict().items():
            torch.testing.assert_close(
                value, before[key] * (1 - group["lr"] * group["weight_decay"]), rtol=1e-6, atol=0
            )


def test_running_statistics() -> None:
    numbers = sorted(int(key.removeprefix("rms.x")) for key in golden.load("sac") if key.startswith("rms.x"))
    statistics = Statistics(tensor("rms.x0").shape[-1])
    for i in numbers:
        statistics.update(golden.load("sac")[f"rms.x{i}"])
        torch.testing.assert_close(torch.from_numpy(statistics.mean).float(), tensor(f"rms.mean{i}")[0], **CLOSE)
        torch.testing.assert_close(torch.from_numpy(statistics.variance).float(), tensor(f"rms.var{i}")[0], **CLOSE)
        assert statistics.count == pytest.approx(float(golden.load("sac")[f"rms.count{i}"]), rel=1e-12)


def test_views_of_one_critic() -> None:
    """`part` cuts parameters as the golden leading axis does."""
    _, critics, _ = networks()
    kernel = trees("fwd")[1]["VmapSimbaCritic_0.encoder.Dense_0.kernel"]
    bias = trees("fwd")[1]["VmapSimbaCritic_0.encoder.Dense_0.bias"]
    for i in range(critics.n):
        assert torch.equal(part(critics.encoder.input.weight, i, critics.n), kernel[i].mT)
        assert torch.equal(part(critics.encoder.input.bias, i, critics.n), bias[i])


def reinit_cases() -> dict[str, Method]:
    """The golden resets as our methods."""
    scale = {"muon": "modular", "ortho_init": "orthogonal"}
    snp = ShrinkAndPerturb(golden.meta("sac")["shrink"], variant="fire_paper")
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
    n = next(v.shape[0] for k, v in pre[1].items() if k.endswith("kernel"))
    nets = {"actor": loaded(how.actor(obs, act), pre[0]), "critic": loaded(how.critics(obs, act, n), pre[1])}
    starts = {"actor": translated(init[0], False), "critic": translated(init[1], True)}
    net = Net(nets, starts, "sac", {"critic": how.critics(obs, act, n)})
    task = Task(
        config=config,
        device=torch.device("cpu"),
        control=None,
        observations=obs,
        actions=act,
        gamma=0.99,
        phases=split(1, 2),
        benchmark=None,
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
    learner.prepare(task)
    for optimizer in learner.optimizers.values():
        for parameter in optimizer.param_groups[0]["params"]:
            optimizer.state[parameter] = {"step": torch.tensor(4.0), "exp_avg": torch.ones_like(parameter)}

    context = Context(1, 4, torch.Generator(), optimizers=list(learner.optimizers.values()))
    method.at_boundary(net, context)
    restart(task, learner, context)

    stored = dict(zip(("actor", "critic"), trees(f"agent.after_{case}"), strict=True))
    for name, module in nets.items():
        unchanged = {ours(key) for key in facts[f"unchanged_{name}"]}
        expected = translated(stored[name], name == "critic") if stored[name] else starts[name]
        before = translated(dict(zip(("actor", "critic"), pre, strict=True))[name], name == "critic")
        for key, value in module.state_dict().items():
            golden_key = "head.mean" + key.removeprefix("head") if name == "critic" and key.startswith("head") else key
            largest = float(expected[key].abs().max())
            torch.testing.assert_close(value, expected[key], rtol=2e-5, atol=1e-6 + 1e-6 * largest, msg=key)
            assert torch.equal(value, before[key]) == (golden_key in unchanged), key
        initial = all(torch.equal(value, starts[name][key]) for key, value in module.state_dict().items())
        assert initial == facts[f"{name}_equals_initial"]
    target = learner.net.targets["critic"].state_dict()
    same = all(torch.equal(value, target[key]) for key, value in nets["critic"].state_dict().items())
    assert same == facts["target_equals_critic"]
    assert learner.agent.temperature().item() == pytest.approx(facts["temperature_after"], rel=1e-6)
    assert learner.statistics.count > 1  # kept
    for name, key in (("actor", "actor"), ("critic", "critic"), ("temperature", "temp")):
        assert len(learner.optimizers[name].state) == facts["optimizer_count_after"][key] == 0
