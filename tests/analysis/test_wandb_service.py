"""The wandb service, against a stand-in on loopback."""

from typing import Any

import pytest

from analysis.runs import SourceError
from analysis.sources import load, wandb_service
from tests.analysis.synthetic import config, rows
from tests.analysis.wandb_stand_in import StandIn, service_of

LONG = 1200  # rows with steps to 24,000: three pages of history


def remote(name: str, method: str, seed: int, n: int = 5, **over: Any) -> dict[str, Any]:
    logged = [row | {"_step": row["step"]} for row in rows(method, seed, n)]
    done = {"final/test/accuracy": 0.8}
    return {"name": name, "state": "finished", "config": config(method, seed), "rows": logged, "summary": done} | over


@pytest.fixture(scope="module")
def server():
    with service_of([remote("fire-0", "fire", 0), remote("fire-1", "fire", 1)]) as server:
        yield server


def test_pages_of_runs_and_of_history_arrive_whole_and_an_error_of_the_server_is_survived(server: StandIn):
    server.runs.append(remote("long", "base", 9, LONG))
    server.failures = 1
    found = list(wandb_service.read("entity/project", page=2))
    assert [run.name for run in found] == ["fire-0", "fire-1", "long"]
    assert server.asked["Runs"] >= 3
    assert server.asked["HistoryPage"] == 2 + 3
    for key in ("step", "epoch", "test/accuracy", "seconds"):
        assert found[-1].history[key].tolist() == [row[key] for row in rows("base", 9, LONG)]
    assert found[-1].config == config("base", 9)
    server.runs.pop()


def test_unusable_runs_are_named_and_left_out(server: StandIn):
    server.runs += [
        remote("crashed", "base", 5, state="crashed"),
        remote("interrupted", "base", 6, summary={}),
        remote("rowless", "base", 7) | {"rows": []},
        remote("foreign", "base", 8, config={"lr": 1}),
    ]
    runs, left_out = load(["wandb:entity/project"])
    assert len(runs) == 2
    assert [item.name.split("/")[-1] for item in left_out] == ["rowless", "foreign", "crashed", "interrupted"]


@pytest.mark.parametrize("name", ["entity", "entity/absent"])
def test_a_wrong_name_is_one_clear_error(server: StandIn, name: str):
    with pytest.raises(SourceError, match=f"wandb:{name}"):
        list(wandb_service.read(name))
