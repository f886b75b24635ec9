"""The real trainer: phases and checkpoints, kills and signals, methods, wrong input, several processes."""

import json
import logging
import math
import os
import re
import signal
import socket
from pathlib import Path

import pytest
import torch

from harness.config.errors import ConfigError
from language import process_group
from language.task import Task
from tests.language.conftest import Runs
from tests.programs import LANGUAGE, assert_same, final_state, only_run, rows, same, wait_for


@pytest.fixture(scope="module")
def undisturbed(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of FIRE from the best checkpoint."""
    folder = tmp_path_factory.mktemp("undisturbed")
    answer = runs(folder, "method=fire")
    assert answer.code == 0, answer.err
    return folder


def task_of(runs: Runs, *options: str) -> Task:
    """The task of a small run on the data of `runs`."""
    return Task.from_config(LANGUAGE.compose(*options, f"paths.data={runs.data}"))


def train_here(runs: Runs, folder: Path, *options: str) -> Path:
    """Train in this process on the data of `runs`, and return the run's folder."""
    return LANGUAGE.run(folder / "runs", f"paths.data={runs.data}", *options)


def test_rows_and_summary(undisturbed):
    run = only_run(undisturbed / "runs")
    found = [row for row in rows(run) if "kind" not in row]
    assert [row["step"] for row in found] == list(range(2, 81, 2))  # every 20th of each phase
    assert [row["phase"] for row in found] == [0] * 20 + [1] * 20
    needed = {"iteration", "train/loss", "val/loss", "lr", "tokens"}
    assert all(needed <= row.keys() for row in found)
    assert found[-1]["tokens"] == 80 * 2 * 32
    assert {"val/loss_first", "val/loss_second"} <= found[-1].keys()
    mixed = 0.1 * found[-1]["val/loss_first"] + 0.9 * found[-1]["val/loss_second"]
    assert found[-1]["val/loss"] == pytest.approx(mixed)
    assert found[0]["train/loss"] == pytest.approx(math.log(256), abs=0.2)  # an untrained model is uniform
    assert found[19]["val/loss"] < found[0]["val/loss"] - 0.3
    boundary = rows(run)[20]
    assert boundary["boundary/dfi_after"] < boundary["boundary/dfi_before"]
    assert boundary["boundary/val_loss_after"] != boundary["boundary/val_loss_before"]
    summary = json.loads((run / "DONE").read_text())
    assert summary["val/loss"] == found[-1]["val/loss"]
    assert summary["steps"] == 80


@pytest.mark.slow
def test_a_compiled_run_is_the_same_run(undisturbed, runs, tmp_path):
    answer = runs(tmp_path / "traced", "method=fire", "compile=default", before="traces_only")
    assert answer.code == 0, answer.err
    one, other = only_run(undisturbed / "runs"), only_run(tmp_path / "traced" / "runs")
    losses = [[row["val/loss"] for row in rows(run) if "kind" not in row] for run in (one, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    weights = [final_state(run)["modules"]["model"] for run in (one, other)]
    assert weights[0].keys() == weights[1].keys(), "the bare network's names"


def cache_of(folder: Path) -> Path:
    """The first phase of the plain tiny run: the oldest entry."""
    return min((folder / "runs" / ".cache").iterdir(), key=lambda entry: (entry / "DONE").stat().st_mtime_ns)


@pytest.mark.parametrize("start", ["best", "20", "end"])
def test_starting_checkpoint(undisturbed, runs, tmp_path, caplog, start):
    """Phase 1 of `base` starts from the weights that phase 0 had then; phase 0 is trained once for all of them."""
    cache = cache_of(undisturbed)
    options = (f"benchmark.start={start}", "benchmark.iterations=[40,1]", f"paths.cache={cache.parent}")
    caplog.set_level(logging.INFO)
    run = train_here(runs, tmp_path, "method=base", *options)
    assert "first phase taken from" in caplog.text
    found, state = rows(run), final_state(cache)
    best = min(found[:20], key=lambda row: row["val/loss"])["step"]
    first = found[20]
    assert first["boundary/start_iteration"] == {"best": best, "20": 20, "end": 40}[start]
    assert first["boundary/sfe"] == 0  # base does nothing
    assert first["boundary/val_loss_before"] == first["boundary/val_loss_after"]
    weights = state["modules"]["model"] if start == "end" else state["kept"][start]["weights"]
    after = final_state(run)["modules"]["model"]
    for name, weight in weights.items():  # one step away, by about the learning rate
        assert not torch.equal(after[name], weight)
        assert (after[name] - weight).abs().max() < 2.5e-3
    others = [state["modules"]["model"] if name == "end" else state["kept"]["20"]["weights"]
              for name in ("end", "20") if name != start]  # fmt: skip
    assert any((after["lm_head.weight" if "lm_head.weight" in o else "transformer.wte.weight"]
                - o["transformer.wte.weight"]).abs().max() > 2.5e-3 for o in others)  # fmt: skip


def test_from_scratch_and_full_reset_are_the_same_training(undisturbed, runs, tmp_path):
    cache = f"paths.cache={cache_of(undisturbed).parent}"
    scratch = rows(train_here(runs, tmp_path / "a", "method=base", "benchmark.start=scratch"))
    reset = rows(train_here(runs, tmp_path / "b", "method=full_reset", "benchmark.start=end", cache))
    assert {row["phase"] for row in scratch} == {1}
    assert scratch[0]["kind"] == "boundary"
    assert [row.get("val/loss") for row in scratch] == [row.get("val/loss") for row in reset[-len(scratch) :]]


def test_kills_change_nothing(undisturbed, runs, tmp_path):
    """SIGKILL at moments of both phases; rows and weights are those of the undisturbed run, bit for bit."""
    options = ("method=fire", "checkpoint.every_seconds=0.02")
    for lines in (4, 31):
        child = runs.start(tmp_path, *options)
        wait_for(lambda n=lines: written(tmp_path) >= n)
        os.kill(child, signal.SIGKILL)
        assert runs.zygote.wait(child) == -signal.SIGKILL
    answer = runs(tmp_path, *options)
    assert answer.code == 0
    assert "resumed at step" in answer.err
    assert rows(only_run(tmp_path / "runs")) == rows(only_run(undisturbed / "runs"))
    assert same(final_state(only_run(tmp_path / "runs")), final_state(only_run(undisturbed / "runs")))


def written(folder: Path) -> int:
    """Rows in the run that gets on best, be it the shared first phase's."""
    files = [*folder.glob("runs/.cache/*/metrics.jsonl"), *folder.glob("runs/language/*/metrics.jsonl")]
    return max((len(file.read_text().splitlines()) for file in files), default=0)


@pytest.mark.parametrize(
    "options",
    [
        ["method=fire_exact"],
        ["method=l2init", "precision=float16"],
        ["method=l2init", "precision=bfloat16", "model.activation=swiglu", "model.n_kv_head=1"],
        ["method=redo", "model.activation=relu2", "method.threshold=0.5"],
    ],
    ids=lambda options: options[0],
)
def test_methods(undisturbed, runs, tmp_path, options):
    if options == ["method=fire_exact"]:
        shape = [f"paths.cache={cache_of(undisturbed).parent}"]
    else:
        shape = ["benchmark.iterations=[12,12]", "benchmark.checkpoints=[6]"]
    found = rows(train_here(runs, tmp_path, *options, *shape))
    assert all(math.isfinite(row["val/loss"]) for row in found if "kind" not in row)
    if options == ["method=fire_exact"]:
        assert found[20]["boundary/dfi_after"] < 1e-6 * found[20]["boundary/dfi_before"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["tokenizer=bpe"], "tokenizer=bpe is unknown; accepted: byte, gpt2"),
        (["benchmark.start=30k"], "start=30k is not kept; accepted: best, end, scratch, 20"),
        (["benchmark.start=late"], "start=late is unknown; accepted: best, end, scratch"),
        (["benchmark.checkpoints=[99]"], "go beyond phase 0, which has 40 steps"),
        (["benchmark.iterations=null", "benchmark.passes=[0,1]"], "benchmark.passes[0] must be in (0, 1000000]"),
        (["model.block_size=100000"], "too few for model.block_size=100000"),
        (["dataset=wiki_owt"], "python -m language.prepare dataset=wikitext103"),
        (["method=cbp", "compile=default"], "compile=off"),
        (["dataset=texts"], "dataset=text needs path="),
        (["method=weight_clipping", "precision=float16"], "gradient scaler has skipped one"),
        (["dataset=wiki_owt", "dataset.first.repository=/data/w"], "dataset.repository=/data/w tokenizer="),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, list) else "",
)
def test_wrong_input_is_one_line(runs, options, says):
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        task_of(runs, *options)
    assert "\n" not in str(caught.value)


def test_divergence_ends_a_run_in_one_line(runs, tmp_path):
    answer = runs(tmp_path, "lr=1e30")
    assert answer.code == 3, answer.err
    (line,) = [line for line in answer.err.splitlines() if line.startswith("error:")]
    assert "not finite" in line
    assert "Traceback" not in answer.err


# ---- several processes


def torchrun_environment(rank: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }  # fmt: skip


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start_two(runs: Runs, folder: Path, *options: str) -> list[int]:
    port = free_port()
    return [runs.start(folder, *options, **torchrun_environment(rank, port)) for rank in (0, 1)]


def losses(folder: Path) -> torch.Tensor:
    return torch.tensor([[r["train/loss"], r["val/loss"]] for r in rows(only_run(folder / "runs")) if "kind" not in r])


def test_two_processes_are_one(runs, tmp_path):
    """The same global batch gives the same curve, also when both are stopped on the way and one is resumed alone."""
    options = ("method=l2init", "accumulation=4", "benchmark.iterations=[12,12]", "benchmark.checkpoints=[6]")
    for name in ("one", "two", "stopped"):
        (tmp_path / name).mkdir()
    assert runs(tmp_path / "one", *options).code == 0
    children = start_two(runs, tmp_path / "two", *options)
    codes = [runs.zygote.wait(child) for child in children]
    assert codes == [0, 0], [runs.zygote.output(tmp_path / "two", child, "err") for child in children]
    torch.testing.assert_close(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-4, atol=1e-4)

    children = start_two(runs, tmp_path / "stopped", *options)
    wait_for(lambda: written(tmp_path / "stopped") >= 17)
    os.kill(children[1], signal.SIGTERM)  # one is enough: they tell each other
    assert [runs.zygote.wait(child) for child in children] == [75, 75]
    assert runs(tmp_path / "stopped", *options).code == 0
    torch.testing.assert_close(losses(tmp_path / "stopped"), losses(tmp_path / "one"), rtol=1e-4, atol=1e-4)


def test_two_processes_drop_what_one_drops(runs, tmp_path):
    options = ("accumulation=4", "model.dropout=0.3", "benchmark.iterations=[6,6]", "benchmark.checkpoints=[3]")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    assert runs(tmp_path / "one", *options).code == 0
    children = start_two(runs, tmp_path / "two", *options)
    assert [runs.zygote.wait(child) for child in children] == [0, 0]
    torch.testing.assert_close(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-4, atol=1e-4)


def test_a_job_that_fails_on_the_first_rank_alone_leaves_the_next_its_own_numbers(runs, tmp_path):
    """A file stands where the folder of the first job's run would be, which the first rank alone opens."""
    options = ("benchmark.iterations=[6,6]", "benchmark.checkpoints=[3]", "accumulation=2")
    for name in ("alone", "first", "two"):
        (tmp_path / name).mkdir()
    assert runs(tmp_path / "first", *options, "seed=0").code == 0
    assert runs(tmp_path / "alone", *options, "seed=1").code == 0
    blocked = tmp_path / "two" / only_run(tmp_path / "first" / "runs").relative_to(tmp_path / "first")
    blocked.parent.mkdir(parents=True)
    blocked.write_text("no folder")
    children = start_two(runs, tmp_path / "two", *options, "seed=0,1", "-m")
    codes = [runs.zygote.wait(child) for child in children]
    assert codes[0] != 0
    blocked.unlink()
    torch.testing.assert_close(losses(tmp_path / "two"), losses(tmp_path / "alone"), rtol=1e-4, atol=1e-4)


def test_a_kill_of_two_processes_changes_nothing(runs, tmp_path):
    """In each phase: rows and weights are those of two undisturbed processes, bit for bit."""
    options = ("method=fire", "accumulation=2", "benchmark.iterations=[12,12]", "benchmark.checkpoints=[6]")
    options += ("checkpoint.every_seconds=0",)
    for name in ("undisturbed", "killed"):
        (tmp_path / name).mkdir()
    children = start_two(runs, tmp_path / "undisturbed", *options)
    assert [runs.zygote.wait(child) for child in children] == [0, 0]
    for lines in (3, 16):
        children = start_two(runs, tmp_path / "killed", *options)
        wait_for(lambda n=lines: written(tmp_path / "killed") >= n)
        for child in children:  # as torchrun does when one of them dies
            os.kill(child, signal.SIGKILL)
        assert [runs.zygote.wait(child) for child in children] == [-signal.SIGKILL] * 2
    children = start_two(runs, tmp_path / "killed", *options)
    assert [runs.zygote.wait(child) for child in children] == [0, 0]
    assert "resumed at step" in runs.zygote.output(tmp_path / "killed", children[0], "err")
    assert_same(only_run(tmp_path / "killed" / "runs"), only_run(tmp_path / "undisturbed" / "runs"))


def test_what_shapes_the_first_phase_is_in_its_identity_and_one_start_has_one_spelling(runs):
    shapes = [task_of(runs, f"dataset.mix_by={mix_by}").first_phase_identity() for mix_by in ("sequence", "batch")]
    assert shapes[0] != shapes[1]
    thousand = ("benchmark.iterations=[2000,2]", "benchmark.checkpoints=[1000]")
    one, other = (task_of(runs, *thousand, f"benchmark.start={start}").identity() for start in ("1k", "1000"))
    assert one == other


def test_accumulation_must_be_dealt_out(runs, monkeypatch):
    for variable, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match="accumulation=3 batches cannot be dealt to 2 processes"):
        task_of(runs, "accumulation=3")


def test_a_number_of_processes_without_processes_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers and schedulers may set WORLD_SIZE although nobody has started several processes."""
    for variable in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR"):
        monkeypatch.delenv(variable, raising=False)
    for size in ("", "2"):
        monkeypatch.setenv("WORLD_SIZE", size)
        assert process_group.world_size() == 1
    for variable in ("RANK", "MASTER_ADDR"):
        monkeypatch.setenv(variable, "1")
    assert process_group.world_size() == 2
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ConfigError, match="WORLD_SIZE in the environment is no number: 'two'"):
        process_group.world_size()
