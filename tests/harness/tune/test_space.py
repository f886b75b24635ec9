"""What conf/search.yaml says may be searched, and the points of a search."""

from typing import Any

import pytest
from omegaconf import OmegaConf

import vision.task  # noqa: F401  registers the schema
from harness.config.errors import ConfigError
from harness.config.groups import CONF, choices
from harness.tune.space import Dimension, check_space, space_of, trials
from tests.programs import compose

METHODS = choices("method")
SPACES = OmegaConf.load(CONF / "search.yaml")


def test_every_method_accepts_its_space_which_holds_its_defaults() -> None:
    parts: Any = OmegaConf.to_container(compose("vision", "method=chain"), resolve=True)
    assert set(SPACES) <= set(METHODS) - {"chain"}
    for method in sorted(set(METHODS) - {"chain"}):
        node, space = parts["method"]["parts"][method], space_of(method)
        assert bool(space) == (method in SPACES), method
        assert {one.option for one in space} <= set(node)
        assert {one.kind for one in space} <= {"choice", "linear", "log"}
        check_space(node, space)
        for one in space:
            default = node[one.option]
            if default is not None:
                within = default in one.values if one.kind == "choice" else one.values[0] <= default <= one.values[1]
                assert within, (method, one)


def test_a_value_that_the_method_refuses_is_refused_before_anything_runs() -> None:
    node: Any = OmegaConf.to_container(compose("vision", "method=snp").method, resolve=True)
    with pytest.raises(ConfigError, match=r"method\.coef"):
        check_space(node, [Dimension("coef", (0.1, 2.0), "linear")])
    with pytest.raises(ConfigError, match="no file in conf/method"):
        space_of("fires")


def test_points_fill_the_space_and_more_of_them_begin_with_the_same() -> None:
    space = [Dimension("a", (1e-4, 1.0), "log"), Dimension("b", ("x", "y"), "choice"), Dimension("c", (2, 9), "linear")]
    many = trials(space, 33)
    assert many[:9] == trials(space, 9)
    assert many[0] == {}
    assert [one["a"] for one in many[1:]] == [one["a"] for one in trials(space[:1], 33)[1:]]
    decades = [sum(low <= one["a"] < 10 * low for one in many[1:]) for low in (1e-4, 1e-3, 1e-2, 1e-1)]
    assert decades == [8, 8, 8, 8], "evenly in the logarithm"
    assert sum(one["b"] == "x" for one in many[1:]) == 16
    assert {type(one["c"]) for one in many[1:]} == {int}
    assert trials([], 9) == [{}]
