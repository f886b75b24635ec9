"""A lock says whose it is, and one of a process that is known to have ended holds nobody up."""

import errno
import fcntl
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import pytest

import harness.run.folder
from harness.config.errors import ConfigError, TrainingError
from harness.process.signals import is_alive
from harness.run.folder import Run
from harness.run.lock import SWEEP_LOG, Held, Lock, Owner


@pytest.fixture(params=[True, False], ids=["flock", "no flock"])
def has_flock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With and without the system's locks."""
    if not request.param:

        def flock(descriptor: int, operation: int) -> None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

        monkeypatch.setattr(fcntl, "flock", flock)
    return bool(request.param)


def ended_process() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_second_is_told_who_holds_it(has_flock: bool, tmp_path: Path) -> None:
    me = f"process {os.getpid()} on {os.uname().nodename}, since 20"
    with Run(tmp_path / "run", {}, ""), pytest.raises(ConfigError) as refused:
        Run(tmp_path / "run", {}, "").__enter__()
    assert "is being trained by another process" in str(refused.value)
    assert me in str(refused.value)
    assert "\n" not in str(refused.value)
    assert ("remove this file" in str(refused.value)) == (not has_flock), "the system removes its own"
    with Run(tmp_path / "run", {}, ""):
        """The first has given it back."""
    assert Owner.read(tmp_path / "run" / ".lock") is None


def test_a_job_of_the_same_sweep_is_waited_for(
    has_flock: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of `lr=1e-3,0.001 hydra/launcher=cores -m`, whose two jobs are one run."""
    monkeypatch.setenv(SWEEP_LOG, str(tmp_path / "sweep"))
    order = list[str]()

    def second_job() -> None:
        with Run(tmp_path / "run", {}, ""):
            order.append("second")

    with ThreadPoolExecutor(1) as pool, Run(tmp_path / "run", {}, ""):
        second = pool.submit(second_job)
        wait([second], timeout=0.5)
        assert not second.done()
        order.append("first")
    second.result()
    assert order == ["first", "second"]
    with Run(tmp_path / "run", {}, ""):
        monkeypatch.setenv(SWEEP_LOG, str(tmp_path / "another sweep"))
        with pytest.raises(ConfigError, match="is being trained by another process"):
            Run(tmp_path / "run", {}, "").__enter__()


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, TrainingError), (errno.ESTALE, TrainingError), (errno.EROFS, ConfigError)]
)
def test_a_disk_that_is_full_at_the_start_is_no_wrong_option(
    number: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def acquire(lock: Lock) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Lock, "acquire", acquire)
    with pytest.raises(kind, match=re.escape(os.strerror(number))) as raised:
        Run(tmp_path / "run", {}, "").__enter__()
    assert type(raised.value) is kind


def test_who_has_just_taken_the_lock_gets_a_moment_to_name_itself(tmp_path: Path) -> None:
    """The lock's file still names the process before, which has ended."""
    (tmp_path / "run").mkdir()
    gone = replace(Owner.of(os.getpid()), process=ended_process(), started="1")
    with Lock(tmp_path / "run" / ".lock"):
        (tmp_path / "run" / ".lock").write_text(gone.text())
        naming = threading.Timer(0.3, (tmp_path / "run" / ".lock").write_text, (Owner.of(os.getpid()).text(),))
        naming.start()
        with pytest.raises(ConfigError, match=rf"\(process {os.getpid()} on "):
            Run(tmp_path / "run", {}, "").__enter__()
        naming.join()


def test_the_next_of_three_jobs_of_a_sweep_gets_that_moment_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a wait that was longer than a moment."""
    monkeypatch.setenv(SWEEP_LOG, str(tmp_path / "sweep"))
    monkeypatch.setattr(harness.run.folder, "NAMED_AFTER", 0.5)
    (tmp_path / "run").mkdir()
    with ThreadPoolExecutor(1) as pool:
        with Lock(tmp_path / "run" / ".lock"):
            third = pool.submit(Run(tmp_path / "run", {}, "").__enter__)
            wait([third], timeout=0.7)
            os.truncate(tmp_path / "run" / ".lock", 0)  # the second has it, and has not yet named itself
            wait([third], timeout=0.3)
        third.result().__exit__(None, None, None)


def test_of_a_killed_process_of_this_machine_it_is_taken_over(has_flock: bool, tmp_path: Path) -> None:
    gone = replace(Owner.of(os.getpid()), process=ended_process(), started="1")
    for name in ("lock", "lock-held"):
        (tmp_path / name).write_text(gone.text())
    with Lock(tmp_path / "lock"):
        assert Owner.read(tmp_path / "lock").process == os.getpid()
    assert not (tmp_path / "lock-held").exists()


def test_an_id_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    assert replace(Owner.of(os.getpid()), started="1").is_gone
    assert not Owner.of(os.getpid()).is_gone


@pytest.mark.parametrize("other", [{"host": "node2"}, {"machine": "another boot"}, {"machine": ""}])
def test_of_another_machine_the_user_decides(other: dict[str, str], has_flock: bool, tmp_path: Path) -> None:
    mark = tmp_path / "lock-held"
    mark.write_text(replace(Owner.of(os.getpid()), process=ended_process(), **other).text())
    with pytest.raises(Held, match=f"{mark}; if that process is gone, remove this file") as held:
        Lock(tmp_path / "lock").acquire()
    assert other.get("host", os.uname().nodename) in str(held.value)
    mark.unlink()
    with Lock(tmp_path / "lock"):
        """Once it is removed."""


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "null", "{", "[" * 100_000, '{"host": 1}', '{"host": "x", "process": "y", "since": "z"}'),
        '{"host": "x", "process": 10000000000000000000000, "since": "z"}',
        '{"host": "x", "process": -1, "since": "z"}',
    ],
    ids=range(9),
)
def test_a_lock_that_does_not_name_its_owner_is_left_to_the_user(text: str, has_flock: bool, tmp_path: Path) -> None:
    """It was damaged, or its owner was killed before it had written its name."""
    (tmp_path / "lock-held").write_text(text)
    with pytest.raises(Held, match=f"another process, by {tmp_path / 'lock-held'}; if that process is gone, remove"):
        Lock(tmp_path / "lock").acquire()


def test_a_pipe_in_place_of_a_lock_s_file_names_no_owner(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock-held")
    with pytest.raises(Held, match="another process"):
        Lock(tmp_path / "lock").acquire()


def test_a_process_of_another_user_that_proc_hides_is_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hidepid, /proc shows each user only her own processes."""
    real = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: not str(path).startswith("/proc/") and real(path))

    def kill(process: int, number: int) -> None:
        raise {1: PermissionError, 2: ProcessLookupError}[process]

    monkeypatch.setattr(os, "kill", kill)
    assert is_alive(1, "123")
    assert not is_alive(2, "123")


