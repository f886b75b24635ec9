"""The trainer: what it does when, what it writes, what it refuses."""

import copy
import functools
import gc
import itertools
import json
import runpy
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import harness.run.folder
import harness.training.loop
import rl.dqn.train
from harness.config.errors import ConfigError
from harness.config.groups import CONF
from rl.common.replay_store import RingStore
from rl.dqn.frames import Batch
from rl.dqn.learner import Learner
from rl.dqn.phase import make_context, probe_batch
from rl.dqn.task import Task
from rl.dqn.train import begin_phase, choose_actions, crossed, interact, train_step
from tests.programs import ATARI, DQN, Program, compose, final_state, rows, same

SHORT = ("total_steps=160", "midpoint=100")
METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
SHOWN = ("chain", "dash", "nap", "optimizer_reset", "snr", "trac")  # by default: each hook once, and special needs


def weights(folder: Path) -> dict[str, Any]:
    """The networks of the newest checkpoint."""
    state = final_state(folder)
    return {key: state[key] for key in ("modules", "targets", "init", "optimizers")}


def learner_of(*overrides: str, program: Program = DQN, steps: int = 0) -> tuple[Task, Learner]:
    """A task and a learner that has made this many steps."""
    task = Task.from_config(program.compose(*overrides))
    learner = Learner.new(task)
    begin_phase(task, learner, 0, None)
    while learner.step < steps:
        interact(task, learner, acts=False)
    return task, learner


# ------------------------------------------------------------------------------------------------------------ the loop


@pytest.mark.parametrize("ratio", [0.25, 1.0, 0.3])
def test_updates_and_target_copies_come_when_they_should(ratio: float) -> None:
    task, learner = learner_of(f"updates_per_step={ratio}", "num_envs=3")
    copies, before = [], learner.target.state_dict()["head.fc2.weight"].clone()
    while learner.step < 220:
        interact(task, learner, acts=False)
        now = learner.target.state_dict()["head.fc2.weight"]
        if not torch.equal(now, before):
            copies.append(learner.step)
            before = now.clone()
            assert same(learner.target.state_dict(), learner.q.state_dict())
    assert copies == [step for step in range(3, 221 + 3, 3) if crossed(step, 3, 50) and step > 43]
    assert learner.updates == pytest.approx(ratio * (learner.step - 42), abs=1)


def test_the_first_update_comes_a_step_after_learning_starts() -> None:
    """The authors' code compares with > the steps made before: 20,004 where learning starts at 20,000."""
    task, learner = learner_of("num_envs=4", "learning_starts=40", steps=44)
    assert learner.updates == 0
    assert same(learner.q.state_dict(), learner.net.init["q"])
    assert task.steps_before_trigger == 44
    interact(task, learner, acts=False)
    assert learner.updates > 0


def at_midpoint(*overrides: str) -> tuple[Learner, dict[str, Any], dict[str, Any]]:
    """A learner behind the midpoint; its networks and its optimizer's state just before."""
    task, learner = learner_of("updates_per_step=1", *overrides, steps=160)
    assert learner.optimizer is not None
    optimizer = copy.deepcopy(learner.optimizer.state_dict()["state"])
    before = copy.deepcopy({"q": learner.q.state_dict(), "target": learner.target.state_dict()})
    assert optimizer
    assert not same(before["q"], before["target"])
    begin_phase(task, learner, 1, None)
    return learner, before, optimizer


@pytest.mark.parametrize("method", ["base", "fire", "chain"])
def test_what_restarts_at_the_midpoint_is_the_same_for_every_method(method: str) -> None:
    learner, before, _ = at_midpoint(f"method={method}", *(["method.of=fire+redo"] if method == "chain" else []))
    assert learner.optimizer is not None
    assert not learner.optimizer.state
    assert same(learner.target.state_dict(), learner.q.state_dict())
    assert same(learner.q.state_dict(), before["q"]) == (method == "base")
    assert any(learner.replay.written)


def test_base_runs_on_unbroken_as_in_the_paper() -> None:
    learner, before, optimizer = at_midpoint("method=base", "boundary=dqn_paper")
    assert learner.optimizer is not None
    assert same(learner.optimizer.state_dict()["state"], optimizer)
    assert same({"q": learner.q.state_dict(), "target": learner.target.state_dict()}, before)


def test_a_trigger_restarts_the_networks_state_without_a_method_that_acts(tmp_path: Path) -> None:
    """The control of methods that act where a trigger fires: replay and exploration go on."""
    folder = DQN.run(tmp_path, "method=base", "trigger=every", "trigger.steps=60", *SHORT)
    assert [row["step"] for row in rows(folder) if row.get("kind") == "firing"] == [60, 120]
    with pytest.raises(ConfigError, match="method=base does nothing there"):
        DQN.run(tmp_path, "method=base", "trigger=every", "boundary.optimizer=keep", "boundary.target=keep")


