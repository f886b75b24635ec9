"""DQN against the authors' code (tests/golden/dqn.npz): network, TD step, schedule, interventions, scores, replay."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam

from fire_core.methods import Context, Method, Net
from harness.config.build import build
from rl.common.boundary import update_targets
from rl.dqn.frames import Batch, FrameReplay
from rl.dqn.networks import NatureCNN
from rl.dqn.phase import action_values, probe_batch
from rl.dqn.scores import human_normalised
from rl.dqn.train import exploration_rate, train_step
from tests import programs
from tests.parity import fill, golden

FACTS = golden.facts("dqn_facts")
DATA = golden.load("dqn")
META = golden.meta("dqn")
ADAM = {"lr": FACTS["loop"]["lr"], "eps": FACTS["loop"]["adam_eps"]}
PREFIX = {"conv": "encoder.", "fc": "head."}
HEADS = {"old_head.": "head.old.", "new_train_head.": "head.new.", "new_frozen_head.": "head.frozen."}


def ours(name: str) -> str:
    """Our name of the reference's parameter."""
    for theirs, mine in HEADS.items():
        if name.startswith(theirs):
            return name.replace(theirs, mine)
    return PREFIX[name.rstrip("0123456789").split(".")[0].rstrip("0123456789")] + name


def network(which: str) -> NatureCNN:
    """One of the golden networks; sizes come from the file's shapes."""
    specs = {spec["name"]: spec for spec in FACTS["fill"][which]}
    width = specs["conv1.weight"]["shape"][0] / 32
    q = NatureCNN(META["actions"], tuple(FACTS["batch"]["obs"]["shape"][1:]), width)
    fill.fill_([q.state_dict()[ours(name)] for name in specs], list(specs.values()))
    return q


def stack(key: str) -> Tensor:
    return fill.integers(FACTS["batch"][key]).to(torch.uint8)


def close(value: Tensor, key: str) -> None:
    torch.testing.assert_close(value, torch.from_numpy(np.array(DATA[key])), rtol=2e-5, atol=2e-6)


def golden_net() -> tuple[Net, torch.optim.Optimizer]:
    q, target, init = network("q"), network("target"), network("init")
    net = Net({"q": q}, {"q": init.state_dict()}, "dqn", targets={"q": target})
    return net, Adam(q.parameters(), **ADAM)


TASK: Any = SimpleNamespace(
    config=SimpleNamespace(gamma=META["gamma"], reward_clip=False),
    device=torch.device("cpu"),
    autocast=nullcontext,
)


class TwoStacks:
    """Stands for frames (B, stack + 1, 84, 84): the golden observations and next observations share no frame."""

    def __getitem__(self, index: tuple[slice, slice]) -> Tensor:
        return stack("obs") if index[1] == slice(None, -1) else stack("next_obs")

    def to(self, *_: object, **__: object) -> "TwoStacks":
        return self


def golden_batch() -> Batch:
    action, reward, done = (torch.from_numpy(DATA[key])[:, 0] for key in ("action", "reward", "done"))
    return Batch(TwoStacks(), action, reward, done)  # type: ignore[arg-type]


