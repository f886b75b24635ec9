"""Every experiment with every method composes, has the paper's values, and builds."""

from collections.abc import Container
from typing import Any

import hydra
import pytest
import torch
from hydra.core.config_store import ConfigStore
from hydra.errors import MissingConfigException
from omegaconf import DictConfig, OmegaConf

import language.task  # noqa: F401  these four register schemas and tables
import rl.dqn.task
import rl.sac.task  # noqa: F401
import vision.task
from fire_core.methods import Method, Net
from harness.config.build import build
from harness.config.cli import CONF
from vision.tuned import tuned_values

PROGRAMS = ("vision", "language", "dqn", "sac")
EXPERIMENTS = sorted(map(str, OmegaConf.load(CONF / "presets" / "fig2.yaml")))
OTHERS = {
    "continual": "dqn",
    "dmc100k": "sac",
    "domains": "language",
    "fig3": "language",
    "finetune": "language",
    "permuted": "language",
    "fig4a": "dqn",
    "fig4b": "sac",
    "tune": "vision",
    "plasticity": "vision",
    "continual_cartpole": "dqn",
    "continual_minatar": "dqn",
    "continual_double_pendulum": "sac",
    "high_replay_ratio": "sac",
    "high_replay_ratio_cheetah": "sac",
}
ALL_METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
METHODS = [name for name in ALL_METHODS if name != "pi"]  # pi needs a head
CLASSES = {"cifar10": 10, "cifar100": 100, "tinyimagenet": 200}
SIZES = {"cifar10": 32, "cifar100": 32, "tinyimagenet": 64}

# docs/paper.md, the table of figure 2: method -> options -> benchmark -> values in the order of the data sets.
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


def compose(*overrides: str, program: str = "vision") -> DictConfig:
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose(program, list(overrides))


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


def some_methods_or_the_others(experiments: list[str]) -> list[Any]:
    """Each experiment with every fourth method, each with others, by default; with all others in the slow tests."""
    some = [pytest.param(name, number % 4, True, id=f"{name}-some") for number, name in enumerate(experiments)]
    return some + [
        pytest.param(name, number % 4, False, id=f"{name}-others", marks=pytest.mark.slow)
        for number, name in enumerate(experiments)
    ]


def chosen(names: list[str], quarter: int, some: bool, always: Container[str] = ()) -> list[str]:
    return [name for i, name in enumerate(names) if (i % 4 == quarter or name in always) == some]


@pytest.mark.parametrize(("experiment", "quarter", "some"), some_methods_or_the_others(EXPERIMENTS))
def test_every_method_in_every_experiment(experiment: str, quarter: int, some: bool) -> None:
    row, dataset = experiment.removeprefix("fig2").split("_")
    model, rows = None, {"a": "warm_start", "b": "continual", "c": "class_incremental"}
    for name in chosen(METHODS, quarter, some, PAPER):
        config = compose(f"experiment={experiment}", f"method={name}")
        assert (config.dataset.name, config.tuned) == (dataset, f"{rows[row]}_{dataset}")
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


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100", "tinyimagenet"])
def test_dash_takes_its_own_papers_mode_outside_of_the_authors_variant(dataset: str) -> None:
    """Training mode in warm_start is the FIRE authors' code; the original evaluates."""
    where = ("benchmark=warm_start", f"dataset={dataset}", "method=dash")
    for options, mode in [
        ((), "eval"),
        (("variant=fire_paper",), "train"),
        (("method.mode=train",), "train"),
        (("variant=fire_paper", "method.mode=eval"), "eval"),
    ]:
        assert compose(*where, *options).method.mode == mode, options
    assert compose(f"experiment=fig2a_{dataset}", "method=dash", "method.variant=original").method.mode == "eval"


