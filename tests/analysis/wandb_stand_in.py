"""A server on loopback that answers what `wandb.Api` asks for when it lists runs and reads their history."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class StandIn(ThreadingHTTPServer):
    """Serves the project entity/project.

    Args:
        runs: each {"name", "state", "config", "rows", "summary"}.
    """

    daemon_threads = True

    def __init__(self, runs: list[dict[str, Any]]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.runs = runs

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The data for a query."""
        name = re.search(r"(?:query|mutation)\s+(\w+)", query)
        kind = name.group(1) if name else "?"
        project: dict[str, Any] = {"internalId": "1", "runCount": len(self.runs), "readOnly": True}
        if kind == "Runs":
            if variables["project"] != "project":
                return {"project": None}
            edges = [{"node": node(run), "cursor": run["name"]} for run in self.runs]
            page = {"endCursor": "", "hasNextPage": False}
            return {"project": project | {"runs": {"edges": edges, "pageInfo": page}}}
        if "viewer" in query:
            return {"viewer": {"id": "1", "username": "u", "entity": "entity", "flags": "{}", "teams": {"edges": []}}}
        wanted = variables.get("run") or variables.get("name") or variables.get("runName")
        run = next((run for run in self.runs if run["name"] == wanted), None)
        if run is None:
            return {}
        out = node(run)
        if "parquetHistory" in query:
            out["parquetHistory"] = {"parquetUrls": [], "liveData": []}
        if kind == "HistoryPage":
            low, high = int(variables["minStep"]), int(variables["maxStep"])
            out["history"] = [json.dumps(row) for row in run["rows"] if low <= row["_step"] < high]
        return {"project": project | {"run": out}}


@contextmanager
def service_of(runs: list[dict[str, Any]]) -> Iterator[StandIn]:
    """A service with these runs, which `wandb.Api` asks."""
    with pytest.MonkeyPatch.context() as patch, StandIn(runs) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        patch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_address[1]}")
        patch.setenv("WANDB_API_KEY", "x" * 40)
        patch.setenv("WANDB_SILENT", "true")
        patch.setenv("WANDB_ERROR_REPORTING", "false")
        yield server
        server.shutdown()


def node(run: dict[str, Any]) -> dict[str, Any]:
    """A run as GraphQL gives it."""
    rows = run["rows"]
    return {
        "id": run["name"],
        "projectId": "1",
        "name": run["name"],
        "displayName": run["name"],
        "state": run["state"],
        "config": json.dumps({key: {"value": value} for key, value in run["config"].items()}),
        "summaryMetrics": json.dumps(run["summary"]),
        "systemMetrics": "{}",
        "historyLineCount": len(rows),
        "historyKeys": {"lastStep": rows[-1]["_step"] if rows else -1},
        "heartbeatAt": run.get("heartbeat", "2026-01-01T00:00:00Z"),
        "createdAt": "2026-01-01T00:00:00Z",
        "tags": [],
        "user": {"name": "u", "username": "u"},
        "readOnly": True,
        "jobType": None,
        "sweepName": None,
        "group": None,
    }


class Handler(BaseHTTPRequestHandler):
    server: StandIn

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.reply(404, {})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.path.endswith("/graphql"):
            self.reply(200, {})  # telemetry
            return
        request = json.loads(raw)
        self.reply(200, {"data": self.server.answer(request["query"], request.get("variables") or {})})
