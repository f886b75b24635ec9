"""Figures, by what is on them: limits, panels, legends, titles, and lines that coincide."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import figures, make_figures, plotting, rl, style
from analysis.coinciding import separate
from analysis.runs import Setting, settings
from analysis.sources import load
from harness.config.groups import choices
from tests.analysis.synthetic import rows, write_run, write_sweep

NINE = (1, 2, 3, 5, 8, 10, 15, 20, 30)  # iterations


@pytest.fixture(autouse=True)
def styled() -> None:
    style.use()


def found(root: Path) -> list[Setting]:
    return settings(load([str(root)])[0])


def drawn(root: Path, width: str | None = None) -> Figure:
    (setting,) = found(root)
    return plotting.setting_figure(setting, style.Palette(run.method for run in setting.runs), width)


def curves_of(axes: Axes) -> list[Line2D]:
    return [line for line in axes.lines if not str(line.get_label()).startswith("_")]


def in_turn(axes: Axes, names: Sequence[str]) -> list[Line2D]:
    """The dashed pieces of some lines, each drawn where it coincides with others."""
    return [line for line in axes.lines if line.get_label() in {f"_{name}" for name in names}]


def seen_at(line: Line2D, place: float) -> bool:
    """Whether a dashed line has a dash at a distance from its start, in points."""
    offset, dashes = line._unscaled_dash_pattern  # type: ignore[attr-defined] # nothing public holds its offset
    on, off = np.array(dashes) * line.get_linewidth()
    return bool((offset * line.get_linewidth() + place) % (on + off) < on)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_of_lines_that_coincide_each_is_seen_alone_somewhere(count: int) -> None:
    figure, axes = plt.subplots()
    x = np.arange(20.0)
    names = [f"m{i}" for i in range(count)]
    for name in names:
        axes.plot(x, np.sin(x), label=name)
    axes.plot(x, np.sin(x) + 1, label="apart")
    separate(figure)
    assert in_turn(axes, ["apart"]) == []
    pieces = {name: in_turn(axes, [name]) for name in names}
    assert all(len(lines) == 1 for lines in pieces.values())
    assert {tuple(lines[0].get_xdata()) for lines in pieces.values()} == {tuple(x)}
    seen = [[name for name in names if seen_at(pieces[name][0], place)] for place in np.arange(0.05, 100, 0.5)]
    assert {len(here) for here in seen} == {1}, "at each place one line, and the stretch has no gap"
    assert {here[0] for here in seen} == {*names}


def test_lines_share_only_the_stretch_at_which_they_coincide() -> None:
    figure, axes = plt.subplots()
    x = np.arange(11.0)
    axes.plot(x, np.zeros(11), label="a")
    axes.plot(x, np.where(x > 5, x - 5, 0), label="b")
    axes.plot(x, np.zeros(11) + 1e-4, label="c")  # less than a line's width away
    separate(figure)
    (b,) = in_turn(axes, ["b"])
    assert b.get_xdata().max() == 5
    assert {line.get_xdata().max() for line in in_turn(axes, ["a"])} == {5, 10}


def test_dots_that_coincide_become_sectors_that_fill_a_circle() -> None:
    figure, axes = plt.subplots()
    for i in range(3):
        axes.plot([1, 2], [0.5, i], marker="o", markersize=3, label=f"m{i}")
    separate(figure)
    sectors = in_turn(axes, ["m0", "m1", "m2"])
    assert [tuple(line.get_xydata()[0]) for line in sectors] == [(1, 0.5)] * 3
    circle = sum(area(line.get_marker().to_polygons()[0]) for line in sectors)  # type: ignore[union-attr]
    assert circle == pytest.approx(np.pi, rel=0.01)


def test_single_points_of_all_methods_are_seen_where_they_coincide(tmp_path: Path) -> None:
    methods = ("base", "full_reset", "fire", "pi", "random_isometry")
    for method in methods:
        write_run(tmp_path, method, 0, rows_=[{"step": 1, "phase": 0, "epoch": 1.0, "test/accuracy": 0.5}])
    (axes,) = drawn(tmp_path).axes
    colours = {line.get_color() for line in in_turn(axes, methods)}
    assert colours == {style.COLOURS[method] for method in methods}


def area(polygon: np.ndarray) -> float:
    x, y = polygon.T
    return 0.5 * abs(float(x @ np.roll(y, 1) - y @ np.roll(x, 1)))


def test_methods_that_share_a_first_phase_are_all_seen_in_it(tmp_path: Path) -> None:
    shared = rows("base", 0)[:20]
    for method in ("base", "full_reset", "snp", "fire"):
        write_run(tmp_path, method, 0, rows_=[*shared, *rows(method, 0)[20:]])
    axes = drawn(tmp_path).axes[0]
    first = [line for line in in_turn(axes, ["base", "full_reset", "snp", "fire"]) if line.get_xdata().min() < 50]
    assert {line.get_label() for line in first} >= {"_base", "_full_reset", "_snp", "_fire"}


def test_the_enlarged_phase_keeps_the_axis_of_the_whole_and_cuts_nothing(tmp_path: Path) -> None:
    write_sweep(tmp_path)
    whole, part = drawn(tmp_path).axes
    assert whole.get_xlim() == (0, 200)
    assert part.get_xlim() == (120, 200)  # of a phase from 100 to 200 the last four fifths
    assert part.get_xlabel() == whole.get_xlabel()
    low, high = part.get_ylim()
    for line in curves_of(part):
        inside = (line.get_xdata() >= 120) & np.isfinite(line.get_ydata())
        assert low < line.get_ydata()[inside].min()
        assert line.get_ydata()[inside].max() < high
        assert low < np.interp(120, line.get_xdata(), line.get_ydata()) < high
    (frame,) = whole.patches
    assert frame.get_bbox().intervalx == pytest.approx(part.get_xlim())
    assert frame.get_bbox().intervaly == pytest.approx(part.get_ylim())


def test_a_last_phase_of_few_points_is_not_enlarged(tmp_path: Path) -> None:
    write_run(tmp_path, "fire", 0, n=2)
    assert len(drawn(tmp_path).axes) == 1


@pytest.mark.parametrize("width", ["page", "column"])
def test_a_legend_of_nine_variants_is_short_and_takes_no_room_from_the_panels(tmp_path: Path, width: str) -> None:
    write_run(tmp_path, "fire", 0)
    alone = drawn(tmp_path, width)
    for iterations in NINE:
        write_run(tmp_path, "fire", 0, hyper={"iterations": iterations}, name=f"fire{iterations}", optimizer="sgd")
    (setting,) = [setting for setting in found(tmp_path) if len(setting.groups) == 9]
    figure = plotting.setting_figure(setting, style.Palette(["fire"]), width)
    for each in (alone, figure):
        each.draw_without_rendering()
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == [f"FIRE {iterations}" for iterations in NINE]
    assert "Behind FIRE: iterations." in figure.get_supxlabel().replace("\n", " ")
    assert not any(legend.get_window_extent().overlaps(axes.get_tightbbox()) for axes in figure.axes)
    assert legend.get_window_extent().width <= figure.bbox.width
    heights = [each.axes[0].get_window_extent().height / each.dpi for each in (alone, figure)]
    assert heights[1] == pytest.approx(heights[0], abs=0.1), "the figure grows with its legend"
    assert heights[1] > 1.4


def test_panels_without_runs_are_not_drawn_but_named(tmp_path: Path) -> None:
    for start in ("best", "30k"):
        for method in ("base", "fire"):
            benchmark = {"name": "continual_pretraining", "start": start}
            write_run(tmp_path, method, 0, metric="val/loss", benchmark=benchmark, program="language")
    grid = next(grid for grid in figures.GRIDS if grid.name == "figure3")
    figure = figures.grid_figure(grid, found(tmp_path), style.Palette(["base", "fire"]))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["From best checkpoint (n = 1)", "From 30k (n = 1)"]
    assert "Without runs: From 60k." in figure.get_supxlabel()
    assert figure.axes[0].get_xlabel() == "Epochs since the boundary"
    figure.draw_without_rendering()
    widths = [axes.get_window_extent().width / figure.bbox.width for axes in figure.axes]
    assert sum(widths) > 0.8, "no room is left empty"


@pytest.mark.parametrize("number", [1, 2])
def test_a_panel_that_several_settings_fit_says_which_it_shows(number: int, tmp_path: Path) -> None:
    for lr, seeds in ((0.1, 1), (0.2, 2))[-number:]:
        for seed in range(seeds):
            write_run(tmp_path, "base", seed, lr=lr, dataset={"name": "cifar10"}, model={"name": "resnet18"})
            write_run(
                tmp_path, "fire", seed, metric="eval/return", lr=lr, benchmark=None, dataset=None,
                env={"name": "asterix"}, program="dqn",
            )  # fmt: skip
    for name in ("figure2", "figure4a"):
        grid = next(grid for grid in figures.GRIDS if grid.name == name)
        words = figures.grid_figure(grid, found(tmp_path), style.Palette(["base"])).get_supxlabel().replace("\n", " ")
        assert ("lr=0.2 (1 of 2 settings)." in words) == (number == 2)


def test_of_a_grid_rows_and_columns_without_runs_are_left_out(tmp_path: Path) -> None:
    for benchmark, dataset in (("warm_start", "cifar10"), ("continual", "cifar10"), ("continual", "cifar100")):
        write_run(tmp_path, "fire", 0, benchmark={"name": benchmark}, dataset={"name": dataset})
    figure = figures.grid_figure(figures.GRIDS[0], found(tmp_path), style.Palette(["fire"]))
    titles = [axes.get_title(loc="left").split(",")[0] for axes in figure.axes]
    assert titles == ["CIFAR-10", "CIFAR-10", "CIFAR-100"]
    first, second, third = (axes.get_subplotspec() for axes in figure.axes)
    assert (first.rowspan.start, second.rowspan.start, third.colspan.start) == (0, 1, 1)


def test_panels_of_other_ranges_have_other_scales(tmp_path: Path) -> None:
    for game, factor in (("asterix", 1), ("beam_rider", 1000)):
        for method in ("base", "fire"):
            lines = [line | {"eval/return": factor * line["test/accuracy"]} if "test/accuracy" in line else line
                     for line in rows(method, 0)]  # fmt: skip
            lines = [{key: value for key, value in line.items() if key != "test/accuracy"} for line in lines]
            write_run(tmp_path, method, 0, rows_=lines, env={"name": game}, benchmark=None, dataset=None, program="dqn")
    grid = next(grid for grid in figures.GRIDS if grid.name == "figure4a")
    figure = figures.grid_figure(grid, found(tmp_path), style.Palette(["base", "fire"]))
    tops = [axes.get_ylim()[1] for axes in figure.axes]
    assert tops[1] / tops[0] == pytest.approx(1000, rel=0.01)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Asterix (n = 1)", "BeamRider (n = 1)"]


def test_atari_is_drawn_in_human_normalised_returns(tmp_path: Path) -> None:
    """A game whose runs do not have them keeps raw returns, and each axis says what it shows."""
    for game, is_known in (("asterix", True), ("beam_rider", True), ("CartPole-v1", False)):
        for method in ("base", "fire"):
            write_run(tmp_path, method, 0, rows_=returns_of(method, is_known), env={"name": game}, benchmark=None,
                      dataset=None, program="dqn")  # fmt: skip
    settings = found(tmp_path)
    grid = next(grid for grid in figures.GRIDS if grid.name == "figure4a")
    figure = figures.grid_figure(figures.with_others(grid, settings), settings, style.Palette(["base", "fire"]))
    assert "0 is random play, 1 a human player" in figure.get_supxlabel().replace("\n", " ")
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert labels == ["Human-normalised return", "", "Evaluation return"]
    known, _, other = (np.array([line.get_ydata() for line in axes.lines[:2]], dtype=float) for axes in figure.axes)
    np.testing.assert_allclose(known, other / 100)


def returns_of(method: str, normalised: bool) -> list[dict[str, float]]:
    """Return rows of an agent's run: returns of some hundreds and, if asked for, a hundredth of them."""
    result = []
    for line in rows(method, 0):
        row = {key: value for key, value in line.items() if key != "test/accuracy"}
        if "test/accuracy" in line:
            row["eval/return"] = 100 * line["test/accuracy"]
            if normalised:
                row[rl.NORMALISED] = line["test/accuracy"]
        result.append(row)
    return result


