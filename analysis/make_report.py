"""Makes one self-contained HTML page of all runs: curves, tables, configurations, spectra.

    python analysis/make_report.py
    python analysis/make_report.py runs=runs/vision out=report.html

The page needs no network and no other file. Options may be written --name value or name=value.
"""

import argparse
import json
import string
import sys
from pathlib import Path
from typing import Any

if not __package__:  # run as a script: put the clone on the path, and analysis/ itself off it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np
import pandas as pd
import yaml

from analysis import formats, plotting, style, tables
from analysis.arrays import Floats
from analysis.curves import boundaries, curve
from analysis.estimates import Estimate, Paired
from analysis.options import add_sources, load_or_explain, split
from analysis.runs import BadRun, Group, LeftOut, Run, Setting, settings
from analysis.sources.folders import mapping
from analysis.sources.small import public

YamlDumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the C one is much faster
PAGE = Path(__file__).parent / "page"
POINTS = 400  # of a curve: more make a larger page and cannot be seen


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make_report.py",
        description="Makes one self-contained HTML page of all runs.",
        epilog="Options may be written --name value or name=value.",
    )
    add_sources(parser)
    parser.add_argument(
        "--out", type=Path, default=Path("figures/report.html"), help="file or folder to write to (%(default)s)"
    )
    parser.add_argument("--title", default="FIRE: results", help="heading (%(default)s)")
    parser.add_argument("--band", choices=sorted(style.BANDS), default="sem", help="band about the mean (%(default)s)")
    return parser.parse_args(split(argv))


def main(argv: list[str] | None = None) -> int:
    args = parse(sys.argv[1:] if argv is None else argv)
    found = load_or_explain("make_report", args.runs, args.include_unfinished, args.classes)
    if found is None:
        return 1
    out = args.out / "report.html" if args.out.is_dir() else args.out
    if out.suffix not in (".html", ".htm"):  # else a browser shows the source
        out = out.with_name(f"{out.name}.html")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(report_page(*found, args.title, args.band), encoding="utf-8")
    print(f"wrote {out}")
    return 0


def report_page(runs: list[Run], left_out: list[LeftOut], title: str, band: str = "sem") -> str:
    """The whole page as text."""
    palette = style.Palette(run.method for run in runs)
    found = settings(runs)
    content = {
        "summary": f"{len(runs)} runs, {len(found)} setting{'s' * (len(found) != 1)}; {len(left_out)} left out.",
        "settings": [setting_data(setting, palette, band) for setting in found],
        "runs": runs_table(runs),
        "details": [details(run) for run in runs],
        "left_out": [f"{Path(item.name).name}: {item.reason}" for item in left_out],
    }
    # "<" is escaped so that no text of a run can end the script element.
    data = json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {name: (PAGE / file).read_text() for name, file in (("css", "page.css"), ("script", "page.js"))}
    safe = title.replace("&", "&amp;").replace("<", "&lt;")
    return string.Template((PAGE / "page.html").read_text()).substitute(parts, title=safe, data=data)


def setting_data(setting: Setting, palette: style.Palette, band: str) -> dict[str, Any]:
    """What a section of the page shows."""
    runs = [run for group in setting.groups for run in group.runs]
    shown = {"Results": tables.results(setting), "Cost": tables.overhead(setting), "Boundaries": at_boundaries(setting)}
    return {
        "title": plotting.title(setting, 999),
        "xlabel": style.AXES[setting.x_unit],
        "ylabel": setting.y_label,
        "boundaries": boundaries(runs),
        "caption": plotting.caption(setting.groups, band),
        "groups": [group_data(group, setting.metric, palette, band) for group in setting.groups],
        "tables": {name: table_data(frame) for name, frame in shown.items() if len(frame)},
        "spectra": spectra(runs),
    }


