"""What a run is: one value has one spelling, an environment its own name; folders of older versions stay valid."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from omegaconf import OmegaConf

from analysis.plotting import title
from analysis.runs import BadRun, LeftOut, Run, select, settings
from analysis.sources import folders
from harness.program.by_name import program_of
from harness.program.execute import new_run
from harness.run.identity import digest, identity, one_spelling, own_name
from tests.programs import DQN, LANGUAGE, SAC, SMALL, Program
from tests.rl.own import ACTIONS, Own, register

NOWHERE = Path("/nowhere")  # a folder for runs of which the name alone is asked


def folder_of(program: Program, runs: Path, *options: str) -> Path:
    """Where the run of these options is, or would be."""
    config = program.compose(*options)
    config.paths.runs = str(runs)
    known = program_of(program.name)
    return new_run(config, known, known.make_task(config), None).folder


def test_one_value_has_one_spelling() -> None:
    spellings = ("1", "1.0", "1.", "1e0", "10e-1")
    folders_of = {folder_of(SMALL, NOWHERE, "method=l2init", f"method.coef={text}") for text in spellings}
    assert len(folders_of) == 1
    assert folder_of(SMALL, NOWHERE, "method=l2init", "method.coef=1.5") not in folders_of


def takes_numbers(
    single: float = 0.5,
    several: list[float] | None = None,
    pair: "tuple[float, float] | str" = "none",
    by_name: Mapping[str, Sequence[float]] | None = None,
    either: int | float = 1,
    free: dict[str, Any] | None = None,
    unannotated=0.5,
    number: int = 1,
) -> None:
    """A class of a user's own stands for this."""


class TakesFloat:
    """Its subclass passes its arguments on."""

    def __init__(self, coef: float = 0.5) -> None:
        pass


class PassesOn(TakesFloat):
    """It has options of its own, too, one with a type that only type checkers know."""

    def __init__(self, own: float = 0.5, net: "OnlyForTypeCheckers | None" = None, **others: float) -> None:  # noqa: F821
        super().__init__(**others)


HERE = "tests.harness.run.test_identity"
SPELLINGS = [
    ("takes_numbers", {"single": 1}, {"single": 1.0}),
    ("takes_numbers", {"single": 0.0}, {"single": -0.0}),
    ("takes_numbers", {"several": [0, 1]}, {"several": [0.0, 1.0]}),
    ("takes_numbers", {"pair": [0, 0.999]}, {"pair": [0.0, 0.999]}),
    ("takes_numbers", {"by_name": {"a": [1, 2], "b": [0.5, 1]}}, {"by_name": {"b": [0.5, 1.0], "a": [1.0, 2.0]}}),
    ("takes_numbers", {"free": {"x": 1, "y": [2, {"z": 3.0}]}}, {"free": {"y": [2.0, {"z": 3}], "x": 1.0}}),
    ("takes_numbers", {"unannotated": 1}, {"unannotated": 1.0}),
    ("PassesOn", {"coef": 1}, {"coef": 1.0}),
    ("PassesOn", {"own": 1}, {"own": 1.0}),
]


