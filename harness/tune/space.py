"""What may be searched of a method, as conf/search.yaml says, and the points of a search.

    cbp: {rate: {log: [1e-6, 1e-2]}, maturity: {log: [20, 2000]}}
    nap: {every: {choice: [1, 10, 100]}}

Between the ends of a range (linear, log) everything is searched; whole numbers where both ends are. Only the method's
class knows what it accepts, so `check_space` builds it with every end.
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

AT_LEAST = 16  # dimensions of the points, of which a space takes the first


@dataclass(frozen=True)
class Dimension:
    """An option and the values that a search may give it.

    Attributes:
        option: its name, without the group.
        values: a list of choices; of a range its two ends.
        kind: "choice", "linear" or "log".
    """

    option: str
    values: tuple[Any, ...]
    kind: str

    def at(self, share: float) -> Any:
        """The value at a share in [0, 1) of the way; numbers have three digits."""
        if self.kind == "choice":
            return self.values[int(share * len(self.values))]
        low, high = self.values
        if self.kind == "log":
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        whole = isinstance(low, int) and isinstance(high, int)
        return round(value) if whole else float(f"{value:.3g}")


def space_of(method: str) -> list[Dimension]:
    """What may be searched of a method, in the order of conf/search.yaml; nothing of a method that it lacks.

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
        node: its options, resolved.
        space: of it.

    Raises:
        ConfigError: the yaml has no such option, or the method refuses a value.
    """
    for one in space:
        for value in one.values:
            build("method", {**node, one.option: value})


def trials(space: Sequence[Dimension], number: int) -> list[dict[str, Any]]:
    """`number` choices of all options: the defaults, which are an empty one, then points that fill the space evenly.

    The points are Sobol's, scrambled. More trials begin with the same ones, and the first options of two
    spaces take the same places.
    """
    if not space:
        return [{}]
    engine = torch.quasirandom.SobolEngine(max(AT_LEAST, len(space)), scramble=True, seed=0)
    points: list[list[float]] = engine.draw(number - 1).tolist() if number > 1 else []
    return [{}] + [{d.option: d.at(share) for d, share in zip(space, point, strict=False)} for point in points]
