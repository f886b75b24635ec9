"""Scale gravity, friction, mass and actuators of MuJoCo's environments."""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

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
            # sliding friction: one number of a geom, for both tangents; of an explicit pair of geoms, one for each
            "friction": [model.geom_friction[:, :1], model.pair_friction[:, :2]],
            "mass": [model.body_mass, model.body_inertia],
            "actuator": [model.actuator_gear],
        }
        self._original = {name: [array.copy() for array in arrays] for name, arrays in self._arrays.items()}

    def without_effect(self) -> list[str]:
        """Return the parameters that change nothing in this world, such as friction where no two bodies touch.

        Whatever is not sure to have no effect is taken to have one.
        """
        model = self._model
        touch = model.geom_contype[:, None] & model.geom_conaffinity[None]  # (geoms, geoms), not 0 where they may touch
        bodies, condim = model.geom_bodyid, model.geom_condim
        slides = np.maximum.outer(condim, condim) > 1
        slides &= ((touch | touch.T) != 0) & (bodies[:, None] != bodies[None])
        has_effect = {
            "gravity": model.opt.gravity.any(),
            "friction": slides.any() or (model.pair_dim > 1).any(),
            "actuator": model.actuator_gear.any(),
        }
        return [name for name, effect in has_effect.items() if not effect]

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