@pytest.mark.parametrize(("target", "one", "other"), SPELLINGS)
def test_numbers_within_options_have_one_spelling(target: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = ({"method": {"_target_": f"{HERE}.{target}", **options}} for options in (one, other))
    assert digest(one_spelling(first)) == digest(one_spelling(second))
    assert digest(first) != digest(second), "their texts differ"
    assert one_spelling(first) == first, "no number has changed"


@pytest.mark.parametrize(
    ("one", "other"),
    [({"either": 1}, {"either": 1.0}), ({"single": 1}, {"single": True}), ({"free": {"x": 1}}, {"free": {"x": "1"}})],
)
def test_what_may_mean_something_else_stays_apart(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = ({"method": {"_target_": f"{HERE}.takes_numbers", **options}} for options in (one, other))
    assert digest(one_spelling(first)) != digest(one_spelling(second))


def test_options_of_an_environment_have_one_spelling() -> None:
    folders_of = [
        folder_of(SAC, NOWHERE, f"env.options={{reset_noise_scale: {text}}}") for text in ("1", "1.0", "1e0", "0.5")
    ]
    assert folders_of[0] == folders_of[1] == folders_of[2] != folders_of[3]


def test_where_a_file_lies_and_how_its_path_is_written_makes_no_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for place in ("notes", "moved/notes"):
        (tmp_path / place).mkdir(parents=True)
        for number in range(20):
            (tmp_path / place / f"{number}.txt").write_text(f"Document {number}. " + "Some words of a text. " * 20)
    texts = (
        "dataset=texts",
        "dataset.second.path=notes",
        "dataset.first.val_fraction=0.3",
        f"paths.data={tmp_path}/data",
    )
    paths = ("notes", "./notes/", "'~/notes'", str(tmp_path / "notes"), "moved/notes")
    folders_of = {folder_of(LANGUAGE, tmp_path / "runs", *texts, f"dataset.first.path={path}") for path in paths}
    assert len(folders_of) == 1
    (tmp_path / "notes/0.txt").write_text("Another document. " + "Some words of a text. " * 20)
    renewed = (*texts[:-1], f"paths.data={tmp_path}/other", "dataset.first.path=notes")
    assert folder_of(LANGUAGE, tmp_path / "runs", *renewed) not in folders_of


def test_a_folder_that_an_older_version_named_by_the_spelling_is_still_the_run_s(tmp_path: Path) -> None:
    options = ("method=l2init", "method.coef=1")
    config = SMALL.compose(*options)
    older = digest(program_of("vision").make_task(config).identity())
    now = folder_of(SMALL, tmp_path, *options)
    assert older not in now.name, "the spelling was part of the name"
    folder = now.with_name(now.name.rpartition("-")[0] + f"-{older}")
    folder.mkdir(parents=True)
    assert folder_of(SMALL, tmp_path, *options) == folder


@pytest.mark.parametrize("option", ["seed=1", "method.coef=2", "lr=0.01"])
def test_what_shapes_numbers_still_tells_runs_apart(option: str) -> None:
    base = ("method=l2init", "method.coef=1")
    assert folder_of(SMALL, NOWHERE, *base) != folder_of(SMALL, NOWHERE, *base, option)


def test_another_environment_in_a_preset_has_its_own_name(tmp_path: Path) -> None:
    assert folder_of(DQN, tmp_path).name.startswith("cartpole-")
    folder = folder_of(DQN, tmp_path, "env.game=Acrobot-v1")
    assert folder.name.startswith("Acrobot-v1-")
    run = DQN.run(tmp_path, "env.game=Acrobot-v1")
    assert run.name == folder.name
    assert yaml.safe_load((run / "config.yaml").read_text())["env"]["name"] == "Acrobot-v1"
    (read,) = folders.read(tmp_path / "dqn")
    assert isinstance(read, Run)
    assert read.dataset == "Acrobot-v1"


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ({"name": "cartpole", "game": "CartPole-v1"}, "cartpole"),
        ({"name": "cartpole", "game": "my_module:Maze-v0"}, "Maze-v0"),
        ({"name": "acrobot", "game": "Acrobot-v1"}, "acrobot"),
        ({"name": "breakout", "game": "pong"}, "pong"),
        ({"name": "Hopper-v5", "task": "Hopper-v5"}, "Hopper-v5"),
        ({"name": "my_module:Maze-v0", "task": "my_module:Maze-v0"}, "Maze-v0"),
        ({"name": "my.module:lab/Maze-v0", "task": "my.module:lab/Maze-v0"}, "lab-Maze-v0"),
        ({"name": "lab/Maze-v0", "task": "lab/Maze-v0"}, "lab-Maze-v0"),
        ({"name": "mine"}, "mine"),
        ({"name": "cartpole", "game": "CartPole"}, "cartpole"),
        ({"name": "cartpole", "game": "Acrobot"}, "Acrobot-v1"),
        ({"name": "Hopper", "task": "Hopper"}, "Hopper-v5"),
        ({"name": "hopper", "task": "Hopper-v4"}, "Hopper-v4"),
        ({"name": "walker-run", "task": "walker-run"}, "walker-run"),
    ],
)
def test_names(node: dict[str, str], name: str) -> None:
    assert own_name("env", OmegaConf.create(node)) == name


@pytest.mark.parametrize(
    ("sequence", "name"),
    [
        (["Acrobot-v1"], "Acrobot-v1"),
        (["CartPole-v1", "my.module:lab/Maze-v0", "CartPole"], "CartPole-v1+lab-Maze-v0"),
        (["CartPole"], "cartpole"),
        ([f"An-environment-with-a-long-name-v{i}" for i in range(9)], "An-environment-with-a-long-name-v0+8more"),
    ],
)
def test_environments_that_take_turns_are_named(sequence: list[str], name: str) -> None:
    """They are in place of the preset's own, so its name would be wrong."""
    assert own_name("env", OmegaConf.create({"name": "cartpole", "game": "CartPole-v1"}), sequence) == name


def test_a_folder_that_an_older_version_named_by_the_preset_of_a_sequence_is_still_the_run_s(tmp_path: Path) -> None:
    stream = ("benchmark=continual_control", "benchmark.tasks=2", "benchmark.steps=200", "total_steps=400")
    options = (*stream, "benchmark.sequence=[Acrobot-v1]", "learning_starts=20")
    now = folder_of(DQN, tmp_path, *options)
    assert now.name.startswith("Acrobot-v1-base-s0-")
    older = now.with_name(now.name.replace("Acrobot-v1", "cartpole"))
    older.mkdir(parents=True)
    assert folder_of(DQN, tmp_path, *options) == older


