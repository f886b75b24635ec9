"""Seeds trained at once leave the runs that they are when each is trained alone."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fire_core.harness.options.errors import ConfigError
from fire_core.harness.run.schema import outline
from fire_core.harness.run.stack import execute_stack
from fire_core.harness.stacked.optimizer import StackedOptimizer
from fire_core.harness.training.console import show_log
from tests.harness.run.test_damage import newest, rewrite
from tests.kills import die_at
from tests.programs import ALIKE, Program, assert_same, final_state, in_child, rows, summary
from tests.zygote import Zygote
from vision.learner import Learner
from vision.phase import make_row
from vision.stack import check
from vision.stack.train import Stack
from vision.train import PROGRAM, STACKING, begin_phase

LABELS = ("benchmark=random_labels", "benchmark.tasks=3", "benchmark.samples=300", "model.norm=false")
SMALL = ("model.hidden=20", "model.depth=2", "epochs=2", "batch_size=32", "dataset.train_size=320")
TINY = Program("vision", "vision.train", (*ALIKE, *SMALL))
SEEDS = 3
# Each with options with which it acts.
METHODS = {
    "base": (),
    "fire": (),
    "full_reset": (),
    "snp": (),
    "l2init": ("method.coef=1",),  # a penalty
    "spectral": (),  # a penalty that keeps vectors
    "redo": ("method.threshold=0.9",),  # at the end of an epoch; touches the optimizer's state
    "weight_clipping": (),  # after each step
    "upgd": (),  # an optimizer that draws random numbers
    "muon": (),  # an optimizer that looks at whole matrices
    "cbp": ("method.rate=0.05", "method.maturity=2"),  # sees activations in each pass
    "trac": (),  # looks at the weights before each step and after it
    "hare_tortoise": ("method.every=1",),  # keeps a copy, which the network goes back to
    "cpr": ("method.every=4",),  # looks at gradients after each step
    "snr": ("method.percentile=0.5", "method.max_age=100", "method.every=1", "lr=0.1"),  # moves thresholds by epochs
    "l2_er": ("method.every=4", "method.lr=0.1"),  # keeps inputs, and passes them through the networks again
    "c_chain": ("method.warmup=4", "method.window=6", "method.scale=1.0"),  # likewise, as a penalty
}


@pytest.fixture(autouse=True)
def _one_thread_and_log() -> None:
    torch.set_num_threads(1)
    show_log()


def stack(runs: Path, *options: str, seeds: int = SEEDS) -> list[Path]:
    """Train seeds at once; their folders."""
    config = TINY.compose(*options, f"stack={seeds}", f"paths.runs={runs}")
    execute_stack(config, PROGRAM, STACKING)
    return sorted((runs / "vision").iterdir())


def alone(runs: Path, *options: str, seeds: int = SEEDS) -> list[Path]:
    """Train each seed alone; their folders."""
    return [TINY.run(runs, *options, f"seed={seed}") for seed in range(seeds)]


def assert_all_same(one: list[Path], other: list[Path]) -> None:
    assert len(one) == len(other) > 1
    for a, b in zip(one, other, strict=True):
        assert_same(a, b)
        assert (a / "identity.json").read_bytes() == (b / "identity.json").read_bytes()
        assert summary(a).keys() == summary(b).keys()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of a run without intervention."""
    return rows(TINY.run(tmp_path_factory.mktemp("base"), "method=base", *LABELS))


@pytest.mark.parametrize("method", METHODS)
def test_each_seed_is_its_own_run_bit_for_bit(method: str, tmp_path: Path, base: list[dict[str, Any]]) -> None:
    options = (f"method={method}", *METHODS[method], *LABELS)
    single = alone(tmp_path / "alone", *options)
    assert (rows(single[0])[-1]["train/loss"] != base[-1]["train/loss"]) == (method != "base"), "it did nothing here"
    assert_all_same(stack(tmp_path / "stack", *options), single)


@pytest.mark.parametrize("method", ["muon", "upgd"])
def test_optimizers_of_methods_step_at_once(method: str, tmp_path: Path) -> None:
    """What each leaves is the same either way, only slower one by one."""
    tasks = check.make_tasks(TINY.compose(*LABELS, f"method={method}", "stack=2", f"paths.runs={tmp_path}"))
    runs: Any = [None, None]
    made = Stack(tasks, runs, runs, begin_phase)
    made.begin_phase(0)
    made.begin_steps(acts=True)
    assert isinstance(made.optimizer, StackedOptimizer)


