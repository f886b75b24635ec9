"""Streams of texts: each against an independent construction, each number of a row against a hand computation."""

import copy
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from harness.config.errors import ConfigError
from harness.run import checkpoint
from language import phase as surroundings
from language.benchmark import Corpora, Phase, Setting
from language.learner import Learner
from language.phase import EARLIER, averages, divergence, earlier_tasks, losses_on
from language.streams import OneText
from language.task import Task, batch_at
from tests.programs import ALIKE, LANGUAGE, Program, summary
from tests.zygote import Zygote

SMALL = ("model.n_layer=1", "model.n_head=2", "model.n_embd=16", "model.block_size=16", "batch_size=4")
STREAM = Program("language", "language.train", (*ALIKE, *SMALL, "eval_sequences=6"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three texts of words of their own."""
    place = tmp_path_factory.mktemp("texts")
    for number, name in enumerate(("a", "b", "c")):
        draw = random.Random(number)
        words = ["".join(draw.choices("etaoinshrdlu"[number:] + name * 3, k=draw.randint(2, 6))) for _ in range(50)]
        paragraphs = [" ".join(draw.choices(words, k=30)) for _ in range(40)]
        (place / f"{name}.txt").write_text("\n\n".join(paragraphs))
    return place


def permuted(folder: Path, *overrides: str) -> list[str]:
    text = f"dataset.path={folder}/a.txt"
    own = ["benchmark=permuted_text", "dataset=text", text, "benchmark.tasks=3", "benchmark.iterations=10"]
    return [*own, f"paths.data={folder}/data", *overrides]


def domains(folder: Path, *overrides: str) -> list[str]:
    texts = [f"dataset.first.path={folder}/a.txt", f"dataset.second.path={folder}/b.txt"]
    return ["benchmark=domains", "dataset=texts", *texts, f"dataset.more=[{folder}/c.txt]", "benchmark.iterations=4",
            f"paths.data={folder}/data", *overrides]  # fmt: skip


def task_of(overrides: list[str]) -> Task:
    return Task.from_config(STREAM.compose(*overrides))


def rows_of(tmp_path: Path, overrides: list[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of a run, and those of its boundaries."""
    lines = (STREAM.run(tmp_path, *overrides) / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if "kind" not in row], [row for row in rows if row.get("kind") == "boundary"]


def test_permuted_text_is_the_text_in_another_alphabet(folder: Path) -> None:
    """Undone by the alphabet that was drawn, a batch is a run of the file's bytes; each task has its own alphabet."""
    task = task_of(permuted(folder, "seed=5"))
    text = task.corpora["text"]["train"].tokens.tobytes()
    alphabets = []
    for index, phase in enumerate(task.phases):
        assert phase.relabel is not None
        order = phase.relabel(torch.arange(256))
        assert sorted(order.tolist()) == list(range(256))
        back = {new: old for old, new in enumerate(order.tolist())}
        inputs, targets = batch_at(task, index, 3, 0)
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        for row in inputs.tolist():
            assert bytes(back[token] for token in row) in text
        held_out = task.held_out(index)[f"task {index}"]
        plain = bytes(back[token] for token in held_out[0].tolist())
        assert plain in task.corpora["text"]["val"].tokens.tobytes()
        alphabets.append(order)
    assert not torch.equal(alphabets[0], alphabets[1])
    other = task_of(permuted(folder, "seed=6")).phases[0].relabel
    assert other is not None
    assert not torch.equal(other(torch.arange(256)), alphabets[0])
    again = task_of(permuted(folder, "seed=5", "benchmark.tasks=2"))
    assert torch.equal(batch_at(again, 1, 3, 0)[0], batch_at(task, 1, 3, 0)[0])  # whatever comes after
    assert len({batch_at(task, *place)[0].numpy().tobytes() for place in ((1, 3, 0), (1, 4, 0), (1, 3, 1))}) == 3


def test_domains_come_in_turn_and_the_first_again(folder: Path) -> None:
    task = task_of(domains(folder))
    assert [list(phase.val) for phase in task.phases] == [["first"], ["second"], ["text 3"], ["first"]]
    for index, name in enumerate(("a", "b", "c", "a")):
        text = (folder / f"{name}.txt").read_bytes().replace(b"\n\n", b"\0")
        for row in batch_at(task, index, 0, 0)[0].tolist():
            assert bytes(row) in text + b"\0"
    mixed = task_of(domains(folder, "benchmark.pretrain=6", "benchmark.tasks=5"))
    assert [phase.length.steps for phase in mixed.phases] == [6, 4, 4, 4, 4, 4]
    assert mixed.phases[0].data.probabilities == pytest.approx([1 / 3] * 3)
    assert [weight for _, weight in mixed.phases[0].val.values()] == pytest.approx([1 / 3] * 3)
    assert [list(phase.val) for phase in mixed.phases[3:]] == [["text 3"], ["first"], ["second"]]


def test_earlier_tasks_are_those_not_trained_now(folder: Path) -> None:
    task = task_of(domains(folder, "benchmark.tasks=6"))
    names = [list(earlier_tasks(task, index)) for index in range(6)]
    assert names[:3] == [[], ["first"], ["first", "second"]]
    assert names[3:] == [["second", "text 3"], ["first", "text 3"], ["first", "second"]]
    many = task_of(permuted(folder, "benchmark.tasks=40"))
    chosen = [int(name.removeprefix("task ")) for name in earlier_tasks(many, 39)]
    assert (len(chosen), chosen[0], chosen[-1]) == (EARLIER, 0, 38)
    assert torch.equal(earlier_tasks(many, 39)["task 0"], many.held_out(0)["task 0"])


def test_rows_of_a_stream(folder: Path, tmp_path: Path) -> None:
    """Averages, stability and the numbers of both sides of a boundary, recomputed from the other rows."""
    rows, boundaries = rows_of(tmp_path, permuted(folder, "method=fire", "lr=1e-2"))
    assert [row["step"] for row in rows] == [3, 6, 9, 10, 13, 16, 19, 20, 23, 26, 29, 30]
    weights = [3, 3, 3, 1]
    losses = [row["train/loss"] for row in rows]
    for task in range(3):
        mine, last = losses[4 * task : 4 * task + 4], rows[4 * task + 3]
        assert last["task/loss"] == pytest.approx(np.average(mine, weights=weights))
        assert last["online/loss"] == pytest.approx(np.average(losses[: 4 * task + 4], weights=weights * (task + 1)))
        assert last["task_end/loss"] == pytest.approx(np.mean(losses[3 : 4 * task + 4 : 4]))
    ends = [rows[3], rows[7], rows[11]]
    assert "stability/earlier_loss" not in ends[0]
    first = ends[1]
    assert first["stability/backward_transfer"] == pytest.approx(ends[0]["val/loss"] - first["stability/earlier_loss"])
    for end, boundary in zip(ends, boundaries, strict=False):
        assert boundary["boundary/previous_loss_before"] == pytest.approx(end["val/loss"], abs=1e-12)
        assert boundary["boundary/previous_loss_after"] != end["val/loss"]
        assert boundary["boundary/kl"] > 0
    assert boundaries[0]["boundary/earlier_loss_after"] == boundaries[0]["boundary/previous_loss_after"]
    assert "boundary/start_iteration" not in boundaries[0]
    own = [end["val/loss"] for end in ends]
    held = [own[i] - loss for i, loss in enumerate(losses_at_end(folder, tmp_path, ends))]
    assert ends[2]["stability/backward_transfer"] == pytest.approx(np.mean(held), abs=1e-6)


def losses_at_end(folder: Path, tmp_path: Path, ends: list[dict[str, Any]]) -> list[float]:
    """The losses of the first two tasks with the run's last weights."""
    (run,) = (tmp_path / "language").glob("*-fire-*")
    task = task_of(permuted(folder, "method=fire", "lr=1e-2"))
    learner = Learner.new(task)
    newest = checkpoint.newest_first(run / "checkpoints")[0]
    learner.model.load_state_dict(checkpoint.read(newest)["state"]["trainer"]["modules"]["model"])
    losses = losses_on(task, learner, {str(i): task.held_out(i)[f"task {i}"] for i in (0, 1)})
    assert np.mean(list(losses.values())) == pytest.approx(ends[2]["stability/earlier_loss"], abs=1e-6)
    return list(losses.values())


def test_the_baseline_keeps_function_and_optimizer(folder: Path, tmp_path: Path) -> None:
    """Base does nothing at a boundary, and its optimizer goes on; with optimizer=new it does not."""
    rows, boundaries = rows_of(tmp_path / "keep", permuted(folder, "method=base"))
    assert [row["boundary/kl"] for row in boundaries] == [0, 0]
    for row in boundaries:
        assert row["boundary/earlier_loss_before"] == row["boundary/earlier_loss_after"]
    new, _ = rows_of(tmp_path / "new", permuted(folder, "method=base", "benchmark.optimizer=new"))
    assert [row["train/loss"] for row in new[:4]] == [row["train/loss"] for row in rows[:4]]
    assert new[4]["train/loss"] != rows[4]["train/loss"]


def test_what_comes_before_the_first_task_is_in_no_average(folder: Path, tmp_path: Path) -> None:
    rows, _ = rows_of(tmp_path, domains(folder, "benchmark.pretrain=8", "benchmark.tasks=2"))
    assert not any("online/loss" in row for row in rows if row["phase"] == 0)
    ends = [row for row in rows if "task_end/loss" in row]
    assert ends[0]["task_end/loss"] == ends[0]["train/loss"]
    assert ends[0]["online/loss"] == pytest.approx(ends[0]["task/loss"])


def test_divergence_by_hand(folder: Path) -> None:
    task = task_of(permuted(folder))
    learner = Learner.new(task)
    old = copy.deepcopy(learner.model).eval()
    parameters = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.mul_(1.5)
    rows = task.held_out(0)["task 0"]
    with torch.no_grad():
        p, q = (torch.softmax(m(rows[:, :-1], rows[:, 1:])[0].double(), -1) for m in (old, learner.model.eval()))
    by_hand = (p * torch.log(p / q)).sum(-1).mean().item()
    assert by_hand > 1e-5
    assert divergence(task, learner, parameters, {"task 0": rows}) == pytest.approx(by_hand, rel=1e-3)
    now = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    assert divergence(task, learner, now, {"task 0": rows}) == 0


def test_a_measurement_in_small_batches_is_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(permuted(folder))
    learner = Learner.new(task)
    old = {name: 1.5 * p.detach() for name, p in learner.model.named_parameters()}
    rows = {"task 0": task.held_out(0)["task 0"]}

    def measured() -> tuple[int, float, float]:
        number = len(surroundings.own_batches(task, rows["task 0"]))
        return number, losses_on(task, learner, rows)["task 0"], divergence(task, learner, old, rows)

    at_once = measured()
    monkeypatch.setattr(surroundings, "MAX_BATCH_BYTES", 1)
    one_by_one = measured()
    assert at_once[0] < one_by_one[0] == len(rows["task 0"])
    assert one_by_one[1:] == pytest.approx(at_once[1:], rel=1e-6)


def test_without_measurements_a_boundary_tells_how_far_the_weights_moved(folder: Path, tmp_path: Path) -> None:
    rows, boundaries = rows_of(tmp_path / "off", permuted(folder, "method=fire", "metrics=off"))
    assert {key for row in boundaries for key in row if key.startswith("boundary/")} == {"boundary/sfe"}
    known, _ = rows_of(tmp_path / "cheap", permuted(folder, "method=fire"))
    assert [row["val/loss"] for row in rows] == [row["val/loss"] for row in known]


def test_averages_by_hand() -> None:
    first = {"step": 3, "phase": 0, "train/loss": 4.0}
    first |= averages(first, {}, 3, ended=False)
    assert (first["online/loss"], first["task/loss"], "task_end/loss" in first) == (4.0, 4.0, False)
    second = {"step": 4, "phase": 0, "train/loss": 2.0}
    second |= averages(second, first, 4, ended=True)
    assert (second["online/loss"], second["task/loss"], second["task_end/loss"]) == (3.5, 3.5, 2.0)
    third = {"step": 6, "phase": 1, "train/loss": 5.0}
    third |= averages(third, second, 2, ended=True)
    assert (third["online/loss"], third["task/loss"], third["task_end/loss"]) == (4.0, 5.0, 3.5)
    assert not math.isnan(sum(v for v in third.values()))


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("benchmark=permuted_text", "dataset=pydoc_stdlib"), "benchmark=permuted_text has one text"),
        (("benchmark=one_text", "dataset=pydoc_stdlib"), "benchmark=one_text has one text: dataset=stdlib, "),
        (("benchmark=domains", "dataset=stdlib"), "benchmark=domains needs two texts or more"),
        (("benchmark=continual_pretraining", "dataset=stdlib"), "benchmark=one_text trains on one"),
        (("benchmark=permuted_text", "benchmark.optimizer=old"), "benchmark.optimizer must be"),
        (("benchmark=domains", "dataset=texts", "dataset.more=3"), "dataset.more must be a list"),
        (("benchmark=permuted_text", "dataset=pydoc", "model.block_size=999999"), "too few for model.block_size"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(overrides: tuple[str, ...], line: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=line) as error:
        task_of([*overrides, f"paths.data={folder}/data"])
    assert "\n" not in str(error.value)


def test_one_text_without_paragraphs_trains(tmp_path: Path) -> None:
    words = " ".join(f"word{i % 50} and" for i in range(2000))
    (tmp_path / "my.txt").write_bytes(words.replace("word9 ", "word9\r\n").encode("utf-8-sig"))
    options = ("benchmark=one_text", "dataset=text", f"dataset.path={tmp_path}/my.txt", f"paths.data={tmp_path}/data")
    folder = STREAM.run(tmp_path / "runs", *options, "benchmark.iterations=20")
    assert folder.name.startswith("one_text-text-base-s0-")
    assert summary(folder)["task_end/loss"] < math.log(256)


def test_checkpoints_that_nobody_named_need_not_fit(tmp_path: Path, zygote: Zygote) -> None:
    """What is named is known by the command line."""
    options = [option for option in LANGUAGE.options if not option.startswith("benchmark.checkpoints")]
    options = [*options, "benchmark.iterations=[8,4]"]
    answer = zygote.run(tmp_path, "language.train", *(o for o in options if o != "benchmark.iterations=[40,40]"))
    assert answer.code == 0, answer.err
    assert "benchmark.checkpoints: [12] are beyond phase 0, which has 8 steps, and not kept" in answer.err


def test_presets_compose() -> None:
    for name, blocks in (("permuted_text", 2), ("domains", 2), ("permuted_text_0.1b", 12), ("domains_0.1b", 12)):
        config = STREAM.compose_only([f"experiment={name}"])
        assert (config.model.n_layer, config.min_lr_ratio, config.optimizer.weight_decay) == (blocks, 1.0, 0.0)
        assert OmegaConf.to_container(config, resolve=True)
        assert "start" not in config.benchmark
    assert STREAM.compose_only(["experiment=domains", "dataset=texts"]).dataset.name == "texts"


def test_a_full_reset_of_the_pair_is_one_run_from_any_start(folder: Path, tmp_path: Path) -> None:
    """Its second phase has the same rows from both checkpoints, so that its runs have one identity."""
    texts = ["dataset=texts", f"dataset.first.path={folder}/a.txt", f"dataset.second.path={folder}/b.txt"]
    pair = [
        "benchmark=continual_pretraining",
        *texts,
        f"paths.data={folder}/data",
        "benchmark.iterations=[12,8]",
        "benchmark.checkpoints=[4]",
    ]
    found = {}
    for start in ("best", "4"):
        rows, _ = rows_of(tmp_path / start, [*pair, "method=full_reset", f"benchmark.start={start}"])
        found[start] = [row["train/loss"] for row in rows if row["phase"] == 1]
    assert found["best"] == found["4"]
    one, other, third = (
        task_of([*pair, f"method={method}", f"benchmark.start={start}"]).identity()
        for method, start in (("full_reset", "best"), ("full_reset", "end"), ("base", "end"))
    )
    assert one == other
    assert third["benchmark"]["start"] == "end"
    assert task_of([*pair, "method=full_reset", "benchmark.start=scratch"]).identity() != one


class Stopped(OneText):
    """A stream of a user's own whose second phase has no iteration."""

    def phases(self, corpora: Corpora, setting: Setting) -> list[Phase]:
        phase = self.phase(corpora, list(corpora), setting)
        return [phase, replace(phase, length=replace(phase.length, steps=0))]


def test_a_phase_without_a_step_is_refused(folder: Path) -> None:
    text = ("dataset=text", f"dataset.path={folder}/a.txt", f"paths.data={folder}/data")
    config = STREAM.compose("benchmark=one_text", *text)
    config.benchmark._target_ = f"{__name__}.Stopped"
    with pytest.raises(ConfigError, match=r"^benchmark=one_text: phase 1 would make no training step: "):
        Task.from_config(config)
