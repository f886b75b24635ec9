"""The similarity dial: what its tables take of each run."""

import pandas as pd
import pytest

from analysis import dial


def rows(method: str, seed: int, ends: list[float], kept: list[float]) -> list[dict[str, object]]:
    run = {"setting": 0.25, "row": method, "seed": seed}
    tasks = [run | {"phase": task, "test/accuracy": end} for task, end in enumerate(ends)]
    return tasks + [run | {"phase": task, dial.KEPT: share} for task, share in enumerate(kept, 1)]


def test_a_run_has_the_mean_of_its_tasks_and_of_its_boundaries() -> None:
    runs = dial.numbers(pd.DataFrame(rows("fire", 101, [0.9, 0.8, 0.7], [0.5, 0.3])), "test/accuracy")
    means = {"new": pytest.approx(0.8), "kept": pytest.approx(0.4)}
    assert runs.to_dict("records") == [{"share": 0.25, "method": "fire", "seed": 101} | means]


def test_methods_are_compared_at_each_share_by_seed() -> None:
    curves = pd.DataFrame(
        rows("fire", 1, [0.9], [0.5]) + rows("fire", 2, [0.8], [0.4])
        + rows("random_isometry", 1, [0.8], [0.1]) + rows("random_isometry", 2, [0.75], [0.2])
    )  # fmt: skip
    found = dial.against({"pixels": dial.numbers(curves, "test/accuracy")}, "fire", "random_isometry")
    new, kept = found["p = 0.25"]
    assert (new.difference.mean, kept.difference.mean) == (pytest.approx(0.075), pytest.approx(0.3))
