"""Makes the tables and figures of docs/results/plasticity.md.

    python analysis/make_plasticity.py                          from the committed results
    python analysis/make_plasticity.py --runs runs/plasticity   from runs; writes the small results first
    python analysis/make_plasticity.py --figures paper width=column   the figures for a paper

Text between `<!-- table: name -->` and `<!-- end -->` in the page is replaced: `random_labels_digits` (a stream's
table), `chosen random_labels_digits` (what its search chose), `ranks` (over the streams that have all methods),
`ranks without variants` (without FIRE exact and combinations), `cost`.
"""

import argparse
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

if not __package__:  # run as a script: put the clone on the path, and analysis/ itself off it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from analysis import formats, plotting, style
from analysis.estimates import band, mean
from analysis.forms import names, winners
from analysis.options import add_figures, load_or_explain, split
from analysis.provenance import entry_of
from analysis.runs import BadRun
from analysis.stream_results import by_seed, collect, compare, methods, name_of, ranks, read, write
from harness.run import provenance

DOCS = Path(__file__).resolve().parent.parent / "docs" / "results"
LOSSES = ("slowly_changing_regression_bits",)  # streams of which less is better
SEARCH = "search_"  # begins the names of tables of searches
VARIANTS = "fire_"  # and of tables of FIRE's variants
LINES = 7  # curves in a figure, the references among them
MARK = re.compile(r"(<!-- table: (.+?) -->\n)(.*?)(<!-- end -->)", re.S)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make_plasticity.py", description="Tables and figures of plasticity.md.")
    parser.add_argument("--runs", nargs="+", help="folders of runs, from which the small results are written first")
    parser.add_argument("--variants", action="store_true", help="the runs are variants of FIRE, a table of their own")
    parser.add_argument("--results", type=Path, default=DOCS / "plasticity", help="small results (%(default)s)")
    parser.add_argument("--page", type=Path, default=DOCS / "plasticity.md", help="page to fill in (%(default)s)")
    add_figures(parser)
    return parser.parse_args(split(argv))


def main(argv: list[str] | None = None) -> int:
    args = parse(sys.argv[1:] if argv is None else argv)
    style.use()
    try:
        if args.runs:
            sources = {"runs": args.runs, "no_cache": True, "include_unfinished": False, "classes": "seen"}
            collected = load_or_explain("make_plasticity", argparse.Namespace(**sources))
            if collected is None:
                return 1
            for name, frame in collect(collected[0]).items():
                path = args.results / f"{VARIANTS * args.variants}{name}.csv"
                write(frame, path)
                provenance.write(path, entry_of([run for run in collected[0] if name_of(run) == name]))
        tables = make_tables(args.results, args.figures, args.width)
    except BadRun as error:
        print(f"make_plasticity: {error}", file=sys.stderr)
        return 1
    if args.page.exists():
        text = args.page.read_text(encoding="utf-8")
        args.page.write_text(filled(text, tables), encoding="utf-8")
        print("now python scripts/fill_numbers.py, which brings the numbers in the text up to the tables")
    for name in tables:
        print(f"made {name}")
    return 0


