"""A ranking that is not search luck (docs/protocol.md, study 5): its tables and its figure."""

import math

import pandas as pd
from matplotlib.figure import Figure
from scipy import special

from analysis import style
from analysis.arrays import Floats
from analysis.estimates import CONFIDENCE, Estimate, Paired, mean
from analysis.result_figures import overview
from analysis.summary import correct, methods

NAMES = style.NAMES | {"layer_norm_decay": "Layer norm, weight decay"}


def numbers(runs: pd.DataFrame, score: str) -> pd.DataFrame:
    """The runs with the columns `search`, `method` and `value`, an accuracy: 0 of a run that diverged."""
    return runs.rename(columns={"setting": "search", "row": "method", score: "value"}).fillna({"value": 0.0})


def against_fire(runs: pd.DataFrame) -> pd.DataFrame:
    """FIRE minus each other row, tested against new seeds and new searches at once; p corrected over the rows."""
    scores = runs.pivot(index="seed", columns=["method", "search"], values="value")
    rivals = [method for method in methods(runs) if method != "fire"]
    table: dict[str, list[object]] = {
        "FIRE minus": [NAMES[method] for method in rivals],
        "difference": [crossed((scores["fire"] - scores[method]).to_numpy()) for method in rivals],
    }
    correct([table["difference"]])
    return pd.DataFrame(table)


def crossed(differences: Floats) -> Paired:
    """Their mean, of which both rows and columns are a sample: min F' of Clark (1973, J. Verbal Learning 12, 335).
    Its t has the squared standard errors over rows and over columns added up, so it is a little strict.

    Args:
        differences: (seeds, searches).
    """
    means = [differences.mean(axis) for axis in (1, 0)]
    squares = [float(values.var(ddof=1)) / len(values) for values in means]
    error = math.sqrt(sum(squares))
    freedom = error**4 / sum(square**2 / (len(values) - 1) for square, values in zip(squares, means, strict=True))
    middle, half = float(differences.mean()), float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    estimate = Estimate(middle, middle - half, middle + half, min(differences.shape))
    return Paired(estimate, float(2 * special.stdtr(freedom, -abs(middle) / error)))


def figure(runs: pd.DataFrame, order: list[str], metric: str, width: str) -> Figure:
    """The means of each row, a panel for each search; `metric`: what the values are."""
    panels = {
        str(search).capitalize(): [mean(here[here["method"] == method]["value"].to_numpy(float)) for method in order]
        for search, here in runs.groupby("search")
    }
    words = f"{metric}; means with 95 % intervals over seeds"
    drawn = overview(panels, {method: NAMES[method] for method in order}, words, width)
    ends = [panel.get_xlim() for panel in drawn.axes]
    for panel in drawn.axes:
        panel.set_xlim(min(low for low, _ in ends), max(high for _, high in ends))
    return drawn
