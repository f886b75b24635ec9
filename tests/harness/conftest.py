"""Programs for the tests of the harness, and the figures that they tell (docs/reliability.md)."""

from pathlib import Path

import pytest

from tests.programs import LONG, VISION, only_run
from tests.zygote import Zygote


@pytest.fixture(scope="session")
def calm(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run `LONG`, which nothing disturbed."""
    folder = tmp_path_factory.mktemp("calm")
    assert zygote.run(folder, "vision.train", *VISION.tiny(*LONG)).code == 0
    return only_run(folder / "runs")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the tests counted (with `record_property`), one line a figure."""
    figures = [figure for report in terminalreporter.getreports("passed") for figure in report.user_properties]
    if figures:
        terminalreporter.section("reliability")
        for name, value in figures:
            terminalreporter.write_line(f"{name}: {value}")
