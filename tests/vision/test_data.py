"""Data sets: small files in the true on-disk format of each, and damaged ones."""

import hashlib
import io
import pickle
import shutil
import tarfile
import unicodedata
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from harness.config.errors import ConfigError
from tests.programs import ALIKE, SMALL, compose, start_here
from vision.data import load_cifar10, load_cifar100, load_digits, load_folder, load_tiny_imagenet
from vision.data.digits import noisy_pixels
from vision.data.files import md5_of
from vision.data.images import ImageData, channel_statistics
from vision.task import Task


def pixels(n: int, size: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, size, size, channels), dtype=np.uint8)


def save_image(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image.squeeze()).save(path)


# ---- what all data sets share


def test_statistics_are_those_of_the_pixels():
    images = torch.from_numpy(pixels(5, 4)).permute(0, 3, 1, 2)
    mean, std = channel_statistics(images)
    reference = images.double()
    torch.testing.assert_close(mean.flatten().double(), reference.mean((0, 2, 3)), rtol=1e-6, atol=0)
    torch.testing.assert_close(std.flatten().double(), reference.std((0, 2, 3), correction=0), rtol=1e-6, atol=0)
    assert channel_statistics(torch.full((2, 1, 2, 2), 7, dtype=torch.uint8))[1].item() == 1


