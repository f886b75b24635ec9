"""Checks of options are data: what each accepts, and what it says of the rest."""

import math

import pytest
from omegaconf import OmegaConf

from fire_core.harness.options.checks import (
    Check,
    at_least,
    check_method,
    check_options,
    one_of,
    positive,
    within,
)
from fire_core.harness.options.errors import ConfigError
from fire_core.methods import Method, Net


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (at_least(1), (1, 2.5), (0, math.nan, None, "2")),
        (at_least(1, optional=True), (1, None), (0,)),
        (positive(), (1e-9, math.inf), (0, -1, math.nan, None)),
        (within(0, 1), (0, 0.5, 1), (-0.1, 1.1, math.nan)),
        (within(0, 1, open_low=True), (1,), (0,)),
        (within(0, 1, open_high=True), (0,), (1,)),
        (one_of("a", "b"), ("a", "b"), ("c", None)),
    ],
)
def test_what_is_accepted(check: Check, good: tuple[object, ...], bad: tuple[object, ...]) -> None:
    assert [check("x", value) for value in good] == [None] * len(good)
    assert all(check("x", value) for value in bad)


@pytest.mark.parametrize(
    ("check", "value", "says"),
    [
        (at_least(1), 0, "group.x must be at least 1, got 0"),
        (positive(), -2.0, "group.x must be positive, got -2.0"),
        (within(0, 1, open_high=True), 1, "group.x must be in [0, 1), got 1"),
        (one_of("a", "b"), "c", "group.x=c is unknown; accepted: a, b"),
    ],
)
def test_what_is_said(check: Check, value: object, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_options(OmegaConf.create({"group": {"x": value}}), {"group.x": check})
    assert str(error.value) == says


def test_options_of_all_programs_are_checked() -> None:
    config = OmegaConf.create({"threads": None, "checkpoint": {"keep": 0, "every_seconds": 60}})
    with pytest.raises(ConfigError, match=r"^checkpoint\.keep must be at least 1, got 0$"):
        check_options(config, {})


class Picky(Method):
    """Wants a hook, and networks of its own kind."""

    def after_step(self, net: Net, context: object) -> None:
        """Nothing."""

    def check(self, net: Net) -> None:
        raise ValueError("no such units")


def test_methods_are_refused_with_a_reason() -> None:
    net, names = Net({}, {}), {"name": "picky", "network": "model=mlp"}
    with pytest.raises(ConfigError, match=r"^method=picky needs one process$"):
        check_method(Picky(), net, **names, without={"after_step": "needs one process"})
    with pytest.raises(ConfigError, match=r"^method=picky cannot work with model=mlp: no such units$"):
        check_method(Picky(), net, **names, without={"watch": "is compiled"})
    check_method(Method(), net, **names, without={"after_step": "needs one process"})
