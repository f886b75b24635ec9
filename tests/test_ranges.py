"""What annotations accept, and what is said of the rest."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from fire_core.ranges import Check, Count, at_least, checked, one_of, positive, problem, within


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (at_least(1), (1, 2.5, np.int64(3)), (0, math.nan, None, "2")),
        (positive(), (1e-9, math.inf, 10**400), (0, -1, math.nan, None)),
        (within(0, 1), (0, 0.5, 1), (-0.1, 1.1, math.nan, 10**400)),
        (within(0, 1, open_low=True), (1,), (0,)),
        (within(0, 1, open_high=True), (0,), (1,)),
        (one_of("a", "b"), ("a", "b"), ("c", None)),
    ],
)
def test_what_a_check_accepts(check: Check, good: tuple[object, ...], bad: tuple[object, ...]) -> None:
    assert [check("x", value) for value in good] == [None] * len(good)
    assert all(check("x", value) for value in bad)


PAIR = tuple[float, float]
RATE = Annotated[float, within(0, 1)]
HINTS: list[tuple[Any, tuple[Any, ...], dict[Any, str]]] = [
    (int, (0, -5, np.int32(2)), {1.5: "a whole number", True: "a whole number", None: "a whole number"}),
    (int, (2**63 - 1,), {10**40: "a whole number of at most 64 bits", "1": "a whole number, got '1'"}),
    (float, (1, 0.5, np.float32(1)), {math.nan: "a finite number, got nan", -math.inf: "a finite number, got -inf"}),
    (float, (), {"1e-3": "a number, got '1e-3'", False: "a number, got False", None: "a number, got null"}),
    (bool, (True, False), {"no": "true or false, got 'no'", 1: "true or false", None: "true or false"}),
    (str, ("a", ""), {1: "text, got 1", None: "text, got null"}),
    (float | None, (None, 1.0), {"x": "a number or null, got 'x'"}),
    (str | Mapping[str, str] | None, ("a", {"a": "b"}, None), {3: "text or a table or null"}),
    (PAIR, ((0.9, 0.95), [1, 2]), {(1,): "a list of 2, got", 3: "a list of 2, got 3", "ab": "a list of 2"}),
    (PAIR, (), {(math.nan, 1): "x[0] must be a finite number"}),
    (Sequence[RATE], ((), [0.5, 1]), {(0.5, 2): "x[1] must be in [0, 1], got 2", 1: "a list, got 1"}),
    (tuple[int, ...], ((1, 2, 3),), {(1, 2.5): "x[1] must be a whole number, got 2.5"}),
    (RATE | None, (0.5, None), {2: "in [0, 1], got 2", "a": "a number or null"}),
    (Literal["a", "b"], ("a",), {"c": "a or b, got 'c'"}),
    (Any, (None, math.nan, "x", object()), {}),
    (Check, (None, "anything"), {}),
    (np.ndarray, (None, 3), {}),
]


@pytest.mark.parametrize(("hint", "good", "bad"), HINTS)
def test_what_an_annotation_accepts(hint: Any, good: tuple[object, ...], bad: dict[Any, str]) -> None:
    assert [problem("x", value, hint) for value in good] == [None] * len(good)
    for value, words in bad.items():
        assert words in (problem("x", value, hint) or ""), value


class Mine:
    """Someone's own class."""

    @checked
    def __init__(self, rate: RATE = 0.5, every: Count = 1, what=None) -> None:  # type: ignore[no-untyped-def]
        self.rate, self.every, self.what = rate, every, what


def test_a_call_is_checked_by_its_annotations() -> None:
    assert vars(Mine(0.2, every=3, what="x")) == {"rate": 0.2, "every": 3, "what": "x"}
    with pytest.raises(ValueError, match=r"^rate must be in \[0, 1\], got 2$"):
        Mine(2)
    with pytest.raises(ValueError, match=r"^every must be a whole number, got 1\.5$"):
        Mine(every=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected"):
        Mine(ever=1)  # type: ignore[call-arg]
