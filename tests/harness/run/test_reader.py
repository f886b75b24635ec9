"""Folders of someone else: nothing that they name is called."""

import copy
import hashlib
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

import rl.dqn.train
import rl.sac.train  # noqa: F401
from harness.config.errors import ConfigError
from harness.run import checkpoint as checkpoints
from harness.run.reader import building, newest_state, read_config
from rl.watch import build_network, load_weights
from tests.programs import compose
from tests.zygote import Zygote

PROGRAMS = ("dqn", "sac")
SHELL = "__import__('os').system('touch owned')"


def good(program: str, *options: str) -> Any:
    """The configuration that a run of the program writes."""
    return OmegaConf.to_container(compose(program, *options), resolve=True)


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
    ("networks", {"_target_": "torch.load", "f": "weights.pt", "weights_only": False}),
    ("tracker", {"_target_": "hydra.utils.instantiate", "config": {"_target_": "os.system", "command": "touch owned"}}),
    ("dataset._target_", ["os.system"]),
    ("model._target_", "fire_core.methods.no_such.Method"),
    ("model", {"_target_": "rl.dqn.task.torch.load", "f": "weights.pt"}),  # ours import it
    ("model", {"_target_": "harness.config.chain.build", "option": "x", "node": {}}),
    ("model._target_", "fire_core.harness.options.cli.os.system"),  # through the table of moved modules
    ("model", "${oc.create:${oc.env:NODE}}"),
    ("model.width", "../../outside"),
    ("env.task", "someones_module:Env-v0"),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_payloads_are_refused_by_name(program: str, tmp_path: Path) -> None:
    content = good(program)
    assert read_config(write(tmp_path, content), (program,)) == content, "one's own runs are read as ever"
    for place, value in HOSTILE:
        write(tmp_path, replaced(content, place, value))
        with pytest.raises(ConfigError, match=rf"{place.split('.')[0]}.*(trust=true|cannot be imported)"):
            read_config(tmp_path, (program,))
    trusted = read_config(write(tmp_path, replaced(content, "model", {"_target_": "my.Net"})), (program,), trust=True)
    assert trusted.model._target_ == "my.Net"


def test_a_checkpoint_of_another_version_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "FORMAT", 2)
    checkpoints.save(tmp_path / "checkpoints", 1, {"trainer": {}}, {})
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="has no whole checkpoint"):
        newest_state(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("program: dqn\nx: !!python/object/apply:os.system ['touch owned']", "cannot be read"),
        ("program: dqn\nx: " + "[" * 5000, "cannot be read"),
        ("program: chess", "a run of chess, not of dqn"),
        ("- 1", "a run of None"),
        ("\x00\x01", "cannot be read"),
    ],
)
def test_other_texts_are_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path, ("dqn",))


class Payload:
    def __reduce__(self) -> Any:
        return exec, ("open('owned', 'w')",)


def checkpoint(folder: Path, step: int, data: bytes) -> None:
    (folder / "checkpoints").mkdir(exist_ok=True)
    name = f"step-{step:012d}-{hashlib.sha256(data).hexdigest()[:32]}.pt"
    (folder / "checkpoints" / name).write_bytes(data)


def test_checkpoints_run_nothing_and_states_that_do_not_fit_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, good("dqn", "env=cartpole"))
    checkpoint(tmp_path, 2, pickle.dumps(Payload()))
    with pytest.raises(ConfigError, match="has no whole checkpoint"):
        newest_state(tmp_path)
    assert not (tmp_path / "owned").exists()
    torch.save({"format": 3, "state": {"trainer": {"model": {"wte": torch.zeros(2)}}}}, tmp_path / "state")
    checkpoint(tmp_path, 1, (tmp_path / "state").read_bytes())
    trained = read_config(tmp_path, ("dqn",))
    with pytest.raises(ConfigError, match="configuration and checkpoint fail"), building(tmp_path):
        load_weights(build_network(trained, 2, (4,)), "q", trained, newest_state(tmp_path))


def test_the_programs_refuse(tmp_path: Path, zygote: Zygote) -> None:
    write(tmp_path, replaced(good("dqn"), "model", {"_target_": "sympy.sympify"}))
    answer = zygote.run(tmp_path, "rl.watch", "run=.")
    assert answer.code == 2
    assert answer.err.startswith("error: model._target_='sympy.sympify' is refused")
    assert answer.err.count("\n") == 1
