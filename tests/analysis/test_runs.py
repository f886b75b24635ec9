"""Which runs belong together, and what they are called."""

import json
import os
from pathlib import Path

import pytest
import yaml

from analysis.differences import by_number, differences
from analysis.runs import LeftOut, settings
from analysis.sources import folders, load, small
from analysis.sources.folders import read_folder
from tests.analysis.synthetic import write_run


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ([{"a": 1}], [""]),
        ([{"a": 1, "b": {"c": 1}}, {"a": 1, "b": {"c": 2}}], ["c=1", "c=2"]),
        ([{"a": 1, "b": 1}, {"a": 2, "b": 2}], ["a=1, ...", "a=2, ..."]),
        ([{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 1}], ["a=1, b=1", "a=1, b=2", "a=2, b=1"]),
        ([{"a": 1}, {}], ["a=1", ""]),
    ],
)
def test_names_tell_configs_apart_with_few_keys(configs, expected):
    assert differences(configs) == expected


def test_device_and_tracker_do_not_part_runs(tmp_path):
    write_run(tmp_path, "fire", 0, device="cpu", tracker=None)
    write_run(tmp_path, "fire", 1, device="cuda", tracker={"name": "wandb"}, paths={"runs": "/elsewhere"})
    (setting,) = settings(load([str(tmp_path)])[0])
    assert len(setting.groups[0].runs) == 2


def test_what_a_run_is_is_read_from_its_identity(tmp_path):
    """Two runs that differ in how they are executed, not in what they are, belong to one setting."""
    runs = []
    for threads in (1, 2):
        folder = write_run(tmp_path, "fire", 0, name=f"run-{threads}", threads=threads)
        what = {"method": {"name": "fire"}, "seed": 0, "lr": 0.1, "numerics": 1}
        (folder / "identity.json").write_text(json.dumps({"run": what, "execution": {"threads": threads}}))
        runs.append(read_folder(folder))
    assert runs[0].setting == runs[1].setting
    assert '"numerics": 1' in runs[0].setting
    small.write(runs, tmp_path / "small.csv")
    assert [kept.setting for kept in small.read(tmp_path / "small.csv")] == [run.setting for run in runs]


def write_identified(root, seed, in_config, in_identity):
    """A run whose method has other options in its config than in its identity."""
    folder = write_run(root, "fire", seed, hyper=in_config)
    what = {"method": {"name": "fire"} | in_identity, "seed": seed, "lr": 0.1}
    (folder / "identity.json").write_text(json.dumps({"run": what}))


def test_seeds_meet_however_a_number_of_their_trigger_is_spelled(tmp_path):
    for seed, above in enumerate((1, 1.0)):
        write_run(tmp_path, "fire", seed, trigger={"name": "drift", "above": above})
    (setting,) = settings(load([str(tmp_path)])[0])
    assert [[run.seed for run in group.runs] for group in setting.groups] == [[0, 1]]


def test_methods_that_read_other_contents_are_never_averaged(tmp_path):
    """The option names one path in both; what was in the file stands in the identity alone."""
    for seed, content in ((0, "a" * 64), (1, "a" * 64), (1, "b" * 64)):
        write_identified(tmp_path / content[0], seed, {"file": "x.pt"}, {"file": "x.pt", "file (content)": content})
    runs, left_out = load([str(tmp_path)])
    (setting,) = settings(runs)
    assert not left_out
    assert {group.detail: [run.seed for run in group.runs] for group in setting.groups} == {
        "file (content)=aaaaaaaa": [0, 1],
        "file (content)=bbbbbbbb": [1],
    }


def test_seeds_of_one_chain_meet_whatever_other_chains_their_sweeps_had(tmp_path):
    """The config of a sweep's job has the options of all methods that the sweep's chains name."""
    own = {"parts": {"fire": {"k": 1}}}
    write_identified(tmp_path / "alone", 0, own, own)
    write_identified(tmp_path / "beside", 1, {"parts": {"fire": {"k": 1}, "snp": {"p": 2}}}, own)
    (setting,) = settings(load([str(tmp_path)])[0])
    assert [[run.seed for run in group.runs] for group in setting.groups] == [[0, 1]]


