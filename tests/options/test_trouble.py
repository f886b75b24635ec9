"""Wrong options that once ended in a traceback, a crash or more than a line: one line, exit code 2, nothing written.

Each case is a program as a user starts it, and the beginning of what it says. Values out of range are in
tests/test_ranges.py, and `test_options.py` holds that each option has such a check.
"""

from pathlib import Path

import pytest

from tests.zygote import Zygote

ALIKE = ("scale=smoke", "tracker=none", "progress=false")
WHOLE = "must be a whole number"
VISION = {
    "seed=-1": "seed must be in [0, 4294967295], got -1",
    "seed=99999999999999999999": "seed must be a whole number of at most 64 bits, got 9",
    "scale=smal": "scale=smal is unknown; accepted: smoke, small, paper",
    "device=meta": "device=meta is unknown; accepted: auto, cpu,",
    "device=cpu:7": "device=cpu:7 is unknown; accepted: auto, cpu,",
    "device=cuda:77": "device=cuda:77: torch sees",
    "threads=100000": "threads must be in [1, ",
    "lr=abc": "Error merging override lr=abc: Value 'abc' of type 'str' could not be converted to Float",
    "lerning_rate=1": "option lerning_rate is unknown; accepted: program, seed, ",
    "model.hiden=8": "option model.hiden is unknown (did you mean hidden?); accepted: _target_, name, hidden, ",
    "method=fire method.iteratons=3": "option method.iteratons is unknown (did you mean iterations?); accepted: ",
    "method=base,fire method.iteratons=3 -m": "option method.iteratons is unknown; accepted: _target_, name",
    "trigger=every trigger.stepz=5": "option trigger.stepz is unknown (did you mean steps?); accepted: ",
    "benchmark=permuted benchmark.smaples=3": "option benchmark.smaples is unknown (did you mean samples?); accepted: ",
    "stack=2": "option stack is gone; seeds are jobs of a sweep now: ",
    "cache.dir=x": "option cache.dir is gone; it is paths.cache=",
    "tuned/searched=x": "option tuned/searched is gone; tuned=searched takes ",
    "method=chain method.of=[fire,muon]": "method.of=[fire,muon] is written method.of=fire+muon",
    "batch_size=1 model.norm=true": "batch_size=1 is too small, or a phase has one image: model=mlp has batch norm",
    "benchmark=continual benchmark.chunks=1280 model.norm=true": "batch_size=1 is too small, or a phase has one image",
    "benchmark=continual benchmark.chunks=10000": "benchmark.chunks=10000 is more than the 1280 training images",
    "benchmark=continual benchmark.chunks=1.5": f"benchmark.chunks {WHOLE}, got 1.5",
    "benchmark=continual_pretraining": "benchmark=continual_pretraining is not for vision; accepted: class_",
    "benchmark.samples=1281": "benchmark.samples=1281 is more than the 1280 training images",
    "benchmark=slowly_changing_regression": "benchmark=slowly_changing_regression has no images: it needs",
    "benchmark=permuted_online epochs=3": "benchmark.online=true sees each image once in a task: epochs",
    "dataset=bits": "dataset=bits has fewer than two classes: benchmark=random_labels has",
    "dataset=cifar10 dataset.root=nowhere": "dataset=cifar10 is not there: put ",
    "method=null": "method=null is unknown; accepted: adamo, base, ",
    "method=fier": "method=fier is unknown (did you mean fire?); accepted: adamo, base, ",
    "-m method=base,fier": "method=fier is unknown (did you mean fire?)",
    "method=../method/base": "method=../method/base is unknown",
    "method.name=../x": "method.name='../x' goes into a path",
    "method=fire method.solver=exat": "method.solver=exat is unknown; accepted: newton_schulz, exact",
    "method=muon method.betas=[2,3]": "method.betas[0] must be in [0, 1), got 2",
    "method=fire method.solver=exact method.iterations=3": "method.iterations has no effect with method.solver=exact",
    "method=chain method.parts.redo.every=2": "method.parts.redo.every has no effect: method.of=fire+muon does",
    "tuned=warm_start_cifar": "tuned=warm_start_cifar is unknown (did you mean warm_start_cifar10?); accepted: auto, ",
    "tuned=searched dataset=mnist": "tuned=searched: conf/tuned_values/searched.yaml has no base for random_",
    "hydra/launcher=foo": "In 'hydra/config': Could not find 'hydra/launcher/foo' Available options in ",
    "model._target_=my.Net": "model._target_=my.Net cannot be imported: ",
    "model.norm=no": "model.norm must be true or false or layer, got 'no'",
    "model.hidden=1048576": "model=mlp has 1,099,591,319,562 weights, which need at least 13195 GB",
    "=3": "=3 names no option; options are written option=value",
    "-x": "unrecognized arguments: -x; options are written option=value",
    "--cfg=abc": "argument --cfg/-c: invalid choice: 'abc'",
    "-m seed=0,abc": "Error merging override seed=abc: Value 'abc' of type 'str' could not be converted to Integer",
    "-m seed=range(0)": "-m starts nothing: an option has no value (seed=range(0))",
}
LANGUAGE = {
    "start=30k": "option start is gone; it is benchmark.start=",
    "benchmark=warm_start": "benchmark=warm_start is not for language; accepted: continual_pretraining",
    "benchmark.ratio=[nan,1]": "benchmark.ratio[0] must be a finite number, got nan",
    "benchmark.checkpoints=abc": "benchmark.checkpoints must be a list, got 'abc'",
    "model=mlp": "model=mlp is not for language; accepted: gpt_0.1b, gpt_tiny",
    "model.n_embd=1048576": "model=gpt_tiny has 52,776,970,223,616 weights",
}
DQN = {
    "env=asterix model=q_mlp": "model=q_mlp: q_mlp needs vectors, got observations of shape (4, 84, 84)",
    "env=cartpole model=nature_cnn": "model=nature_cnn: nature_cnn needs images",
    "env=cartpole midpoint=1199": "midpoint=1199 in steps of num_envs=4 must come before total_steps=1200",
    "env=cartpole updates_per_step=inf": "updates_per_step must be a finite number, got inf",
    "env=cartpole model.hidden=1048576": "model=q_mlp has 1,099,520,016,386 weights",
}
SAC = {
    "cache=null": "Error merging override cache=null: field 'cache' is not Optional",
    "env.action_repeat=1.5": f"env.action_repeat {WHOLE}, got 1.5",
    "networks.critic_width=1048576": "networks=simba has ",
}
OTHERS = {
    "rl.watch run=x steps=0": "steps must be at least 1, got 0",
    "rl.watch run=x": "run=x is not the folder of a run: it has no config.yaml",
    "language.sample run=x temperature=nan": "temperature must be a finite number, got nan",
    "language.sample run=x tokens=0": "tokens must be at least 1, got 0",
    "language.prepare dataset=null": "dataset=null is unknown; accepted: ",
    "language.prepare dataset=pydoc dataset.val_fraction=nan": "dataset.val_fraction must be a finite number",
    "language.prepare dataset=digits": "dataset._target_=vision.data.load_digits makes a ",
    "language.prepare dataset=texts": "dataset=texts is a pair of corpora",
}
TABLES = {"vision.train": VISION, "language.train": LANGUAGE, "rl.dqn": DQN, "rl.sac": SAC}
CASES = [(module, options, says) for module, table in TABLES.items() for options, says in table.items()]


