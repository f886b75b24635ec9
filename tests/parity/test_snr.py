"""Self-normalised resets against the authors' code (tests/golden/snr.npz): masks, ages, thresholds, silences."""

import numpy as np
import pytest
from torch import Tensor

from fire_core.methods.fire_paper import FirePaperSilences as Silences
from fire_core.units.watch import peak
from tests.parity import golden

META = golden.meta("snr")
DATA = golden.load("snr")


def fired(layer: str, t: int) -> tuple[Tensor, int]:
    """Which units fire in the window of step t, and its samples."""
    x = golden.tensors("snr", f"act.{layer}.t")[str(t)]
    channel = 1 if x.ndim == 4 else x.ndim - 1
    return peak(x, [d for d in range(x.ndim) if d != channel]) > 0, len(x)


def bookkeeping(layer: str) -> Silences:
    units = len(DATA[f"mask.{layer}.t0"])
    percentile, every = META["threshold_percentile"], META["threshold_reset_freq"]
    growth = META["threshold_expansion_factor"]
    silences = Silences(units, percentile, every, META["tau_max"], growth)
    assert (silences.threshold == META["initial_tau"]).all()
    return silences


def histogram(silences: Silences) -> np.ndarray:
    """The reference's histogram of the silences since the last update, but for those of length 0."""
    counts = np.zeros((len(silences.age), META["tau_max"] + 1), dtype=np.int64)
    for row in silences.ended.clamp(max=META["tau_max"]).tolist():
        for unit, length in enumerate(row):
            counts[unit, length] += length > 0
    return counts


@pytest.mark.parametrize("layer", DATA["layers"].tolist())
def test_every_step(layer: str) -> None:
    silences, histograms = bookkeeping(layer), 0
    at_once = np.zeros(len(silences.age), dtype=np.int64)  # silences of length 0, which nothing is read off
    for t in range(META["steps"]):
        firing, samples = fired(layer, t)
        at_once += (firing & (silences.age == 0)).numpy()
        at_once *= t % META["threshold_reset_freq"] > 0
        mask = silences.step_window(firing, samples)
        np.testing.assert_array_equal(mask.numpy(), DATA[f"mask.{layer}.t{t}"], f"mask at {t}")
        np.testing.assert_array_equal(silences.age.numpy(), DATA[f"ages.{layer}.t{t}"], f"age at {t}")
        np.testing.assert_array_equal(silences.threshold.numpy(), DATA[f"tau.{layer}.t{t}"], f"threshold at {t}")
        if (expected := DATA.get(f"hist.{layer}.t{t}")) is not None:
            histograms += 1
            np.testing.assert_array_equal(histogram(silences)[:, 1:], expected[:, 1:], f"silences at {t}")
            np.testing.assert_array_equal(at_once, expected[:, 0], f"firing without a pause at {t}")
    assert histograms
