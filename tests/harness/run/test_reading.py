"""A file that cannot be read at the moment is not damaged: the run ends in one line, and nothing of it is changed."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.config.errors import ConfigError, Diverged, TrainingError
from harness.program.messages import exit_code
from harness.run import checkpoint
from tests.programs import DQN, SMALL, assert_same

FILES = {
    "checkpoints": ".pt",
    "folder of checkpoints": "/checkpoints",
    "rows": "metrics.jsonl",
    "DONE": "DONE",
    "environments": "env.json",
}
# Python has a class of its own for each of these, but for EIO, which stands for all others that are a plain OSError.
FAULTS = [(what, number) for what in FILES for number in (errno.EIO, errno.EACCES)]
FAULTS += [("checkpoints", number) for number in (errno.ENOENT, errno.ETIMEDOUT)]
OPTIONS = ("method=redo", "cache=off")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the checkpoints of both phases' ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "remove_old", lambda folder, keep: None)
        return SMALL.run(tmp_path_factory.mktemp("finished"), *OPTIONS)


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder but its lock."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (".lock", "FAILED")
    }


def failing(number: int, real: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """A function of the system that fails for paths that end in one of these names."""

    def fails(path: Any, *arguments: Any, **options: Any) -> Any:
        if str(path).endswith(names):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *arguments, **options)

    return fails


@pytest.mark.parametrize(("what", "number"), FAULTS, ids=[f"{what}, {errno.errorcode[no]}" for what, no in FAULTS])
def test_nothing_is_changed(
    what: str, number: int, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "vision" / finished.name
    shutil.copytree(finished, folder)
    if what != "DONE":
        (folder / "DONE").unlink()
    before = content(folder)
    if what == "folder of checkpoints":
        monkeypatch.setattr(os, "listdir", failing(number, os.listdir, FILES[what]))
    else:
        monkeypatch.setattr(Path, "read_bytes", failing(number, Path.read_bytes, FILES[what]))
    with pytest.raises(
        TrainingError, match=r"^cannot read .*nothing was changed; start the same command again"
    ) as error:
        SMALL.run(tmp_path, *OPTIONS)
    assert "\n" not in str(error.value)
    assert not isinstance(error.value, Diverged), "a search does not take it for a run that diverged"
    monkeypatch.undo()
    assert content(folder) == before
    SMALL.run(tmp_path, *OPTIONS)
    assert_same(folder, finished)
    assert not list((folder / "checkpoints").glob("damaged-*"))


@pytest.mark.parametrize("name", ["metrics.jsonl", ".lock", "FAILED"])
def test_a_link_to_a_file_of_others_empties_nothing(name: str, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "vision" / finished.name
    folder.mkdir(parents=True)
    (tmp_path / "thesis.tex").write_text("words")
    (folder / name).symlink_to(tmp_path / "thesis.tex")
    if name == ".lock":
        with pytest.raises(ConfigError, match="cannot"):
            SMALL.run(tmp_path, *OPTIONS)
    else:
        SMALL.run(tmp_path, *OPTIONS)
        assert_same(folder, finished)
    assert (tmp_path / "thesis.tex").read_text() == "words"


def test_rows_behind_a_link_are_copied_and_stay(finished: Path, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "vision" / finished.name, tmp_path / "elsewhere"
    shutil.copytree(finished, folder)
    (folder / "DONE").unlink()
    shutil.move(folder / "metrics.jsonl", elsewhere)
    with open(elsewhere, "a") as file:
        file.write("precious=1\n")
    before = elsewhere.read_bytes()
    (folder / "metrics.jsonl").symlink_to(elsewhere)
    SMALL.run(tmp_path, *OPTIONS)
    assert elsewhere.read_bytes() == before
    assert_same(folder, finished)


@pytest.mark.parametrize("name", ["checkpoints", "metrics.jsonl", "DONE", "env.json", "newest"])
def test_nor_where_a_link_leads_to_a_disk_that_is_not_mounted(name: str, finished: Path, tmp_path: Path) -> None:
    folder, archive = tmp_path / "vision" / finished.name, tmp_path / "archive"
    shutil.copytree(finished, folder)
    archive.mkdir()
    if name != "DONE":
        (folder / "DONE").unlink()
    path = folder / name if name != "newest" else sorted((folder / "checkpoints").iterdir())[-1]
    path.rename(archive / path.name)
    path.symlink_to(archive / path.name)
    before = content(folder)
    archive.rename(tmp_path / "not mounted")

    def names() -> list[str]:
        return sorted(str(path) for path in folder.rglob("*") if path.name not in (".lock", "FAILED"))

    names_before = names()
    with pytest.raises(TrainingError, match=r"^cannot read .*nothing was changed"):
        SMALL.run(tmp_path, *OPTIONS)
    assert names() == names_before
    (tmp_path / "not mounted").rename(archive)
    assert content(folder) == before
    SMALL.run(tmp_path, *OPTIONS)
    assert_same(folder, finished)


@pytest.mark.parametrize("name", ["metrics.jsonl", "DONE", "env.json"])
def test_a_pipe_is_not_waited_for(name: str, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "vision" / finished.name
    shutil.copytree(finished, folder)
    (folder / "DONE").unlink()
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(TrainingError, match=rf"^cannot read {folder / name} \(it is no regular file\)"):
        SMALL.run(tmp_path, *OPTIONS)


@pytest.mark.parametrize("name", [".pt", "metrics.jsonl", "DONE", "env.json"])
def test_nor_is_a_shared_first_phase(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SMALL.run(tmp_path, "method=base")
    (entry,) = (tmp_path / ".cache").glob("vision-*")
    before = content(entry)
    names = (name,) if name == ".pt" else (str(entry / name),)
    monkeypatch.setattr(Path, "read_bytes", failing(errno.EIO, Path.read_bytes, *names))
    with pytest.raises(TrainingError, match="cannot read"):
        SMALL.run(tmp_path, "method=fire")
    monkeypatch.undo()
    assert content(entry) == before


def test_the_exit_code_says_that_the_same_command_may_go_on() -> None:
    assert exit_code(OSError(errno.EIO, "Input/output error", "x")) == 3
    assert exit_code(TrainingError("cannot read x")) == 3
    assert exit_code(ConfigError("lr must be positive")) == 2
    assert exit_code(FileNotFoundError(errno.ENOENT, "No such file", "x")) == 2


AGENT = ("method=redo", "cache=off", "total_steps=300", "checkpoint.every_seconds=0")


@pytest.fixture
def stopped_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run of an agent that was stopped after its fourth checkpoint."""
    steps = iter(range(4))
    real = checkpoint.save

    def save(*arguments: Any, **others: Any) -> Path:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return real(*arguments, **others)

    monkeypatch.setattr(checkpoint, "save", save)
    with pytest.raises(KeyboardInterrupt):
        DQN.run(tmp_path, *AGENT)
    monkeypatch.undo()
    (folder,) = (tmp_path / "dqn").iterdir()
    assert list((folder / "replay").iterdir())
    return folder


