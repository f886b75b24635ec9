"""Every experiment with every method composes, has the paper's values, and builds."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

import vision.task
from fire_core.methods import Method, Net
from harness.config import groups
from harness.config.build import build
from harness.config.groups import CONF, PACKAGES, choices, compose_with_hydra
from harness.program.outcome import tuned_values_taken
from tests import programs
from tests.zygote import Zygote

PROGRAMS = tuple(PACKAGES)
EXPERIMENTS = [name for name in choices("experiment") if name.startswith("fig2")]
OTHERS = [(name, program) for program in PROGRAMS for name in choices("experiment", program) if name not in EXPERIMENTS]
ALL_METHODS = choices("method")
METHODS = [name for name in ALL_METHODS if name != "pi"]  # pi needs a head
CLASSES = {"cifar10": 10, "cifar100": 100, "tinyimagenet": 200}
ROWS = {"a": "warm_start", "b": "continual", "c": "class_incremental"}
SIZES = {"cifar10": 32, "cifar100": 32, "tinyimagenet": 64}

# The paper's, figure 2: method -> options -> benchmark -> values in the order of the data sets.
PAPER: dict[str, tuple[tuple[str, ...], dict[str, list[tuple[float | None, ...]]]]] = {
    "snp": (("coef", "perturb"), {"a": [(0.8, None)] * 3, "b": [(0.8, None)] * 3, "c": [(0.8, None)] * 2}),
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
    return programs.compose(program, *overrides)


def tuned_values(setting: str) -> dict[str, Any]:
    """The values of each method in a setting, as they stand in conf/tuned/values."""
    files = (CONF / "tuned" / "values" / setting).glob("*.yaml")
    return {file.stem: OmegaConf.to_container(OmegaConf.load(file)) for file in files}


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
    assert len(OTHERS) == 24


FEW = ("dash", "snr")
# A method whose options differ by experiment in each of them, and every method in one.
IN_TURN = {name: {"dash", *METHODS[i :: len(EXPERIMENTS)]} for i, name in enumerate(EXPERIMENTS)}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_tables_hold_the_paper_s_values(experiment: str) -> None:
    row, dataset = experiment.removeprefix("fig2").split("_")
    table = tuned_values(f"{ROWS[row]}_{dataset}")
    for name, (options, values) in PAPER.items():
        assert (
            tuple(table[name][option] for option in options)
            == values[row][sorted(CLASSES).index(dataset) - 3 + len(values[row])]
        ), name


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_methods_in_every_experiment(experiment: str) -> None:
    row, dataset = experiment.removeprefix("fig2").split("_")
    model, table = None, tuned_values(f"{ROWS[row]}_{dataset}")
    for name in IN_TURN[experiment]:
        config = compose(f"experiment={experiment}", f"method={name}")
        assert (config.dataset.name, config.tuned) == (dataset, f"{ROWS[row]}_{dataset}")
        assert (config.epochs, config.batch_size, config.lr, config.grad_clip) == (100, 256, 1e-3, 0.5)
        assert (config.schedule, config.scale, config.threads) == ("reference", "paper", None)
        assert config.dataset.test_statistics == ("test" if dataset == "cifar100" else "train")
        model = build_model(config) if model is None else model
        method = build("method", config.method)
        assert isinstance(method, Method)
        method.check(Net({"model": model}, {}))
        if name in PAPER:
            assert all(config.method[option] == table[name][option] for option in PAPER[name][0]), name
        if "variant" in config.method:
            assert config.method.variant == "fire_paper"
        if name == "dash":
            assert config.method.mode == ("train" if row == "a" else "eval")
    assert build("benchmark", config.benchmark).methods_from_phase == (1 if row == "a" else 0)


def test_dash_takes_its_own_papers_mode_outside_of_the_authors_variant() -> None:
    """Training mode in warm_start is the FIRE authors' code; the original evaluates."""
    where = ("benchmark=warm_start", "dataset=cifar100", "method=dash")
    for options, mode in [
        ((), "eval"),
        (("variant=fire_paper",), "train"),
        (("method.mode=train",), "train"),
        (("variant=fire_paper", "method.mode=eval"), "eval"),
    ]:
        assert compose(*where, *options).method.mode == mode, options
    assert compose("experiment=fig2a_cifar100", "method=dash", "method.variant=original").method.mode == "eval"


