"""The shared first phase: trained once, whatever happens, and never anything but what the run would have trained."""

import os
import signal
from pathlib import Path

import pytest
import torch

from harness.run.checkpoint import load_newest
from tests.programs import LONG, VISION, Record, assert_same, only_run, wait_for, wait_until_held
from tests.zygote import Answer, Zygote

METHODS = ("base", "fire", "full_reset", "snp method.coef=0.2", "snp method.coef=0.4")
TRAINING, TAKEN = "training the first phase", "first phase taken from"


def entry_of(folder: Path) -> Path:
    """The one entry of a cache."""
    (entry,) = (folder / "runs" / ".cache").glob("vision-*")
    return entry


def test_many_processes_train_it_once(tmp_path: Path, zygote: Zygote, record_property: Record) -> None:
    jobs = [VISION.tiny(*f"method={method}".split(), "epochs=2") for method in METHODS]
    children = [zygote.start(tmp_path, "vision.train", *options) for options in jobs]
    answers = [zygote.end(tmp_path, child) for child in children]
    assert [answer.code for answer in answers] == [0] * len(METHODS)
    messages = "".join(answer.err for answer in answers)
    assert messages.count(TRAINING) == 1
    assert messages.count(TAKEN) == len(METHODS) - 1
    assert "s saved" in messages
    assert messages.count("waiting for process ") >= 1
    entry_of(tmp_path)
    record_property("processes that wanted one first phase at once, and trained it once", len(METHODS))


@pytest.mark.slow
def test_who_waits_takes_over_when_the_holder_dies(tmp_path: Path, zygote: Zygote, calm: Path) -> None:
    options = (*LONG, "checkpoint.every_seconds=0.05")
    holder = zygote.start(tmp_path, "vision.train", *VISION.tiny(*options), before="holds")
    wait_until_held(holder)
    waiter = zygote.start(tmp_path, "vision.train", *VISION.tiny(*options, "method=base"))
    other = zygote.start(tmp_path, "vision.train", *VISION.tiny(*options, "method=full_reset"))
    for child in (waiter, other):
        messages = tmp_path / f".{child}.err"
        wait_for(lambda messages=messages: messages.exists() and "waiting for process " in messages.read_text())
    os.kill(holder, signal.SIGKILL)
    assert zygote.end(tmp_path, holder).code == -signal.SIGKILL
    answers = [zygote.end(tmp_path, child) for child in (waiter, other)]
    assert [answer.code for answer in answers] == [0, 0]
    assert sum(TRAINING in answer.err for answer in answers) == 1
    assert zygote.run(tmp_path, "vision.train", *VISION.tiny(*options)).code == 0
    (fire,) = tmp_path.glob("runs/vision/*-fire-*")
    assert_same(fire, calm)


@pytest.mark.slow
def test_another_method_takes_over_what_the_dead_holder_began(tmp_path: Path, zygote: Zygote) -> None:
    """A method's state (ReDo counts epochs) belongs to its own phases, not to the shared first one."""
    options = ("epochs=8", "checkpoint.every_seconds=0", "variant=fire_paper")
    holder = zygote.start(tmp_path, "vision.train", *VISION.tiny("method=base", *options), before="holds")
    wait_until_held(holder)
    os.kill(holder, signal.SIGKILL)
    zygote.end(tmp_path, holder)
    answer = zygote.run(tmp_path, "vision.train", *VISION.tiny("method=redo", *options))
    assert answer.code == 0, answer.err
    assert zygote.run(tmp_path / "calm", "vision.train", *VISION.tiny("method=redo", *options, "cache=off")).code == 0
    (redo,) = tmp_path.glob("runs/vision/*-redo-*")
    assert_same(redo, only_run(tmp_path / "calm" / "runs"))


