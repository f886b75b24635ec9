"""Starts programs as a user would, without paying the seconds of `import torch` each time.

`Zygote` is a process that has imported everything once. For each request it forks a child that runs
`python -m <module>` with its own folder, arguments, environment and output.
"""

import copy
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from harness.config import groups
from tests import faults

ROOT = Path(__file__).parents[1]


@dataclass
class Answer:
    """How a program ended; `code` is negative if a signal ended it."""

    code: int
    out: str
    err: str


class Zygote:
    """A process that forks ready-made children.

    Args:
        imports: modules to import once.
    """

    def __init__(self, *imports: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.zygote", *imports],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def start(self, folder: Path, module: str, *arguments: str, before: str = "", **environment: str) -> int:
        """Start `python -m module arguments` in `folder`, with a fault of `tests.faults`; the process id."""
        folder.mkdir(parents=True, exist_ok=True)
        return int(
            self._ask(
                do="start", folder=str(folder), module=module, arguments=arguments, before=before,
                environment=environment,
            )
        )  # fmt: skip

    def wait(self, child: int) -> int:
        """The exit code of a started program."""
        return int(self._ask(do="wait", child=child))

    def run(self, folder: Path, module: str, *arguments: str, before: str = "", **environment: str) -> Answer:
        """Start a program and wait for it."""
        return self.end(folder, self.start(folder, module, *arguments, before=before, **environment))

    def end(self, folder: Path, child: int) -> Answer:
        """Wait for a started program."""
        code = self.wait(child)
        return Answer(code, self.output(folder, child, "out"), self.output(folder, child, "err"))

    @staticmethod
    def output(folder: Path, child: int, stream: str) -> str:
        """What a program has written so far; the file is removed."""
        file = folder / f".{child}.{stream}"
        text = file.read_text()
        file.unlink()
        return text

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def _ask(self, **request: Any) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()


def read_options_once() -> None:
    """The same files and options are read in a thousand tests: the half of what a configuration costs."""
    load, parse, known = OmegaConf.load, OverridesParser.parse_rule, dict[Any, Any]()

    def load_once(file: Any) -> Any:
        about = os.stat(file.name if hasattr(file, "read") else file)
        key = (about.st_ino, about.st_mtime_ns, about.st_size)
        if key not in known:
            known[key] = load(file)
        return copy.deepcopy(known[key])

    def parse_once(parser: OverridesParser, text: str, rule: str) -> Any:
        if (text, rule) not in known:
            known[text, rule] = parse(parser, text, rule)
        return copy.deepcopy(known[text, rule])

    OmegaConf.load, OverridesParser.parse_rule = staticmethod(load_once), parse_once


def serve() -> None:
    """Answer requests until the input ends."""
    for module in sys.argv[1:]:
        __import__(module)
    read_options_once()
    groups.compose("vision", ["scale=smoke", "lr=0.1"])  # Hydra's grammar fills its tables by use
    gc.freeze()  # children do not look at what was imported, nor copy its memory
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "start":
            answer = os.fork()
            if answer == 0:
                be_program(request)
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["child"], 0)[1])
        print(answer, flush=True)


def be_program(request: dict[str, Any]) -> None:
    """In the child: what `python -m module arguments` does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    sys.path.insert(0, request["folder"])  # as `python -m` does
    os.environ.update(request["environment"])
    for number, name in ((1, "out"), (2, "err")):
        descriptor = os.open(f".{os.getpid()}.{name}", os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = [request["module"], *request["arguments"]]
    if request["before"]:
        getattr(faults, request["before"])()
    code = 0
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning)
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
