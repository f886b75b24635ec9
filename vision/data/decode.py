"""Image files to one uint8 tensor, in parallel, with a cache on disk."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from filelock import FileLock
from PIL import Image, ImageOps
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from harness.config.errors import ConfigError

log = logging.getLogger(__name__)
# Those of torchvision's ImageFolder; others (EPS) would start external programs.
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")
BACKGROUND = (255, 255, 255)  # behind transparent pixels
FORMAT = 3  # of cached images; raise it when `decode` gives other pixels
BITS_PER_SAMPLE, SAMPLE_FORMAT, PHOTOMETRIC = 258, 339, 262  # TIFF tags
WHITE_IS_ZERO = 0
UNSIGNED = 1  # a TIFF sample format


def decode(files: Sequence[Path], image_size: int, in_channels: int) -> Tensor:
    """Read images; one of another size is cut to its central square and resized.

    EXIF orientation is applied, transparent pixels are shown on white, palettes are looked up. Pixels of more than 8
    bits are scaled to [0, 255]: integers by the largest value of their type, floats from [0, 1]. (Pillow reads colour
    of 16 bits by its high byte, which may be 1 below the rounded value.)

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
                ImageOps.exif_transpose(file, in_place=True)
                image = _flat(file).convert("RGB" if in_channels == 3 else "L")
        # Pillow's ways to say that a file is damaged or too large.
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise ConfigError(f"image {files[i]} cannot be read ({error}): replace or remove it") from error
        if image.size != (image_size, image_size):
            image = ImageOps.fit(image, (image_size, image_size), Image.Resampling.BICUBIC)
        images[i] = np.asarray(image).reshape(image_size, image_size, in_channels)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(read, range(len(files)))
        for _ in tqdm(results, total=len(files), desc="decode", unit="image", mininterval=1, disable=len(files) < 5000):
            pass
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


def _flat(image: Image.Image) -> Image.Image:
    """An image of 8 bits a channel without transparency."""
    if image.mode == "F" or image.mode.startswith("I"):
        pixels = _scaled(image)
        if (clear := image.info.get("transparency")) is not None:
            pixels[np.asarray(image) == clear] = BACKGROUND[0]
        return Image.fromarray(pixels)
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        colour = image.convert("LA").convert("RGBA") if image.mode == "La" else image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, BACKGROUND), colour)
    return image


def _scaled(image: Image.Image) -> npt.NDArray[np.uint8]:
    """Pixels of more than 8 bits as uint8 (H, W).

    Raises:
        ValueError: what is white cannot be known.
    """
    pixels: npt.NDArray[Any] = np.asarray(image)
    if image.mode == "F":
        if not (pixels.min() >= 0 and pixels.max() <= 1):  # also False for NaN
            raise ValueError(f"its floats lie in [{pixels.min():g}, {pixels.max():g}], not in [0, 1]")
        return (pixels * 255).round().astype(np.uint8)
    tags = getattr(image, "tag_v2", {})
    bits = tags.get(BITS_PER_SAMPLE, (16,))[0]
    if bits == 32 and tags.get(SAMPLE_FORMAT, (UNSIGNED,))[0] == UNSIGNED:
        pixels, top = pixels.astype(np.int32).view(np.uint32), 2**32 - 1
    elif bits == 32:
        top = 2**31 - 1
    else:
        top = 2**16 - 1 if tags.get(SAMPLE_FORMAT, (UNSIGNED,))[0] == UNSIGNED else 2**15 - 1
    if pixels.min() < 0:
        raise ValueError("it has negative pixels")
    if bits == 32 and 0 < pixels.max() < 2**16:
        raise ValueError("its 32-bit integers are so small that the image would be black: save it with 16 bits")
    scaled: npt.NDArray[np.uint8] = (pixels * (255 / top)).round().astype(np.uint8)
    return 255 - scaled if tags.get(PHOTOMETRIC) == WHITE_IS_ZERO else scaled  # pillow turns 8 bits alone


def fingerprint(files: Sequence[Path], *what: object) -> str:
    """A hash of the files' paths, sizes and times of change, and of what is made of them."""
    stats = [(str(file), (s := file.stat()).st_size, s.st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([FORMAT, what, stats]).encode()).hexdigest()


def cached(path: Path, key: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What `make` makes, kept in a safetensors file as long as `key` stays the same.

    A file that is damaged or has another key is made again; a folder that cannot be written gives a warning.

    Args:
        path: the cache file.
        key: a fingerprint of what the tensors depend on.
        make: makes the tensors.

    Returns:
        The tensors by name.
    """
    if (found := _read(path, key)) is not None:
        return found
    tensors = None
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if (found := _read(path, key)) is not None:  # another process was faster
                return found
            tensors = make()
            save_file(tensors, part, metadata={"key": key})
            part.replace(path)
    except (OSError, SafetensorError) as error:
        log.warning("cannot cache the decoded images at %s (%s): they are decoded at every start", path, error)
        part.unlink(missing_ok=True)
    return make() if tensors is None else tensors


def _read(path: Path, key: str) -> dict[str, Tensor] | None:
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("key") == key:
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError):
        pass  # absent or damaged: made again
    return None
