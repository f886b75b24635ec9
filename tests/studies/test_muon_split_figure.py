"""The figure of the study muon_split, from runs and tables made by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies import muon_split_figure
from studies.tables import read_csv


def write_run(folder: Path, seed: int, split: bool, loss: float) -> None:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        f"seed: {seed}\nmethod: {{split: {str(split).lower()}}}\nmodel: {{n_embd: 64}}\n"
    )
    entries: list[dict[str, Any]] = [{"iteration": 500, "val/loss": loss}, {"kind": "firing"}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    (folder / "DONE").touch()


def test_curves_are_those_of_the_report_seeds(tmp_path: Path) -> None:
    write_run(tmp_path / "language" / "a", 201, True, 1.5)
    write_run(tmp_path / "language" / "b", 202, False, 1.75)
    write_run(tmp_path / "language" / "c", 20000, True, 1.0)  # a seed of the search
    assert muon_split_figure.curves_of(tmp_path) == [
        {"setting": "width 64", "row": "fused", "seed": 202, "iteration": 500, "val/loss": 1.75},
        {"setting": "width 64", "row": "split", "seed": 201, "iteration": 500, "val/loss": 1.5},
    ]
    with pytest.raises(SystemExit, match="holds no finished run on a report seed"):
        muon_split_figure.curves_of(tmp_path / "language")


def test_the_search_is_drawn_with_its_mean_and_both_seeds() -> None:
    search = read_csv(muon_split_figure.FOLDER / "gpt.search.csv")
    figure = muon_split_figure.draw(search, [])
    (split, fused) = figure.axes[0].lines
    assert (split.get_label(), fused.get_label()) == ("split", "fused")
    rates = [
        (float(line["searched"].removeprefix("lr=")), float(line["val/loss"]))
        for line in search
        if (line["setting"], line["row"]) == ("width 64", "split")
    ]
    first = min(rates)[0]
    at_first = [loss for rate, loss in rates if rate == first]
    assert np.asarray(split.get_xdata())[0] == first
    assert np.asarray(split.get_ydata())[0] == pytest.approx(sum(at_first) / len(at_first))
