"""MNIST's files in the idx format: small ones, written byte by byte as the format says."""

import gzip
import hashlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.config.errors import ConfigError
from tests.programs import compose
from vision.data import mnist
from vision.data.mnist import load_fashion_mnist, load_mnist, read_idx
from vision.task import Task

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def idx(array: np.ndarray) -> bytes:
    """An array of unsigned bytes in the idx format."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write(folder: Path, packed: bool = False, seed: int = 0) -> dict[str, np.ndarray]:
    """The four files, 20 training and 10 test images; what is in them."""
    draw = np.random.default_rng(seed)
    arrays = {}
    for part, count in (("train", 20), ("t10k", 10)):
        arrays[f"{part}-images-idx3-ubyte"] = draw.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        arrays[f"{part}-labels-idx1-ubyte"] = np.arange(count, dtype=np.uint8) % 10
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        content = idx(array)
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)
    return arrays


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("place", ["", "MNIST/raw"])
def test_images_and_labels_are_those_of_the_files(tmp_path: Path, packed: bool, place: str) -> None:
    arrays = write(tmp_path / place, packed)
    data = load_mnist(str(tmp_path))
    assert np.array_equal(data.train_images[:, 0].numpy(), arrays[IMAGES])
    assert np.array_equal(data.test_labels.numpy(), arrays["t10k-labels-idx1-ubyte"])
    assert (data.num_classes, data.in_channels, data.image_size) == (10, 1, 28)
    scaled = arrays[IMAGES].astype(np.float64)
    assert data.mean.item() == pytest.approx(scaled.mean(), rel=1e-6)
    assert data.std.item() == pytest.approx(scaled.std(), rel=1e-6)


def test_a_run_is_named_by_what_is_in_the_files_and_not_by_their_place(tmp_path: Path) -> None:
    found = []
    for packed, seed in ((False, 0), (True, 0), (False, 1)):
        root = tmp_path / str(len(found))
        write(root, packed, seed)
        options = ("dataset=fashion_mnist", f"dataset.root={root}", "benchmark=random_labels", "benchmark.samples=20")
        found.append(Task.from_config(compose("vision", *options)).identity())
    assert found[0] == found[1] != found[2]


def publish(monkeypatch: pytest.MonkeyPatch, dataset: str, arrays: dict[str, np.ndarray]) -> None:
    """Let the published files of a data set be these, which are small."""
    digests = {name: hashlib.md5(idx(array)).hexdigest() for name, array in arrays.items()}
    monkeypatch.setitem(mnist.PUBLISHED, dataset, digests)


@pytest.mark.parametrize("packed", [False, True])
def test_the_files_of_another_published_set_are_refused(
    tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clothes, digits = write(tmp_path / "clothes", packed, seed=1), write(tmp_path / "digits", packed, seed=2)
    publish(monkeypatch, "fashion_mnist", clothes)
    publish(monkeypatch, "mnist", digits)
    assert load_mnist(str(tmp_path / "digits")).published
    assert load_fashion_mnist(str(tmp_path / "clothes")).published
    with pytest.raises(ConfigError, match=r"is Fashion-MNIST's and not MNIST's, .*: take dataset=fashion_mnist"):
        load_mnist(str(tmp_path / "clothes"))
    with pytest.raises(ConfigError, match=r"is MNIST's and not Fashion-MNIST's, .*: take dataset=mnist"):
        load_fashion_mnist(str(tmp_path / "digits"))
    name = "t10k-images-idx3-ubyte" + ".gz" * packed  # one file alone
    (tmp_path / "digits" / name).write_bytes((tmp_path / "clothes" / name).read_bytes())
    with pytest.raises(ConfigError, match=r"t10k-images-idx3-ubyte.* is Fashion-MNIST's and not MNIST's"):
        load_mnist(str(tmp_path / "digits"))


def test_a_set_that_is_known_packed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, packed=True)
    digest = hashlib.md5((tmp_path / f"{IMAGES}.gz").read_bytes()).hexdigest()
    monkeypatch.setitem(mnist.ARCHIVES["kmnist"], IMAGES, digest)
    with pytest.raises(ConfigError, match=r"is Kuzushiji-MNIST's and not MNIST's, whose files are called alike; data"):
        load_mnist(str(tmp_path))


def test_files_of_unknown_content_are_part_of_what_a_run_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also below the usual `paths.data`, where published ones are known by their name."""

    def identity(folder: str, place: str = "paths.data") -> dict[str, Any]:
        options = ("dataset=mnist", f"{place}={tmp_path / folder}", "benchmark=random_labels", "benchmark.samples=20")
        return Task.from_config(compose("vision", *options)).identity()

    published = write(tmp_path / "published", seed=0)
    publish(monkeypatch, "mnist", published)
    write(tmp_path / "a", seed=1)
    write(tmp_path / "b", seed=2)
    assert "path" not in identity("published")["dataset"]
    assert not caplog.records
    assert identity("a") == identity("a", "dataset.root")
    assert "is not the published file" in caplog.text
    assert len({identity(folder)["dataset"].get("path") for folder in ("published", "a", "b")}) == 3
    before = identity("a")
    labels = tmp_path / "a" / LABELS
    labels.write_bytes(idx(np.zeros(20)))
    assert identity("a") != before


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "cut": (IMAGES, lambda content: content[:-1], "should have 15680 bytes of data, not 15679"),
    "labels for images": (IMAGES, lambda _: idx(np.zeros(20)), "is no idx file of 3 dimensions"),
    "another type": (IMAGES, lambda content: content[:2] + b"\x0d" + content[3:], "of unsigned bytes"),
    "empty": (LABELS, lambda _: b"", "is no idx file of 1 dimension"),
    "fewer labels": (LABELS, lambda _: idx(np.zeros(19)), "has 20 images, .* 19 labels"),
    "a wrong label": (LABELS, lambda _: idx(np.full(20, 10)), "it has the label 10"),
    "not square": (IMAGES, lambda _: idx(np.zeros((20, 28, 27))), "no square images"),
    "no images": (IMAGES, lambda _: idx(np.zeros((0, 28, 28))), "has 0 images"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    file, damage, message = DAMAGE[name]
    write(tmp_path)
    (tmp_path / file).write_bytes(damage((tmp_path / file).read_bytes()))
    with pytest.raises(ConfigError, match=message) as error:
        load_mnist(str(tmp_path))
    assert "\n" not in str(error.value)
    assert file in str(error.value)


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    write(tmp_path, packed=True)
    archive = tmp_path / f"{IMAGES}.gz"
    whole = archive.read_bytes()
    for content in (whole[:-20], whole[:50] + bytes(10) + whole[60:], b"no archive"):
        archive.write_bytes(content)
        with pytest.raises(ConfigError, match=r"train-images-idx3-ubyte\.gz (cannot be read|is damaged)"):
            read_idx(archive, 3)


def test_files_that_are_not_there_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^dataset=mnist is not there: put https://.*train-images.* into .*MNIST/raw"
    ):
        load_mnist(str(tmp_path))


