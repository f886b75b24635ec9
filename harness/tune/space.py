"""The search space of a method, read from conf/search.yaml, and the points of it that a search tries.

    cbp: {rate: {log: [1e-6, 1e-2]}, maturity: {log: [20, 2000]}}
    nap: {every: {choice: [1, 10, 100]}}

All values between the ends of a range (linear, log) are searched, and only whole numbers if both ends are whole. Only
the method's class knows what it accepts, so `check_space` builds it with both ends of each range.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import OmegaConf

from harness.config.build import build
from harness.config.errors import ConfigError
from harness.config.groups import CONF, choices

# Dimensions of the Sobol points. A smaller space uses the first of them, so its points stay the same if it grows.
MIN_DIMENSIONS = 16


@dataclass(frozen=True)
class Dimension:
    """An option and the values that a search may give it.

    Attributes:
        option: name of the option; `space_of` gives it without the group.
        values: the choices, or the two ends of a range.
        kind: "choice", "linear" or "log".
    """

    option: str
    values: tuple[Any, ...]
    kind: str

    def at(self, share: float) -> Any:
        """Return the value at a share in [0, 1) of the way from the first end to the last; floats have three digits."""
        if self.kind == "choice":
            return self.values[int(share * len(self.values))]
        low, high = self.values
        if self.kind == "log":
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        is_integer = isinstance(low, int) and isinstance(high, int)
        return round(value) if is_integer else float(f"{value:.3g}")


def space_of(method: str) -> list[Dimension]:
    """Return the dimensions of a method's options in conf/search.yaml; empty if the method is not in it.

    Raises:
        ConfigError: there is no such method.
    """
    if method not in choices("method"):
        raise ConfigError(f"method={method} has no file in conf/method, so nothing says what may be searched")
    spaces: Any = OmegaConf.to_container(OmegaConf.load(CONF / "search.yaml"))
    ranges = spaces.get(method, {}).items()
    return [Dimension(option, tuple(values), kind) for option, node in ranges for kind, values in node.items()]


def check_space(node: Mapping[str, Any], space: Sequence[Dimension]) -> None:
    """Build a method with each end of each range and each choice.

    Args:
        node: the method's options, resolved.
        space: the method's search space.

    Raises:
        ConfigError: the yaml has no such option, or the method refuses a value.
    """
    for dimension in space:
        for value in dimension.values:
            build("method", {**node, dimension.option: value})


def trials(space: Sequence[Dimension], number: int) -> list[dict[str, Any]]:
    """Return the options of each trial: first an empty dict (the defaults), then points that fill the space evenly.

    The points are a scrambled Sobol sequence with a fixed seed. A search with more trials begins with the same points,
    and so do two spaces in the dimensions that they share the place of.

    Args:
        space: the dimensions to vary.
        number: of trials.
    """
    if not space:
        return [{}]
    engine = torch.quasirandom.SobolEngine(max(MIN_DIMENSIONS, len(space)), scramble=True, seed=0)
    points: list[list[float]] = engine.draw(number - 1).tolist() if number > 1 else []
    choices_of_options: list[dict[str, Any]] = [{}]
    for point in points:
        choice = {dimension.option: dimension.at(share) for dimension, share in zip(space, point, strict=False)}
        choices_of_options.append(choice)
    return choices_of_options
