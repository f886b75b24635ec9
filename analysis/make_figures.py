"""Draws figures and prints tables from all runs found.

    python analysis/make_figures.py
    python analysis/make_figures.py --runs runs/vision --out figures --band bootstrap
    python analysis/make_figures.py source=wandb:entity/project paper_reference=true

Options may be written --name value or name=value.
"""

import argparse
import hashlib
import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path

if not __package__:  # run as a script: put the clone on the path, and analysis/ itself off it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from analysis import figures, formats, plotting, rl, style, tables
from analysis.options import FLAG, add_sources, load_or_explain, split
from analysis.runs import Setting, settings
from analysis.sources import small

MANY = 20  # settings; a sweep over an option has one for each of its values


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make_figures.py",
        description="Draws figures and prints tables from all runs found.",
        epilog="Options may be written --name value or name=value.",
    )
    add = parser.add_argument
    add_sources(parser)
    add("--out", type=Path, default=Path("figures"), help="folder to write to (%(default)s)")
    add("--band", choices=sorted(style.BANDS), default="sem", help="band about the mean (%(default)s)")
    add("--interval", choices=("t", "bootstrap"), default="t", help="of means in tables (%(default)s)")
    add("--test", choices=("t", "wilcoxon"), default="t", help="paired test, Holm-corrected (%(default)s)")
    add("--width", choices=("column", "page"), help="of a two-column paper (default: chosen by content)")
    add("--paper-reference", **FLAG, help="mark the values read off the paper's figures")
    add("--only", metavar="PATTERN", help=f"draw the settings whose names match; needed above {MANY} settings")
    add("--export", type=Path, metavar="NAME.csv", help="also write the runs as small results")
    return parser.parse_args(split(argv))


def main(argv: list[str] | None = None) -> int:
    args = parse(sys.argv[1:] if argv is None else argv)
    loaded = load_or_explain("make_figures", args.runs, args.include_unfinished, args.classes)
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
    found = settings(runs)
    for setting in drawn(found, args.only):
        figure = plotting.setting_figure(setting, palette, args.band, args.width)
        paths = plotting.save(figure, args.out / slug(setting))
        paths += print_tables(setting, args)
        report(paths)
    for grid in [figures.with_others(grid, found) for grid in figures.GRIDS]:
        if figures.has_data(grid, found):
            width = args.width or "page"
            figure = figures.grid_figure(grid, found, palette, args.band, width, args.paper_reference)
            report(plotting.save(figure, args.out / grid.name))
    report(overall_tables(found, args.out / "tables"))
    if args.export:
        report(small.write(runs, args.export))
    return 0


def drawn(found: list[Setting], only: str | None) -> list[Setting]:
    """The settings that have a figure of their own: all, or those that are named; none if there are too many."""
    named = [setting for setting in found if fnmatchcase(setting.name, only or "*")]
    if only is not None and not named:
        print(f"--only {only}: no setting has such a name; there are {', '.join(s.name for s in found[:5])}, ...")
    if only is None and len(found) > MANY:
        print(f"{len(found)} settings are too many to draw; name some, as with --only '*{found[0].name}*'. There are:")
        print("\n".join(f"  {setting.name}" for setting in found[:MANY]) + "\n  ...")
        return []
    return named


def print_tables(setting: Setting, args: argparse.Namespace) -> list[Path]:
    """Prints the short form of a setting's table and writes the long one and the overheads."""
    frame = tables.results(setting, args.test, args.interval)
    print(f"\n{plotting.title(setting, 999)}: {setting.y_label.lower()}, mean [95 % interval]")
    print(formats.as_text(frame.drop(columns=[c for c in ("best", "vs FIRE") if c in frame])))
    folder = args.out / "tables"
    paths = formats.write(frame, folder / slug(setting))
    return paths + formats.write(tables.overhead(setting), folder / f"{slug(setting)}-overhead")


def overall_tables(found: list[Setting], folder: Path) -> list[Path]:
    """Writes the tables over several settings: ranks by domain, convergence, and RL aggregates."""
    frames = {"convergence": tables.convergence(found)}
    for domain in sorted({setting.domain for setting in found}):
        alike = [setting for setting in found if setting.domain == domain]
        if len(alike) > 1:
            frames[f"ranks-{domain}"] = tables.ranks(alike)
        if domain == "rl":
            frames["rl"] = rl.table(alike)
    return [path for name, frame in frames.items() if len(frame) for path in formats.write(frame, folder / name)]


def report(paths: list[Path]) -> None:
    """Prints what was written, as `figures/name.{png,pdf,svg}`."""
    suffixes: dict[Path, list[str]] = {}
    for path in paths:
        suffixes.setdefault(path.with_name(path.name[: -len(path.suffix)]), []).append(path.suffix[1:])
    for stem, kinds in suffixes.items():
        print(f"wrote {stem}.{{{','.join(kinds)}}}")


def slug(setting: Setting) -> str:
    """A file name for a setting."""
    text = re.sub(r"[^A-Za-z0-9_.=-]+", "-", setting.name).strip("-")
    if len(text) > 100:  # cut, it might equal another setting's name
        text = f"{text[:90]}-{hashlib.sha256(setting.name.encode()).hexdigest()[:8]}"
    return text


if __name__ == "__main__":
    sys.exit(main())
