"""Image files to one uint8 tensor, in parallel, with a cache on disk."""

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
from PIL import Image, ImageOps
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from fire_core.harness.options.errors import ConfigError

log = logging.getLogger(__name__)


def decode(files: Sequence[Path], image_size: int, in_channels: int) -> Tensor:
    """Read images; one of another size is cut to its central square and resized.

    Args:
        files: image files that Pillow can read.
        image_size: height and width in pixels.
        in_channels: 3 for colour, 1 for grey.

    Returns:
        uint8 (N, in_channels, image_size, image_size).

    Raises:
        ConfigError: naming the first file that cannot be read.
    """
    images = np.empty((len(files), image_size, image_size, in_channels), dtype=np.uint8)

    def read(i: int) -> None:
        try:
            with Image.open(files[i]) as file:
                image = file.convert("RGB" if in_channels == 3 else "L")
        except (OSError, ValueError, SyntaxError) as error:  # Pillow's ways to say that a file is damaged
            raise ConfigError(f"image {files[i]} cannot be read ({error}): replace or remove it") from error
        if image.size != (image_size, image_size):
            image = ImageOps.fit(image, (image_size, image_size), Image.Resampling.BICUBIC)
        images[i] = np.asarray(image).reshape(image_size, image_size, in_channels)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(read, range(len(files)))
        for _ in tqdm(results, total=len(files), desc="decode", unit="image", mininterval=1, disable=len(files) < 5000):
            pass
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


def fingerprint(files: Sequence[Path], *what: object) -> str:
    """A hash of the files' paths, sizes and times of change, and of what is made of them."""
    stats = [(str(file), (s := file.stat()).st_size, s.st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([what, stats]).encode()).hexdigest()


def cached(path: Path, key: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What `make` makes, kept in a safetensors file as long as `key` stays the same.

    A file that is damaged or has another key is made anew; a folder that cannot be written costs a warning.

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
        pass  # absent or damaged: made anew
    return None
