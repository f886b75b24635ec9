"""Each script runs to its end at its smallest size."""

import subprocess
from pathlib import Path

import pytest

from scripts import record_curves
from tests.curves import series
from tests.zygote import ROOT, Zygote

# Arguments, and a word of what it prints.
SCRIPTS = {
    "bench_projection": ("--models dqn --rounds 1 --threads 1", "(half, measured)"),
    "bench_vision": ("--size 8 --steps 1 --rounds 1 model=small_resnet model.width=4", "x a plain loop"),
    "bench_sac": ("HEAD --networks mlp --rounds 1", "of the earlier updates a second"),
    "dry_run": ("--list", "vgg16"),
    "record_originals": ("--help", "clones"),  # needs clones of others' repositories
}


def test_every_script_is_tested() -> None:
    programs = {path.stem for path in (ROOT / "scripts").glob("*.py")} - {"__init__", "interleaved"}
    others = {"record_curves", "quarter_hour", "bench_gpu"}  # the last two: test_quarter_hour
    others |= {"record_shipped"}  # harness/run/test_contents
    others |= {"site_report", "site_formulae", "strips", "data_is_there"}  # test_site, rl/test_play, test_sweeps
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


def test_recorded_curves_are_checked_and_never_changed_under_the_same_numerics(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the numbers that a run would give; tests/curves runs them."""
    files = (series.FOLDER / "sac.json", series.HISTORY)
    before, (_, curves) = [file.read_bytes() for file in files], series.read("sac")
    monkeypatch.setattr(series, "run_cases", lambda *_: curves)

    def record(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["record_curves.py", *words])
        record_curves.main()
        return capsys.readouterr().out

    assert record("--check", "sac") == "sac: 0 numbers differ\n"
    curves["pendulum base"]["train/q"] = dict.fromkeys(curves["pendulum base"]["train/q"], 1e9)
    for words, said in ((["--check", "sac"], "1"), (["sac"], "numbers changed, and NUMERICS is still")):
        with pytest.raises(SystemExit, match=said):
            record(*words)
    with pytest.raises(SystemExit):
        record("--check", "vison")
    assert "unknown: vison; programs are vision, language, dqn, sac" in capsys.readouterr().err
    assert [file.read_bytes() for file in files] == before