@pytest.mark.parametrize("option", ["game", "task"])
def test_an_environment_without_its_version_is_that_of_the_newest(option: str) -> None:
    """Else one environment had two identities, and after an update of gymnasium one identity two environments."""
    identities = [
        identity({"program": "sac", "device": "cpu", "env": {"name": "x", option: name}})["env"][option]
        for name in ("Hopper", "Hopper-v5", "Hopper-v4", "breakout", "gymnasium:Hopper", "a:b:c", "-v")
    ]
    assert identities == ["Hopper-v5", "Hopper-v5", "Hopper-v4", "breakout", "gymnasium:Hopper-v5", "a:b:c", "-v"]


def test_a_task_of_a_module_of_ones_own_names_the_run(tmp_path: Path) -> None:
    name = register(lambda: Own(ACTIONS["sac"]), 20)
    options = ("env=mujoco", f"env.task=tests.rl.own:{name}")
    config = [option for option in SAC.options if not option.startswith("env=")]
    folder = folder_of(Program("sac", "rl.sac", tuple(config)), tmp_path, *options)
    assert folder.name.startswith(f"{name}-base-s0-")


def test_a_run_without_returns_is_left_out_with_its_cause() -> None:
    about = {"method": {"name": "base"}, "seed": 0, "env": {"name": "mine"}}
    rows = pd.DataFrame({"step": [1, 2], "phase": [0, 0], "train/loss": [1.0, 2.0]})
    for finished, says in ((True, "no episode of an evaluation has ended; set a time limit"), (False, "unfinished: ")):
        with pytest.raises(BadRun, match=says) as left_out:
            Run.of("x", "x", {"config": about, "finished": finished, "environment": {}}, rows)
        assert "foreign" not in str(left_out.value)


def test_an_image_folder_is_titled_by_its_name(tmp_path: Path) -> None:
    """Its identity holds the images' digest in the place of the path."""
    about = {"method": {"name": "base"}, "seed": 0, "model": {"name": "mlp"}, "benchmark": {"name": "warm_start"}}
    runs = []
    for number, place in enumerate(("/data/holiday pictures", "/data/cats/", "relative/dogs", "/other/cats")):
        dataset = {"name": "folder", "path": place}
        identity = {**about, "dataset": {"name": "folder", "path": f"{number}" * 64}}
        rows = pd.DataFrame({"step": [1, 2], "phase": [0, 1], "epoch": [1, 2], "test/accuracy": [0.1, 0.2]})
        meta = {"config": {**about, "dataset": dataset}, "identity": identity, "finished": True, "environment": {}}
        runs.append(Run.of(place, place, meta, rows))
    shown = settings(runs)
    assert {setting.dataset for setting in shown} == {"holiday pictures", "cats", "dogs"}
    titles = [title(setting) for setting in shown]
    assert len({*titles}) == 4, "two folders of one name are told apart"
    assert not re.search("[0-9a-f]{9}", " ".join(titles))


def test_runs_that_differ_in_what_is_measured_are_pooled_and_failed_ones_say_why(tmp_path: Path) -> None:
    for seed, option in enumerate(("metrics=off", "metrics=cheap", "eval_batch_size=64")):
        SMALL.run(tmp_path, f"seed={seed}", option)
    folder = SMALL.run(tmp_path, "seed=3")
    (folder / "DONE").unlink()
    (folder / "FAILED").write_text("TrainingError: the loss is not finite at step 3\n")
    (folder / "metrics.jsonl").write_text("")
    found = list(folders.read(tmp_path / "vision"))
    (left_out,) = (item for item in found if isinstance(item, LeftOut))
    assert "failed: TrainingError: the loss is not finite at step 3" in str(left_out)
    runs, _ = select(item for item in found if isinstance(item, Run))
    (setting,) = settings(runs)
    (group,) = setting.groups
    assert [run.seed for run in group.runs] == [0, 1, 2]


def test_a_stream_in_its_first_task_is_left_out_in_one_line(tmp_path: Path) -> None:
    options = ("benchmark=random_labels", "benchmark.tasks=2", "cache=off")
    folder = SMALL.run(tmp_path, *options)
    (folder / "DONE").unlink()
    rows = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text(rows[0])
    (run,) = folders.read(tmp_path / "vision")
    assert isinstance(run, Run)
    kept, left_out = select([run], include_unfinished=True)
    assert not kept
    assert "unfinished: none of its tasks has ended yet" in str(left_out[0])
