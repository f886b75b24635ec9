"""The runs whose numbers are recorded: all four programs at their smallest, with fixed seeds, on one CPU thread.

A case is a name and the options of its run. The name is what `tests/curves/<program>.json` calls it: an option may be
renamed here, a case keeps its name.
"""

import random
from pathlib import Path

COMMON = ("scale=smoke", "tracker=none", "progress=false", "threads=1", "seed=0")

# The benchmark and the network of the first cases, unless a case names others.
FIRST = ("benchmark=warm_start", "dataset.pixel_noise=0.4")
PERCEPTRON = ("model.hidden=64", "model.depth=5", "model.norm=true")
PLAIN = ("batch_size=16", "model.norm=false")  # batch norm keeps every unit from falling silent
RESNET = ("model=small_resnet", "model.width=8")
CHUNKS = ("benchmark.chunks=4", "epochs=1", "batch_size=64")
FIRST_VISION = {
    **{
        f"digits {method}": (f"method={method}",)
        for method in ("base", "full_reset", "snp", "fire", "fire_exact", "dash", "parseval", "l2init", "muon")
    },
    # Options with which these act within forty steps.
    "digits cbp": ("method=cbp", "method.rate=0.02", "method.maturity=5"),
    "digits redo": ("method=redo", "method.threshold=0.5"),
    "digits snr": ("method=snr", "method.percentile=0.5", "method.every=1", "method.max_age=64", *PLAIN),
    "digits cbp fire_paper": ("method=cbp", "method.rate=0.02", "method.maturity=5", "variant=fire_paper"),
    "digits redo fire_paper": ("method=redo", "method.threshold=0.5", "variant=fire_paper"),
    **{f"digits {m} fire_paper": (f"method={m}", "variant=fire_paper") for m in ("dash", "muon", "parseval", "snp")},
    **{f"digits {m}": (f"method={m}",) for m in ("trac", "upgd", "weight_clipping", "weight_decay")},
    "digits hare_tortoise each epoch": ("method=hare_tortoise", "method.every=1", "method.momentum=0.9"),
    "digits cpr": ("method=cpr", "method.every=10"),
    "digits regrama most units": ("method=regrama", "method.every=5", "method.threshold=0.95"),
    "digits spectral": ("method=spectral",),
    "digits nap layer norm": ("method=nap", "model.norm=layer"),
    "digits l2_er": ("method=l2_er", "method.lr=0.01"),
    "digits c_chain": ("method=c_chain", "method.warmup=20", "method.scale=1.0"),
    "digits random_isometry": ("method=random_isometry",),
    # In `warm_start` the second phase has a new optimizer anyway.
    "digits optimizer_reset": ("method=optimizer_reset", "benchmark=permuted", "benchmark.tasks=3", "lr=1e-3"),
    "digits swr": ("method=swr", "method.every=5", "method.factor=0.1"),
    "digits adamo": ("method=adamo",),
    "digits fuse": ("method=fuse",),
    "digits base layer norm": ("method=base", "model.norm=layer"),
    "digits base crelu": ("method=base", "model.activation=crelu"),
    "digits base fourier": ("method=base", "model.activation=fourier"),
    "digits fire muon": ("method=chain", "method.of=fire+muon"),
    "digits base without norm": ("method=base", *PLAIN),
    "resnet base": ("method=base", *RESNET),
    "resnet fire": ("method=fire", *RESNET),
    "resnet redo": ("method=redo", "method.threshold=0.9", *RESNET),
    "continual fire": ("method=fire", "benchmark=continual", *CHUNKS, "metrics=full"),
    "class_incremental base": ("method=base", "benchmark=class_incremental", *CHUNKS),
    "class_incremental fire": ("method=fire", "benchmark=class_incremental", *CHUNKS),
}


def as_recorded(options: tuple[str, ...]) -> tuple[str, ...]:
    """The options of one of the first cases, less those of `FIRST` and `PERCEPTRON` that it names itself."""
    named = {option.split("=")[0] for option in options}
    first = FIRST if "model" in named else FIRST + PERCEPTRON
    return (*(option for option in first if option.split("=")[0] not in named), *options)