def test_a_tuned_value_comes_by_benchmark_data_and_method_and_the_command_line_wins() -> None:
    where = ("benchmark=continual", "dataset=tinyimagenet")
    assert compose(*where, "method=l2init").method.coef == 1e-5
    assert compose(*where, "method=l2init", "method.coef=0.5").method.coef == 0.5
    assert compose("method=l2init").method.coef == 1e-3  # the digits have none
    assert (
        compose("experiment=fig2b_tinyimagenet", "method=redo", "method.variant=original").method.variant == "original"
    )
    assert compose("experiment=fig2b_tinyimagenet", "scale=smoke").epochs == 2


def line_of(*overrides: str) -> str | None:
    return tuned_values_taken(compose_with_hydra("vision", overrides).hydra.runtime)


# What `original` is by the authors' public code, and what the FIRE paper's code has instead (docs/methods.md).
BY_VARIANT: dict[str, tuple[tuple[str, ...], tuple[Any, ...], tuple[Any, ...]]] = {
    "snp": (("coef", "perturb"), (0.6, 0.1), (0.8, None)),
    "dash": (("alpha", "minimum"), (0.3, 0.3), (0.3, 0.05)),
    "muon": (("betas", "eps"), ([0.9, 0.999], 1e-8), ([0.9, 0.95], 1e-10)),
}


@pytest.mark.parametrize("method", BY_VARIANT)
def test_a_method_s_values_follow_the_variant(method: str) -> None:
    options, original, paper = BY_VARIANT[method]
    for variant, expected in (("original", original), ("fire_paper", paper)):
        for chosen in ((f"method={method}",), ("method=chain", f"method.of=fire+{method}")):
            config = compose(*chosen, "benchmark=random_labels", f"variant={variant}")
            node = config.method.parts[method] if "parts" in config.method else config.method
            assert tuple(node[option] for option in options) == expected, (chosen, variant)


def test_agents_have_the_paper_s_shrink_and_perturb_in_the_paper_s_experiments() -> None:
    """Figure 3 has a test of its own in tests/language."""
    dqn, sac = ("experiment=fig4a_asterix", "dqn"), ("experiment=fig4b_h1_walk", "sac")
    for experiment, program in (dqn, sac):
        config = compose(experiment, "method=snp", program=program)
        assert (config.method.coef, config.method.perturb) == (0.8, None)
    assert compose(dqn[0], "method=snp", program="dqn").method.layout == "dqn"


def test_muon_takes_over_the_betas_of_the_trainer_s_adam() -> None:
    assert list(compose("method=muon", "optimizer=adamw").method.betas) == [0.9, 0.95]
    assert compose("method=muon", "env=breakout", program="dqn").method.eps == 1.5e-4


FILES = "conf/tuned/values"
FOLDER = ("benchmark=warm_start", "dataset=folder", "dataset.path=own")


@pytest.mark.parametrize("where", [("tuned=warm_start_cifar10", *FOLDER), ("experiment=fig2a_cifar10", *FOLDER[1:])])
def test_a_named_setting_has_the_paper_s_values_on_any_data(where: tuple[str, ...]) -> None:
    for method in FEW:
        options, values = PAPER[method]
        config = compose(*where, f"method={method}")
        assert config.dataset.name == "folder"
        assert tuple(config.method[option] for option in options) == values["a"][0], method
        assert line_of(*where, f"method={method}") == f"tuned values: {FILES}/warm_start_cifar10/{method}.yaml"
    assert compose(*where, "variant=fire_paper", "method=dash").method.mode == "train"
    assert compose(*where, "method=redo", "method.threshold=0.25").method.threshold == 0.25


@pytest.mark.parametrize(
    ("options", "threshold", "line"),
    [
        (FOLDER, 0.1, f"none, there is no {FILES}/warm_start_folder/redo.yaml"),
        (("benchmark=warm_start", "dataset=cifar10"), 0.5, f"{FILES}/warm_start_cifar10/redo.yaml"),
        (("benchmark=warm_start", "dataset=cifar10", "tuned=none"), 0.1, "none, as tuned=none says"),
        (("experiment=fig2a_cifar10", "tuned=none"), 0.1, "none, as tuned=none says"),
        (
            ("experiment=fig2a_cifar10", "tuned=auto", "benchmark=continual"),
            0.05,
            f"{FILES}/continual_cifar10/redo.yaml",
        ),
        (("benchmark=warm_start", "dataset=digits"), 0.1, f"none, there is no {FILES}/warm_start_digits/redo.yaml"),
    ],
)
def test_which_tuned_values_a_run_takes(options: tuple[str, ...], threshold: float, line: str) -> None:
    config = compose(*options, "method=redo")
    assert config.method.threshold == threshold
    assert line_of(*options, "method=redo") == f"tuned values: {line}"