def test_normalised_images_have_mean_0_and_deviation_1_by_the_chosen_statistics():
    train, test = (torch.from_numpy(pixels(6, 4, seed=s)).permute(0, 3, 1, 2) for s in (1, 2))
    labels = torch.arange(6)
    data = ImageData.of((train, labels), (test // 2, labels), 6)
    for part, expected in ((data.normalise_train(train), (0, 1)), (data.normalise_test(train), (0, 1))):
        assert (part.mean().item(), part.std(correction=0).item()) == pytest.approx(expected, abs=1e-5)
    own = ImageData.of((train, labels), (test // 2, labels), 6, test_statistics="test")
    assert own.normalise_test(test // 2).mean().item() == pytest.approx(0, abs=1e-5)
    assert data.normalise_test(test // 2).mean().item() < -0.5
    assert data.to("meta").train_images.device.type == "meta"
    with pytest.raises(ValueError, match=r"^test_statistics=tset is unknown; accepted: train, test$"):
        ImageData.of((train, labels), (test, labels), 6, test_statistics="tset")


def float_images(low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    return torch.from_numpy(pixels(6, 4)).permute(0, 3, 1, 2) / 255 * (high - low) + low


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float_images_of_any_range_are_those_of_bytes(low, high, dtype):
    labels, whole = torch.arange(6), torch.from_numpy(pixels(6, 4)).permute(0, 3, 1, 2)
    stored, own = ImageData.of((whole, labels), (whole, labels), 6), float_images(low, high).to(dtype)
    data = ImageData.of((own, labels), (own, labels), 6)
    normalised = data.normalise_train(data.train_images)
    torch.testing.assert_close(normalised, stored.normalise_train(whole), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (float_images() / 0, torch.arange(6), "train images hold NaN or infinity"),
        (float_images()[:, 0], torch.arange(6), r"train images must be \(N, C, H, W\) with H = W, got \(6, 4, 4\)"),
        (float_images().permute(0, 2, 3, 1), torch.arange(6), r"H = W, got \(6, 4, 4, 3\): unsqueeze or permute them"),
        (
            float_images().long(),
            torch.arange(6),
            r"train images must be uint8 or floats, got torch.int64: convert them",
        ),
        (float_images(), torch.arange(5), r"train labels must be integers \(6,\), one for each image, got .* \(5,\)"),
        (float_images(), torch.rand(6), r"train labels must be integers \(6,\), one for each image, got torch.float32"),
        (float_images(), torch.arange(6) + 1, r"must be in \[0, num_classes\) = \[0, 6\), got 1 to 6"),
    ],
)
def test_own_images_and_labels_that_cannot_be_right(images, labels, message):
    with pytest.raises(ValueError, match=message):
        ImageData.of((images, labels), (float_images(), torch.arange(6)), 6)


# ---- digits


def test_training_and_test_images_have_one_form():
    labels = torch.arange(6)
    bytes_, floats = torch.zeros(6, 3, 8, 8, dtype=torch.uint8), torch.zeros(6, 3, 8, 8)
    for test in (floats, bytes_[:, :1], bytes_[..., :4, :4]):
        with pytest.raises(ValueError, match=r"training images are uint8 \(3, 8, 8\) and test images .*in one form"):
            ImageData.of((bytes_, labels), (test, labels), 6)
    data = ImageData.of((bytes_.numpy(), labels.numpy()), (bytes_.numpy(), labels.numpy()), 6)
    assert torch.equal(data.train_images, bytes_), "arrays of NumPy will do"


def test_a_stream_that_is_scored_on_test_images_needs_some():
    data = ImageData.of(
        (torch.zeros(6, 1, 8, 8, dtype=torch.uint8), torch.arange(6)),
        (torch.zeros(0, 1, 8, 8, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64)),
        6,
    )
    with pytest.raises(ConfigError, match="has no test images: benchmark=warm_start is scored on them"):
        Task.from_config(SMALL.compose("dataset=digits", "benchmark.ratio=50"), data)
    for options in ("benchmark=random_labels benchmark.samples=7", "benchmark=random_labels benchmark.samples=null"):
        config = SMALL.compose("dataset=digits", *options.split(), "benchmark.tasks=2")
        if "null" in options:
            assert len(Task.from_config(config, data).phases[0].train) == 6
        else:
            with pytest.raises(ConfigError, match=r"benchmark\.samples=null takes all"):
                Task.from_config(config, data)


def test_digits_are_whole_and_split_stratified():
    data = load_digits()
    assert (data.in_channels, data.image_size, data.num_classes) == (1, 8, 10)
    assert len(data.train_labels) + len(data.test_labels) == 1797
    assert int(data.train_images.max()) == 16
    shares = [torch.bincount(labels, minlength=10) / len(labels) for labels in (data.train_labels, data.test_labels)]
    assert (shares[0] - shares[1]).abs().max() < 0.005
    again = load_digits()
    assert torch.equal(data.test_images, again.test_images)
    assert len(load_digits(train_size=100).train_labels) == 100
    with pytest.raises(ValueError, match=r"^train_size must be in \[10, 1787\], got 1797$"):
        load_digits(train_size=1797)


def test_digits_noise_is_as_large_as_asked_drawn_once_and_leaves_labels_alone():
    clean, noisy = load_digits(), load_digits(pixel_noise=0.2, noise_seed=3)
    assert torch.equal(noisy.train_images, load_digits(pixel_noise=0.2, noise_seed=3).train_images)
    assert torch.equal(clean.train_labels, noisy.train_labels)
    assert not torch.equal(clean.test_images, noisy.test_images)
    blurred = noisy_pixels(torch.full((50, 1, 8, 8), 8, dtype=torch.uint8), 0.1, seed=1)
    assert blurred.dtype == torch.uint8
    assert blurred.float().std().item() == pytest.approx(1.6, rel=0.1)
    assert int(noisy_pixels(clean.test_images, 5.0, seed=1).max()) == 16


# ---- CIFAR: pickles, MD5 of every file, a .tar.gz around


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """Both archives with few images under tmp_path, their checksums given to torchvision; returns the images."""
    images = {}
    for kind, key, names in (
        (datasets.CIFAR10, "labels", ["data_batch_1", "data_batch_2", "test_batch"]),
        (datasets.CIFAR100, "fine_labels", ["train", "test"]),
    ):
        files = {}
        for i, name in enumerate(names):
            image = pixels(4, 32, seed=i)
            images[kind.base_folder, name] = image
            rows = image.transpose(0, 3, 1, 2).reshape(4, -1)  # red plane, green plane, blue plane
            files[name] = pickle.dumps({"data": rows, key: [i, 1, 2, 3], "coarse_labels": [0] * 4})
        files[kind.meta["filename"]] = pickle.dumps({kind.meta["key"]: ["a", "b", "c", "d"]})
        md5 = {name: hashlib.md5(content).hexdigest() for name, content in files.items()}
        monkeypatch.setattr(kind, "train_list", [[name, md5[name]] for name in names[:-1]])
        monkeypatch.setattr(kind, "test_list", [[names[-1], md5[names[-1]]]])
        monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": md5[kind.meta["filename"]]})
        with tarfile.open(tmp_path / kind.filename, "w:gz") as tar:
            for name, content in files.items():
                entry = tarfile.TarInfo(f"{kind.base_folder}/{name}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
        monkeypatch.setattr(kind, "tgz_md5", md5_of(tmp_path / kind.filename))
    return images


def test_cifar10_from_the_archive(cifar, tmp_path):
    data = load_cifar10(str(tmp_path))
    expected = np.concatenate([cifar["cifar-10-batches-py", f"data_batch_{i}"] for i in (1, 2)])
    np.testing.assert_array_equal(data.train_images.permute(0, 2, 3, 1), expected)
    assert data.train_labels.tolist() == [0, 1, 2, 3, 1, 1, 2, 3]
    assert (data.num_classes, data.in_channels, data.image_size) == (10, 3, 32)
    (tmp_path / "cifar-10-python.tar.gz").unlink()  # the unpacked folder is enough
    assert torch.equal(load_cifar10(str(tmp_path)).test_images, data.test_images)


def test_cifar100_with_its_own_test_statistics(cifar, tmp_path):
    data = load_cifar100(str(tmp_path), test_statistics="test")
    assert data.num_classes == 100
    assert data.normalise_test(data.test_images).mean().abs().item() < 1e-5
    assert not torch.equal(data.test_mean, data.mean)


def test_damaged_cifar_files_are_named(cifar, tmp_path):
    archive = tmp_path / "cifar-10-python.tar.gz"
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"cifar-10-python.tar.gz is damaged or not the published file.*get it again"):
        load_cifar10(str(tmp_path))
    assert not (tmp_path / "cifar-10-batches-py").exists()
    archive.write_bytes(whole)
    load_cifar10(str(tmp_path))
    batch = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    batch.write_bytes(batch.read_bytes()[:-1])
    for damage in (lambda: None, batch.unlink):
        damage()
        with pytest.raises(ConfigError, match=r"cifar-10-batches-py has a damaged or missing file: .* put https://"):
            load_cifar10(str(tmp_path))


@pytest.mark.parametrize(
    ("load", "archive"),
    [
        (load_cifar10, "cifar-10-python.tar.gz"),
        (load_cifar100, "cifar-100-python.tar.gz"),
        (load_tiny_imagenet, "tiny-imagenet-200.zip"),
    ],
)
def test_without_files_one_line_says_what_to_put_where(load, archive, tmp_path):
    with pytest.raises(ConfigError) as caught:
        load(str(tmp_path / "data"))
    message = str(caught.value)
    assert "\n" not in message
    assert f"{archive} at {tmp_path}/data/{archive}" in message
    assert "dataset.download=true" in message
    assert not (tmp_path / "data").exists()


# ---- Tiny-ImageNet


def write_tiny_imagenet(folder: Path) -> None:
    """Two classes with two training images each (one of them grey) and one validation image each."""
    wnids = ["n02124075", "n01443537"]  # not sorted, as in the original
    (folder / "val").mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(wnids) + "\n")
    annotations = ""
    for c, wnid in enumerate(wnids):
        boxes = ""
        for i in range(2):
            name = f"{wnid}_{i}.JPEG"
            image = np.full((64, 64) if c + i == 0 else (64, 64, 3), 50 * c + 20 * i, dtype=np.uint8)
            save_image(folder / "train" / wnid / "images" / name, image)
            boxes += f"{name}\t0\t10\t63\t58\n"
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(boxes)
        save_image(folder / "val" / "images" / f"val_{c}.JPEG", np.full((64, 64, 3), 200 + c, dtype=np.uint8))
        annotations += f"val_{c}.JPEG\t{wnid}\t0\t32\t44\t62\n"
    (folder / "val" / "val_annotations.txt").write_text(annotations)


def zip_folder(folder: Path, archive: Path) -> str:
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(folder.rglob("*")):
            file.write(path, path.relative_to(folder.parent))
    return md5_of(archive)


@pytest.fixture
def tiny_zip(tmp_path):
    """A root folder with tiny-imagenet-200.zip alone, and the zip's checksum."""
    write_tiny_imagenet(tmp_path / "made" / "tiny-imagenet-200")
    root = tmp_path / "data"
    root.mkdir()
    return root, zip_folder(tmp_path / "made" / "tiny-imagenet-200", root / "tiny-imagenet-200.zip")


def test_tiny_imagenet_from_the_zip_has_the_right_labels(tiny_zip):
    root, md5 = tiny_zip
    data = load_tiny_imagenet(str(root), md5=md5)
    assert data.train_images.shape == (4, 3, 64, 64)
    assert data.train_labels.tolist() == [0, 0, 1, 1]  # sorted: n01443537 is class 0
    assert data.train_images[:, 0, 5, 5].tolist() == pytest.approx([50, 70, 0, 20], abs=2)  # JPEG is lossy
    assert dict(zip(data.test_labels.tolist(), data.test_images[:, 0, 5, 5].tolist(), strict=True)) == {1: 200, 0: 201}
    assert sorted(p.name for p in root.iterdir() if p.suffix != ".lock") == [
        "tiny-imagenet-200",
        "tiny-imagenet-200.safetensors",
        "tiny-imagenet-200.zip",
    ]


def test_the_cache_is_used_and_a_bad_or_stale_one_is_not(tiny_zip, monkeypatch):
    root, md5 = tiny_zip
    first = load_tiny_imagenet(str(root), md5=md5)
    with monkeypatch.context() as patch:
        patch.setattr("vision.data.decode.decode", None)  # would fail if it were called
        assert torch.equal(load_tiny_imagenet(str(root), md5=md5).train_images, first.train_images)
    cache = root / "tiny-imagenet-200.safetensors"
    whole = cache.read_bytes()
    cache.write_bytes(whole[: len(whole) // 2])
    assert torch.equal(load_tiny_imagenet(str(root), md5=md5).train_images, first.train_images)
    assert len(cache.read_bytes()) == len(whole)
    image = root / "tiny-imagenet-200" / "train" / "n01443537" / "images" / "n01443537_0.JPEG"
    save_image(image, np.full((64, 64, 3), 255, dtype=np.uint8))
    assert load_tiny_imagenet(str(root), md5=md5).train_images[0].min() > 250


def test_who_can_read_the_folder_can_read_the_cache(tiny_zip):
    root, md5 = tiny_zip
    root.chmod(0o755)
    load_tiny_imagenet(str(root), md5=md5)
    assert (root / "tiny-imagenet-200.safetensors").stat().st_mode & 0o777 == 0o644


def test_a_cache_that_cannot_be_written_costs_a_warning(tiny_zip, monkeypatch, caplog):
    root, md5 = tiny_zip

    def full(*args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr("vision.data.decode.save_file", full)
    assert len(load_tiny_imagenet(str(root), md5=md5).train_images) == 4
    assert "cannot cache the decoded images" in caplog.text


def truncate(image: Path) -> None:
    save_image(image, pixels(1, 64)[0])
    image.write_bytes(image.read_bytes()[:-1000])


def cut_list(file: Path) -> None:
    file.write_text(file.read_text().splitlines()[0] + "\n")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "val" / "val_annotations.txt").unlink(), r"val_annotations.txt is missing or empty: remove"),
        (lambda f: (f / "val" / "images" / "val_1.JPEG").unlink(), r"val_1.JPEG is missing: remove"),
        (
            lambda f: (f / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn99999999\t0\t0\t1\t1\n"),
            r"has the class 'n99999999', which wnids.txt lacks",
        ),
        (
            lambda f: cut_list(f / "train" / "n01443537" / "n01443537_boxes.txt"),
            r"train name 3 images, and there are 4",
        ),
        (lambda f: cut_list(f / "val" / "val_annotations.txt"), r"val name 1 images, and there are 2"),
        (lambda f: cut_list(f / "wnids.txt"), r"wnids.txt names 1 classes, 1 of them different, and train/ has 2"),
        (
            lambda f: (f / "wnids.txt").write_text("n01443537\nn02124075\nn01443537\n"),
            r"names 3 classes, 2 of them different",
        ),
        (lambda f: truncate(f / "val" / "images" / "val_0.JPEG"), r"image .*val_0.JPEG cannot be read \(.*truncated"),
    ],
)
def test_incomplete_tiny_imagenet_is_refused(damage, message, tmp_path):
    folder = tmp_path / "tiny-imagenet-200"
    write_tiny_imagenet(folder)
    damage(folder)
    with pytest.raises(ConfigError, match=message) as caught:
        load_tiny_imagenet(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_zip_with_the_wrong_checksum_is_not_opened(tiny_zip):
    root, _ = tiny_zip
    with pytest.raises(ConfigError, match=r"tiny-imagenet-200.zip is damaged or not the published file"):
        load_tiny_imagenet(str(root))
    assert not (root / "tiny-imagenet-200").exists()


# ---- one's own images


@pytest.fixture
def own_images(tmp_path):
    for split, number in (("train", 3), ("test", 1)):
        for c, name in enumerate(("cat", "dog")):
            for i in range(number):
                save_image(tmp_path / split / name / f"{i}.png", np.full((20, 30, 3), 100 * c + i, dtype=np.uint8))
    return tmp_path


def test_folder(own_images):
    data = load_folder(str(own_images), image_size=16)
    assert data.train_images.shape == (6, 3, 16, 16)
    assert sorted(data.train_images[:, 0, 0, 0].tolist()) == [0, 1, 2, 100, 101, 102]
    assert (data.train_labels == data.train_images[:, 0, 0, 0] // 100).all()
    assert set(data.train_labels[:3].tolist()) == {0, 1}, "the first images are not of one class"
    assert data.num_classes == 2
    grey = load_folder(str(own_images), image_size=8, in_channels=1, cache=False)
    assert grey.test_images.shape == (2, 1, 8, 8)
    (own_images / "test").rename(own_images / "val")
    assert torch.equal(load_folder(str(own_images), image_size=16).test_images, data.test_images)


def rename_all(folder: Path, ending: str) -> None:
    for file in folder.iterdir():
        file.rename(file.with_suffix(ending))


def put_into_one(base: Path) -> None:
    """Put the folders of the classes into one folder."""
    for split in ("train", "test"):
        (base / split).rename(base / "images")
        (base / split).mkdir()
        (base / "images").rename(base / split / "images")


HIDDEN = (".ipynb_checkpoints", "@eaDir", "__MACOSX", "lost+found", ".git/objects", "$RECYCLE.BIN")
HIDDEN_FILES = ("._0.png", ".hidden.png", "~$0.png", "0.png:Zone.Identifier")


def test_hidden_and_system_files_are_left_out_and_counted(own_images, caplog):
    caplog.set_level("INFO", "vision.data.folder")
    clean = load_folder(str(own_images), image_size=16, cache=False)
    assert "left out" not in caplog.text
    for split in ("train", "test"):
        for name in HIDDEN:
            save_image(own_images / split / name / "0.png", pixels(1, 16)[0])  # beside the classes
            save_image(own_images / split / "cat" / name / "0.png", pixels(1, 16)[0])
        for name in HIDDEN_FILES:
            (own_images / split / "dog" / name).write_bytes((own_images / split / "dog" / "0.png").read_bytes())
        for name in ("Thumbs.db", "desktop.ini", ".DS_Store"):
            (own_images / split / "dog" / name).write_bytes(b"x")
    (own_images / "train" / "labels.csv").write_text("0")
    (own_images / "train" / "cat" / "readme.txt").write_text("cats")
    data = load_folder(str(own_images), image_size=16, cache=False)
    assert data.num_classes == 2
    assert torch.equal(data.train_images, clean.train_images)
    assert torch.equal(data.test_labels, clean.test_labels)
    (line,) = (record.getMessage() for record in caplog.records if "left out" in record.getMessage())
    hidden = 2 * (2 * len(HIDDEN) + len(HIDDEN_FILES) + 3)
    assert f"left out are hidden or system files ({hidden}: " in line
    assert "files outside of a class's folder (1: labels.csv)" in line
    assert "files with other endings than images that can be read (1: .txt)" in line


def test_a_class_may_be_a_link_to_a_folder_elsewhere(own_images, tmp_path_factory):
    before = load_folder(str(own_images), image_size=16, cache=False)
    elsewhere = tmp_path_factory.mktemp("disk") / "cats"
    (own_images / "train" / "cat").rename(elsewhere)
    (own_images / "train" / "cat").symlink_to(elsewhere)
    assert torch.equal(load_folder(str(own_images), image_size=16, cache=False).train_images, before.train_images)


def test_images_in_both_splits_are_counted(own_images, caplog):
    for c, name in enumerate(("cat", "dog")):  # else one colour stands in both
        save_image(own_images / "test" / name / "0.png", pixels(1, 16, seed=c)[0])
    load_folder(str(own_images), image_size=16)
    assert "memory" not in caplog.text
    shutil.copy(own_images / "train" / "cat" / "1.png", own_images / "test" / "cat" / "copy.png")
    load_folder(str(own_images), image_size=16)
    assert "1 of 3 test images have the pixels of a training image" in caplog.text


def test_images_in_two_classes_are_counted(own_images, caplog):
    load_folder(str(own_images), image_size=16, cache=False)
    assert "of another class" not in caplog.text
    (own_images / "train" / "dog" / "link.png").symlink_to("../cat/1.png")
    load_folder(str(own_images), image_size=16, cache=False)
    assert "2 of 7 training images have the pixels of an image of another class" in caplog.text


def test_a_class_whose_name_is_written_in_two_ways_is_one_class(own_images):
    """As in archives that macOS and another system have made: ö is one character, or o and its dots."""
    before = load_folder(str(own_images), image_size=16, cache=False)
    for split, form in (("train", "NFC"), ("test", "NFD")):
        (own_images / split / "cat").rename(own_images / split / unicodedata.normalize(form, "Größe"))
    data = load_folder(str(own_images), image_size=16, cache=False)
    assert data.num_classes == 2
    pairs = sorted(zip(data.test_images[:, 0, 0, 0].tolist(), data.test_labels.tolist(), strict=True))
    assert pairs == [(0, 0), (100, 1)] or pairs == [(0, 1), (100, 0)]
    assert len(data.train_labels) == len(before.train_labels)


def test_other_splits_are_named(own_images, caplog):
    caplog.set_level("INFO", "vision.data.folder")
    for name in ("val", "valid", "__MACOSX"):
        shutil.copytree(own_images / "test", own_images / name)
    load_folder(str(own_images), image_size=16, cache=False)
    assert "left out are folders beside train and test (2: val, valid)" in caplog.text


def test_folders_that_may_not_be_looked_into_are_refused(own_images, monkeypatch):
    """As after `chmod -R 644`: the names in a folder can be read, and nothing else of it."""
    is_dir = Path.is_dir
    for forbidden in (own_images, own_images / "train", own_images / "train" / "cat"):

        def denied(path: Path, forbidden: Path = forbidden) -> bool:
            if path.parent == forbidden:
                raise PermissionError(13, "Permission denied", str(path))
            return is_dir(path)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "is_dir", denied)
            with pytest.raises(ConfigError, match=f"^{forbidden} cannot be read .Permission denied.: repair or remove"):
                load_folder(str(own_images))


def test_the_home_folder_and_an_empty_path(own_images, monkeypatch):
    monkeypatch.setenv("HOME", str(own_images.parent))
    assert len(load_folder(f"~/{own_images.name}", image_size=16, cache=False).train_labels) == 6
    with pytest.raises(ValueError, match=r"^path must be a path, got ''"):
        load_folder("")
    with pytest.raises(ValueError, match=r"^path=~nobody-here/x: there is no home folder ~nobody-here$"):
        load_folder("~nobody-here/x")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda f: (f / "test").rename(f / "exam"),
            r"dataset=folder needs .*/test/<class>/<image>.*; it has exam, train$",
        ),
        (
            lambda f: [shutil.rmtree(f / split / "dog") for split in ("train", "test")],
            r"train has one class, cat: there",
        ),
        (
            put_into_one,
            r"train has one class, images: there is nothing to tell apart; .*; are cat, dog in it the classes",
        ),
        (
            lambda f: [shutil.rmtree(folder) for folder in (f / "train").iterdir()],
            r"train has no images: put them at .*train/<class>",
        ),
        (lambda f: [p.unlink() for p in f.glob("train/*/*.png")], r"train has no images: put them at"),
        (lambda f: (f / "test" / "cow").mkdir(), r"cow has no counterpart in .*train"),
        (lambda f: (f / "test" / "cat" / "0.png").write_bytes(b"PNG?"), r"image .*0.png cannot be read"),
        (lambda f: rename_all(f / "train" / "dog", ".gif"), r"train has no images of dog, only .gif: put some there"),
        (lambda f: rename_all(f / "test" / "dog", ".txt"), r"test has no images of dog, only .txt: put some there"),
        (lambda f: shutil.rmtree(f / "test" / "dog"), r"test has no images of dog: put some there"),
        (lambda f: (f / "train" / "cow" / ".cache").mkdir(parents=True), r"train has no images of cow: put some there"),
        (lambda f: (f / "train" / "cat" / "self").symlink_to("."), r"self is a link back to .*cat, in which it stands"),
        (lambda f: (f / "train" / "cat" / "up").symlink_to("../.."), r"up is a link back to .*, in which it stands"),
        (
            lambda f: (f / "train" / "cat" / "more").symlink_to("../dog"),
            r" are the same folder, which would be read",
        ),
        (lambda f: (f / "train" / "cow").symlink_to("nowhere"), r"cow is a link to nothing that is there: repair"),
        (
            lambda f: (f / "train" / "cat" / "x.png").symlink_to("/no"),
            r"x.png is a link to nothing that is there: repair",
        ),
    ],
)
def test_folder_errors(own_images, damage, message):
    damage(own_images)
    with pytest.raises(ConfigError, match=message):
        load_folder(str(own_images))


def test_a_folder_that_cannot_be_written_is_cached_elsewhere(own_images, tmp_path_factory, monkeypatch):
    spare = tmp_path_factory.mktemp("runs") / ".decoded"
    monkeypatch.setattr("vision.data.decode.os.access", lambda path, mode: False)
    data = load_folder(str(own_images), image_size=16, spare=str(spare))
    assert len([*spare.rglob("*.safetensors")]) == 1
    assert not [*own_images.glob("decoded*")]
    monkeypatch.setattr("vision.data.decode.decode", None)  # it would be called if the cache were not read
    assert torch.equal(load_folder(str(own_images), image_size=16, spare=str(spare)).train_images, data.train_images)


def test_a_run_on_a_folder_is_named_by_the_images_and_not_by_the_place(own_images, tmp_path_factory):
    def identity(path: Path) -> dict[str, object]:
        options = ("dataset=folder", f"dataset.path={path}", "dataset.image_size=16", "benchmark=warm_start")
        return Task.from_config(compose("vision", *options, "benchmark.ratio=50", f"paths.runs={path}")).identity()

    elsewhere = tmp_path_factory.mktemp("moved") / "images"
    shutil.copytree(own_images, elsewhere)
    before = identity(own_images)
    assert identity(elsewhere) == before
    save_image(elsewhere / "train" / "dog" / "0.png", np.full((20, 30, 3), 50, dtype=np.uint8))
    assert identity(elsewhere) != before


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("benchmark=warm_start", "benchmark.ratio=10 leaves no samples of 6 for the first phase"),
        (
            "benchmark=random_labels benchmark.samples=4 dataset.test_statistics=test",
            "dataset.test_statistics has no effect with benchmark=random_labels, which tests on no images",
        ),
    ],
)
def test_what_a_small_folder_cannot_do_is_refused_in_one_line(options, says, own_images, monkeypatch, capsys):
    data = ("dataset=folder", f"dataset.path={own_images}", "dataset.image_size=16")
    assert start_here("vision", [*ALIKE, *data, *options.split()], monkeypatch) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {says}"
