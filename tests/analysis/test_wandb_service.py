"""The wandb service, against a stand-in on loopback."""

from typing import Any

import pytest

from analysis.runs import LeftOut, SourceError
from analysis.sources import load, wandb_service
from tests.analysis.synthetic import config, rows
from tests.analysis.wandb_stand_in import StandIn

LONG = 1200  # rows with steps to 24,000: three pages of history


def remote(name: str, method: str, seed: int, n: int = 5, **over: Any) -> dict[str, Any]:
    logged = [row | {"_step": row["step"]} for row in rows(method, seed, n)]
    done = {"final/test/accuracy": 0.8}
    return {"name": name, "state": "finished", "config": config(method, seed), "rows": logged, "summary": done} | over


@pytest.fixture(scope="module")
def service():
    with pytest.MonkeyPatch.context() as patch, StandIn([]) as server:
        patch.setenv("WANDB_BASE_URL", server.url)
        patch.setenv("WANDB_API_KEY", "x" * 40)
        patch.setenv("WANDB_SILENT", "true")
        patch.setenv("WANDB_ERROR_REPORTING", "false")
        yield server


@pytest.fixture
def server(service):
    service.asked.clear()
    service.runs = [remote(f"fire-{i}", "fire", i) for i in range(4)]
    return service


def test_pages_of_runs_and_of_history_arrive_whole(server):
    server.runs.append(remote("long", "base", 9, LONG))
    found = list(wandb_service.read("entity/project", page=2))
    assert [run.name for run in found] == ["fire-0", "fire-1", "fire-2", "fire-3", "long"]
    assert server.asked["Runs"] >= 3
    assert server.asked["HistoryPage"] == 4 + 3
    for key in ("step", "epoch", "test/accuracy", "seconds"):
        assert found[-1].history[key].tolist() == [row[key] for row in rows("base", 9, LONG)]
    assert found[-1].config == config("base", 9)


def test_unusable_runs_are_named_and_left_out(server):
    server.runs += [
        remote("crashed", "base", 5, state="crashed"),
        remote("interrupted", "base", 6, summary={}),
        remote("rowless", "base", 7) | {"rows": []},
        remote("foreign", "base", 8, config={"lr": 1}),
        remote("again", "fire", 1),
    ]
    runs, left_out = load(["wandb:entity/project"])
    assert len(runs) == 4
    assert {item.name.split("/")[-1] for item in left_out} >= {"crashed", "interrupted", "rowless", "foreign"}
    assert len(left_out) == 5
    assert all(isinstance(item, LeftOut) for item in left_out)


def test_an_error_of_the_server_is_survived(server):
    server.failures = 1
    assert len(list(wandb_service.read("entity/project"))) == 4
    assert server.asked["Runs"] >= 2


@pytest.mark.parametrize("name", ["entity", "entity/", "entity/absent"])
def test_a_wrong_name_is_one_clear_error(server, name):
    with pytest.raises(SourceError, match=f"wandb:{name}"):
        list(wandb_service.read(name))
