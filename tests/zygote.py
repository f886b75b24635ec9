"""Starts programs as a user would, without paying the seconds of `import torch` each time.

`Zygote` is a process that imports what it is asked for once. For each request it forks a child that runs
`python -m <module>` with its own folder, arguments, environment and output.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import groups
from harness.config.checks import check_options
from harness.program.by_name import MODULES
from harness.run.environment import code_digest, git_commit, versions
from tests import faults

ROOT = Path(__file__).parents[1]
# What a script finds as `python`: it passes its arguments on, and ends as the child that had them. Each has a pipe of
# its own: a common one could be opened by the next before the answer to the last is closed, and wait without end.
STAND_IN = """#!/bin/sh
answered={folder}/answered.$$
mkfifo $answered
printf '%s\\0' $answered "$@" > {folder}/asked
read code < $answered
cat {folder}/said
exit $code
"""


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

    def start(
        self, folder: Path, module: str, *arguments: str, before: str = "", at: Path | None = None, **environment: str
    ) -> int:
        """Start `python -m module arguments`, or a file; the process id.

        Its output goes to `folder`, where it runs unless `at` is another one. `before` is a fault of `tests.faults`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        return int(
            self._ask(
                do="start", folder=str(folder), at=str(at or folder), module=module, arguments=arguments,
                before=before, environment=environment,
            )
        )  # fmt: skip

    def wait(self, child: int) -> int:
        """The exit code of a started program."""
        return int(self._ask(do="wait", child=child))

    def run(self, folder: Path, module: str, *arguments: str, **options: Any) -> Answer:
        """Start a program and wait for it."""
        return self.end(folder, self.start(folder, module, *arguments, **options))

    def code(self, folder: Path, text: str, *arguments: str, **options: Any) -> Answer:
        """Run Python code as a program of its own."""
        (folder / "program.py").write_text(text)
        return self.run(folder, "program", *arguments, **options)

    def script(self, folder: Path, *command: str, **environment: str) -> str:
        """Run a script from the root, with a child for each `python` in it; what it printed."""
        os.mkfifo(folder / "asked")
        (folder / "python").write_text(STAND_IN.format(folder=folder))
        (folder / "python").chmod(0o755)
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **environment}
        asked = os.open(folder / "asked", os.O_RDWR)
        with open(folder / "printed", "w+") as printed:
            script = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=printed, stderr=subprocess.STDOUT)
            while script.poll() is None:
                if select.select([asked], [], [], 0.02)[0]:
                    answered, *words = os.read(asked, 1 << 16).decode().split("\0")[:-1]
                    answer = self.run(folder, *words[words[0] == "-m" :], at=ROOT)
                    (folder / "said").write_text(answer.out + answer.err)
                    Path(answered).write_text(f"{answer.code}\n")
                    Path(answered).unlink()
            os.close(asked)
            printed.seek(0)
            text = printed.read()
        (folder / "asked").unlink()
        assert script.returncode == 0, text
        return text

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


def serve() -> None:
    """Answer requests until the input ends."""
    gc.disable()
    for module in sys.argv[1:]:
        __import__(module)
    for program in (name for name, module in MODULES.items() if module in sys.modules):
        one_task = {"dqn": ["env=cartpole"], "sac": ["env=hopper"]}.get(program, [])  # a stream fills its lengths in
        check_options(
            groups.compose(program, ["scale=smoke", *one_task])
        )  # Hydra's grammar and tables of choices fill by use
    for ask in (code_digest, git_commit, versions):  # a process, and each child after it, keeps the first answer
        ask()
    gc.freeze()  # children do not look at what was imported, nor copy its memory
    gc.enable()
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "start":
            module = request["module"].removesuffix(".py").replace("/", ".")
            if module not in sys.modules:
                with contextlib.suppress(ImportError):  # the child will say so
                    importlib.import_module(module)
                gc.freeze()
            answer = os.fork()
            if answer == 0:
                be_program(request)
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["child"], 0)[1])
        print(answer, flush=True)


def be_program(request: dict[str, Any]) -> None:
    """In the child: what `python -m module arguments` does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["at"])
    sys.path.insert(0, request["at"])  # as `python -m` does
    os.environ.update(request["environment"])
    for number, name in ((1, "out"), (2, "err")):
        descriptor = os.open(f"{request['folder']}/.{os.getpid()}.{name}", os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = [request["module"], *request["arguments"]]
    if request["before"]:
        getattr(faults, request["before"])()
    code = 0
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning)
            if request["module"].endswith(".py"):
                runpy.run_path(request["module"], run_name="__main__")
            else:
                runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
        if isinstance(leave.code, str):
            print(leave.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