def test_a_long_wait_is_logged_once(has_flock: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two searches with one table: one of them may hang while it holds the lock."""
    holder = Lock(tmp_path / "lock")
    holder.acquire()
    with pytest.MonkeyPatch.context() as patch:
        clock = iter(range(1000))
        patch.setattr("harness.run.lock.time.monotonic", lambda: next(clock))
        patch.setattr("harness.run.lock.time.sleep", lambda seconds: next(clock) > 8 and holder.release())
        with caplog.at_level("WARNING", logger="harness.run.lock"), Lock(tmp_path / "lock"):
            pass
    (line,) = [record.message for record in caplog.records]
    assert f"waiting for {tmp_path / 'lock'}, which is held by process {os.getpid()} on" in line
    assert ("remove this file" in line) == (not has_flock)


def test_who_waits_names_who_is_waited_for(
    has_flock: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = Run(tmp_path / "run", {}, "")
    holder.__enter__()
    looks = iter(range(3))

    def sleep(seconds: float) -> None:
        if next(looks, None) is None:
            holder.__exit__(None, None, None)

    monkeypatch.setattr("harness.run.folder.time.sleep", sleep)
    with caplog.at_level("INFO", logger="harness.run.folder"), Run(tmp_path / "run", {}, "", wait=True):
        pass
    (line,) = [record.message for record in caplog.records if "waiting for another process" in record.message]
    assert f"process {os.getpid()} on {os.uname().nodename}" in line
    assert ("-held" in line) == (not has_flock)