@pytest.mark.parametrize("damage", ["checkpoint", "no checkpoint", "metrics", "DONE"])
def test_a_damaged_entry_is_not_used(damage: str, tmp_path: Path, zygote: Zygote) -> None:
    assert zygote.run(tmp_path, "vision.train", *VISION.tiny("method=base")).code == 0
    entry = entry_of(tmp_path)
    (checkpoint,) = (entry / "checkpoints").iterdir()
    if damage == "checkpoint":
        os.truncate(checkpoint, checkpoint.stat().st_size // 2)
    elif damage == "no checkpoint":
        checkpoint.unlink()
    elif damage == "metrics":
        text = (entry / "metrics.jsonl").read_text()
        (entry / "metrics.jsonl").write_text(text.replace("0.", "1.", 1))
    else:
        (entry / "DONE").write_text('{"test/acc')
    again = zygote.run(tmp_path, "vision.train", *VISION.tiny("method=fire"))
    assert again.code == 0, again.err
    assert TRAINING in again.err
    assert TAKEN not in again.err
    said = {
        "DONE": TRAINING,
        "no checkpoint": "has no weights",
        "metrics": "its rows were changed since",
        "checkpoint": "is damaged: training it again",
    }[damage]
    assert said in again.err
    fresh = zygote.run(tmp_path / "fresh", "vision.train", *VISION.tiny("method=fire"))
    assert fresh.code == 0
    (fire,) = tmp_path.glob("runs/vision/*-fire-*")
    assert_same(fire, only_run(tmp_path / "fresh" / "runs"))


def test_off_and_elsewhere(tmp_path: Path, zygote: Zygote) -> None:
    def run(name: str, *options: str) -> Answer:
        return zygote.run(tmp_path / name, "vision.train", *VISION.tiny("method=snp", *options))

    off, mine = run("off", "cache=off"), "paths.cache=../mine"
    elsewhere, again = run("else", mine), run("two", mine)
    assert off.code == elsewhere.code == again.code == 0
    assert TRAINING not in off.err
    assert TRAINING in elsewhere.err
    assert TAKEN in again.err
    assert not list(tmp_path.glob("*/runs/.cache"))
    assert len(list((tmp_path / "mine").iterdir())) == 1
    assert_same(only_run(tmp_path / "off" / "runs"), only_run(tmp_path / "else" / "runs"))
    assert_same(only_run(tmp_path / "off" / "runs"), only_run(tmp_path / "two" / "runs"))


def test_another_seed_or_length_is_another_first_phase(tmp_path: Path, zygote: Zygote) -> None:
    for options in ("seed=0",), ("seed=1",), ("epochs=3",), ("lr=0.01",):
        answer = zygote.run(tmp_path, "vision.train", *VISION.tiny(*options))
        assert answer.code == 0
        assert TRAINING in answer.err
    same_phase = zygote.run(
        tmp_path, "vision.train", *VISION.tiny("seed=1", "method=fire", "metrics=off", "checkpoint.keep=3")
    )
    assert TAKEN in same_phase.err


@pytest.mark.slow
def test_an_old_checkpoint_does_not_pass_for_the_last(tmp_path: Path, zygote: Zygote) -> None:
    """The entry's last checkpoint could not be written: what is there is from the middle of the phase."""
    options = VISION.tiny("epochs=8", "checkpoint.every_seconds=0")
    child = zygote.start(tmp_path, "vision.train", *options, before="holds", HOLD_AT="4")
    wait_until_held(child)
    entry = entry_of(tmp_path)
    early = {file.name: file.read_bytes() for file in (entry / "checkpoints").glob("step-*.pt")}
    os.kill(child, signal.SIGCONT)
    assert zygote.end(tmp_path, child).code == 0
    for file in (entry / "checkpoints").iterdir():
        file.unlink()
    for name, data in early.items():
        (entry / "checkpoints" / name).write_bytes(data)
    shape = torch.load(next((entry / "checkpoints").iterdir()), weights_only=True)["config"]
    assert load_newest(entry / "checkpoints", shape) is not None, "a sound checkpoint, if an old one"
    again = zygote.run(tmp_path, "vision.train", *VISION.tiny("epochs=8", "method=snp"))
    assert again.code == 0
    assert "is damaged: training it again" in again.err
