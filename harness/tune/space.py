"""What may be searched of a method: comments in its yaml file say it.

    coef: 1e-3         # of the penalty; search 1e-5 to 1e-1 (log)
    every: 10          # epochs; search 2 to 40 (log)
    norm_init: power   # search frobenius, spectral, power

Between two numbers everything is searched, evenly or with `(log)` in the logarithm; whole numbers where both are. Else
the values are a list. Only the method's class knows what it accepts, so `check_space` builds it with every end.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import yaml

from harness.config.build import build
from harness.config.cli import CONF
from harness.config.errors import ConfigError

LINE = re.compile(r"(\w+):\s+[^#]*#.*?\bsearch ([^;]+)")
RANGE = re.compile(r"(\S+) to (\S+?)( \(log\))?")
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
    """What conf/method/<method>.yaml says may be searched, in its order.

    Raises:
        ConfigError: there is no such file, or a comment cannot be read.
    """
    path = CONF / "method" / f"{method}.yaml"
    if not path.is_file():
        raise ConfigError(f"method={method} has no file in conf/method, so nothing says what may be searched")
    found = (LINE.match(line) for line in path.read_text().splitlines())
    return [dimension(f"{method}.{match[1]}", match[1], match[2].strip()) for match in found if match]


def dimension(name: str, option: str, text: str) -> Dimension:
    """The comment's part behind `search`, such as `1e-5 to 1e-1 (log)` or `frobenius, spectral`.

    Raises:
        ConfigError: it is neither a range nor a list of two values or more.
    """
    if match := RANGE.fullmatch(text):
        low, high = number(match[1]), number(match[2])
        if low is None or high is None or not low < high or (match[3] and low <= 0):
            raise ConfigError(f"{name}: search {text} is no range from a lower to a higher number (log: above 0)")
        return Dimension(option, (low, high), "log" if match[3] else "linear")
    values = tuple(number(part.strip()) or yaml.safe_load(part) for part in text.split(","))
    if len(values) < 2 or " to " in text:
        raise ConfigError(f"{name}: search {text} is neither a range (1e-5 to 1e-1 (log)) nor a list (a, b)")
    return Dimension(option, values, "choice")


def number(text: str) -> int | float | None:
    """A number as it is written; None: it is none."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return None


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

    The points are Sobol's, scrambled by a fixed seed. More trials begin with the same ones, and the first options of
    two spaces take the same places.
    """
    if not space:
        return [{}]
    engine = torch.quasirandom.SobolEngine(max(AT_LEAST, len(space)), scramble=True, seed=0)
    points: list[list[float]] = engine.draw(number - 1).tolist() if number > 1 else []
    return [{}] + [{d.option: d.at(share) for d, share in zip(space, point, strict=False)} for point in points]
