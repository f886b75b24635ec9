"""The same numbers alone, in a sweep, side by side and on a queue; and a search that resumes where it stopped."""

import contextlib
import importlib.util
import json
import os
import re
import signal
import sqlite3
from importlib import metadata
from pathlib import Path
from typing import Any

import hydra
import pytest
import torch
import yaml

from harness.config.arguments import read_arguments
from harness.config.config import DEFAULT_THREADS, set_up_torch
from harness.config.direction import better_direction, direction_of
from harness.config.errors import ConfigError
from harness.config.groups import CONF, compose_with_hydra
from harness.process.signals import EXIT_PREEMPTED, is_alive
from harness.process.workers import number_of_workers
from tests.programs import LONG, SMALL, assert_same, holder, import_program, only_run, wait_for
from tests.zygote import Zygote


def needs(plugin: str) -> pytest.MarkDecorator:
    """Skip where a launcher or sweeper is not installed."""
    try:
        absent = importlib.util.find_spec(f"hydra_plugins.{plugin}") is None
    except ModuleNotFoundError:  # no plugin at all, so not even the namespace
        absent = True
    return pytest.mark.skipif(absent, reason=f'{plugin} is not installed: pip install -e ".[dev]"')


@pytest.fixture(scope="module")
def searches(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Zygote:
    """The zygote after it has imported Optuna, which takes longer than any of the searches here."""
    zygote.run(tmp_path_factory.mktemp("optuna"), "optuna.version")
    return zygote


def run_of(folder: Path, method: str) -> Path:
    """The run of a method."""
    (run,) = folder.glob(f"runs/vision/*-{method}-*")
    return run


def test_a_job_does_not_inherit_threads_or_determinism() -> None:
    device = torch.device("cpu")
    set_up_torch(device, 2, False)
    assert not torch.are_deterministic_algorithms_enabled()
    set_up_torch(device, None, None)
    assert torch.get_num_threads() == DEFAULT_THREADS
    set_up_torch(device, 1, None)
    assert torch.get_num_threads() == 1
    assert torch.are_deterministic_algorithms_enabled(), "the default on a CPU"


@pytest.mark.slow
def test_side_by_side_as_alone(tmp_path: Path, zygote: Zygote, calm: Path) -> None:
    options = SMALL.tiny("method=fire,snp", "lr=0.001,0", LONG[1], "-m")
    for state, launcher in (("done", ["hydra/launcher=cores", "hydra.launcher.n_jobs=2"]), ("skipped", [])):
        answer = zygote.run(tmp_path, "vision.train", *launcher, *options)
        assert answer.code == 2
        table = [line for line in answer.err.splitlines() if re.search("  (done|skipped|failed)  ", line)]
        assert [len(re.findall(rf"{state} .*accuracy", line)) for line in table] == [1, 0, 1, 0], answer.err
        assert [line.count("failed    lr must be positive, got 0.0") for line in table] == [0, 1, 0, 1]
    assert_same(run_of(tmp_path, "fire"), calm)


def workers_of(driver: int) -> list[int]:
    """The processes that a driver has started for its jobs."""
    children = Path(f"/proc/{driver}/task/{driver}/children").read_text().split()
    return [int(c) for c in children if "popen_loky" in Path(f"/proc/{c}/cmdline").read_text()]


def begun(folder: Path) -> list[Path]:
    """The files of rows of the runs that have written some."""
    return [file for file in folder.glob("runs/vision/*/metrics.jsonl") if file.stat().st_size]


SIDE_BY_SIDE = ("hydra.launcher.n_jobs=2", "cache=off", "epochs=2000", "checkpoint.every_seconds=1000", "-m")


def process_in_training(folder: Path) -> int:
    """The process of a run that has written rows and goes on."""
    return next(holder(file.parent / ".lock") for file in begun(folder) if not (file.parent / "DONE").exists())


@pytest.mark.slow
def test_one_killed_worker_costs_one_job(tmp_path: Path, zygote: Zygote) -> None:
    """By Hydra's name of the launcher, which chooses `cores` too."""
    options = SMALL.tiny("method=fire,snp,base", "cache=off", "epochs=200", "-m")
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    driver = zygote.start(tmp_path, "vision.train", *options, *launcher)
    wait_for(lambda: len(begun(tmp_path)) >= 2)
    os.kill(process_in_training(tmp_path), signal.SIGKILL)
    answer = zygote.end(tmp_path, driver)
    assert answer.code == 3
    assert "Traceback" not in answer.err
    table = [line for line in answer.err.splitlines() if re.search("  (done|skipped|failed)  ", line)]
    assert sorted(re.findall("  (done|failed)  ", " ".join(table))) == ["done", "done", "failed"], answer.err
    assert "its process was ended by SIGKILL (out of memory?)" in answer.err.splitlines()[-1]
    assert len(list(tmp_path.glob("runs/vision/*/DONE"))) == 2
    assert zygote.run(tmp_path, "vision.train", *options).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGKILL"])
def test_workers_leave_with_their_driver(name: str, tmp_path: Path, zygote: Zygote) -> None:
    options = SMALL.tiny("method=fire,base", *SIDE_BY_SIDE, "hydra/launcher=cores")
    driver = zygote.start(tmp_path, "vision.train", *options)
    wait_for(lambda: len(begun(tmp_path)) == 2)
    workers = workers_of(driver)
    os.kill(driver, signal.Signals[name])
    answer = zygote.end(tmp_path, driver)
    assert answer.code == (-signal.SIGKILL if name == "SIGKILL" else EXIT_PREEMPTED), answer.err
    wait_for(lambda: not any(is_alive(worker) for worker in workers))
    for run in tmp_path.glob("runs/vision/*"):
        assert list((run / "checkpoints").glob("step-*")), "it wrote one before it left"
        assert not (run / "DONE").exists()
        assert not (run / "FAILED").exists()
    left = list(tmp_path.glob("runs/.sweeps/tmp*"))
    assert len(left) == (name == "SIGKILL")
    if left:
        again = zygote.run(tmp_path, "vision.train", *SMALL.tiny("method=fire,base", "lr=0", "-m"))
        assert again.code == 2
        assert not list(tmp_path.glob("runs/.sweeps/tmp*")), "the next one removes what a killed one has left"


@needs("hydra_submitit_launcher")
@pytest.mark.slow
def test_jobs_of_a_local_queue_leave_with_their_driver(tmp_path: Path, zygote: Zygote) -> None:
    options = SMALL.tiny("method=fire", *SIDE_BY_SIDE[1:], "hydra/launcher=submitit_local")
    driver = zygote.start(tmp_path, "vision.train", *options)
    wait_for(lambda: begun(tmp_path))
    run = only_run(tmp_path / "runs")
    job = holder(run / ".lock")
    os.kill(driver, signal.SIGKILL)
    zygote.end(tmp_path, driver)
    wait_for(lambda: not is_alive(job))
    assert list((run / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("number", [0, 1.5, "many"])
def test_a_number_of_jobs_that_is_none_is_one_line(number: Any) -> None:
    with pytest.raises(ConfigError, match=f"^hydra.launcher.n_jobs must be a number of processes, .* got {number}$"):
        number_of_workers("hydra.launcher.n_jobs", number)


@pytest.mark.parametrize("option", ["n_trials", "n_jobs"])
def test_a_number_of_trials_that_is_none_is_one_line(option: str) -> None:
    import_program("vision")
    with pytest.raises(ConfigError, match=rf"^hydra\.sweeper\.{option} must be at least 1, got 0$"):
        read_arguments("vision", ["hydra/sweeper=optuna", f"hydra.sweeper.{option}=0", "-m"])


@needs("hydra_submitit_launcher")
@pytest.mark.slow
def test_a_job_on_a_queue_requeues_itself(tmp_path: Path, zygote: Zygote) -> None:
    options = ("method=fire", "epochs=200", "cache=off", "checkpoint.every_seconds=1000")
    calm = SMALL.run(tmp_path / "calm", *options)
    sweep = zygote.start(tmp_path, "vision.train", *SMALL.tiny(*options), "hydra/launcher=submitit_local", "-m")
    wait_for(lambda: begun(tmp_path))
    os.kill(process_in_training(tmp_path), signal.SIGUSR2)  # as Slurm does before the job's time is over
    answer = zygote.end(tmp_path, sweep)
    assert answer.code == 0, answer.err
    (log,) = tmp_path.glob("runs/.sweeps/.submitit/*/*_log.err")
    text = log.read_text()
    assert "stopped by SIGUSR2 at step " in text
    assert "Requeued job" in "".join(file.read_text() for file in log.parent.glob("*_log.*"))
    assert "resumed at step " in text
    assert_same(only_run(tmp_path / "runs"), calm)


@needs("hydra_submitit_launcher")
def test_the_launchers_that_are_set_up_here() -> None:
    import_program("vision")
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        slurm, cores = (
            hydra.compose("vision", [f"hydra/launcher={name}"], return_hydra_config=True).hydra.launcher
            for name in ("slurm", "cores")
        )
    assert slurm._target_.endswith("SlurmLauncher")
    assert slurm.max_num_timeout > 0, "else a job whose time is over is not requeued"
    assert cores._target_ == "hydra_plugins.cores.CoresLauncher"


@needs("hydra_optuna_sweeper")
def test_a_search_goes_on_where_it_stopped_and_maximises_what_should_be_large(tmp_path: Path, searches: Zygote) -> None:
    options = SMALL.tiny("experiment=tune_snp")
    first = searches.run(tmp_path, "vision.train", *options, "hydra.sweeper.n_trials=2", "-m")
    assert first.code == 0, first.err
    again = searches.run(tmp_path, "vision.train", *options, "hydra.sweeper.n_trials=3", "-m")
    assert again.code == 0, again.err
    table = [line for line in again.err.splitlines() if line.startswith("method.coef=")]
    assert [line.count("skipped") for line in table] == [1, 1, 0]
    best = yaml.safe_load((tmp_path / "runs/.sweeps/optimization_results.yaml").read_text())
    results = [json.loads(file.read_text())["test/accuracy"] for file in tmp_path.glob("runs/vision/*/DONE")]
    assert len(results) == 3
    assert best["best_value"] == max(results) > min(results)


@needs("hydra_optuna_sweeper")
@pytest.mark.parametrize(
    ("program", "options", "expected"),
    [
        ("vision", [], "maximize"),
        ("vision", ["benchmark=slowly_changing_regression", "dataset=bits"], "minimize"),
        ("vision", ["benchmark=permuted_online"], "maximize"),
        ("language", [], "minimize"),
        ("language", ["benchmark=domains"], "minimize"),
        ("dqn", [], "maximize"),
        ("sac", [], "maximize"),
    ],
)
def test_the_direction_of_each_program(program: str, options: list[str], expected: str) -> None:
    import_program(program)
    config = compose_with_hydra(program, ["hydra/sweeper=optuna", *options])
    assert direction_of(config) == expected


def test_a_sweep_that_is_no_search_has_no_direction() -> None:
    import_program("vision")
    assert direction_of(compose_with_hydra("vision", [])) is None


@needs("hydra_optuna_sweeper")
def test_a_direction_that_finds_the_worst_is_refused(tmp_path: Path, searches: Zygote) -> None:
    search = ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=1", "hydra.sweeper.direction=minimize", "-m")
    answer = searches.run(tmp_path, "vision.train", *SMALL.tiny("lr=choice(0.00001,0.003)"), *search)
    assert answer.code == 2
    said = "error: hydra.sweeper.direction=minimize, but the runs end with test/accuracy: set it to maximize"
    assert said in answer.err.splitlines()


def test_a_number_of_which_nothing_is_known_has_no_direction() -> None:
    with pytest.raises(ConfigError, match="nothing says whether more of test/f1 is better"):
        better_direction("test/f1")


@needs("hydra_submitit_launcher")
@needs("hydra_optuna_sweeper")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("hydra/launcher=slurm", 'Could not detect "srun"'),
        ("hydra/launcher=joblib hydra.launcher.n_jobs=0", "hydra.launcher.n_jobs must be a number of processes"),
        ("hydra/sweeper=optuna hydra.sweeper.storage=sqlite:////no/such/folder/o.db", ""),
        ("hydra/sweeper=optuna +hydra.sweeper.trials=3", ""),
        ("hydra/sweeper=optuna hydra.sweeper.direction=up", "the launcher or sweeper failed: Please set either"),
        ("hydra/sweeper=optuna lr=interval(0.1,0.01)", "the launcher or sweeper failed: The `low` value must be"),
    ],
)
def test_what_a_library_cannot_do_is_one_line(options: str, says: str, tmp_path: Path, searches: Zygote) -> None:
    answer = searches.run(tmp_path, "vision.train", *SMALL.tiny("seed=0,1"), *options.split(), "-m", PATH="/nowhere")
    assert answer.code == 2, answer.err
    assert "Traceback" not in answer.err
    (line,) = (line for line in answer.err.splitlines() if line.startswith("error: "))
    assert says in line
    assert not list(tmp_path.glob("runs/vision/*"))


@needs("hydra_optuna_sweeper")
def test_a_search_with_storage_goes_on(tmp_path: Path, searches: Zygote) -> None:
    storage = f"hydra.sweeper.storage=sqlite:///{tmp_path}/search.db"
    search = ("hydra/sweeper=optuna", storage, "hydra.sweeper.study_name=s", "hydra.sweeper.n_trials=1", "-m")
    for _ in range(2):
        answer = searches.run(tmp_path, "vision.train", *SMALL.tiny("lr=choice(0.001,0.003)"), *search)
        if metadata.version("sqlalchemy") >= "2":  # not what the extra installs
            assert answer.code == 2
            assert "needs SQLAlchemy 1.4, not " in answer.err.splitlines()[-1]
            return
        assert answer.code == 0, answer.err
    with contextlib.closing(sqlite3.connect(tmp_path / "search.db")) as trials:
        assert trials.execute("select count(*) from trials").fetchone() == (2,)
