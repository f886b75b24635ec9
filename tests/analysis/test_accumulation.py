"""What accumulates under FIRE: slopes leave out the first ten tasks, `last` is of the last ten."""

import pandas as pd
import pytest

from analysis import accumulation


def test_a_slope_is_that_of_the_tasks_from_the_eleventh_on() -> None:
    ends = [{"phase": task, accumulation.SCORE: 0.9 if task < 10 else 0.5 - 0.001 * task} for task in range(100)]
    boundaries = [{"phase": task, "boundary/dfi_after": 1.0} for task in range(1, 100)]
    curves = pd.DataFrame([{"row": "fire", "seed": seed} | row for seed in (3, 1, 2) for row in [*boundaries, *ends]])
    found = accumulation.numbers(curves)
    assert found["slope"].to_list() == pytest.approx([-0.1] * 3)
    assert [*found["last"], *found["seed"]] == pytest.approx([0.4055] * 3 + [1, 2, 3])  # in no CPU's order


def test_the_state_at_a_boundary_is_of_the_task_before_it() -> None:
    ends = [{"phase": task, accumulation.SCORE: 0.5} for task in range(20)]
    boundaries = [{"phase": task, **dict.fromkeys(accumulation.STATE, float(task <= 10))} for task in range(1, 20)]
    curves = pd.DataFrame([{"row": "fire", "seed": 1} | row for row in [*boundaries, *ends]])
    drawn = accumulation.figure(curves, "page")
    dormant = next(line for line in drawn.axes[1].lines if line.get_label() == accumulation.NAMES["fire"])
    assert list(dormant.get_ydata()) == [1, 0]
