"""Folders of someone else: nothing that they name is called, whatever the program and wherever it stands."""

import copy
import hashlib
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import hydra
import pytest
import torch
import yaml
from omegaconf import OmegaConf

import language.train  # noqa: F401  registers its options, as the next three do
import rl.dqn.train
import rl.sac.train  # noqa: F401
import vision.train  # noqa: F401
from harness.config.errors import ConfigError
from harness.config.groups import CONF
from harness.run.folder import Run
from harness.run.reader import building, newest_state, own_targets, read_config
from language.sample import load_run
from tests.zygote import ROOT

PROGRAMS = ("vision", "language", "dqn", "sac")
READERS = {"language": "language.sample", "dqn": "rl.watch", "sac": "rl.watch"}
SHELL = "__import__('os').system('touch owned')"


def good(program: str) -> Any:
    """The configuration that a run of the program writes."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return OmegaConf.to_container(hydra.compose(program), resolve=True)


def write(folder: Path, content: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(content)))
    return folder


def replaced(content: Any, place: str, value: Any) -> Any:
    content = copy.deepcopy(content)
    *parents, last = place.split(".")
    node = content
    for key in parents:
        node = node.setdefault(key, {})
    node[last] = value
    return content


HOSTILE = [
    ("model", {"_target_": "sympy.sympify", "a": SHELL}),
    ("model.width", {"_target_": "sympy.sympify", "a": SHELL}),
    ("method.anything.deep", [{"x": {"_target_": "builtins.eval", "_args_": [SHELL]}}]),
    ("env", {"_target_": "torch.hub.load", "repo_or_dir": "someone/repository", "model": "net"}),
    ("networks", {"_target_": "torch.load", "f": "weights.pt", "weights_only": False}),
    ("model", {"_target_": "numpy.load", "file": "array.npy", "allow_pickle": True}),
    ("tracker", {"_target_": "hydra.utils.instantiate", "config": {"_target_": "os.system", "command": "touch owned"}}),
    ("optimizer._target_", "subprocess.run"),
    ("dataset._target_", ["os.system"]),
    ("model._target_", "fire_core.methods.fire.Fire"),  # ours, but of another group
    ("model._target_", "vision.models.timm_model"),  # ours, but of another program
    ("_target_", "os.getcwd"),
    ("method._partial_", True),
    ("method._args_", [1]),
    ("seed", "${oc.env:HOME}"),
    ("model.width", "../../outside"),
    ("env.task", "someones_module:Env-v0"),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_payloads_are_refused_by_name(program: str, tmp_path: Path) -> None:
    content = good(program)
    assert read_config(write(tmp_path, content), PROGRAMS) == content, "one's own runs are read as ever"
    for place, value in HOSTILE:
        if place == "model._target_" and str(value).startswith(program):
            continue
        write(tmp_path, replaced(content, place, value))
        with pytest.raises(ConfigError, match=f"{place.split('.')[0]}.*trust=true"):
            read_config(tmp_path, PROGRAMS)
    trusted = read_config(write(tmp_path, replaced(content, "model", {"_target_": "my.Net"})), PROGRAMS, trust=True)
    assert trusted.model._target_ == "my.Net"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("program: dqn\nx: !!python/object/apply:os.system ['touch owned']", "cannot be read"),
        ("program: dqn\na: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]", "aliases are refused"),
        ("program: dqn\nday: 2020-01-01", "is a date, not plain"),
        ("program: dqn\nx: " + "[" * 5000, "cannot be read"),
        ("program: chess", "a run of chess, not of dqn"),
        ("- 1", "a run of None"),
        ("\x00\x01", "cannot be read"),
        ("x: " + "1" * 2**20, r"no config\.yaml"),
    ],
)
def test_other_texts_are_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path, ("dqn",))


def checkpoint(folder: Path, data: bytes) -> Path:
    (folder / "checkpoints").mkdir(exist_ok=True)
    path = folder / "checkpoints" / f"step-000000000001-{hashlib.sha256(data).hexdigest()[:32]}.pt"
    path.write_bytes(data)
    return path


class Payload:
    def __reduce__(self) -> Any:
        return exec, ("open('owned', 'w')",)


def test_checkpoints_run_nothing_and_no_link_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = checkpoint(tmp_path, pickle.dumps(Payload()))
    with pytest.raises(ConfigError, match="is no checkpoint of a run"):
        newest_state(tmp_path)
    path.unlink()
    outside = tmp_path / "outside.pt"
    torch.save({"state": {"trainer": {}}}, outside)
    digest = hashlib.sha256(outside.read_bytes()).hexdigest()[:32]
    (tmp_path / "checkpoints" / f"step-000000000002-{digest}.pt").symlink_to(outside)
    with pytest.raises(ConfigError, match="has no whole checkpoint"):
        newest_state(tmp_path)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("program", READERS)
def test_the_programs_refuse(program: str, tmp_path: Path) -> None:
    payload = {"_target_": "sympy.sympify", "a": SHELL}
    write(tmp_path, replaced(good(program), "env" if program == "sac" else "model", payload))
    done = subprocess.run(
        [sys.executable, "-m", READERS[program], f"run={tmp_path}"],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error:")
    assert "_target_='sympy.sympify' is refused" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    "state", [{}, [], {"model": {}}, {"model": {"transformer.wte.weight": torch.zeros(2, 2)}}, {"model": 3}],
    ids=["nothing", "a list", "no weights", "another shape", "a number"],
)  # fmt: skip
def test_a_state_that_does_not_fit_is_one_line(state: Any, tmp_path: Path) -> None:
    write(tmp_path, good("language"))
    data = io.BytesIO()
    torch.save({"state": {"trainer": state}}, data)
    checkpoint(tmp_path, data.getvalue())
    with pytest.raises(ConfigError, match="configuration and checkpoint fail"), building(tmp_path):
        load_run(tmp_path, "newest", torch.device("cpu"), False)


@pytest.mark.parametrize("name", ["metrics.jsonl", "DONE", "identity.json", ".lock"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
def test_what_is_no_file_is_refused_at_once(name: str, kind: str, tmp_path: Path) -> None:
    """A run would wait at a fifo for ever."""
    make = {"fifo": os.mkfifo, "folder": Path.mkdir, "link": lambda path: path.symlink_to(tmp_path)}[kind]
    make(tmp_path / name)
    with pytest.raises(ConfigError, match=rf"{name} is no regular file: remove it"), Run(tmp_path, {}, ""):
        pass


@pytest.mark.filterwarnings("ignore:fire_core.methods:DeprecationWarning")  # of the paths of version 0.2
def test_the_list_of_targets_is_that_of_the_configuration() -> None:
    for group, targets in own_targets().items():
        for target in targets:
            assert hydra.utils.get_object(target), f"{group}: {target}"
    assert yaml.safe_load((CONF / "method" / "fire.yaml").read_text())["_target_"] in own_targets()["method"]


def test_a_run_with_a_trigger_is_read(tmp_path: Path) -> None:
    content = good("dqn")
    for path in (CONF / "trigger").glob("*.yaml"):
        content["trigger"] = node = yaml.safe_load(path.read_text())
        assert read_config(write(tmp_path / path.stem, content), ("dqn",)).trigger == node
    content["trigger"] = {"_target_": "os.system", "name": "every"}
    with pytest.raises(ConfigError, match=r"trigger\._target_='os\.system' is refused"):
        read_config(write(tmp_path / "wrong", content), ("dqn",))