def test_nor_is_a_replay(stopped_agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(stopped_agent)
    real_read = Path.read_bytes

    def read(path: Path) -> bytes:
        if path.parent.name == "replay":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return real_read(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    with pytest.raises(TrainingError, match="Input/output error"):
        DQN.run(tmp_path, *AGENT)
    monkeypatch.undo()
    after = content(stopped_agent)
    assert {name: after[name] for name in before if "replay" in name or "checkpoints" in name} == {
        name: data for name, data in before.items() if "replay" in name or "checkpoints" in name
    }


@pytest.mark.parametrize("is_missing", [False, True])
def test_where_a_part_of_the_replay_is_damaged_the_checkpoint_before_is_used(
    is_missing: bool, stopped_agent: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    newest, before = checkpoint.newest_first(stopped_agent / "checkpoints")
    needed, needed_before = (
        {*checkpoint.read(path)["state"]["trainer"]["replay"]["segments"]} for path in (newest, before)
    )
    part = stopped_agent / "replay" / min(needed - needed_before)
    if is_missing:
        part.unlink()
    else:
        part.write_bytes(part.read_bytes()[:-1])
    DQN.run(tmp_path, *AGENT)
    assert f"the replay's segment {part.name} is missing or damaged): taking the one before it" in caplog.text
    assert (stopped_agent / "DONE").exists()


@pytest.mark.parametrize(
    "message", ["CUDA error: an illegal memory access", "DefaultCPUAllocator: can't allocate memory"]
)
def test_what_the_device_says_is_not_damage(message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, 1, {"x": 1}, {})

    def load(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError(message)

    monkeypatch.setattr(checkpoint.torch, "load", load)
    with pytest.raises(RuntimeError, match=message):
        checkpoint.load_newest(tmp_path, {})
    monkeypatch.undo()
    assert checkpoint.load_newest(tmp_path, {}) == {"x": 1}
