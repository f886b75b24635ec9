"""Checks of options, declared as data: a program has a table {option: check}, and `check_options` goes through it.

CHECKS = {"lr": positive(), "epochs": at_least(1), "warmup": within(0, 1), "schedule": one_of("warmup", "reference")}
"""

from collections.abc import Callable, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fire_core.harness.options.errors import ConfigError
from fire_core.methods import Method, Net

Check = Callable[[str, Any], str | None]  # option and value -> what is wrong with it, None: nothing


def one_of(*accepted: Any) -> Check:
    """One of these values."""

    def check(option: str, value: Any) -> str | None:
        names = ", ".join(map(str, accepted))
        return None if value in accepted else f"{option}={value} is unknown; accepted: {names}"

    return check


def at_least(least: float, optional: bool = False) -> Check:
    """A number of at least this; `optional`: or null."""
    return _number(lambda value: value >= least, f"at least {least}", optional)


def positive(optional: bool = False) -> Check:
    """A number above 0; `optional`: or null."""
    return _number(lambda value: value > 0, "positive", optional)


def within(low: float, high: float, open_low: bool = False, open_high: bool = False, optional: bool = False) -> Check:
    """A number in [low, high], without the ends that are open; `optional`: or null."""

    def inside(value: float) -> bool:
        return (low < value if open_low else low <= value) and (value < high if open_high else value <= high)

    return _number(inside, f"in {'(' if open_low else '['}{low}, {high}{')' if open_high else ']'}", optional)


def _number(accepts: Callable[[float], bool], words: str, optional: bool) -> Check:
    def check(option: str, value: Any) -> str | None:
        good = optional if value is None else not isinstance(value, str) and accepts(value)
        return None if good else f"{option} must be {words}, got {value}"

    return check


# Of the options that all programs have (`fire_core.harness.options.config.Trunk`).
TRUNK = {
    "threads": at_least(1, optional=True),
    "checkpoint.keep": at_least(1),
    "checkpoint.every_seconds": at_least(0),
}


def check_options(config: DictConfig, checks: Mapping[str, Check]) -> None:
    """Hold the options against a program's table and `TRUNK`; a dotted name is an option within a group.

    Raises:
        ConfigError: with the first option that is not accepted, its value and what is accepted.
    """
    trunk = TRUNK if "checkpoint" in config else {}  # programs that do not train have no such options
    for option, check in {**trunk, **checks}.items():
        if wrong := check(option, OmegaConf.select(config, option)):
            raise ConfigError(wrong)


def check_method(
    method: Method, net: Net, *, name: str, network: str, without: Mapping[str, str] | None = None
) -> None:
    """Refuse a method that cannot work in a trainer or on its networks.

    Args:
        method: as the run will use it.
        net: the networks, whatever their weights.
        name: the method's.
        network: the option that names the network, `model=mlp`.
        without: hooks that the trainer has no place for, each with what to say to who wants them.

    Raises:
        ConfigError: the method has such a hook, or cannot work on the networks.
    """
    for hook, reason in (without or {}).items():
        if method.overrides(hook):
            raise ConfigError(f"method={name} {reason}")
    try:
        method.check(net)
    except ValueError as error:
        raise ConfigError(f"method={name} cannot work with {network}: {error}") from error