def take_step(q: nn.Module, target: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """The trainer's own step on the golden batch; the learner after it."""
    learner = SimpleNamespace(q=q, target=target, optimizer=optimizer, updates=0, counted=0, sums=torch.zeros(2))
    train_step(TASK, learner, golden_batch(), acts=False)
    return learner


def test_network_shapes_and_initialisation() -> None:
    q = NatureCNN(FACTS["qnetwork"]["actions"])
    assert {ours(name): shape for name, shape in FACTS["qnetwork"]["params"]} == {
        name: list(p.shape) for name, p in q.named_parameters()
    }
    assert sum(p.numel() for p in q.parameters()) == FACTS["qnetwork"]["n_params"]
    for name, facts in FACTS["qnetwork"]["init"].items():
        value = q.state_dict()[ours(name)]
        if facts.get("all_zero"):
            assert not value.any()
        else:
            assert value.abs().max() <= facts["bound"] * (1 + 1e-6)
            assert value.std().item() == pytest.approx(facts["expected_std"], rel=0.05)


def test_forward() -> None:
    q = network("q")
    close(q(stack("obs")), "forward.q")
    close(network("target")(stack("next_obs")), "forward.target_next")
    close(network("init")(stack("obs")), "forward.init")
    features = q.encoder(stack("obs").float() / 255)
    expected = DATA["forward.encoder_sum_per_sample"]
    np.testing.assert_allclose(features.double().sum(1).detach().numpy(), expected, rtol=1e-5)


def test_td_loss_and_gradients() -> None:
    q, target = network("q"), network("target")
    learner = take_step(q, target, torch.optim.SGD(q.parameters(), lr=0.0))
    close(learner.sums[0], "td.loss")
    observations, targets = probe_batch(TASK, learner, golden_batch())
    close(targets[:, 1], "td.target")
    close(action_values(q, observations, targets[:, 0]), "td.old_val")
    gradients = {name: q.get_parameter(ours(name)).grad for name, _ in FACTS["qnetwork"]["params"]}
    norms = [float(g.double().norm()) for g in gradients.values() if g is not None]
    np.testing.assert_allclose(norms, DATA["td.grad_norms"], rtol=2e-5)
    for key in DATA:
        if key.startswith("td.grad."):
            close(gradients[key.removeprefix("td.grad.")], key)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", ["eps", "eps_short", "eps_nobonus"])
def test_epsilon(case: str) -> None:
    facts, loop = FACTS["epsilon"], FACTS["loop"]
    if case == "eps":
        arguments = (facts["start"], facts["end"], 0.10 * loop["total_timesteps"], loop["learning_starts"])
    else:
        arguments = tuple(facts[case.removeprefix("eps_")])
    start, end, duration, wait = arguments
    schedule = SimpleNamespace(start=start, end=end, fraction=1.0)
    config = SimpleNamespace(epsilon=schedule, total_steps=duration, learning_starts=wait)
    task: Any = SimpleNamespace(config=config, benchmark=None, knows_boundaries=False)
    values = [exploration_rate(task, SimpleNamespace(step=int(t))) for t in DATA[f"{case}.t"]]  # type: ignore[arg-type]
    np.testing.assert_allclose(values, DATA[f"{case}.value"], rtol=1e-12)


def compose(method: str) -> Any:
    return programs.compose("dqn", "env=breakout", f"method={method}", "variant=fire_paper", "boundary=dqn_paper")


def act(method: Method, net: Net, optimizer: torch.optim.Optimizer, config: Any) -> torch.optim.Optimizer:
    """What `rl.dqn` does at the midpoint with the options of `python -m rl.dqn method=...`."""
    options = config.boundary
    context = Context(1, 0, torch.Generator(), optimizers=[optimizer] if options.optimizer == "forget" else [])
    method.at_boundary(net, context)
    update_targets(method, net, context, options.target)
    return method.optimizer(net, lambda p: Adam(p, **ADAM)) if options.optimizer == "new" else optimizer


CASES = {"fire": "fire", "full_reset": "full_reset", "sr": "snp"}


@pytest.mark.parametrize("case", CASES)
def test_intervention_on_both_networks_and_the_optimizer(case: str) -> None:
    net, optimizer = golden_net()
    q, target = net.modules["q"], net.targets["q"]
    take_step(q, target, optimizer)
    moments = {k: {n: v.clone() for n, v in s.items()} for k, s in optimizer.state_dict()["state"].items()}
    for name, module in (("q", q), ("target", target)):  # the step was for the optimizer's state alone
        module.load_state_dict(network(name).state_dict())
    old = {"q": network("q").state_dict(), "target": network("target").state_dict()}

    config = compose(CASES[case])
    new = act(build("method", config.method), net, optimizer, config)
    assert (new is optimizer) == FACTS[f"{case}_optimizer_state_unchanged"]
    assert len(optimizer.state) == FACTS[f"{case}_optimizer_entries"]
    for k, state in optimizer.state_dict()["state"].items():
        assert all(torch.equal(state[n], moments[k][n]) for n in state)
    for which, module in (("q", q), ("target", target)):
        now = module.state_dict()
        for name, status in FACTS[f"{case}_{which}"].items():
            value = now[ours(name)]
            same = {
                "unchanged": old[which][ours(name)],
                "init": net.init["q"][ours(name)],
                "same_as_new_q": q.state_dict()[ours(name)],
            }
            if status == "changed":
                assert not torch.equal(value, old[which][ours(name)]), name
            else:
                assert torch.equal(value, same[status]), name
            for key, cut in ((f"{case}.{which}.{name}", None), (f"{case}.{which}.{name}.first8", 8)):
                if key in DATA:
                    torch.testing.assert_close(value[:cut], torch.from_numpy(DATA[key]), rtol=0, atol=1e-6)
        close(module(stack("obs")), f"{case}.{which}_out")


def test_plasticity_injection() -> None:
    net, optimizer = golden_net()
    q, target, facts = net.modules["q"], net.targets["q"], FACTS["pi"]
    before = {"q": q(stack("obs")), "target": target(stack("obs"))}
    encoder = list(q.encoder.parameters())  # type: ignore[union-attr]
    old_target_head = target.head.state_dict()  # type: ignore[union-attr]
    config = compose("pi")
    optimizer = act(build("method", config.method), net, optimizer, config)
    assert not optimizer.state
    changes = []
    for which, module in (("q", q), ("target", target)):
        after = module(stack("obs"))
        close(before[which], f"pi.{which}_before")
        close(after, f"pi.{which}_after")
        changes.append((after - before[which]).abs().max().item())
    assert max(changes) <= 10 * max(DATA["pi.max_abs_change"].max(), 1e-7)

    named = {ours(name): (shape, trained) for name, shape, trained in facts["params"]}
    assert {name: (list(p.shape), p.requires_grad) for name, p in q.named_parameters()} == named
    assert all(a is b for a, b in zip(encoder, q.encoder.parameters(), strict=True))  # type: ignore[union-attr]
    for name, value in old_target_head.items():
        assert torch.equal(target.get_parameter(f"head.old.{name}"), value)
        assert torch.equal(q.get_parameter(f"head.new.{name}"), net.init["q"][f"head.{name}"])
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in q.parameters()}

    start = {name: p.detach().clone() for name, p in q.named_parameters()}
    for _ in range(2):
        take_step(q, target, optimizer)
    moved = [name for name, p in q.named_parameters() if not torch.equal(p, start[name])]
    assert sorted(moved) == sorted(map(ours, facts["moved_after_2_steps"]))
    assert len(held) - len(optimizer.state) == facts["frozen_without_optimizer_state"]
    close(q(stack("obs")), "pi.q_after_2_steps")


