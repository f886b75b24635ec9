"""The commands that the one-command reproductions start, with stand-ins for python and torchrun."""

import csv
import os
import subprocess
from pathlib import Path

import pytest

from tests.zygote import ROOT, Zygote

SCRIPTS = ROOT / "scripts"
LOOK = "-m scripts.data_is_there"


def commands(tmp_path: Path, script: str, *arguments: str, **environment: str) -> list[str]:
    """The command lines that a script starts, in order, but for the look at its data."""
    tmp_path.mkdir(exist_ok=True)
    log = tmp_path / "log"
    for program in ("python", "torchrun"):
        stand_in = tmp_path / program
        stand_in.write_text(f'#!/bin/sh\necho "{program} $*" >> {log}\n')
        stand_in.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run([SCRIPTS / script, *arguments], check=True, env={**os.environ, **environment, "PATH": path})
    lines = log.read_text().splitlines()
    assert not any(LOOK in line for line in lines[1:]), "data are looked for before the first job"
    return [line for line in lines if LOOK not in line]


# Scripts that are run, with options that make their smallest size smaller; ablations are sweeps that are seen below.
SMOKE = {
    "fig2": ["method=base"],
    "fig3": [],
    "fig4a": ["method=base"],
    "fig4b": ["method=base"],
}


@pytest.mark.slow
@pytest.mark.parametrize("script", SMOKE)
def test_scripts_run_to_their_figures_and_repeat_nothing(tmp_path: Path, script: str, zygote: Zygote) -> None:
    runs, made = tmp_path / "runs", []
    for _ in range(2 if script == "fig2" else 1):
        zygote.script(tmp_path, f"{SCRIPTS}/{script}.sh", "smoke", *SMOKE[script], RUNS=str(runs))
        made.append({file: file.stat().st_mtime_ns for file in runs.rglob("metrics.jsonl")})
    assert made[0] == made[-1], "a finished run was trained again"
    assert made[0]
    assert all((file.parent / "DONE").exists() for file in made[0] if ".cache" not in file.parts)
    assert list(runs.rglob("*.png"))
    assert list(runs.rglob("*.csv"))


def test_every_script_has_a_smallest_size() -> None:
    here = {path.stem for path in SCRIPTS.glob("*.sh")}
    elsewhere = {
        "convergence",
        "dry_run",
        "layers",
        "paper",
        "quarter_hour",
        "table10",
    }  # below, or by their programs
    assert here == {*SMOKE, *elsewhere, "panels"}, "panels is sourced by the others"


