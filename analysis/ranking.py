"""A ranking that is not search luck (docs/protocol.md, study 5): its tables and its figure."""

import pandas as pd
from matplotlib.figure import Figure

from analysis import style
from analysis.estimates import mean, paired
from analysis.result_figures import overview
from analysis.summary import by_seed, correct, methods

NAMES = style.NAMES | {"layer_norm_decay": "Layer norm, weight decay"}


def numbers(runs: pd.DataFrame, score: str) -> pd.DataFrame:
    """The runs with the columns `search`, `method` and `value`, an accuracy: 0 of a run that diverged."""
    return runs.rename(columns={"setting": "search", "row": "method", score: "value"}).fillna({"value": 0.0})


def against_fire(runs: pd.DataFrame) -> pd.DataFrame:
    """FIRE minus each other row, tested twice: over seeds, each the mean of its searches, and over searches.

    The first holds the searches fixed, the second the seeds. p values are corrected over the rows of a column.
    """
    rivals = [method for method in methods(runs) if method != "fire"]
    table: dict[str, list[object]] = {"FIRE minus": [NAMES[method] for method in rivals]}
    for unit, numbered in (("seeds", runs), ("searches", runs.assign(seed=runs["search"].factorize()[0]))):
        scores = {method: by_seed(here) for method, here in numbered.groupby("method")}
        table[f"over {unit}"] = [paired(scores["fire"], scores[method]) for method in rivals]
        correct([table[f"over {unit}"]])
    return pd.DataFrame(table)


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
