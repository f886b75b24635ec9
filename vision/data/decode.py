"""Decode image files into one uint8 tensor, in parallel, with a cache on disk."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from PIL import ExifTags, Image, ImageOps
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from harness.config.errors import ConfigError
from harness.run.contents import states
from harness.run.files import reading

log = logging.getLogger(__name__)
# The formats of torchvision's ImageFolder. Pillow would start external programs for some others (EPS).
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")
BACKGROUND = (255, 255, 255)  # colour behind transparent pixels
# What turns an image of each EXIF orientation upright; 1 is upright.
OPERATIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
FORMAT = 5  # version of cached images; raise it when `decode` gives other pixels
SPLITS = ("train_images", "test_images")  # names of the tensors in a cache file
Samples = Sequence[tuple[Path, int]]  # files with their labels


def decode(files: Sequence[Path], image_size: int, in_channels: int) -> Tensor:
    """Read image files; an image of another size is cut to its central square and resized.

    EXIF orientation is applied, transparent pixels are shown on white, palettes are looked up. Grey of 16 bits is
    refused; Pillow reads colour of 16 bits by its high byte.

    Args:
        files: JPEG, PNG, PPM, BMP, TIFF or WEBP files.
        image_size: height and width in pixels.
        in_channels: 3 for colour, 1 for grey.

    Returns:
        uint8 (N, in_channels, image_size, image_size).

    Raises:
        ConfigError: with the name of the first file that cannot be read.
    """
    images = np.empty((len(files), image_size, image_size, in_channels), dtype=np.uint8)

    def read(i: int) -> None:
        try:
            if not files[i].is_file():  # opening a pipe or a device would wait
                raise OSError("no regular file")
            with Image.open(files[i], formats=FORMATS) as file:
                image = _without_transparency(_upright(file)).convert("RGB" if in_channels == 3 else "L")
        except Exception as error:  # for files that are damaged or too large Pillow raises errors of many classes
            if isinstance(error, OSError) and error.errno is not None:  # of the system: the image may be undamaged
                with reading(files[i]):
                    raise
            raise ConfigError(f"image {files[i]} cannot be read ({error}): replace or remove it") from error
        if image.size != (image_size, image_size):
            image = ImageOps.fit(image, (image_size, image_size), Image.Resampling.BICUBIC)
        images[i] = np.asarray(image).reshape(image_size, image_size, in_channels)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(read, range(len(files)))
        for _ in tqdm(results, total=len(files), desc="decode", unit="image", mininterval=1, disable=len(files) < 5000):
            pass
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


def _upright(image: Image.Image) -> Image.Image:
    """Return an image turned as its EXIF orientation says.

    `ImageOps.exif_transpose` would also write the other EXIF entries anew, which fails where a camera has given one of
    them an unusual type.
    """
    image.load()  # a PNG may have its EXIF behind the pixels
    operation = OPERATIONS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return image if operation is None else image.transpose(operation)


def _without_transparency(image: Image.Image) -> Image.Image:
    """Return an image with its transparent pixels on white.

    Raises:
        ValueError: the image has more than 8 bits a channel, so that it is not known which value is white.
    """
    if image.mode == "F" or image.mode.startswith("I"):
        raise ValueError(f"its pixels are of Pillow's mode {image.mode}: save it with 8 bits")
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa"):
        return Image.alpha_composite(Image.new("RGBA", image.size, BACKGROUND), image.convert("RGBA"))
    return image


def decoded(
    train: Samples,
    test: Samples,
    image_size: int,
    in_channels: int,
    cache: Path | None,
    spare: Path | None = None,
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return images and labels of both splits, from a cache file if there is one for these files.

    Args:
        train: training files with their labels.
        test: test files with their labels.
        image_size: see `decode`.
        in_channels: see `decode`.
        cache: path of the cache file, which is written if needed; None decodes at every call.
        spare: folder for the cache file if its own cannot be written.

    Returns:
        For each split, uint8 images (N, in_channels, image_size, image_size) and int64 labels (N,).

    Raises:
        ConfigError: a file cannot be read.
    """
    files = [[file for file, _ in split] for split in (train, test)]

    def make() -> dict[str, Tensor]:
        return {name: decode(part, image_size, in_channels) for name, part in zip(SPLITS, files, strict=True)}

    key = fingerprint([*files[0], *files[1]], image_size, in_channels)
    if cache is not None and spare is not None and not os.access(cache.parent, os.W_OK):
        cache = spare / key[:16] / cache.name
    images = make() if cache is None else cached(cache, key, make)
    labels = [torch.tensor([label for _, label in split]) for split in (train, test)]
    return (images[SPLITS[0]], labels[0]), (images[SPLITS[1]], labels[1])


def fingerprint(files: Sequence[Path], *what: object) -> str:
    """Return a hash of the files' names, sizes and times (`harness.run.contents.states`) and of the options `what`."""
    return hashlib.sha256(json.dumps([FORMAT, what, states(files)]).encode()).hexdigest()


def cached(path: Path, key: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors of `make`, read from a safetensors file if it holds those of this `key`.

    A file that is missing, damaged or of another key is written anew; a folder that cannot be written gives a warning.

    Args:
        path: the cache file.
        key: a fingerprint of everything that the tensors depend on.
        make: makes the tensors.

    Returns:
        The tensors by name.
    """
    if (cached_tensors := _read_cache(path, key)) is not None:
        return cached_tensors
    tensors = None
    partial_file = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if (cached_tensors := _read_cache(path, key)) is not None:  # another process was faster
                return cached_tensors
            tensors = make()
            save_file(tensors, partial_file, metadata={"key": key})
            # safetensors makes files that only their owner can read; this one is for all who can read its folder.
            partial_file.chmod(path.parent.stat().st_mode & 0o666)
            partial_file.replace(path)
    except (OSError, SafetensorError) as error:
        log.warning("cannot cache the decoded images at %s (%s): they are decoded at every start", path, error)
        partial_file.unlink(missing_ok=True)
    return make() if tensors is None else tensors


def _read_cache(path: Path, key: str) -> dict[str, Tensor] | None:
    """Return the tensors of a cache file; None if it is missing, damaged or of another key."""
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("key") == key:
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError):
        pass  # the file is missing or damaged, and will be written anew
    return None
