"""Muon on fused weights: does it matter whether q, k and v in one weight are one matrix or three?

Frozen in docs/studies/muon_split/index.md; run it with `python -m studies.driver muon_split queue`.
"""

from studies.how_far import around
from studies.streams import Measure, Options, Stream

ROWS: dict[str, Options] = {
    "split": ("method=muon",),
    "fused": ("method=muon", "method.split=false"),
}
STREAMS = {
    "gpt": Stream(
        program="language",
        options=(
            *("experiment=permuted_text", "benchmark.tasks=1", "benchmark.iterations=2000"),
            *("method.lr=${lr}", "method.adam_lr=3e-3"),  # the searched rate is Muon's; Adam has the same in every run
        ),
        rows=ROWS,
        seeds={"*": range(201, 206)},
        family=[("split", "fused")],
        measure=Measure("val/loss", smallest=0.01, sign=-1, kept="previous_loss"),
        settings={"width 64": ("model.n_embd=64",), "width 128": ("model.n_embd=128",)},
        rates=around(1e-2, 3, 3),
    )
}