@pytest.mark.parametrize("hidden", [16, 20])
def test_batch_norm_and_test_accuracy_are_the_same_too(hidden: int, tmp_path: Path) -> None:
    """Whether or not the features fill whole vectors of the CPU."""
    options = ("method=fire", "benchmark=warm_start", "cache=off", f"model.hidden={hidden}")
    assert_all_same(stack(tmp_path / "stack", *options), alone(tmp_path / "alone", *options))


def test_a_regression_of_single_examples_is_equal_within_rounding(tmp_path: Path) -> None:
    """Products with one row are summed in another order: a millionth after 300 steps."""
    options = (
        "benchmark=slowly_changing_regression", "dataset=bits", "benchmark.tasks=3", "benchmark.every=100", "epochs=1",
        "batch_size=1", "model.norm=false", "model.depth=1", "model.hidden=5", "method=fire",
    )  # fmt: skip
    tiny = Program("vision", "vision.train", ALIKE)
    config = tiny.compose(*options, f"stack={SEEDS}", f"paths.runs={tmp_path / 'stack'}")
    execute_stack(config, PROGRAM, STACKING)
    for seed, one in enumerate(sorted((tmp_path / "stack/vision").iterdir())):
        other = tiny.run(tmp_path / "alone", *options, f"seed={seed}")
        assert one.name == other.name
        for a, b in zip(rows(one), rows(other), strict=True):
            assert a.pop("kind", None) == b.pop("kind", None)
            assert a == pytest.approx(b, rel=1e-4, abs=1e-6)
        torch.testing.assert_close(final_state(one)["model"], final_state(other)["model"], rtol=1e-4, atol=1e-5)


def test_other_networks_are_batched_by_vmap_within_rounding(tmp_path: Path) -> None:
    options = ("model=small_resnet", "epochs=1", "dataset.train_size=128", "batch_size=64", "method=fire", "cache=off")
    tiny = Program("vision", "vision.train", ALIKE)
    config = tiny.compose(*options, "benchmark=warm_start", "stack=2", f"paths.runs={tmp_path / 'stack'}")
    execute_stack(config, PROGRAM, STACKING)
    for seed, one in enumerate(sorted((tmp_path / "stack/vision").iterdir())):
        other = tiny.run(tmp_path / "alone", *options, "benchmark=warm_start", f"seed={seed}")
        assert one.name == other.name
        first, second = (next(row for row in rows(folder) if "kind" not in row) for folder in (one, other))
        assert first == pytest.approx(second, rel=1e-3)


# ---- what is done already


def test_only_what_is_missing_is_trained_wherever_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("method=fire", *LABELS, "epochs=3")
    calm = alone(tmp_path / "alone", *options, seeds=4)
    runs = tmp_path / "stack"
    (done,) = [TINY.run(runs, *options, "seed=1")]
    mark = (done / "DONE").stat().st_mtime_ns

    class Cut(Exception):
        pass

    def cut_in_phase_1(*arguments: Any) -> dict[str, Any]:
        row = make_row(*arguments)
        if row["phase"] == 1:
            raise Cut
        return row

    with monkeypatch.context() as patch:
        patch.setattr("vision.train.make_row", cut_in_phase_1)
        with pytest.raises(Cut):
            TINY.run(runs, *options, "seed=2")
    assert_all_same(stack(runs, *options, seeds=4), calm)
    assert (done / "DONE").stat().st_mtime_ns == mark
    assert stack(runs, *options, seeds=4), "a stack that is done is skipped"
    assert TINY.run(runs, *options, "seed=0") == sorted((runs / "vision").iterdir())[0]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_killed_stack_resumes(call: str, tmp_path: Path) -> None:
    """Killed while some seeds have their next checkpoint and others have not."""
    options = ("method=fire", *LABELS, "checkpoint.every_seconds=0.01")
    calm = stack(tmp_path / "calm", *options)

    def die() -> None:
        die_at(call, 31)
        stack(tmp_path / "rough", *options)

    assert in_child(die) is None
    assert not list((tmp_path / "rough/vision").glob("*/DONE"))
    assert_all_same(stack(tmp_path / "rough", *options), calm)


def test_the_first_phase_is_shared_with_runs_trained_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("benchmark=warm_start", f"cache.dir={tmp_path / 'cache'}")
    TINY.run(tmp_path / "first", *options, "method=base", "seed=1")
    one = stack(tmp_path / "stack", *options, "method=fire")
    shown = capsys.readouterr().err
    assert "first phase taken from" in shown
    assert "training the first phase of 2 runs" in shown
    assert_all_same(one, alone(tmp_path / "alone", *options, "method=fire"))


