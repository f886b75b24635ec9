"""What the benchmarks share: loops that take turns, so that other load on the machine affects them equally."""

import statistics
import time
from collections.abc import Callable, Mapping

import torch


def seconds_of(
    loops: Mapping[str, Callable[[], object]], rounds: int, threads: int | None = None, times: int = 1
) -> dict[str, list[float]]:
    """Seconds of each loop in each round; a first round warms up and does not count.

    Args:
        loops: by name.
        rounds: that count.
        threads: of this process; with one the clock is its own processor time, which other programs disturb least.
        times: how often a loop is called in its turn.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(rounds + 1):
        for name, loop in loops.items():
            start = clock()
            for _ in range(times):
                loop()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if number:
                seconds[name].append(clock() - start)
    return seconds


def report(seconds: Mapping[str, list[float]], amount: float, unit: str) -> None:
    """Print the rate of each loop, and its ratio to the first one: the median over rounds, least and most."""
    first = next(iter(seconds.values()))
    for name, times in seconds.items():
        ratios = sorted(a / b for a, b in zip(first, times, strict=True))
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"{name:32} {amount / statistics.median(times):10.1f} {unit}/s   {spread} x {next(iter(seconds))}")
