"""Tables of results as data frames; `analysis.formats` writes them down."""

import numpy as np
import pandas as pd

from analysis import style
from analysis.estimates import Estimate, Paired, paired
from analysis.estimates import mean as estimate
from analysis.runs import Group, Setting


def results(setting: Setting) -> pd.DataFrame:
    """One row a method: final value and paired difference to base, as `Estimate` and `Paired`."""
    base = setting.group("base")
    rows = []
    for group in setting.groups:
        other = base if base is not None and group is not base else None
        rows.append(
            {
                "method": label(group),
                "n": len(group.runs),
                "final": estimate(list(finals(group).values())),
                "difference to base": paired(finals(group), finals(other)) if other else None,
            }
        )
    return pd.DataFrame(rows)


def finals(group: Group) -> dict[int, float]:
    return {run.seed: run.final() for run in group.runs}


def label(group: Group) -> str:
    return style.name(group.method) + (f" ({group.detail})" if group.detail else "")


def number(value: float) -> str:
    """Digits that suit the size: accuracies .8234, losses 3.021, returns 712."""
    if not np.isfinite(value):
        return "–"
    return f"{value:.4f}" if abs(value) < 2 else f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"


def show(value: object) -> str:
    """An entry of a table as text."""
    if isinstance(value, Estimate):
        text = number(value.mean)
        return f"{text} [{number(value.low)}, {number(value.high)}]" if np.isfinite(value.low) else text
    if isinstance(value, Paired):
        d = value.difference
        sign = "+" if d.mean >= 0 else ""
        interval = f" [{number(d.low)}, {number(d.high)}]" if np.isfinite(d.low) else ""
        return f"{sign}{number(d.mean)}{interval} (n={d.n})"
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "–"
    return number(value) if isinstance(value, float) else str(value)


def as_text(frame: pd.DataFrame) -> str:
    """Aligned columns for a terminal."""
    cells = [
        [str(c) for c in frame.columns],
        *([show(v) for v in row] for row in frame.itertuples(index=False)),
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)
