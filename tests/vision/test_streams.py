"""Streams in which each phase is a new task: what a task's data are, and what a run of them leaves."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import vision.train as trainer
from harness.config.errors import ConfigError
from harness.training import seeding
from tests.programs import Program, assert_same, rows, summary
from vision.benchmarks import Phase
from vision.data import ImageData, load_bits, load_digits
from vision.data.bits import BitData
from vision.learner import Learner
from vision.streams import Permuted, RandomLabels, SlowlyChangingRegression, pixel_order, slow_bits

TINY = Program(
    "vision",
    "vision.train",
    (
        *("scale=smoke", "tracker=none", "progress=false", "threads=1", "model.hidden=8", "model.depth=1"),
        *("benchmark.tasks=3", "batch_size=64", "lr=1e-3", "metrics=off"),
    ),
)
STREAMS = {
    "random_labels": ("benchmark.samples=128",),
    "permuted": ("benchmark.samples=128",),
    "permuted_online": ("batch_size=16", "benchmark.samples=128"),
    "slowly_changing_regression": ("dataset=bits", "batch_size=1", "benchmark.every=60"),
}


def make_task(stream: str, *options: str) -> trainer.Task:
    return trainer.Task.from_config(TINY.compose(f"benchmark={stream}", *STREAMS[stream], *options))


@pytest.mark.parametrize("method", ["base", "muon"])
def test_the_optimizer_of_a_stream_goes_on(method: str) -> None:
    task = make_task("random_labels", f"method={method}", "model.depth=2")  # Muon needs a hidden matrix
    learner = Learner.new(task)
    trainer.begin_phase(task, learner, 0, None)
    optimizer = learner.optimizer
    trainer.begin_phase(task, learner, 1, None)
    assert learner.optimizer is optimizer


def test_random_labels_are_new_in_each_task_for_the_same_images() -> None:
    data = load_digits()
    phases = RandomLabels(tasks=4, samples=1200).phases(data, epochs=1, seed=0)
    labels = [phase.change(data).train_labels[phase.train] for phase in phases if phase.change]
    assert all(np.array_equal(phase.train, phases[0].train) for phase in phases)
    assert len(set(phases[0].train.tolist())) == 1200
    for one, other in itertools.pairwise([data.train_labels[phases[0].train], *labels]):
        assert float((one == other).float().mean()) == pytest.approx(0.1, abs=0.04)
    assert not np.array_equal(RandomLabels(tasks=4, samples=1200).phases(data, 1, seed=1)[0].train, phases[0].train)
    assert not any(len(phase.test) for phase in phases)


@pytest.mark.parametrize("share", [0.25, 0.0, 0.001, 1.0])
def test_a_share_of_the_labels_is_redrawn(share: float) -> None:
    data = load_digits()
    phases = RandomLabels(tasks=6, samples=1200, share=share).phases(data, epochs=1, seed=3)
    chosen = torch.from_numpy(phases[0].train)
    labels = [phase.change(data).train_labels for phase in phases if phase.change]
    fresh = [torch.randint(10, (1280,), generator=seeding.generator(3, "labels", task)) for task in range(len(phases))]
    assert torch.equal(labels[0], fresh[0])
    assert all(phase.change(data).train_labels.equal(made) for phase, made in zip(phases, labels, strict=True))
    for task in range(1, len(phases)):
        changed = (labels[task] != labels[task - 1])[chosen]
        redrawn = round(share * 1200)
        assert int(changed.sum()) <= redrawn
        # Of a redrawn label nine of ten are others than before.
        assert int(changed.sum()) == pytest.approx(0.9 * redrawn, abs=4 * (0.09 * redrawn) ** 0.5)
        assert changed.logical_not().logical_or((labels[task] == fresh[task])[chosen]).all()
        assert share < 1 or labels[task].equal(fresh[task]), "today's stream"


@pytest.mark.parametrize("share", [0.25, 0.0, 1 / 64, 2 / 64, 1.0])
def test_a_share_of_the_pixels_moves(share: float) -> None:
    orders = [pixel_order(64, share, seed=3, task=task) for task in range(6)]
    fresh = [torch.randperm(64, generator=seeding.generator(3, "pixels", task)) for task in range(6)]
    assert orders[0].equal(fresh[0])
    moved = {0.25: 16, 0.0: 0, 1 / 64: 0, 2 / 64: 2}.get(share)
    for task, order in enumerate(orders):
        assert order.sort().values.equal(torch.arange(64))
        assert share < 1 or order.equal(fresh[task]), "today's stream"
        assert moved is None or task == 0 or int((order != orders[task - 1]).sum()) == moved
    assert moved == 0 or len({tuple(order.tolist()) for order in orders}) > 3
    data = load_digits()
    change = Permuted(tasks=6, samples=50, share=share).phases(data, epochs=1, seed=3)[5].change
    assert change is not None
    made, chosen = change(data), Permuted(tasks=6, samples=50).phases(data, epochs=1, seed=3)[5].change
    assert chosen is not None
    assert made.test_images.flatten(1).equal(data.test_images.flatten(1)[:, orders[5]])
    assert made.train_labels.equal(chosen(data).train_labels)


def test_one_slow_bit_flips_between_two_tasks() -> None:
    slow = slow_bits(200, 15, "one", torch.Generator().manual_seed(0)).int()
    flips = (slow[1:] != slow[:-1]).sum(1)
    assert flips.tolist() == [1] * 199
    assert (slow[1:] != slow[:-1]).any(0).all(), "each bit flips at some time"
    every = slow_bits(200, 15, "all", torch.Generator().manual_seed(0)).int()
    assert float((every[1:] != every[:-1]).float().mean()) == pytest.approx(0.5, abs=0.05)


def test_the_regression_s_inputs_and_targets() -> None:
    data = load_bits()
    phases = SlowlyChangingRegression(tasks=2, every=4000).phases(data, epochs=1, seed=0)
    made = [phase.change(data) for phase in phases if phase.change]
    bits = [one.train_images.flatten(1).int() for one in made]
    assert [tuple(b.shape) for b in bits] == [(4000, 20)] * 2
    assert all((b[:, :15] == b[0, :15]).all() for b in bits)
    assert float(bits[0][:, 15:].float().mean()) == pytest.approx(0.5, abs=0.02)
    assert len({tuple(row) for row in bits[0][:, 15:].tolist()}) == 32
    # The same network in both tasks: an input that occurs in both (with equal slow bits) has the same target.
    targets = [
        dict(zip(map(tuple, b.tolist()), one.train_labels.tolist(), strict=True))
        for b, one in zip(bits, made, strict=True)
    ]
    assert all(len(t) == 32 for t in targets), "the target depends on the bits alone"


def test_a_target_unit_is_active_where_enough_inputs_agree_with_its_weights() -> None:
    """With weights of 1 and -1 and inputs of 0 and 1, sum > (m+1) beta - S says: more than (m+1) beta inputs agree."""
    data = load_bits()
    assert isinstance(data, BitData)
    draw = np.random.default_rng(0)
    inputs = draw.integers(0, 2, (300, 20))
    got = data.target(torch.from_numpy(inputs).float(), torch.Generator().manual_seed(5)).numpy()
    generator = torch.Generator().manual_seed(5)
    weights, out, constant = (
        torch.randint(2, shape, generator=generator).numpy() * 2 - 1 for shape in ((100, 21), (100,), (1,))
    )
    for row, value in zip(inputs, got, strict=True):
        agree = [sum((x == 1) == (w == 1) for x, w in zip([*row, 1], unit, strict=True)) for unit in weights]
        assert value == sum(o for o, a in zip(out, agree, strict=True) if a > 21 * 0.7) + constant[0]
    assert got.std() > 0.5


def test_data_do_not_depend_on_the_phases_before() -> None:
    for stream in STREAMS:
        straight, resumed = make_task(stream), make_task(stream)
        for index in range(3):
            straight.data_of(index)
        images, labels = zip(*trainer.batches(straight, 2), strict=True)
        other_images, other_labels = zip(*trainer.batches(resumed, 2), strict=True)
        assert all(torch.equal(a, b) for a, b in zip(images + labels, other_images + other_labels, strict=True))
        assert len(straight.changed) <= 3


def test_the_optimizer_s_state_survives_a_boundary_unless_the_method_resets_it() -> None:
    for method, kept in (("base", True), ("full_reset", False)):
        task = make_task("random_labels", f"method={method}")
        learner = Learner.new(task)
        trainer.begin_phase(task, learner, 0, None)
        before = learner.optimizer
        for images, labels in trainer.batches(task, 0):
            trainer.train_step(task, learner, (images, labels), acts=False)
        trainer.begin_phase(task, learner, 1, None)
        assert learner.optimizer is before
        assert bool(before.state) == kept  # type: ignore[union-attr]


def test_each_phase_has_a_seed_of_its_own() -> None:
    task = make_task("random_labels", "method=base")
    learner, seeds = Learner.new(task), set()
    for index in range(3):
        trainer.begin_phase(task, learner, index, None)
        seeds.add(torch.initial_seed())
    assert len(seeds) == 3


def test_gradients_are_clipped_together() -> None:
    task = make_task("random_labels", "optimizer=sgd", "lr=0.1", "grad_clip=0.01")
    learner = Learner.new(task)
    trainer.begin_phase(task, learner, 0, None)
    before = [p.detach().clone() for p in learner.model.parameters()]
    trainer.train_step(task, learner, next(trainer.batches(task, 0)), acts=False)
    changes = [p - old for p, old in zip(learner.model.parameters(), before, strict=True)]
    assert torch.nn.utils.get_total_norm(changes).item() == pytest.approx(0.1 * 0.01, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("benchmark.samples=1281", r"^benchmark.samples=1281 is more than the 1280 training images"),
        ("benchmark=slowly_changing_regression", r"^benchmark=slowly_changing_regression has no images: it needs"),
        ("benchmark=permuted_online epochs=3", r"^benchmark.online=true sees each image once in a task: epochs"),
        ("dataset=bits", r"^dataset=bits has fewer than two classes: benchmark=random_labels has"),
        (
            "benchmark=warm_start benchmark.ratio=1 dataset.train_size=50",
            r"^benchmark.ratio=1 leaves no samples of 50 for the first phase$",
        ),
        (
            "benchmark=warm_start dataset.train_size=10 holdout=0.5",
            r"^holdout=0.5: the class \d has one training image$",
        ),
        (
            "benchmark=warm_start benchmark.ratio=4 dataset.train_size=40 holdout=0.5",
            r"^holdout=0.5: benchmark.ratio=4 leaves no samples of 20 for the first phase$",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(options: str, says: str) -> None:
    others = [option for option in TINY.options if option != "benchmark.tasks=3" or "warm_start" not in options]
    with pytest.raises(ConfigError, match=says):
        trainer.Task.from_config(TINY.compose_only([*others, *options.split()]))


class Mine(RandomLabels):
    """A stream of a user's own, in which `samples` and `epochs` of the phases are those of the test."""

    lengths: ClassVar[list[tuple[int, int]]] = []

    def phases(self, data: ImageData, epochs: int, seed: int) -> list[Phase]:
        if self.share < 1:
            raise ValueError(f"share={self.share} is too little for this stream")
        return [Phase(np.arange(samples), np.arange(0), number) for samples, number in self.lengths]


