"""A trained run back as modules: the same numbers, and nothing from a folder that is not what a run writes."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from omegaconf import OmegaConf

import harness
from harness.config.errors import ConfigError, TrainingError
from harness.config.groups import compose_with_hydra, without_hydra
from harness.run import checkpoint
from harness.trained.options import recompose
from tests.programs import ALIKE, CLOCKS, DQN, LANGUAGE, SAC, SMALL, VISION, Program, only_run, rows
from vision.task import Task as VisionTask

RUNS: dict[str, tuple[Program, tuple[str, ...]]] = {
    "vision": (VISION, ("method=fire", "epochs=1")),
    "vision, chain": (
        VISION,
        ("epochs=1", "method=chain", "method.of=fire+l2init", "method.parts.fire.layout={conv:project}"),
    ),
    "language": (LANGUAGE, ("method=fire",)),
    "dqn": (DQN, ("method=fire",)),
    "dqn, injection": (DQN, ("method=pi",)),
    "sac": (SAC, ("method=fire", "env_steps=200", "eval_every=50", "random_steps=40")),
}
MEASURED = ("test/", "val/", "eval/")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished run of vision, which no test changes."""
    program, options = RUNS["vision"]
    return program.run(tmp_path_factory.mktemp("runs"), *options)


@pytest.mark.parametrize("name", RUNS)
def test_the_numbers_of_the_last_row_come_again(name: str, finished: Path, tmp_path: Path) -> None:
    program, options = RUNS[name]
    folder = finished if name == "vision" else program.run(tmp_path, *options)
    last = rows(folder)[-1]
    trained = harness.load(folder)
    assert trained.row == last | {key: trained.row[key] for key in CLOCKS if key in trained.row}
    measured = trained.evaluate()
    expected = {key: value for key, value in last.items() if key.startswith(MEASURED)}
    assert expected
    assert measured == pytest.approx(expected, rel=1e-6)
    assert not any(module.training for module in trained.modules.values())
    assert trained.evaluate() == measured, "evaluating changes nothing"
    assert not any(module.training for module in trained.modules.values())


def state_of_torch() -> dict[str, Any]:
    return {
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "fills": torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        "random": [torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())],  # noqa: NPY002
    }


@pytest.mark.parametrize("name", ["vision", "language", "dqn", "sac"])
def test_loading_and_evaluating_change_nothing_of_the_process(name: str, tmp_path: Path) -> None:
    program, options = RUNS[name]
    folder = program.run(tmp_path, *options)
    before = state_of_torch()
    try:
        torch.set_num_threads(2)
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
        torch.manual_seed(12345)
        mine = state_of_torch()
        trained = harness.load(folder)
        assert state_of_torch() == mine
        trained.evaluate()
        assert state_of_torch() == mine
    finally:
        torch.set_num_threads(before["threads"])
        torch.use_deterministic_algorithms(before["deterministic"])
        torch.utils.deterministic.fill_uninitialized_memory = before["fills"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_an_agent_is_played_where_its_replay_does_not_fit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, options = RUNS[name]
    folder = program.run(tmp_path, *options)
    monkeypatch.setattr("harness.config.memory.available_bytes", lambda device: 1000)
    with pytest.raises(ConfigError, match=r"needs .* GB of memory"):
        program.run(tmp_path / "other", *options)
    trained = harness.load(folder)
    assert trained.evaluate()
    assert trained.learner.replay.rows == 1


def test_weights_fit_torchvision_s_own_class(tmp_path: Path) -> None:
    import torchvision

    stream = ("benchmark=random_labels", "benchmark.tasks=2", "benchmark.samples=64", "epochs=1", "cache=off")
    config = VISION.compose_only((*ALIKE, *stream, "model=torchvision", "model.name=resnet18"))
    trained = harness.load(VISION.run_composed(tmp_path, config))
    other = torchvision.models.resnet18(num_classes=10)
    other.conv1 = torch.nn.Conv2d(1, 64, 7, stride=2, padding=3, bias=False)  # the digits are grey
    other.load_state_dict(trained.model.state_dict())
    images = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8)
    x = trained.preprocess(images).double()
    assert torch.allclose(other.eval().double()(x), trained.model.double()(x))