def test_of_two_copies_the_finished_one_is_used(tmp_path):
    write_run(tmp_path, "fire", 0, name="a-longer", n=30, done=False)
    finished = write_run(tmp_path, "fire", 0, name="b-finished", n=20)
    runs, left_out = load([str(tmp_path)], include_unfinished=True)
    assert [run.source for run in runs] == [str(finished)]
    assert "duplicate" in left_out[0].reason


def test_what_starts_anew_beside_the_weights_belongs_to_the_method(tmp_path):
    """Methods whose `boundary` differs are compared; one method with two of them has two lines."""
    write_run(tmp_path, "base", boundary={"target": "keep"})
    write_run(tmp_path, "fire", boundary={"target": "copy"})
    write_run(tmp_path, "fire", 1, boundary={"target": "keep"})
    (setting,) = settings(load([str(tmp_path)])[0])
    assert [group.label for group in setting.groups] == ["Base", "FIRE (target=copy)", "FIRE (target=keep)"]


EVERY = {"_target_": "fire_core.triggers.Every", "name": "every", "steps": 300.0}
AUTO = {"optimizer": "auto", "target": "auto"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"threads": 2}, " but for threads=2 (there 1)"),
        ({"metrics": "off", "threads": 4}, " but for metrics=off (there full), threads=4 (there 1)"),
        ({"deterministic": False}, " but for deterministic=False (there None)"),  # older runs have no such option
        ({"paths": {"runs": "elsewhere"}, "tracker": None, "lr": 1.0}, ""),
    ],
)
def test_of_a_duplicate_it_is_said_what_differs(tmp_path, options, says):
    shared = {"threads": 1, "metrics": "full", "lr": 1}
    first = write_run(tmp_path, "fire", 0, name="a", n=30, **shared)
    write_run(tmp_path, "fire", 0, name="b", n=20, **shared | options)
    for config in tmp_path.rglob("config.yaml"):
        values = yaml.safe_load(config.read_text())
        kept = {key: values[key] for key in ("method", "benchmark", "dataset", "model", "seed", "lr")}
        config.with_name("identity.json").write_text(json.dumps({"run": kept}))
    (left_out,) = load([str(tmp_path)])[1]
    assert left_out.reason == f"duplicate: same config as {first}{says}"


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ({"base": {}, "fire": {"trigger": {"name": "none"}}}, ["Base", "FIRE (trigger=none)"]),
        ({"base": {"trigger": {"name": "none"}}, "fire": {}}, ["Base (trigger=none)", "FIRE"]),
        ({"snp": {"trigger": {"name": "none"}}, "fire": {"trigger": {"name": "none"}}}, ["S&P", "FIRE"]),
        ({"snp": {"trigger": EVERY}, "fire": {"trigger": EVERY | {"steps": 300}}}, ["S&P", "FIRE"]),
        (
            {
                "base": {"boundary": AUTO | {"optimizer": "keep"}},
                "snp": {"boundary": AUTO, "trigger": EVERY},
                "fire": {"boundary": AUTO},
            },
            ["Base (optimizer=keep)", "S&P (trigger=every steps=300)", "FIRE"],
        ),
        (
            {
                name: {"boundary": {"optimizer": "keep" if name == "base" else "new"}}
                for name in ("base", "snp", "fire")
            },
            ["Base (optimizer=keep)", "S&P", "FIRE"],
        ),
        ({"base": {"boundary": AUTO}, "fire": {}}, ["Base", "FIRE"]),  # of older runs it is not known
    ],
)
def test_a_method_that_acts_otherwise_than_those_beside_it_is_named_so(tmp_path, options, labels):
    for method, differing in options.items():
        write_run(tmp_path, method, **differing)
    (setting,) = settings(load([str(tmp_path)])[0])
    assert [group.label for group in setting.groups] == labels


