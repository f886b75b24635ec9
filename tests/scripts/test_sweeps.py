"""The commands that the one-command reproductions start, with stand-ins for python and torchrun."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def commands(tmp_path: Path, script: str, *arguments: str, **environment: str) -> list[str]:
    """The command lines that a script starts, in order."""
    log = tmp_path / "log"
    for program in ("python", "torchrun"):
        stand_in = tmp_path / program
        stand_in.write_text(f'#!/bin/sh\necho "{program} $*" >> {log}\n')
        stand_in.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run([SCRIPTS / script, *arguments], check=True, env={**os.environ, **environment, "PATH": path})
    return log.read_text().splitlines()


def test_figure_3_trains_each_run_once_and_the_full_reset_from_one_checkpoint(tmp_path: Path) -> None:
    runs = [line for line in commands(tmp_path, "fig3.sh", "paper", "2", SEEDS="0") if line.startswith("torchrun")]
    assert len(runs) == len(set(runs)) == 3 * 4 + 1
    assert all("--nproc_per_node=2 -m language.train experiment=fig3" in line for line in runs)
    (reset,) = [line for line in runs if "method=full_reset" in line]
    assert "start=best" in reset


def test_figure_3_offline(tmp_path: Path) -> None:
    first, reset, figure = commands(tmp_path, "fig3.sh", SEEDS="0", RUNS="there")
    assert "-m language.train -m method=base,snp,fire,fire_exact start=best,end seed=0 paths.runs=there" in first
    assert "method=full_reset start=best seed=0 paths.runs=there" in reset
    assert figure.startswith("python analysis/make_figures.py --runs there")


@pytest.mark.parametrize(
    ("script", "panels", "small"), [("fig2.sh", 8, None), ("fig4a.sh", 3, "small"), ("fig4b.sh", 3, "small")]
)
def test_one_sweep_a_panel_and_options_that_are_given_replace_its_own(
    tmp_path: Path, script: str, panels: int, small: str | None
) -> None:
    *sweeps, figure = commands(tmp_path, script)
    assert len(sweeps) == len({line.split("experiment=")[1] for line in sweeps}) == panels
    assert figure == "python analysis/make_figures.py"
    (tmp_path / "log").unlink()
    panel = sweeps[0].split("experiment=")[1].split()[0].removeprefix(script.removesuffix(".sh")).strip("_")
    sweep, _ = commands(tmp_path, script, panel.removeprefix("h1_"), "seed=7", "device=cpu")
    assert sweep.count("seed=") == 1
    assert sweep.endswith("seed=7 device=cpu")
    assert sweeps[0].split("experiment=")[1].split()[0] in sweep
    if small:
        (tmp_path / "log").unlink()
        assert "experiment=" not in commands(tmp_path, script, small)[0]
