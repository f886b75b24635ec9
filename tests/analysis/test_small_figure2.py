"""Figure 2 in small: what its table says of each method, on rows made by hand."""

import pandas as pd

from analysis import small_figure2

# Two epochs in phase 0, three in phase 1; epochs are counted through both.
ACCURACY = {
    "base": [0.3, 0.4, 0.5, 0.6, 0.6],
    "fire": [0.3, 0.4, 0.2, 0.61, 0.7],
    "full_reset": [0.3, 0.4, 0.1, 0.5, 0.55],
}


def tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    runs = [
        {"row": row, "seed": 101, "test/accuracy": of[-1], "train/accuracy": 1.0, "act_seconds": 0.1}
        for row, of in ACCURACY.items()
    ]
    epochs = [
        {"row": row, "seed": 101, "phase": int(epoch > 2), "epoch": epoch, "test/accuracy": accuracy}
        for row, of in ACCURACY.items()
        for epoch, accuracy in enumerate(of, 1)
    ]
    acts = [{"row": row, "seed": 101, "phase": 1, "boundary/test_accuracy_after": 0.1} for row in ACCURACY]
    return pd.DataFrame(runs), pd.DataFrame(epochs + acts)


def test_rows_are_ordered_and_passes_are_counted_within_the_phase() -> None:
    found = small_figure2.ends(*tables()).set_index("method")
    assert [*found.index] == ["FIRE", "Base", "Full reset"]
    assert found["epochs until above base's end"].to_dict() == {"FIRE": "2", "Base": "–", "Full reset": "–"}


def test_the_order_is_compared_with_the_paper_s() -> None:
    (row,) = small_figure2.order(tables()[0]).to_dict("records")  # the paper: full reset > FIRE > base
    assert row == {"seed": 101, "Spearman's correlation": "-0.50", "order": "FIRE > Base > Full reset"}


def test_the_boundary_is_drawn_where_the_first_phase_ends() -> None:
    (axes,) = small_figure2.figure({"": tables()[1]}, "column").axes
    at = {tuple(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) > 2}
    assert at == {(2.0, 3.0, 4.0, 5.0)}, "phase 1 begins at its boundary"


def test_fire_is_compared_with_what_the_protocol_names() -> None:
    runs, _ = tables()
    others = pd.DataFrame([{"row": row, "seed": 101, "test/accuracy": 0.65} for row in ("snp", "dash", "muon")])
    found = small_figure2.against_fire(pd.concat([runs, others]))
    means = found.set_index("FIRE against")["difference"].map(lambda pair: round(pair.difference.mean, 2)).to_dict()
    assert means == {"Base": 0.1, "Full reset": 0.15, "S&P": 0.05, "DASH": 0.05}


def test_of_many_phases_the_mean_of_their_ends_counts():
    found = small_figure2.over_phases(tables()[1]).set_index("method")
    assert found["mean over phases"].map(lambda cell: round(cell.mean, 3)).to_dict() == {
        "FIRE": 0.55, "Base": 0.5, "Full reset": 0.475
    }  # fmt: skip
