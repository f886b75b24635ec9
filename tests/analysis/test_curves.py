"""Curves from runs: means, bands, phases, thinning, and the figures made of them."""

import numpy as np
import pytest

from analysis import curves, figures, plotting, style
from analysis.runs import settings
from analysis.sources import load
from tests.analysis.synthetic import rows, write_run, write_sweep


def groups(root):
    (setting,) = settings(load([str(root)])[0])
    return setting.groups


def plain_rows(values, phase=0):
    pairs = enumerate(values, 1)
    return [{"step": i, "phase": phase, "epoch": float(i), "test/accuracy": v} for i, v in pairs]


def test_mean_and_standard_error_over_seeds(tmp_path):
    for seed, values in enumerate(([0.1, 0.2], [0.3, 0.4], [0.5, 0.9])):
        write_run(tmp_path, "fire", seed, rows_=plain_rows(values))
    c = curves.mean_curve(groups(tmp_path)[0], "test/accuracy")
    assert c.mean == pytest.approx([0.3, 0.5])
    assert c.high - c.mean == pytest.approx([np.std([0.1, 0.3, 0.5], ddof=1) / np.sqrt(3), 0.36055513 / np.sqrt(3)])


def test_a_point_is_the_mean_of_the_seeds_that_were_logged_there(tmp_path):
    write_run(tmp_path, "fire", 0, rows_=plain_rows([0.0, 0.1, 0.2, 0.3]))
    other = [row for row in plain_rows([0.2, 0.1, 0.4, 0.3]) if row["step"] in (1, 3)]
    write_run(tmp_path, "fire", 1, rows_=other)
    c = curves.mean_curve(groups(tmp_path)[0], "test/accuracy")
    assert c.mean == pytest.approx([0.1, 0.1, 0.3, 0.3])
    assert c.n.tolist() == [2, 1, 2, 1]
    caption = plotting.caption([(groups(tmp_path)[0], c)])
    assert "Points of FIRE that not all seeds reached are means of those that did." in caption


def test_the_point_right_after_the_method_acted_stands_on_the_boundary(tmp_path):
    write_run(tmp_path, "fire", 0, n=4)
    c = curves.mean_curve(groups(tmp_path)[0], "test/accuracy")
    logged = [row["test/accuracy"] for row in rows("fire", 0, 4) if "kind" not in row]
    assert c.x.tolist() == [25, 50, 75, 100, 100, 125, 150, 175, 200]
    assert c.mean == pytest.approx([*logged[:4], 0.45, *logged[4:]])
    assert curves.boundaries(groups(tmp_path)[0].runs) == [100]
    last = curves.mean_curve(groups(tmp_path)[0], "test/accuracy", last_phase=True)
    assert last.x.tolist() == [0, 25, 50, 75, 100]


def test_thinning_keeps_ends_and_boundaries(tmp_path):
    write_run(tmp_path, "fire", 0, n=500)
    (group,) = groups(tmp_path)
    whole, thin = (curves.mean_curve(group, "test/accuracy", max_points=n) for n in (10_000, 50))
    assert len(thin.x) < 60
    assert {thin.x[0], thin.x[-1]} == {whole.x[0], whole.x[-1]}
    assert (thin.x == 100).sum() == 2


def test_figure_2_shows_what_was_run_alone(tmp_path):
    style.use()
    write_sweep(tmp_path, ("base", "full_reset", "fire"), range(2), dataset={"name": "cifar10"},
                model={"name": "resnet18"})  # fmt: skip
    found = settings(load([str(tmp_path)])[0])
    grid = figures.GRIDS[0]
    assert figures.has_data(grid, found)
    assert not any(figures.has_data(other, found) for other in figures.GRIDS[1:])
    figure = figures.grid_figure(grid, found, style.Palette(["fire"]))
    (first,) = figure.axes
    assert "n = 2" in first.get_title(loc="left")
    heights = {line.get_ydata()[0] for line in first.lines if len(set(line.get_ydata())) == 1}
    assert {0.8005, 0.8605} <= {round(float(h), 4) for h in heights}  # base and full reset, drawn across
    plotting.plt.close(figure)
