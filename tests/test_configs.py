"""Every experiment with every method composes, has the paper's values, and builds."""

from pathlib import Path
from typing import Any

import hydra
import pytest
import torch
from omegaconf import DictConfig, OmegaConf

import vision.train  # noqa: F401  registers the schema
from fire_core.harness.options.build import build
from fire_core.harness.options.cli import CONF
from fire_core.methods import Method, Net

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("fig2*.yaml"))
METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml") if path.stem != "pi")  # pi needs a head
CLASSES = {"cifar10": 10, "cifar100": 100, "tinyimagenet": 200}
SIZES = {"cifar10": 32, "cifar100": 32, "tinyimagenet": 64}

# PAPER, section 2: method -> options -> benchmark -> values in the order of the data sets.
PAPER: dict[str, tuple[tuple[str, ...], dict[str, list[tuple[float, ...]]]]] = {
    "snp": (("coef",), {"a": [(0.8,)] * 3, "b": [(0.8,)] * 3, "c": [(0.8,)] * 2}),
    "dash": (
        ("alpha", "minimum"),
        {
            "a": [(0.3, 0.05), (0.1, 0.05), (0.1, 0.05)],
            "b": [(0.3, 0.05), (0.1, 0.05), (0.1, 0.1)],
            "c": [(0.3, 0.3), (0.3, 0.1)],
        },
    ),
    "parseval": (
        ("coef",),
        {"a": [(1e-3,), (1e-5,), (1e-3,)], "b": [(1e-3,), (1e-5,), (1e-4,)], "c": [(1e-5,), (1e-3,)]},
    ),
    "l2init": (("coef",), {"a": [(1e-3,)] * 3, "b": [(1e-5,), (1e-4,), (1e-5,)], "c": [(1e-5,), (1e-4,)]}),
    "cbp": (
        ("rate", "maturity"),
        {"a": [(1e-4, 1000), (1e-4, 100), (1e-4, 1000)], "b": [(1e-5, 1000)] * 3, "c": [(1e-5, 1000), (1e-4, 1000)]},
    ),
    "redo": (
        ("threshold", "every"),
        {"a": [(0.5, 1)] * 3, "b": [(0.05, 1), (0.01, 1), (0.01, 1)], "c": [(0.01, 1), (0.05, 1)]},
    ),
    "snr": (
        ("percentile", "every"),
        {
            "a": [(0.99, 16), (0.99, 16), (0.92, 16)],
            "b": [(0.92, 16), (0.96, 16), (0.99, 16)],
            "c": [(0.92, 16), (0.98, 16)],
        },
    ),
    "muon": (("lr", "adam_lr"), {row: [(1e-2, 1e-3)] * n for row, n in (("a", 3), ("b", 3), ("c", 2))}),
    "fire": (("iterations",), {row: [(10,)] * n for row, n in (("a", 3), ("b", 3), ("c", 2))}),
}


def compose(*overrides: str) -> DictConfig:
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("vision", list(overrides))


def build_model(config: DictConfig) -> torch.nn.Module:
    options: dict[str, Any] = {key: value for key, value in config.model.items() if key != "layout"}
    if config.model.name != "resnet18":
        options["image_size"] = SIZES[config.dataset.name]
    with torch.device("meta"):
        model: torch.nn.Module = build("model", options, num_classes=CLASSES[config.dataset.name], in_channels=3)
    return model


def test_all_experiments_are_there() -> None:
    rows = {"a": ("cifar10", "cifar100", "tinyimagenet"), "b": ("cifar10", "cifar100", "tinyimagenet")}
    rows["c"] = ("cifar100", "tinyimagenet")
    assert sorted(f"fig2{row}_{data}" for row in rows for data in rows[row]) == EXPERIMENTS
    assert len(METHODS) >= 11


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_method_in_every_experiment(experiment: str) -> None:
    row, dataset = experiment.removeprefix("fig2").split("_")
    model = None
    for name in METHODS:
        config = compose(f"experiment={experiment}", f"method={name}")
        assert config.dataset.name == dataset
        assert (config.epochs, config.batch_size, config.lr, config.grad_clip) == (100, 256, 1e-3, 0.5)
        assert (config.schedule, config.scale, config.threads) == ("reference", "paper", None)
        assert config.dataset.test_statistics == ("test" if dataset == "cifar100" else "train")
        model = build_model(config) if model is None else model
        method = build("method", config.method)
        assert isinstance(method, Method)
        method.check(Net({"model": model}, {}))
        if name in PAPER:
            options, values = PAPER[name]
            expected = dict(
                zip(options, values[row][sorted(CLASSES).index(dataset) - 3 + len(values[row])], strict=True)
            )
            assert {option: config.method[option] for option in options} == expected
        if "variant" in config.method:
            assert config.method.variant == "fire_paper"
        if name == "dash":
            assert config.method.mode == ("train" if row == "a" else "eval")
    assert build("benchmark", config.benchmark).methods_from_phase == (1 if row == "a" else 0)


def test_a_tuned_value_comes_by_benchmark_data_and_method_and_the_command_line_wins() -> None:
    where = ("benchmark=continual", "dataset=tinyimagenet")
    assert compose(*where, "method=l2init").method.coef == 1e-5
    assert compose(*where, "method=l2init", "method.coef=0.5").method.coef == 0.5
    assert compose("method=l2init").method.coef == 1e-3  # the digits have none
    assert (
        compose("experiment=fig2b_tinyimagenet", "method=redo", "method.variant=original").method.variant == "original"
    )
    assert compose("experiment=fig2b_tinyimagenet", "scale=smoke").epochs == 2


@pytest.mark.parametrize("path", sorted((CONF / "tuned").glob("*.yaml")), ids=lambda path: path.stem)
def test_tuned_files_name_options_that_exist(path: Path) -> None:
    """And methods, data sets and benchmarks that do: nothing would ever pick up a misspelt one."""
    method = next(m for m in sorted(METHODS, key=len, reverse=True) if path.stem.endswith(f"_{m}"))
    benchmark, dataset = path.stem.removesuffix(f"_{method}").rsplit("_", 1)
    assert (CONF / "benchmark" / f"{benchmark}.yaml").exists()
    assert (CONF / "dataset" / f"{dataset}.yaml").exists()
    known = OmegaConf.load(CONF / "method" / f"{method}.yaml")
    assert set(OmegaConf.load(path)) <= set(known)
