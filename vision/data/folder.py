"""Your own images, in a folder for each class."""

from pathlib import Path
from typing import Annotated

from numpy.random import RandomState

from fire_core.ranges import Width, checked, one_of
from harness.config.errors import ConfigError
from vision.data.decode import decoded
from vision.data.images import ImageData, Statistics


@checked
def load_folder(
    path: str = "data/folder",
    image_size: Width = 32,
    in_channels: Annotated[int, one_of(1, 3)] = 3,
    test_statistics: Statistics = "train",
    cache: bool = True,
    spare: str | None = None,
) -> ImageData:
    """Images in torchvision's ImageFolder layout: `train/<class>/*.png`, and the same under `test/` or `val/`.

    Args:
        path: folder that has `train` and `test` (or `val`).
        image_size: height and width in pixels; other images are cut to their central square and resized.
        in_channels: 3 for colour, 1 for grey.
        test_statistics: `train`, or `test`: normalise the test images by their own mean and deviation.
        cache: whether to keep the decoded images in `path`, which saves the decoding at every start.
        spare: folder where they are kept if `path` cannot be written.

    Returns:
        uint8 images (N, in_channels, image_size, image_size).

    Raises:
        ConfigError: a folder or all its images are missing, or an image is damaged.
        ValueError: if an argument is out of range.
    """
    base = Path(path)
    test_folder = base / ("val" if (base / "val").is_dir() and not (base / "test").is_dir() else "test")
    for needed in (base / "train", test_folder):
        if not needed.is_dir():
            raise ConfigError(
                f"dataset=folder needs {needed}/<class>/<image>.png (or .jpg, ...): set dataset.path= to a folder "
                "with train/ and test/ (or val/)"
            )
    classes = sorted(entry.name for entry in (base / "train").iterdir() if entry.is_dir())
    for entry in test_folder.iterdir():
        if entry.is_dir() and entry.name not in classes:
            raise ConfigError(f"{entry} has no counterpart in {base / 'train'}: test classes must be trained on")
    train, test = (_samples(split, classes) for split in (base / "train", test_folder))
    kept = base / f"decoded-{image_size}x{in_channels}.safetensors" if cache else None
    images = decoded(train, test, image_size, in_channels, kept, None if spare is None else Path(spare))
    return ImageData.of(*images, len(classes), test_statistics)


def _samples(split: Path, classes: list[str]) -> list[tuple[Path, int]]:
    """Image files below a split's folder, with their class numbers, in an order that is always the same."""
    from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset  # here, as torchvision takes seconds to import

    numbers = {name: i for i, name in enumerate(classes)}
    samples = make_dataset(split, numbers, extensions=IMG_EXTENSIONS, allow_empty=True) if classes else []
    if not samples:
        raise ConfigError(f"{split} has no images: put them at {split}/<class>/<image>.png (or .jpg, ...)")
    mixed = RandomState(0).permutation(len(samples))  # else the first images, which are measured, are of one class
    return [(Path(samples[i][0]), samples[i][1]) for i in mixed]
