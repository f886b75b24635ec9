"""Draw figures and print tables of all runs in the given sources.

python analysis/make_figures.py
python analysis/make_figures.py --runs runs/vision --out figures --width column
python analysis/make_figures.py --runs wandb:entity/project
"""

import argparse
import hashlib
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # run as a script: put the clone on the path, and analysis/ itself off it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from analysis import figures, formats, plotting, rl, style, tables
from analysis.options import a_path, a_table, add_sources, load_or_explain
from analysis.runs import Setting, settings
from analysis.sources import small
from fire_core.tools.output import keep_output, system_errors_explained

LONGEST = 100  # bytes of a file's name without its extension
OTHER_FILES = (
    *(grid.name for grid in figures.GRIDS),
    "convergence",
    "rl",
)  # names of figures and tables beside settings'


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="make_figures.py",
        description="Draw figures and print tables of all runs in the given sources.",
    )
    add = parser.add_argument
    add_sources(parser)
    add("--out", type=a_path, default=Path("figures"), help="folder to write to (%(default)s)")
    add("--width", choices=("column", "page"), help="of a two-column paper (default: chosen by content)")
    add("--export", type=a_table, metavar="NAME.csv", help="also write the runs as small results")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Write all figures and tables, and return the exit code."""
    keep_output()
    args = parse(argv)
    loaded = load_or_explain("make_figures", args.runs, args.include_unfinished)
    if loaded is None:
        return 1
    runs, _ = loaded
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"make_figures: cannot write to --out {args.out}: {error.strerror}", file=sys.stderr)
        return 1
    style.use()
    palette = style.Palette(run.method for run in runs)
    all_settings = settings(runs)
    folder = args.out / "tables"
    for setting, name in zip(all_settings, file_names(all_settings), strict=True):
        table = tables.results(setting)
        what = f"{setting.y_label.lower()}, {plotting.numbers_are(setting.groups)}"
        print(f"\n{plotting.title(setting, 999)}: {what}")
        if note := tables.without_differences(setting):
            print(note)
        # A terminal has room for the differences to one method; the file has them all.
        too_wide = [column for column in table if str(column).startswith(tables.VERSUS)][1:]
        print(formats.as_text(table.drop(columns=[*too_wide, *(["best"] if "best" in table else [])])))
        report(plotting.save(plotting.setting_figure(setting, palette, args.width), args.out / name))
        report([formats.write(table, folder / f"{name}.md", note)])
    for grid in [figures.with_others(grid, all_settings) for grid in figures.GRIDS]:
        if figures.has_data(grid, all_settings):
            figure = figures.grid_figure(grid, all_settings, palette, args.width or "page")
            report(plotting.save(figure, args.out / grid.name))
    agents = rl.table([setting for setting in all_settings if setting.domain == "rl"])
    for name, table in (("convergence", tables.convergence(all_settings)), ("rl", agents)):
        if len(table):
            report([formats.write(table, folder / f"{name}.md")])
    if args.export:
        report(small.write(runs, args.export))
    return 0


def report(paths: list[Path]) -> None:
    """Print the names of written files."""
    for path in paths:
        print(f"wrote {path}")


def file_names(all_settings: Sequence[Setting]) -> list[str]:
    """Return a file name for each setting, without an extension.

    Names of environments and folders of images may be in any script. A name that is too long, that is alike another one
    (or a figure of the paper), or that has no letter a file name can have, ends in a digest of the setting.
    """
    names = [re.sub(r"[^\w.=-]+", "-", setting.name).strip("-.") for setting in all_settings]
    alike = Counter(name.casefold() for name in (*names, *OTHER_FILES))
    result = []
    for setting, name in zip(all_settings, names, strict=True):
        if not name or len(name.encode()) > LONGEST or alike[name.casefold()] > 1:
            cut = name.encode()[: LONGEST - 10].decode(errors="ignore")
            name = f"{cut}-{hashlib.sha256(setting.runs[0].setting.encode()).hexdigest()[:8]}".strip("-")
        result.append(name)
    return result


if __name__ == "__main__":
    keep_output()
    with system_errors_explained():
        sys.exit(main())
