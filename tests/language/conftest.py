"""Runs of the language trainer on one prepared pair of corpora."""

from pathlib import Path

import pytest

from tests.programs import LANGUAGE
from tests.zygote import Answer, Zygote


class Runs:
    """Starts `python -m language.train` with the options of a small run.

    Args:
        zygote: starts it.
        data: where the corpora are prepared, once for all.
    """

    def __init__(self, zygote: Zygote, data: Path) -> None:
        self.zygote, self.data = zygote, data

    def __call__(self, folder: Path, *options: str, **environment: str) -> Answer:
        return self.zygote.run(folder, LANGUAGE.module, *self.tiny(*options), **environment)

    def start(self, folder: Path, *options: str, **environment: str) -> int:
        """The process id of a run that continues beside the test."""
        return self.zygote.start(folder, LANGUAGE.module, *self.tiny(*options), **environment)

    def tiny(self, *options: str) -> list[str]:
        """All options of a small run."""
        return LANGUAGE.tiny(f"paths.data={self.data}", *options)


@pytest.fixture(scope="session")
def runs(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Small runs; the first one prepares the data for all."""
    return Runs(zygote, tmp_path_factory.mktemp("data"))