def test_the_line_of_tuned_values_has_those_that_are_given() -> None:
    """A given rate is a value that the run takes, and where none are asked for no file is missed."""
    runtime = compose_with_hydra("vision", (*FOLDER, "method=fire")).hydra.runtime
    given = ("method=fire", "lr=3e-3", "seed=1", "method.blend=0.5")
    missing = f"there is no {FILES}/warm_start_folder/fire.yaml"
    assert tuned_values_taken(runtime, given) == (f"tuned values: none, {missing}; given: lr=3e-3 method.blend=0.5")
    assert tuned_values_taken(runtime) == f"tuned values: none, {missing}"


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


@pytest.mark.parametrize(("experiment", "program"), OTHERS)
def test_methods_in_every_other_experiment(experiment: str, program: str) -> None:
    number = OTHERS.index((experiment, program))
    for method in ALL_METHODS[number :: len(OTHERS)] if experiment != "tune_snp" else ["snp"]:
        config = compose(f"experiment={experiment}", f"method={method}", program=program)
        options: Any = OmegaConf.to_container(config.method, resolve=True)
        assert isinstance(build("method", options), Method)
        OmegaConf.to_container(config, resolve=True)


@pytest.mark.parametrize("program", PROGRAMS)
def test_budgets_and_tuned_values_then_the_experiment_then_the_command_line(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The experiment sets what a budget, a tuned value and the root set too; each later one wins."""
    one_setting = {
        "vision": ["benchmark=continual", "dataset=cifar10"],
        "dqn": ["env=breakout"],
        "sac": ["env=humanoid"],
    }
    where = one_setting.get(program, [])
    option, budgeted = BUDGETED[program]
    config = compose("method=snp", *where, program=program)
    assert config.method.coef == {"language": 0.5, "sac": 0.6}.get(program, 0.8)
    assert (config[option], config.threads) == (budgeted, 1)

    values = {option: 77, "threads": None, "method": {"coef": 0.25}}
    conf = Path(shutil.copytree(CONF, tmp_path / "conf"))
    (conf / "experiment" / "mine.yaml").write_text(
        "# @package _global_\n" + OmegaConf.to_yaml(OmegaConf.create(values))
    )
    monkeypatch.setattr(groups, "CONF", conf)
    named = ("method=snp", *where, "experiment=mine")
    config = compose(*named, program=program)
    assert (config.method.coef, config[option], config.threads) == (0.25, 77, None)
    config = compose(*named, "method.coef=0.125", f"{option}=78", "threads=3", program=program)
    assert (config.method.coef, config[option], config.threads) == (0.125, 78, 3)


DEFAULTS = {
    "dqn": ("experiment=continual_cartpole", "continual_control"),
    "sac": ("experiment=continual_double_pendulum", "continual_control"),
    "language": ("experiment=permuted_text", "permuted_text"),
}


@pytest.mark.parametrize("program", DEFAULTS)
def test_a_program_without_options_runs_a_stream_that_takes_minutes(program: str) -> None:
    """It is the run of the experiment of that name, so that neither trains twice; SAC's has seven of its ten tasks."""
    experiment, benchmark = DEFAULTS[program]
    more = ("benchmark.tasks=10",) if program == "sac" else ()
    for scale in ("smoke", "small", "paper"):
        default, named = (compose(*options, f"scale={scale}", program=program) for options in (more, (experiment,)))
        assert default == named
        assert default.benchmark.name == benchmark


@pytest.mark.parametrize("program", ["dqn", "sac"])
def test_an_environment_that_is_named_is_one_task_in_two_halves(program: str) -> None:
    """Only the default is a stream: its tasks, networks and rate do not go over to another environment."""
    for env in (env for env in choices("env", program) if not env.startswith("continual_")):
        config = compose(f"env={env}", *(["env.task=Swimmer-v5"] if env == "mujoco" else []), program=program)
        assert config.benchmark is None
        assert (config.total_steps if program == "dqn" else config.env_steps) > 0
    assert compose("env=humanoid", program="sac").networks.name == "simba"
    assert compose("env=double_pendulum", program="sac").lr == 3e-4
    assert compose("env=cartpole", program="dqn").lr == 5e-4


def options_of(method: str) -> set[str]:
    """The names of a method's options, as its file in conf/method gives them."""
    return set(OmegaConf.load(CONF / "method" / f"{method}.yaml")) | {"layout"}


TUNED = sorted((CONF / "tuned").glob("*/*/*.yaml"))


@pytest.mark.parametrize("folder", sorted({file.parent for file in TUNED}), ids=lambda folder: folder.name)
def test_tuned_values_are_of_what_exists(folder: Path) -> None:
    """Nothing would ever pick up a misspelt method, data set or benchmark, or notice a misspelt option."""
    if folder.name not in PROGRAMS:
        benchmark, dataset = folder.name.rsplit("_", 1)
        assert benchmark in choices("benchmark", "vision")
        assert dataset in choices("dataset", "vision")
    for file in folder.glob("*.yaml"):
        values: Any = OmegaConf.to_container(OmegaConf.load(file))
        if folder.parent.name == "searched":
            assert set(values) <= {"lr", "method"}, file
            values = values.get("method", {})
        parts = values.get("parts", {}) if "+" in file.stem else {file.stem: values}
        assert set(parts) <= set(file.stem.split("+")) <= set(ALL_METHODS)
        assert all(set(options) <= options_of(part) for part, options in parts.items()), file


def test_every_setting_of_the_figures_is_a_choice_of_tuned() -> None:
    settings = {folder.name for folder in (CONF / "tuned" / "values").iterdir()} - set(PROGRAMS)
    assert set(choices("tuned", "vision")) == {"auto", "none", "searched"} | settings
    assert choices("tuned", "dqn") == choices("tuned", "language") == ("auto", "none")


# Options as on the command line, where tuned values come from a setting, a search, an experiment, or from nowhere.
SHOWN = (
    "method=redo benchmark=warm_start dataset=cifar10",
    "method=dash benchmark=warm_start dataset=cifar10 variant=fire_paper",
    "method=cbp benchmark=warm_start method.maturity=200",
    "method=redo tuned=warm_start_cifar10 benchmark=warm_start",
    "method=fire tuned=searched",
    "method=chain method.of=fire+weight_decay tuned=searched",
    "method=snp tuned=none",
)


@pytest.mark.parametrize("options", SHOWN)
def test_what_plain_hydra_composes_is_what_a_run_writes(
    options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What Hydra prints for `--cfg job`, the help, and config.yaml of the run, to the last value."""
    monkeypatch.chdir(tmp_path)
    few = ("scale=smoke", "dataset=digits", "model.hidden=8", "epochs=1", "tracker=none", "progress=false")
    data = () if "cifar10 " in f"{options} " and "dataset" in options else few[1:2]
    chosen = (*few[:1], *data, *few[2:], *options.split())
    assert programs.start_here("vision", (*chosen, "--cfg", "job", "--resolve"), monkeypatch) == 0
    plain: Any = OmegaConf.to_container(OmegaConf.create(capsys.readouterr().out))
    assert programs.start_here("vision", (*chosen, "--help"), monkeypatch) == 0
    helped = capsys.readouterr().out.partition("option=value\n")[2].partition("\nRun folders:")[0]
    assert OmegaConf.to_container(OmegaConf.create(helped), resolve=True) == plain
    if data:  # there are no images of CIFAR-10 here
        assert programs.start_here("vision", chosen, monkeypatch) == 0
        written = OmegaConf.to_container(OmegaConf.load(programs.only_run(tmp_path / "runs") / "config.yaml"))
        different = {key for key in plain if written.get(key) != plain[key]}
        assert different <= {"device", "deterministic", "metrics"}, different


def test_tuned_values_of_one_s_own_folder_are_taken(tmp_path: Path) -> None:
    folder = tmp_path / "tuned/values/warm_start_digits"
    folder.mkdir(parents=True)
    (folder / "redo.yaml").write_text("# @package method\nthreshold: 0.25\n")
    config = compose_with_hydra("vision", ("method=redo", "benchmark=warm_start"), tmp_path)
    assert config.method.threshold == 0.25
    assert tuned_values_taken(config.hydra.runtime) == f"tuned values: {FILES}/warm_start_digits/redo.yaml"


def test_the_redo_of_the_warm_start_is_shown(tmp_path: Path, zygote: Zygote) -> None:
    answer = zygote.run(tmp_path, "vision.train", *SHOWN[0].split(), "--cfg", "job")
    assert "threshold: 0.5\n" in answer.out


def test_what_conf_holds_is_ordinary() -> None:
    resolvers = {name for file in CONF.rglob("*.yaml") for name in re.findall(r"\$\{([\w.]+):", file.read_text())}
    assert resolvers <= {"choose", "home", "oc.env", "oc.select"}, "two resolvers of our own"
    with_home = [file.name for file in CONF.rglob("*.yaml") if "${home:" in file.read_text()]
    assert with_home == ["default.yaml"], "for the one path that Hydra itself reads; the programs expand all others"
