"""`trigger=` in the programs: when the method acts, the rows that say so, what is refused, what a resume needs."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from fire_core.methods import Method, Net
from fire_core.methods.fire import Fire
from fire_core.methods.pi import PlasticityInjection
from fire_core.triggers.trigger import Metrics, Trigger
from harness.config.errors import ConfigError
from harness.config.groups import CONF
from harness.config.trigger import build_trigger, check_trigger
from harness.training.loop import Loop
from tests.programs import ALIKE, DQN, LANGUAGE, SAC, SCHEMAS, VISION, Program, assert_same, final_state, rows
from vision.task import Task as VisionTask

# Two tasks of two epochs of two steps; two hidden layers of 8.
STREAM = Program(
    "vision",
    "vision.train",
    (*ALIKE, "benchmark=random_labels", "benchmark.samples=256", "model.hidden=8", "method=fire", "cache=off"),
)


def fired(folder: Path) -> list[dict[str, Any]]:
    return [row for row in rows(folder) if row.get("kind") == "firing"]


def test_a_stream_with_hidden_boundaries(tmp_path: Path) -> None:
    """The method acts where the trigger says and nowhere else; each time is a row with its reason and numbers."""
    folder = STREAM.run(tmp_path, "epochs=5", "trigger=every", "trigger.steps=6")
    assert [(row["step"], row["phase"], row["reason"]) for row in fired(folder)] == [
        (6, 0, "every 6 steps"),
        (12, 1, "every 6 steps"),
        (18, 1, "every 6 steps"),
    ]
    assert [row["step"] for row in rows(folder) if "kind" not in row] == [*range(2, 21, 2)]
    first, later = fired(folder)[0], fired(folder)[1]
    assert first["firing/dfi_after"] < first["firing/dfi_before"]
    assert first["firing/sfe"] > 0
    assert "firing/previous_accuracy_after" not in first  # there is no task before the first
    assert 0 <= later["firing/previous_accuracy_after"] <= 1


def test_a_firing_changes_the_weights_as_the_method_does(tmp_path: Path) -> None:
    """A full reset at the last step but one: after it one step was made from the initial weights."""
    folder = STREAM.run(tmp_path, "method=full_reset", "trigger=every", "trigger.steps=7", "lr=1e-6")
    state = final_state(folder)
    assert [row["step"] for row in fired(folder)] == [7]
    for name, weight in state["modules"]["model"].items():
        torch.testing.assert_close(weight, state["init"]["model"][name], atol=3e-6, rtol=0)
    assert state["trigger"] == {"kind": "Every(7)", "state": {"last": 7}}, "the last step is not looked at"


def test_never_is_a_run_without_the_method(tmp_path: Path) -> None:
    never = STREAM.run(tmp_path, "trigger=none")
    base = STREAM.run(tmp_path, "method=base")
    assert rows(never) == [row for row in rows(base) if "kind" not in row]


def test_the_default_is_no_part_of_what_a_run_is() -> None:
    """So runs and caches of before there were triggers are found again."""
    task = VisionTask.from_config(VISION.compose())
    assert "trigger" not in task.identity()
    assert "trigger" not in (task.first_phase_identity() or {})
    hidden = VisionTask.from_config(STREAM.compose("trigger=drift", "trigger.every=2"))
    assert hidden.first_phase_identity() is None  # the method may act within it
    every = ("method=fire", "trigger=every", "trigger.steps=25")
    chosen = VisionTask.from_config(VISION.compose(*every))
    assert chosen.identity()["trigger"]["steps"] == 25
    assert chosen.first_phase_identity() is None  # of warm_start: the trigger is asked in phase 0 too
    later = VisionTask.from_config(VISION.compose(*every, "benchmark.methods_from_phase=1"))
    assert later.first_phase_identity() is not None


def check(choice: str, method: Method, **options: Any) -> None:
    """What a program does with `trigger=choice` before a run of 40 steps; the 11th is the first that is asked about."""
    node = {**OmegaConf.load(CONF / "trigger" / f"{choice}.yaml"), **options}
    net = Net({"model": nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))}, {})
    trigger = build_trigger(node)
    check_trigger(node, trigger, method, net, name="it", metrics=("loss",), after=10, total_steps=40)


def test_what_is_refused() -> None:
    check("every", Fire(), steps=39)
    check("boundary", Method())
    check("none", Fire())
    for choice, options, says in (
        ("every", {"steps": 40}, r"^trigger=every: Every\(40\) cannot fire within 40 steps from step 11 on"),
        ("drift", {}, r"^trigger=drift: Drift\(above=0.5, every=100\) cannot fire within 40 steps"),
        ("plateau", {"metric": "los"}, r"^trigger=plateau: .* no metric 'los'; metrics of this loop: loss$"),
        ("dormancy", {"above": 0.1, "rearm": 0.5}, r"^trigger=dormancy: Dormancy: rearm=0.5 must not lie above"),
        ("boundary", {"name": "bondary"}, r"^trigger._target_ must be the name of a class or function, got null$"),
    ):
        with pytest.raises(ConfigError, match=says):
            check(choice, Fire(), **options)
    for choice in ("every", "none"):
        with pytest.raises(ConfigError, match=rf"^trigger={choice} starts what .* boundaries: method=it does nothing"):
            check(choice, Method())
    with pytest.raises(ConfigError, match=r"^trigger=every: method=it puts in new modules"):
        check("every", PlasticityInjection())


class Accurate(Trigger):
    """A trigger of a user's own for a number that no program gives."""

    name = "accurate"

    def needs(self) -> set[str]:
        return {"accuracy"}

    def look(self, last: int, step: int, net: Net | None, metrics: Metrics) -> None:
        assert "accuracy" in metrics


