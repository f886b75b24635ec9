"""Load your own images from a folder for each class."""

import hashlib
import logging
import unicodedata
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

    Hidden and system files, and files that are no images, are left out. One line of the log counts them; others warn of
    test images that are training images too, and of training images that stand in two classes.

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
        ConfigError: a folder is missing, there is one class, a class has no images in one of the splits, an image is
            damaged, or a link leads to nothing or to a folder that is read already.
        ValueError: if an argument is out of range.
    """
    base = expanded(path)
    train_folder, test_folder = _split_folders(base)
    classes = sorted({_class_name(folder) for folder in _folders_of(train_folder)})
    for folder in _folders_of(test_folder) if classes else ():
        if _class_name(folder) not in classes:
            raise ConfigError(
                f"{test_folder / folder} has no counterpart in {train_folder}: test classes must be trained on"
            )
    left_out = LeftOut()
    train, test = (_samples(split, classes, left_out) for split in (train_folder, test_folder))
    if len(classes) == 1:
        inner = sorted(
            {file.relative_to(train_folder).parts[1] for file, _ in train} - {file.name for file, _ in train}
        )
        hint = f"; are {', '.join(inner[:5])} in it the classes?" if inner else ""
        raise ConfigError(
            f"{train_folder} has one class, {classes[0]}: there is nothing to tell apart; put the images of each class "
            f"into a folder of its own{hint}"
        )
    for other in _folders_of(base):
        if base / other not in (train_folder, test_folder):
            left_out.add(f"folders beside train and {test_folder.name}", other)
    if str(left_out):
        log.info("dataset.path=%s: left out are %s", path, left_out)
    cache_file = base / f"decoded-{image_size}x{in_channels}.safetensors" if cache else None
    splits = decoded(train, test, image_size, in_channels, cache_file, None if spare is None else expanded(spare))
    _warn_of_copies(path, *splits)
    return ImageData.of(*splits, len(classes), test_statistics)


def _split_folders(base: Path) -> tuple[Path, Path]:
    """Return the folders of the training and of the test images.

    Raises:
        ConfigError: one is missing; the message names the folders that are there.
    """
    folders = _folders_of(base)
    test = "val" if "val" in folders and "test" not in folders else "test"
    for needed in ("train", test):
        if needed not in folders:
            there = f"; it has {', '.join(folders[:5])}" if folders else ""
            raise ConfigError(
                f"dataset=folder needs {base / needed}/<class>/<image>.png (or .jpg, ...): set dataset.path= to a "
                f"folder with train/ and test/ (or val/){there}"
            )
    return base / "train", base / test


def _folders_of(folder: Path) -> list[str]:
    """Return the names of the folders in a folder which are not hidden; none if it is not there, or is a file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return sorted(entry.name for entry in folder.iterdir() if not is_hidden(entry.name) and entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read ({error.strerror or error}): repair or remove it") from error


def _class_name(folder: str) -> str:
    """Return the class of a folder's name; macOS writes ö as two characters, o and its dots, other systems as one."""
    return unicodedata.normalize("NFC", folder)


def _warn_of_copies(path: str, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> None:
    """Log how many images are equal, pixel by pixel, to a training image of the other split or of another class.

    Args:
        path: the option `dataset.path`, for the message.
        train: training images (N, C, H, W) and labels (N,).
        test: test images (M, C, H, W) and labels (M,).
    """
    classes: dict[bytes, set[int]] = {}  # of the training images, by their digest
    digests = [_digest(image) for image in train[0]]
    for digest, label in zip(digests, train[1].tolist(), strict=True):
        classes.setdefault(digest, set()).add(label)
    if in_both := sum(_digest(image) in classes for image in test[0]):
        log.warning(
            "dataset.path=%s: %d of %d test images have the pixels of a training image: they measure memory",
            path,
            in_both,
            len(test[0]),
        )
    if contradictory := sum(len(classes[digest]) > 1 for digest in digests):
        log.warning(
            "dataset.path=%s: %d of %d training images have the pixels of an image of another class: no network can "
            "learn both",
            path,
            contradictory,
            len(digests),
        )


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
        name = _class_name(file.relative_to(split).parts[0])
        if name not in by_class:
            left_out.add("files outside of a class's folder", file.name)
        elif file.suffix.lower() in ENDINGS:
            by_class[name].append(file)
        else:
            left_out.add("files with other endings than images that can be read", file.suffix or file.name)
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
