"""What each result page shows: its tables and figures, from committed csv files.

What a table shows stands in `STREAM`, `TEXTS`, `AGENTS` and `TRIGGERS`, or beside its study in a file of this folder;
which tables a page has, in the function that `PAGES` names.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis import accumulation, dial, ranking, resets, restarts, result_figures, small_figure2, style
from analysis.estimates import mean
from analysis.forms import names, winners
from analysis.runs import BadRun
from analysis.summary import (
    Column,
    Table,
    by_seed,
    chosen,
    correlations,
    differences,
    grid,
    methods,
    ranks,
    read,
    summarise,
)

SEARCH = "search_"  # begins the names of tables of searches
VARIANTS = "fire_"  # and of tables of FIRE's variants
LOSSES = ("slowly_changing_regression_bits",)  # streams of which less is better

STREAM = Table(
    (
        Column("all tasks", "value"),
        Column("last {few}", "value", "last tenth"),
        *differences("value", "base", "fire"),
    ),
    order="all tasks",
)
TEXTS = Table(
    (
        Column("last quarter", "last"),
        Column("last 3", "last", "last 3"),
        Column("lost", "lost"),
        Column("earlier at the end", "earlier", "last"),
        *differences("last", "base"),
    ),
    order="last quarter",
)
LOSSES_OF_TEXTS = {
    "New tasks, last quarter": "last quarter",
    "Added to earlier tasks\nat a boundary": "lost",
    "Earlier tasks, at the end": "earlier at the end",
}
AGENTS = Table(
    (
        Column("first task", "return", "first"),
        Column("last third", "return", "last third"),
        Column("P(better than base)", "return", "last third", "better", "base"),
        Column("P(better than full_reset)", "return", "last third", "better", "full_reset"),
        Column("evaluation, last third", "evaluation", "last third"),
    ),
    order="last third",
)
STATE = {
    "dormant_ratio": "dormant units",
    "effective_rank": "effective rank",
    "dfi": "DfI",
    "gradient_norm": "gradient norm",
    "td_fresh": "TD error, fresh",
    "td_old": "TD error, old",
}
TUNING = "tuning"  # the arm of the runs on which the settings of triggers were chosen
TRIGGERS = {  # stream: its score
    "random_labels": "average online accuracy",
    "permuted": "average online accuracy",
    "permuted_text": "average online loss",
}
SIGNALS = {
    "dormancy": "dormant units",
    "effective_rank": "effective rank",
    "deviation": "DfI",
    "gradient_norm": "gradient norm",
    "loss": "loss of the task that ends",
    "readiness": "optimization readiness",
    "step": "steps so far",
}


MOMENTS = {  # at which FIRE may act; the periods are those of each stream
    "boundary": "at the known boundary",
    "plateau": "by a plateau of the loss",
    "dormancy": "by dormant units",
    "rank": "by effective rank",
    "drift": "by drift of the weights",
    "readiness": "by optimization readiness",
    "short": "every 150, 75, 37 steps",
    "middle": "every 350, 175, 87 steps",
    "long": "every 900, 450, 225 steps",
    "never": "never",
}
CONVERGENCE = {  # weights in the csv files: what the page calls them
    "square 256x256": "Gaussian 256 x 256",
    "ill-conditioned 64x64": "condition 1e4, 64 x 64",
    "resnet18-trained": "ResNet-18, trained",
    "gpt_tiny": "GPT tiny, over-trained",
    "dqn_breakout": "DQN, 80,000 steps of Breakout",
    "sac_humanoid": "SAC, half of a small run",
}


def outcome_of_triggers(score: str) -> Table:
    """A row for each moment at which FIRE may act."""
    return Table(
        (
            Column(score, "online"),
            Column("vs known boundary", "online", "all", "difference", "boundary"),
            Column("vs never", "online", "all", "difference", "never"),
            Column("firings", "firings", statistic="count"),
            Column("false alarms", "false", statistic="count"),
        ),
        rows="arm",
        family="column",
    )


class Page:
    """The tables and figures of a page.

    Args:
        folder: of its csv files.
        width: of its figures, "page" or "column" of a paper.
    """

    def __init__(self, folder: Path, width: str = "page") -> None:
        self.folder, self.width = folder, width
        self.tables: dict[str, pd.DataFrame] = {}
        self.figures: dict[str, Callable[[], Figure]] = {}

    def study(self, name: str) -> pd.DataFrame:
        """A table of docs/results/studies, by its name without ending."""
        return read(self.folder.parent / "studies" / f"{name}.csv")

    def files(self) -> dict[str, pd.DataFrame]:
        """The csv files but those of searches, whose tables are made here."""
        found = {path.stem: read(path) for path in sorted(self.folder.glob("*.csv"))}
        for name in [name for name in found if name.startswith(SEARCH)]:
            stream = name.removeprefix(SEARCH)
            self.tables[f"chosen {stream}"] = chosen(found.pop(name), stream not in LOSSES)
        return found


def plasticity(page: Page) -> None:
    """Every method on streams of tasks, what a search chose, ranks over streams, and FIRE's variants.

    Raises:
        BadRun: a seed that a search has used is reported.
    """
    streams = {name: frame for name, frame in page.files().items() if "task" in frame}
    options: dict[str, dict[str, str]] = {}
    for name, frame in streams.items():
        stream = name.removeprefix(VARIANTS)
        search = page.folder / f"{SEARCH}{stream}.csv"
        searched = read(search) if search.exists() else None
        check_seeds(name, frame, searched)
        more = stream not in LOSSES
        # FIRE's variants run at its defaults; of a stream every method has what the stream's search chose.
        options[name] = {} if searched is None or stream != name else winners(searched, more)
        called = names(methods(frame), options[name])
        compared = summarise(frame, STREAM, more)
        last = [column for column in map(str, compared) if column.startswith("last ")]
        page.tables[name] = named(compared.drop(columns=last if stream == name else "vs base", errors="ignore"), called)
        title = result_figures.stream_name(stream)
        page.figures[name] = partial(result_figures.stream, title, frame, compared, called, not more, page.width)
    whole = {name: frame for name, frame in streams.items() if not name.startswith(VARIANTS)}
    most = max((len(methods(frame)) for frame in whole.values()), default=0)
    whole = {name: frame for name, frame in whole.items() if len(methods(frame)) == most}  # fewer would leave some out
    if len(whole) > 1:
        ranked = ranks(whole, LOSSES)
        called = names(ranked["method"], *(options[name] for name in whole))
        titles = {name: result_figures.stream_name(name) for name in whole}
        page.tables["ranks"] = named(ranked.rename(columns=titles), called)
        panels = {
            titles[name]: [mean([*by_seed(frame[frame["method"] == method]).values()]) for method in called]
            for name, frame in whole.items()
        }
        words = "Mean over tasks, 95 % interval over seeds; methods in the order of their mean rank"
        page.figures["overview"] = partial(result_figures.overview, panels, called, words, page.width, 1.02)


def check_seeds(name: str, frame: pd.DataFrame, searched: pd.DataFrame | None) -> None:
    """Refuse to report seeds on which options were chosen.

    Raises:
        BadRun: there is one.
    """
    if searched is not None:
        used = {int(column.removeprefix("seed ")) for column in map(str, searched) if column.startswith("seed ")}
        if both := used & set(frame["seed"]):
            raise BadRun(f"{name}: options were chosen on seed {min(both)}, which is reported")


def language_streams(page: Page) -> None:
    """Streams of texts; variants keep the names under which they ran."""
    for name, frame in page.files().items():
        compared = summarise(frame[frame["task"] > 0], TEXTS, more=False)
        called = {method: style.NAMES.get(method, method) for method in compared["method"]}
        page.tables[name] = named(compared, called)
        panels = {title: list(compared[column]) for title, column in LOSSES_OF_TEXTS.items() if column in compared}
        words = f"{name.replace('_', ' ').capitalize()}: losses, less is better; means with 95 % intervals over seeds"
        page.figures[name] = partial(result_figures.overview, panels, called, words, page.width)


def agents(page: Page) -> None:
    """Agents on streams of control tasks: returns, and the state of their networks."""
    for name, runs in page.files().items():
        compared = summarise(runs, AGENTS)
        order = list(compared["method"])
        search = page.folder / f"{SEARCH}{name}.csv"
        called = names(order, winners(read(search), more=True) if search.exists() else {})
        if "fire" in called:  # other treatments of the last layers take what FIRE's search chose
            called = {method: words.replace("FIRE,", f"{called['fire']},") for method, words in called.items()}
        page.tables[name] = named(compared, called)
        known = {column: words for column, words in STATE.items() if column in runs and runs[column].notna().any()}
        page.figures[name] = partial(result_figures.agents, runs, called, known, page.width)


def triggers(page: Page) -> None:
    """When FIRE acts, compared with a known boundary and never, and what the signals say."""
    files = page.files()
    runs, signals = files["runs"], files["signals"]
    means: dict[str, pd.Series] = {}
    for stream, score in TRIGGERS.items():
        rows = runs[(runs["stream"] == stream) & (runs["method"] == "fire") & (runs["arm"] != TUNING)]
        moments = dict(zip(rows["arm"], rows["when"], strict=True))
        moments |= {"boundary": "known boundary", "never": "never"}
        table = summarise(rows, outcome_of_triggers(score))
        every = sorted({arm for arm in rows["arm"] if arm.startswith("every ")}, key=lambda arm: int(arm[6:]))
        acts = rows["arm"].replace(dict(zip(every, ("short", "middle", "long"), strict=True)))
        mean_of = rows.groupby(acts)["online"].mean()
        digits = 3 if mean_of.max() < 1 else 2 if mean_of.max() < 10 else 1
        means[style.name(stream).capitalize() + " ↓" * ("loss" in score)] = mean_of.map(f"{{:.{digits}f}}".format)
        page.tables[f"{stream} fire"] = table.assign(arm=table["arm"].map(moments)).rename(columns={"arm": "when"})
        if len(checkpoints := signals[signals["stream"] == stream]):
            page.tables[f"{stream} signals"] = correlations(checkpoints, SIGNALS, "probe_accuracy")
    page.tables["means"] = pd.DataFrame(means).loc[list(MOMENTS)].rename(index=MOMENTS).reset_index(names="FIRE acts")


def convergence(page: Page) -> None:
    """How far Newton-Schulz comes: DfI, the mean over matrices, and DfI / n of the worst."""
    found = pd.concat(page.files().values())
    cells = [
        f"{mean:.3g}" + f" ({worst:.2g})" * (mean > 1e-3)
        for mean, worst in zip(found["dfi_mean"], found["dfi_per_n"], strict=True)
    ]
    found = found.assign(cell=cells)
    exact = found[found["solver"] == "exact"].set_index("weights")["cell"]
    cubic = found[(found["solver"] == "newton_schulz") & found["iterations"].isin((5, 10, 20))]
    wide = cubic.pivot(index=["weights", "norm_init"], columns="iterations", values="cell")
    wide = wide.loc[[(weights, start) for weights in CONVERGENCE for start in ("frobenius", "spectral")]]
    wide.columns = wide.columns.map(str)
    wide["exact"] = [exact[weights] for weights, _ in wide.index]
    page.tables["reached"] = wide.rename(index=CONVERGENCE).reset_index(names=["weights", "start"])


def figure2_small(page: Page) -> None:
    """Figure 2 in small, and panel a at the paper's width, from the tables of their studies."""
    starts = {"small_a": "Width 16, 5 epochs a phase", "wide": "Width 64, 20 epochs"}
    steps = {"small_b": "A tenth more of the images in each phase", "small_c": "Two classes more in each phase"}
    curves = {name: page.study(f"figure2_{name}.curves") for name in (*starts, *steps)}
    runs = {name: page.study(f"figure2_{name}") for name in starts}
    page.tables |= {name: small_figure2.ends(runs[name], curves[name]) for name in starts}
    page.tables |= {name: small_figure2.over_phases(curves[name]) for name in steps}
    page.tables["tests"] = small_figure2.against_fire(runs["small_a"])
    page.tables["order"] = small_figure2.order(runs["small_a"])
    for figure, titles in {"warm_start": starts, "phases": steps}.items():
        panels = {title: curves[name] for name, title in titles.items()}
        page.figures[figure] = partial(small_figure2.figure, panels, page.width)