@pytest.mark.parametrize(
    ("lengths", "options", "says"),
    [
        ([], (), r"^benchmark=random_labels has no phases$"),
        ([(0, 1)], (), r"^benchmark=random_labels: phase 0 would make no training step: "),
        ([(64, 1), (0, 1)], (), r"^benchmark=random_labels: phase 1 would make no training step: "),
        ([(64, 1), (64, 0)], (), r"^benchmark=random_labels: phase 1 would make no training step: "),
        ([(64, 1)], ("benchmark.share=0.5",), r"^benchmark.share=0.5 is too little for this stream$"),
    ],
)
def test_a_stream_of_the_users_own_is_refused_before_the_first_step(
    lengths: list[tuple[int, int]], options: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mine, "lengths", lengths)
    config = TINY.compose(*options)
    config.benchmark._target_ = f"{__name__}.Mine"
    with pytest.raises(ConfigError, match=says):
        trainer.Task.from_config(config)


class Returning(RandomLabels):
    """A stream of a user's own, whose `phases` returns what the test sets."""

    returned: ClassVar[Callable[[], object]]

    def phases(self, data: ImageData, epochs: int, seed: int) -> list[Phase]:
        return type(self).returned()  # type: ignore[return-value]


def task_of_phases(returned: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> trainer.Task:
    monkeypatch.setattr(Returning, "returned", staticmethod(returned), raising=False)
    config = TINY.compose()
    config.benchmark._target_ = f"{__name__}.Returning"
    return trainer.Task.from_config(config)


ALL = np.arange(64)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (lambda: None, r"phases\(\) must return a list of Phase, not None$"),
        (lambda: [(ALL, ALL)], r"phases\(\) must return a list of Phase, and number 0 is a tuple$"),
        (lambda: [Phase(ALL / 2, ALL, 1)], r"a phase's train must hold indices, .*; got float64 of shape \(64,\)$"),
        (lambda: [Phase(ALL, ALL > 3, 1)], r"a phase's test must hold indices, .*; got bool of shape \(64,\)$"),
        (lambda: [Phase(ALL + 9999, ALL, 1)], r"phase 0 asks for training image 9999, and the data set has 1280, "),
        (lambda: [Phase(ALL, ALL - 1, 1)], r"phase 0 asks for test image -1, and the data set has 517, from 0$"),
        (lambda: [Phase(ALL, ALL, 1, unseen=ALL + 500)], r"phase 0 asks for test image 517, "),
    ],
)
def test_phases_that_cannot_be_trained_on_are_refused(
    returned: Callable[[], object], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=f"^benchmark=random_labels: {says}"):
        task_of_phases(returned, monkeypatch)


