"""The options that every program shares, and how device, threads, determinism and precision are set in torch."""

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

DEFAULT_THREADS = torch.get_num_threads()  # torch's number of threads as the process begins (OMP_NUM_THREADS)

# The mode of `torch.compile`; off: no compilation; reduce-overhead: CUDA graphs.
Compile = Annotated[str, one_of("off", "default", "reduce-overhead", "max-autotune")]


@dataclass
class Paths:
    """Folders. Relative paths begin where the program is started; `~` is the home folder."""

    runs: Place = "runs"
    data: Place = "data"
    cache: Place = "${.runs}/.cache"  # shared first phases, and digests of the files that runs have read


@dataclass
class Checkpointing:
    """When checkpoints are written. The end of a phase and a signal always write one.

    Within a phase they take at most 2 % of the time: if writing is slow, the pause between two grows beyond
    `every_seconds` (unless that is 0), up to twenty times as much.
    """

    every_seconds: NonNegative = 60.0
    keep: Annotated[int, within(1, 1000)] = 2


@dataclass
class ProgramConfig:
    """Options of every program. An annotation says which values an option accepts; `conf/` has the other defaults."""

    program: str = "???"
    seed: Seed = 0
    device: str = "auto"  # auto, cpu, cuda, cuda:<n>, mps
    # CPU threads of torch. Sums depend on their number, so it is part of a run's identity. null: the machine's cores,
    # or a job's share of them in a sweep with hydra/launcher=cores; numbers then differ between machines.
    threads: Threads = 1
    deterministic: bool | None = None  # null: true on CPU, false elsewhere
    # Which version of a model or method, where there are two; fire_paper: as in the FIRE authors' code.
    variant: Annotated[str, one_of("original", "fire_paper")] = "original"
    progress: bool = True
    paths: Paths = field(default_factory=Paths)
    checkpoint: Checkpointing = field(default_factory=Checkpointing)
    tracker: Group = None
    trigger: Group = MISSING  # when the method acts
    cache: bool = True  # train the first phase, which does not depend on the method, once, and share it between runs
    only_first_phase: bool = False  # train the shared first phase and end, so that later runs need not wait for it
    jobs_per_gpu: Annotated[int, within(1, 100)] = 1  # with hydra/launcher=cores; each has its share of GPU memory
    # Sets budgets alone: smoke (seconds; runs every part once), small (minutes on a CPU), paper (the paper's budgets).
    scale: Annotated[str, one_of("smoke", "small", "paper")] = "small"


def resolve_device(name: str) -> torch.device:
    """Return the torch device for the option `device=`; `auto` is the first GPU, or the CPU if there is none.

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
    """Set the threads and the determinism of this process, for which an earlier job of a sweep may have chosen others.

    Args:
        device: the run's device.
        threads: CPU threads of torch; None: as many as torch had when the process began.
        deterministic: whether torch may use deterministic algorithms only; None: on a CPU.
    """
    torch.set_num_threads(DEFAULT_THREADS if threads is None else threads)
    torch.use_deterministic_algorithms(device.type == "cpu" if deterministic is None else deterministic)
    # In deterministic mode torch would fill all memory that it allocates: hundreds of fills in each step, none of
    # which is ever read.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[None]:
    """Return a context in which torch computes in `precision`: bfloat16, float16, or float32, which changes nothing."""
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, getattr(torch, precision))
