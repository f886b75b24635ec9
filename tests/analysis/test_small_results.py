"""Small results give the same tables as the runs they were taken from; those in docs/ give what is printed there."""

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from PIL import Image

from analysis import make_figures
from analysis.sources import load, small
from tests.analysis.synthetic import write_run, write_sweep

RESULTS = Path(__file__).parents[2] / "docs" / "results"
QUICK = ("gpt_tiny", "random_labels")
KEPT = sorted(file for file in RESULTS.glob("*.csv") if file.with_suffix(".runs.json").exists())


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


def same_picture(old: Path, new: Path) -> bool:
    """Whether two PNG files show the same. Those of another matplotlib are not compared: it may differ a little."""
    with Image.open(old) as one, Image.open(new) as other:
        if one.info.get("Software") != other.info.get("Software"):
            return True
    one, other = matplotlib.image.imread(old), matplotlib.image.imread(new)
    return one.shape == other.shape and float(np.abs(one - other).mean()) < 0.005


@pytest.mark.parametrize(
    "file",
    [pytest.param(file, marks=[pytest.mark.slow] * (file.stem not in QUICK), id=file.stem) for file in KEPT],
)
def test_what_docs_show_is_remade_from_small_results(file, tmp_path):
    """docs/results/x.csv gives x.png, the table of results in x.md, and all that lies in x/."""
    assert make_figures.main([f"--runs={file}", f"--out={tmp_path}"]) == 0
    compared = 0
    pictures = {old: tmp_path / old.relative_to(file.with_suffix("")) for old in file.with_suffix("").rglob("*.png")}
    if file.with_suffix(".png").exists():
        (pictures[file.with_suffix(".png")],) = tmp_path.glob("*-*.png")  # of one setting
    for old, new in pictures.items():
        assert same_picture(old, new), f"{old} is not what {file} gives"
        compared += 1
    if file.with_suffix(".md").exists():
        text = file.with_suffix(".md").read_text()
        (table,) = (path for path in (tmp_path / "tables").iterdir() if path.stem not in ("convergence", "rl"))
        for line in table.read_text().splitlines():
            assert line in text, f"{file.with_suffix('.md')} does not hold the line of {table.name}: {line}"
        compared += 1
    for old in sorted(file.with_suffix("").rglob("*.md")):
        assert old.read_text() == (tmp_path / old.relative_to(file.with_suffix(""))).read_text(), old
        compared += 1
    assert compared, f"nothing in docs/results is made from {file.name}"
