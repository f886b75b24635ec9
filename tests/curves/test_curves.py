"""The programs give the numbers that were recorded (`python scripts/record_curves.py`)."""

from pathlib import Path

import pytest

from harness.run import NUMERICS
from tests.curves import series
from tests.curves.cases import CASES


def main_cases(program: str) -> list[str]:
    """Base and FIRE, and all of language, which has few."""
    return [case for case in CASES[program] if program == "language" or {"base", "fire"} & set(case.split())]


def other_cases(program: str) -> list[str]:
    return [case for case in CASES[program] if case not in main_cases(program)]


PARTS = [
    *(pytest.param(program, main_cases(program), id=program) for program in CASES),
    *(
        pytest.param(name, other_cases(name), id=f"{name}, others", marks=pytest.mark.slow)
        for name in ("vision", "dqn", "sac")
    ),
]


@pytest.mark.parametrize(("program", "names"), PARTS)
def test_numbers_are_those_recorded(program: str, names: list[str], tmp_path: Path) -> None:
    """Bit for bit with the same torch on the same model of CPU, within a tolerance elsewhere; nothing is lost."""
    place, recorded = series.read(program)
    assert list(recorded) == list(CASES[program]), "record the curves anew: python scripts/record_curves.py"
    now = series.run_cases(program, names, tmp_path)
    recorded = {name: recorded[name] for name in names}
    found = series.differences(program, recorded, now, exact=place == series.environment(program))
    assert not found, "\n".join([*found[:40], f"{len(found)} numbers in all"])


@pytest.mark.parametrize("program", CASES)
def test_changed_numbers_need_a_new_format(program: str) -> None:
    """What is recorded was recorded under today's NUMERICS: caches and finished runs of other numbers have another."""
    place, _ = series.read(program)
    history = series.history()[program]
    assert str(NUMERICS[program]) == max(history, key=int), "NUMERICS was raised: python scripts/record_curves.py"
    assert history[str(NUMERICS[program])][place] == series.digest(program), (
        "numbers were changed by hand or under the same NUMERICS: raise it, then python scripts/record_curves.py"
    )


def test_methods_show_in_their_numbers() -> None:
    """No two cases of a program have the same losses: each shows something of its method."""
    for program in CASES:
        _, recorded = series.read(program)
        losses = [repr(columns["train/loss"]) for columns in recorded.values() if "train/loss" in columns]
        losses += [repr(columns["train/critic_loss"]) for columns in recorded.values() if "train/loss" not in columns]
        assert len(set(losses)) == len(recorded)


def test_numbers_after_an_episode_that_went_another_way_are_not_compared() -> None:
    recorded = {"muon": {"eval/length": {"100": 6.0, "300": 6.0}, "train/loss": {"100": 1.0, "300": 1.0, "400": 1.0}}}

    def different(exact: bool = False, **changed: float) -> int:
        numbers = {column: dict(places) for column, places in recorded["muon"].items()}
        for place, value in changed.items():
            column, _, step = place.partition("_at_")
            numbers[{"length": "eval/length", "loss": "train/loss"}[column]][step] = value
        return len(series.differences("sac", recorded, {"muon": numbers}, exact))

    assert different(length_at_300=7.0, loss_at_400=2.0) == 0
    assert different(length_at_300=7.0, loss_at_400=2.0, exact=True) == 2
    assert different(length_at_300=7.0, loss_at_100=2.0) == 1
    assert different(length_at_100=7.0, loss_at_400=2.0) == 2  # in the first half of the run: an error
    assert different(loss_at_400=2.0) == 1
