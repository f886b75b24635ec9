"""Wrong options that once ended in a traceback, a crash or more than a line: one line, exit code 2, nothing written.

Each case is a program as a user starts it, and the beginning of what it says. `test_values.py` tries many more values.
"""

from pathlib import Path

import pytest

from tests.zygote import Zygote

ALIKE = ("scale=smoke", "tracker=none", "progress=false")
WHOLE, BITS = "must be a whole number", "must be a whole number of at most 64 bits"
SEED = "seed must be in [0, 4294967295], got "
VISION = {
    "seed=-1": f"{SEED}-1",
    "seed=4294967296": f"{SEED}4294967296",
    "seed=99999999999999999999": f"seed {BITS}, got 9",
    "device=meta": "device=meta is unknown; accepted: auto, cpu,",
    "device=xpu": "device=xpu is unknown; accepted: auto, cpu,",
    "device=hpu": "device=hpu is unknown; accepted: auto, cpu,",
    "device=cpu:7": "device=cpu:7 is unknown; accepted: auto, cpu,",
    "threads=99999999999": "threads must be in [1, ",
    "threads=100000": "threads must be in [1, ",
    "batch_size=1 model.norm=true": "batch_size=1 is too small, or a phase has one image: model=mlp has batch norm",
    "benchmark=continual benchmark.chunks=1280 model.norm=true": "batch_size=1 is too small, or a phase has one image",
    "method=null": "method=null is unknown; accepted: adamo, base, ",
    "method=1": "method=1 is unknown; accepted: adamo, base, ",
    "tracker=null": "tracker=null is unknown; accepted: none, ",
    "cache=null": "cache=null is unknown; accepted: off, on",
    "cache.dir=null": "cache.dir must be a folder, got null",
    "tracker=wandb_offline tracker.patience=abc": "tracker.patience must be a number, got 'abc'",
    "method=muon method.betas=[2,3]": "method.betas[0] must be in [0, 1), got 2",
    "method=muon method.eps=-1": "method.eps must be at least 0, got -1",
    "method=fire method.iterations=1.5": f"method.iterations {WHOLE}, got 1.5",
    "method=weight_decay method.coef=nan": "method.coef must be a finite number, got nan",
    "benchmark=continual benchmark.chunks=10000": "benchmark.chunks=10000 is more than the 1280 training images",
    "benchmark=continual benchmark.chunks=1.5": f"benchmark.chunks {WHOLE}, got 1.5",
    "benchmark=continual_pretraining": "benchmark=continual_pretraining is not for vision; accepted: class_",
    "benchmark=1": "benchmark=1 is unknown; accepted: class_incremental, ",
    "checkpoint.keep=0": "checkpoint.keep must be in [1, 1000], got 0",
    "checkpoint.keep=-1": "checkpoint.keep must be in [1, 1000], got -1",
    "epochs=99999999999999999999": f"epochs {BITS}, got 9",
    "method=../method/base": "method=../method/base leaves conf/method: ",
    "model.hidden=1048576": "model=mlp has 1,099,591,319,562 weights, which need at least 13195 GB",
    "=3": "a group of options takes the name of one of its files in conf/",
    "-x": "unrecognized arguments: -x; options are written option=value",
    "--foo": "unrecognized arguments: --foo; options are written option=value",
    "--cfg=abc": "argument --cfg/-c: invalid choice: 'abc'",
    "-m seed=": "seed=: Value '' of type 'str' could not be converted to Integer",
    "-m seed=0,abc": "seed=abc: Value 'abc' of type 'str' could not be converted to Integer",
    "-m method=null": "method=null is unknown; accepted: adamo, base, ",
    "-m method=fier": "method=fier is unknown (did you mean fire?)",
}
LANGUAGE = {
    "seed=4294967296": f"{SEED}4294967296",
    "threads=100000": "threads must be in [1, ",
    "benchmark=1": "benchmark=1 is unknown; accepted: class_incremental, ",
    "benchmark=warm_start": "benchmark=warm_start is not for language; accepted: continual_pretraining",
    "benchmark.ratio=[nan,1]": "benchmark.ratio[0] must be a finite number, got nan",
    "benchmark.checkpoints=abc": "benchmark.checkpoints must be a list, got 'abc'",
    "model=mlp": "model=mlp is not for language; accepted: gpt_0.1b, gpt_tiny",
    "model.block_size=1.5": f"model.block_size {WHOLE}, got 1.5",
    "model.n_embd=1048576": "model=gpt_tiny has 52,776,970,223,616 weights",
    "method=fire method.iterations=0": "method.iterations must be ",
}
DQN = {
    "env=cartpole seed=-1": f"{SEED}-1",
    "env=cartpole method=null": "method=null is unknown; accepted: adamo, base, ",
    "env=asterix model=q_mlp": "model=q_mlp: q_mlp needs vectors, got observations of shape (4, 84, 84)",
    "env=cartpole model=nature_cnn": "model=nature_cnn: nature_cnn needs images",
    "env=cartpole midpoint=1199": "midpoint=1199 in steps of num_envs=4 must come before total_steps=1200",
    "env=cartpole updates_per_step=inf": "updates_per_step must be a finite number, got inf",
    "env=cartpole model.hidden=1048576": "model=q_mlp has 1,099,520,016,386 weights",
}
SAC = {
    "seed=4294967296": f"{SEED}4294967296",
    "cache=null": "cache=null is unknown; accepted: off, on",
    "env.action_repeat=1.5": f"env.action_repeat {WHOLE}, got 1.5",
    "networks.critic_width=1.5": f"networks.critic_width {WHOLE}, got 1.5",
    "networks.critic_width=1048576": "networks=simba has ",
}
OTHERS = {
    "rl.watch run=x steps=0": "steps must be at least 1, got 0",
    "rl.watch run=x epsilon=2": "epsilon must be in [0, 1], got 2",
    "rl.watch run=x fps=99999": "fps must be in [1, 1000], got 99999",
    "rl.watch run=x seed=-1": f"{SEED}-1",
    "rl.watch run=x": "run=x is not the folder of a run: it has no config.yaml",
    "language.sample run=x temperature=nan": "temperature must be a finite number, got nan",
    "language.sample run=x temperature=-1": "temperature must be at least 0, got -1",
    "language.sample run=x tokens=0": "tokens must be at least 1, got 0",
    "language.sample run=x top_k=0": "top_k must be at least 1, got 0",
    "language.sample run=x seed=4294967296": f"{SEED}4294967296",
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