@pytest.mark.parametrize("samples", [list(range(64)), torch.arange(64), np.arange(64, dtype=np.uint16)])
def test_phases_may_come_one_by_one_and_their_indices_in_any_kind(
    samples: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of_phases(lambda: (Phase(samples, [], 1) for _ in range(2)), monkeypatch)  # type: ignore[arg-type]
    assert [len(labels) for _, labels in trainer.batches(task, 1)] == [64]


def first_images(data: ImageData) -> ImageData:
    return replace(data, train_images=data.train_images[:30], train_labels=data.train_labels[:30])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (first_images, r"asks for training image 30, and the data set has 30, from 0$"),
        (lambda data: None, r": change must return an ImageData, not a NoneType$"),
    ],
)
def test_data_of_a_phase_that_do_not_fit_it_are_refused(
    change: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of_phases(lambda: [Phase(ALL, [], 1), Phase(ALL, [], 1, change=change)], monkeypatch)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"^benchmark=random_labels: phase 1 ?{says}"):
        task.data_of(1)


@pytest.mark.parametrize("benchmark", ["warm_start", "continual", "class_incremental", "random_labels", "permuted"])
def test_data_without_a_training_image_are_refused(benchmark: str) -> None:
    digits = load_digits()
    empty = replace(digits, train_images=digits.train_images[:0], train_labels=digits.train_labels[:0])
    others = [option for option in TINY.options if option != "benchmark.tasks=3"]
    config = TINY.compose_only([*others, f"benchmark={benchmark}"])
    with pytest.raises(ConfigError, match=r"^dataset=digits has no training images$"):
        trainer.Task.from_config(config, empty)


