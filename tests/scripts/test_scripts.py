"""Each script runs to its end at its smallest size."""

import subprocess
from pathlib import Path

import pytest

from tests.curves import series
from tests.zygote import ROOT, Zygote

# Arguments, and a word of what it prints.
SCRIPTS = {
    "bench_projection": ("--models dqn --rounds 1 --threads 1", "dqn"),
    "bench_sac": ("--actor-width 8 --critic-width 8 --batch 4 --updates 2 --threads 1 --rounds 1", "x plain"),
    "bench_methods": ("--methods base,fire --rounds 1 benchmark.tasks=2 epochs=1", "x base"),
    "bench_vision": ("--steps 1 --rounds 1 benchmark.tasks=2 epochs=1", "x a plain loop"),
    "studies": ("figure2_small_c smoke rows=base workers=1", "test/accuracy_all"),
    "record_originals": ("--help", "clones"),  # needs clones of others' repositories
}


def test_every_script_is_tested() -> None:
    programs = {path.stem for path in (ROOT / "scripts").glob("*.py")} - {"__init__", "interleaved"}
    others = {"agents_runs", "record_curves", "site_report"}
    assert programs == {*SCRIPTS, *others}
    for path in (ROOT / "scripts").glob("*.sh"):
        assert subprocess.run(["bash", "-n", str(path)]).returncode == 0, path


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_run(script: str, tmp_path: Path, zygote: Zygote) -> None:
    arguments, word = SCRIPTS[script]
    answer = zygote.run(tmp_path, f"scripts.{script}", *arguments.split())
    assert answer.code == 0, answer.err
    assert word in answer.out.lower() + answer.out


@pytest.mark.slow
def test_the_recorded_curves_are_checked_and_left_as_they_are(tmp_path: Path, zygote: Zygote) -> None:
    before = (series.FOLDER / "sac.json").read_bytes(), series.HISTORY.read_bytes()
    answer = zygote.run(tmp_path, "scripts.record_curves", "--check", "sac")
    assert (answer.code, answer.out.splitlines()[-1]) == (0, "sac: 0 numbers differ"), answer.out + answer.err
    assert ((series.FOLDER / "sac.json").read_bytes(), series.HISTORY.read_bytes()) == before


def test_curves_are_recorded_for_known_programs_alone(tmp_path: Path, zygote: Zygote) -> None:
    answer = zygote.run(tmp_path, "scripts.record_curves", "--check", "vison")
    assert answer.code == 2
    assert "unknown: vison; programs are vision, language, dqn, sac" in answer.err
