"""The authors' learning-rate schedule (tests/golden/vision_schedule.npz): what a step of each pass really used."""

import numpy as np
import pytest

from tests.parity import golden
from vision.schedule import authors_factor, warmup

META = golden.meta("vision_schedule")
FACTS = golden.facts("vision_schedule")
BENCHMARKS = [name for name, fact in FACTS.items() if isinstance(fact, dict) and "lr_pattern_of_level" in fact]


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_pass_of_every_level(benchmark: str) -> None:
    fact, epochs = FACTS[benchmark], META["n_epochs"]
    earlier = 0
    levels = zip(fact["epochs_per_level"], fact["logged_epochs_per_level"], fact["lr_pattern_of_level"], strict=True)
    for passes, logged, pattern in levels:
        stride = passes // logged
        factors = [authors_factor(i, epochs, stride, earlier, META["warmup_rate"]) for i in range(passes)]
        expected = golden.load("vision_schedule")[f"lr.{benchmark}.pattern{pattern}"]
        if 1 < stride < 1 / META["warmup_rate"]:
            expected = np.minimum(expected, META["base_lr"])  # the overshoot (docs/paper.md, A17) is not repeated
        np.testing.assert_allclose(META["base_lr"] * np.array(factors), expected, rtol=1e-12, atol=1e-18)
        earlier += logged


MUON = sorted(key for key in golden.load("vision_schedule") if "_muon." in key)


@pytest.mark.parametrize("key", MUON)
def test_groups_of_muon_scale_their_own_rate(key: str) -> None:
    """Both groups follow the factor of the benchmark's pattern, each from its own base rate."""
    rates = golden.load("vision_schedule")[key]
    benchmark, level = key.split(".")[1].removesuffix("_muon"), int(key.split("level")[1].split(".")[0])
    pattern = FACTS[benchmark]["lr_pattern_of_level"][level]
    factors = golden.load("vision_schedule")[f"lr.{benchmark}.pattern{pattern}"] / META["base_lr"]
    adam = FACTS[f"{benchmark}_muon"]["classes_per_level"][str(level)] == ["Adam"]
    muon, rest = next(groups for groups in golden.facts("muon_groups")["models"].values() if isinstance(groups, list))
    ratio = muon["lr"] / rest["lr"] if "group0" in key and not adam else 1
    np.testing.assert_allclose(rates, META["base_lr"] * ratio * factors, rtol=1e-12, atol=1e-18)


def test_the_ramp_never_overshoots() -> None:
    assert max(authors_factor(i, 7, 3, 5) for i in range(21)) <= 1


def test_plain_warmup() -> None:
    assert [warmup(i, 40, 0.1) for i in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert warmup(0, 40, 0) == 1