@pytest.mark.parametrize(("module", "options", "says"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_one_line(module: str, options: str, says: str, tmp_path: Path, zygote: Zygote) -> None:
    answer = zygote.run(tmp_path, module, *ALIKE, *options.split())
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
    ["batch_size=1", pytest.param("benchmark=continual benchmark.chunks=1280 batch_size=2000", marks=pytest.mark.slow)],
)
def test_one_image_works_without_batch_norm(options: str, tmp_path: Path, zygote: Zygote) -> None:
    small = (*ALIKE, "model.hidden=4", "epochs=1", "checkpoint.every_seconds=1e9")
    few = ("benchmark.tasks=2", "benchmark.samples=10") if "chunks" not in options else ("cache=off",)
    answer = zygote.run(tmp_path, "vision.train", *small, *few, *options.split())
    assert answer.code == 0, answer.err


@pytest.mark.parametrize("command", OTHERS)
def test_one_line_of_other_programs(command: str, tmp_path: Path, zygote: Zygote) -> None:
    module, *options = command.split()
    answer = zygote.run(tmp_path, module, *options)
    assert answer.err.startswith(f"error: {OTHERS[command]}"), answer.err
    assert answer.err.count("\n") == 1
    assert answer.code == 2
    assert not list(tmp_path.iterdir())
