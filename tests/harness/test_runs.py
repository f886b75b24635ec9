"""What `python -m harness.runs` says of real runs, and what it removes."""

import os
import signal
from pathlib import Path

import pytest

from harness import runs
from tests.programs import SMALL, lines, wait_for
from tests.zygote import Zygote


@pytest.fixture(scope="module")
def root(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of each state but `running`."""
    folder = tmp_path_factory.mktemp("runs")
    assert zygote.run(folder, "vision.train", *SMALL.tiny("method=base")).code == 0
    assert zygote.run(folder, "vision.train", *SMALL.tiny("method=fire", "lr=1e30", "cache=off")).code == 3
    child = zygote.start(
        folder, "vision.train", *SMALL.tiny("method=snp", "epochs=100", "cache=off", "checkpoint.every_seconds=0.05")
    )
    wait_for(lambda: lines(folder / "runs", "vision/*-snp-*") >= 3)
    wait_for(lambda: list(folder.glob("runs/vision/*-snp-*/checkpoints/[!.]*")))
    os.kill(child, signal.SIGKILL)
    zygote.end(folder, child)
    return folder / "runs"


def ls(root: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, list[str]]:
    """The words of each line, by method."""
    assert runs.main(["--runs", str(root), "ls", *options]) == 0
    return {line.split("-")[2]: line.split() for line in capsys.readouterr().out.splitlines()}


def test_states_and_progress(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = ls(root, capsys)
    assert {method: words[1] for method, words in listed.items()} == {
        "base": "done", "fire": "failed", "snp": "interrupted"
    }  # fmt: skip
    assert listed["base"][2] == "100%"
    assert "test/accuracy" in listed["base"]
    assert "is not finite at step" in " ".join(listed["fire"])
    assert 0 < int(listed["snp"][2].rstrip("%")) < 50
    assert list(ls(root, capsys, "--state", "failed,done")) == ["base", "fire"]
    assert list(ls(root, capsys, "--cache")) == ["digits"]


def test_a_run_that_runs(root: Path, zygote: Zygote, capsys: pytest.CaptureFixture[str]) -> None:
    child = zygote.start(root.parent, "vision.train", *SMALL.tiny("method=full_reset", "epochs=100", "cache=off"))
    wait_for(lambda: lines(root, "vision/*-full_reset-*") >= 1)
    os.kill(child, signal.SIGSTOP)
    assert ls(root, capsys)["full_reset"][1] == "running"
    assert runs.main(["--runs", str(root), "prune", "--state", "running", "--yes"]) == 0
    (folder,) = (root / "vision").glob("*-full_reset-*")
    second = zygote.run(root.parent, "vision.train", *SMALL.tiny("method=full_reset", "epochs=100", "cache=off"))
    assert second.code == 2
    assert "is being trained by another process" in second.err
    os.kill(child, signal.SIGKILL)
    zygote.end(root.parent, child)
    assert ls(root, capsys)["full_reset"][1] == "interrupted"
    assert folder.exists()


def test_prune_says_before_it_does(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints = next((root / "vision").glob("*-base-*")) / "checkpoints"
    replay = checkpoints.with_name("replay")  # what an agent remembers is of no use without its weights
    replay.mkdir()
    assert runs.main(["--runs", str(root), "prune", "--checkpoints"]) == 0
    assert capsys.readouterr().out.startswith("would remove ")
    assert checkpoints.exists()
    assert runs.main(["--runs", str(root), "prune", "--checkpoints", "--yes"]) == 0
    assert not checkpoints.exists()
    assert not replay.exists()
    assert SMALL.run(root, "method=base") == checkpoints.parent, "it is done all the same"
    assert not checkpoints.exists()
    assert len(list((root / "vision").glob("*/checkpoints"))) >= 1, "those of runs that are not done stay"
    assert runs.main(["--runs", str(root), "prune", "--state", "failed,interrupted", "--yes"]) == 0
    assert [folder.name.split("-")[2] for folder in (root / "vision").iterdir()] == ["base"]
    for wrong in (["prune"], ["ls", "--state", "lost"], ["--runs", "nowhere", "ls"]):
        with pytest.raises(SystemExit):
            runs.main(["--runs", str(root), *wrong])


@pytest.mark.parametrize("content", ["", "[]", "text"])
def test_a_damaged_folder_is_listed_like_any(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "vision" / "run"
    folder.mkdir(parents=True)
    for name in ("env.json", "DONE", "metrics.jsonl"):
        (folder / name).write_text(content + "\n")
    assert runs.main(["--runs", str(tmp_path), "ls"]) == 0
    assert capsys.readouterr().out.split() == ["run", "interrupted", "0"]
