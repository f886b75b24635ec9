"""Wrong options that once ended in a traceback, a crash or more than a line: one line, exit code 2, nothing written.

Each case is a program as a user starts it, and the beginning of what it says. Values out of range are in
tests/test_ranges.py, and `test_options.py` holds that each option has such a check.
"""

from pathlib import Path

import pytest

from tests.zygote import Zygote

UPGD = "lr has no effect beside the optimizer that method=upgd brings"
ALIKE = ("scale=smoke", "tracker=none", "progress=false")
VISION = {
    "scale=smal": "scale=smal is unknown; accepted: smoke, small, paper",
    "device=meta": "device=meta is unknown; accepted: auto, cpu,",
    "lr=abc": "Error merging override lr=abc: Value 'abc' of type 'str' could not be converted to Float",
    "model.hiden=8": "option model.hiden is unknown (did you mean hidden?); accepted: _target_, name, hidden, ",
    "method=base,fire method.iteratons=3 -m": "option method.iteratons is unknown; accepted: _target_, name",
    "method=fire method.solver=exact method.norm_init=power": "method.norm_init has no effect with method.solver=exact",
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
    "method=chain method.of=fire+upgd lr=0.1": "lr has no effect beside the optimizer that method=fire+upgd brings",
    "method=chain method.of=[fire,muon]": "method.of=[fire,muon] is written method.of=fire+muon",
    "batch_size=1 model.norm=true": "model=mlp cannot take images (1, 1, 8, 8): Expected more than 1 value per",
    "benchmark=continual benchmark.chunks=10000": "benchmark.chunks=10000 is more than the 1280 training images",
    "benchmark=continual_pretraining": "benchmark=continual_pretraining is not for vision; accepted: class_",
    "dataset=cifar10 dataset.root=nowhere": "dataset=cifar10 is not there: put ",
    "method=fier": "method=fier is unknown (did you mean fire?); accepted: adamo, base, ",
    "method=muon method.betas=[2,3]": "method.betas[0] must be in [0, 1), got 2",
    "tuned=warm_start_cifar": "tuned=warm_start_cifar is unknown (did you mean warm_start_cifar10?); accepted: auto, ",
    "tuned=searched dataset=mnist": "tuned=searched: conf/tuned_values/searched.yaml has no base for random_",
    "hydra/launcher=foo": "In 'hydra/config': Could not find 'hydra/launcher/foo' Available options in ",
    "model._target_=my.Net": "model._target_=my.Net cannot be imported: ",
    "=3": "=3 names no option; options are written option=value",
    "-x": "unrecognized arguments: -x; options are written option=value",
    "--cfg=abc": "argument --cfg/-c: invalid choice: 'abc'",
    "-m seed=range(0)": "-m starts nothing: an option has no value (seed=range(0))",
}
LANGUAGE = {
    "benchmark=warm_start": "benchmark=warm_start is not for language; accepted: continual_pretraining",
    "benchmark.passes=[9,1]": "benchmark.passes has no effect beside benchmark.iterations=[24, 24]: set that to null",
    "benchmark=domains dataset=pydoc_stdlib dataset.replay=0.5": (
        "dataset.replay has no effect with benchmark=domains, which has no pair of corpora to mix"
    ),
    "benchmark.start=scratch method=upgd lr=0.1": UPGD,
    "benchmark.checkpoints=abc": "benchmark.checkpoints must be a list, got 'abc'",
}
DQN = {
    "experiment=continual_minatar benchmark.boundaries=hidden method=upgd lr=0.1": UPGD,
    "env=cartpole eval.episodes=1 eval.steps=9": "eval.steps has no effect beside eval.episodes=1",
    "experiment=continual_cartpole midpoint=9": "midpoint has no effect in a stream of tasks",
    "experiment=continual_cartpole benchmark.boundaries=hidden boundary.target=keep": "boundary.target has no effect",
    "method=fire trigger=every boundary.replay=new": "boundary.replay has no effect where boundaries restart nothing",
    "env=asterix model=q_mlp": "model=q_mlp: q_mlp needs vectors, got observations of shape (4, 84, 84)",
}
SAC = {
    "cache=null": "Error merging override cache=null: field 'cache' is not Optional",
}
PREPARE = {
    "dataset=pydoc dataset.val_fraction=nan": "dataset.val_fraction must be a finite number",
    "dataset=digits": "dataset._target_=vision.data.load_digits makes a ",
    "dataset=texts": "dataset=texts is a pair of corpora",
}
TABLES = {
    "vision.train": VISION,
    "language.train": LANGUAGE,
    "rl.dqn": DQN,
    "rl.sac": SAC,
    "language.prepare": PREPARE,
}
CASES = [(module, options, says) for module, table in TABLES.items() for options, says in table.items()]


@pytest.mark.parametrize(("module", "options", "says"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_one_line(module: str, options: str, says: str, tmp_path: Path, zygote: Zygote) -> None:
    answer = zygote.run(tmp_path, module, *(() if module == "language.prepare" else ALIKE), *options.split())
    assert answer.err.startswith(f"error: {says}"), answer.err
    assert answer.err.count("\n") == 1
    assert answer.code == 2
    assert not list(tmp_path.iterdir())


def test_flags_may_stand_before_options(tmp_path: Path, zygote: Zygote) -> None:
    options = (*ALIKE, "model.hidden=4", "benchmark.tasks=1", "benchmark.samples=10")
    answer = zygote.run(tmp_path, "vision.train", *options, "-m", "seed=0,1", "epochs=1")
    assert answer.code == 0, answer.err
    assert len(list((tmp_path / "runs/vision").iterdir())) == 2


@pytest.mark.parametrize(
    "options",
    [
        "batch_size=1",  # one image works without batch norm
        "method=fire method.solver=exact method.iterations=10",  # the default, as in a sweep, is no idle option
    ],
)
def test_accepted(options: str, tmp_path: Path, zygote: Zygote) -> None:
    few = (*ALIKE, "model.hidden=4", "epochs=1", "benchmark.tasks=2", "benchmark.samples=10")
    answer = zygote.run(tmp_path, "vision.train", *few, *options.split())
    assert answer.code == 0, answer.err
