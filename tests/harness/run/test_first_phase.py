"""The shared first phase: trained once, whatever happens, and never anything but what the run would have trained."""

import logging
import os
import shutil
import signal
from pathlib import Path

import pytest

from harness.config.errors import ConfigError
from tests.programs import SMALL, assert_same, only_run, wait_for, wait_until_held
from tests.zygote import Zygote

METHODS = ("base", "fire", "snp")
TRAINING, TAKEN = "training the first phase", "first phase taken from"


def entry_of(folder: Path) -> Path:
    """The one entry of a cache."""
    (entry,) = (folder / "runs" / ".cache").glob("vision-*")
    return entry


def test_many_processes_train_it_once(tmp_path: Path, zygote: Zygote) -> None:
    jobs = [SMALL.tiny(f"method={method}") for method in METHODS]
    children = [zygote.start(tmp_path, "vision.train", *options) for options in jobs]
    answers = [zygote.end(tmp_path, child) for child in children]
    assert [answer.code for answer in answers] == [0] * len(METHODS)
    messages = "".join(answer.err for answer in answers)
    assert messages.count(TRAINING) == 1
    assert messages.count(TAKEN) == len(METHODS) - 1
    assert "s saved" in messages
    entry_of(tmp_path)


@pytest.mark.slow
def test_who_waits_takes_over_when_the_holder_dies(tmp_path: Path, zygote: Zygote) -> None:
    """Whatever its method: the state of one (ReDo counts epochs) belongs to its own phases, not to the shared first."""
    options = ("epochs=8", "checkpoint.every_seconds=0", "variant=fire_paper")
    holder = zygote.start(tmp_path, "vision.train", *SMALL.tiny(*options, "method=base"), before="holds")
    wait_until_held(holder)
    waiters = [zygote.start(tmp_path, "vision.train", *SMALL.tiny(*options, f"method={m}")) for m in ("redo", "fire")]
    for child in waiters:
        messages = tmp_path / f".{child}.err"
        wait_for(lambda messages=messages: messages.exists() and "waiting for another process" in messages.read_text())
    os.kill(holder, signal.SIGKILL)
    assert zygote.end(tmp_path, holder).code == -signal.SIGKILL
    answers = [zygote.end(tmp_path, child) for child in waiters]
    assert [answer.code for answer in answers] == [0, 0]
    assert sum(TRAINING in answer.err for answer in answers) == 1
    for method in ("redo", "fire"):
        calm = SMALL.run(tmp_path / "calm", f"method={method}", *options, "cache=off")
        (run,) = tmp_path.glob(f"runs/vision/*-{method}-*")
        assert_same(run, calm)


def train(caplog: pytest.LogCaptureFixture, folder: Path, *options: str) -> str:
    """Run to the end in this process; what the program said."""
    caplog.clear()
    logging.getLogger("harness").propagate = True  # a program that ran in this process before may have said no
    with caplog.at_level("INFO"):
        SMALL.run(folder / "runs", *options)
    return caplog.text


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of FIRE and the first phase that it has left for others."""
    folder = tmp_path_factory.mktemp("shared")
    SMALL.run(folder / "runs", "method=fire")
    return folder


@pytest.mark.parametrize(
    "damage", ["checkpoint", "no rows", "more rows", "DONE", "a byte of a row", "a digit of a row"]
)
def test_a_damaged_entry_is_not_used(
    damage: str, shared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(shared / "runs" / ".cache", tmp_path / "runs" / ".cache")
    entry = entry_of(tmp_path)
    (checkpoint,) = (entry / "checkpoints").iterdir()
    if damage == "checkpoint":
        os.truncate(checkpoint, checkpoint.stat().st_size // 2)
    elif damage == "no rows":
        (entry / "metrics.jsonl").write_text("")
    elif damage == "more rows":  # than at the checkpoint, which is not that of the phase's end
        with (entry / "metrics.jsonl").open("a") as metrics:
            metrics.write('{"step": 999}\n')
    elif damage == "a byte of a row":
        rows = bytearray((entry / "metrics.jsonl").read_bytes())
        rows[1] = 1
        (entry / "metrics.jsonl").write_bytes(rows)
    elif damage == "a digit of a row":
        rows = (entry / "metrics.jsonl").read_text()
        (entry / "metrics.jsonl").write_text(rows.replace("0.", "1.", 1))
    else:
        (entry / "DONE").write_text('{"test/acc')
    said = train(caplog, tmp_path, "method=fire")
    assert TRAINING in said
    assert TAKEN not in said
    assert damage == "DONE" or "is damaged: training it again" in said
    assert_same(only_run(tmp_path / "runs"), only_run(shared / "runs"))


def test_an_entry_that_was_copied_is_used(shared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Else the entries above would be refused for another reason than their damage."""
    shutil.copytree(shared / "runs" / ".cache", tmp_path / "runs" / ".cache")
    assert TAKEN in train(caplog, tmp_path, "method=fire")
    assert_same(only_run(tmp_path / "runs"), only_run(shared / "runs"))


def test_a_cache_removed_under_way_stops_the_run_in_one_line(tmp_path: Path, zygote: Zygote) -> None:
    options = ("epochs=6", "checkpoint.every_seconds=0.01")
    child = zygote.start(tmp_path, "vision.train", *SMALL.tiny(*options), before="holds")
    wait_until_held(child)
    shutil.rmtree(tmp_path / "runs" / ".cache")
    os.kill(child, signal.SIGCONT)
    answer = zygote.end(tmp_path, child)
    assert answer.code == 3
    assert answer.err.splitlines()[-1].startswith("error: cannot write the checkpoint that ends phase 0")
    SMALL.run(tmp_path / "runs", *options)
    assert_same(only_run(tmp_path / "runs"), SMALL.run(tmp_path / "calm", *options))


def test_the_first_phase_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As an array of its own on a queue: the runs that follow wait for none."""
    alone = ("only_first_phase=true", f"paths.runs={tmp_path}/runs")
    SMALL.run_to_end(SMALL.compose(*alone))
    entry_of(tmp_path)
    assert not (tmp_path / "runs" / "vision").exists()
    assert TAKEN in train(caplog, tmp_path, "method=fire")
    with pytest.raises(ConfigError, match="only_first_phase=true: method=redo shares none"):
        SMALL.run_to_end(SMALL.compose("method=redo", *alone))


def test_off_elsewhere_and_of_another_kind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mine = f"paths.cache={tmp_path}/mine"
    assert TRAINING not in train(caplog, tmp_path / "off", "cache=off")
    assert TRAINING in train(caplog, tmp_path / "else", mine)
    assert TAKEN in train(caplog, tmp_path / "two", mine)
    assert not list(tmp_path.glob("*/runs/.cache"))
    for name in ("else", "two"):
        assert_same(only_run(tmp_path / "off" / "runs"), only_run(tmp_path / name / "runs"))
    for option in ("seed=1", "epochs=3", "lr=0.01"):
        assert TRAINING in train(caplog, tmp_path / option.replace("=", ""), mine, option)
    assert TAKEN in train(caplog, tmp_path / "last", mine, "seed=1", "method=fire", "metrics=off", "checkpoint.keep=3")
