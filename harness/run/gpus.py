"""Give each job of a sweep on this machine a GPU."""

import contextlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from harness.run.lock import Held, Lock


@contextlib.contextmanager
def own_gpu(device: str, per_gpu: int) -> Iterator[str]:
    """Reserve a GPU for this job while the context lasts, and yield its name, such as `cuda:1`.

    The job gets the first GPU that has fewer than `per_gpu` jobs, and waits if there is none. It may take its share of
    the GPU's memory and no more, so that no job makes another run out of memory.

    `device` is yielded unchanged if it names one device, if there is no GPU, or if this process is no worker of
    hydra/launcher=cores or of `run_jobs`.

    Args:
        device: the option `device=`; auto and cuda leave the choice to this function.
        per_gpu: how many jobs share a GPU.
    """
    is_worker = multiprocessing.parent_process() is not None and "SUBMITIT_EXECUTOR" not in os.environ
    gpus = torch.cuda.device_count() if is_worker and device in ("auto", "cuda") else 0
    if not gpus:
        yield device
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    folder = Path(tempfile.gettempdir()) / f"fire-gpus-{os.getuid()}-{visible}"
    folder.mkdir(exist_ok=True)
    with _free_slot(folder, gpus * per_gpu) as slot:
        gpu = slot % gpus
        if per_gpu > 1:
            torch.cuda.set_per_process_memory_fraction(1 / per_gpu, gpu)
        yield f"cuda:{gpu}"


@contextlib.contextmanager
def _free_slot(folder: Path, slots: int) -> Iterator[int]:
    """Wait for a free slot, hold its lock while the context lasts, and yield its number."""
    while True:
        for number in range(slots):
            slot = Lock(folder / str(number))
            try:
                slot.acquire()
            except Held:
                continue
            try:
                yield number
            finally:
                slot.release()
            return
        time.sleep(1)
