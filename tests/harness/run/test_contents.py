"""Files of which no published digest is known are part of what a run is, by what is in them."""

import errno
import hashlib
import importlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from fire_core.methods import fire
from harness.config.errors import ConfigError, TrainingError
from harness.program.by_name import program_of
from harness.program.execute import new_run
from harness.run import contents, own_code
from harness.run.contents import cached_digest, digest_of, sha256_of, with_contents
from harness.run.identity import described, identity, without
from harness.run.own_environments import environment_sources
from harness.trained.load import warn_of_changed_code
from language import corpora, prepare
from language.tokenizers import get_tokenizer
from scripts import record_shipped
from tests.programs import DQN, SAC, SMALL, Program
from tests.zygote import Zygote
from vision.data.images import ImageData

HERE = "tests.harness.run.test_contents"


class Loaded(nn.Linear):
    """A network of a user's own that begins at the weights of a file, flat images (N, 1, 8, 8) to classes."""

    def __init__(self, num_classes: int, weights: str) -> None:
        super().__init__(64, num_classes)
        with torch.no_grad():
            self.weight.copy_(torch.load(weights, weights_only=True))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images.flatten(1))


def load_npz(npz: str) -> ImageData:
    """A data set of a user's own: 8x8 images and their labels, for both splits the same."""
    with np.load(npz) as file:
        split = torch.from_numpy(file["images"]), torch.from_numpy(file["labels"])
    return ImageData.of(split, split, 10)