def make_tables(folder: Path, figures: Path | None = None, width: str = "page") -> dict[str, str]:
    """Markdown of each table by its name; figures are drawn on the way.

    Args:
        folder: of small results.
        figures: where the figures go, in all formats; None puts PNG files beside the results.
        width: "page" or "column" of a paper.

    Raises:
        BadRun: a seed that a search has used is reported.
    """
    streams = {path.stem: read(path) for path in sorted(folder.glob("*.csv")) if not path.stem.startswith(SEARCH)}
    searches = {path.stem: pd.read_csv(path) for path in sorted(folder.glob(f"{SEARCH}*.csv"))}
    cost = streams.pop("cost", None)
    tables, options = {}, dict[str, dict[str, str]]()
    for name, frame in streams.items():
        searched = searches.get(SEARCH + name.removeprefix(VARIANTS))
        check_seeds(name, frame, searched)
        more = name.removeprefix(VARIANTS) not in LOSSES
        found = compare(frame, more)
        # FIRE's variants run at its defaults; of a stream every method has what the stream's search chose.
        variants = name.startswith(VARIANTS)
        options[name] = {} if searched is None or variants else winners(searched, more)
        called = names(methods(frame), options[name])
        tables[name] = formats.as_markdown(named(found, called))
        figure = stream_figure(name, frame, found, called, width)
        plotting.save(figure, (figures or folder) / name, plotting.FORMATS if figures else ["png"])
    for name, searched in searches.items():
        more = name.removeprefix(SEARCH) not in LOSSES
        tables[f"chosen {name.removeprefix(SEARCH)}"] = formats.as_markdown(chosen(searched, more))
    whole = every_method({name: frame for name, frame in streams.items() if not name.startswith(VARIANTS)})
    if len(whole) > 1:
        ranked = ranks(whole, LOSSES)
        named_streams = {name: stream_name(name) for name in whole}
        called = names(ranked["method"], *(options[name] for name in whole))
        # FIRE is not to be ranked against itself.
        forms_of_fire = [method for method in called if "+" in method or method == "fire_exact"]
        others = {name: frame[~frame["method"].isin(forms_of_fire)] for name, frame in whole.items()}
        for table, frame in {"ranks": ranked, "ranks without variants": ranks(others, LOSSES)}.items():
            tables[table] = formats.as_markdown(named(frame.rename(columns=named_streams), called))
        figure = overview_figure(whole, called, width)
        plotting.save(figure, (figures or folder) / "overview", plotting.FORMATS if figures else ["png"])
    if cost is not None:
        tables["cost"] = formats.as_markdown(named(cost, names(cost["method"])))
    return tables