STREAMS = {
    "random_labels": ("epochs=4", "batch_size=64", "benchmark.samples=300"),
    "permuted": ("lr=1e-3",),
    "permuted_online": ("batch_size=16", "lr=3e-3"),
    "slowly_changing_regression": ("dataset=bits", "model.hidden=5", "model.depth=1", "lr=0.01"),
}
VISION = {name: as_recorded(options) for name, options in FIRST_VISION.items()} | {
    f"{stream} {method}": (f"method={method}", f"benchmark={stream}", "benchmark.tasks=3", *options)
    for stream, options in STREAMS.items()
    for method in ("base", "fire")
}

GPT = (
    "benchmark=continual_pretraining",
    "dataset=texts", "dataset.first.path=first.txt", "dataset.second.path=second.txt", "paths.data=data",
    "model.n_layer=2", "model.n_head=2", "model.n_embd=32", "model.block_size=32", "batch_size=4",
    "benchmark.iterations=[24,24]", "benchmark.checkpoints=[12]", "lr=1e-3",
)  # fmt: skip
LANGUAGE: dict[str, tuple[str, ...]] = {
    "base": ("method=base", *GPT),
    "fire": ("method=fire", *GPT),
    "full_reset": ("method=full_reset", *GPT),
    "muon": ("method=muon", *GPT),
}

CARTPOLE = (
    "env=cartpole", "num_envs=2", "model.hidden=16", "total_steps=400", "midpoint=200", "learning_starts=40",
    "target_every=50", "batch_size=8", "log_every=40", "eval.every=100", "eval.steps=40", "eval.num_envs=2",
    "replay.capacity=200", "replay.segment=16",
)  # fmt: skip
PIXELS = (
    "env=asterix", "env.max_frames=160", "env.threads=1", "num_envs=2", "model.width=0.125", "total_steps=240",
    "midpoint=120", "learning_starts=20", "target_every=50", "batch_size=8", "log_every=40", "eval.every=120",
    "eval.steps=40", "eval.num_envs=2", "replay.capacity=120", "replay.segment=16",
)  # fmt: skip
DQN = {
    **{f"cartpole {method}": (f"method={method}", *CARTPOLE) for method in ("base", "fire", "snp", "pi", "muon")},
    "cartpole c_chain": ("method=c_chain", "method.warmup=20", *CARTPOLE),
    "cartpole redo": ("method=redo", "method.threshold=0.5", *CARTPOLE),
    "asterix base": ("method=base", *PIXELS),
    "asterix fire": ("method=fire", *PIXELS),
}

PENDULUM = ("env=double_pendulum", "env_steps=400", "eval_every=100", "batch_size=16")
SAC = {
    **{f"pendulum {method}": (f"method={method}", *PENDULUM) for method in ("base", "fire", "full_reset", "pi")},
    "pendulum redo": ("method=redo", "method.threshold=0.5", *PENDULUM),
    "pendulum cbp": ("method=cbp", "method.rate=0.02", "method.maturity=5", *PENDULUM),
    "pendulum c_chain": ("method=c_chain", "method.warmup=20", *PENDULUM),
    **{f"pendulum {method}": (f"method={method}", *PENDULUM) for method in ("dash", "muon", "trac")},
    "pendulum mlp fire": ("method=fire", "networks=mlp", *PENDULUM),
}

CASES: dict[str, dict[str, tuple[str, ...]]] = {"vision": VISION, "language": LANGUAGE, "dqn": DQN, "sac": SAC}


def write_texts(folder: Path) -> None:
    """Two small corpora, the same everywhere: paragraphs of made-up words, some frequent and some rare."""
    for number, name in enumerate(("first", "second")):
        draw = random.Random(number)
        words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(1, 9))) for _ in range(400)]
        weights = [1 / rank for rank in range(1, len(words) + 1)]
        paragraphs = [" ".join(draw.choices(words, weights, k=60)) + "." for _ in range(60)]
        (folder / f"{name}.txt").write_text("\n\n".join(paragraphs) + "\n")
