"""Random crops and flips."""

from pathlib import Path

import pytest
import torch
from torchvision.transforms import functional as reference

from harness.config.errors import ConfigError
from tests.programs import ALIKE, VISION, rows
from vision.data.augment import PADDING, crop_and_flip
from vision.phase import batches
from vision.task import Task


def test_each_image_is_one_of_torchvision_s_crops() -> None:
    images = torch.randn(16, 3, 6, 5, generator=torch.Generator().manual_seed(0))
    border = torch.tensor([-1.0, -2.0, -3.0])[:, None, None]
    drawn = crop_and_flip(images, border, torch.Generator().manual_seed(1))
    assert drawn.shape == images.shape
    chosen = set()
    for image, result in zip(images, drawn, strict=True):
        padded = reference.pad(image - border, [PADDING]) + border  # torchvision pads all channels with one value
        candidates = {
            (top, left, mirrored): reference.hflip(crop) if mirrored else crop
            for top in range(2 * PADDING + 1)
            for left in range(2 * PADDING + 1)
            for crop in [reference.crop(padded, top, left, 6, 5)]
            for mirrored in (False, True)
        }
        matching = [key for key, candidate in candidates.items() if torch.allclose(candidate, result, atol=1e-6)]
        assert matching
        chosen.add(matching[0])
    assert len(chosen) > 10, "shifts and flips differ between images"
    assert {mirrored for *_, mirrored in chosen} == {False, True}


def test_draws_follow_the_generator_alone() -> None:
    images, border = torch.randn(4, 1, 8, 8), torch.zeros(1, 1, 1)
    first, again = (crop_and_flip(images, border, torch.Generator().manual_seed(2)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, crop_and_flip(images, border, torch.Generator().manual_seed(3)))


def test_it_is_part_of_what_a_run_is_and_of_its_numbers(tmp_path: Path) -> None:
    plain, augmented = (
        VISION.run(tmp_path / name, "benchmark=warm_start", f"augmentation={name}") for name in ("none", "crop_flip")
    )
    assert plain.name != augmented.name
    losses = [rows(folder)[-1]["train/loss"] for folder in (plain, augmented)]
    assert losses[0] != losses[1]


def test_bits_cannot_be_cropped() -> None:
    options = (*ALIKE, "experiment=plasticity_slowly_changing_regression", "augmentation=crop_flip")
    with pytest.raises(ConfigError, match="augmentation=crop_flip is of images"):
        Task.from_config(VISION.compose_only(options))


@pytest.mark.parametrize("name", ["contiguous", "channels_last"])
def test_images_keep_the_layout_in_memory_that_was_asked_for(name: str) -> None:
    options = (*ALIKE, "benchmark=warm_start", "augmentation=crop_flip", "model=small_resnet")
    task = Task.from_config(VISION.compose_only((*options, f"memory_format={name}")))
    images, _ = next(batches(task, 0))
    assert images.is_contiguous(memory_format=task.memory_format)
