"""Jobs of a sweep on this machine, dealt to its GPUs."""

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
    """The device of a job: the next GPU that has fewer than `per_gpu` jobs, for as long as the context lasts.

    Each job may take its share of the GPU's memory and no more, so that none ends another. It is the device that was
    asked for where that is no choice, and for what is no worker of hydra/launcher=cores or `run_jobs`.

    Args:
        device: as it is asked for.
        per_gpu: jobs that share one.
    """
    worker = multiprocessing.parent_process() is not None and "SUBMITIT_EXECUTOR" not in os.environ
    gpus = torch.cuda.device_count() if worker and device in ("auto", "cuda") else 0
    if not gpus:
        yield device
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    folder = Path(tempfile.gettempdir()) / f"fire-gpus-{os.getuid()}-{visible}"
    folder.mkdir(exist_ok=True)
    for number in _free_place(folder, gpus * per_gpu):
        gpu = number % gpus
        if per_gpu > 1:
            torch.cuda.set_per_process_memory_fraction(1 / per_gpu, gpu)
        yield f"cuda:{gpu}"


def _free_place(folder: Path, places: int) -> Iterator[int]:
    """Wait for a place; it is held, also against other processes, until the iteration goes on."""
    while True:
        for number in range(places):
            place = Lock(folder / str(number))
            try:
                place.acquire()
            except Held:
                continue
            try:
                yield number
            finally:
                place.release()
            return
        time.sleep(1)
