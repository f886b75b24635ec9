"""Learning rate, chunk arithmetic and mixing against the authors' code (tests/golden/lang_sched)."""

import numpy as np
import pytest

import language.train  # noqa: F401  its options
from language.schedule import learning_rate, phase_length
from tests.parity import golden
from tests.programs import compose

RTOL = 1e-12
FACTS, DATA, META = golden.facts("lang_sched"), golden.load("lang_sched"), golden.meta("lang_sched")

RATES = {(case["max_lr"], case["min_lr"]) for case in FACTS["get_lr_cases"]}
# Of the reference script; the golden data in the repository come from it, another set may come from a shorter one.
DEFAULTS = {"warmup_ratio": 0.1, "max_warmup_iters": 2000, "eval_interval": 2000}


def reference_length(case):
    return phase_length(
        case["dataset_tokens"],
        case["replay"],
        case["tokens_per_iter"],
        case["ratio"],
        META["warmup_ratio"],
        META["max_warmup_iters"],
        META["eval_interval"],
        extra_step=True,
    )


@pytest.mark.parametrize("case", FACTS["get_lr_cases"], ids=lambda case: case["key"])
def test_learning_rate(case):
    first, last = map(int, case["its"].split(".."))
    ours = [
        learning_rate(i, case["warmup_iters"], case["decay_iters"], case["max_lr"], case["min_lr"])
        for i in range(first, last + 1)
    ]
    np.testing.assert_allclose(ours, DATA[case["key"]], rtol=RTOL)


@pytest.mark.parametrize("case", FACTS["chunk_arithmetic"], ids=lambda c: f"{c['dataset_tokens']}-{c['ratio']}")
def test_chunk_arithmetic(case):
    length = reference_length(case)
    assert (length is None) == case["skipped"]
    if length is not None:
        assert length.tokens == case["chunk_tokens"]
        assert length.iterations == case["num_iters"]
        assert length.warmup == case["warmup_iters"]
        assert length.iterations == case["lr_decay_iters"]
        assert length.eval_interval == case["eval_interval"]
        assert length.steps == case["optimizer_steps"]


@pytest.mark.parametrize("run", ["run_warm", "run_fire"])
def test_rates_of_a_whole_run(run):
    """As recorded while the reference script ran: from its number of iterations alone."""
    recorded, facts = DATA[f"{run}.lr"], FACTS[run]
    iterations = facts.get("num_iters", facts.get("num_iters_chunk1"))
    length = phase_length(0, 0, 1, 1, META["warmup_ratio"], META["max_warmup_iters"], extra_step=True,
                          iterations=iterations)  # fmt: skip
    assert length is not None
    assert length.steps == facts["optimizer_steps"] == len(recorded)
    (min_lr,) = {low for high, low in RATES if high == recorded.max() and low == recorded[-1]}
    lr = recorded.max()
    ours = [learning_rate(i, length.warmup, length.iterations, lr, min_lr) for i in range(length.steps)]
    np.testing.assert_allclose(ours, recorded, rtol=RTOL)


@pytest.mark.skipif(META != DEFAULTS, reason="the golden data were made with other hyperparameters")
def test_paper_preset_is_this_arithmetic():
    """experiment=fig3: its tokens an iteration, its rates, its mixing, its extra step."""
    config = compose("language", "experiment=fig3", "dataset=wiki_owt")
    assert config.benchmark.extra_step
    assert (
        config.batch_size * config.accumulation * config.model.block_size == FACTS["tokens_per_iter_default"]["tokens"]
    )
    assert any(
        config.lr == high and config.lr * config.min_lr_ratio == pytest.approx(low, rel=RTOL) for high, low in RATES
    )
    assert config.dataset.replay == pytest.approx(float(FACTS["wiki_owt"]["p_wikitext_float"]), rel=RTOL)
    assert config.dataset.replay == pytest.approx(float(DATA["p_wikitext"]), rel=RTOL)
    assert config.dataset.mix_by == "batch"
    benchmark = config.benchmark
    assert (benchmark.warmup_ratio, benchmark.max_warmup, benchmark.max_eval_interval) == (
        META["warmup_ratio"],
        META["max_warmup_iters"],
        META["eval_interval"],
    )
