"""Checks of a program's options: what its annotations accept, and what it says of the rest."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from omegaconf import MISSING, OmegaConf

from fire_core.methods import Method, Net
from fire_core.ranges import Positive, one_of, within
from harness.config.checks import Group, Threads, check_method, check_options
from harness.config.config import Checkpointing, Trunk
from harness.config.errors import ConfigError


@dataclass
class Inner:
    """A group of its own."""

    x: Annotated[float, within(0, 1, open_high=True)] = 0.5
    way: Annotated[str, one_of("a", "b")] = "a"


@dataclass
class Options:
    """Of a program."""

    rate: Positive | None = 1.0
    threads: Threads = 1
    inner: Inner = field(default_factory=Inner)
    checkpoint: Checkpointing = field(default_factory=Checkpointing)
    method: Group = MISSING


GOOD = {"method": {"_target_": "my.Method", "name": "mine"}}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rate": -2.0}, "rate must be positive, got -2.0"),
        ({"rate": "nan"}, "rate must be a finite number or null, got nan"),
        ({"inner": {"x": 1.0}}, r"inner.x must be in [0, 1), got 1.0"),
        ({"inner": {"way": "c"}}, "inner.way=c is unknown; accepted: a, b"),
        ({"checkpoint": {"keep": 0}}, "checkpoint.keep must be in [1, 1000], got 0"),
        ({"checkpoint": {"every_seconds": "inf"}}, "checkpoint.every_seconds must be a finite number, got inf"),
        ({"method": None}, "method must be one of conf/method (adamo, base, "),
        ({"method": 3}, "method must be one of conf/method (adamo, base, "),
        ({"method": {"name": None}}, "method.name must be text, got null"),
        ({"threads": 0}, "threads must be in [1, "),
        ({"threads": 10**6}, ", the cores of this machine, got 1000000"),
    ],
)
def test_what_is_said(change: dict[str, Any], says: str) -> None:
    good: Any = OmegaConf.merge(OmegaConf.structured(Options), GOOD)
    check_options(good)
    bad: Any = OmegaConf.merge(good, change)
    with pytest.raises(ConfigError) as error:
        check_options(bad)
    assert says in str(error.value)


def test_options_that_no_class_declares_have_a_table() -> None:
    checks = {"pair.x": within(0, 1)}
    check_options(OmegaConf.create({"pair": {"x": 1}}), checks)
    with pytest.raises(ConfigError, match=r"^pair\.x must be in \[0, 1\], got 2$"):
        check_options(OmegaConf.create({"pair": {"x": 2}}), checks)


def test_options_of_all_programs_are_checked() -> None:
    config = OmegaConf.structured(Trunk)
    config.program, config.seed = "mine", -1
    with pytest.raises(ConfigError, match=r"^seed must be in \[0, 4294967295\], got -1$"):
        check_options(config)


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
