"""What a task of continual control changes: observations and physics."""

from types import SimpleNamespace

import gymnasium
import mujoco
import numpy as np
import pytest

from rl.common.continual import ContinualControl, Returns
from rl.common.physics import Physics


def test_an_observation_is_padded_ordered_signed_and_shifted() -> None:
    change = ContinualControl().change(seed=3, task=1, size=6)
    x = np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
    seen = change.observe(x)
    for row, shown in zip(x, seen, strict=True):
        padded = [*row, 0.0, 0.0]
        by_hand = [padded[change.order[i]] * change.signs[i] + change.offset[i] for i in range(6)]
        np.testing.assert_allclose(shown, by_hand, rtol=1e-6)
    assert sorted(change.order) == list(range(6))
    assert set(change.signs) <= {-1.0, 1.0}


def test_tasks_and_seeds_differ_and_repeat() -> None:
    benchmark = ContinualControl()
    offsets = [tuple(benchmark.change(seed, task, 8).offset) for seed in (0, 1) for task in range(3)]
    assert len(set(offsets)) == 6
    assert offsets[0] == tuple(ContinualControl(tasks=99).change(0, 0, 8).offset)
    many = np.concatenate([benchmark.change(0, task, 8).offset for task in range(400)])
    assert abs(many.std() - 1) < 0.05


def test_what_is_off_changes_nothing() -> None:
    plain = ContinualControl(permute=False, signs=False, offset=0.0)
    assert plain.changes_observations() == []
    x = np.array([1.0, -2.0, 3.0], np.float32)
    np.testing.assert_array_equal(plain.change(0, 5, 3).observe(x), x)


def test_mujoco_s_physics_are_scaled() -> None:
    env = gymnasium.make("Hopper-v5")
    model = env.unwrapped.model  # type: ignore[attr-defined]
    mass, gear, friction = model.body_mass.copy(), model.actuator_gear.copy(), model.geom_friction.copy()
    physics = Physics(env)
    physics.change({"gravity": 0.5, "mass": 2.0, "friction": 0.3, "actuator": 1.5})
    assert model.opt.gravity[2] == pytest.approx(-9.81 / 2)
    np.testing.assert_allclose(model.body_mass, 2 * mass)
    np.testing.assert_allclose(model.body_subtreemass[0], 2 * mass.sum())  # follows from the masses
    np.testing.assert_allclose(model.actuator_gear, 1.5 * gear)
    np.testing.assert_allclose(model.geom_friction, friction * [0.3, 1, 1])
    physics.change({})
    np.testing.assert_allclose(model.body_mass, mass)


@pytest.mark.parametrize(("dimensions", "idle"), [(3, ["actuator"]), (1, ["friction", "actuator"])])
def test_friction_of_explicit_pairs_is_scaled(dimensions: int, idle: list[str]) -> None:
    """A pair has friction of its own, in place of that of its bodies; with one dimension it has none."""
    model = mujoco.MjModel.from_xml_string(f"""
        <mujoco><worldbody>
            <geom name="floor" type="plane" size="1 1 1" contype="0"/>
            <body><freejoint/><geom name="ball" size="0.1" conaffinity="0" contype="0"/></body>
        </worldbody><contact>
            <pair geom1="floor" geom2="ball" condim="{dimensions}" friction="1 0.5 0.1 0.1 0.1"/>
        </contact></mujoco>""")
    physics = Physics(SimpleNamespace(model=model, data=mujoco.MjData(model)))
    assert physics.without_effect() == idle
    physics.change({"friction": 0.5})
    np.testing.assert_allclose(model.pair_friction, [[0.5, 0.25, 0.1, 0.1, 0.1]])
    physics.change({})
    np.testing.assert_allclose(model.pair_friction, [[1, 0.5, 0.1, 0.1, 0.1]])


@pytest.mark.parametrize(
    ("task", "idle"),
    [("Hopper-v5", []), ("InvertedDoublePendulum-v5", ["friction"]), ("Pusher-v5", ["gravity", "friction"])],
)
def test_parameters_that_change_nothing_are_known(task: str, idle: list[str]) -> None:
    """The bodies of a pendulum do not touch; those of Pusher do, without friction, in a world without gravity."""
    env = gymnasium.make(task)
    physics = Physics(env)
    assert physics.without_effect() == idle

    def state_after_steps(factors: dict[str, float]) -> np.ndarray:
        physics.change(factors)
        env.reset(seed=0)
        for _ in range(20):
            state = env.step(np.full(env.action_space.shape, 0.3, np.float32))[0]
        return np.asarray(state)

    assert np.array_equal(state_after_steps({}), state_after_steps(dict.fromkeys(idle, 3.0)))
    assert not np.array_equal(state_after_steps({}), state_after_steps({"mass": 3.0}))


def test_factors_are_even_in_the_logarithm() -> None:
    benchmark = ContinualControl(physics={"gravity": [0.25, 4.0], "mass": [1.0, 1.0]})
    found = np.log([benchmark.change(0, task, 4).physics["gravity"] for task in range(500)])
    assert abs(found.mean()) < 0.1
    assert found.min() > np.log(0.25)
    assert found.max() < np.log(4)
    assert benchmark.change(0, 7, 4).physics["mass"] == 1.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"physics": {"wind": [1.0, 2.0]}}, "physics.wind is unknown; accepted: gravity"),
        ({"physics": {"mass": [2.0, 1.0]}}, r"physics.mass must be \[lowest, highest\]"),
        ({"physics": {"mass": 2.0}}, r"physics.mass must be \[lowest, highest\] .*, got 2.0"),
        ({"physics": {"mass": [1.0, None]}}, r"physics.mass must be \[lowest, highest\]"),
        ({"sequence": []}, "sequence must name an environment"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ContinualControl(**options)  # type: ignore[arg-type]


def test_a_task_s_return_is_that_of_its_last_quarter() -> None:
    returns = Returns()
    returns.add(10, [1.0])
    returns.add(75, [3.0])
    returns.add(76, [5.0])
    returns.add(100, [8.0])
    assert returns.log_row(100, ended=False) == {"online/return": 17 / 4}
    assert returns.log_row(100, ended=True) == {"online/return": 17 / 4, "task/return": 6.5, "task/episodes": 2}
    loaded = Returns()
    loaded.load_state_dict(returns.state_dict())
    assert loaded == returns


def test_a_resumed_run_has_the_same_returns_to_the_last_digit() -> None:
    """9.3 and 1/3 are no numbers of float32."""
    returns = Returns()
    returns.add(90, [9.3])
    returns.add(100, [1 / 3])
    loaded = Returns()
    loaded.load_state_dict(returns.state_dict())
    assert loaded == returns
    assert loaded.log_row(100, ended=True) == returns.log_row(100, ended=True)


def test_a_return_is_that_of_whole_episodes(caplog: pytest.LogCaptureFixture) -> None:
    """Of a task whose last quarter saw no end, the last episode's; of one without an end none, and a line says so."""
    returns = Returns()
    assert returns.log_row(100, ended=False) == {}
    returns.add(10, [1.0])
    returns.add(60, [4.0])
    assert returns.log_row(100, ended=True) == {"online/return": 2.5, "task/return": 4.0, "task/episodes": 0}
    assert caplog.text == ""
    returns.begin_task()
    assert returns.log_row(100, ended=True) == {"online/return": 2.5, "task/episodes": 0}
    assert "no task/return: no episode ended within the task's 100 steps" in caplog.text
    assert returns.summary() == {"task/return": 4.0}
    assert Returns().summary() == {}