@pytest.mark.parametrize("program", [STREAM, LANGUAGE, DQN, SAC])
def test_an_own_trigger_for_a_number_that_the_program_lacks_is_refused(program: Program, tmp_path: Path) -> None:
    config = program.compose("method=fire", "trigger=every", "trigger.steps=5", f"paths.data={tmp_path}")
    config.trigger = {"_target_": f"{__name__}.Accurate", "name": "accurate"}
    make_task = importlib.import_module(SCHEMAS[program.name]).PROGRAM.make_task
    with pytest.raises(ConfigError, match=r"^trigger=accurate: Accurate: there is no metric 'accuracy'; metrics of "):
        make_task(config)


OFTEN = ("trigger=plateau", "trigger.every=7", "trigger.patience=1", "trigger.min_delta=0.5")


@pytest.mark.parametrize(
    ("program", "trigger"),
    [
        (STREAM, OFTEN),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((SAC, OFTEN), (LANGUAGE, OFTEN))),
    ],
    ids=["vision", "sac", "language"],  # tests/rl/test_resumed.py has DQN
)
def test_a_resume_repeats_and_loses_no_firing(
    program: Program, trigger: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped twice, after steps at which nothing else ends."""
    options = ["method=fire", "cache=off", *trigger, f"paths.data={tmp_path}/data"]
    options += {SAC: ["random_steps=20", "env_steps=200"], STREAM: ["epochs=20"]}.get(program, [])
    steps, stops, real = iter(range(10**6)), [], Loop.end_step

    def end_step(self: Loop, save: Callable[[], None], ended: bool) -> None:
        if next(steps) in stops:
            self.read_clock()
            save()
            raise SystemExit(1)
        real(self, save, ended)

    monkeypatch.setattr(Loop, "end_step", end_step)
    whole = program.run(tmp_path / "whole", *options)
    for more in (52, 17):
        stops.append(next(steps) + more)
        with pytest.raises(SystemExit):
            program.run(tmp_path / "parts", *options)
    assert_same(whole, program.run(tmp_path / "parts", *options))
    assert len(fired(whole)) > 1
