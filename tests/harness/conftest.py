"""Programs for the tests of the harness, and the figures that they tell (docs/reliability.md)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.runner import only_run, tiny
from tests.harness.zygote import Zygote

LONG = ("method=fire", "epochs=20")  # some seconds in each phase


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Runs `vision.train` in children that have imported everything."""
    process = Zygote("vision.train", "vision.data", "vision.models", "vision.benchmarks")
    yield process
    process.close()


@pytest.fixture(scope="session")
def calm(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run `LONG`, which nothing disturbed."""
    folder = tmp_path_factory.mktemp("calm")
    assert zygote.run(folder, "vision.train", *tiny(*LONG)).code == 0
    return only_run(folder / "runs")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the tests counted (with `record_property`), one line a figure."""
    figures = [figure for report in terminalreporter.getreports("passed") for figure in report.user_properties]
    if figures:
        terminalreporter.section("reliability")
        for name, value in figures:
            terminalreporter.write_line(f"{name}: {value}")