def test_human_normalised_scores() -> None:
    games, raw = DATA["hns.games"], DATA["hns.raw"]
    for i, game in enumerate(games):
        for j, value in enumerate(raw[i]):
            assert human_normalised(str(game), float(value)) == pytest.approx(DATA["hns.value"][i, j], rel=1e-12)


def test_our_table_is_the_reference_s() -> None:
    table = golden.facts("atari_scores")
    for game, human in table["human"].items():
        random = table["random"][game]
        if human != random:
            assert human_normalised(game, human) == pytest.approx(1)
        assert human_normalised(game, random) == pytest.approx(0)


def test_replay_holds_what_was_added() -> None:
    """Every (observation, action, reward, done, next observation) that the reference samples is one that ours holds.

    Its oddities are not ours: where an episode went on, its next observation is the following row, which is ours too;
    after an episode's end that row is another episode's.
    """
    calls = 0
    while f"rb.add{calls}.obs" in DATA:
        calls += 1
    shape = DATA["rb.add0.obs"].shape
    replay = FrameReplay(calls + 99, shape[0], shape[1:], torch.uint8, stack=1)
    expected = set()
    for t in range(calls):
        row = {k: DATA[f"rb.add{t}.{k}"] for k in ("obs", "next_obs", "action", "reward", "done")}
        replay.start(np.arange(shape[0]), torch.from_numpy(row["obs"]))
        replay.append(*(torch.from_numpy(row[k].copy()) for k in ("next_obs", "action", "reward", "done")))
        for e in range(shape[0]):
            led = (int(row["action"][e]), float(row["reward"][e]), bool(row["done"][e]))
            expected.add((row["obs"][e].tobytes(), *led, row["next_obs"][e].tobytes()))
    batch = replay.sample(4096, torch.Generator().manual_seed(0))
    got = {
        (f[0].numpy().tobytes(), int(a), float(r), bool(d), f[1].numpy().tobytes())
        for f, a, r, d in zip(batch.frames, batch.actions, batch.rewards, batch.terminated, strict=True)
    }
    assert got == expected
