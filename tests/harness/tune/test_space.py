"""What yaml files say may be searched, and the points of a search."""

from typing import Any

import pytest
from omegaconf import OmegaConf

import vision.task  # noqa: F401  registers the schema
from harness.config.cli import CONF
from harness.config.errors import ConfigError
from harness.tune.space import Dimension, check_space, dimension, space_of, trials
from tests.programs import compose

METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
NOTHING = {"base", "chain", "full_reset", "optimizer_reset", "pi"}  # they have no number of their own


def test_every_method_accepts_its_space_which_holds_its_defaults() -> None:
    parts: Any = OmegaConf.to_container(compose("vision", "method=chain"), resolve=True)
    for method in sorted(set(METHODS) - {"chain"}):
        node, space = parts["method"]["parts"][method], space_of(method)
        assert bool(space) == (method not in NOTHING), method
        assert {one.option for one in space} <= set(node)
        check_space(node, space)
        for one in space:
            default = node[one.option]
            if default is not None:
                within = default in one.values if one.kind == "choice" else one.values[0] <= default <= one.values[1]
                assert within, (method, one)


@pytest.mark.parametrize(
    ("text", "values", "kind"),
    [
        ("1e-5 to 1e-1 (log)", (1e-5, 1e-1), "log"),
        ("0 to 1", (0, 1), "linear"),
        ("frobenius, spectral", ("frobenius", "spectral"), "choice"),
        ("0.25, 0, 1", (0.25, 0, 1), "choice"),
    ],
)
def test_comments_are_read(text: str, values: tuple[Any, ...], kind: str) -> None:
    assert dimension("m.o", "o", text) == Dimension("o", values, kind)


@pytest.mark.parametrize("text", ["1 to", "1 to 0", "0 to 1 (log)", "a to b", "one", "1e-5 to 1e-1 (linear)"])
def test_comments_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"m\.o: search"):
        dimension("m.o", "o", text)


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
