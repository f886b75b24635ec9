"""Scale gravity, friction, mass and actuators of MuJoCo's environments."""

import importlib
from collections.abc import Mapping
from typing import Any

from harness.config.errors import ConfigError

PARAMETERS = ("gravity", "friction", "mass", "actuator")


class Physics:
    """The physical parameters of one environment, which remember their original values.

    Args:
        env: a MuJoCo environment of gymnasium, or one that holds a `physics` of dm_control in `env.env`.

    Raises:
        ConfigError: it is no MuJoCo environment.
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
            "friction": [model.geom_friction[:, :1]],  # sliding friction
            "mass": [model.body_mass, model.body_inertia],
            "actuator": [model.actuator_gear],
        }
        self._original = {name: [array.copy() for array in arrays] for name, arrays in self._arrays.items()}

    def change(self, factors: Mapping[str, float]) -> None:
        """Set each parameter to its original value times a factor, from the next episode on.

        Args:
            factors: factors by the names in `PARAMETERS`; parameters without one get their original values.
        """
        for name, arrays in self._arrays.items():
            for array, original in zip(arrays, self._original[name], strict=True):
                array[:] = original * factors.get(name, 1.0)
        mujoco: Any = importlib.import_module("mujoco")
        mujoco.mj_setConst(self._model, self._data)
