"""What made a committed table: the file beside it."""

import itertools
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.run import NUMERICS, environment, provenance
from harness.run.folder import Run
from harness.tune.table import Trial, append, read_table
from tests.programs import SMALL
from tests.zygote import ROOT

NOW = {"program": "vision", "numerics": NUMERICS["vision"], "commit": "abc", "command": "x", "cpu": "y"}
TABLES = sorted(file for room in ("studies", "benchmarks") for file in (ROOT / "docs" / room).rglob("*.csv"))


def test_an_entry_of_this_process_says_everything() -> None:
    entry = provenance.of_process("vision")
    assert list(entry) == list(provenance.FIELDS)
    assert entry["numerics"] == NUMERICS["vision"]
    assert entry["cpu"]
    assert entry["command"].startswith("python")
    assert provenance.of_process(None)["numerics"] is None


def test_a_run_on_a_gpu_names_it() -> None:
    about = {"processor": "EPYC", "gpus": ["H100"]}
    assert [provenance.of_run({}, about, device)["cpu"] for device in ("cpu", "cuda")] == ["EPYC", "H100 beside EPYC"]


def test_a_worker_of_a_sweep_names_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.orig_argv", ["python", "-m", "joblib.externals.loky.backend.popen_loky_posix"])
    assert environment.command() == Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")[1:-1]


def test_commands_name_no_folders_and_no_tracker() -> None:
    command = [
        "python",
        "/home/me/clone/run.py",
        "seed=1",
        "paths.runs=/home/me/x",
        "data=~/y/z.csv",
        "dataset.path=data/jpeg",
        "tracker.entity=me",
    ]
    assert provenance.shown(command) == "python run.py seed=1 data=z.csv dataset.path=data/jpeg"


def test_entries_of_runs_are_joined_and_their_differences_kept(tmp_path: Path) -> None:
    folders = []
    for number, numerics in enumerate((4, 5, 5)):
        folder = tmp_path / str(number)
        folder.mkdir()
        identity = {"program": "dqn", "numerics": numerics, "precision": "bfloat16"}
        (folder / "identity.json").write_text(json.dumps({"run": identity, "execution": {}}))
        about = {"git": "abc", "processor": "EPYC", "command": ["python", "-m", "rl.dqn"]}
        (folder / "env.json").write_text(json.dumps(about))
        folders.append(folder)
    entry = provenance.of_folders(folders)
    assert (entry["numerics"], entry["precision"], entry["cpu"]) == ([4, 5], "bfloat16", "EPYC")
    assert entry["command"] == "python -m rl.dqn"


def stop_after(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run be killed when it has logged so many rows."""
    log, logged = Run.log, itertools.count(1)

    def killed(run: Run, row: dict[str, Any]) -> None:
        log(run, row)
        if next(logged) == rows:
            raise SystemExit(137)

    monkeypatch.setattr(Run, "log", killed)


def be_at(commit: str, torch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be of another commit, torch and machine."""
    about = environment.environment()
    other = {"git": commit * 40, "packages": about["packages"] | {"torch": torch}, "processor": f"CPU {commit}"}
    monkeypatch.setattr("harness.run.folder.environment", lambda: {**about, **other})


@pytest.mark.parametrize("killed_at", [2, 5])  # within the shared first phase, and in the run itself
def test_each_start_s_environment_stays_and_tables_name_all(
    killed_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = ("method=fire", "epochs=3", "checkpoint.every_seconds=0")
    for number, (commit, torch) in enumerate((("a", "2.9.0"), ("b", "2.10.0"), ("b", "2.10.0"))):
        be_at(commit, torch, monkeypatch)
        with monkeypatch.context() as patched:
            if number < 2:  # the second start is killed too, and is one with the third
                stop_after(killed_at if number == 0 else 1, patched)
                with pytest.raises(SystemExit):
                    SMALL.run(tmp_path, *options)
            else:
                folder = SMALL.run(tmp_path, *options)
    starts = provenance.starts(json.loads((folder / "env.json").read_text()))
    assert [start["git"][0] for start in starts] == ["a", "b"]
    assert [start["packages"]["torch"] for start in starts] == ["2.9.0", "2.10.0"]
    assert starts[0]["step"] == 0
    assert 0 < starts[1]["step"] < 60, "the second began where the first had stopped"
    (line, *_) = [record.message for record in caplog.records if "another environment" in record.message]
    assert "git aaaaaaa -> bbbbbbb" in line
    assert "torch 2.9.0 -> 2.10.0" in line
    assert "\n" not in line
    entry = provenance.of_folders([folder])
    assert entry["commit"] == ["a" * 40, "b" * 40]
    assert entry["cpu"] == ["CPU a", "CPU b"]


@pytest.mark.parametrize(
    ("earlier", "later", "said"),
    [
        ({"git": "a-dirty", "code": "1"}, {"git": "a-dirty", "code": "2"}, "code 1 -> 2"),  # other uncommitted changes
        ({"git": None, "code": "1"}, {"git": None, "code": "2"}, "code 1 -> 2"),  # installed without git
        ({"git": "a", "code": "1"}, {"git": "b", "code": "2"}, "git a -> b"),
        ({"git": "a"}, {"git": "a", "code": "2"}, ""),  # an older version has not recorded it
        ({"packages": {"torch": "2"}}, {"packages": {"torch": "2", "timm": "1"}}, ""),
        ({"packages": {"timm": None}}, {"packages": {"timm": "1"}}, "timm unknown -> 1"),
        ({"packages": {"timm": "1"}}, {"packages": {"timm": "2"}}, "timm 1 -> 2"),
    ],
)
def test_how_two_environments_differ(earlier: dict[str, Any], later: dict[str, Any], said: str) -> None:
    assert provenance.changes(earlier, later) == said


def test_the_digest_of_the_code_changes_with_a_source_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = environment.code_digest.__wrapped__
    (tmp_path / "harness/run").mkdir(parents=True)
    (tmp_path / "vision").mkdir()
    (tmp_path / "tests").mkdir()
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "harness/run/environment.py"))
    digests = []
    for file, text in (("vision/a.py", "1"), ("vision/a.py", "2"), ("tests/a.py", "1"), ("harness/b.py", "1")):
        (tmp_path / file).write_text(text)
        digests.append(digest())
    assert digests[1] == digests[2], "tests are no part of it"
    assert len({*digests}) == 3
    assert environment.environment()["code"]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"fire": 1}', "\xe4\xff"])