def every_method(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The streams on which the most methods have run: ranks over fewer would leave methods out."""
    most = max((len(methods(frame)) for frame in frames.values()), default=0)
    return {name: frame for name, frame in frames.items() if len(methods(frame)) == most}


def check_seeds(name: str, frame: pd.DataFrame, searched: pd.DataFrame | None) -> None:
    """Refuse to report seeds on which options were chosen.

    Raises:
        BadRun: there is one.
    """
    if searched is not None:
        used = {int(column.removeprefix("seed ")) for column in map(str, searched) if column.startswith("seed ")}
        if both := used & set(frame["seed"]):
            raise BadRun(f"{name}: options were chosen on seed {min(both)}, which is reported")


def named(frame: pd.DataFrame, called: Mapping[str, str]) -> pd.DataFrame:
    """Methods and references as they are written in figures."""
    columns = {column: f"vs {called[column[3:]]}" for column in map(str, frame) if column.startswith("vs ")}
    return frame.rename(columns=columns).assign(method=[called[method] for method in frame["method"]])


def chosen(searched: pd.DataFrame, more: bool) -> pd.DataFrame:
    """What a search chose for each method, beside its defaults on the same seeds."""
    rows = []
    for method in methods(searched):
        trials = searched[searched["method"] == method].sort_values("trial").fillna({"options": ""})
        known = trials.dropna(subset="score").sort_values("score", ascending=not more, kind="stable")
        row = {
            "method": names([method], winners(trials, more))[method],
            "trials": len(trials),
            "diverged": len(trials) - len(known),
        }
        row |= {"defaults": float(trials["score"].iloc[0])}
        if len(known):
            best = known.iloc[0]
            row |= {"best": float(best["score"]), "options of the best": str(best["options"]) or "the defaults"}
        rows.append(row)
    return pd.DataFrame(rows)


def stream_name(name: str) -> str:
    """A stream, as figures and tables write it."""
    return style.name(name.removeprefix(VARIANTS).rpartition("_")[0])


def overview_figure(frames: dict[str, pd.DataFrame], called: Mapping[str, str], width: str) -> Figure:
    """A panel for each stream with every method's mean over tasks; methods stand in one order in all.

    In a column the panels stand two beside each other. `called`: the methods in their order, and their names.
    """
    order = list(called)
    palette = style.Palette(order)
    across = 2 if width == "column" else len(frames)
    down = -(-len(frames) // across)
    size = (style.COLUMN if width == "column" else style.PAGE, down * (0.13 * len(order) + 0.8))
    figure, axes = plt.subplots(down, across, figsize=size, sharey=True, squeeze=False)
    for panel in axes.flat[len(frames) :]:
        panel.set_visible(False)
    for panel, (name, frame) in zip(axes.flat, frames.items(), strict=False):
        for row, method in enumerate(order):
            estimate = mean(list(by_seed(frame, method).values()))
            colour = palette.line(method)["color"]
            panel.plot([estimate.low, estimate.high], [row, row], color=colour, linewidth=1.2)
            panel.plot(estimate.mean, row, "o", color=colour, markersize=3)
        panel.set_yticks(range(len(order)), [called[method] for method in order])
        panel.set_xlim(0, None if name in LOSSES else 1.02)
        panel.set_title(stream_name(name), fontsize=7)
        panel.grid(axis="y", linewidth=0.3, alpha=0.5)
    axes[0, 0].invert_yaxis()
    figure.supxlabel("Mean over tasks, 95 % interval over seeds; methods in the order of their mean rank", fontsize=7)
    figure.tight_layout()
    return figure


def draw_tasks(left: Axes, frame: pd.DataFrame, called: Mapping[str, str], palette: style.Palette, loss: bool) -> None:
    """The value at the end of each task, of the methods that `called` names."""
    for place, (method, name) in enumerate(called.items()):
        look = palette.line(method.partition(" (")[0], place if " (" in method else 0)
        values = frame[frame["method"] == method].pivot(index="seed", columns="task", values="value")
        low, high = band(values.to_numpy(float), "sem")
        left.plot(values.columns, values.mean(), **look, label=name)
        left.fill_between(values.columns, low, high, color=look["color"], alpha=0.16, linewidth=0)
    left.set_xlabel(style.AXES["task"])
    left.set_ylabel("Squared error of a task" if loss else "Accuracy at the end of a task")
    left.set_ylim(0, None if loss else 1.02)
    left.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    scale = left.get_figure(root=True).dpi_scale_trans  # type: ignore[union-attr]
    below = left.transAxes + ScaledTranslation(0, -0.38, scale)  # inches, below the axis' label
    left.legend(loc="upper center", bbox_to_anchor=(0.45, 0), bbox_transform=below, ncols=3, fontsize=6)


def stream_figure(
    name: str, frame: pd.DataFrame, found: pd.DataFrame, called: Mapping[str, str], width: str = "page"
) -> Figure:
    """Left: the value at the end of each task, of the references and the best; right: all methods' means.

    In a column the second panel stands below the first. Where there is one task, the second stands alone.
    """
    order = list(found["method"])
    references = [method for method in ("base", "full_reset", "fire") if method in order]
    others = [method for method in order if method not in references]
    drawn = {m: called[m] for m in order if m in references or m in others[: LINES - len(references)]}
    palette = style.Palette(method.partition(" (")[0] for method in order)
    narrow, height = width == "column", max(2.6, 0.15 * len(order) + 0.9)
    size, ratios = ((style.COLUMN, 2.8 + height), [2.8, height]) if narrow else ((style.PAGE, height), [1.0])
    loss = name.removeprefix(VARIANTS) in LOSSES
    text, across = f"{stream_name(name)}, {frame['seed'].nunique()} seeds", "Value, 95 % interval over seeds"
    if frame["task"].nunique() == 1:
        figure, right = plt.subplots(figsize=(size[0] if narrow else 0.6 * style.PAGE, height))
    else:
        shape = (2, 1) if narrow else (1, 2)
        figure, (left, right) = plt.subplots(*shape, figsize=size, height_ratios=ratios)
        draw_tasks(left, frame, drawn, palette, loss)
        across = "Mean over tasks, 95 % interval over seeds"
        text += f"; {'above' if narrow else 'left'}: references and the best others, band: standard error"
    means = list(found["all tasks"])
    for row, (method, estimate) in enumerate(zip(order, means, strict=True)):
        colour = palette.line(method.partition(" (")[0])["color"]
        right.plot([estimate.low, estimate.high], [row, row], color=colour, linewidth=1.2)
        right.plot(estimate.mean, row, "o", color=colour, markersize=3)
    right.set_yticks(range(len(order)), [called[method] for method in order])
    right.invert_yaxis()
    right.set_xlim(0, None if loss else 1.02)
    right.set_xlabel(across)
    figure.suptitle(textwrap.fill(text, 70 if narrow else 200), x=0.01, ha="left", fontsize=7)
    figure.tight_layout()
    return figure


def filled(page: str, tables: dict[str, str]) -> str:
    """The page with its tables replaced; what has no table stays."""
    return MARK.sub(lambda found: found[1] + tables.get(found[2], found[3]) + found[4], page)


if __name__ == "__main__":
    sys.exit(main())
