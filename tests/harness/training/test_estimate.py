"""What a run says of its length: right for steps of one speed, and never a guess from the first ones alone."""

from pathlib import Path

import pytest

from harness.config.arguments import number_of_jobs
from harness.training.estimate import Estimate, in_words
from tests.programs import SMALL
from tests.zygote import Zygote


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def said(total: int, durations: dict[range, float], first: int = 0) -> list[tuple[float, str]]:
    """When what is said, in a run whose steps of each range take so many seconds."""
    clock = Clock()
    estimate, lines = Estimate(total, first, clock), []
    for steps, seconds in durations.items():
        for step in steps:
            clock.now += seconds
            if line := estimate.after(step + 1):
                lines.append((clock.now, line))
    return lines


def test_steps_of_one_speed_are_estimated_once_and_exactly() -> None:
    ((when, line),) = said(1300, {range(1300): 0.1})
    assert 10 <= when < 25
    assert line == "about 2 min 10 s for this run"


def test_what_is_resumed_or_taken_from_a_shared_phase_takes_no_time_any_more() -> None:
    ((_, line),) = said(1300, {range(650, 1300): 0.1}, first=650)
    assert line == "about 65 s more for this run, from step 650 of 1,300"


def test_quick_steps_before_the_first_update_are_not_taken_for_the_others() -> None:
    ((_, line),) = said(10_000, {range(500): 1e-4, range(500, 10_000): 0.02})
    assert line == "about 3 min 10 s for this run"


def test_a_slow_first_step_is_not_taken_for_the_others() -> None:
    ((when, line),) = said(3000, {range(1): 8.0, range(1, 3000): 0.1})
    assert when > 16
    assert line == "about 5 min 10 s for this run"


def test_where_steps_become_slower_it_is_said_again() -> None:
    (_, first), *_, (when, last) = said(2000, {range(1000): 0.1, range(1000, 2000): 0.5})
    assert first == "about 3 min 20 s for this run"
    assert last in ("about 9 min for this run", "about 10 min for this run", "about 11 min for this run")
    assert when < 400, "of 600 seconds"


def test_nothing_is_said_of_a_short_run() -> None:
    assert said(90, {range(90): 0.1}) == []


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(9.6, "10 s"), (99, "99 s"), (129, "2 min 10 s"), (754, "12 min"), (3599, "1 h"), (12_000, "3 h 20 min")],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_jobs_of_a_sweep_are_counted() -> None:
    assert number_of_jobs(["method=base,fire", "seed=range(3)", "lr=0.1", "-m"]) == 6
    assert number_of_jobs(["method=base"]) == 1


def test_the_first_job_of_a_sweep_says_how_long_all_take(tmp_path: Path, zygote: Zygote) -> None:
    options = SMALL.tiny("method=base,fire", "epochs=10", "-m")
    answer = zygote.run(tmp_path, "vision.train", *options, before="say_how_long_soon")
    assert answer.code == 0, answer.err
    lines = [line for line in answer.err.splitlines() if "for this run" in line]
    assert sum("for all 2 jobs of the sweep if they are alike" in line for line in lines) == 1
    assert "for all 2 jobs" in lines[0]
