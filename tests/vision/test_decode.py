"""Image files against an independent reading: depth, orientation, transparency, palettes, formats."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from harness.config.errors import ConfigError
from vision.data.decode import decode

SIZE = 16
RAMP = np.linspace(0, 1, SIZE * SIZE).reshape(SIZE, SIZE)  # dark to bright
RGB = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)


def read(path: Path, channels: int = 1, size: int = SIZE) -> np.ndarray:
    """(size, size) grey or (size, size, 3) colour."""
    return decode([path], size, channels)[0].permute(1, 2, 0).squeeze(-1).numpy()


def png(path: Path, pixels: np.ndarray, depth: int, colour: int, *chunks: tuple[bytes, bytes]) -> Path:
    """A PNG written by hand, without Pillow."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.astype(f">u{depth // 8}").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in body))
    return path


def test_more_than_8_bits_are_refused_in_grey_and_scaled_in_colour(tmp_path):
    deep = np.random.default_rng(1).integers(0, 65536, (SIZE, SIZE, 3), dtype=np.uint16)
    found = read(png(tmp_path / "deep.png", deep, 16, 2), 3)
    assert np.abs(found - deep / 257).max() <= 1
    for kind in (np.int32, np.float32):
        Image.fromarray((RAMP * 100).astype(kind)).save(tmp_path / "strange.tif")
        with pytest.raises(ConfigError, match="save it with 8 bits"):
            read(tmp_path / "strange.tif")
    with pytest.raises(ConfigError, match="save it with 8 bits"):
        read(png(tmp_path / "grey.png", deep[..., 0], 16, 0))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied(tmp_path, orientation):
    upright = np.zeros((SIZE, SIZE), np.uint8)
    upright[:8, :4] = 255  # a flag in the upper left corner
    inverse = {  # how a camera would have stored it
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1], 5: upright.T,
        6: np.rot90(upright), 7: upright[::-1, ::-1].T, 8: np.rot90(upright, -1),
    }  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    for suffix in ("png", "jpg", "tif", "webp"):
        path = tmp_path / f"turned.{suffix}"
        Image.fromarray(np.repeat(inverse[orientation][..., None], 3, 2)).save(path, exif=exif, quality=100)
        assert np.abs(read(path).astype(int) - upright).mean() < 5, suffix


def test_transparent_pixels_are_white(tmp_path):
    alpha = np.full((SIZE, SIZE), 255, np.uint8)
    alpha[:, :8], alpha[0] = 0, 128
    Image.fromarray(np.dstack([RGB, alpha])).save(tmp_path / "clear.png")
    share = (alpha / 255)[..., None]
    assert np.abs(read(tmp_path / "clear.png", 3) - (RGB * share + 255 * (1 - share))).max() <= 1


def test_a_colour_named_transparent_is_white(tmp_path):
    grey = np.full((SIZE, SIZE), 7, np.uint8)
    grey[0] = 9
    path = png(tmp_path / "key.png", grey, 8, 0, (b"tRNS", struct.pack(">H", 9)))
    assert read(path)[:2, 0].tolist() == [255, 7]
    palette = np.arange(768, dtype=np.uint8)[::-1].tobytes()
    clear = bytes(0 if i == 9 else 255 for i in range(256))
    path = png(tmp_path / "palette.png", grey, 8, 3, (b"PLTE", palette), (b"tRNS", clear))
    assert read(path, 3)[:2, 0].tolist() == [[255] * 3, list(palette[21:24])]


def test_palettes_are_looked_up(tmp_path):
    index = np.arange(SIZE * SIZE, dtype=np.uint8).reshape(SIZE, SIZE)
    palette = np.random.default_rng(2).integers(0, 256, (256, 3), dtype=np.uint8)
    path = png(tmp_path / "palette.png", index, 8, 3, (b"PLTE", palette.tobytes()))
    assert np.array_equal(read(path, 3), palette[index])


def test_other_formats_and_other_things_than_files_are_refused(tmp_path):
    Image.fromarray(RGB).save(tmp_path / "page.png", format="EPS")  # Pillow would start ghostscript
    with pytest.raises(ConfigError, match="cannot identify"):
        read(tmp_path / "page.png", 3)
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ConfigError, match="no regular file"):
        read(tmp_path / "pipe.png", 3)


def test_plain_images_are_as_they_were(tmp_path):
    Image.fromarray(RGB).save(tmp_path / "plain.bmp")
    assert np.array_equal(read(tmp_path / "plain.bmp", 3), RGB)
    grey = torch.from_numpy(read(tmp_path / "plain.bmp")).double()
    luma = torch.from_numpy(RGB).double() @ torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)
    assert (grey - luma).abs().max() < 1