# ---- what is damaged


def other_phase(content: Any) -> None:
    content["state"]["trainer"]["phase"] = 99


def other_network(content: Any) -> None:
    content["state"]["trainer"]["init"]["head.weight"] = torch.zeros(2, 2)
    content["schema"] = outline(content["state"])


def no_moments(content: Any) -> None:
    del content["state"]["trainer"]["optimizer"]["param_groups"]
    content["schema"] = outline(content["state"])


DAMAGE = (other_phase, other_network, no_moments)  # the last is seen only when it is loaded


def test_damaged_checkpoints_of_a_stack_cost_time_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("method=redo", *LABELS, "epochs=1", "checkpoint.every_seconds=0.2")
    calm = stack(tmp_path / "calm", *options)
    shutil.copytree(tmp_path / "calm", tmp_path / "rough")
    for kind, folder in zip(DAMAGE, sorted((tmp_path / "rough/vision").iterdir()), strict=True):
        (folder / "DONE").unlink()
        rewrite(newest(folder), kind)
    assert_all_same(stack(tmp_path / "rough", *options), calm)
    err = capsys.readouterr().err
    assert [err.count(text) for text in ("phase must be in", "init: head.weight", "param_groups")] == [1, 1, 1]
    assert len(list(tmp_path.glob("rough/vision/*/checkpoints/damaged-*"))) == SEEDS


def test_damaged_first_phases_of_a_stack_are_trained_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("benchmark=warm_start", f"cache.dir={tmp_path / 'cache'}", "epochs=1")
    calm = stack(tmp_path / "calm", *options, "method=fire")
    for kind, entry in zip(DAMAGE, sorted((tmp_path / "cache").iterdir()), strict=True):
        rewrite(newest(entry), kind)
    assert_all_same(stack(tmp_path / "again", *options, "method=fire"), calm)
    assert capsys.readouterr().err.count("training it again") == SEEDS


# ---- what cannot be


def test_a_seed_that_diverges_harms_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("method=l2init", *LABELS)
    calm = alone(tmp_path / "alone", *options)
    real = Learner.new.__func__  # type: ignore[attr-defined]

    def poisoned(cls: type[Learner], task: Any) -> Learner:
        learner: Learner = real(cls, task)
        if task.config.seed == 1:
            learner.model.get_parameter("head.weight").data[0, 0] = torch.nan
        return learner

    monkeypatch.setattr(Learner, "new", classmethod(poisoned))
    with pytest.raises(SystemExit) as leave:
        stack(tmp_path / "stack", *options)
    assert leave.value.code == 3
    found = sorted((tmp_path / "stack/vision").iterdir())
    assert "not finite at step 0" in (found[1] / "FAILED").read_text()
    assert not (found[1] / "DONE").exists()
    assert_all_same([found[0], found[2]], [calm[0], calm[2]])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("on_nan=skip", "benchmark=warm_start"), "it needs on_nan=stop"),
        (("benchmark=class_incremental", "benchmark.chunks=3"), "not of one length for all seeds"),
    ],
)
def test_what_cannot_be_stacked_runs_one_by_one(
    options: tuple[str, ...], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = stack(tmp_path / "stack", "method=base", *options)
    assert f"{reason}. The seeds are trained one by one" in capsys.readouterr().err
    assert_all_same(one, alone(tmp_path / "alone", "method=base", *options))


def test_more_than_there_is_room_for_is_refused_in_one_line(tmp_path: Path, zygote: Zygote) -> None:
    for stack, reason in ((10**9, "GB are free: at most "), (0, "stack must be at least 1, got 0")):
        answer = zygote.run(tmp_path, "vision.train", *TINY.tiny(f"stack={stack}", "benchmark=warm_start"))
        assert answer.code == 2
        assert answer.err.count("\n") == 1
        assert reason in answer.err
    assert not (tmp_path / "runs").exists()


def test_files_that_may_be_open_limit_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check.resource, "getrlimit", lambda _: (100, 100))
    monkeypatch.setattr(check, "free_bytes", lambda _: 10**12)
    with pytest.raises(ConfigError, match=r"^stack=20 needs 40 open files: at most 18, or raise `ulimit -n`$"):
        check.check_room(PROGRAM.make_task(TINY.compose("benchmark=warm_start")), 20)
