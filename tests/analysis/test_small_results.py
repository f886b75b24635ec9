"""Small results give the same tables as the runs that they were taken from; those of studies can be drawn."""

import json
from pathlib import Path

import pytest

from analysis import make_figures
from analysis.sources import load, small
from tests.analysis.synthetic import write_run, write_sweep

STUDIES = Path(__file__).parents[2] / "docs" / "studies"
# Of each study whose runs are committed, a figure that is drawn of them.
FIGURES = {
    "digits": "warm_start-digits-mlp",
    "dqn": "figure4a",
    "language": "figure3",
    "random_labels": "random_labels-digits-mlp",
    "sac": "figure4b",
    "table10": "warm_start-digits-mlp",
}


def test_tables_are_the_same_as_from_the_runs(tmp_path):
    write_sweep(tmp_path / "runs", seeds=range(2), n=400)
    write_run(tmp_path / "runs", "fire", 5, n=400, hyper={"iterations": 3})
    first = [f"--runs={tmp_path / 'runs'}", f"--out={tmp_path / 'a'}", f"--export={tmp_path / 'small.csv'}"]
    assert make_figures.main(first) == 0
    assert make_figures.main([f"--runs={tmp_path / 'small.csv'}", f"--out={tmp_path / 'b'}"]) == 0
    names = [sorted(file.name for file in (tmp_path / side / "tables").iterdir()) for side in "ab"]
    assert names[0] == names[1] != []
    for name in names[0]:
        assert (tmp_path / "a/tables" / name).read_text() == (tmp_path / "b/tables" / name).read_text()
    kept, _ = load([str(tmp_path / "small.csv")])
    configs = {run.name: small.public(run.config) for run in load([str(tmp_path / "runs")])[0]}
    assert {run.name: run.config for run in kept} == configs
    assert all(len(run.history) < 250 for run in kept)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_provenance_of_an_export_names_the_device_of_its_runs(device: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", "fire")
    environment = {"processor": "EPYC", "gpus": ["H200"]}
    (folder / "env.json").write_text(json.dumps(environment))
    (folder / "identity.json").write_text(json.dumps({"run": {"seed": 0}, "execution": {"device": device}}))
    small.write(load([str(tmp_path / "runs")])[0], tmp_path / "small.csv")
    (entry,) = json.loads((tmp_path / "small.provenance.json").read_text()).values()
    assert entry["cpu"] == ("EPYC" if device == "cpu" else "H200 beside EPYC")


@pytest.mark.slow
@pytest.mark.parametrize("study", FIGURES)
def test_committed_runs_can_be_drawn(study: str, tmp_path: Path) -> None:
    (about,) = (STUDIES / study).glob("*.runs.json")
    assert make_figures.main([f"--runs={about.with_suffix('').with_suffix('.csv')}", f"--out={tmp_path}"]) == 0
    assert (tmp_path / f"{FIGURES[study]}.png").exists()
    assert list((tmp_path / "tables").glob("*.md"))


def test_every_study_with_committed_runs_is_drawn() -> None:
    assert {path.parent.name for path in STUDIES.glob("*/*.runs.json")} == {*FIGURES}