def test_a_tuned_value_comes_by_benchmark_data_and_method_and_the_command_line_wins() -> None:
    where = ("benchmark=continual", "dataset=tinyimagenet")
    assert compose(*where, "method=l2init").method.coef == 1e-5
    assert compose(*where, "method=l2init", "method.coef=0.5").method.coef == 0.5
    assert compose("method=l2init").method.coef == 1e-3  # the digits have none
    assert (
        compose("experiment=fig2b_tinyimagenet", "method=redo", "method.variant=original").method.variant == "original"
    )
    assert compose("experiment=fig2b_tinyimagenet", "scale=smoke").epochs == 2


def line_of(config: DictConfig) -> str:
    return tuned_values(config.tuned, config.benchmark.name, config.dataset.name, config.method.name)


FOLDER = ("benchmark=warm_start", "dataset=folder", "dataset.path=own")


@pytest.mark.parametrize("where", [("tuned=warm_start_cifar10", *FOLDER), ("experiment=fig2a_cifar10", *FOLDER[1:])])
def test_a_named_setting_has_the_paper_s_values_on_any_data(where: tuple[str, ...]) -> None:
    for method, (options, values) in PAPER.items():
        config = compose(*where, f"method={method}")
        assert config.dataset.name == "folder"
        assert tuple(config.method[option] for option in options) == values["a"][0], method
        assert line_of(config) == f"tuned values: tuned/vision/warm_start_cifar10, {method}"
    assert compose(*where, "variant=fire_paper", "method=dash").method.mode == "train"
    assert compose(*where, "method=redo", "method.threshold=0.25").method.threshold == 0.25


@pytest.mark.parametrize(
    ("options", "threshold", "line"),
    [
        (FOLDER, 0.1, "none for warm_start on folder"),
        (("benchmark=warm_start", "dataset=cifar10"), 0.5, "tuned/vision/warm_start_cifar10, redo"),
        (("benchmark=warm_start", "dataset=cifar10", "tuned=none"), 0.1, "none, as tuned=none says"),
        (("experiment=fig2a_cifar10", "tuned=none"), 0.1, "none, as tuned=none says"),
        (
            ("experiment=fig2a_cifar10", "tuned=auto", "benchmark=continual"),
            0.05,
            "tuned/vision/continual_cifar10, redo",
        ),
        (("benchmark=warm_start", "dataset=digits"), 0.1, "none for redo in tuned/vision/warm_start_digits"),
    ],
)
def test_which_tuned_values_a_run_takes(options: tuple[str, ...], threshold: float, line: str) -> None:
    config = compose(*options, "method=redo")
    assert config.method.threshold == threshold
    assert line_of(config) == f"tuned values: {line}"


def test_the_setting_s_name_is_no_part_of_what_a_run_is() -> None:
    """Its values are: the same values by data set and by name are the same run."""
    options = ("benchmark=warm_start", "method=cbp", "tracker=none")
    by_data, by_name, without = (
        vision.task.Task.from_config(compose(*options, *more)).identity()
        for more in ((), ("tuned=warm_start_digits",), ("tuned=none",))
    )
    assert by_data == by_name != without


BUDGETED = {"vision": ("epochs", 60), "language": ("accumulation", 1)}
BUDGETED |= {"dqn": ("log_every", 2000), "sac": ("eval_every", 2500)}


def program_of(experiment: str) -> str:
    return OTHERS[max((prefix for prefix in OTHERS if experiment.startswith(prefix)), key=len)]


OTHER_EXPERIMENTS = sorted(
    {str(name) for path in (CONF / "presets").glob("*.yaml") for name in OmegaConf.load(path)} - set(EXPERIMENTS)
)


@pytest.mark.parametrize(("experiment", "quarter", "some"), some_methods_or_the_others(OTHER_EXPERIMENTS))
def test_every_method_in_every_other_experiment(experiment: str, quarter: int, some: bool) -> None:
    for name in chosen(ALL_METHODS, quarter, some) if experiment != "tune_snp" else ["snp"]:
        config = compose(f"experiment={experiment}", f"method={name}", program=program_of(experiment))
        options: Any = OmegaConf.to_container(config.method, resolve=True)
        assert isinstance(build("method", options), Method)
        OmegaConf.to_container(config, resolve=True)


