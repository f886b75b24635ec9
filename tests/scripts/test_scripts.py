"""Each script runs to its end at its smallest size."""

import subprocess
from pathlib import Path

import pytest

from scripts.oldest_versions import oldest
from tests.curves import series
from tests.zygote import ROOT, Zygote

# Arguments, and a word of what it prints.
SCRIPTS = {
    "bench_dqn": (
        "--rounds 1 --seconds 0.1 --threads 1 --capacity 3000 model.width=0.125 num_envs=2",
        "this loop / plain loop",
    ),
    "bench_language": ("--batch 1 --steps 1 --turns 2 --threads 1 --no-compile --precision float32", "tokens"),
    "bench_methods": ("--batch 2 --threads 1 --rounds 1", "%"),
    "bench_overhead": ("--rounds 1 scale=smoke", "wall"),
    "bench_projection": ("--models dqn --repeats 1 --threads 1 --no-memory", "dqn"),
    "bench_sac": ("--actor-width 8 --critic-width 8 --batch 4 --seconds 0.05 --threads 1 --rounds 1", "x plain"),
    "bench_streams": ("--methods base,fire --rounds 1 benchmark.tasks=2 epochs=1", "x base"),
    "bench_triggers": ("--batch 2 --sequences 1 --rounds 1 --threads 1 --mini-batches 2", "Readiness"),
    "bench_vision": ("--steps 1 --rounds 1 benchmark.tasks=2 epochs=1", "a plain loop's time over this one's"),
    "benchmark_analysis": ("--runs 4 --rows 20", "runs ls"),
    "gpt_weights": ("weights --layers 1 --width 32 --vocabulary 64", "gpt-hardened.pt"),
    "oldest_versions": ("--list", "torch==2.9"),  # an environment of its own takes minutes and the package index
    "python_versions": ("--help", "PATH"),  # environments of its own take minutes and the package index
    "record_originals": ("--help", "clones"),  # needs clones of others' repositories
    "storm": ("--program vision --kills 2 --seed 0", '"faults": []'),
}


def test_every_script_is_tested() -> None:
    programs = {path.stem for path in (ROOT / "scripts").glob("*.py")} - {"__init__"}
    others = {"record_curves", "compare_scales", "ingredients", "language_ingredients"}  # they have tests of their own
    others |= {
        "triggers_runs",
        "triggers_signals",
        "triggers_streams",
        "triggers_tables",
        "site_report",
        "fill_numbers",
    }
    others |= {"agents_runs", "agents_tables"}
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


def test_every_dependency_has_one_lower_bound() -> None:
    extras = {"a": ["one[x]>=1.2,<2", "us[b]", "mypy"], "b": ["two >= 3"]}
    assert oldest({"name": "us", "dependencies": ["one>=1.2"], "optional-dependencies": extras}) == [
        "one==1.2",
        "two==3",
    ]
    for wrong in ("one<2", "one>=1.3"):
        with pytest.raises(ValueError, match="one lower bound"):
            oldest({"name": "us", "dependencies": ["one>=1.2", wrong]})


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