@pytest.mark.parametrize("stream", ["permuted", "permuted_online", "random_labels"])
def test_images_are_shown_to_a_network_as_it_saw_them_last(stream: str, tmp_path: Path) -> None:
    options = (f"benchmark={stream}", "benchmark.tasks=2", "benchmark.samples=64", "epochs=1", "cache=off")
    trained = harness.load(VISION.run(tmp_path, *options))
    task = VisionTask.from_config(VISION.compose(*options))
    phase = task.phases[1]
    samples = phase.train[:5]
    images, _ = task.train_batch(1, torch.from_numpy(samples))
    if stream != "random_labels":  # a task's data set holds the run's images alone
        samples = phase.change.keywords["images"][samples]
    stored = task.data.train_images[samples]
    assert torch.allclose(trained.preprocess(stored), images, atol=1e-5)
    for wrong in (stored / 255, stored[:, :, :4, :4], stored[0]):
        with pytest.raises(ValueError, match=r"the network was trained on torch\.uint8 \(n, 1, 8, 8\), and these"):
            trained.preprocess(wrong)


def test_an_older_state_is_loaded_only_where_the_newest_is_damaged(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / finished.name
    shutil.copytree(finished, folder)
    (earlier,) = checkpoint.newest_first(folder / "checkpoints")
    newest = earlier.with_name(earlier.name.replace("step-0", "step-1"))
    shutil.copy(earlier, newest)
    read, refuses = checkpoint.read, [True]

    def refuse(path: Path, device: str) -> Any:
        if path == newest and refuses:
            raise TrainingError(f"{path} cannot be read at the moment")
        return read(path, device)

    monkeypatch.setattr(checkpoint, "read", refuse)
    with pytest.raises(TrainingError, match="cannot be read at the moment"):
        harness.load(folder)
    del refuses[:]
    newest.write_bytes(newest.read_bytes()[:-100])
    assert harness.load(folder).step
    assert f"checkpoint {newest} is damaged" in caplog.text


def changed(finished: Path, to: Path, **options: Any) -> Path:
    """A copy of a run folder in whose file some dotted options (with `__` for the dot) have other values."""
    folder = Path(shutil.copytree(finished, to))
    values = yaml.safe_load((folder / "config.yaml").read_text())
    for name, value in options.items():
        node = values
        *parents, last = name.split("__")
        for parent in parents:
            node = node[parent]
        node[last] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    return folder


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method___target_": "os.system"}, "no file of conf/method builds"),
        ({"model___target_": "builtins.eval"}, "no file of conf/model builds"),
        ({"seed": "${oc.env:HOME}"}, "seed is a reference"),
        ({"method__layout": {"_target_": "os.getcwd"}}, "names something to build"),
        ({"method___partial_": True}, "method._partial_ is unknown here"),
        ({"method__iterations": -3}, "iterations"),
        ({"lr": "much"}, "lr"),
        ({"method__news": 1}, "another version of this project: option method.news is unknown"),
        ({"news": 1}, "another version of this project: option news is unknown"),
        ({"program": "os"}, "no program of this project"),
        ({"model__width": 4}, "do not fit .* size mismatch for"),
    ],
)
def test_a_hostile_or_foreign_folder_is_one_line(
    options: dict[str, Any], says: str, finished: Path, tmp_path: Path
) -> None:
    folder = changed(finished, tmp_path / "run", **options)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=says) as caught:
        harness.load(folder)
    assert "\n" not in str(caught.value)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("zz: !!pairs [a: {_target_: os.getcwd}]", "a tuple is no value of an option"),
        ("zz: !!omap [a: {_target_: os.getcwd}]", "a tuple is no value"),
        ("zz: !!set {a, b}", "a set is no value"),
        ("zz: !!binary aGVsbG8=", "a bytes is no value"),
        ("zz: 2001-01-01", "a date is no value"),
        ("zz: 2001-99-99", "is damaged"),
        ("zz: !!bool x", "is damaged"),
        ("zz: !!timestamp x", "is damaged"),
        (f"zz: {'9' * 5000}", "is damaged"),
        ("zz: {1: 2}", "a name of an option is no text"),
        ('"a\\e[31m": 1', "a name of an option is no text"),
        ("zz: ???", r"'\?\?\?' is no value of an option"),
        (f"zz: 0x{'f' * 5000}", "more than 64 bits"),
        (f"zz: {'[' * 60}{']' * 60}", "too many within each other"),
        ("zz: &a [*a]", "it has aliases"),
        ("zz: &a {b: *a}", "it has aliases"),
        (
            "a0: &a0 {x: 1}\n" + "".join(f"a{i + 1}: &a{i + 1} {{<<: [{f'*a{i}, ' * 9}]}}\n" for i in range(9)),
            "it has aliases",
        ),
        (
            "a0: &a0 [x, x]\n" + "".join(f"a{i + 1}: &a{i + 1} [{f'*a{i}, ' * 9}x]\n" for i in range(9)),
            "it has aliases",
        ),
    ],
)
def test_only_plain_values_are_options(line: str, says: str, finished: Path, tmp_path: Path) -> None:
    """A `_target_` within a tuple was built: `!!pairs` gives tuples."""
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    with open(folder / "config.yaml", "a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ConfigError, match=says) as caught:
        harness.load(folder)
    assert "\n" not in str(caught.value)


def test_a_pipe_and_a_program_that_is_no_text_are_one_line(finished: Path, tmp_path: Path) -> None:
    folder = changed(finished, tmp_path / "run", program=["vision"])
    with pytest.raises(ConfigError, match="no program of this project"):
        harness.load(folder)
    (folder / "config.yaml").unlink()
    os.mkfifo(folder / "config.yaml")
    with pytest.raises(ConfigError, match=r"it is no regular file|Invalid argument"):
        harness.load(folder)


@pytest.mark.parametrize(
    ("program", "option"), [(DQN, "env.game"), (SAC, "env.task"), (SAC, "benchmark.sequence")], ids=str
)
def test_a_module_with_environments_is_imported_only_if_it_is_named(
    program: Program, option: str, tmp_path: Path
) -> None:
    config = program.compose(*(["benchmark=continual_control"] if "sequence" in option else []))
    name = "module_of_a_stranger:Hopper-v5"
    OmegaConf.update(config, option, [name] if "sequence" in option else name)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(OmegaConf.to_container(config, resolve=True)))
    with pytest.raises(
        ConfigError, match=rf"{option}={name} is code of the module .*modules=\['module_of_a_stranger'\]"
    ):
        recompose(tmp_path)
    assert OmegaConf.select(recompose(tmp_path, modules=["module_of_a_stranger"]), option) in (name, [name])


