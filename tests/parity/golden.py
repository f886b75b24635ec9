"""The golden data: inputs and outputs of the reference code, as arrays."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(os.environ.get("FIRE_GOLDEN") or Path(__file__).parents[1] / "golden")


@cache
def load(name: str) -> dict[str, np.ndarray]:
    """All arrays of `<name>.npz`, keyed by their dotted names."""
    with np.load(ROOT / f"{name}.npz", allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}


def meta(name: str) -> dict[str, Any]:
    """The hyperparameters stored in `<name>.npz`."""
    return json.loads(str(load(name)["meta_json"]))


@cache
def facts(name: str) -> Any:
    """The content of `<name>.json`."""
    return json.loads((ROOT / f"{name}.json").read_text())


def tensors(name: str, prefix: str) -> dict[str, torch.Tensor]:
    """Arrays of `<name>.npz` whose key starts with `prefix`, as tensors, the prefix cut off."""
    return {
        key.removeprefix(prefix): torch.from_numpy(np.array(value))
        for key, value in load(name).items()
        if key.startswith(prefix) and value.dtype.kind in "fiub"
    }


def close(actual: Any, expected: Any, rtol: float = 1e-4) -> None:
    """Equal within `rtol` of the largest entry; the default is the tolerance of models.npz."""
    actual = np.asarray(torch.as_tensor(actual).detach(), dtype=np.float64)
    expected = np.asarray(expected, dtype=np.float64)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=rtol * np.abs(expected).max())