def write_npz(path: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    images = draw.integers(0, 256, (40, 1, 8, 8), dtype=np.uint8)
    np.savez(path, images=images, labels=np.arange(40) % 10)


def lines_of(file: str) -> corpora.Corpus:
    """A corpus of a user's own: a line a document, the last ones held out; it has no fingerprint."""
    lines = Path(file).read_text().splitlines()
    return corpora.Corpus("lines", len(lines), lambda: iter([(line, i % 4 == 3) for i, line in enumerate(lines)]))


def name_of(program: Program, *options: str, **groups: dict[str, Any]) -> str:
    """The name of the folder of these options' run; `groups` are put in the place of the configuration's."""
    config = program.compose(*options)
    OmegaConf.set_struct(config, False)
    for group, node in groups.items():
        config[group] = node
    known = program_of(program.name)
    return new_run(config, known, known.make_task(config), None).folder.name


def test_other_weights_at_the_same_path_are_another_run(tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    runs = f"paths.runs={tmp_path / 'runs'}"
    names = []
    for value in (0.0, 1.0, 0.0):
        torch.save(torch.full((10, 64), value), file)
        names.append(name_of(SMALL, runs, model={"_target_": f"{HERE}.Loaded", "name": "mine", "weights": str(file)}))
    assert names[0] == names[2] != names[1]


def test_other_images_at_the_same_path_are_another_run(tmp_path: Path) -> None:
    names = []
    for seed in (0, 1, 0):
        write_npz(tmp_path / "mine.npz", seed)
        own = {"_target_": f"{HERE}.load_npz", "name": "mine", "npz": str(tmp_path / "mine.npz")}
        names.append(name_of(SMALL, dataset=own))
    assert names[0] == names[2] != names[1]


def test_changed_code_of_ones_own_is_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A method that was edited is trained anew; a run of the old one is loaded with a warning."""
    module = tmp_path / "own_method_of_a_test.py"
    monkeypatch.syspath_prepend(tmp_path)
    own = {"_target_": "own_method_of_a_test.Own", "name": "own"}
    names = []
    for factor in (0.5, 0.9, 0.5):
        module.write_text(f"from fire_core.methods import Method\nclass Own(Method):\n    factor = {factor}\n")
        names.append(name_of(SMALL, method=own))
    assert names[0] == names[2] != names[1]
    folder = tmp_path / "run"
    folder.mkdir()
    with_digest = {"run": {"method": with_contents(own, None)}}
    (folder / "identity.json").write_text(json.dumps(with_digest))
    warn_of_changed_code(folder, {own["_target_"]})
    assert not caplog.text
    module.write_text(module.read_text() + "    other = 1\n")
    warn_of_changed_code(folder, {own["_target_"]})
    assert f"{module} has changed since {folder} was trained" in caplog.text


def test_code_as_it_is_shipped_and_libraries_are_not_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edited file of this project is, committed or not: it may change while no number of the version does."""
    for target in ("torch.optim.AdamW", "fire_core.methods.fire.Fire", "vision.data.load_digits", "no_such.Class"):
        assert own_code.own_source(target) is None, target
    others = {**own_code.shipped_digests(), "fire_core/methods/fire.py": "0123456789abcdef"}
    monkeypatch.setattr(own_code, "shipped_digests", lambda: others)
    assert own_code.own_source("fire_core.methods.fire.Fire") == Path(fire.__file__).resolve()


def test_a_new_file_of_this_project_is_ones_own() -> None:
    """Whether or not it is committed, and without git."""
    assert own_code.own_source(f"{HERE}.Loaded") == Path(__file__).resolve()


@pytest.mark.parametrize("folder", ["lib/python3/dist-packages", "modules/site-packages"])
def test_an_installed_package_is_not_ones_own_wherever_it_lies(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / folder
    packages.mkdir(parents=True)
    (packages / "installed_for_a_test.py").write_text("class Optimizer: pass\n")
    monkeypatch.syspath_prepend(packages)
    assert own_code.source_of("installed_for_a_test.Optimizer") is not None
    assert own_code.own_source("installed_for_a_test.Optimizer") is None


def test_what_is_recorded_as_shipped_is_what_conf_names() -> None:
    assert own_code.shipped_digests() == record_shipped.digests_of_targets(), (
        "a file that conf/ names has changed: `python -m scripts.record_shipped`, and raise NUMERICS if numbers move"
    )


@pytest.mark.parametrize("group", ["env", "method", "optimizer"])
def test_any_group_s_files_count(group: str, tmp_path: Path) -> None:
    file = tmp_path / "given.xml"
    file.write_text("one")
    config = {"program": "sac", "device": "cpu", "seed": 0, group: {"name": "x", "options": {"xml_file": str(file)}}}
    before = identity(config)
    assert identity(config) == before
    file.write_text("two")
    assert identity(config) != before
    assert without(identity(config), (group,)) == without(before, (group,)), "a shared first phase has no method"


MODEL = """
<mujoco>
  <compiler meshdir="meshes"/>
  <include file="parts/body.xml"/>
  <asset><mesh file="foot.stl"/><texture type="cube" fileright="sky.png"/><mesh file="not_there.stl"/></asset>
</mujoco>
"""


def test_the_files_of_a_mujoco_model_count(tmp_path: Path) -> None:
    model = tmp_path / "model.xml"
    for name, content in {
        "model.xml": MODEL,
        "parts/body.xml": '<mujoco><compiler texturedir="skies"/><include file="parts/leg.xml"/></mujoco>',
        "parts/leg.xml": "<mujoco/>",
        "meshes/foot.stl": "mesh",
        "skies/sky.png": "texture",
        "other.xml": "<mujoco/>",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    digests = {digest_of(model)}
    for name in ("parts/body.xml", "parts/leg.xml", "meshes/foot.stl", "skies/sky.png"):
        with (tmp_path / name).open("a") as file:
            file.write(" ")
        digests.add(digest_of(model))
    assert len(digests) == 5
    (tmp_path / "other.xml").write_text("<mujoco model='a'/>")
    assert digest_of(model) in digests, "a file that the model does not name"
    copied = shutil.copytree(tmp_path, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("elsewhere"))
    assert digest_of(copied / "model.xml") == digest_of(model), "its place does not count"


@pytest.mark.parametrize("content", ["<mujoco/>", "no xml", "<a><b>", '<mujoco><include file="self.xml"/></mujoco>'])
def test_a_model_that_names_no_other_file_has_the_digest_of_its_own(content: str, tmp_path: Path) -> None:
    (tmp_path / "self.xml").write_text(content)
    assert digest_of(tmp_path / "self.xml") == sha256_of(tmp_path / "self.xml")


def test_a_file_that_is_called_like_a_word_is_no_option_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = name_of(SMALL)
    for word in ("adam", "mlp", "digits", "relu", "fire", "warm_start", "auto"):
        (tmp_path / word).mkdir()
    (tmp_path / "small").write_text("text")
    assert name_of(SMALL) == before


def test_a_changed_source_of_a_corpus_of_ones_own_is_refused(tmp_path: Path) -> None:
    file, byte = tmp_path / "lines.jsonl", get_tokenizer("byte")
    file.write_text("one\ntwo\nthree\nfour\n")
    for local in (True, False):  # where it is False, `language.prepare` has made them
        options = {"_target_": f"{HERE}.lines_of", "name": "mine", "local": local, "file": str(file)}
        prepare.prepare(tmp_path, options, byte, progress=False)
        prepare.load(tmp_path, options, byte, local)
    file.write_text("one\ntwo\nthree\nsix!\n")
    for local in (True, False):
        options = {"_target_": f"{HERE}.lines_of", "name": "mine", "local": local, "file": str(file)}
        with pytest.raises(ConfigError, match=r"its source \(lines, train\) has changed since"):
            prepare.load(tmp_path, options, byte, local)
    file.unlink()  # as of a copy of a hub's, removed to save space once its tokens are made
    prepare.load(tmp_path, options, byte, False)


def test_tokens_that_changed_code_of_ones_own_makes_are_prepared_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module, options = tmp_path / "own_corpus_of_a_test.py", {"_target_": "own_corpus_of_a_test.lines", "name": "mine"}
    folders = set()
    for text in ("one", "two", "one"):
        module.write_text(f"def lines():\n    return '{text}'\n")
        folders.add(prepare.corpus_folder(tmp_path, options, get_tokenizer("byte")))
    assert len(folders) == 2


# ---- what is remembered


def changed(file: Path, content: bytes) -> None:
    """Give a file another content of the same size, and put its older date back."""
    about = file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))


def test_a_digest_is_computed_once_and_never_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "SMALL", 0)
    monkeypatch.setattr(contents, "RECENT", 0.01)
    file, memory, computed = tmp_path / "weights.bin", tmp_path / "memory", []
    sha256 = contents.sha256_of
    monkeypatch.setattr(contents, "sha256_of", lambda path: computed.append(path) or sha256(path))
    file.write_bytes(b"a" * 100)
    time.sleep(0.05)
    for content, count in ((b"a", 1), (b"b", 2), (b"c", 3)):
        if content != b"a":
            changed(file, content * 100)
            time.sleep(0.05)
        for _ in range(3):
            assert digest_of(file, memory) == hashlib.sha256(content * 100).hexdigest()
        assert len(computed) == count
    other = tmp_path / "other.bin"  # put in its place, with its date
    other.write_bytes(b"d" * 100)
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    os.replace(other, file)
    assert digest_of(file, memory) == hashlib.sha256(b"d" * 100).hexdigest()


def test_what_has_just_changed_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of a file system may stand still for seconds: two changes then look like one."""
    monkeypatch.setattr(contents, "SMALL", 0)
    file, memory = tmp_path / "weights.bin", tmp_path / "memory"
    file.write_bytes(b"a")
    still = contents.states([file])
    monkeypatch.setattr(contents, "states", lambda files: still)
    assert digest_of(file, memory) == hashlib.sha256(b"a").hexdigest()
    file.write_bytes(b"b")
    assert digest_of(file, memory) == hashlib.sha256(b"b").hexdigest()


def test_a_file_that_changes_while_it_is_read_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "RECENT", -1e9)
    file, memory = tmp_path / "weights.bin", tmp_path / "memory"
    file.write_bytes(b"a")

    def slow() -> str:
        file.write_bytes(b"bb")
        return "0" * 64

    cached_digest(memory, [file], slow)
    assert not memory.exists()


def test_a_file_of_which_nothing_can_be_known_now_makes_no_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its content in its identity, a finished run would be trained again, in another folder."""
    file = tmp_path / "given.xml"
    file.write_text("one")
    real = Path.is_file

    def is_file(path: Path) -> bool:
        if path == file:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    with pytest.raises(TrainingError, match=r"cannot read .*given\.xml \(Stale file handle\)"):
        with_contents({"xml_file": str(file)}, None)
    for text in ("a" * 5000, "~nobody-of-this-name/x", "a\0b/c", "no/such/file"):
        assert with_contents({"weights": text}, None) == {"weights": text}


@pytest.mark.parametrize("damage", [b"", b"12", b"\xff" * 64, b"0" * 64, b"0" * 64 + b" " + b"0" * 16])
def test_a_damaged_memory_is_not_believed(damage: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "SMALL", 0)
    monkeypatch.setattr(contents, "RECENT", -1e9)
    file, memory = tmp_path / "weights.bin", tmp_path / "memory"
    file.write_bytes(b"a")
    expected = digest_of(file, memory)
    (place,) = memory.iterdir()
    written = place.read_text()
    place.write_bytes(damage)
    assert digest_of(file, memory) == expected
    assert place.read_text() == written
    place.write_text(("0" if written[0] != "0" else "1") + written[1:])  # another digest that looks as good
    assert digest_of(file, memory) == expected


ASK = """
import os
from pathlib import Path
from harness.run import contents
from tests.programs import wait_for
contents.SMALL, contents.RECENT = 0, -1e9
Path(f"ready.{os.getpid()}").touch()
wait_for(lambda: len([*Path().glob("ready.*")]) == 3)
for _ in range(8):
    print(contents.digest_of(Path("weights.bin"), Path("memory")))
"""


def test_many_processes_may_ask_at_once(tmp_path: Path, zygote: Zygote) -> None:
    file, memory = tmp_path / "weights.bin", tmp_path / "memory"
    file.write_bytes(os.urandom(3_000_000))
    (tmp_path / "program.py").write_text(ASK)
    children = [zygote.start(tmp_path, "program") for _ in range(3)]
    answers = [zygote.end(tmp_path, child) for child in children]
    assert [answer.code for answer in answers] == [0, 0, 0], answers
    digests = [digest for answer in answers for digest in answer.out.split()]
    assert digests == [hashlib.sha256(file.read_bytes()).hexdigest()] * 24
    assert len([*memory.iterdir()]) == 1, "no temporary file stays"


def test_a_folder_s_digest_is_of_its_files_and_not_of_its_place(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place / "in").mkdir(parents=True)
        (tmp_path / place / "in" / "x.bin").write_bytes(b"x")
    one = digest_of(tmp_path / "a")
    assert one == digest_of(tmp_path / "b")
    (tmp_path / "b" / "in" / "x.bin").rename(tmp_path / "b" / "in" / "y.bin")
    assert one != digest_of(tmp_path / "b")
    known = with_contents({"weights": str(tmp_path / "a"), "nested": {"files": [str(tmp_path / "a")]}}, None)
    assert known["weights (content)"] == one
    assert known["nested"]["files (content)"] == [one]


def test_runs_of_before_are_still_those_of_data_that_are_verified() -> None:
    """Their identity has not changed: no content of digits, bits and published files is in it."""
    assert "path" not in program_of("vision").make_task(SMALL.compose()).identity()["dataset"]
    for program in (DQN, SAC):
        assert "(content)" not in str(program_of(program.name).make_task(program.compose()).identity())


@pytest.mark.parametrize("edited", ["registers", "defines"])
@pytest.mark.parametrize(
    ("group", "option", "version"),
    [("env", "game", "-v0"), ("env", "task", ""), ("benchmark", "sequence", "-v0")],  # "": the newest version
)
def test_changed_code_of_an_environment_is_another_run(
    group: str,
    option: str,
    version: str,
    edited: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The file that registers it counts, and that of its class; a run of the old one is loaded with a warning."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"OfATest{edited}{option}"  # modules and environments are registered once in a process
    registers, defines = f"registers_{name}", f"defines_{name}"
    (tmp_path / f"{registers}.py").write_text(f'import gymnasium\ngymnasium.register("{name}-v0", "{defines}:Own")\n')
    (tmp_path / f"{defines}.py").write_text("class Own: pass\n")
    importlib.invalidate_caches()
    given: Any = f"{registers}:{name}{version}"
    given = ["Hopper-v5", given] if option == "sequence" else given
    config = {"program": "sac", "device": "cpu", "seed": 0, group: {"name": "x", option: given}}
    before = identity(config)
    assert environment_sources(f"{registers}:{name}{version}").keys() == {registers, defines}
    assert identity(config) == before
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "identity.json").write_text(json.dumps(described(before)))
    warn_of_changed_code(folder, set(), {registers})
    assert not caplog.text
    file = tmp_path / f"{registers if edited == 'registers' else defines}.py"
    file.write_text(file.read_text() + "SCALE = 2\n")
    assert identity(config) != before
    warn_of_changed_code(folder, set(), {"module_that_may_be_imported"})
    assert not caplog.text
    warn_of_changed_code(folder, set(), {registers})
    assert f"{file} has changed since" in caplog.text


def test_environments_of_libraries_are_not_ones_own() -> None:
    names = [
        "Hopper-v5",
        "CartPole-v1",
        "breakout",
        "ale_py:ALE/Breakout-v5",
        "no_such_module:Own-v0",
        "hopper-hop",
        "",
    ]
    for name in names:
        assert environment_sources(name) == {}, name
