"""A run for the tests of the harness."""

from pathlib import Path

import pytest

from tests.programs import LONG, SMALL, only_run
from tests.zygote import Zygote


@pytest.fixture(scope="session")
def calm(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run `LONG`, which nothing disturbed."""
    folder = tmp_path_factory.mktemp("calm")
    assert zygote.run(folder, "vision.train", *SMALL.tiny(*LONG)).code == 0
    return only_run(folder / "runs")