def test_target_ends_where_the_episode_does_and_not_at_a_time_limit() -> None:
    """With a network that tells its frames as values: the next frame's, 3 and 5, are those of the largest actions."""
    task, learner = learner_of("gamma=0.9")
    learner.net.modules["q"] = learner.net.targets["q"] = torch.nn.Flatten()
    frames = torch.tensor([[[0.0, 0.0], [1.0, 3.0]], [[0.0, 0.0], [2.0, 5.0]]])
    batch = Batch(frames, torch.tensor([0, 1]), torch.full((2,), 1.0), torch.tensor([True, False]))
    _, targets = probe_batch(task, learner, batch)
    assert targets.tolist() == [[0.0, 1.0], [1.0, pytest.approx(1 + 0.9 * 5.0)]]


def test_methods_are_given_the_loss_of_the_step() -> None:
    """The value and the gradient of what `Context.loss` gives for a batch are those of `train_step`."""
    task, learner = learner_of("method=l2init", steps=80)
    learner.optimizers = {"q": torch.optim.SGD(learner.q.parameters(), lr=0.0)}
    batch = learner.replay.sample(16, torch.Generator().manual_seed(0))
    loss = train_step(task, learner, batch, acts=False)
    trained = [p.grad.clone() for p in learner.q.parameters() if p.grad is not None]
    context = make_context(task, learner, "boundary")
    assert context.loss is not None
    told = context.loss(*probe_batch(task, learner, batch))
    assert told.item() == loss.item() > 0
    assert same(list(torch.autograd.grad(told, list(learner.q.parameters()))), trained)


