"""Run folders as trainers write them, with made-up curves whose ends are known."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ENDS = {"base": 0.80, "full_reset": 0.86, "snp": 0.84, "fire": 0.87}


def config(method: str = "base", seed: int = 0, **over: Any) -> dict[str, Any]:
    """A resolved config; `over` replaces top-level keys, e.g. `benchmark={"name": "continual"}`."""
    out: dict[str, Any] = {
        "method": {"name": method} | ({"iterations": 10} if method == "fire" else {}),
        "benchmark": {"name": "warm_start", "phases": 2},
        "dataset": {"name": "digits"},
        "model": {"name": "resnet_small", "width": 16},
        "seed": seed,
        "scale": "small",
        "lr": 0.001,
        "device": "cpu",
        "tracker": {"name": "wandb"},
    }
    return out | over


def accuracies(method: str, seed: int, n: int) -> np.ndarray:
    """Two phases of n points; the last one is ENDS[method] + 0.001 * seed exactly."""
    rng = np.random.default_rng([seed, len(method)])
    t = np.linspace(0, 1, n)
    end = ENDS.get(method, 0.82) + 0.001 * seed
    first = 0.72 - 0.6 * np.exp(-6 * t)
    start = {"base": 0.72, "full_reset": 0.1, "fire": 0.5}.get(method, 0.6)
    second = end - (end - start) * np.exp(-5 * t)
    out = np.concatenate([first, second]) + rng.normal(0, 0.006, 2 * n)
    out[-1] = end
    return out


def rows(method: str = "base", seed: int = 0, n: int = 20, metric: str = "test/accuracy") -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl: two phases of n rows, and the boundary between them."""
    values = accuracies(method, seed, n)
    out = []
    for i in range(2 * n):
        out.append(
            {
                "step": 10 * (i + 1),
                "phase": i // n,
                "epoch": 100 * (i // n) + 100 * (i % n + 1) / n,
                "train/loss": 1 / (i + 1),
                "train/accuracy": 0.5,
                metric: round(float(values[i]), 6),
                "lr": 1e-3,
                "seconds": 0.5 * (i + 1) + (0.2 if method == "fire" and i >= n else 0.0),
            }
        )
    after = {"base": 0.72, "full_reset": 0.1, "fire": 0.45}.get(method, 0.55)
    boundary = {
        "kind": "boundary",
        "step": 10 * n,
        "phase": 1,
        "boundary/dfi_before": 100.0,
        "boundary/dfi_after": 0.5,
        "boundary/sfe": 20.0,
        "boundary/test_accuracy_before": 0.72,
        "boundary/test_accuracy_after": after,
        "method/seconds": 0.2,
    }
    return [*out[:n], boundary, *out[n:]]


def write_run(
    root: Path,
    method: str = "base",
    seed: int = 0,
    *,
    n: int = 20,
    metric: str = "test/accuracy",
    done: bool = True,
    name: str | None = None,
    rows_: list[dict[str, Any]] | None = None,
    hyper: dict[str, Any] | None = None,
    **over: Any,
) -> Path:
    """Writes one run folder below `root` and returns it."""
    cfg = config(method, seed, **over)
    cfg["method"] |= hyper or {}
    parts = [cfg[g]["name"] for g in ("benchmark", "dataset") if cfg.get(g)]
    folder = root / "vision" / (name or f"{'-'.join(parts)}-{method}-s{seed}-{abs(hash(str(cfg))):016x}"[:60])
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(cfg))
    (folder / "env.json").write_text(json.dumps({"python": "3.12", "torch": "2.15", "git_commit": "abc123"}))
    lines = rows(method, seed, n, metric) if rows_ is None else rows_
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    if done:
        last = lines[-1]
        summary = {metric: last.get(metric), "steps": last.get("step"), "seconds": last.get("seconds")}
        (folder / "DONE").write_text(json.dumps(summary))
    return folder


def write_sweep(root: Path, methods: tuple[str, ...] = tuple(ENDS), seeds: range = range(3), **over: Any) -> None:
    for method in methods:
        for seed in seeds:
            write_run(root, method, seed, **over)