@pytest.mark.slow
def test_a_convergence_table_is_made_once(tmp_path: Path, zygote: Zygote) -> None:
    command = f"{SCRIPTS}/convergence.sh", "smoke"
    zygote.script(tmp_path, *command, RUNS=str(tmp_path))
    with (tmp_path / "smoke" / "convergence.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["solver"] == "exact"]
    assert [row["weights"] for row in rows] == ["square 8x8"]
    again = zygote.script(tmp_path, *command, RUNS=str(tmp_path))
    assert again == f"{tmp_path}/smoke is done\n"


def test_on_a_queue_first_phases_are_a_sweep_of_their_own(tmp_path: Path) -> None:
    first, rest, _ = commands(tmp_path, "fig4a.sh", "asterix", "hydra/launcher=slurm")
    assert first.startswith(
        "python -m rl.dqn -m method=base only_first_phase=true experiment=fig4a_asterix seed=1,2,3,4,5"
    )
    assert first.endswith("hydra/launcher=slurm")
    assert "only_first_phase" not in rest
    subprocess.run(["bash", "-n", SCRIPTS / "fig3.sbatch"], check=True)


def test_figure_3_trains_each_run_once_and_the_full_reset_from_one_checkpoint(tmp_path: Path) -> None:
    runs = [line for line in commands(tmp_path, "fig3.sh", "paper", "2", SEEDS="0") if line.startswith("torchrun")]
    assert len(runs) == len(set(runs)) == 3 * 3 + 1
    assert all("--nproc_per_node=2 -m language.train experiment=fig3" in line for line in runs)
    (reset,) = [line for line in runs if "method=full_reset" in line]
    assert "benchmark.start=best" in reset


def test_an_option_of_one_method_is_a_sweep_of_its_own(tmp_path: Path) -> None:
    own, rest, _ = commands(tmp_path, "fig2.sh", "a_cifar10", "fire.norm_init=spectral", "seed=7")
    assert own == "python -m vision.train -m method=fire experiment=fig2a_cifar10 seed=7 method.norm_init=spectral"
    assert rest.endswith(
        "method=base,full_reset,snp,dash,parseval,l2init,cbp,redo,snr,muon experiment=fig2a_cifar10 seed=7"
    )


def test_a_script_says_once_before_its_first_job_that_data_of_any_panel_are_missing(
    tmp_path: Path, zygote: Zygote
) -> None:
    options = (f"paths.data={tmp_path / 'data'}", f"paths.runs={tmp_path / 'runs'}")
    later = f"experiment=fig2a_cifar100 method=base,fire seed=1,2 {' '.join(options)}"
    answer = zygote.run(tmp_path, "scripts.data_is_there", "vision.train", "dataset=digits", later)
    assert answer.code == 2
    assert answer.err.startswith("error: dataset=cifar100 is not there: put https://")
    assert answer.err.count("\n") == 1
    ended = zygote.run(tmp_path, "scripts.data_is_there", "vision.train", "dataset=digits method=base,fire")
    assert (ended.code, ended.out + ended.err) == (0, "")


@pytest.mark.parametrize(
    ("module", "options", "says"),
    [
        ("vision.train", ("dataset=digits,cifar10", "method=base,fire", "seed=1,2"), "dataset=cifar10 is not there"),
        ("language.train", ("dataset=wikitext103_tokenised", "benchmark=one_text", "seed=1,2"), "is not prepared in"),
    ],
)
def test_a_sweep_says_once_that_data_are_missing_and_starts_no_job(
    tmp_path: Path, module: str, options: tuple[str, ...], says: str, zygote: Zygote
) -> None:
    places = (f"paths.data={tmp_path / 'data'}", f"paths.runs={tmp_path / 'runs'}")
    answer = zygote.run(tmp_path, module, "-m", *options, *places)
    assert answer.code == 2
    assert answer.err.count("error:") == answer.err.count(says) == 1
    assert "failed" not in answer.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("script", ["fig2", "fig3", "fig4a", "fig4b", "layers", "table10", "paper"])
def test_help_dry_run_and_unknown_words_start_nothing(tmp_path: Path, script: str) -> None:
    def said(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        return subprocess.run([SCRIPTS / f"{script}.sh", *words], env=environment, capture_output=True, text=True)

    for program in ("python", "torchrun"):
        (tmp_path / program).write_text("#!/bin/sh\nexit 9\n")
        (tmp_path / program).chmod(0o755)
    assert f"while {SCRIPTS / script}.sh" in said("--help").stdout
    dry = said("--dry-run")
    assert dry.returncode == 0
    assert "analysis/make_figures.py" in dry.stdout
    wrong = said("rubbish")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: rubbish is unknown; accepted: ")
    assert wrong.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("script", "panels", "small"), [("fig2.sh", 8, None), ("fig4a.sh", 3, "small"), ("fig4b.sh", 3, "small")]
)
def test_one_sweep_a_panel_and_options_that_are_given_replace_its_own(
    tmp_path: Path, script: str, panels: int, small: str | None
) -> None:
    *sweeps, figure = commands(tmp_path, script)
    assert len(sweeps) == len({line.split("experiment=")[1] for line in sweeps}) == panels
    assert figure in (f"python analysis/make_figures.py --runs runs/{folder}" for folder in ("vision", "dqn", "sac"))
    (tmp_path / "log").unlink()
    panel = sweeps[0].split("experiment=")[1].split()[0].removeprefix(script.removesuffix(".sh")).strip("_")
    sweep, _ = commands(tmp_path, script, panel.removeprefix("h1_"), "seed=7", "device=cpu")
    assert sweep.count("seed=") == 1
    assert sweep.endswith("seed=7 device=cpu")
    assert sweeps[0].split("experiment=")[1].split()[0] in sweep
    assert "experiment=" not in commands(tmp_path / "smoke", script, "smoke")[0]
    if small:
        (tmp_path / "log").unlink()
        assert "experiment=" not in commands(tmp_path, script, small)[0]


def test_a_run_that_diverged_does_not_stop_the_others(tmp_path: Path) -> None:
    """A sweep with one ends with 3, so the next ones are trained and drawn, and the whole ends with 3."""
    stand_in = (
        f'#!/bin/sh\necho "$*" >> {tmp_path}/log\ncase "$*" in *data_is_there*|*prepare*|*figures*) exit 0;; esac\n'
    )
    for program, code in (("python", 3), ("torchrun", 1)):  # torchrun has no other code
        (tmp_path / program).write_text(f"{stand_in}exit {code}\n")
        (tmp_path / program).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for command, sweeps in (("fig2.sh", 8), ("fig3.sh", 2 * 3), ("fig3.sh paper 2", 3 * 10)):
        (tmp_path / "log").unlink(missing_ok=True)
        script, *words = command.split()
        assert subprocess.run([SCRIPTS / script, *words], env=environment, capture_output=True).returncode == 3
        lines = (tmp_path / "log").read_text().splitlines()
        assert sum("method=" in line and LOOK not in line for line in lines) == sweeps
        assert "make_figures" in lines[-1]
    (tmp_path / "python").write_text("#!/bin/sh\nexit 2\n")
    assert subprocess.run([SCRIPTS / "fig2.sh", "a_cifar10"], env=environment, capture_output=True).returncode == 2


def test_options_and_folders_reach_figure_3_and_the_drawing(tmp_path: Path) -> None:
    mixed = commands(tmp_path / "a", "fig3.sh", "mixture", "1", "batch_size=20", "paths.data=/d", SEEDS="0")
    runs = [line for line in mixed if line.startswith("torchrun")]
    assert all("dataset=wiki_owt benchmark.passes=[400,1] batch_size=20 paths.data=/d" in line for line in runs)
    assert all("paths.data=/d" in line for line in mixed if "prepare" in line)
    *sweeps, figure = commands(tmp_path / "b", "fig2.sh", "a_cifar10", "paths.runs=/x")
    assert all(line.count("paths.runs=") == 1 for line in sweeps)
    assert "--runs /x --out /x/figures" in figure
    *sweeps, figure = commands(tmp_path / "c", "fig4a.sh", "asterix", RUNS="/y")
    assert "paths.runs=/y" in sweeps[0]
    assert "--runs /y" in figure
    environment = {**os.environ, "RUNS": "/z"}
    command = [SCRIPTS / "paper.sh", "--dry-run", "hydra/launcher=cores"]
    everything = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    drawn = [line for line in everything.splitlines() if "make_figures" in line]
    assert [line.split("--runs ")[1].split()[0] for line in drawn] == [
        f"/z/{figure}" for figure in ("fig2", "fig3", "fig4a", "table10", "fig4b")
    ]


def test_everything_goes_on_past_a_figure_that_fails_and_names_it(tmp_path: Path) -> None:
    (tmp_path / "python").write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/log\ncase "$*" in *fig4a*) exit 2;; esac\n')
    (tmp_path / "torchrun").write_text("#!/bin/sh\n")
    for program in ("python", "torchrun"):
        (tmp_path / program).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = subprocess.run([SCRIPTS / "paper.sh"], env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (3, "error: these did not end well: fig4a (2)\n")
    assert "experiment=fig4b" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(("script", "environment"), [("fig4a.sh", "env=breakout"), ("fig4b.sh", "env=humanoid")])
def test_the_small_size_of_figure_4_names_its_environment(tmp_path: Path, script: str, environment: str) -> None:
    """Without one the programs train on a stream of tasks, which is no part of the figure."""
    sweep, _ = commands(tmp_path, script, "small")
    assert environment in sweep.split()


@pytest.mark.parametrize(
    ("script", "panels", "varied"),
    [
        (
            "table10.sh",
            ["fig2a_cifar10", "fig2a_cifar100", "fig2a_tinyimagenet"],
            "method.iterations=1,2,5,10,15,20,30 method.norm_init=frobenius ",
        ),
        ("layers.sh", ["fig2a_cifar100", "fig2b_cifar100", "fig2c_cifar100"], "method.layout=qk,attention,mlp,all"),
    ],
)
def test_ablations_have_what_they_are_measured_by_and_what_is_varied(
    tmp_path: Path, script: str, panels: list[str], varied: str
) -> None:
    *sweeps, figure = commands(tmp_path, script, RUNS="there")
    assert [line.split("experiment=")[1].split()[0] for line in sweeps] == [panel for panel in panels for _ in range(2)]
    assert all("seed=1,2,3" in line and "paths.runs=there" in line for line in sweeps)
    for references, variants in zip(sweeps[::2], sweeps[1::2], strict=True):
        assert "method=base,full_reset" in references
        assert "method=fire " in variants
        assert varied in variants
    assert figure.endswith("--runs there --out there/figures --export there/results.csv")


def test_seeds_of_the_paper_s_figures_are_the_authors(tmp_path: Path) -> None:
    """1, 2, 3; for SAC 0 to 4000 in thousands."""
    for script, seeds in (("fig2.sh", "seed=1,2,3"), ("fig4a.sh", "seed=1,2,3,4,5"), ("fig4b.sh", "seed=0,1000,2000")):
        *sweeps, _ = commands(tmp_path / script, script)
        assert all(seeds in line for line in sweeps)
    runs = [line for line in commands(tmp_path / "fig3", "fig3.sh", "paper") if line.startswith("torchrun")]
    assert {line.split("seed=")[1].split()[0] for line in runs} == {"1", "2", "3"}
