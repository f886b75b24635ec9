"""Makes the tables of the result pages from committed csv files, and their figures.

    python analysis/make_tables.py                               all pages
    python analysis/make_tables.py --check                       names what is stale, and exits with 1 if anything is
    python analysis/make_tables.py agents                        one page
    python analysis/make_tables.py plasticity --runs FOLDER ...  from runs; writes the csv files first, then figures too
    python analysis/make_tables.py --figures                     figures too, of pages as PNG beside the csv files
    python analysis/make_tables.py --figures paper --width column   figures for a paper, as PNG and PDF

Text between `<!-- table: NAME -->` and `<!-- end -->` of docs/results/PAGE.md and PAGE/tables.md is replaced;
`analysis/pages.py` has what a page shows.
"""

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

if not __package__:  # run as a script: put the clone on the path, and analysis/ itself off it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import pandas as pd

from analysis import plotting, stream_rows, style
from analysis.formats import as_markdown
from analysis.options import load_or_explain
from analysis.pages import PAGES, VARIANTS, Page
from analysis.provenance import entry_of
from analysis.runs import BadRun, Run
from fire_core.tools.output import keep_output
from harness.run import provenance

DOCS = Path(__file__).resolve().parent.parent / "docs" / "results"
MARK = re.compile(r"(<!-- table: (.+?) -->\n)(.*?)(<!-- end -->)", re.S)


def filled(text: str, tables: Mapping[str, str]) -> str:
    """A page's text with its tables replaced; what has no table stays."""
    return MARK.sub(lambda found: found[1] + tables.get(found[2], found[3]) + found[4], text)


def collect(page: str, folders: list[str], results: Path, variants: bool) -> None:
    """Write the csv files of a page from runs.

    Raises:
        BadRun: the runs make no table, or there are none.
    """
    tables: dict[str, tuple[pd.DataFrame, list[Run]]] = {}
    if page == "language_streams":  # each folder below is a table
        below = sorted(folder for root in folders for folder in Path(root).glob("[a-z]*"))
        for folder in below:
            if found := load_or_explain("make_tables", [str(folder)]):
                tables[folder.name] = stream_rows.of_texts(found[0]), found[0]
    else:
        runs, _ = load_or_explain("make_tables", folders) or ([], [])
        for name, frame in stream_rows.of_streams(runs).items():
            members = [run for run in runs if stream_rows.name_of(run) == name]
            tables[f"{VARIANTS * variants}{name}"] = frame, members
    if not tables:
        raise BadRun("no runs to make tables of")
    results.mkdir(parents=True, exist_ok=True)
    for name, (frame, members) in tables.items():
        path = results / f"{name}.csv"
        frame.to_csv(path, index=False, float_format="%.5g", lineterminator="\n")
        provenance.write(path, entry_of(members))


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make_tables.py", description="Makes the tables of the result pages.")
    add = parser.add_argument
    add("page", nargs="?", choices=list(PAGES), help="one page alone (default: all)")
    add("--check", action="store_true", help="write nothing, name what is stale")
    add(
        "--runs", nargs="+", help="folders of runs, from which the csv files of plasticity or language_streams are made"
    )
    add("--variants", action="store_true", help="the runs are variants of FIRE, a table of their own")
    add("--results", type=Path, help="folder of the page's csv files (default: docs/results/PAGE)")
    add("--page", type=Path, dest="text", help="file to fill in (default: FOLDER.md beside that folder)")
    add("--figures", type=Path, nargs="?", const="", help="folder for figures (PNG beside the csv files without one)")
    add("--width", choices=("column", "page"), default="page", help="of a two-column paper (%(default)s)")
    args = parser.parse_args(argv)
    if not args.page and (args.runs or args.results or args.text):
        parser.error("--runs, --results and --page are of one page: name it")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    stale = 0
    try:
        for name in [args.page] if args.page else PAGES:
            results = args.results or DOCS / name
            text = args.text or results.with_suffix(".md")
            if args.runs:
                collect(name, args.runs, results, args.variants)
            page = Page(results, args.width)
            PAGES[name](page)
            stale += write(page, text, args.check) + write(page, results / "tables.md", args.check)
            if (args.figures is not None or args.runs) and not args.check:
                draw(page, args.figures, shown_alone=not args.runs)
    except BadRun as error:
        print(f"make_tables: {error}", file=sys.stderr)
        return 1
    return int(args.check and stale > 0)


def write(page: Page, file: Path, check: bool) -> int:
    """Fill in a page's file; the number of its tables that were stale."""
    if not file.exists():
        return 0
    tables = {name: as_markdown(frame) for name, frame in page.tables.items()}
    before = file.read_text(encoding="utf-8")
    changed = [found[2] for found in MARK.finditer(before) if tables.get(found[2], found[3]) != found[3]]
    for name in changed:
        print(f"{file.name}: the table {name} {'is stale' if check else 'was made anew'}")
    if changed and not check:
        file.write_text(filled(before, tables), encoding="utf-8")
    return len(changed)


def draw(page: Page, folder: Path | None, shown_alone: bool) -> None:
    """Draw a page's figures; without a folder perhaps only those that lie there, which are what the page shows."""
    style.use()
    for name, figure in page.figures.items():
        is_given = folder is not None and folder != Path("")
        target = (folder if is_given else page.folder) / name  # type: ignore[operator]
        if shown_alone and not is_given and not target.with_name(f"{name}.png").exists():
            continue
        plotting.save(figure(), target, plotting.FORMATS if is_given else ["png"])
        print(f"drew {name}")


if __name__ == "__main__":
    keep_output()
    sys.exit(main())
