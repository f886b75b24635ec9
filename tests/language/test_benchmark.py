"""Phases and presets: the paper's numbers come out of experiment=fig3 and the corpora's sizes."""

from pathlib import Path

import numpy as np
import pytest
from omegaconf import DictConfig

import language.train  # noqa: F401  its options
from harness.config.build import build
from language.benchmark import Setting, parse_start
from language.data import TokenFile
from tests import programs
from tests.parity import golden

CASES = golden.facts("lang_sched")["chunk_arithmetic"]


def compose(*overrides: str) -> DictConfig:
    return programs.compose("language", "benchmark=continual_pretraining", *overrides)


def tokens(count: int) -> dict[str, TokenFile]:
    """A corpus of any size, in no memory."""
    return {split: TokenFile(Path(split), np.broadcast_to(np.uint16(1), count), {}) for split in ("train", "val")}


def test_lengths_of_the_released_script():
    config = compose("experiment=fig3")
    wiki, owt = (next(c for c in CASES if c["replay"] == replay) for replay in (400, 2))
    assert config.dataset.replay == 0
    corpora = {"first": tokens(wiki["dataset_tokens"]), "second": tokens(owt["dataset_tokens"])}
    phase = build("benchmark", config.benchmark).phases(corpora, Setting(1024, owt["tokens_per_iter"]))[1]
    assert phase.length.steps == owt["optimizer_steps"]
    assert [len(phase.data.files), *phase.val] == [1, "second"]


def test_lengths_of_the_paper():
    config = compose("experiment=fig3", "dataset=wiki_owt", "benchmark.passes=[400,1]")
    wiki, mixed = (next(c for c in CASES if c["replay"] == replay) for replay in (400, 2))
    owt = mixed["dataset_tokens"]
    per_step = config.batch_size * config.accumulation * config.model.block_size
    assert per_step == wiki["tokens_per_iter"]
    phases = build("benchmark", config.benchmark).phases(
        {"first": tokens(wiki["dataset_tokens"]), "second": tokens(owt)},
        Setting(1024, per_step, replay=config.dataset.replay, mix_by=config.dataset.mix_by),
    )
    assert phases[0].length.steps == wiki["optimizer_steps"]
    assert phases[0].length.warmup == wiki["warmup_iters"]
    both = wiki["dataset_tokens"] + owt
    assert phases[1].length.tokens == both  # one pass over the mixture, whose length is that of both
    assert phases[1].length.iterations == both // per_step == pytest.approx(18_600, abs=50)  # where figure 3 ends
    assert phases[1].length.steps == phases[1].length.iterations + 1
    assert phases[1].data.probabilities == (config.dataset.replay, 1 - config.dataset.replay)
    assert [weight for _, weight in phases[1].val.values()] == [config.dataset.replay, 1 - config.dataset.replay]


@pytest.mark.parametrize(("start", "coef"), [("best", 0.5), ("30k", 0.8), ("60k", 0.5)])
def test_tuned_values_of_the_paper(start, coef):
    config = compose("experiment=fig3", "method=snp", f"benchmark.start={start}")
    assert (config.method.coef, config.method.perturb) == (coef, None)
    assert config.benchmark.start == start
    assert parse_start(start) in ("best", *config.benchmark.checkpoints)
    assert compose("experiment=fig3", f"benchmark.start={start}", "method=fire").method.iterations == 5
    assert compose("experiment=fig3", f"benchmark.start={start}", "method=snp", "method.coef=0.3").method.coef == 0.3
    assert compose("method=snp", f"benchmark.start={start}").method.coef == 0.5, "without the experiment"


def test_part_of_the_data():
    benchmark = build("benchmark", compose("benchmark.ratio=[0.5,0.25]", "benchmark.start=end").benchmark)
    phases = benchmark.phases({"first": tokens(1000), "second": tokens(4000)}, Setting(16, 32, replay=0.1))
    assert [[len(file) for file in phase.data.files] for phase in phases] == [[500], [250, 1000]]
