"""What `python -m harness.runs` says of real runs, and what it removes."""

import os
import signal
from pathlib import Path

import pytest

from harness import runs
from tests.programs import VISION, lines, wait_for
from tests.zygote import Zygote


@pytest.fixture(scope="module")
def root(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of each state but `running`."""
    folder = tmp_path_factory.mktemp("runs")
    assert zygote.run(folder, "vision.train", *VISION.tiny("method=base")).code == 0
    assert zygote.run(folder, "vision.train", *VISION.tiny("method=fire", "lr=1e30", "cache=off")).code == 3
    child = zygote.start(
        folder, "vision.train", *VISION.tiny("method=snp", "epochs=100", "cache=off", "checkpoint.every_seconds=0.05")
    )
    wait_for(lambda: lines(folder / "runs", "vision/*-snp-*") >= 3)
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
    child = zygote.start(root.parent, "vision.train", *VISION.tiny("method=full_reset", "epochs=100", "cache=off"))
    wait_for(lambda: lines(root, "vision/*-full_reset-*") >= 1)
    os.kill(child, signal.SIGSTOP)
    assert ls(root, capsys)["full_reset"][1] == "running"
    assert runs.main(["--runs", str(root), "prune", "--state", "running", "--yes"]) == 0
    (folder,) = (root / "vision").glob("*-full_reset-*")
    second = zygote.run(root.parent, "vision.train", *VISION.tiny("method=full_reset", "epochs=100", "cache=off"))
    assert second.code == 2
    assert f"is being trained by process {child} on " in second.err
    os.kill(child, signal.SIGKILL)
    zygote.end(root.parent, child)
    assert ls(root, capsys)["full_reset"][1] == "interrupted"
    assert runs.main(["--runs", str(root), "show", folder.name]) == 0
    shown = capsys.readouterr().out
    assert '"_target_": "fire_core.methods.full_reset.FullReset"' in shown
    assert '"execution": {' in shown


def test_prune_follows_no_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept.pt").touch()
    for name in ("a", "b"):
        folder = tmp_path / "runs/vision" / name
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text('{"step": 1}\n')
        (folder / ".lock").touch()
        (folder / "env.json").write_text("{}")
        (folder / "DONE").write_text("{}")
    (tmp_path / "runs/vision/a/checkpoints").symlink_to(tmp_path / "outside")
    (tmp_path / "runs/vision/b/checkpoints").mkdir()
    assert runs.main(["--runs", str(tmp_path / "runs"), "prune", "--checkpoints", "--yes"]) == 0
    assert "a/checkpoints: it is a link" in capsys.readouterr().out
    assert (tmp_path / "outside/kept.pt").exists()
    assert not (tmp_path / "runs/vision/a/PRUNED").exists()
    assert not (tmp_path / "runs/vision/b/checkpoints").exists()


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
    assert len(list((root / "vision").glob("*/checkpoints"))) >= 1, "those of runs that are not done stay"
    assert runs.main(["--runs", str(root), "prune", "--state", "failed,interrupted", "--yes"]) == 0
    assert [folder.name.split("-")[2] for folder in (root / "vision").iterdir()] == ["base"]
    for wrong in (["prune"], ["ls", "--state", "lost"], ["--runs", "nowhere", "ls"]):
        with pytest.raises(SystemExit):
            runs.main(["--runs", str(root), *wrong])


@pytest.mark.parametrize("file", ["DONE", "FAILED", "env.json", "metrics.jsonl", "config.yaml", "identity.json"])
@pytest.mark.parametrize("content", [b"", b"[]", b"text", b"\xff\xfe\x1b[31m", b"[" * 10**5, b'{"step": "x"}\n', None])
def test_a_bad_folder_is_listed_like_any(
    file: str, content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "vision" / "run"
    folder.mkdir(parents=True)
    (folder / ".lock").touch()
    (folder / "env.json").write_text('{"total_steps": 10}')
    (folder / "metrics.jsonl").write_text('{"step": 5, "loss": 1.0}\n')
    (folder / file).unlink(missing_ok=True)
    if content is None:
        os.mkfifo(folder / file)
    else:
        (folder / file).write_bytes(content)
    assert runs.main(["--runs", str(tmp_path), "ls"]) == 0
    assert runs.main(["--runs", str(tmp_path), "show", "run"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("run")
    assert "\x1b" not in out
