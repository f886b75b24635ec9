"""Wrong options that once ended in a traceback, a crash or more than a line: one line, exit code 2, nothing written.

Each case is the command line of a program, and the beginning of what it says. Most are read, composed and refused in
this process (`start_here`); `BY_COMMAND_LINE` is a program as a user starts it. Values out of range are in
tests/test_ranges.py, and `test_options.py` holds that each option has such a check.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

import rl.dqn.task  # noqa: F401
import vision.train  # noqa: F401  (registers the options of the program)
from harness.config.build import build
from harness.config.errors import ConfigError
from harness.config.given import idle_layout, refuse_idle_learning_rate
from harness.config.groups import compose
from harness.config.trigger import build_trigger
from tests.programs import start_here
from tests.zygote import Zygote

LAYOUT = "model.layout has no effect with method={}, which acts by no layout of the network\n"
UPGD = "lr has no effect beside the optimizer that method=upgd brings"
ALIKE = ("scale=smoke", "tracker=none", "progress=false")
VISION = {
    "scale=smal": "scale=smal is unknown; accepted: smoke, small, paper",
    "device=meta": "device=meta is unknown; accepted: auto, cpu,",
    "dataset.name=mnist": "dataset.name=mnist only gives dataset=digits another name: write dataset=mnist\n",
    "method=fire method.name=snp": "method.name=snp only gives method=fire another name: write method=snp\n",
    "model.name=resnet18": "model.name=resnet18 only gives model=mlp another name: write model=resnet18\n",
    "lr=fast": "lr must be a number, got 'fast'",
    "lr=": "lr must be a number, got ''",
    "seed=1.5": "seed must be a whole number, got 1.5",
    "checkpoint.every_seconds=[1,2]": "checkpoint.every_seconds must be a number, got [1, 2]",
    "progress=maybe": "progress must be true or false, got 'maybe'",
    "paths=abc": "paths has options of its own: paths.runs=, paths.data=, paths.cache=",
    "+epoch=3": "option epoch is unknown (did you mean epochs?); accepted: program, seed,",
    "++epoch=3": "option epoch is unknown (did you mean epochs?)",
    "+epoch=3,4 -m": "option epoch is unknown (did you mean epochs?)",
    "epoch=3": "option epoch is unknown (did you mean epochs?)",
    "+checkpoint.every_second=5": "option checkpoint.every_second is unknown (did you mean every_seconds?); acc",
    "+trigger.every=5": "option trigger.every is unknown; accepted: name",
    "+lr.low=5": "option lr.low is unknown: lr has no options of its own",
    "+foo/bar=x": "option foo/bar is unknown; accepted: ",
    "+hydra.foo=3": "option hydra.foo is unknown; accepted: run, sweep, ",
    "+hydra.callbacks.mine.every=3": "+hydra.callbacks.mine.every=3: hydra.callbacks.mine has no _target_, the class",
    "hydra/job_logging=nope": "hydra/job_logging=nope is unknown (did you mean none?); accepted: default, ",
    "+hydra.sweeper.params.seed='0,1' -m": "+hydra.sweeper.params.seed='0,1': on the command line an option is var",
    "@seed=3": "Hydra cannot take these arguments: Config group override must be a string or a list",
    "--resolve": "Hydra cannot take these arguments: The --resolve flag can only be used",
    "--info -m": "Hydra cannot take these arguments: Only one of --run, --multirun, --cfg, --info",
    "--shell-completion": "Hydra cannot take these arguments: Expecting one subcommand from",
    "+method@foo=fire": "In 'method/fire': option foo is unknown; accepted: program, ",
    "+hydra.sweep.folder=3": "option hydra.sweep.folder is unknown; accepted: dir, subdir",
    "+epochs=3": "+epochs=3: epochs is an option already, which is written without +",
    "+method=fire": "+method=fire: the program has one method, chosen by method=<name>",
    "+method.coef=3": "method=base: Base() takes no arguments",
    "~epochs": "~epochs: the program needs epochs, which cannot be removed",
    "~checkpoint.keep": "~checkpoint.keep: the program needs checkpoint.keep, which cannot be removed",
    "~epoch": "option epoch is unknown (did you mean epochs?)",
    "~tracker": "~tracker: the program has one tracker, chosen by tracker=<name>",
    "method=base method.iterations=5": "option method.iterations is unknown; accepted: _target_, name",
    "method=base,snp method.iterations=1,5 -m": "option method.iterations is unknown; accepted: _target_, name, coef, ",
    "method=base,fire": "method=base,fire has several values: add -m to run each\n",
    "epochs=5,6": "epochs=5,6 has several values: add -m to run each; a list is written epochs=[5,6], and a text 'ep",
    "seed=range(3)": "seed=range(3) has several values: add -m to run each; ",
    "paths.runs=läufe": "paths.runs=läufe cannot be read: a value with other characters than",
    "dataset.path=~/images": "dataset.path=~/images cannot be read: a value with other characters than",
    "dataset=folder dataset.path=a(1)": "dataset.path=a(1) cannot be read: Unknown function 'a'; a text ",
    "seed=rangee(3) -m": "seed=rangee(3) cannot be read: Unknown function 'rangee'; a text with parentheses stands in",
    "seed=range(0,1 -m": "seed=range(0,1 cannot be read: ( is not closed; as part of a text it stands in quotes ",
    "seed:3": "seed:3 cannot be read: an option and its value are joined by =, seed=3",
    "seed==3": "seed==3 cannot be read: one = stands between an option and its value, seed=3",
    "method=base, fire -m": "method=base, cannot be read: a value between its commas is empty, and no space stands ",
    "method=[base,fire] -m": "method=[base,fire]: several choices are written method=base,fire, with -m",
    "lr=interval(0,1) -m": "lr=interval(0,1): a search draws from a range, hydra/sweeper=optuna",
    "seed=${nope}": "seed: Interpolation key 'nope' not found",
    "epochs": "epochs cannot be read; options are written option=value, and --help names them",
    "paths.runs=": "paths.runs must be a path, got '': is a shell variable not set?",
    "paths.runs= -m": "paths.runs must be a path, got '': is a shell variable not set?",
    "paths.runs=1e3": "paths.runs=1e3 is read as 1000.0: a text stands in quotes within quotes, ",
    "paths.runs=true -m": "paths.runs=true is read as True: a text stands in quotes within quotes, ",
    "paths.runs=$SCRATCH/runs": "paths.runs=$SCRATCH/runs: the shell has not replaced $SCRATCH, as within single quot",
    "paths.runs=/x/$USER/runs seed=0,1 -m": "paths.runs=/x/$USER/runs: the shell has not replaced $USER, as within",
    "paths.runs=${oc.env:NOT_SET_HERE}/x": 'paths.runs: KeyError raised while resolving interpolation: "Environment ',
    "paths.runs=/dev/null": "cannot write to /dev/null/vision/random_labels-digits-base-s0-",
    "paths.runs=/dev/null seed=0,1 -m": "cannot write to /dev/null/.sweeps: Not a directory (see paths.runs=, hydra.sw",
    "hydra.sweep.dir= seed=0,1 -m": "hydra.sweep.dir must be a path, got '': is a shell variable not set?",
    "hydra.sweep.dir='~/x' seed=0,1 -m": "hydra.sweep.dir=~/x: Hydra does not replace ~; write hydra.sweep.dir=/",
    "paths.cache=": "paths.cache must be a path, got ''",
    "dataset=folder dataset.path=": "dataset.path must be a path, got ''",
    "dataset=mnist paths.data=": "paths.data must be a path, got ''",
    "dataset=mnist dataset.root=": "dataset.root must be a path, got ''",
    "dataset=cifar10 dataset.root='~nobody-here/x'": "dataset.root=~nobody-here/x: there is no home folder ~nobody-her",
    "--config-dir=nope": "--config-dir=nope is no folder: it holds groups of yours as conf/ does",
    "--config-dir=": "--config-dir= is no folder",
    "benchmark=domains": "benchmark=domains is not for vision; accepted: class_incremental, ",
    "benchmark=permuted,domains -m": "benchmark=domains is not for vision; accepted: class_incremental, ",
    "model=resnet50": "model=resnet50 is written model=timm model.name=resnet50 or model=torchvision mod",
    "model=convnext_tiny": "model=convnext_tiny is written model=timm model.name=convnext_tiny or model=torchvision ",
    "model.hiden=8": "option model.hiden is unknown (did you mean hidden?); accepted: _target_, name, hidden, ",
    "method=base,fire method.iteratons=3 -m": "option method.iteratons is unknown (did you mean iterations?); acc",
    "method=fire method.solver=exact method.norm_init=power": "method.norm_init has no effect with method.solver=exact",
    "method=fire method.blend=0.5 method.iterations=5": "method.iterations has no effect with method.blend=0.5",
    "method=fire method.blend=0.5 method.solver=muon": "method.solver has no effect with method.blend=0.5",
    "method=chain method.of=fire+muon method.parts.fire.blend=0.5 method.parts.fire.tol=0.1": (
        "method.parts.fire.tol has no effect with method.parts.fire.blend=0.5"
    ),
    "method=chain method.of=fire+muon method.parts.fire.solver=exact method.parts.fire.iterations=5": (
        "method.parts.fire.iterations has no effect with method.parts.fire.solver=exact"
    ),
    "method=chain method.of=fire+muon method.parts.snp.coef=0.5": (
        "method.parts.snp.coef has no effect: method.of=fire+muon does not name snp"
    ),
    "method=muon optimizer=sgd": "optimizer has no effect beside the optimizer that method=muon brings",
    "method=muon optimizer=adamw optimizer.weight_decay=0.5": (
        "optimizer.weight_decay has no effect beside the optimizer that method=muon brings"
    ),
    "method=upgd lr=0.1": UPGD,
    "lr=0.1 optimizer.lr=0.01": "lr has no effect, as optimizer.lr=0.01 does not refer to it: give optimizer.lr= alone",
    "method=chain method.of=fire+upgd lr=0.1": "lr has no effect beside the optimizer that method=fire+upgd brings",
    "method=chain method.of=[fire,muon]": "method.of=[fire,muon] is written method.of=fire+muon",
    "batch_size=1 model.norm=true": "model=mlp cannot take images (1, 1, 8, 8): Expected more than 1 value per",
    "benchmark=continual benchmark.chunks=10000": "benchmark.chunks=10000 is more than the 1280 training images",
    "benchmark=continual_pretraining": "benchmark=continual_pretraining is not for vision; accepted: class_",
    "dataset=cifar10 dataset.root=nowhere": "dataset=cifar10 is not there: put ",
    "method=fier": "method=fier is unknown (did you mean fire?); accepted: adamo, base, ",
    "method=muon method.betas=[2,3]": "method.betas[0] must be in [0, 1), got 2",
    "dataset.noise_seed=3": "dataset.noise_seed has no effect with dataset.pixel_noise=0\n",
    "dataset.noise_seed=0 dataset.pixel_noise=0.0": "dataset.noise_seed has no effect with dataset.pixel_noise=0\n",
    "+model.layout=all method=redo": LAYOUT.format("redo"),
    "+dataset.mine=nan": "dataset.mine must be a finite number, got nan\n",
    "+optimizer.mine={a:[1,nan]}": "optimizer.mine.a[1] must be a finite number, got nan\n",
    "tuned=warm_start_cifar": "tuned=warm_start_cifar is unknown (did you mean warm_start_cifar10?); accepted: auto, ",
    "tuned=searched dataset=mnist": "conf/tuned/searched/random_labels_mnist/base.yaml is chosen and not there",
    "hydra/launcher=foo": "hydra/launcher=foo is unknown; accepted: basic, cores, joblib",
    "model._target_=my.Net": "model._target_=my.Net cannot be imported: ",
    "=3": "=3 names no option; options are written option=value",
    "-x": "unrecognized arguments: -x; options are written option=value",
    "--cfg=abc": "argument --cfg/-c: invalid choice: 'abc'",
    "-m seed=range(0)": "-m starts nothing: an option has no value (seed=range(0))",
}
PAIR = "benchmark=continual_pretraining"  # of corpora; the program's own benchmark is another
LANGUAGE = {
    "benchmark=warm_start": "benchmark=warm_start is not for language; accepted: continual_pretraining",
    f"{PAIR} benchmark.passes=[9,1]": (
        "benchmark.passes has no effect beside benchmark.iterations=[24, 24]: set that to null"
    ),
    "benchmark=domains dataset=pydoc_stdlib dataset.replay=0.5": (
        "dataset.replay has no effect with benchmark=domains, which has no pair of corpora to mix"
    ),
    f"{PAIR} benchmark.start=scratch method=upgd lr=0.1": UPGD,
    "benchmark=one_text dataset=pydoc model.layout=qk method=snp": LAYOUT.format("snp"),
    "+model.mine=-nan": "model.mine must be",
    f"{PAIR} benchmark.checkpoints=abc": "benchmark.checkpoints must be a list, got 'abc'",
}
DQN = {
    "env=acrobot env.name=cartpole": "env.name=cartpole only gives env=acrobot another name: write env=cartpole\n",
    "experiment=continual_minatar benchmark.boundaries=hidden method=upgd lr=0.1": UPGD,
    "env=cartpole eval.episodes=1 eval.steps=9": "eval.steps has no effect beside eval.episodes=1",
    "experiment=continual_cartpole midpoint=9": "midpoint has no effect in a stream of tasks",
    "experiment=continual_cartpole benchmark.boundaries=hidden boundary.target=keep": "boundary.target has no effect",
    "env=cartpole method=fire trigger=every boundary.replay=new": (
        "boundary.replay has no effect where boundaries restart nothing"
    ),
    "env=cartpole method=base model.layout=dqn": LAYOUT.format("base"),
    "env=cartpole method=fire method.layout=all model.layout=dqn": LAYOUT.format("fire"),
    "env=cartpole method=chain method.of=redo+muon model.layout=dqn": LAYOUT.format("redo+muon"),
    "env=cartpole exploration=shared num_envs=1": "exploration has no effect with num_envs=1",
    "env=asterix env.sticky=0 env.sticky_per=frame": "env.sticky_per has no effect with env.sticky=0\n",
    "benchmark=continual_control env=cartpole env.game=Acrobot-v1 benchmark.sequence=[CartPole-v1]": (
        "env.game has no effect beside benchmark.sequence=[CartPole-v1]\n"
    ),
    "experiment=continual_minatar env.game=breakout": (
        "env.game has no effect beside benchmark.sequence=[space_invaders,asterix,seaquest]\n"
    ),
    "env=cartpole env.options={mine:nan}": "env.options.mine must be a finite number, got nan\n",
    "env=asterix model=q_mlp": "model=q_mlp: q_mlp needs vectors, got observations of shape (4, 84, 84)",
}
SAC = {
    "cache=null": "cache must be true or false, got null",
    "env=hopper networks=mlp normalize_observations=false boundary.statistics=new": (
        "boundary.statistics has no effect with normalize_observations=false"
    ),
    "env.task=Ant-v5 benchmark.sequence=[Pendulum-v1] benchmark.physics=null": (
        "env.task has no effect beside benchmark.sequence=[Pendulum-v1]\n"
    ),
    "env=hopper env.options={healthy_reward:nan}": "env.options.healthy_reward must be a finite number, got nan\n",
}
PREPARE = {
    "dataset=pydoc dataset.val_fraction=nan": "dataset.val_fraction must be a finite number",
    "dataset=digits": "dataset._target_=vision.data.load_digits makes a ",
    "dataset=texts": "dataset=texts is a pair of corpora",
    "dataset=text path=": "dataset.path must be a path, got ''",
    "+paths.run=x": "option paths.run is unknown (did you mean runs?); accepted: runs, data, cache",
}
TABLES = {"vision": VISION, "language": LANGUAGE, "dqn": DQN, "sac": SAC, "language_prepare": PREPARE}
# Sweeps and flags that Hydra itself refuses; and of each program a case or more, refused by each of its parts.
BY_COMMAND_LINE = {
    "vision": (
        "--resolve",
        "--info -m",
        "--shell-completion",
        "paths.runs= -m",
        "paths.runs=/x/$USER/runs seed=0,1 -m",
        "paths.runs=/dev/null seed=0,1 -m",
        "-m seed=range(0)",
        "seed:3",  # cannot be read
        "epoch=3",  # Hydra refuses it, then the reason is looked for
        "lr=fast",  # Hydra refuses its type
        "device=meta",  # the task refuses it
        "paths.runs=/dev/null",  # as the run begins
    ),
    "language": ("benchmark=domains dataset=pydoc_stdlib dataset.replay=0.5",),
    "dqn": ("env=asterix model=q_mlp",),
    "sac": ("cache=null",),
    "language_prepare": ("dataset=digits",),
}
MODULES = {"vision": "vision.train", "language": "language.train", "dqn": "rl.dqn", "sac": "rl.sac"}
MODULES |= {"language_prepare": "language.prepare"}
IN_A_PROCESS = [(program, options) for program, chosen in BY_COMMAND_LINE.items() for options in chosen]
HERE = [(program, options) for program, table in TABLES.items() for options in table]
HERE = [case for case in HERE if case not in IN_A_PROCESS]


def words_of(program: str, options: str) -> list[str]:
    """The words of a command line that runs no longer than it must, if it is not refused."""
    return [*(() if program == "language_prepare" else ALIKE), *options.split()]


def assert_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """`start_here` leaves out the program's log, whose lines would stand on stderr before the error."""
    rooms = ("fire_core", "harness", "vision", "language", "rl")
    assert not [record for record in caplog.records if record.name.partition(".")[0] in rooms]


