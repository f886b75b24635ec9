"""Segments of a ring on disk: what is loaded is what was there, whatever happened in between."""

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.config.errors import TrainingError
from rl.common.replay_store import RingStore, check_segments
from rl.dqn.frames import FrameReplay
from tests.rl.dqn.test_frames import SHAPE, Naive, sampled


def new(capacity: int = 96) -> FrameReplay:
    return FrameReplay(capacity, 2, SHAPE)


def played(steps: int, store: RingStore | None = None, replay: FrameReplay | None = None) -> Naive:
    """Some steps; the store, if there is one, saves halfway."""
    naive = Naive(replay or new(), seed=steps)
    for step in range(steps):
        naive.step()
        if store and step == steps // 2:
            store.save(naive.replay)
    return naive


def assert_equal(one: FrameReplay, other: FrameReplay) -> None:
    """The same samples, also after one more step of each."""
    assert one.written == other.written
    assert sampled(one, 300) == sampled(other, 300)
    frames = torch.full((2, *SHAPE), 7, dtype=torch.uint8)
    after = [copy.deepcopy(replay) for replay in (one, other)]
    for replay in after:
        replay.append(frames, torch.tensor([3, 4]), torch.ones(2), torch.tensor([False, False]))
    assert sampled(after[0], 1000) == sampled(after[1], 1000)


@pytest.mark.parametrize("rows", [4, 7, 1024])
@pytest.mark.parametrize("steps", [1, 20, 100])
def test_load_gives_back_what_was_saved(tmp_path: Path, steps: int, rows: int) -> None:
    """Rings that are not full, full, and overwritten; segments longer than the ring too."""
    naive = played(steps, writer := RingStore(tmp_path / "a", rows))
    manifest = writer.save(naive.replay)
    RingStore(tmp_path / "a", rows).load(loaded := new(), manifest)
    assert_equal(loaded, naive.replay)


def test_goes_on_after_a_load(tmp_path: Path) -> None:
    """Save, play on from the loaded ring, save again: full segments of the first save are not written again."""
    naive = played(50, first := RingStore(tmp_path, 8))
    manifest = first.save(naive.replay)
    first.remove_unneeded(manifest, 2)
    second = RingStore(tmp_path, 8)
    second.load(loaded := new(), manifest)
    for replay in (naive.replay, loaded):
        for k in range(30):
            frames = torch.full((2, *SHAPE), k, dtype=torch.uint8)
            replay.append(frames, torch.tensor([1, 2]), torch.ones(2), torch.tensor([False, True]))
    assert first.save(naive.replay) == second.save(loaded)
    assert_equal(loaded, naive.replay)


def test_removes_what_no_kept_checkpoint_needs(tmp_path: Path) -> None:
    (tmp_path / ".000-half.tmp").write_bytes(b"of a process that was killed")
    store, naive = RingStore(tmp_path, 8), played(1)
    manifests: list[dict[str, Any]] = []
    for _ in range(12):
        for _ in range(11):
            naive.step()
        manifests.append(store.save(naive.replay))
        store.remove_unneeded(manifests[-1], keep=2)
        expected = {name for manifest in manifests[-2:] for name in manifest["segments"]}
        assert {path.name for path in tmp_path.iterdir()} == expected
    for manifest in manifests[-2:]:
        RingStore(tmp_path, 8).load(new(), manifest)


def test_names_of_a_stranger_s_checkpoint_lead_nowhere(tmp_path: Path) -> None:
    naive = played(40, store := RingStore(tmp_path / "run" / "replay", 8))
    manifest = store.save(naive.replay)
    name = manifest["segments"][0]
    (tmp_path / "run" / "replay" / "0-0-8-x").mkdir()
    for bad in (f"0-0-8-x/../../../{name}", f"{tmp_path}/{name}", "0-0-8-x", name[:-1], 5):
        other = {**manifest, "segments": [bad]}
        with pytest.raises(ValueError, match="is no segment of a replay"):
            check_segments(tmp_path / "run", {"replay": other})
        if isinstance(bad, str):
            with pytest.raises(TrainingError, match="is no segment of a replay"):
                RingStore(tmp_path / "other" / "replay", 8).load(new(), other)


def test_a_pipe_is_no_segment(tmp_path: Path) -> None:
    naive = played(40, store := RingStore(tmp_path / "run" / "replay", 8))
    manifest = store.save(naive.replay)
    path = tmp_path / "run" / "replay" / manifest["segments"][0]
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match="is missing or damaged"):
        check_segments(tmp_path / "run", {"replay": manifest})


def test_files_of_others_are_left(tmp_path: Path) -> None:
    """`replay` may be a link to any folder."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("words")
    (tmp_path / "replay").symlink_to(tmp_path / "home")
    naive = played(40, store := RingStore(tmp_path / "replay", 8))
    store.remove_unneeded(store.save(naive.replay), keep=1)
    assert (tmp_path / "home" / "thesis.tex").read_text() == "words"


def test_damage_is_mended_from_the_shared_first_phase_while_that_is_sound(tmp_path: Path) -> None:
    naive = played(40, shared := RingStore(tmp_path / "cache" / "replay", 8))
    manifest = shared.save(naive.replay)
    own, first = tmp_path / "run" / "replay", manifest["segments"][0]
    own.mkdir(parents=True)
    (own / first).write_bytes(b"half of a copy")  # by a process that was killed
    RingStore(own, 8).load(loaded := new(), manifest, shared.folder)
    assert_equal(loaded, naive.replay)
    kept = {path.name: path.read_bytes() for path in shared.folder.iterdir()}
    for path in shared.folder.iterdir():  # the run continues without the cache
        path.unlink()
    RingStore(own, 8).load(new(), manifest, shared.folder)
    for name, data in kept.items():
        (shared.folder / name).write_bytes(data)
    for folder in (own, shared.folder):
        (folder / first).unlink()
        (folder / first).write_bytes(b"damaged")
    with pytest.raises(TrainingError, match=f"remove {tmp_path / 'run'} and {tmp_path / 'cache'} to train again"):
        RingStore(own, 8).load(new(), manifest, shared.folder)
    naive = played(40, again := RingStore(shared.folder, 8))  # trained anew there: what is damaged is written again
    RingStore(shared.folder, 8).load(new(), again.save(naive.replay))