def test_a_language_run_is_loaded_with_the_tokens_that_are_there(tmp_path: Path) -> None:
    """Where they are missing nothing is prepared: the folder's options say where that would be written."""
    folder = LANGUAGE.run(tmp_path, "method=base", f"paths.data={tmp_path / 'data'}")
    assert harness.load(folder).step
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"is not prepared in .*: run python -m language\.prepare dataset="):
        harness.load(folder)
    assert not (tmp_path / "data").exists()


def test_no_name_in_a_folder_is_imported(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`identity.json` says which files of one's own a run was trained with: only those of its options are looked at."""
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    (folder / "module_of_a_stranger.py").write_text("raise SystemExit('the code of a stranger runs')\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.syspath_prepend(tmp_path)
    for target in ("module_of_a_stranger.X", "run.module_of_a_stranger.X"):
        identity = json.loads((finished / "identity.json").read_text())
        identity["run"]["other"] = {"_target_": target, "_target_ (content)": "0"}
        (folder / "identity.json").write_text(json.dumps(identity))
        assert harness.load(folder).step
    assert not caplog.text


@pytest.mark.parametrize(
    ("content", "damaged"),
    [
        (b"{bad", True),
        (b"[" * 100_000, True),
        (b"\xff\xfe", True),
        (b'{"a": {"_target_ (content)": "1"}}', False),
        (b'{"_target_": [], "_target_ (content)": 1}', False),
    ],
)
def test_a_damaged_identity_is_a_warning(
    content: bytes, damaged: bool, finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    (folder / "identity.json").write_bytes(content)
    assert harness.load(folder).step
    assert ("is damaged" in caplog.text) == damaged


def test_a_folder_that_lacks_something_is_one_line(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no run folder"):
        harness.load(tmp_path)
    with pytest.raises(ConfigError, match="is no run folder"):
        harness.load(tmp_path / "nothing")
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    (checkpoint,) = (folder / "checkpoints").glob("*.pt")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-10])
    with pytest.raises(ConfigError, match="does not match its checksum"):
        harness.load(folder)
    checkpoint.unlink()
    with pytest.raises(ConfigError, match="it has no checkpoint"):
        harness.load(folder)
    (folder / "config.yaml").write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        harness.load(folder)


@pytest.mark.parametrize(
    ("program", "options"),
    [
        (DQN, ("method=snp",)),  # conf/tuned/values/dqn has an argument that conf/method has not
        (DQN, ("method=snp", "tuned=none", "+method.layout=all")),
        (VISION, ("+optimizer.weight_decay=0.1",)),
        (VISION, ("optimizer=sgd", "+optimizer.momentum=0.9")),
        (VISION, ("~optimizer.fused",)),
        (VISION, ("method=chain", "method.of=fire+snp", "+method.parts.snp.layout={conv:project}")),
        (LANGUAGE, ("dataset=wikitext103", "++dataset.expected_tokens={mine:5}", "~dataset.expected_tokens.gpt2")),
        (LANGUAGE, ("dataset=wiki_then_owt", "~dataset.second.revision")),  # a pair without a target of its own
        (SAC, ("+env.options.healthy_reward=2",)),
    ],
)
def test_a_run_has_the_options_that_it_was_trained_with(
    program: Program, options: tuple[str, ...], tmp_path: Path
) -> None:
    values = OmegaConf.to_container(program.compose(*options), resolve=True)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    assert OmegaConf.to_container(recompose(tmp_path), resolve=True) == values


def test_observations_and_texts_of_another_kind_are_refused(tmp_path: Path) -> None:
    dqn = harness.load(DQN.run(tmp_path, "method=fire"))
    emulator = dqn.task.emulator
    values = dqn.model(dqn.preprocess(np.zeros((3, emulator.stack, *emulator.frame))))
    assert values.shape == (3, emulator.actions)
    with pytest.raises(
        ValueError, match=r"was trained on torch.float32 \(n, \d, \d\), the last \d obs.* are .* \(3, 9\)"
    ):
        dqn.preprocess(np.zeros((3, 9)))
    sac = harness.load(SAC.run(tmp_path, *RUNS["sac"][1]))
    mean, log_std = sac.model(sac.preprocess(np.zeros((3, sac.task.observations))))
    assert mean.shape == log_std.shape == (3, sac.task.actions)
    with pytest.raises(ValueError, match=r"observations \(n, \d+\), and these are \(3, 99\)"):
        sac.preprocess(np.zeros((3, 99)))
    language = harness.load(LANGUAGE.run(tmp_path))
    logits, loss = language.model(language.preprocess("a text"))
    assert (logits.shape[:2], loss) == ((1, 1), None)
    with pytest.raises(TypeError, match="takes one text, and this is list"):
        language.preprocess(["a text"])


def test_a_run_with_an_added_option_is_loaded(tmp_path: Path) -> None:
    trained = harness.load(SMALL.run(tmp_path, "method=snp", "+method.layout={linear:reinit}"))
    assert trained.config.method["layout"] == {"linear": "reinit"}
    folder = changed(only_run(tmp_path), tmp_path / "newer", method__momentum=0.9)
    with pytest.raises(ConfigError, match=r"option method\.momentum is unknown here"):
        harness.load(folder)


@pytest.mark.parametrize("name", ["conf", 'größe, a=b (it\'s) [1] {2} #3 "4"'])
def test_one_s_own_method_needs_its_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder may be called as any folder may."""
    conf = tmp_path / name
    (conf / "method").mkdir(parents=True)
    (conf / "method" / "mine.yaml").write_text("_target_: own_module.Own\nname: mine\ncoef: 0.1\n")
    (tmp_path / "own_module.py").write_text(
        "from fire_core.methods.weight_decay import WeightDecay\nclass Own(WeightDecay):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    SMALL.compose()  # makes the types of its options known
    config = compose_with_hydra("vision", SMALL.tiny("method=mine"), conf)
    folder = SMALL.run_composed(tmp_path / "runs", without_hydra(config))
    with pytest.raises(ConfigError, match="one made with --config-dir"):
        harness.load(folder)
    with pytest.raises(ConfigError, match=r"config_dir=.*elsewhere is no folder"):
        harness.load(folder, config_dir=tmp_path / "elsewhere")
    trained = harness.load(folder, config_dir=conf)
    assert trained.row == json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


def test_a_chain_has_one_s_own_method(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    (conf / "method").mkdir(parents=True)
    method = "_target_: fire_core.methods.weight_decay.WeightDecay\nname: mine\ncoef: 0.1\n"
    (conf / "method" / "mine.yaml").write_text(method)
    SMALL.compose()  # makes the types of its options known
    options = SMALL.tiny("method=chain", "method.of=fire+mine")
    values = OmegaConf.to_container(without_hydra(compose_with_hydra("vision", options, conf)), resolve=True)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    assert OmegaConf.to_container(recompose(tmp_path, conf), resolve=True) == values
