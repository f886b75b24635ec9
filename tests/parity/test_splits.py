"""The phases of the three benchmarks are those of the reference code, index by index."""

import re

import numpy as np
import pytest

from tests.parity import golden
from vision.data.splits import Split, class_phases, sample_phases, warm_start_phases

DATA, META = golden.load("splits"), golden.meta("splits")
SIZES = (META["n_train"], META["n_test"])
REAL = sorted({key.rsplit(".", 1)[0] for key in DATA if re.match(r"real\..*\.seed", key)})


def chunk_ids(phases: list[Split], n_train: int) -> np.ndarray:
    """The first phase that contains each training sample.

    Returns:
        int64 (n_train,); -1 for samples that no phase contains.
    """
    ids = np.full(n_train, -1)
    for i, (train, _) in reversed(list(enumerate(phases))):
        ids[train] = i
    return ids


def check_case(case: str, phases: list) -> None:
    for i, (train, test) in enumerate(phases):
        np.testing.assert_array_equal(train, DATA[f"{case}.train.{i}"])
        ids = chunk_ids(phases, META["n_train"])
        np.testing.assert_array_equal(ids[train], DATA[f"{case}.chunk_id.{i}"])
        if f"{case}.test.{i}" in DATA:
            np.testing.assert_array_equal(test, DATA[f"{case}.test.{i}"])
    assert f"{case}.train.{len(phases)}" not in DATA


@pytest.mark.parametrize("ratio", META["warm_ratio"])
def test_warm_start(ratio):
    phases = warm_start_phases(*SIZES, ratio, META["seed"])
    check_case(f"warm_r{ratio}", phases)
    np.testing.assert_array_equal(phases[1][0], DATA["perm.train"])
    np.testing.assert_array_equal(phases[0][1], np.arange(META["n_test"]))


def test_continual():
    phases = sample_phases(*SIZES, META["sample_chunks"], META["seed"])
    check_case("continual", phases)
    np.testing.assert_array_equal(phases[0][1], DATA["perm.test"])


def test_class_incremental():
    labels = DATA["targets.train"], DATA["targets.test"]
    check_case("class", class_phases(*labels, META["class_chunks"], META["seed"]))
    np.testing.assert_array_equal(order_of_classes(*SIZES, META["n_classes"], META["seed"]), DATA["perm.classes"])


def order_of_classes(n_train: int, n_test: int, classes: int, seed: int) -> np.ndarray:
    """Which class comes when, one at a time; the labels do not matter."""
    labels = np.arange(n_train) % classes, np.arange(n_test) % classes
    seen = [np.unique(labels[0][train]) for train, _ in class_phases(*labels, classes, seed)]
    return np.concatenate([np.setdiff1d(new, old) for old, new in zip([[], *seen], seen, strict=False)])


@pytest.mark.parametrize("case", REAL)
def test_real_sizes(case):
    dataset, seed = case.removeprefix("real.").rsplit(".seed", 1)
    warm, continual = (DATA[f"real.{dataset}.{kind}_sizes"] for kind in ("warm", "continual"))
    n_train, n_test, classes = warm[-1], 10_000, DATA[f"{case}.classes"]
    ratio = 100 * warm[0] // n_train
    phases = warm_start_phases(n_train, n_test, ratio, int(seed))
    np.testing.assert_array_equal(phases[1][0][:32], DATA[f"{case}.train_first32"])
    np.testing.assert_array_equal(phases[1][0][-32:], DATA[f"{case}.train_last32"])
    assert [len(train) for train, _ in phases] == list(warm)

    phases = sample_phases(n_train, n_test, len(continual), int(seed))
    assert [len(train) for train, _ in phases] == list(continual)
    np.testing.assert_array_equal(phases[0][1][:32], DATA[f"{case}.test_first32"])

    np.testing.assert_array_equal(order_of_classes(n_train, n_test, len(classes), int(seed)), classes)


def test_the_global_generator_is_left_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002 (it is what is watched)
    warm_start_phases(100, 10, 10, seed=0)
    sample_phases(100, 10, 5, seed=0)
    class_phases(np.arange(100) % 10, np.arange(10), 5, seed=0)
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002
