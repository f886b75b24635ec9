"""Load your own images from a folder for each class."""

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from numpy.random import RandomState
from torch import Tensor

from fire_core.ranges import Width, checked, one_of
from harness.config.errors import ConfigError
from harness.config.own_files import LeftOut, files_below, is_hidden
from harness.config.paths import Place, expanded
from vision.data.decode import decoded
from vision.data.images import ImageData, Statistics

log = logging.getLogger(__name__)
# The endings that torchvision's ImageFolder accepts.
ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


@checked
def load_folder(
    path: Place = "data/folder",
    image_size: Width = 32,
    in_channels: Annotated[int, one_of(1, 3)] = 3,
    test_statistics: Statistics = "train",
    cache: bool = True,
    spare: Place | None = None,
) -> ImageData:
    """Load images in torchvision's ImageFolder layout: `train/<class>/*.png`, and the same under `test/` or `val/`.

    Hidden and system files, and files that are no images, are left out. One line of the log counts them; another warns
    of test images that are training images too.

    Args:
        path: folder that has `train` and `test` (or `val`).
        image_size: height and width in pixels; other images are cut to their central square and resized.
        in_channels: 3 for colour, 1 for grey.
        test_statistics: `train`, or `test`: normalise the test images by their own mean and deviation.
        cache: whether to store the decoded images in `path`, which saves the decoding at every start.
        spare: folder where they are stored if `path` cannot be written.

    Returns:
        uint8 images (N, in_channels, image_size, image_size).

    Raises:
        ConfigError: a folder is missing, a class has no images in one of the splits, an image is damaged, or a link
            leads to nothing or to a folder that is read already.
        ValueError: if an argument is out of range.
    """
    base = expanded(path)
    test_folder = base / ("val" if (base / "val").is_dir() and not (base / "test").is_dir() else "test")
    for needed in (base / "train", test_folder):
        if not needed.is_dir():
            raise ConfigError(
                f"dataset=folder needs {needed}/<class>/<image>.png (or .jpg, ...): set dataset.path= to a folder "
                "with train/ and test/ (or val/)"
            )
    classes = sorted(entry.name for entry in (base / "train").iterdir() if entry.is_dir() and not is_hidden(entry.name))
    for entry in test_folder.iterdir():
        if entry.is_dir() and not is_hidden(entry.name) and entry.name not in classes:
            raise ConfigError(f"{entry} has no counterpart in {base / 'train'}: test classes must be trained on")
    left_out = LeftOut()
    train, test = (_samples(split, classes, left_out) for split in (base / "train", test_folder))
    if test_folder.name == "test" and (base / "val").is_dir():
        left_out.add("folders that are not needed beside test", "val")
    if str(left_out):
        log.info("dataset.path=%s: left out are %s", path, left_out)
    cache_file = base / f"decoded-{image_size}x{in_channels}.safetensors" if cache else None
    splits = decoded(train, test, image_size, in_channels, cache_file, None if spare is None else expanded(spare))
    if duplicates := number_in_both(splits[0][0], splits[1][0]):
        log.warning(
            "dataset.path=%s: %d of %d test images have the pixels of a training image: they measure memory",
            path,
            duplicates,
            len(test),
        )
    return ImageData.of(*splits, len(classes), test_statistics)


def number_in_both(train: Tensor, test: Tensor) -> int:
    """Return how many test images (M, C, H, W) are equal, pixel by pixel, to a training image of (N, C, H, W)."""
    training_digests = set(map(_digest, train))
    return sum(_digest(image) in training_digests for image in test)


def _digest(image: Tensor) -> bytes:
    return hashlib.sha256(image.numpy().tobytes()).digest()


def _samples(split: Path, classes: Sequence[str], left_out: LeftOut) -> list[tuple[Path, int]]:
    """Return the image files below a split's folder with their class numbers, in an order that is always the same.

    Raises:
        ConfigError: a class has no images.
    """
    by_class: dict[str, list[Path]] = {name: [] for name in classes}
    other_endings: dict[str, set[str]] = {name: set() for name in classes}  # of a class's files that are no images
    for file in files_below(split, left_out):
        name = file.relative_to(split).parts[0]
        if name not in by_class:
            left_out.add("files outside of a class's folder", file.name)
        elif file.suffix.lower() in ENDINGS:
            by_class[name].append(file)
        else:
            left_out.add("files that are no images", file.suffix or file.name)
            other_endings[name].add(file.suffix or file.name)
    empty = [name for name in classes if not by_class[name]]
    if not classes or len(empty) == len(classes):
        raise ConfigError(f"{split} has no images: put them at {split}/<class>/<image>.png (or .jpg, ...)")
    if empty:
        instead = f", only {', '.join(sorted(other_endings[empty[0]]))}" if other_endings[empty[0]] else ""
        raise ConfigError(
            f"{split} has no images of {', '.join(empty)}{instead}: put some there ({', '.join(ENDINGS)}), or remove "
            "the class from both splits"
        )
    samples = [(file, number) for number, name in enumerate(classes) for file in by_class[name]]
    # Shuffled, because plasticity is measured on the first images, which would otherwise be of one class.
    order = RandomState(0).permutation(len(samples))
    return [samples[i] for i in order]
