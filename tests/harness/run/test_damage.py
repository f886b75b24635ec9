"""Damage of any kind to a run's files costs time: the checkpoint before is used, or training begins again.

Each case damages a finished run that has lost its mark DONE, starts the program again and compares with the run as it
was, row for row and bit for bit. `python -m pytest -m slow` tries many more.
"""

import hashlib
import io
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.programs import DQN, LANGUAGE, SAC, VISION, assert_same, only_run

Made = tuple[str, Path, Path]  # a program, a finished run of it and one of another seed
PROGRAMS = {
    "vision": (VISION, ("model=mlp", "model.hidden=8", "epochs=2", "batch_size=512", "method=redo")),
    "language": (LANGUAGE, ("benchmark.iterations=[4,4]", "benchmark.checkpoints=[2]", "model.n_embd=16")),
    "dqn": (DQN, ("total_steps=160", "midpoint=80", "log_every=40", "eval.every=80", "method=fire")),
    "sac": (SAC, ("env_steps=80", "eval_every=40", "random_steps=10", "eval_episodes=1", "env.action_repeat=1")),
}


def overrides(name: str) -> list[str]:
    program, options = PROGRAMS[name]
    named = {option.split("=")[0] for option in options}
    kept = [option for option in program.options if option.split("=")[0] not in (*named, "model.width")]
    return [*kept, *options, "cache=off", "checkpoint.keep=2", *(["model.hidden=8"] if name == "dqn" else [])]


def run(name: str, folder: Path, data: Path, *more: str) -> Path:
    program = PROGRAMS[name][0]
    config = program.compose_only([*overrides(name), f"paths.runs={folder}", f"paths.data={data}", *more])
    program.run_to_end(config)
    return only_run(folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module", params=PROGRAMS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, data: Path) -> Made:
    """A program's name, a finished run of it and one of another seed."""
    folder = tmp_path_factory.mktemp(request.param)
    one = run(request.param, folder / "one", data)
    return request.param, one, run(request.param, folder / "other", data, "seed=1")


def newest(folder: Path) -> Path:
    return sorted((folder / "checkpoints").glob("step-*.pt"))[-1]


def rewrite(path: Path, change: Callable[[Any], None]) -> None:
    """Change a checkpoint's content, and give it the name that its new content has."""
    content = torch.load(path, weights_only=True)
    change(content)
    buffer = io.BytesIO()
    torch.save(content, buffer)
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()[:32]
    path.unlink()
    path.with_name(f"{path.name.rsplit('-', 1)[0]}-{digest}.pt").write_bytes(buffer.getvalue())


def places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the parts of a nested state are."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(found for key, part in inner for found in places(part, (*place, key)))]


def part(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def spoilt(value: Any, draw: random.Random) -> Any:
    """A value of another type, shape or range."""
    if isinstance(value, torch.Tensor):
        return draw.choice([value.flatten()[:0], value.double() if value.is_floating_point() else value.float(), None])
    others = [None, "text", [1, 2], {}, torch.zeros(3)]
    return draw.choice([other for other in others if type(other) is not type(value)])


def lose_key(content: Any, draw: random.Random) -> None:
    state = content["state"]
    place = draw.choice([p for p in places(state) if p and isinstance(part(state, p[:-1]), dict)])
    del part(state, place[:-1])[place[-1]]


def change_type(content: Any, draw: random.Random) -> None:
    state = content["state"]
    place = draw.choice([p for p in places(state) if p])
    part(state, place[:-1])[place[-1]] = spoilt(part(state, place), draw)


def out_of_range(content: Any, draw: random.Random) -> None:
    key = draw.choice(["phase", "phase_step", "step", "seconds"])
    content["state"]["trainer"][key] = draw.choice([-1, "99", float("nan"), None]) if key != "phase" else 99


def other_numbers(content: Any, draw: random.Random) -> None:
    key = draw.choice(["metrics_bytes", "rows_sha256", "last_row_step"])
    content["state"][key] = draw.choice([-5, 10**9, "x", None])


CONTENT = [lose_key, change_type, out_of_range, other_numbers]
FILES = ["truncated", "bit", "empty", "folder", "pipe", "other run"]
FILES += ["rows short", "rows edited", "rows of other", "no rows"]


def damage(kind: Any, folder: Path, other: Path, draw: random.Random) -> None:
    path, metrics = newest(folder), folder / "metrics.jsonl"
    if callable(kind):
        return rewrite(path, lambda content: kind(content, draw))
    content, rows = bytearray(path.read_bytes()), bytearray(metrics.read_bytes())
    if kind in ("truncated", "bit", "empty"):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes({"truncated": content[: draw.randrange(len(content))], "bit": content, "empty": b""}[kind])
    elif kind in ("folder", "pipe"):
        path.unlink()
        path.mkdir() if kind == "folder" else os.mkfifo(path)
    elif kind == "other run":
        foreign = newest(other)
        shutil.copy(foreign, path.with_name(foreign.name.replace("step-0000", "step-9999")))
        shutil.copy(foreign, path.parent)
    elif kind == "rows edited":
        digits = [i for i, byte in enumerate(rows) if chr(byte).isdigit()]
        rows[draw.choice(digits)] = ord(draw.choice("0123456789"))
        metrics.write_bytes(rows)
    elif kind == "no rows":
        metrics.unlink()
    else:
        short = rows[: draw.randrange(len(rows))]
        metrics.write_bytes(short if kind == "rows short" else (other / metrics.name).read_bytes())


def start_again(made: Made, kind: Any, seed: int, tmp_path: Path, data: Path) -> None:
    name, one, other = made
    draw = random.Random(f"{name} {kind} {seed}")
    folder = tmp_path / one.parent.name / one.name
    shutil.copytree(one, folder)
    if "rows" not in str(kind) or draw.random() < 0.5:  # else the program must see that the rows were changed
        (folder / "DONE").unlink()
    damage(kind, folder, other, draw)
    run(name, tmp_path, data)
    assert_same(folder, one)


KINDS = [pytest.param(kind, id=getattr(kind, "__name__", kind)) for kind in (*CONTENT, *FILES)]
QUICK = (lose_key, change_type, "bit", "rows edited")  # of programs that take seconds to go on


@pytest.mark.parametrize("kind", KINDS)
def test_damage_costs_time_alone(made: Made, kind: Any, tmp_path: Path, data: Path) -> None:
    if made[0] != "vision" and kind not in QUICK:
        pytest.skip("with -m slow")
    start_again(made, kind, 0, tmp_path, data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_much_damage_costs_time_alone(made: Made, kind: Any, tmp_path: Path, data: Path) -> None:
    for seed in range(1, 8 if made[0] == "vision" else 4):
        start_again(made, kind, seed, tmp_path / str(seed), data)
