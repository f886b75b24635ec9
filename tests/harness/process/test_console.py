"""A log that cannot be written ends no run and hides no exit code."""

from pathlib import Path

import pytest

from tests.programs import ALIKE
from tests.zygote import Zygote


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_a_run_ends_well_though_its_log_is_on_a_full_disk(tmp_path: Path, zygote: Zygote) -> None:
    options = (*ALIKE, "progress=true", "benchmark.tasks=2")
    assert zygote.run(tmp_path, "vision.train", *options, "method=fire", before="log_is_full").code == 0
    assert list(tmp_path.rglob("DONE"))
    assert zygote.run(tmp_path, "vision.train", *options, "method=firee", before="log_is_full").code == 2