def assert_one_line(program: str, options: str, code: int, error: str, folder: Path) -> None:
    """That what was printed begins as the table says, and nothing was written."""
    says = TABLES[program][options]
    assert error.startswith(f"error: {says}".rstrip("\n")), error
    assert "\n" not in says or error == f"error: {says}"
    assert error.count("\n") == 1
    assert code == 2
    assert not list(folder.iterdir())


@pytest.mark.parametrize(("program", "options"), HERE, ids=[" ".join(case) for case in HERE])
def test_one_line(
    program: str,
    options: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO")
    code = start_here(program, words_of(program, options), monkeypatch)
    assert_nothing_is_logged(caplog)
    assert_one_line(program, options, code, capsys.readouterr().err, tmp_path)


@pytest.mark.parametrize(("program", "options"), IN_A_PROCESS, ids=[" ".join(case) for case in IN_A_PROCESS])
def test_one_line_by_the_command_line(program: str, options: str, tmp_path: Path, zygote: Zygote) -> None:
    answer = zygote.run(tmp_path, MODULES[program], *words_of(program, options))
    assert_one_line(program, options, answer.code, answer.err, tmp_path)


def test_a_rate_is_no_second_one_if_the_optimizer_s_refers_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.config.given.given_options", lambda: ("lr", "optimizer.lr"))
    refuse_idle_learning_rate(compose("vision", ["lr=0.1", "optimizer.lr=${lr}"]))
    with pytest.raises(ConfigError, match=r"lr has no effect, as optimizer.lr=0.1 does not refer to it"):
        refuse_idle_learning_rate(compose("vision", ["lr=0.1", "optimizer.lr=0.1"]))


GLOBAL = "# @package _global_\n"
OWN_FILES = {  # a file of one's own, its text and the options that choose it, and what is said
    ("experiment/mine.yaml", GLOBAL + "epoch: 3\n", "experiment=mine"): (
        "In 'experiment/mine': option epoch is unknown (did you mean epochs?); accepted: program, "
    ),
    ("experiment/mine.yaml", GLOBAL + "checkpoint: {every_second: 3}\n", "experiment=mine"): (
        "In 'experiment/mine': option checkpoint.every_second is unknown (did you mean every_seconds?); "
    ),
    ("experiment/mine.yaml", "epochs: 3\n", "experiment=mine"): (
        "In 'experiment/mine': its first line must be '# @package _global_', since it sets "
    ),
    ("experiment/mine.yaml", GLOBAL + "hydra: {sweeper: {params: {+epoch: '3,4'}}}\n", "experiment=mine -m"): (
        "option epoch is unknown (did you mean epochs?); accepted: program, "
    ),
    ("experiment/mine.yaml", GLOBAL + "hydra: {sweeper: {params: {method: 'base,fier'}}}\n", "experiment=mine -m"): (
        "method=fier is unknown (did you mean fire?); accepted: "
    ),
    ("optimizer/mine.yaml", "_target_: torch.optim.SGD\nname: mine\nlr: 0.01\n", "optimizer=mine lr=0.1"): (
        "lr has no effect, as optimizer.lr=0.01 does not refer to it: give optimizer.lr= alone"
    ),
    ("optimizer/mine.yaml", "_target_: torch.optim.Adadelta\nname: mine\n", "optimizer=mine lr=0.1"): (
        "lr has no effect, as the optimizer torch.optim.Adadelta does not refer to it: write lr: ${lr} in its file"
    ),
    ("experiment/mine.yaml", GLOBAL + "optimizer: {lr: 0.01}\n", "experiment=mine lr=0.1"): (
        "lr has no effect, as optimizer.lr=0.01 does not refer to it: give optimizer.lr= alone"
    ),
    ("method/mine.yaml", "a: [1\n", "method=mine"): "own/method/mine.yaml, line 2: expected ',' or ']', but got",
    ("method/mine.yaml", "a: \tb: c\n", "method=mine,fire -m"): "own/method/mine.yaml, line 1: ",
}


def assert_refused(says: str, code: int, error: str, folder: Path) -> None:
    """That one line says so, and nothing was written beside the folder `own`."""
    assert says in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert code == 2
    assert [path.name for path in folder.iterdir()] == ["own"]


@pytest.mark.parametrize("case", OWN_FILES, ids=lambda case: f"{case[2]} {case[1]}")
def test_a_file_of_one_s_own_is_refused_in_one_line(
    case: tuple[str, str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    name, text, options = case
    caplog.set_level("INFO")
    file = tmp_path / "own" / name
    file.parent.mkdir(parents=True)
    file.write_text(text)
    monkeypatch.chdir(tmp_path)
    code = start_here("vision", (*ALIKE, "--config-dir=own", *options.split()), monkeypatch)
    assert_nothing_is_logged(caplog)
    assert_refused(OWN_FILES[case], code, capsys.readouterr().err, tmp_path)


def test_a_root_file_of_one_s_own_is_refused_in_one_line(tmp_path: Path, zygote: Zygote) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.yaml").write_text("defaults: [vision, _self_]\nepoch: 3\n")
    answer = zygote.run(tmp_path, "vision.train", *ALIKE, "--config-dir=own", "--config-name=mine")
    says = "In 'mine': option epoch is unknown (did you mean epochs?); "
    assert_refused(says, answer.code, answer.err, tmp_path)


def test_another_folder_of_hydra_s_is_refused(tmp_path: Path, zygote: Zygote) -> None:
    answer = zygote.run(tmp_path, "vision.train", *ALIKE, "hydra.job.chdir=true", "hydra.run.dir=other")
    assert answer.err == (
        "error: hydra.job.chdir=true: runs would be written below another folder; set paths.runs= instead\n"
    )
    assert not list(tmp_path.glob("**/runs"))


def test_a_cache_that_cannot_be_written_is_named_by_its_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert start_here("vision", (*ALIKE, "paths.cache=/dev/null"), monkeypatch) == 2
    assert capsys.readouterr().err.endswith("Not a directory (see paths.cache=)\n")


def test_references_between_options(tmp_path: Path, zygote: Zygote) -> None:
    few = (*ALIKE, "model.hidden=4", "benchmark.tasks=2", "benchmark.samples=10", "epochs=1")
    answer = zygote.run(tmp_path, "vision.train", *few, "paths.cache=${.runs}/first", "seed=${epochs}")
    assert answer.code == 0, answer.err
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"vision", "first"}
    assert [path.name.split("-")[3] for path in (tmp_path / "runs/vision").iterdir()] == ["s1"]


def test_flags_may_stand_before_options(tmp_path: Path, zygote: Zygote) -> None:
    options = (*ALIKE, "model.hidden=4", "benchmark.tasks=1", "benchmark.samples=10")
    answer = zygote.run(tmp_path, "vision.train", *options, "-m", "seed=0,1", "epochs=1")
    assert answer.code == 0, answer.err
    assert len(list((tmp_path / "runs/vision").iterdir())) == 2


def test_a_sweep_over_arguments_of_what_is_built(tmp_path: Path, zygote: Zygote) -> None:
    few = (*ALIKE, "model.hidden=4", "benchmark.tasks=1", "benchmark.samples=10", "epochs=1")
    answer = zygote.run(tmp_path, "vision.train", *few, "+optimizer.amsgrad=true,false", "~optimizer.fused", "-m")
    assert answer.code == 0, answer.err
    assert len(list((tmp_path / "runs/vision").iterdir())) == 2


NAMES = {"'~/runs'": "runs", '"~/läufe"': "läufe"}


@pytest.mark.parametrize("name", NAMES)
def test_the_home_folder_and_umlauts_in_quotes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    few = (*ALIKE, "model.hidden=4", "benchmark.tasks=1", "benchmark.samples=10", "epochs=1")
    assert start_here("vision", (*few, f"paths.runs={name}"), monkeypatch) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert [path.name for path in (tmp_path / "home").iterdir()] == [NAMES[name]]


def test_a_sweep_in_the_home_folder(tmp_path: Path, zygote: Zygote) -> None:
    few = (*ALIKE, "model.hidden=4", "benchmark.tasks=1", "benchmark.samples=10", "epochs=1")
    (tmp_path / "home").mkdir()
    for name in NAMES:
        options = (f"paths.runs={name}", "seed=0,1", "-m")
        answer = zygote.run(tmp_path, "vision.train", *few, *options, HOME=str(tmp_path / "home"))
        assert answer.code == 0, answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert {path.name for path in (tmp_path / "home").iterdir()} == set(NAMES.values())


@pytest.mark.parametrize(
    "options",
    [
        "batch_size=1",  # one image works without batch norm
        "method=fire method.blend=0.5 method.solver=exact",
        "method=fire method.solver=exact method.iterations=10",  # the default, as in a sweep, is no idle option
        "method=muon lr=0.01 optimizer=adamw optimizer.betas=[0.8,0.9]",  # Adam beside Muon reads them
        "method=fire method.blend=0.5 method.name=half",  # a name of one's own
    ],
)
def test_accepted(options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    few = (*ALIKE, "model.hidden=4", "epochs=1", "benchmark.tasks=2", "benchmark.samples=10")
    assert start_here("vision", (*few, *options.split()), monkeypatch) == 0
    assert len(list(tmp_path.glob("runs/vision/*/DONE"))) == 1


READS = ("method=fire", "method=snp", "method=chain method.of=redo+fire", "method=redo trigger=drift")


@pytest.mark.parametrize("options", [*READS, "method=base -m", "method=redo trigger=every trigger.steps=9"])
def test_a_layout_is_refused_where_nothing_reads_it(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sweep it is not: base is there the baseline of other methods, with the same network."""
    config = compose("dqn", ["env=cartpole", "model.layout=dqn", *options.removesuffix(" -m").split()])
    method, trigger = build("method", config.method), build_trigger(config.trigger)
    mode = RunMode.MULTIRUN if options.endswith(" -m") else RunMode.RUN
    monkeypatch.setattr(HydraConfig, "initialized", lambda: True)
    monkeypatch.setattr(HydraConfig, "get", lambda: SimpleNamespace(mode=mode))
    assert list(idle_layout(config, method, trigger)) == (["model.layout"] if "every" in options else [])
