"""Make one self-contained HTML page of all runs: curves, results, boundaries.

    python analysis/make_report.py
    python analysis/make_report.py --runs runs/vision --out report.html

The page needs no network and no other file.
"""

import argparse
import html
import json
import string
import sys
from pathlib import Path
from typing import Any

if not __package__:  # run as a script: put the clone on the path, and analysis/ itself off it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from analysis import formats, plotting, style, tables
from analysis.arrays import Floats
from analysis.curves import Curve, boundaries, mean_curve
from analysis.options import a_path, add_sources, load_or_explain
from analysis.runs import Group, LeftOut, Run, Setting, settings
from fire_core.tools.output import keep_output, system_errors_explained

PAGE = Path(__file__).parent / "page"
POINTS = 400  # of a curve; more would make the page larger and could not be seen


def main(argv: list[str] | None = None) -> int:
    """Write the page, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="make_report.py",
        description="Make one self-contained HTML page of all runs.",
    )
    add_sources(parser)
    parser.add_argument(
        "--out", type=a_path, default=Path("figures/report.html"), help="file or folder to write to (%(default)s)"
    )
    parser.add_argument("--back", default="", metavar="PAGE", help="a page that the report links back to")
    args = parser.parse_args(argv)
    loaded = load_or_explain("make_report", args.runs, args.include_unfinished)
    if loaded is None:
        return 1
    runs, left_out = loaded
    out = args.out / "report.html" if args.out.is_dir() else args.out
    if out.suffix not in (".html", ".htm"):  # a browser would show the source of a file of another name
        out = out.with_name(f"{out.name}.html")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(report_page(runs, left_out, back=args.back), encoding="utf-8")
    print(f"wrote {out}")
    return 0


def report_page(runs: list[Run], left_out: list[LeftOut], back: str = "") -> str:
    """Return the HTML of the complete page; it links to the page `back` unless that is empty."""
    palette = style.Palette(run.method for run in runs)
    all_settings = settings(runs)
    plural = "" if len(all_settings) == 1 else "s"
    content = {
        "summary": f"{len(runs)} runs, {len(all_settings)} setting{plural}; {len(left_out)} left out.",
        "settings": [setting_data(setting, palette) for setting in all_settings],
        "left_out": [f"{Path(item.name).name}: {item.reason}" for item in left_out],
    }
    # "<" is escaped so that no text of a run can end the script element.
    data = json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {name: (PAGE / file).read_text() for name, file in (("css", "page.css"), ("script", "page.js"))}
    link = f'<a href="{html.escape(back)}">Back to the documentation</a>' if back else ""
    return string.Template((PAGE / "page.html").read_text()).substitute(parts, data=data, back=link)


def setting_data(setting: Setting, palette: style.Palette) -> dict[str, Any]:
    """Return what the page's script needs for a setting's section."""
    drawn = [(group, mean_curve(group, setting.metric, max_points=POINTS)) for group in setting.groups]
    shown = {"Results": tables.results(setting), "Boundaries": tables.at_boundaries(setting)}
    return {
        "title": plotting.title(setting, 999),
        "xlabel": style.AXES[setting.x],
        "ylabel": setting.y_label,
        "boundaries": boundaries(setting.runs),
        "first": int(setting.runs[0].is_stream),  # the axis of tasks begins with 1
        "caption": plotting.caption(drawn, tables.without_differences(setting)),
        "groups": [group_data(group, c, palette) for group, c in drawn],
        "tables": {name: formats.cells(frame) for name, frame in shown.items() if len(frame)},
    }


def group_data(group: Group, c: Curve, palette: style.Palette) -> dict[str, Any]:
    """Return what the page's script needs for a method's curve."""
    look = palette.line(group.method, group.place)
    dash = look["linestyle"]
    return {
        "label": group.label,
        "n": len(group.runs),
        "colour": look["color"],
        "dash": "" if isinstance(dash, str) else " ".join(str(3 * part) for part in dash[1]),
        **{name: plain(getattr(c, name)) for name in ("x", "mean", "low", "high")},
    }


def plain(values: Floats) -> list[float | None]:
    """Return numbers with six digits for JSON, and null for NaN and inf."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values]


if __name__ == "__main__":
    keep_output()
    with system_errors_explained():
        sys.exit(main())
