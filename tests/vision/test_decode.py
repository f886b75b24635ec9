"""Image files: orientation, transparency, depth, and what is no image."""

import builtins
import errno
import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harness.config.errors import ConfigError, TrainingError
from vision.data.decode import decode
from vision.data.files import md5_of
from vision.data.mnist import read_idx
from vision.data.tiny_imagenet import lines_of

SIZE = 16
RGB = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)


def read(path: Path, channels: int = 3) -> np.ndarray:
    """(16, 16) grey or (16, 16, 3) colour."""
    return decode([path], SIZE, channels)[0].permute(1, 2, 0).squeeze(-1).numpy()


@pytest.mark.parametrize(("orientation", "turns"), [(1, 0), (3, 2), (6, 1), (8, 3)])
def test_orientation_is_applied(tmp_path, orientation, turns):
    upright = np.zeros((SIZE, SIZE), np.uint8)
    upright[:8, :4] = 255  # a flag in the upper left corner
    exif = Image.Exif()
    exif[0x0112] = orientation
    for suffix in ("png", "jpg"):
        path = tmp_path / f"turned.{suffix}"
        stored = np.rot90(upright, turns)  # as the camera had it
        Image.fromarray(np.repeat(stored[..., None], 3, 2)).save(path, exif=exif, quality=100)
        assert np.abs(read(path, 1).astype(int) - upright).mean() < 5, suffix


def test_transparent_pixels_are_white(tmp_path):
    alpha = np.full((SIZE, SIZE), 255, np.uint8)
    alpha[:, :8], alpha[0] = 0, 128
    Image.fromarray(np.dstack([RGB, alpha])).save(tmp_path / "clear.png")
    share = (alpha / 255)[..., None]
    assert np.abs(read(tmp_path / "clear.png") - (RGB * share + 255 * (1 - share))).max() <= 1
    grey = np.full((SIZE, SIZE), 7, np.uint8)
    grey[0] = 9
    Image.fromarray(grey).save(tmp_path / "key.png", transparency=9)
    assert read(tmp_path / "key.png", 1)[:2, 0].tolist() == [255, 7]


def test_what_has_more_than_8_bits_or_is_no_image_is_refused(tmp_path):
    ramp = np.linspace(0, 100, SIZE * SIZE).reshape(SIZE, SIZE)
    for kind, suffix in ((np.int32, "tif"), (np.float32, "tif"), (np.uint16, "png")):
        Image.fromarray(ramp.astype(kind)).save(tmp_path / f"deep.{suffix}")
        with pytest.raises(ConfigError, match="save it with 8 bits"):
            read(tmp_path / f"deep.{suffix}")
    Image.fromarray(RGB).save(tmp_path / "page.png", format="EPS")  # Pillow would start ghostscript
    with pytest.raises(ConfigError, match="cannot identify"):
        read(tmp_path / "page.png")
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ConfigError, match="no regular file"):
        read(tmp_path / "pipe.png")


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.EMFILE])
def test_an_error_of_reading_is_not_taken_for_damage(tmp_path, monkeypatch, number):
    """Nobody is told to remove a file that may be in order."""
    file = tmp_path / "image.png"
    Image.fromarray(RGB).save(file)
    real_open = io.open

    def fails(path, *arguments, **options):
        if os.fspath(path) == str(file):
            raise OSError(number, os.strerror(number), str(file))
        return real_open(path, *arguments, **options)

    for module in (builtins, io):
        monkeypatch.setattr(module, "open", fails)
    for reads in (
        lambda: read(file),
        lambda: read_idx(file, 3),
        lambda: lines_of(tmp_path, file.name),
        lambda: md5_of(file),
    ):
        with pytest.raises(TrainingError, match=f"^cannot read {file} .{os.strerror(number)}"):
            reads()
    monkeypatch.undo()
    assert (read(file) == RGB).all()
