"""Tables of streams of texts, against numbers set by hand."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.language_streams import COLUMNS, compare, rows_of, table
from analysis.make_language_streams import NUMBERED, main, split_rows
from analysis.runs import BadRun, Run


def run(method: str, seed: int, losses: list[float], pretrain: int = 0) -> Run:
    """A run with two rows a task; the second has the loss of the task's last quarter."""
    rows = []
    for phase, loss in enumerate(losses):
        for step in (1, 2):
            row = {"step": 2 * phase + step, "phase": phase, "train/loss": loss + 2 - step, "val/loss": loss + 0.5}
            row |= {"online/loss": 3.0, "task/loss": loss + 0.25}
            if step == 2 and phase:
                row |= {"stability/earlier_loss": 7.0 + phase, "stability/backward_transfer": -1.0 * phase}
            rows.append(row)
        if phase + 1 < len(losses):
            before = {"previous_loss_before": 2.0, "previous_loss_after": 2.5, "kl": 0.125}
            before |= {"earlier_loss_before": 4.0, "earlier_loss_after": 4.0 + seed}
            numbers = {f"boundary/{key}": value for key, value in before.items()}
            rows.append({"boundary": 1.0, "step": 2 * phase + 2, "phase": phase + 1, **numbers})
    config = {"method": {"name": method}, "seed": seed, "benchmark": {"name": "domains", "pretrain": pretrain}}
    return Run.of(
        f"{method}{seed}", "here", {"config": config, "finished": True, "environment": {}}, pd.DataFrame(rows)
    )


def test_a_row_for_each_task() -> None:
    found = rows_of(run("base", 3, [4.0, 3.0, 2.0]))
    assert list(found["task"]) == [1, 2, 3]
    assert list(found["last"]) == [4.0, 3.0, 2.0]
    assert list(found["loss"]) == [4.25, 3.25, 2.25]
    assert list(found["val"]) == [4.5, 3.5, 2.5]
    assert list(found["transfer"])[1:] == [-1.0, -2.0]
    assert list(found["after"])[1:] == [2.5, 2.5]
    assert list(found["lost"])[1:] == [3.0, 3.0]
    assert np.isnan(found.loc[0, ["earlier", "transfer", "before", "after", "kl", "lost"]].to_numpy(float)).all()
    assert list(rows_of(run("base", 3, [4.0, 3.0, 2.0], pretrain=5))["task"]) == [0, 1, 2]


def test_the_comparison_leaves_the_mixture_out() -> None:
    runs = [run(m, seed, [9.0, x + seed, x - 1], 5) for m, x in (("base", 3.0), ("fire", 2.0)) for seed in (1, 2, 4)]
    frame = table(runs)
    assert list(frame) == COLUMNS
    found = compare(frame).set_index("method")
    assert list(found.index) == ["fire", "base"]
    assert found.loc["base", "last quarter"].mean == pytest.approx(np.mean([(3 + s + 2) / 2 for s in (1, 2, 4)]))
    assert found.loc["fire", "earlier at the end"].mean == 9.0
    assert found.loc["fire", "transfer"].mean == -2.0
    assert found.loc["fire", "lost"].mean == pytest.approx(7 / 3)
    assert found.loc["fire", "vs base"].difference.mean == pytest.approx(-1.0)
    with pytest.raises(BadRun, match="two runs of method fire with seed 1"):
        table([*runs, run("fire", 1, [1.0])])


def test_tables_and_planes_from_small_results(tmp_path: Path) -> None:
    runs = [run(m, seed, [3.0, x + seed / 10, x]) for m, x in (("base", 3.0), ("fire", 2.0)) for seed in (1, 2, 3)]
    table(runs).to_csv(tmp_path / "domains.csv", index=False)
    (tmp_path / "page.md").write_text("before\n<!-- table: domains -->\nold\n<!-- end -->\nafter\n")
    assert main([f"results={tmp_path}", f"page={tmp_path}/page.md"]) == 0
    text = (tmp_path / "page.md").read_text()
    assert "| FIRE " in text
    assert "old" not in text
    assert text.startswith("before\n")
    assert (tmp_path / "domains.png").stat().st_size > 5000


def test_a_figure_of_many_rows_numbers_those_that_combine_least() -> None:
    rows = pd.DataFrame({"method": [*(f"a-{i}" for i in range(NUMBERED)), "a", "a-b-c", "b"]})
    shown, others = split_rows(rows)
    assert shown["method"].tolist() == [*(f"a-{i}" for i in range(NUMBERED - 2)), "a", "b"]
    assert others["method"].tolist() == [f"a-{NUMBERED - 2}", f"a-{NUMBERED - 1}", "a-b-c"]
