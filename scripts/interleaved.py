"""Time loops in turns, so that other load on the machine affects them equally; used by the benchmarks."""

import statistics
import time
from collections.abc import Callable, Mapping

import torch


def seconds_of(
    loops: Mapping[str, Callable[[], object]], rounds: int, threads: int | None = None, times: int = 1
) -> dict[str, list[float]]:
    """Return the seconds of each loop in each round: name -> (rounds,). One more round, the first, only warms up.

    Args:
        loops: name -> the function to time.
        rounds: number of rounds that count.
        threads: threads of this process. If 1, processor time is measured, which other programs disturb least.
        times: calls of a loop in each round.
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
    """Print the rate of each loop, and its ratio to the first loop's: the median, least and most over rounds.

    Args:
        seconds: what `seconds_of` returned.
        amount: units that a loop does in its turn.
        unit: name of the unit, such as `images`.
    """
    first = next(iter(seconds.values()))
    for name, times in seconds.items():
        ratios = sorted(a / b for a, b in zip(first, times, strict=True))
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"{name:32} {amount / statistics.median(times):10.1f} {unit}/s   {spread} x {next(iter(seconds))}")
