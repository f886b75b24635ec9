"""The tables of docs/results/triggers.md.

    python -m scripts.triggers_tables csv=docs/results/triggers [out=FOLDER]

With `out`, what `scripts.triggers_runs` and `scripts.triggers_signals` have written there is first kept in the csv
folder: of the seeds that have all their runs. The tables are made from that folder alone.
"""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.estimates import Estimate, Paired, holm, mean, paired
from analysis.formats import as_markdown
from harness.run import provenance

TUNING, OWN = "tuning", 100  # the arm of the runs on which settings were chosen, and the first of their seeds
SIGNALS = {
    "dormancy": "dormant units",
    "effective_rank": "effective rank",
    "deviation": "DfI",
    "gradient_norm": "gradient norm",
    "loss": "loss of the task that ends",
    "readiness": "optimization readiness",
    "step": "steps so far",
}
NAMES = {
    "random_labels": "Random labels",
    "permuted": "Permuted images",
    "permuted_text": "Permuted text",
    "continual_cartpole": "Continual CartPole",
}
SCORES = {
    "random_labels": "average online accuracy",
    "permuted": "average online accuracy",
    "permuted_text": "average online loss",
    "continual_cartpole": "return, last quarter of tasks",
}


def keep(out: Path, csv: Path) -> None:
    """Write the results of complete seeds as runs.csv and signals.csv; what a folder has not stays as it is there."""
    runs = pd.DataFrame(map(json.loads, (out / "runs.jsonl").read_text().splitlines())).drop(columns="steps")
    csv.mkdir(parents=True, exist_ok=True)
    all_arms = json.loads((out / "arms.json").read_text())
    parts = []
    if (csv / "runs.csv").exists():
        before = pd.read_csv(csv / "runs.csv", float_precision="round_trip")
        parts.append(before[~before["stream"].isin(list(all_arms))])
    for stream, arms in all_arms.items():
        here = runs[runs["stream"] == stream]
        named = pd.concat(
            here[(here["method"] == method) & (here["when"] == when)].assign(arm=arm) for method, arm, when in arms
        )
        # A chosen setting has also been run on the seeds on which it was chosen.
        named = named[named["seed"] < OWN]
        # Of a method, the seeds that have all arms; readiness, which was added last, may have fewer.
        late = named["arm"] == "readiness"
        several = named[~late].groupby(["method", "seed"])["arm"].transform("size")
        size = {method: sum(one == method and arm != "readiness" for one, arm, _ in arms) for method, _, _ in arms}
        whole = several == named.loc[~late, "method"].map(size)
        parts += [
            named[late | whole.reindex(named.index, fill_value=False)],
            here[here["seed"] >= OWN].assign(arm=TUNING),
        ]
    found = pd.concat(parts)
    found["order"] = found["stream"].map({stream: number for number, stream in enumerate(NAMES)})
    found = found.sort_values("order", kind="stable").drop(columns="order")
    columns = ["stream", "method", "arm", *(name for name in found if name not in ("stream", "method", "arm"))]
    found[columns].to_csv(csv / "runs.csv", index=False, float_format="%.6g", lineterminator="\n")
    for stream, entry in provenance.read(out / "runs.jsonl").items():
        provenance.write(csv / "runs.csv", entry, stream)
    if not (out / "signals.jsonl").exists():
        return
    signals = pd.DataFrame(map(json.loads, (out / "signals.jsonl").read_text().splitlines()))
    signals.to_csv(csv / "signals.csv", index=False, float_format="%.6g", lineterminator="\n")
    for stream, entry in provenance.read(out / "signals.jsonl").items():
        provenance.write(csv / "signals.csv", entry, stream)


def online(runs: pd.DataFrame) -> dict[int, float]:
    """Seed -> the stream's score."""
    return {int(seed): float(value) for seed, value in zip(runs["seed"], runs["online"], strict=True)}


