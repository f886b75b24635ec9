"""Load Tiny-ImageNet-200 from its published layout of files."""

from pathlib import Path

from fire_core.ranges import checked
from harness.config.errors import ConfigError
from harness.config.paths import Place, expanded
from harness.run.files import content_of, reading
from vision.data.decode import decoded
from vision.data.files import unpacked
from vision.data.images import ImageData, Statistics

URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
NAME = "tiny-imagenet-200"
SIZE = 64  # height and width of an image in pixels


@checked
def load_tiny_imagenet(
    root: Place = "data",
    download: bool = False,
    test_statistics: Statistics = "train",
    cache: bool = True,
    url: str = URL,
    md5: str = MD5,
) -> ImageData:
    """Tiny-ImageNet-200 (Le and Yang 2015): 100,000 training images of 64x64 in 200 classes.

    The test split is the published validation set (10,000 images), as the published test set has no labels.
    Class numbers follow the sorted WordNet ids; grey images become RGB.

    Args:
        root: folder of `tiny-imagenet-200` or of the published archive.
        download: whether to fetch the archive if neither is there.
        test_statistics: `train`, or `test`: normalise the test images by their own mean and deviation.
        cache: whether to store the decoded images (1.4 GB) in `root`, which saves the decoding at every start.
        url: address at which the archive is published.
        md5: its checksum.

    Returns:
        uint8 images (N, 3, 64, 64).

    Raises:
        ConfigError: the files are not there, or are damaged or incomplete.
        ValueError: if `test_statistics` is unknown.
    """
    base = expanded(root)
    folder = unpacked(base / NAME, base / f"{NAME}.zip", url, md5, download, "tinyimagenet")
    classes = sorted(line.split()[0] for line in lines_of(folder, "wnids.txt"))
    number = {wnid: i for i, wnid in enumerate(classes)}
    folders = {path.name for path in (folder / "train").glob("*") if path.is_dir()}
    if len(number) < len(classes) or folders != number.keys():
        raise ConfigError(
            f"{folder}/wnids.txt names {len(classes)} classes, {len(number)} of them different, and train/ has "
            f"{len(folders)}: {_how_to_repair(folder)}"
        )
    train = [
        (folder / "train" / wnid / "images" / line.split("\t")[0], number[wnid])
        for wnid in classes
        for line in lines_of(folder, f"train/{wnid}/{wnid}_boxes.txt")
    ]
    test = []
    for line in lines_of(folder, "val/val_annotations.txt"):
        file, wnid, *_ = [*line.split("\t"), ""]
        if wnid not in number:
            raise ConfigError(
                f"{folder}/val/val_annotations.txt has the class {wnid!r}, which wnids.txt lacks: "
                f"{_how_to_repair(folder)}"
            )
        test.append((folder / "val" / "images" / file, number[wnid]))
    for split, listed, pattern in (("train", train, "*/images/*.JPEG"), ("val", test, "images/*.JPEG")):
        there = set((folder / split).glob(pattern))
        for image, _ in listed:
            if image not in there:
                raise ConfigError(f"{image} is missing: {_how_to_repair(folder)}")
        if len(there) != len(listed):
            raise ConfigError(
                f"the lists in {folder / split} name {len(listed)} images, and there are {len(there)}: "
                f"{_how_to_repair(folder)}"
            )
    cache_file = base / f"{NAME}.safetensors" if cache else None
    return ImageData.of(*decoded(train, test, SIZE, 3, cache_file), len(classes), test_statistics)


def lines_of(folder: Path, name: str) -> list[str]:
    """Return the non-empty lines of a text file of the data set.

    Args:
        folder: the unpacked data set.
        name: path of the file in `folder`.

    Raises:
        ConfigError: the file is missing, empty, or not readable as text.
    """
    try:
        with reading(folder / name):
            content = content_of(folder / name) or b""
        lines = [line for line in content.decode().splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ConfigError(f"{folder / name} cannot be read ({error}): {_how_to_repair(folder)}") from error
    if not lines:
        raise ConfigError(f"{folder / name} is missing or empty: {_how_to_repair(folder)}")
    return lines


def _how_to_repair(folder: Path) -> str:
    """Return the advice at the end of error messages about damaged files."""
    return f"remove {folder} and let it be unpacked again from {NAME}.zip ({URL})"
