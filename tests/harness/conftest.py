"""Programs for the tests of the harness."""

from collections.abc import Iterator

import pytest

from tests.harness.zygote import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Runs `vision.train` in children that have imported everything."""
    process = Zygote("vision.train", "vision.data", "vision.models", "vision.benchmarks")
    yield process
    process.close()
