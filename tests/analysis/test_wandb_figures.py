"""Figures 2 to 4 and table 10 from wandb alone: its files on disk and its service, without a run folder."""

import json
from pathlib import Path
from typing import Any

import pytest
from pandas.testing import assert_frame_equal

from analysis import make_figures
from analysis.runs import SourceError
from analysis.sources import load, wandb_service
from tests.analysis.synthetic import config, rows
from tests.analysis.test_wandb_local import WRITE
from tests.analysis.wandb_stand_in import service_of
from tests.zygote import Zygote

FIGURES = {  # what a run of each figure's program has in its configuration, and the metric that it logs
    "figure2": ("test/accuracy", {"dataset": {"name": "cifar10"}, "model": {"name": "resnet18"}}),
    "figure3": ("val/loss", {"benchmark": {"name": "continual_pretraining", "start": "best"}, "program": "language"}),
    "figure4a": ("eval/return", {"env": {"name": "asterix"}, "dataset": None, "program": "dqn"}),
    "figure4b": ("eval/return", {"env": {"name": "h1-walk-v0"}, "dataset": None, "program": "sac"}),
}


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Any]]:
    """Base and FIRE of each figure, as a trainer hands them to wandb."""
    found = []
    for figure, (metric, over) in FIGURES.items():
        for method in ("base", "fire"):
            about = config(method, 0, **over)
            if method == "fire":
                about["method"] |= {"solver": "newton_schulz"}
            logged = rows(method, 0, 3, metric)
            found.append({"id": f"{figure}-{method}", "config": about, "rows": logged, "done": True})
    return found


@pytest.fixture(scope="module")
def files(runs: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> str:
    """What `--runs` is given for the files that wandb itself has written."""
    folder = tmp_path_factory.mktemp("offline")
    assert zygote.code(folder, WRITE, str(folder), json.dumps(runs)).code == 0
    assert not [*folder.rglob("metrics.jsonl")]
    return f"wandb-local:{folder}"


def test_figures_and_table_10_need_wandb_alone(files: str, tmp_path: Path) -> None:
    assert make_figures.main([f"--runs={files}", f"--out={tmp_path}"]) == 0
    for figure in FIGURES:
        assert (tmp_path / f"{figure}.png").stat().st_size > 1000, figure
    table = (tmp_path / "tables" / "convergence.md").read_text()
    line = next(line for line in table.splitlines() if "FIRE" in line and "resnet18" in line)
    assert "0.5000" in line, "DfI after, of the boundary's row"
    (results,) = (tmp_path / "tables").glob("*cifar10-resnet18.md")
    assert "0.8700" in next(row for row in results.read_text().splitlines() if row.startswith("| FIRE"))


def test_the_service_gives_the_same_runs_as_the_files(files: str, runs: list[dict[str, Any]]) -> None:
    remote = [
        {
            "name": run["id"],
            "state": "finished",
            "config": run["config"],
            "rows": [row | {"_step": number} for number, row in enumerate(run["rows"])],
            "summary": {"final/test/accuracy": 0.8},
        }
        for run in runs
    ]
    with service_of(remote):
        of_service, left_out = load(make_figures.parse(["--runs=wandb:entity/project"]).runs)
    of_files, _ = load(make_figures.parse([f"--runs={files}"]).runs)
    assert not left_out
    assert len(of_service) == len(of_files) == len(runs)
    by_name = [{run.name: run for run in read} for read in (of_service, of_files)]
    for run in runs:
        one, other = (read[run["id"]] for read in by_name)
        assert one.config == other.config == run["config"]
        boundary = next(row for row in run["rows"] if "kind" in row)
        measured = [*run["rows"][0]]
        assert_frame_equal(one.history[measured], other.history[measured], check_dtype=False)
        acts = [key for key in boundary if key != "kind"]
        assert_frame_equal(one.boundaries[acts], other.boundaries[acts], check_dtype=False)


@pytest.mark.parametrize("name", ["entity", "entity/absent"])
def test_a_wrong_name_is_one_clear_error(name: str) -> None:
    with service_of([]), pytest.raises(SourceError, match=f"wandb:{name}"):
        list(wandb_service.read(name))
