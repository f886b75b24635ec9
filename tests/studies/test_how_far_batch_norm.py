"""What acts keep with new statistics of batch norm, on first phases at their smallest."""

from pathlib import Path
from typing import Any

import pytest

from harness import load
from studies import how_far_batch_norm
from studies.how_far import STREAMS
from studies.tables import read_csv
from tests.programs import VISION


@pytest.fixture(scope="module")
def first_phases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the first phase of seed 0."""
    runs = tmp_path_factory.mktemp("runs")
    VISION.run_to_end(VISION.compose("only_first_phase=true", "method=base", f"paths.runs={runs}", "epochs=8"))
    return runs / ".cache"


def first_phase(folder: Path) -> Any:
    (found,) = folder.glob("vision-*/DONE")
    return load(found.parent)


def test_the_statistics_are_those_of_one_pass_over_the_phase(first_phases: Path) -> None:
    trained = first_phase(first_phases)
    seen = 0

    def count(_module: Any, inputs: tuple[Any], _output: Any) -> None:
        nonlocal seen
        seen += len(inputs[0]) if trained.model.training else 0

    trained.model.register_forward_hook(count)
    numbers = how_far_batch_norm.measured(trained, 0.0)
    assert seen == len(trained.task.phases[0].train)
    assert numbers["before"] == numbers["after"] == trained.row["test/accuracy"]


def test_new_statistics_undo_a_part_of_the_damage_and_the_network_is_as_it_was(first_phases: Path) -> None:
    trained = first_phase(first_phases)
    fire = how_far_batch_norm.measured(trained, 1.0)
    assert fire["after"] < fire["new_statistics"] < fire["before"] == trained.evaluate()["test/accuracy"]


def test_each_report_seed_is_there_once(first_phases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(how_far_batch_norm, "TABLE", tmp_path / "table.csv")
    with pytest.raises(SystemExit, match="holds 0 first phases of warm_start with seed 201, not one"):
        how_far_batch_norm.main([str(first_phases)])
    monkeypatch.setitem(STREAMS["warm_start"].seeds, "*", range(1))  # type: ignore[index]
    how_far_batch_norm.main([str(first_phases)])
    lines = read_csv(tmp_path / "table.csv")
    assert [(line["row"], line["seed"]) for line in lines] == [("base", "0"), ("half", "0"), ("fire", "0")]
