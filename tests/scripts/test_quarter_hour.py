"""The quarter of an hour of one GPU, rehearsed on a CPU."""

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.program.jobs import Job, run_job
from scripts.quarter_hour import ROWS, SEEDS, START_AND_END, chosen_rows, command, next_seed, rehearsed, speeds
from tests.programs import summary, wait_for
from tests.zygote import ROOT, Zygote

REHEARSE = [sys.executable, "-m", "scripts.quarter_hour", "--rehearse", "--out"]


def accuracies(out: Path) -> dict[str, str]:
    """The test accuracy of each row that has ended."""
    return {
        line["row"]: line["test/accuracy"] for line in csv.DictReader((out / "c_rows.csv").read_text().splitlines())
    }


def test_how_many_rows_fit_is_arithmetic() -> None:
    """A phase has 5 million images; two at 15,500 a second are 645 s. A full reset beside phase 0 shares the GPU."""
    alone = 2 * 5e6 / 15_500 + START_AND_END
    assert chosen_rows({1: 15_500.0}, alone + 1) == ["base"]
    assert chosen_rows({1: 15_500.0}, alone - 1) == []
    together = {1: 25_000.0, 2: 40_000.0, 3: 45_000.0}
    two = 2 * 5e6 / 40_000 + 5e6 / 25_000 + START_AND_END
    three = 2 * 5e6 / 40_000 + 2 * 5e6 / 40_000 + START_AND_END
    four = 2 * 5e6 / 40_000 + 3 * 5e6 / 45_000 + START_AND_END
    assert chosen_rows(together, two) == ["base", "full_reset"]
    assert chosen_rows(together, three) == ["base", "full_reset", "fire"]
    assert chosen_rows(together, four) == ["base", "full_reset", "fire", "half"]


def test_seeds_come_in_their_order(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    assert next_seed(table) == 301
    table.write_text("row,seed\nbase,301\nfire,301\n")
    assert next_seed(table) == 302
    table.write_text("row,seed\nbase,301\nbase,302\nbase,303\n")
    with pytest.raises(SystemExit, match="the study has ended"):
        next_seed(table)


def test_speeds_are_read_where_they_were_measured(tmp_path: Path) -> None:
    table = tmp_path / "b.csv"
    assert speeds(table) == {}
    table.write_text('what,per_second\nresnet18 graph,20000\n"resnet18 graph, processes 3",\n"fire_ 1 x 1, paper",3\n')
    assert speeds(table) == {1: 20_000.0}


def test_a_machine_without_a_gpu_says_so(tmp_path: Path, zygote: Zygote) -> None:
    answer = zygote.run(tmp_path, "scripts.quarter_hour", CUDA_VISIBLE_DEVICES="")
    assert answer.code == 1
    assert answer.err == "error: torch sees no CUDA GPU here; --rehearse runs everything small on a CPU\n"


def rows_alone(folder: Path) -> dict[str, str]:
    """The test accuracy of each row, trained in this process."""
    setting = rehearsed(folder)
    jobs = {row: Job("vision", tuple(command(setting, SEEDS[0], row)[3:])) for row in ROWS}
    return {row: str(summary(run_job(job).folder)["test/accuracy"]) for row, job in jobs.items()}


@pytest.mark.slow
def test_the_whole_script_rehearsed_and_killed_in_each_part(tmp_path: Path) -> None:
    """After each kill the same command goes on, and c ends with the rows of runs that nothing disturbed."""
    out = tmp_path / "out"

    def kill(part: str, *only: str, once: Callable[[], object] = lambda: True) -> None:
        process = subprocess.Popen(
            [*REHEARSE, str(out), *only], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert process.stdout is not None
        with process.stdout:
            assert any(part in line for line in process.stdout), f"it ended before {part}"
            wait_for(once)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    kill("a: tests")
    kill("b: what")
    kill("c: rows", "--only", "c", once=lambda: any(file.stat().st_size for file in out.rglob("metrics.jsonl")))
    ended = subprocess.run([*REHEARSE, str(out)], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert accuracies(out) == rows_alone(tmp_path / "alone")
    costs = list(csv.DictReader((out / "b_costs.csv").read_text().splitlines()))
    assert len(costs) >= 8
    assert all(line["per_second"] for line in costs), "each thing was measured"
    assert {path.name for path in out.iterdir()} == {
        *("a_tests.txt", "b_costs.csv", "c_epochs.csv", "c_rows.csv", "environment.json", "runs")
    }