def outcome(runs: pd.DataFrame, stream: str, method: str) -> pd.DataFrame:
    """One row for each moment at which a method may act, compared with known boundary and never, paired by seed."""
    here = runs[(runs["stream"] == stream) & (runs["method"] == method) & (runs["arm"] != TUNING)]
    never = runs[(runs["stream"] == stream) & (runs["arm"] == "never")].set_index("seed")
    if method != "fire":
        here = pd.concat([here, never.reset_index()])
    against = {"boundary": online(here[here["arm"] == "boundary"]), "never": online(here[here["arm"] == "never"])}
    rows: list[dict[str, object]] = []
    pairs: dict[str, list[Paired | None]] = {arm: [] for arm in against}
    for arm, part in here.groupby("arm", sort=False):
        by_seed = part.set_index("seed")
        cost = 100 * (by_seed["seconds"] / never["seconds"].reindex(by_seed.index) - 1)
        for other, scores in against.items():
            pairs[other].append(None if arm == other else paired(online(part), scores))
        rows.append(
            {
                "when": "known boundary" if arm == "boundary" else str(part["when"].iloc[0]).replace("none", "never"),
                "n": len(part),
                SCORES[stream]: mean([*online(part).values()]),
                "vs known boundary": None,
                "vs never": None,
                "firings": f"{part['firings'].mean():.1f}",
                "false alarms": f"{part['false'].mean():.1f}",
                "missed": f"{part['missed'].mean():.1f}",
                "delay (steps)": float(part["delay"].mean()),
                "cost (%)": float(cost.median()),
            }
        )
    for column, several in zip(("vs known boundary", "vs never"), pairs.values(), strict=True):
        corrected = holm([np.nan if pair is None else pair.p for pair in several])
        for row, pair, p in zip(rows, several, corrected, strict=True):
            row[column] = None if pair is None else dataclasses.replace(pair, p_holm=float(p))
    return pd.DataFrame(rows)


def tuning(runs: pd.DataFrame, stream: str) -> pd.DataFrame:
    """The settings that were tried, with FIRE, on seeds of their own."""
    here = runs[(runs["stream"] == stream) & (runs["arm"] == TUNING)]
    rows = [
        {"setting": when, "n": len(part), SCORES[stream]: float(part["online"].mean())}
        for when, part in here.groupby("when", sort=False)
    ]
    return pd.DataFrame(rows)


def correlation(one: pd.Series, other: pd.Series) -> float:
    """Spearman's; NaN where one of them does not change."""
    a, b = one.rank(), other.rank()
    return float(a.corr(b)) if a.nunique() > 1 and b.nunique() > 1 else float("nan")


def validation(signals: pd.DataFrame, stream: str) -> pd.DataFrame:
    """How each signal ranks checkpoints beside how well a probe learns from them, one number a seed."""
    here = signals[signals["stream"] == stream]

    def over_seeds(name: str, groups: list[str]) -> Estimate:
        """Within each group of checkpoints, then the mean of a seed's groups."""
        return mean(
            [
                float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")
                for _, seed in ours.groupby("seed")
                if len(values := [correlation(g[name], g["probe_accuracy"]) for _, g in seed.groupby(groups)])
            ]
        )

    rows = []
    for name, shown in SIGNALS.items():
        row: dict[str, object] = {"signal": shown}
        ours = here[here["method"] == "base"]
        row["along a run, no intervention"] = over_seeds(name, ["method"])
        ours = here[here["method"] != "base"]
        row["along a run, with a method"] = over_seeds(name, ["method"])
        ours = here
        row["between methods, same age"] = over_seeds(name, ["step"])
        rows.append(row)
    return pd.DataFrame(rows)


def tables(csv: Path) -> str:
    """All tables as Markdown."""
    runs, signals = pd.read_csv(csv / "runs.csv"), pd.read_csv(csv / "signals.csv")
    parts = []
    for stream, title in NAMES.items():
        here = runs[(runs["stream"] == stream) & (runs["arm"] != TUNING)]
        for method in here["method"].unique():
            parts.append(f"**{title}, {method}**\n\n{as_markdown(outcome(runs, stream, method))}")
        if (signals["stream"] == stream).any():
            parts.append(f"**{title}: rank correlation with the probe**\n\n{as_markdown(validation(signals, stream))}")
    parts += [
        f"**{NAMES[stream]}: settings tried**\n\n{as_markdown(tuning(runs, stream))}"
        for stream in NAMES
        if (runs["stream"] == stream).any()
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


if __name__ == "__main__":
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    if "out" in given:
        keep(Path(given["out"]), Path(given["csv"]))
    print(tables(Path(given["csv"])))
