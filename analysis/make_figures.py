"""Draws figures and prints tables from whatever runs there are.

python analysis/make_figures.py
python analysis/make_figures.py --runs runs/vision --out figures --band bootstrap
"""

import argparse
import re
import sys
from pathlib import Path

if not __package__:  # run as a script: put the clone on the path, and analysis/ itself off it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from analysis import plotting, style, tables
from analysis.runs import METRICS, Setting, SourceError, settings
from analysis.sources import load


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make_figures.py", description="Draws figures and prints tables from whatever runs there are."
    )
    add = parser.add_argument
    add("--runs", "--source", nargs="+", default=["runs"], metavar="PATH", help="run folders to read (runs)")
    add("--out", type=Path, default=Path("figures"), help="folder to write to (%(default)s)")
    add("--band", choices=sorted(style.BANDS), default="sem", help="band about the mean (%(default)s)")
    add("--include-unfinished", action="store_true", help="take in runs without a DONE marker")
    add("--no-cache", action="store_true", help="parse every run again")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        runs, left_out = load(args.runs, not args.no_cache, args.include_unfinished)
    except SourceError as error:
        print(f"make_figures: {error}", file=sys.stderr)
        return 1
    for item in left_out:
        print(item)
    if not runs:
        print(f"make_figures: no usable runs in {', '.join(args.runs)}", file=sys.stderr)
        return 1
    style.use()
    palette = style.Palette(run.method for run in runs)
    for setting in settings(runs):
        figure = plotting.setting_figure(setting, palette, args.band)
        paths = plotting.save(figure, args.out / slug(setting))
        print(f"\n{plotting.title(setting)}: final {METRICS[setting.metric][0].lower()}, mean [95 % interval]")
        print(tables.as_text(tables.results(setting)))
        print("wrote " + " ".join(str(path) for path in paths))
    return 0


def slug(setting: Setting) -> str:
    """A file name for a setting."""
    return re.sub(r"[^A-Za-z0-9_.=-]+", "-", setting.name).strip("-")[:120]


if __name__ == "__main__":
    sys.exit(main())