@pytest.mark.parametrize("exploration", ["shared", "each"])
def test_shared_exploration_is_one_draw_for_all(exploration: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, learner = learner_of("num_envs=40", "learning_starts=80", f"exploration={exploration}")
    monkeypatch.setattr("rl.dqn.train.exploration_rate", lambda task, learner: 0.5)
    monkeypatch.setattr("rl.dqn.train.greedy_actions", lambda *_: torch.full((40,), 99))
    greedy = [int((choose_actions(task, learner) == 99).sum()) for _ in range(20)]
    if exploration == "shared":
        assert set(greedy) == {0, 40}
    else:
        assert all(0 < count < 40 for count in greedy)


# ---------------------------------------------------------------------------------------------------------- whole runs


def test_rows_are_what_the_analysis_reads(tmp_path: Path) -> None:
    folder = ATARI.run(tmp_path, "method=fire")
    written = rows(folder)
    steps = [row["step"] for row in written if "kind" not in row]
    assert steps == sorted(set(steps))
    assert steps[-1] == 240
    assert [row["env_steps"] for row in written if "eval/return" in row] == [120, 240]
    assert "eval/normalized_return" in written[-1]
    (first,) = [row for row in written if "boundary/dfi_after" in row]
    assert (first["kind"], first["step"], first["phase"]) == ("boundary", 120, 1)
    assert first["boundary/dfi_after"] < first["boundary/dfi_before"]
    done = json.loads((folder / "DONE").read_text())
    assert done["steps"] == 240
    assert done["eval/return"] == written[-1]["eval/return"]
    assert not list((folder / "replay").iterdir())  # a finished run needs none


@pytest.mark.parametrize("method", [pytest.param(m, marks=() if m in SHOWN else pytest.mark.slow) for m in METHODS])
def test_every_method_trains_to_the_end(method: str, tmp_path: Path) -> None:
    needs = {"nap": ["model.norm=true"], "optimizer_reset": ["boundary.optimizer=forget"]}.get(method, [])
    final = rows(DQN.run(tmp_path, f"method={method}", *SHORT, "eval.steps=10", *needs))[-1]
    assert final["step"] == 160
    assert final["phase"] == 1


def test_evaluation_does_not_disturb_training(tmp_path: Path) -> None:
    often = DQN.run(tmp_path / "often", "eval.every=40", *SHORT)
    seldom = DQN.run(tmp_path / "seldom", "eval.every=100", *SHORT)
    assert same(weights(often), weights(seldom))


def test_the_shared_first_phase_is_the_run_s_own(tmp_path: Path) -> None:
    """And runs that begin with it leave it as it was, for the other methods."""
    own = DQN.run(tmp_path / "own", "method=snp", "cache=off", *SHORT)
    DQN.run(tmp_path / "shared", "method=base", *SHORT)
    (entry,) = (tmp_path / "shared" / ".cache").glob("dqn-cartpole-*")
    made = {path: path.read_bytes() for path in (entry / "replay").iterdir()}
    shared = DQN.run(tmp_path / "shared", "method=snp", *SHORT)
    assert same(weights(own), weights(shared))
    assert rows(own) == rows(shared)
    assert made == {path: path.read_bytes() for path in (entry / "replay").iterdir()} != {}


def test_seeds_differ_and_repeat() -> None:
    one, again, other = (learner_of(f"seed={seed}", steps=60)[1].state_dict() for seed in (1, 1, 2))
    assert same(one, again)
    assert not any(same(one[key], other[key]) for key in ("modules", "env", "sampling", "exploring"))


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_updates_are_the_same_updates(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced by default, for the C++ that inductor makes takes half a minute to compile."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    (_, plain), (_, compiled) = (learner_of(f"compile={how}", steps=60) for how in ("off", "default"))
    assert plain.updates == compiled.updates > 0
    for key, value in plain.q.state_dict().items():
        torch.testing.assert_close(compiled.q.state_dict()[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options", ["method=redo metrics=full", "method=fire trigger=dormancy trigger.above=0.01 trigger.every=20"]
)
def test_what_measures_by_hooks_sees_a_compiled_network(
    options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers are those of the network that is not compiled."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    plain, compiled = (
        rows(DQN.run(tmp_path / how, f"compile={how}", *options.split(), *SHORT)) for how in ("off", "default")
    )
    for one, other in zip(plain, compiled, strict=True):
        assert one.keys() == other.keys()
        numbers = [key for key, value in one.items() if not isinstance(value, str)]
        assert [one[key] for key in numbers] == pytest.approx([other[key] for key in numbers], rel=1e-3, abs=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("replay", ["cuda", "cpu"])
def test_trains_on_a_gpu(tmp_path: Path, replay: str) -> None:
    assert rows(ATARI.run(tmp_path, "device=cuda", f"replay.device={replay}"))[-1]["step"] == 240


# ------------------------------------------------------------------------------------------------------- configuration


def test_the_paper_s_settings() -> None:
    facts = json.loads((Path(__file__).parents[2] / "golden" / "dqn_facts.json").read_text())["loop"]
    for experiment in (path.stem for path in (CONF / "experiment").glob("fig4a_*.yaml")):
        config = compose("dqn", f"experiment={experiment}")
        assert config.num_envs == facts["num_envs"]
        assert config.total_steps == facts["total_timesteps"] - 1
        assert config.midpoint == facts["midpoint"]
        assert config.updates_per_step == facts["updates_per_env_step_default"]
        assert (config.learning_starts, config.target_every) == (facts["learning_starts"], facts["target_period"])
        assert (config.batch_size, config.gamma, config.lr) == (facts["batch"], facts["gamma"], facts["lr"])
        assert config.optimizer.eps == facts["adam_eps"]
        assert (config.eval.every, config.eval.steps, config.eval.epsilon) == (facts["eval_every"], 125_000, 0.001)
        assert config.eval.num_envs == facts["num_envs"]  # 31,250 steps of each
        assert config.env.max_frames == 4 * 27_000  # frames; ALE's own limit
        assert (config.epsilon.start, config.epsilon.end, config.epsilon.fraction) == (1, 0.01, 0.1)
        assert (config.env.sticky, config.env.sticky_per, config.env.noop_max) == (0.25, "decision", 0)
        assert config.replay.capacity == 1_000_000
        assert config.model.width == 1
        assert (config.exploration, config.model.layout) == ("shared", "dqn")


def test_the_first_half_does_not_leave_its_replay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replays = []
    new_replay = Task.new_replay
    monkeypatch.setattr(Task, "new_replay", lambda task: replays.append(weakref.ref(r := new_replay(task))) or r)
    gc.collect()
    gc.disable()
    try:
        DQN.run(tmp_path, *SHORT)
        assert [replay() for replay in replays] == [None, None]
    finally:
        gc.enable()


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does training try again at every step: the next try comes when the next checkpoint is due."""
    seconds, tries = [0.0], list[float]()
    clock = SimpleNamespace(monotonic=lambda: seconds[0])
    save, plain, every = RingStore.save, interact, 10

    def full(store: RingStore, ring: Any) -> dict[str, Any]:
        if max(ring.written) < 40:
            tries.append(seconds[0])
            raise OSError(28, "No space left on device")
        return save(store, ring)

    def second_long(*arguments: Any) -> Any:
        seconds[0] += 1
        return plain(*arguments)

    with monkeypatch.context() as broken:
        broken.setattr(RingStore, "save", full)
        broken.setattr(rl.dqn.train, "interact", second_long)
        broken.setattr(harness.run.folder, "time", clock)
        broken.setattr(harness.training.loop, "time", clock)
        rough = DQN.run(tmp_path / "rough", f"checkpoint.every_seconds={every}", *SHORT)
    assert len(tries) > 1
    assert all(later - sooner >= every for sooner, later in itertools.pairwise(tries))
    assert same(weights(rough), weights(DQN.run(tmp_path / "calm", *SHORT)))


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("name", ["rl.dqn", "rl.sac"])
def test_the_trainer_s_module_says_how_to_start_it(name: str) -> None:
    with pytest.raises(SystemExit, match=f"python -m {name}$"):
        runpy.run_module(f"{name}.train", run_name="__main__")
