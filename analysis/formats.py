"""Tables for a terminal and as Markdown."""

from pathlib import Path

import numpy as np
import pandas as pd

from analysis.estimates import Estimate, Paired


def number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if np.isfinite(value) else "–"


def digits_for(value: float) -> int:
    """A number with decimals that fit its size: 0.8234 (accuracy), 3.021 (loss), 712 (return)."""
    if not np.isfinite(value) or value == 0:
        return 0
    size = abs(value)
    return 4 if size < 2 else 3 if size < 10 else 2 if size < 100 else 0


def show(value: object) -> str:
    """An entry of a table as text: `mean [low, high]`, and for a difference its effect size and corrected p."""
    if isinstance(value, Paired):
        sign = "+" if value.difference.mean > 0 else ""
        test = f", d={value.effect:.1f}, p={p_value(value.p_holm)}" if np.isfinite(value.p_holm) else ""
        return f"{sign}{show(value.difference)} (n={value.difference.n}{test})"
    if isinstance(value, Estimate):
        digits = digits_for(value.mean)
        interval = f" [{number(value.low, digits)}, {number(value.high, digits)}]" if np.isfinite(value.low) else ""
        return number(value.mean, digits) + interval
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def p_value(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def cells(frame: pd.DataFrame) -> list[list[str]]:
    """The header and the rows as text."""
    return [list(frame.columns), *([show(value) for value in row] for row in frame.itertuples(index=False))]


def as_text(frame: pd.DataFrame) -> str:
    """Aligned columns for a terminal."""
    return "\n".join(line.rstrip() for line in aligned(cells(frame), "  "))


def aligned(rows: list[list[str]], gap: str) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [gap.join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]


def as_markdown(frame: pd.DataFrame) -> str:
    rows = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in cells(frame)]
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {line} |" for line in aligned(rows, " | ")) + "\n"


def write(frame: pd.DataFrame, path: Path) -> Path:
    """Writes a table as Markdown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_markdown(frame), encoding="utf-8")
    return path