@pytest.mark.parametrize(
    ("names", "title"),
    [
        (("", "breakout", "nature_cnn"), "Breakout, nature CNN"),
        (("warm_start", "digits", "mlp"), "Warm start, digits, MLP"),
        (("continual_pretraining", "texts", "gpt_tiny"), "Continual pre-training, texts, GPT-tiny"),
        (("", "h1-walk-v0", ""), "h1-walk-v0"),
        (("", "my_own_game", ""), "My own game"),
    ],
)
def test_titles_are_in_sentence_case_with_proper_names(names: tuple[str, str, str], title: str) -> None:
    assert plotting.title(Setting(*names, "", "eval/return", [])) == title


@pytest.mark.parametrize("group", ["benchmark", "dataset", "model"])
def test_every_choice_of_ours_has_a_proper_name(group: str) -> None:
    foreign = {"timm", "torchvision", "folder"}  # a run is named by what these hold
    assert {*choices(group)} - foreign <= {*style.NAMES}


@pytest.mark.parametrize(
    ("seeds", "caption", "numbers"),
    [
        ((1, 1), "One seed for each line, so there are no bands.", "of one seed"),
        ((2, 2), "Mean over n = 2 seeds; band: from one seed to the other.", "mean (the two seeds)"),
        ((3, 3), "Mean over n = 3 seeds; band: ± standard error.", "mean [95 % interval]"),
        ((1, 3), "Mean over n = 1 to 3 seeds; band: ± standard error.", "mean [95 % interval]"),
        ((2, 3), "Mean over n = 2 to 3 seeds; band: ± standard error.",
         "mean [95 % interval]; of two seeds mean (the two seeds)"),
    ],
)  # fmt: skip
def test_words_say_how_many_seeds_there_are(
    seeds: tuple[int, int], caption: str, numbers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for method, count in zip(("base", "fire"), seeds, strict=True):
        write_sweep(tmp_path, (method,), range(count), n=4)
    figure = drawn(tmp_path)
    assert figure.get_supxlabel().replace("\n", " ").startswith(caption)
    make_figures.main(["--runs", str(tmp_path), "--out", str(tmp_path / "figures")])
    assert f"Warm start, digits, small: test accuracy, {numbers}\n".replace("small", "resnet small") in (
        capsys.readouterr().out
    )


def test_a_stream_of_texts_is_no_panel_of_figure_3(tmp_path: Path) -> None:
    lines = [{"step": step, "phase": 0, "iteration": step, "val/loss": 2.0} for step in (1, 2)]
    for start in ({}, {"start": "end"}):
        write_run(
            tmp_path / f"{len(start)}",
            rows_=lines,
            metric="val/loss",
            program="language",
            benchmark={"name": "permuted_text"} | start,
        )
    (grid,) = [grid for grid in figures.GRIDS if grid.name == "figure3"]
    panels = figures.with_others(grid, found(tmp_path)).rows[0]
    assert [panel.title for panel in panels[len(grid.rows[0]) :]] == ["From the end"]