def test_fashion_mnist_is_read_from_its_root_else_from_debians_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mnist, "DEBIAN", tmp_path / "debian")
    with pytest.raises(ConfigError, match="apt-get install dataset-fashion-mnist brings it, or put train-images"):
        load_fashion_mnist(str(tmp_path / "own"))
    packaged = write(tmp_path / "debian", packed=True)
    assert np.array_equal(load_fashion_mnist(str(tmp_path / "own")).train_images[:, 0].numpy(), packaged[IMAGES])
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / IMAGES).write_bytes(idx(255 - packaged[IMAGES]))
    with pytest.raises(ConfigError, match=r"its files lie in .*own and .*debian: put all four into one folder"):
        load_fashion_mnist(str(tmp_path / "own"))
    write(tmp_path / "own", packed=False)
    (tmp_path / "own" / IMAGES).write_bytes(idx(255 - packaged[IMAGES]))
    assert np.array_equal(load_fashion_mnist(str(tmp_path / "own")).train_images[:, 0].numpy(), 255 - packaged[IMAGES])
    (tmp_path / "own" / LABELS).write_bytes(idx(np.zeros(19)))
    with pytest.raises(ConfigError, match=r"has 20 images, .* 19 labels"):
        load_fashion_mnist(str(tmp_path / "own"))


@pytest.mark.skipif(not mnist.DEBIAN.is_dir(), reason="needs Debian's package dataset-fashion-mnist")
def test_debians_files_are_fashion_mnist(tmp_path: Path) -> None:
    data = load_fashion_mnist(str(tmp_path))
    assert data.published
    with pytest.raises(ConfigError, match="is Fashion-MNIST's and not MNIST's"):
        load_mnist(str(mnist.DEBIAN))
    assert data.train_images.shape == (60_000, 1, 28, 28)
    assert data.test_labels.bincount().tolist() == [1_000] * 10