@pytest.mark.parametrize("program", PROGRAMS)
def test_budgets_and_tuned_values_then_the_experiment_then_the_command_line(program: str) -> None:
    """The experiment sets what a budget, a tuned value and the root set too; each later one wins."""
    where = ["benchmark=continual", "dataset=cifar10"] if program == "vision" else []
    option, budgeted = BUDGETED[program]
    tuned = compose("method=snp", *where, program=program)
    assert tuned.method.coef == (0.5 if program == "language" else 0.8)
    assert (tuned[option], tuned.threads) == (budgeted, 1)

    values = {option: 77, "threads": None, "method": {"coef": 0.25}}
    ConfigStore.instance().store(group="experiment", name="of_the_test", node=values, package="_global_")
    named = ("method=snp", *where, "experiment=of_the_test")
    config = compose(*named, program=program)
    assert (config.method.coef, config[option], config.threads) == (0.25, 77, None)
    config = compose(*named, "method.coef=0.125", f"{option}=78", "threads=3", program=program)
    assert (config.method.coef, config[option], config.threads) == (0.125, 78, 3)


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_unknown_experiment_is_refused(program: str) -> None:
    with pytest.raises(MissingConfigException, match="experiment/fig33"):
        compose("experiment=fig33", program=program)


def test_an_experiment_s_values_for_one_start() -> None:
    def coef(*overrides: str) -> float:
        return float(compose("method=snp", *overrides, program="language").method.coef)

    assert [coef("experiment=fig3", f"start={start}") for start in ("best", "30k", "60k")] == [0.5, 0.8, 0.5]
    assert coef("start=30k") == 0.5


STREAMS = {  # of vision, with their data sets
    f"{benchmark.stem}_{dataset.stem}"
    for benchmark in (CONF / "benchmark").glob("*.yaml")
    for dataset in (CONF / "dataset").glob("*.yaml")
}


def options_of(method: str) -> set[str]:
    """The names of a method's options, as its file in conf/method gives them."""
    own = {"parts"} if method == "chain" else set()  # its defaults list fills them in
    return set(OmegaConf.load(CONF / "method" / f"{method}.yaml")) | {"layout"} | own


def test_tables_name_what_exists() -> None:
    """Nothing would ever pick up a misspelt method, data set or benchmark, or notice a misspelt option."""
    for path in (CONF / "tuned").rglob("*.yaml"):
        if path.parent.name == "vision":
            benchmark, dataset = path.stem.rsplit("_", 1)
            assert (CONF / "benchmark" / f"{benchmark}.yaml").exists()
            assert (CONF / "dataset" / f"{dataset}.yaml").exists()
        for entry, values in OmegaConf.load(path).items():
            method = str(entry)
            if path.stem == "language" and method.count("_") == 2:  # <experiment>_<start>_<method>
                experiment, start, method = method.split("_", 2)
                assert experiment in OmegaConf.load(CONF / "presets" / "language.yaml")
                assert start in OmegaConf.load(CONF / "start.yaml")
            if path.stem == "searched":  # <benchmark>_<data set>_<method>, and a rate for each
                place = next(place for place in STREAMS if method.startswith(f"{place}_"))
                parts = method.removeprefix(f"{place}_").split("+")
                assert set(parts) <= set(ALL_METHODS), entry
                method = parts[0] if len(parts) == 1 else "chain"
                assert set(values) <= {"lr", "method"}, (path.name, entry)
                values = values.get("method", {})
            assert method in ALL_METHODS
            assert set(values) <= options_of(method), (path.name, entry)
            if method == "chain":
                assert values.get("of", parts) == parts, entry
                for part, options in values.get("parts", {}).items():
                    assert part in parts, (entry, part)
                    assert set(options) <= options_of(part), (entry, part)
    scales = set(OmegaConf.load(CONF / "scale.yaml"))
    for program in PROGRAMS:
        assert set(OmegaConf.load(CONF / "budget" / f"{program}.yaml")) == scales
