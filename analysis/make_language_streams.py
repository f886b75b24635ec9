"""Makes the tables and figures of docs/results/language_streams.md.

    python analysis/make_language_streams.py                                  from the committed results
    python analysis/make_language_streams.py --runs runs/language_streams     from runs; writes the small results first
    python analysis/make_language_streams.py --figures paper width=column     the figures for a paper

Each folder below --runs is a table: permuted_text, domains, grid, mechanism. The figure of each is the plane of the
loss on new tasks and that on earlier ones.
"""

import argparse
import itertools
import sys
from collections.abc import Sequence
from math import cos, isfinite, pi, sin
from pathlib import Path

if not __package__:  # run as a script: put the clone on the path, and analysis/ itself off it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import formats, plotting, style
from analysis.language_streams import PLASTICITY, STABILITY, compare, read, table
from analysis.make_plasticity import filled
from analysis.options import add_figures, load_or_explain, split
from analysis.provenance import entry_of
from analysis.runs import BadRun
from analysis.stream_results import write
from harness.run import provenance

NUMBERED = 24  # points of a figure that have numbers
DOCS = Path(__file__).resolve().parent.parent / "docs" / "results"


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make_language_streams.py", description="Tables and figures of language_streams.md."
    )
    parser.add_argument("--runs", type=Path, help="folder of folders of runs, from which small results are made first")
    parser.add_argument(
        "--results", type=Path, default=DOCS / "language_streams", help="folder of small results (%(default)s)"
    )
    parser.add_argument("--page", type=Path, default=DOCS / "language_streams.md", help="page to fill in (%(default)s)")
    add_figures(parser)
    return parser.parse_args(split(argv))


def main(argv: list[str] | None = None) -> int:
    args = parse(sys.argv[1:] if argv is None else argv)
    style.use()
    try:
        for folder in sorted(args.runs.glob("[a-z]*")) if args.runs else []:
            sources = {"runs": [str(folder)], "no_cache": True, "include_unfinished": False, "classes": "seen"}
            if (found := load_or_explain("make_language_streams", argparse.Namespace(**sources))) is not None:
                path = args.results / f"{folder.name}.csv"
                write(table(found[0]), path)
                provenance.write(path, entry_of(found[0]))
    except BadRun as error:
        print(f"make_language_streams: {error}", file=sys.stderr)
        return 1
    tables = {}
    for name, frame in read(args.results).items():
        compared = compare(frame)
        tables[name] = formats.as_markdown(named(compared))
        figure = plane(name, compared, args.width)
        plotting.save(figure, (args.figures or args.results) / name, plotting.FORMATS if args.figures else ["png"])
        print(f"made {name}: {len(compared)} methods, seeds {compared['n'].min()} to {compared['n'].max()}")
    if args.page.exists():
        args.page.write_text(filled(args.page.read_text(encoding="utf-8"), tables), encoding="utf-8")
        print("now python scripts/fill_numbers.py, which brings the numbers in the text up to the tables")
    return 0


def named(compared: pd.DataFrame) -> pd.DataFrame:
    """The methods that have a name of their own under it; variants keep the names under which they ran."""
    columns = {column: f"vs {style.name(column[3:])}" for column in map(str, compared) if column.startswith("vs ")}
    renamed = [style.NAMES.get(method, method) for method in compared["method"]]
    return compared.rename(columns=columns).assign(method=renamed)


def plane(name: str, compared: pd.DataFrame, width: str = "page") -> Figure:
    """Plasticity against stability: a point a method with 95 % intervals over seeds, numbered as in its list.

    In a column the second panel stands below the first.
    """
    stabilities = [("Loss added at a boundary,\nearlier tasks", "lost"), ("Loss at the end,\nearlier tasks", STABILITY)]
    narrow = width == "column"
    shape, size = ((2, 1), (style.COLUMN, 6.4)) if narrow else ((1, 2), (style.PAGE, 3.2))
    figure, axes = plt.subplots(*shape, figsize=size)
    shown, others = split_rows(compared)
    for axis, (label, column) in zip(axes, stabilities, strict=True):
        for x, y in zip(others[PLASTICITY], others[column], strict=True):
            axis.plot(x.mean, y.mean, "o", color="#CCCCCC", markersize=2)
        for method, x, y in zip(shown["method"], shown[PLASTICITY], shown[column], strict=True):
            axis.plot([x.low, x.high], [y.mean, y.mean], color="#999999", linewidth=0.8)
            axis.plot([x.mean, x.mean], [y.low, y.high], color="#999999", linewidth=0.8)
            axis.plot(x.mean, y.mean, "o", color=style.COLOURS.get(method, style.COLOURS["fire"]), markersize=2.5)
        axis.set_xlabel("Loss on new tasks, last quarter (plasticity: left is better)", fontsize=6.5)
        axis.set_ylabel(f"{label} (stability: low is better)", fontsize=6.5)
    listed = "   ".join(f"{number} {method}" for number, method in enumerate(shown["method"], 1))
    if len(others):
        listed += f"   grey: {len(others)} more, in the table"
    words = name.replace("_", " ").capitalize()
    figure.suptitle(f"{words}: {listed}", x=0.01, ha="left", fontsize=5.5, wrap=True)
    lines = len(listed) // (75 if narrow else 170)
    figure.tight_layout(rect=(0, 0, 1, 0.98 - (0.008 if narrow else 0.03) * lines))
    for axis, (_, column) in zip(axes, stabilities, strict=True):
        number_points(axis, [(x.mean, y.mean) for x, y in zip(shown[PLASTICITY], shown[column], strict=True)])
    return figure


def split_rows(compared: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows that have room for a number in a figure, those that combine least (`a` before `a-b`), and the others."""
    parts = compared["method"].str.count("-").sort_values(kind="stable")
    first = compared.index.isin(parts.index[:NUMBERED])
    return compared[first], compared[~first]


def number_points(axis: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Write 1, 2, ... beside the points, each as near as there is room; a line leads to one that is not beside its own.

    Args:
        axis: with its final size and limits.
        points: in data coordinates.
    """
    pixels = axis.figure.dpi / 72  # of a point of text
    places = [tuple(axis.transData.transform(point) / pixels) for point in points if all(map(isfinite, point))]
    taken = list(places)
    for number, point in enumerate(points, 1):
        if not all(map(isfinite, point)):
            continue
        x, y = axis.transData.transform(point) / pixels
        wide = 3.4 * len(str(number))
        for distance, eighth in itertools.product((4.5, 9, 13, 18, 23, 28), range(8)):
            turn = (1 + eighth) * pi / 4
            dx, dy = distance * cos(turn), distance * sin(turn)
            if all(abs(x + dx - a) > wide + 0.5 or abs(y + dy - b) > 5 for a, b in taken if (a, b) != (x, y)):
                break
        taken.append((x + dx, y + dy))
        lead = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.4, "shrinkA": 0, "shrinkB": 1.5}
        axis.annotate(
            str(number), point, (dx, dy), textcoords="offset points", fontsize=5.5, ha="center", va="center",
            arrowprops=lead if distance > 4.5 else None,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