def similarity_dial(page: Page) -> None:
    """When the nearest isometry is worth anything, from the tables of study 3."""
    streams = {
        stream: dial.numbers(page.study(f"dial_{stream}.curves"), score) for stream, score in dial.SCORES.items()
    }
    for stream, runs in streams.items():
        shares = {share: f"p = {share:g}" for share in sorted(runs["share"].unique())}
        page.tables[stream] = named(grid(runs, "share", shares, {"new": 3, "kept": 2}), dial.NAMES)
    page.tables["nearest"] = dial.against(streams, "fire", "random_isometry")
    page.figures["dial"] = partial(dial.figure, streams, page.width)


def resets_optimizers(page: Page) -> None:
    """Whether what a reset and an optimizer do adds up, from the tables of its studies."""
    runs, curves = (
        resets.numbers(page.study(f"resets_optimizers{part}"), page.study(f"resets_muon{part}"))
        for part in ("", ".curves")
    )
    ends = grid(runs, "optimizer", resets.OPTIMIZERS, {resets.SCORE: 3, resets.LATE: 3})
    page.tables["ends"] = named(ends, style.NAMES)
    page.tables["of fire"], page.tables["of adam"] = resets.differences(runs)
    page.figures["optimizers"] = partial(resets.figure, curves, page.width)


