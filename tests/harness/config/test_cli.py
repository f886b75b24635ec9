"""Wrong input: one line that names the option and what is accepted, a code, and nothing written."""

from pathlib import Path

import pytest

from tests.zygote import Zygote

CASES = {
    ("method=fier",): "error: method=fier is unknown (did you mean fire?); accepted: adamo, base,",
    ("lr=abc",): "error: lr=abc: Value 'abc' of type 'str' could not be converted to Float",
    ("model.hidden=-1",): "error: model.hidden must be in [1, 1048576], got -1",
    ("lerning_rate=1",): "error: option lerning_rate is unknown; accepted: ",
    ("model.norm=no",): "error: model.norm must be true or false or layer, got 'no'",
    ("model.activation=rleu",): "error: model.activation=rleu is unknown; accepted: relu, crelu, fourier",
    ("model._target_=my.Net",): "error: model._target_=my.Net cannot be imported: ",
    ("model.hiden=8",): "error: option model.hiden is unknown (did you mean hidden?); accepted: ",
    ("dataset=cifar10", "dataset.root=nowhere"): "error: dataset=cifar10 is not there: put ",
    ("method=fire", "method.solver=exat"): "error: method.solver=exat is unknown; accepted: newton_schulz, exact",
    ("method=dash", "method.every=5"): "error: method.every has no effect with method.variant=original",
    (
        "method=chain",
        "method.parts.redo.every=2",
    ): "error: method.parts.redo.every has no effect: method.of=[fire,muon] do",
    ("benchmark=warm_start", "benchmark.ratio=500"): "error: benchmark.ratio must be in [1, 100]",
    ("benchmark.tasks=0",): "error: benchmark.tasks must be in [1, 100000], got 0",
    ("benchmark.samples=1281",): "error: benchmark.samples=1281 is more than the 1280 training images",
    ("dataset=bits",): "error: dataset=bits has fewer than two classes: benchmark=random_labels has",
    ("benchmark=slowly_changing_regression",): "error: benchmark=slowly_changing_regression has no images: it needs",
    ("benchmark=permuted_online", "epochs=3"): "error: benchmark.online=true sees each image once in a task: epochs",
    (
        "tuned=warm_start_cifar",
    ): "error: tuned=warm_start_cifar is unknown (did you mean warm_start_cifar10?); accepted:",
    ("tuned=dqn",): "error: tuned=dqn is unknown; accepted: auto, none, class_incremental_cifar100, ",
    ("tuned=null",): "error: tuned=null is unknown; accepted: auto, class_incremental_cifar100, ",
    ("device=cuda:77",): "error: device=cuda:77: torch sees",
    ("method.name=../x",): "error: method.name='../x' goes into a path",
}


@pytest.mark.parametrize("arguments", CASES, ids=" ".join)
def test_wrong_input(arguments: tuple[str, ...], tmp_path: Path, zygote: Zygote) -> None:
    answer = zygote.run(tmp_path, "vision.train", "tracker=none", *arguments)
    assert answer.code == 2
    assert answer.err.startswith(CASES[arguments]), answer.err
    assert answer.err.count("\n") == 1
    assert not list(tmp_path.iterdir()), "nothing half-written"


def test_a_traceback_when_asked_for(tmp_path: Path, zygote: Zygote) -> None:
    answer = zygote.run(tmp_path, "vision.train", "model.hidden=-1", HYDRA_FULL_ERROR="1")
    assert answer.code != 0
    assert "Traceback" in answer.err


def test_a_sweep_goes_on_past_a_failed_job_and_tells_of_all(tmp_path: Path, zygote: Zygote) -> None:
    options = ("scale=smoke", "tracker=none", "progress=false", "model.hidden=4")
    first = zygote.run(tmp_path, "vision.train", *options, "method=snp", "method.coef=7,0.5", "-m")
    table = [line for line in first.err.splitlines() if line.startswith("scale=smoke")]
    assert first.code == 2
    assert "failed    method.coef must be in [0, 1], got 7" in table[0]
    assert "done      task_end/accuracy" in table[1]
    again = zygote.run(tmp_path, "vision.train", *options, "method=snp", "method.coef=0.5,0.6", "-m")
    table = [line for line in again.err.splitlines() if line.startswith("scale=smoke")]
    assert again.code == 0
    assert "skipped   task_end/accuracy" in table[0]
    assert "done      task_end/accuracy" in table[1]
    assert again.err.count("first phase taken from") == 1


def test_a_sweep_of_nothing_is_refused(tmp_path: Path, zygote: Zygote) -> None:
    answer = zygote.run(tmp_path, "vision.train", "scale=smoke", "seed=range(0)", "-m")
    assert answer.code == 2
    assert answer.err == "error: -m starts nothing: an option has no value (seed=range(0))\n"
    assert not list(tmp_path.iterdir())


def test_help_names_the_groups(tmp_path: Path, zygote: Zygote) -> None:
    answer = zygote.run(tmp_path, "vision.train", "--help")
    assert answer.code == 0
    for word in ("method", "full_reset", "snp", "fire_exact", "scale", "smoke", "tracker", "dataset"):
        assert word in answer.out
    assert "networks:" not in answer.out  # another program's
    assert "tuned/" not in answer.out
