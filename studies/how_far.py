"""How far to go: is it better to go half of the way to the isometry than all of it?

The question, what each outcome would mean and the rules are in docs/studies/how_far/plan.md, frozen with this file.
Run it with `python -m studies.driver how_far queue`.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

from studies.streams import STEP, Measure, Options, Stream
from studies.verdict import SMALLEST_ACCURACY

# ------------------------------------------------------------------------------------------------------------- rows

BIASES_BACK = "method.layout={linear:project,*.bias:reinit}"


def part_of_the_way(name: str, share: float, *more: str) -> Options:
    """Return options for FIRE that goes a share of the way: a singular value s becomes s^(1 - share) scale^share.

    Singular vectors stay. `name` is the row's name, `more` are further options.
    """
    return "method=fire", f"method.blend={share}", f"method.name={name}", *more


ACTS: dict[str, Options] = {
    "quarter": part_of_the_way("quarter", 0.25),
    "half": part_of_the_way("half", 0.5),
    "three_quarters": part_of_the_way("three_quarters", 0.75),
    "fire": ("method=fire",),
    "fire_exact": ("method=fire_exact",),
    "random_isometry": ("method=random_isometry",),
}
ACTS_BIASES_BACK: dict[str, Options] = {
    f"{name}_biases": (
        *(word for word in options if not word.startswith("method.name=")),
        BIASES_BACK,
        f"method.name={name}_biases",
    )
    for name, options in ACTS.items()
}
CONTROLS: dict[str, Options] = {name: (f"method={name}",) for name in ("base", "fresh", "full_reset", "snp")}
LAYER_NORM_DECAY: dict[str, Options] = {
    "layer_norm_decay": ("method=base", "model.norm=layer", "optimizer=adamw", "optimizer.betas=[0.9,0.999]")
}
LABELS_ROWS = (
    CONTROLS
    | {name: (f"method={name}",) for name in ("optimizer_reset", "dash")}
    | LAYER_NORM_DECAY
    | ACTS
    | ACTS_BIASES_BACK
)
FIELD_SIZE_ROWS = (
    CONTROLS
    | LAYER_NORM_DECAY
    | {name: ACTS[name] for name in ("fire", "half")}
    | {f"{name}_biases": ACTS_BIASES_BACK[f"{name}_biases"] for name in ("fire", "half", "random_isometry")}
)
AGENT_ROWS = CONTROLS | {name: ACTS[name] for name in ("random_isometry", "fire", "half")}


def half_with_head_kept(layout: str) -> dict[str, Options]:
    """Return the row that goes half of the way in all layers but the output layer, which the layout keeps."""
    return {"half_head_kept": part_of_the_way("half_head_kept", 0.5, f"method.layout={layout}")}


# ----------------------------------------------------------------------------------------------------------- searches


def around(rate: float, below: int, above: int) -> tuple[float, ...]:
    """Return learning rates `below` steps below `rate` to `above` steps above it, with three digits; a step is 1.4."""
    return tuple(float(f"{rate * STEP**power:.3g}") for power in range(-below, above + 1))


SNP_GRID = [
    *((coef, perturb) for coef in (0.2, 0.4, 0.6, 0.8) for perturb in (0.1, 0.4, 0.8)),
    *((coef, perturb) for coef in (0.05, 0.1) for perturb in (0.1, 0.4)),
]
# The coefficients of the S&P authors, those that the FIRE authors used for S&P, and good ones on random labels.
SNP_THREE = [(0.6, 0.1), (0.8, 0.8), (0.2, 0.4)]
DASH_GRID = [(f"method.minimum={minimum}",) for minimum in (0.05, 0.3, 0.6, 0.8)]
DECAYS = [(f"optimizer.weight_decay={decay}",) for decay in (0.01, 0.1)]


def snp(coefficients: Sequence[tuple[float, float]]) -> list[Options]:
    """Return options of S&P for pairs (coef, perturb): W <- (1 - coef) W + perturb P, P drawn from initial weights."""
    return [(f"method.coef={coef}", f"method.perturb={perturb}") for coef, perturb in coefficients]


# ----------------------------------------------------------------------------------------------------------- families

# A full reset and S&P change biases too, so where both kinds of half ran, theirs is the one with biases put back.
BOTH_BIASES = [
    ("half", "fire"),
    ("half_biases", "fire_biases"),
    ("half_biases", "random_isometry_biases"),
    ("half_biases", "full_reset"),
    ("half_biases", "snp"),
]
LABELS_FAMILY = [*BOTH_BIASES, ("half", "random_isometry")]
# Rows of the figure and of the family, whose rates are looked at once more at full length.
CONFIRMED = sorted({"base", "fresh", "quarter", "three_quarters"} | {row for pair in LABELS_FAMILY for row in pair})
BIASES_KEPT = [("half", rival) for rival in ("fire", "random_isometry", "full_reset", "snp")]

# ------------------------------------------------------------------------------------------------------------ streams

TEN, FIVE = range(201, 211), range(201, 206)
ACCURACY = Measure(
    "online/accuracy", smallest=SMALLEST_ACCURACY, sign=1, kept="previous_accuracy", beside="task_end/accuracy"
)
TASK_RETURN = Measure("task/return", smallest=None, sign=1, kept="previous_return")
TEST_ACCURACY = Measure("test/accuracy", smallest=SMALLEST_ACCURACY, sign=1, kept="test_accuracy")
JPEG = ("experiment=fig2a_cifar10", "dataset=folder", "dataset.path=data/cifar10_jpeg", "model.width=16", "epochs=5")
WARM_START_ROWS: dict[str, Options] = {name: CONTROLS[name] for name in ("base", "fresh", "full_reset")} | {
    name: ACTS[name] for name in ("fire", "half")
}


def spread_of_warm_starts() -> float:
    """Return the standard deviation of FIRE minus full reset over the five seeds of an earlier warm-start study."""
    table = Path(__file__).parents[1] / "docs/studies/figure2_small/figure2_small_a.csv"
    lines = csv.DictReader(table.read_text().splitlines())
    ends = {(line["row"], line["seed"]): float(line["test/accuracy"]) for line in lines}
    seeds = sorted(seed for row, seed in ends if row == "full_reset")
    gaps = [ends["fire", seed] - ends["full_reset", seed] for seed in seeds]
    mean = sum(gaps) / len(gaps)
    return float((sum((gap - mean) ** 2 for gap in gaps) / (len(gaps) - 1)) ** 0.5)


STREAMS = {
    "labels": Stream(
        program="vision",
        options=("experiment=plasticity_random_labels",),
        rows=LABELS_ROWS,
        seeds={"*": TEN},
        family=LABELS_FAMILY,
        measure=ACCURACY,
        settings={f"share {share}": (f"benchmark.share={share}",) for share in (0.25, 0.5, 1)},
        rates=around(1.4e-3, 0, 6),
        full=("benchmark.tasks=50",),
        prefix=("benchmark.tasks=20",),
        confirmed_rows=CONFIRMED,
        coefficients={"snp": snp(SNP_GRID), "dash": DASH_GRID, "layer_norm_decay": DECAYS},
    ),
    "cartpole": Stream(
        program="dqn",
        options=("experiment=continual_cartpole",),
        rows=AGENT_ROWS | half_with_head_kept("{linear:project,head.fc2:keep}"),
        seeds={name: range(201, 261) for name in ("base", "fresh", "random_isometry", "fire", "half")} | {"*": TEN},
        family=BIASES_KEPT,
        measure=TASK_RETURN,
        test="permutation",
        rates=around(1e-3, 3, 3),
        coefficients={"snp": snp(SNP_THREE)},
    ),
    "permuted_fashion": Stream(
        program="vision",
        options=(
            *("experiment=plasticity_permuted_online", "dataset=fashion_mnist"),
            *("benchmark.samples=10000", "batch_size=16"),
        ),
        rows=FIELD_SIZE_ROWS,
        seeds={"*": TEN},
        family=BOTH_BIASES,
        measure=ACCURACY,
        rates=around(1e-3, 3, 3),
        full=("benchmark.tasks=500",),
        prefix=("benchmark.tasks=50",),
        confirmed_rows=tuple(FIELD_SIZE_ROWS),
        coefficients={"snp": snp(SNP_THREE), "layer_norm_decay": DECAYS},
    ),
    "pendulum": Stream(
        program="sac",
        options=("experiment=continual_double_pendulum",),
        rows=AGENT_ROWS | half_with_head_kept("{encoder:project,head:keep}"),
        seeds={"*": TEN},
        family=BIASES_KEPT,
        measure=TASK_RETURN,
        test="permutation",
        rates=around(1e-3, 1, 1),
        coefficients={"snp": snp(SNP_THREE)},
    ),
    "permuted_text": Stream(
        program="language",
        options=("experiment=permuted_text",),
        rows=AGENT_ROWS,
        seeds={"*": TEN},
        family=BIASES_KEPT,
        measure=Measure("task_end/loss", smallest=None, sign=-1, kept="previous_loss"),
        rates=around(3e-3, 3, 3),
        coefficients={"snp": snp(SNP_THREE)},
    ),
    "warm_start": Stream(
        program="vision",
        options=JPEG,
        rows=WARM_START_ROWS,
        seeds={"*": TEN},
        family=[("half", "fire"), ("half", "full_reset")],
        measure=TEST_ACCURACY,
        known_spread=spread_of_warm_starts(),
    ),
    "warm_start_augmented": Stream(
        program="vision",
        options=(*JPEG, "augmentation=crop_flip"),
        rows=WARM_START_ROWS,
        seeds={"*": FIVE},
        family=[("half", "fire"), ("half", "full_reset")],
        measure=TEST_ACCURACY,
        known_spread=spread_of_warm_starts(),
    ),
    "labels_fashion": Stream(
        program="vision",
        options=("experiment=plasticity_random_labels", "dataset=fashion_mnist", "epochs=400", "batch_size=16"),
        rows=FIELD_SIZE_ROWS,
        seeds={"*": FIVE},
        family=BOTH_BIASES,
        measure=ACCURACY,
        rates=around(1e-3, 3, 3),
        full=("benchmark.tasks=50",),
        prefix=("benchmark.tasks=5",),
        coefficients={"snp": snp(SNP_THREE), "layer_norm_decay": DECAYS},
    ),
}