def sac_restarts(page: Page) -> None:
    """What SAC loses at a boundary, and what brings it back, from the table of study 2."""
    runs = restarts.numbers(page.study("sac_rows.curves"))
    compared = summarise(runs, restarts.TABLE)
    called = {method: restarts.NAMES[method] for method in compared["method"]}
    page.tables["rows"] = named(compared, called)
    shown = {method: called[method] for method in restarts.SHOWN if method in called}
    page.figures["tasks"] = partial(result_figures.agents, runs, shown, restarts.STATE, page.width)


def search_luck(page: Page) -> None:
    """Which methods lead whatever a search tried, from the table of study 5."""
    runs = ranking.numbers(page.study("ranking_online"), "online/accuracy")
    ranked = ranks({str(search): here for search, here in runs.groupby("search")}, crossed=True)
    page.tables["online"], page.tables["online tests"] = named(ranked, ranking.NAMES), ranking.against_fire(runs)
    page.figures["online"] = partial(ranking.figure, runs, [*ranked["method"]], "Online accuracy", page.width)


def fashion_labels(page: Page) -> None:
    """Random labels on larger images, from the tables of study 8."""
    curves = page.study("fashion_labels.curves").dropna(subset="train/accuracy")
    runs = curves.rename(columns={"row": "method", "train/accuracy": "value"}).assign(task=curves["phase"] + 1)
    online = page.study("fashion_labels").set_index(["row", "seed"])["online/accuracy"].rename("online")  # of a run
    runs = runs.join(online, on=["method", "seed"])
    compared = summarise(runs, replace(STREAM, columns=(*STREAM.columns, Column("online", "online"))))
    called = ranking.NAMES | {"decay": "Weight decay"}
    rates = runs.groupby("method")["searched"].first().str.removeprefix("lr=")
    compared.insert(1, "rate", compared["method"].map(rates))
    page.tables["labels"] = named(compared, called)
    title = "Random labels on Fashion-MNIST"
    page.figures["labels"] = partial(result_figures.stream, title, runs, compared, called, False, page.width)


def what_accumulates(page: Page) -> None:
    """What makes FIRE decline over a hundred tasks, from the tables of its study."""
    curves = page.study("accumulation.curves")
    page.tables["slopes"] = accumulation.table(curves)
    page.figures["tasks"] = partial(accumulation.figure, curves, page.width)


PAGES: dict[str, Callable[[Page], None]] = {
    "accumulation": what_accumulates,
    "convergence": convergence,
    "dial": similarity_dial,
    "fashion_mnist": fashion_labels,
    "figure2_small": figure2_small,
    "resets": resets_optimizers,
    "restarts": sac_restarts,
    "plasticity": plasticity,
    "ranking": search_luck,
    "language_streams": language_streams,
    "agents": agents,
    "triggers": triggers,
}


def named(frame: pd.DataFrame, called: Mapping[str, str]) -> pd.DataFrame:
    """Methods and references as `called` says."""
    columns = {column: f"vs {called[column[3:]]}" for column in map(str, frame) if column.startswith("vs ")}
    return frame.rename(columns=columns).assign(method=[called[method] for method in frame["method"]])