def test_variants_of_a_method_name_their_trigger_once(tmp_path):
    for method in ("base", "fire"):
        write_run(tmp_path, method)
    write_run(tmp_path, "fire", trigger=EVERY)
    (setting,) = settings(load([str(tmp_path)])[0])
    assert [group.label for group in setting.groups] == ["Base", "FIRE (trigger=every steps=300)", "FIRE"]


@pytest.mark.parametrize("identified", [True, False])
@pytest.mark.parametrize("reset", ["full_reset", "fresh"])
def test_a_full_reset_of_a_language_model_stands_beside_every_checkpoint(tmp_path, identified, reset):
    """It is trained from one; the others get it too, but not from scratch, and not where they have their own."""
    for start in ("best", "30k", "scratch"):
        for seed in (0, 1):
            write_run(tmp_path / start, "base", seed, metric="val/loss", benchmark={"name": "x", "start": start})
    write_run(tmp_path / "best", reset, 0, metric="val/loss", benchmark={"name": "x", "start": "best"})
    write_run(tmp_path / "30k", reset, 1, metric="val/loss", benchmark={"name": "x", "start": "30k"})
    for config in tmp_path.rglob("config.yaml") if identified else ():  # as runs have it since there is the file
        what = yaml.safe_load(config.read_text())
        config.with_name("identity.json").write_text(json.dumps({"run": what}))
    found = settings(load([str(tmp_path)])[0])
    seeds = {setting.detail: [run.seed for run in group.runs] for setting in found
             if (group := setting.group(reset))}  # fmt: skip
    assert seeds == {"start=best": [0, 1], "start=30k": [0, 1]}
    assert len(found) == 3


def test_options_that_are_numbers_sort_as_numbers(tmp_path):
    for iterations in (10, 5, 15):
        write_run(tmp_path, "fire", 0, hyper={"iterations": iterations})
    (setting,) = settings(load([str(tmp_path)])[0])
    assert [group.detail for group in setting.groups] == ["iterations=5", "iterations=10", "iterations=15"]
    assert sorted(["lr=0.01", "lr=1e-4", "lr=10", "lr=2"], key=by_number) == ["lr=1e-4", "lr=0.01", "lr=2", "lr=10"]


@pytest.mark.parametrize(
    "line",
    [
        "zz: &a {b: *a}",
        "a0: &a0 [x, x]\n" + "".join(f"a{i + 1}: &a{i + 1} [{f'*a{i}, ' * 9}x]\n" for i in range(9)),
        f"zz: 0x{'f' * 5000}",
        "zz: {1: a, b: c}",
        "zz: {2001-01-01: a}",
        "zz: !!bool x",
        "zz: !!timestamp x",
        "method: {name: a+b, parts: {}}",
    ],
)
def test_one_bad_folder_does_not_stop_the_others(line: str, tmp_path: Path) -> None:
    write_run(tmp_path, "fire")
    bad = write_run(tmp_path, "base", name="bad")
    with open(bad / "config.yaml", "a") as file:
        file.write(f"{line}\n")
    found = [*folders.read(tmp_path)]
    assert [type(item).__name__ for item in sorted(found, key=lambda item: type(item).__name__)] == ["LeftOut", "Run"]
    (left_out,) = [item for item in found if isinstance(item, LeftOut)]
    assert "corrupt" in str(left_out) or "unreadable" in str(left_out)


def test_pipes_and_names_elsewhere_are_not_read(tmp_path: Path) -> None:
    for name, change in (
        ("pipe", lambda folder: ((folder / "metrics.jsonl").unlink(), os.mkfifo(folder / "metrics.jsonl"))),
        ("elsewhere", lambda folder: (folder / "checksums.json").write_text('{"../../other": "0"}')),
    ):
        change(write_run(tmp_path, name=name))
    assert len([item for item in folders.read(tmp_path) if isinstance(item, LeftOut)]) == 2
