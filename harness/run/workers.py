"""Processes of this machine that do one call after another: for `hydra/launcher=cores` and for `run_jobs`.

A worker that is killed costs the call that it was doing and nothing else: another worker takes its place. Workers leave
with their driver, whatever ends it: asked by a signal, where the driver has time for one, and else since each of them
looks whether its driver is there. One that trains writes a checkpoint first.
"""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, TypeVar

import joblib
from joblib.externals.loky import backend as loky

from harness.config.errors import ConfigError
from harness.training.signals import EXIT_PREEMPTED, exit_on_signals, leave_with, start_of_process

Call = TypeVar("Call")
NO_MORE = None  # in place of a call
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Lost:
    """In place of what a call returns: its worker ended under way.

    Attributes:
        code: the worker's exit code, negative if a signal ended it.
    """

    code: int | None

    def __str__(self) -> str:
        how = f"ended with code {self.code}"
        if self.code is not None and self.code < 0:
            memory = " (out of memory?)" if self.code == -signal.SIGKILL else ""
            how = f"was ended by {signal.Signals(-self.code).name}{memory}"
        return f"its process {how}: the same command, started again, goes on"


class Worker:
    """A process that does calls, and the driver's end of the pipe to it.

    Args:
        imports_main: whether it imports the driver's main program, as `multiprocessing` does; else calls must name
            everything by its module, and joblib's kind of process is started.
    """

    def __init__(self, imports_main: bool) -> None:
        spawn: Any = multiprocessing.get_context("spawn") if imports_main else loky.get_context("loky")
        self.connection, theirs = spawn.Pipe()
        driver = os.getpid()
        self.process = spawn.Process(target=work, args=(theirs, driver, start_of_process(driver)))
        self.process.start()
        theirs.close()

    def send(self, call: Any) -> bool:
        """Give it a call; False if it has ended meanwhile."""
        try:
            self.connection.send(call)
        except OSError:
            return False
        return True

    def take(self) -> Any:
        """What its call has returned, or `Lost`."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return Lost(self.process.exitcode)


class Workers:
    """Up to so many workers, which are started as they are needed and stay for further calls.

    Args:
        number: of processes.
        threads: of each of them where it does not set their number itself; None: as the environment has it, else one.
        imports_main: see `Worker`.
    """

    def __init__(self, number: int, threads: int | None = None, imports_main: bool = True) -> None:
        self.number, self.threads, self.imports_main = number, threads, imports_main
        self._idle: list[Worker] = []
        self._busy: list[Worker] = []

    def map(self, function: Callable[[Call], Any], calls: Iterable[Call]) -> Iterator[tuple[Call, Any]]:
        """Do calls side by side, and yield each with what it returned, or with `Lost`, as it ends.

        Args:
            function: one that a module names, which raises nothing.
            calls: taken one by one, as workers become free.

        Raises:
            SystemExit: Ctrl-C; the workers have left.
        """
        exit_on_signals()
        waiting, doing = iter(calls), dict[connection.Connection, tuple[Worker, Call]]()
        try:
            while True:
                while len(doing) < self.number:
                    for call in waiting:
                        worker = self._give((function, call))
                        doing[worker.connection] = worker, call
                        break
                    else:
                        break
                if not doing:
                    return
                for ready in connection.wait(list(doing)):
                    assert isinstance(ready, connection.Connection)
                    worker, call = doing.pop(ready)
                    answer = worker.take()
                    self._busy.remove(worker)
                    if not isinstance(answer, Lost):
                        self._idle.append(worker)
                    yield call, answer
        except KeyboardInterrupt:
            self.stop()
            raise SystemExit(EXIT_PREEMPTED) from None
        except BaseException:
            self.stop()
            raise

    def _give(self, call: Any) -> Worker:
        """A worker that does this call."""
        while True:
            worker = self._idle.pop() if self._idle else self._start()
            if worker.send(call):
                self._busy.append(worker)
                return worker

    def _start(self) -> Worker:
        """A new worker, whose libraries read the number of their threads when they are imported."""
        threads = {name: str(self.threads or 1) for name in THREADS if name not in os.environ}
        os.environ.update(threads)
        try:
            return Worker(self.imports_main)
        finally:
            for name in threads:
                del os.environ[name]

    def stop(self) -> None:
        """Let the workers write checkpoints and leave; a second Ctrl-C ends them at once."""
        workers, self._idle, self._busy = [*self._idle, *self._busy], [], []
        for worker in workers:
            worker.send(NO_MORE)
            worker.process.terminate()
        try:
            for worker in workers:
                worker.process.join()
        except KeyboardInterrupt:
            for worker in workers:
                worker.process.kill()
            os._exit(130)

    def close(self) -> None:
        """Let the workers, which do nothing, leave."""
        for worker in self._idle:
            worker.send(NO_MORE)
        for worker in self._idle:
            worker.process.join()
        self._idle = []


def number_of_workers(option: str, wanted: int) -> tuple[int, int]:
    """How many workers an option asks for, and the cores that each of them has.

    Args:
        option: its name, for the message.
        wanted: how many; -1: as many as this process has cores, -2: one fewer, and so on.

    Raises:
        ConfigError: it is no such number.
    """
    cores = joblib.cpu_count()
    if not isinstance(wanted, int) or wanted == 0:
        raise ConfigError(f"{option} must be a number of processes, or -1 for as many as there are cores, got {wanted}")
    number = wanted if wanted > 0 else max(1, cores + 1 + wanted)
    return number, max(1, cores // number)


def work(pipe: connection.Connection, driver: int, started: str) -> None:
    """In a worker: do calls until there are no more, or the driver is gone.

    Ctrl-C, which a terminal sends to all processes, is left to the driver while the worker does not train.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_on_signals()
    leave_with(driver, started)
    with contextlib.suppress(EOFError, OSError):
        while (asked := pipe.recv()) is not NO_MORE:
            function, call = asked
            pipe.send(function(call))
