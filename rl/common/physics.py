"""Gravity, friction, mass and actuators of MuJoCo's worlds, scaled by factors."""

import importlib
from collections.abc import Mapping
from typing import Any

from harness.config.errors import ConfigError

PARAMETERS = ("gravity", "friction", "mass", "actuator")


class Physics:
    """The parameters of one environment, as it was made.

    Args:
        env: MuJoCo's of gymnasium, or one that holds a `physics` of dm_control in `env.env`.

    Raises:
        ConfigError: it is another one.
    """

    def __init__(self, env: Any) -> None:
        inner = getattr(env, "unwrapped", env)
        physics = getattr(getattr(inner, "env", None), "physics", None)
        if physics is None and not hasattr(inner, "model"):
            raise ConfigError(f"benchmark.physics changes MuJoCo's worlds, and {env} is none")
        self._model = inner.model if physics is None else physics.model.ptr
        self._data = inner.data if physics is None else physics.data.ptr
        model = self._model
        self._arrays = {
            "gravity": [model.opt.gravity],
            "friction": [model.geom_friction[:, :1]],  # that of sliding
            "mass": [model.body_mass, model.body_inertia],
            "actuator": [model.actuator_gear],
        }
        self._start = {name: [array.copy() for array in arrays] for name, arrays in self._arrays.items()}

    def change(self, factors: Mapping[str, float]) -> None:
        """Scale each parameter from what it was when the environment was made; those not named are as they were.

        Args:
            factors: by name, of `PARAMETERS`. They hold from the next episode on.
        """
        for name, arrays in self._arrays.items():
            for array, first in zip(arrays, self._start[name], strict=True):
                array[:] = first * factors.get(name, 1.0)
        mujoco: Any = importlib.import_module("mujoco")
        mujoco.mj_setConst(self._model, self._data)
