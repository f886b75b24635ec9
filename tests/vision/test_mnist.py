"""MNIST's files in the idx format: small ones, written byte by byte as the format says."""

import gzip
import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torchvision import datasets

from harness.config.errors import ConfigError
from vision.data.mnist import load_mnist

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def idx(array: np.ndarray) -> bytes:
    """An array of unsigned bytes in the idx format."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write(root: Path) -> dict[str, np.ndarray]:
    """The four files, 20 training and 10 test images; what is in them."""
    draw = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 20), ("t10k", 10)):
        arrays[f"{part}-images-idx3-ubyte"] = draw.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        arrays[f"{part}-labels-idx1-ubyte"] = np.arange(count, dtype=np.uint8) % 10
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name, array in arrays.items():
        (folder / name).write_bytes(idx(array))
    return arrays


@pytest.mark.parametrize("packed", [False, True])
def test_images_and_labels_are_those_of_the_files(
    tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published archives are unpacked without the network."""
    arrays = write(tmp_path)
    if packed:
        resources = []
        for path in list((tmp_path / "MNIST" / "raw").iterdir()):
            archive = path.with_name(path.name + ".gz")
            archive.write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
            resources.append((archive.name, hashlib.md5(archive.read_bytes()).hexdigest()))
        monkeypatch.setattr(datasets.MNIST, "resources", resources)
        monkeypatch.setattr(datasets.MNIST, "mirrors", ["http://127.0.0.1:9/"])
        with pytest.raises(ConfigError, match=r"dataset.download=true"):
            load_mnist(str(tmp_path))
    data = load_mnist(str(tmp_path), download=packed)
    assert np.array_equal(data.train_images[:, 0].numpy(), arrays[IMAGES])
    assert np.array_equal(data.test_labels.numpy(), arrays["t10k-labels-idx1-ubyte"])
    assert (data.num_classes, data.in_channels, data.image_size) == (10, 1, 28)
    scaled = arrays[IMAGES].astype(np.float64)
    assert data.mean.item() == pytest.approx(scaled.mean(), rel=1e-6)
    assert data.std.item() == pytest.approx(scaled.std(), rel=1e-6)


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "cut": (IMAGES, lambda content: content[:-1]),
    "longer": (IMAGES, lambda content: content + b"x"),
    "labels for images": (IMAGES, lambda _: idx(np.zeros(20))),
    "another type": (IMAGES, lambda content: content[:2] + b"\x0d" + content[3:]),
    "empty": (LABELS, lambda _: b""),
    "fewer labels": (LABELS, lambda _: idx(np.zeros(19))),
    "a wrong label": (LABELS, lambda _: idx(np.full(20, 10))),
    "not square": (IMAGES, lambda _: idx(np.zeros((20, 28, 27)))),
    "no images": (IMAGES, lambda _: idx(np.zeros((0, 28, 28)))),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    file, damage = DAMAGE[name]
    write(tmp_path)
    path = tmp_path / "MNIST" / "raw" / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ConfigError, match=r"^dataset=mnist cannot be read from .*MNIST/raw") as error:
        load_mnist(str(tmp_path))
    assert "\n" not in str(error.value)


def test_files_that_are_not_there_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"put the four files of https://.* there"):
        load_mnist(str(tmp_path))
