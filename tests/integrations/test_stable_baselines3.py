"""FireCallback in stable-baselines3's own DQN, SAC, TD3 and PPO, on CartPole and Pendulum."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from fire_core.errors import FireWarning
from fire_core.methods.full_reset import FullReset
from fire_core.triggers import At, Dormancy, EffectiveRank, Every, Plateau
from tests.integrations.digits import deviation

sb3 = pytest.importorskip("stable_baselines3")
callbacks = pytest.importorskip("stable_baselines3.common.callbacks")
from fire_core.integrations.stable_baselines3 import FireCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
NET = {"net_arch": [24, 24]}
OFF = {"learning_starts": 40, "train_freq": 10, "gradient_steps": 5, "batch_size": 16, "buffer_size": 1000}
MODELS = {
    "dqn": lambda **o: sb3.DQN("MlpPolicy", "CartPole-v1", **OFF, **{"target_update_interval": 10**6, **o}),
    "sac": lambda **o: sb3.SAC("MlpPolicy", "Pendulum-v1", **OFF, **{"tau": 1e-6, **o}),
    "td3": lambda **o: sb3.TD3("MlpPolicy", "Pendulum-v1", **OFF, **{"tau": 1e-6, **o}),
    "ppo": lambda **o: sb3.PPO("MlpPolicy", "Pendulum-v1", n_steps=50, batch_size=25, n_epochs=2, **o),
}


def make(name: str, **options: object):
    return MODELS[name](**{"policy_kwargs": dict(NET), "seed": 0, "device": "cpu", "learning_rate": 1e-4, **options})


class See(callbacks.BaseCallback):
    """Notes which matrices are isometric after each environment step, and how many weights the optimizers know."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, dict[str, bool]] = {}
        self.states: dict[int, int] = {}

    def _on_step(self) -> bool:
        named = self.model.policy.named_parameters()
        self.seen[self.num_timesteps] = {n: deviation(p) < 1e-3 for n, p in named if p.ndim == 2}
        parts = [getattr(self.model, part, None) for part in ("policy", "actor", "critic")]
        optimizers = [o for part in parts if (o := getattr(part, "optimizer", None)) is not None]
        self.states[self.num_timesteps] = sum(len(o.state) for o in {id(o): o for o in optimizers}.values())
        return True


HEADS = {"dqn": set(), "td3": set(), "sac": {"actor.log_std.weight"}, "ppo": {"action_net.weight"}}


@pytest.mark.parametrize("name", MODELS)
def test_all_networks_targets_and_optimizers(name):
    model, see = make(name), See()
    callback = FireCallback(Every(100), solver="exact")
    model.learn(250, callback=[callback, see])
    before, after = ({n for n, hit in see.seen[step].items() if hit} for step in (100, 101))
    assert not before
    assert set(see.seen[101]) - after == HEADS[name], "all matrices, those of target networks too"
    vectors = 1 if name == "ppo" else 0  # log_std
    targets = sum("target" in n for n in see.seen[101])
    known = 2 * (len(see.seen[101]) - targets) + vectors
    assert see.states[100] == known
    assert see.states[101] == known - (len(after) - targets), "exactly the changed weights' states are gone"
    assert set(see.seen[201]) - {n for n, hit in see.seen[201].items() if hit} == HEADS[name]
    assert callback.intervention.firings == 2
    assert [firing.trigger for firing in callback.intervention.fired] == ["every", "every"]


def test_numbers_go_to_the_models_logger(tmp_path):
    model = make("ppo")
    model.set_logger(sb3.common.logger.configure(str(tmp_path), ["csv"]))
    model.learn(250, callback=FireCallback(Every(100), solver="exact"))
    model.logger.close()
    header, *lines = Path(tmp_path, "progress.csv").read_text().splitlines()
    column = header.split(",").index("fire/dfi_after")
    assert [line.split(",")[column] != "" for line in lines] == [False, False, True, False, True]


def weights(model) -> list[nn.Parameter]:
    return list(model.policy.parameters())


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_a_resumed_run_does_not_fire_again(name, tmp_path):
    model = make(name)
    initial = [p.clone() for p in weights(model)]
    model.learn(110, callback=FireCallback(At([100, 200]), method=FullReset(), keep=()))
    model.save(tmp_path / "model.zip")
    again = type(model).load(tmp_path / "model.zip", env=model.get_env(), device="cpu")
    callback = FireCallback(At([100, 200]), method=FullReset(), keep=())
    again.learn(40, callback=callback, reset_num_timesteps=False)
    assert callback.intervention.firings == 1, "that of the first part; at step 200 nothing is due yet"
    seen = See()
    again.learn(100, callback=[callback, seen], reset_num_timesteps=False)
    assert callback.intervention.firings == 2
    reference = list(callback.intervention.init.values())
    values = [value for part in reference for key, value in part.items() if "target" not in key]
    assert all(any(v.shape == p.shape and torch.equal(v, p) for p in initial) for v in values), "those of the first run"


@pytest.mark.parametrize(
    ("trigger", "message"),
    [
        (Every(1000), r"Every\(1000\) cannot fire within 250 steps"),
        (Dormancy(0.3), "QNetwork does not declare its units and cannot be traced"),
        (Plateau("loss", every=5), "there is no metric 'loss'; metrics of this loop: rollout/ep_rew_mean, rollout"),
    ],
)
def test_what_is_refused_at_the_start(trigger, message):
    with pytest.raises(ValueError, match=message):
        make("dqn").learn(250, callback=FireCallback(trigger))


def test_a_metric_of_training_that_never_comes_is_told_once():
    with pytest.warns(FireWarning, match="waits for train/los, which training does not log; it logs .*train/loss") as w:
        make("dqn").learn(250, callback=FireCallback(Plateau("train/los", every=5) | At(200)))
    assert len([each for each in w if each.category is FireWarning]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", FireWarning)
        for name in MODELS:  # TD3's actor is trained in every second step
            metric = "train/actor_loss" if name in ("sac", "td3") else "train/loss"
            make(name).learn(250, callback=FireCallback(Plateau(metric, every=5)))


@pytest.mark.parametrize("trigger", [At(20), EffectiveRank(1.0, every=10)])
def test_triggers_that_are_due_between_rollouts(trigger):
    callback = FireCallback(trigger)
    make("ppo").learn(250, callback=callback)
    assert callback.intervention.firings == 1


def test_several_callbacks_resume_each_with_its_own_state(tmp_path):
    def run(model, steps: int) -> list[list[int]]:
        made = [FireCallback(Every(50)), FireCallback(At([60, 130]))]
        model.learn(steps, callback=made, reset_num_timesteps=False)
        return [[firing.step for firing in callback.intervention.fired] for callback in made]

    model = make("dqn")
    assert run(model, 110) == [[50, 100], [60]]
    model.save(tmp_path / "model.zip")
    again = type(model).load(tmp_path / "model.zip", env=model.get_env(), device="cpu")
    assert run(again, 100) == [[50, 100, 150, 200], [60, 130]]
