"""Gravity, friction, mass and actuators of simulated worlds, scaled by factors."""

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

PARAMETERS = ("gravity", "friction", "mass", "actuator")
# Attributes of gymnasium's small tasks, by their classes' names; the last ones follow from others.
CLASSIC: dict[str, dict[str, tuple[str, ...]]] = {
    "CartPoleEnv": {"gravity": ("gravity",), "mass": ("masscart", "masspole"), "actuator": ("force_mag",)},
    "AcrobotEnv": {"mass": ("LINK_MASS_1", "LINK_MASS_2"), "actuator": ("AVAIL_TORQUE",)},
    "MountainCarEnv": {"gravity": ("gravity",), "actuator": ("force",)},
    "LunarLander": {"gravity": ("gravity",)},
}


class Physics:
    """The parameters of one environment, as it was made.

    Args:
        env: of gymnasium (a small task or MuJoCo's), or one that holds a `physics` of dm_control in `env.env`.

    Attributes:
        names: those of `PARAMETERS` that its model has.
    """

    def __init__(self, env: Any) -> None:
        inner = getattr(env, "unwrapped", env)
        physics = getattr(getattr(inner, "env", None), "physics", None)
        self._derive: Callable[[], None] = lambda: None
        self._set: dict[str, Callable[[float], None]] = {}
        if physics is not None:
            self._of_mujoco(physics.model.ptr, physics.data.ptr)
        elif hasattr(inner, "model") and hasattr(inner, "data"):
            self._of_mujoco(inner.model, inner.data)
        else:
            self._of_classic(inner)
        self.names = tuple(self._set)

    def change(self, factors: Mapping[str, float]) -> None:
        """Scale each parameter from what it was when the environment was made; those not named are as they were.

        Args:
            factors: by name, of `names`. They hold from the next episode on.
        """
        for name, put in self._set.items():
            put(factors.get(name, 1.0))
        self._derive()

    def _of_mujoco(self, model: Any, data: Any) -> None:
        mujoco: Any = importlib.import_module("mujoco")
        arrays = {
            "gravity": [model.opt.gravity],
            "friction": [model.geom_friction[:, :1]],  # that of sliding
            "mass": [model.body_mass, model.body_inertia],
            "actuator": [model.actuator_gear],
        }
        for name, several in arrays.items():
            self._set[name] = functools.partial(_scale_arrays, several, [array.copy() for array in several])
        self._derive = lambda: mujoco.mj_setConst(model, data)

    def _of_classic(self, env: Any) -> None:
        for name, attributes in CLASSIC.get(type(env).__name__, {}).items():
            start = {attribute: getattr(env, attribute) for attribute in attributes}
            self._set[name] = functools.partial(_scale_attributes, env, start)
        if type(env).__name__ == "CartPoleEnv":

            def derive() -> None:
                env.total_mass = env.masspole + env.masscart
                env.polemass_length = env.masspole * env.length

            self._derive = derive


def _scale_arrays(arrays: list[np.ndarray], start: list[np.ndarray], factor: float) -> None:
    for array, first in zip(arrays, start, strict=True):
        array[:] = first * factor


def _scale_attributes(env: Any, start: dict[str, Any], factor: float) -> None:
    for name, value in start.items():
        setattr(env, name, [x * factor for x in value] if isinstance(value, list) else value * factor)