def group_data(group: Group, metric: str, palette: style.Palette, band: str) -> dict[str, Any]:
    """One curve."""
    c = curve(group, metric, band, max_points=POINTS)
    look = palette.line(group.method, group.rank)
    dash = look["linestyle"]
    return {
        "label": tables.label(group),
        "n": len(group.runs),
        "colour": look["color"],
        "dash": "" if isinstance(dash, str) else " ".join(str(3 * part) for part in dash[1]),
        "phase": c.phase.astype(int).tolist(),
        **{name: plain(getattr(c, name)) for name in ("x", "mean", "low", "high")},
    }


def plain(values: Floats) -> list[float | None]:
    """Six digits, and null for what JSON has no number for."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values]


def table_data(frame: pd.DataFrame) -> dict[str, Any]:
    """A table as text with the numbers to sort by."""
    names, *texts = formats.cells(frame)
    rows = zip(texts, frame.itertuples(index=False), strict=True)
    cells = [[{"text": t, "value": sort_value(v)} for t, v in zip(text, row, strict=True)] for text, row in rows]
    return {"columns": names, "rows": cells}


def sort_value(value: object) -> float | None:
    if isinstance(value, Paired):
        value = value.difference
    if isinstance(value, Estimate):
        value = value.mean
    return float(value) if isinstance(value, int | float) and np.isfinite(value) else None


def at_boundaries(setting: Setting) -> pd.DataFrame:
    """What each method did at each boundary, mean over seeds."""
    rows = []
    for group in setting.groups:
        every = pd.concat([run.boundaries for run in group.runs], ignore_index=True)
        columns = [str(name) for name in every if str(name).startswith("boundary/")]
        if not columns or "phase" not in every:
            continue
        for _, part in every.dropna(subset=columns, how="all").groupby("phase"):
            means = {readable(name): float(part[name].mean()) for name in columns}
            rows.append({"method": tables.label(group), "phase": int(part["phase"].iloc[0]), **means})
    return pd.DataFrame(rows)


def readable(key: str) -> str:
    return key.removeprefix("boundary/").replace("_", " ").replace("dfi", "DfI").replace("sfe", "SFE")


def spectra(runs: list[Run]) -> list[dict[str, Any]]:
    """Singular values at each boundary of the first seed of each method, from `spectra.json` in the run's folder.

    The file maps phase -> matrix name -> {"before": [...], "after": [...]}, largest first.
    """
    out, seen = [], set()
    for run in runs:
        file = Path(run.source) / "spectra.json"
        if (run.method, run.variant) in seen or not file.is_file():
            continue
        try:
            content = mapping(file)
            found = [(phase, [matrix(name, both) for name, both in parts.items()]) for phase, parts in content.items()]
        except (BadRun, AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            print(f"no spectra of {run.source}: {error}")
            continue
        seen.add((run.method, run.variant))
        for phase, matrices in found:
            title = f"the start of phase {phase}, {style.name(run.method)}, seed {run.seed}"
            out.append({"title": title, "matrices": matrices})
    return out


def matrix(name: str, both: dict[str, list[float]]) -> dict[str, Any]:
    """Singular values of one matrix before and after a boundary.

    Raises:
        KeyError, TypeError, ValueError: the file holds something else.
    """
    return {"name": name, **{key: plain(np.array(both[key], dtype=np.float64)) for key in ("before", "after")}}


def runs_table(runs: list[Run]) -> dict[str, Any]:
    """Every run in one line."""
    rows = [
        {
            "": number,
            "run": run.name,
            "method": style.name(run.method),
            "setting": "-".join(part for part in (run.benchmark, run.dataset, run.model) if part),
            "seed": run.seed,
            "final": run.final(),
            "rows": len(run.history),
        }
        for number, run in enumerate(runs)
    ]
    return table_data(pd.DataFrame(rows, dtype=object))


def details(run: Run) -> str:
    """A run's configuration and environment, as YAML."""
    content = {"name": run.name, "config": public(run.config), "environment": public(run.environment)}
    return str(yaml.dump(content, Dumper=YamlDumper, sort_keys=False, allow_unicode=True))


if __name__ == "__main__":
    sys.exit(main())