def test_a_damaged_file_does_not_cost_a_search_its_trial(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "search.csv"
    append(table, Trial("ab", "fire", 0, "", (0.5,)), [10_000], "dqn")
    provenance.file_of(table).write_text(text, encoding="latin-1")
    append(table, Trial("ab", "fire", 1, "lr=1.0", (0.25,)), [10_000], "dqn")
    assert len(read_table(table, "ab", "fire", [10_000])) == 2
    assert list(provenance.read(table)) == ["fire"]
    assert (tmp_path / "damaged-search.provenance.json").read_text(encoding="latin-1") == text
    assert "is damaged" in caplog.text


def test_a_part_is_replaced_or_added_to(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    provenance.write(table, NOW, "base")
    provenance.write(table, NOW | {"commit": "def"}, "fire")
    provenance.write(table, NOW | {"commit": "ghi"}, "fire", more=True)
    assert provenance.read(table)["fire"]["commit"] == ["def", "ghi"]
    provenance.write(table, NOW)
    assert list(provenance.read(table)) == [provenance.ALL]


def test_a_search_says_what_made_its_trials_and_forgets_those_of_a_table_that_is_gone(tmp_path: Path) -> None:
    table = tmp_path / "search.csv"
    provenance.write(table, NOW | {"commit": "gone"}, "snp")
    for number in range(2):
        append(table, Trial("ab", "fire", number, "", (0.5,)), [10_000], "dqn")
    entries = provenance.read(table)
    assert list(entries) == ["fire"]
    assert (entries["fire"]["program"], entries["fire"]["numerics"]) == ("dqn", NUMERICS["dqn"])


def test_a_tree_is_dirty_by_its_code_and_not_by_the_tables_that_a_study_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git_commit = environment.git_commit.__wrapped__  # asked anew, as by a process that has just begun
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "a.py"))
    assert git_commit() is None
    (tmp_path / "docs").mkdir()
    for name in ("a.py", "docs/a.csv"):
        (tmp_path / name).write_text("1")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "a")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    commit = git_commit()
    assert commit is not None
    assert re.fullmatch("[0-9a-f]{40}", commit)
    (tmp_path / "docs" / "a.csv").write_text("2")
    assert git_commit() == commit
    (tmp_path / "a.py").write_text("2")
    assert git_commit() == f"{commit}-dirty"
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "of a hook"))
    assert git_commit() == f"{commit}-dirty"
    monkeypatch.setattr(environment, "__file__", str(tmp_path / ".venv" / "installed.py"))
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "installed.py").touch()
    assert git_commit() is None, "the commit of the project around it says nothing about this code"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.stem)
def test_every_committed_table_says_what_made_it(table: Path) -> None:
    """Tables of today's numerics say all of it; older ones what git and their runs.json know."""
    entries = provenance.read(table)
    assert entries, f"{table} has no {provenance.file_of(table).name}"
    for part, entry in entries.items():
        assert set(entry) == set(provenance.FIELDS), part
        assert entry["commit"], part
        assert "dirty" not in str(entry["commit"]), f"{part} was made by a tree that was not committed"
        if isinstance(entry["numerics"], int) and entry["numerics"] > 4:
            assert None not in entry.values(), part