@pytest.mark.parametrize("stream", STREAMS)
def test_rows_hold_the_averages_over_the_run(stream: str, tmp_path: Path) -> None:
    folder = TINY.run(tmp_path, f"benchmark={stream}", *STREAMS[stream], "metrics=cheap")
    found: list[dict[str, Any]] = [row for row in rows(folder) if "kind" not in row]
    kind = "loss" if stream == "slowly_changing_regression" else "accuracy"
    ends = [max((row for row in found if row["phase"] == phase), key=lambda row: row["step"]) for phase in range(3)]
    end = "test/accuracy" if stream == "permuted" else f"train/{kind}"
    assert found[-1][f"online/{kind}"] == pytest.approx(np.mean([row[f"train/{kind}"] for row in found]))
    assert found[-1][f"task_end/{kind}"] == pytest.approx(np.mean([row[end] for row in ends]))
    assert f"task_end/{kind}" not in found[0] or found[0] == ends[0]
    assert ("test/accuracy" in found[0]) == (stream == "permuted")
    assert ("train/accuracy" in found[0]) == (kind == "accuracy")
    boundaries = [row for row in rows(folder) if "kind" in row]
    assert len(boundaries) == 2
    if kind == "accuracy":  # base does nothing at a boundary
        assert all(
            row["boundary/previous_accuracy_before"] == row["boundary/previous_accuracy_after"] for row in boundaries
        )
    assert summary(folder)[trainer.Task.from_config(TINY.compose(f"benchmark={stream}", *STREAMS[stream])).headline] > 0


