"""Worker processes of this machine that run one call after another, for `hydra/launcher=cores` and for `run_jobs`.

If a worker is killed, the call that it was running is lost and nothing else: another worker takes its place. Workers
leave when their driver (the process that started them) ends. The driver sends them a signal if it has time for that,
and each worker also watches whether its driver is alive. A worker that trains writes a checkpoint first.
"""

import contextlib
import itertools
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
from harness.process.signals import EXIT_PREEMPTED, exit_on_signals, leave_with, start_of_process

Call = TypeVar("Call")
NO_MORE_CALLS = None  # sent in place of a call: the worker leaves
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Lost:
    """Takes the place of a call's result if its worker ended before it returned.

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
    """A process that runs calls, and the driver's end of the pipe to it.

    Args:
        imports_main: whether the worker imports the driver's main program, as `multiprocessing` does by default. If
            not, a process of joblib's loky is started, and calls can only refer to functions and classes of modules.
    """

    def __init__(self, imports_main: bool) -> None:
        spawn: Any = multiprocessing.get_context("spawn") if imports_main else loky.get_context("loky")
        self.connection, theirs = spawn.Pipe()
        driver = os.getpid()
        self.process = spawn.Process(target=work, args=(theirs, driver, start_of_process(driver)))
        self.process.start()
        theirs.close()

    def send(self, call: Any) -> bool:
        """Send the worker a call; return False if the worker has ended meanwhile."""
        try:
            self.connection.send(call)
        except OSError:
            return False
        return True

    def receive(self) -> Any:
        """Wait for the result of the worker's call and return it, or `Lost` if the worker has ended."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return Lost(self.process.exitcode)


class Workers:
    """A pool of worker processes, which are started when they are needed and stay for further calls.

    Args:
        number: the most workers at once.
        threads: threads of each worker, unless the environment variables or the call set their number; None: one.
        imports_main: see `Worker`.
    """

    def __init__(self, number: int, threads: int | None = None, imports_main: bool = True) -> None:
        self.number, self.threads, self.imports_main = number, threads, imports_main
        self._idle: list[Worker] = []
        self._busy: list[Worker] = []

    def map(self, function: Callable[[Call], Any], calls: Iterable[Call]) -> Iterator[tuple[Call, Any]]:
        """Run `function(call)` for all calls in parallel, and yield (call, result) as each one ends.

        Args:
            function: a function of a module, which raises no exception.
            calls: the arguments; the next one is taken when a worker is free.

        Yields:
            The call and its result; `Lost` if its worker was killed.

        Raises:
            SystemExit: after Ctrl-C, once the workers have left.
        """
        exit_on_signals()
        waiting, running = iter(calls), dict[connection.Connection, tuple[Worker, Call]]()
        try:
            while True:
                for call in itertools.islice(waiting, self.number - len(running)):
                    worker = self._give((function, call))
                    running[worker.connection] = worker, call
                if not running:
                    return
                for ready in connection.wait(list(running)):
                    assert isinstance(ready, connection.Connection)
                    worker, call = running.pop(ready)
                    result = worker.receive()
                    self._busy.remove(worker)
                    if not isinstance(result, Lost):
                        self._idle.append(worker)
                    yield call, result
        except KeyboardInterrupt:
            self.stop()
            raise SystemExit(EXIT_PREEMPTED) from None
        except BaseException:
            self.stop()
            raise

    def _give(self, call: Any) -> Worker:
        """Send a call to an idle worker, or to a new one, and return the worker."""
        while True:
            worker = self._idle.pop() if self._idle else self._start()
            if worker.send(call):
                self._busy.append(worker)
                return worker

    def _start(self) -> Worker:
        """Start a worker. Its number of threads is set by environment variables, which libraries read when imported."""
        threads = {name: str(self.threads or 1) for name in THREAD_VARIABLES if name not in os.environ}
        os.environ.update(threads)
        try:
            return Worker(self.imports_main)
        finally:
            for name in threads:
                del os.environ[name]

    def stop(self) -> None:
        """Make the workers write checkpoints and leave, and wait for them; a second Ctrl-C kills them at once."""
        workers, self._idle, self._busy = [*self._idle, *self._busy], [], []
        for worker in workers:
            worker.send(NO_MORE_CALLS)
            worker.process.terminate()
        try:
            for worker in workers:
                worker.process.join()
        except KeyboardInterrupt:
            for worker in workers:
                worker.process.kill()
            os._exit(130)

    def close(self) -> None:
        """Make the idle workers leave, and wait for them; no call may be running."""
        for worker in self._idle:
            worker.send(NO_MORE_CALLS)
        for worker in self._idle:
            worker.process.join()
        self._idle = []


def number_of_workers(option: str, wanted: int) -> tuple[int, int]:
    """Return how many workers an option asks for, and the number of cores for each of them.

    Args:
        option: name of the option, for the message.
        wanted: its value: a number; or -1 for as many as this process has cores, -2 for one fewer, and so on.

    Raises:
        ConfigError: the value is 0 or no whole number.
    """
    cores = joblib.cpu_count()
    if not isinstance(wanted, int) or wanted == 0:
        raise ConfigError(f"{option} must be a number of processes, or -1 for as many as there are cores, got {wanted}")
    number = wanted if wanted > 0 else max(1, cores + 1 + wanted)
    return number, max(1, cores // number)


def work(pipe: connection.Connection, driver: int, started: str) -> None:
    """Run calls in a worker process until there are no more, or the driver has ended.

    A terminal sends Ctrl-C to all processes. While it does not train, the worker ignores it and leaves it to the
    driver.

    Args:
        pipe: the worker's end of the pipe.
        driver: process id of the driver.
        started: what `start_of_process` returned for the driver.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_on_signals()
    leave_with(driver, started)
    with contextlib.suppress(EOFError, OSError):
        while (message := pipe.recv()) is not NO_MORE_CALLS:
            function, call = message
            pipe.send(function(call))
