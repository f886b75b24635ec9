"""Programs for the tests of the language trainer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.zygote import Zygote
from tests.language.runs import Runs


@pytest.fixture(scope="session")
def programs() -> Iterator[Zygote]:
    """Runs `language.*` in children that have imported everything."""
    process = Zygote("language.train", "language.sample", "torch.distributed.run", "torch._inductor")
    yield process
    process.close()


@pytest.fixture(scope="session")
def runs(programs: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Small runs; the first one prepares the data for all."""
    data: Path = tmp_path_factory.mktemp("data")
    return Runs(programs, data)
