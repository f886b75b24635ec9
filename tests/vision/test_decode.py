"""Image files: orientation, transparency, depth, and what is no image."""

import builtins
import errno
import io
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

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


@pytest.mark.parametrize("orientation", [*range(10), 274])
def test_every_orientation_is_that_of_pillow(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(RGB).save(tmp_path / "turned.png", exif=exif)
    with Image.open(tmp_path / "turned.png") as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(read(tmp_path / "turned.png"), expected)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of each damaged entry
def test_unusual_exif_entries_neither_end_the_reading_nor_change_pixels(tmp_path):
    """A text stands under another number, or is of another type, as some cameras write it; the orientation stays."""
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "text"
    path = tmp_path / "camera.jpg"
    Image.fromarray(RGB).save(path, exif=exif)
    whole, expected = path.read_bytes(), read(path)
    entry = whole.index(b"Exif\0\0") + 6 + 10  # of the text, behind the header and the number of entries
    assert whole[entry : entry + 4] == b"\x01\x0e\x00\x02"
    for number, kind in [(number, 2) for number in (*range(0x0100, 0x0112), 0x8769, 0xA005)] + [
        (0x010E, 7),
        (0x010E, 1),
    ]:
        path.write_bytes(whole[:entry] + struct.pack(">HH", number, kind) + whole[entry + 4 :])
        np.testing.assert_array_equal(read(path), expected)


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