def test_accuracy_on_the_task_before_is_that_of_its_own_labels(tmp_path: Path) -> None:
    """The network's accuracy right before the boundary, on the labels with which it was trained."""
    options = ("benchmark.samples=64", "epochs=60", "model.hidden=64", "lr=0.01", "metrics=cheap")
    folder = TINY.run(tmp_path, "benchmark=random_labels", *options)
    (first, _) = [row for row in rows(folder) if "kind" in row]
    last = [row for row in rows(folder) if row["phase"] == 0][-1]
    assert last["train/accuracy"] > 0.9
    assert first["boundary/previous_accuracy_before"] > 0.9


@pytest.mark.parametrize("stream", STREAMS)
def test_cut_in_a_task_and_resumed(stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = [f"benchmark={stream}", *STREAMS[stream], "method=fire"]
    options += ["benchmark.share=0.25"] if stream in ("random_labels", "permuted") else []
    calm = TINY.run(tmp_path / "calm", *options)
    real, steps, last = trainer.Loop.advance, 0, rows(calm)[-1]["step"]

    def step_or_cut(*arguments: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == last - 1:
            raise KeyboardInterrupt
        real(*arguments)

    monkeypatch.setattr(trainer.Loop, "advance", step_or_cut)
    monkeypatch.setattr(trainer.Run, "checkpoint_due", property(lambda _: steps % 3 == 0))
    with pytest.raises(KeyboardInterrupt):
        TINY.run(tmp_path / "rough", *options)
    assert_same(TINY.run(tmp_path / "rough", *options), calm)


def test_methods_act_in_the_first_phase_of_warm_start_but_in_the_paper_s_variant(tmp_path: Path) -> None:
    """A first phase is shared by all that do not act within it, and by nobody else."""
    warm = Program(
        "vision",
        "vision.train",
        (*TINY.options[:6], "benchmark=warm_start", "epochs=1", "batch_size=256", "metrics=off"),
    )
    first: dict[str, list[list[dict[str, Any]]]] = {}
    for variant in ("original", "fire_paper"):
        folders = [
            warm.run(tmp_path / variant, f"variant={variant}", f"method={name}", f"paths.cache={tmp_path / 'cache'}")
            for name in ("base", "fire", "l2init")
        ]
        first[variant] = [[row for row in rows(folder) if row["phase"] == 0] for folder in folders]
    base, fire, l2init = first["original"]
    assert base == fire != l2init
    assert first["fire_paper"] == [base] * 3
    assert len(list((tmp_path / "cache").glob("vision-*/DONE"))) == 2, "one for each variant"
    alone = warm.run(tmp_path / "alone", "method=l2init", "cache=off")
    assert [row for row in rows(alone) if row["phase"] == 0] == l2init
    asked = warm.compose("method=l2init", "benchmark.methods_from_phase=1")
    assert trainer.Task.from_config(asked).first_phase_identity() is not None


@pytest.mark.slow
def test_base_loses_its_plasticity_on_random_labels_and_fire_keeps_it(tmp_path: Path) -> None:
    """The default program, smaller and at a higher rate, so that eight tasks suffice: base 0.16 to 0.38, FIRE 0.91."""
    small = ("benchmark.tasks=8", "benchmark.samples=256", "model.hidden=64", "epochs=20", "lr=0.01")
    whole = Program("vision", "vision.train", ("tracker=none", "progress=false", *small))
    last = {method: rows(whole.run(tmp_path, f"method={method}"))[-1] for method in ("base", "fire")}
    assert last["base"]["train/accuracy"] < 0.5
    assert last["fire"]["train/accuracy"] > 0.8
