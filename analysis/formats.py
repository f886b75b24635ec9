"""Tables for a terminal and as Markdown, LaTeX and CSV."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.estimates import Estimate, Paired

SUFFIXES = ("md", "csv", "tex")


def number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if np.isfinite(value) else "–"


def digits_for(value: float, short: bool = False) -> int:
    """A number with decimals that fit its size: 0.8234 (accuracy), 3.021 (loss), 712 (return); 3 digits if short."""
    if not np.isfinite(value) or value == 0:
        return 0
    size = abs(value)
    if short:
        return int(np.clip(2 - np.floor(np.log10(size)), 0, 5))
    return 4 if size < 2 else 3 if size < 10 else 2 if size < 100 else 0


def show(value: object, short: bool = False) -> str:
    """An entry of a table as text: `mean [low, high]`, and for a difference its effect size and corrected p.

    Args:
        value: a number, an estimate, a comparison, or None.
        short: three digits, for seconds and per cent.
    """
    if isinstance(value, Paired):
        sign = "+" if value.difference.mean > 0 else ""
        test = f", d={value.effect:.1f}, p={p_value(value.p_holm)}" if np.isfinite(value.p_holm) else ""
        return f"{sign}{show(value.difference)} (n={value.difference.n}{test})"
    if isinstance(value, Estimate):
        digits = digits_for(value.mean, short)
        interval = f" [{number(value.low, digits)}, {number(value.high, digits)}]" if np.isfinite(value.low) else ""
        return number(value.mean, digits) + interval
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def p_value(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def cells(frame: pd.DataFrame) -> list[list[str]]:
    """The header and the rows as text."""
    names = list(frame.columns)
    short = [name.endswith(("(s)", "(%)")) for name in names]
    rows = frame.itertuples(index=False)
    return [names, *([show(v, s) for v, s in zip(row, short, strict=True)] for row in rows)]


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


def as_latex(frame: pd.DataFrame) -> str:
    """A booktabs table."""
    head, *rows = [[escape(cell) for cell in row] for row in cells(frame)]
    body = "\n".join(" & ".join(row) + r" \\" for row in rows)
    align = "l" * len(head)
    top = f"\\begin{{tabular}}{{{align}}}\n\\toprule\n{' & '.join(head)} \\\\\n\\midrule\n"
    return f"{top}{body}\n\\bottomrule\n\\end{{tabular}}\n"


def escape(text: str) -> str:
    special = {char: "\\" + char for char in "&%#_${}"} | {"\\": r"\textbackslash{}", "\n": " ", "–": "--", "<": "$<$"}
    special |= {"^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    return "".join(special.get(char, char) for char in text)


def as_csv(frame: pd.DataFrame) -> str:
    """Numbers in separate columns: `final`, `final low`, `final high`, ..."""
    rows = [dict(spread({str(name): value for name, value in row.items()})) for row in frame.to_dict("records")]
    names: list[str] = []  # from the first full cell of each column: a method is not compared with itself
    for column in frame:
        full = (value for value in frame[column] if value is not None)
        names += [name for name, _ in spread({str(column): next(full, np.nan)})]
    return pd.DataFrame(rows, columns=names).to_csv(index=False, float_format="%.10g")


def spread(row: dict[str, object]) -> list[tuple[str, object]]:
    """A row with each estimate split into its numbers."""
    out: list[tuple[str, object]] = []
    for name, value in row.items():
        if isinstance(value, Estimate):
            out += [(name, value.mean), (f"{name} low", value.low), (f"{name} high", value.high)]
        elif isinstance(value, Paired):
            out += spread({name: value.difference})
            out += [(f"{name} n", value.difference.n), (f"{name} effect", value.effect)]
            out += [(f"{name} p", value.p), (f"{name} p holm", value.p_holm)]
        elif value is not None:
            out.append((name, value))
    return out


WRITERS: dict[str, Callable[[pd.DataFrame], str]] = {"md": as_markdown, "csv": as_csv, "tex": as_latex}


def write(frame: pd.DataFrame, path: Path) -> list[Path]:
    """Writes a table as Markdown, CSV and LaTeX to path.md, path.csv, path.tex."""
    path.parent.mkdir(parents=True, exist_ok=True)
    paths = [path.with_name(f"{path.name}.{suffix}") for suffix in SUFFIXES]
    for target in paths:
        target.write_text(WRITERS[target.suffix[1:]](frame), encoding="utf-8")
    return paths
