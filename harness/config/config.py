"""The options that every program shares."""

import contextlib
import re
from dataclasses import dataclass, field
from typing import Annotated

import torch
from omegaconf import MISSING

from fire_core.ranges import NonNegative, Seed, one_of, within
from harness.config.checks import Group, Threads
from harness.config.errors import ConfigError
from harness.config.paths import Place

OWN_THREADS = torch.get_num_threads()  # as the environment has it (OMP_NUM_THREADS)


# Of `torch.compile`; reduce-overhead: CUDA graphs.
Compile = Annotated[str, one_of("off", "default", "reduce-overhead", "max-autotune")]


@dataclass
class Paths:
    """Folders, relative to where the program is started; `~` is the home folder."""

    runs: Place = "runs"
    data: Place = "data"
    cache: Place = "${.runs}/.cache"  # of first phases


@dataclass
class Checkpointing:
    """When checkpoints are written; a phase's end and a signal always write one.

    Within a phase they take at most 2 % of the time: where they are slow, they come later than `every_seconds` says
    (unless that is 0), but never later than twenty times as much.
    """

    every_seconds: NonNegative = 60.0
    keep: Annotated[int, within(1, 1000)] = 2


@dataclass
class Trunk:
    """Options of every program, each with what it accepts; `conf/` fills in the rest."""

    program: str = "???"
    seed: Seed = 0
    device: str = "auto"  # auto, cpu, cuda, cuda:<n>, mps
    # CPU threads of torch. Sums depend on it, so it is part of what a run is. null: the machine's cores, or a job's
    # share of them in a sweep with hydra/launcher=joblib; numbers then differ between machines.
    threads: Threads = 1
    deterministic: bool | None = None  # null: true on CPU, false elsewhere
    # Of models and methods that have one; fire_paper: as the FIRE authors' code.
    variant: Annotated[str, one_of("original", "fire_paper")] = "original"
    progress: bool = True
    paths: Paths = field(default_factory=Paths)
    checkpoint: Checkpointing = field(default_factory=Checkpointing)
    tracker: Group = None
    trigger: Group = MISSING  # when the method acts
    cache: bool = True  # train the first phase, which does not depend on the method, once, and share it; or off
    only_first_phase: bool = False  # end there: other runs take it and need not wait for one another
    jobs_per_gpu: Annotated[int, within(1, 100)] = 1  # with hydra/launcher=cores; each has its share of memory
    # Budgets alone: smoke (seconds: runs every part once), small (minutes on a CPU), paper (the paper's).
    scale: Annotated[str, one_of("smoke", "small", "paper")] = "small"


def resolve_device(name: str) -> torch.device:
    """The torch device for `device=`.

    Raises:
        ConfigError: the name is unknown or the machine has no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|mps|cuda(:\d{1,4})?", name):
        raise ConfigError(f"device={name} is unknown; accepted: auto, cpu, cuda, cuda:<n>, mps")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device={name}: torch sees {torch.cuda.device_count()} CUDA devices; use device=cpu or auto")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device=mps: this machine or torch build has no MPS; use device=cpu or auto")
    return device


def set_up_torch(device: torch.device, threads: int | None, deterministic: bool | None) -> None:
    """Threads and determinism of this process, also when a job of a sweep before this one chose others."""
    torch.set_num_threads(OWN_THREADS if threads is None else threads)
    torch.use_deterministic_algorithms(device.type == "cpu" if deterministic is None else deterministic)
    # Else torch fills all memory that it allocates: hundreds of fills a step, of what none reads.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[None]:
    """Half precision, `precision=bfloat16` or `float16`; nothing for float32."""
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, getattr(torch, precision))
