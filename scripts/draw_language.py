"""Figure 3's form for the offline pair: phase 1 from the best checkpoint and from the over-trained end of phase 0.

python scripts/draw_language.py --runs runs --out docs/results/language.png
"""

import argparse
import sys
from pathlib import Path

from analysis import figures, style
from analysis.options import add_sources, load_or_explain
from analysis.runs import settings

PANELS = (
    figures.Panel("From best checkpoint", "language", "best"),
    figures.Panel("From the over-trained end", "language", "end"),
)


def main() -> int:
    """Draw what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_sources(parser)
    parser.add_argument("--out", type=Path, default=Path("figures/language.png"))
    args = parser.parse_args()
    loaded = load_or_explain("draw_language", args)
    if loaded is None:
        return 1
    runs, _ = loaded
    style.use()
    palette = style.Palette(run.method for run in runs)
    grid = figures.Grid("figure3", "Continual pre-training", (PANELS,), last_phase=True)
    figures.grid_figure(grid, settings(runs), palette).savefig(args.out, dpi=150)
    return 0


if __name__ == "__main__":
    sys.exit(main())
