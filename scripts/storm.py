"""Random faults during runs of one program: is anything lost?

    python scripts/storm.py --program vision --kills 100 --seed 1
    python scripts/storm.py --program dqn --method redo --kills 25 --seed 2 --out storm.json

Trains small runs, and while each trains: kills the process or its whole group (SIGKILL), kills its wandb mirror, sends
SIGTERM, SIGINT, SIGUSR1 or SIGUSR2, stops and continues it, fills its disk, deletes its cache, or starts it 16 times at
once. Then the same command finishes the run, and its rows and final state must equal, bit for bit (clocks apart),
those of an undisturbed run. The faults are drawn from the seed; their exact moment depends on the machine.

Programs are forked from this process, which has imported everything. Filling a disk needs the right to mount a tmpfs
(root). Exit code 0: nothing was lost; 1: something was, and its folder is kept.
"""

import argparse
import collections
import contextlib
import importlib
import json
import os
import random
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402  after the number of threads is set

from harness.run.reader import newest_state  # noqa: E402
from tests.programs import only_run, rows, same  # noqa: E402

ALIKE = ("scale=smoke", "progress=false", "checkpoint.every_seconds=0.2")
PROGRAMS = {
    "vision": (
        "vision.train",
        ("benchmark=warm_start", "model=small_resnet", "model.width=4", "batch_size=128", "epochs=12"),
    ),
    "language": (
        "language.train",
        ("model.n_layer=1", "model.n_head=2", "model.n_embd=32", "model.block_size=32", "batch_size=2",
         "benchmark.iterations=[300,300]", "benchmark.checkpoints=[20]", "lr=1e-3", f"paths.data={ROOT}/data"),
    ),
    "dqn": (
        "rl.dqn",
        ("env=cartpole", "num_envs=2", "model.hidden=16", "total_steps=2400", "midpoint=1200", "learning_starts=40",
         "target_every=50", "batch_size=8", "log_every=40", "eval.every=400", "eval.steps=40", "eval.num_envs=2",
         "replay.capacity=400", "replay.segment=16"),
    ),
    "sac": (
        "rl.sac", ("env=double_pendulum", "env_steps=800", "eval_every=100", "batch_size=16", "metrics=off")
    ),
}  # fmt: skip
SIGNALS = {"SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT, "SIGUSR1": signal.SIGUSR1, "SIGUSR2": signal.SIGUSR2}
LETHAL = ("kill", "kill the group", *SIGNALS)
KINDS = (*LETHAL * 2, *LETHAL[:2] * 6, "kill the mirror", "stop", "full disk", "delete the cache", "16 starters")
STARTERS = 16
DISK = 96  # MiB
PATIENCE = 120.0  # seconds


class Storm:
    """One program, one method, and the faults so far."""

    def __init__(self, program: str, method: str, seed: int, work: Path) -> None:
        self.module, options = PROGRAMS[program]
        self.program, self.work = program, work
        self.options = (*ALIKE, *options, f"method={method}")
        self.draw = random.Random(f"{program} {method} {seed}")
        self.made: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []
        self.runs = 0
        self.tracker = "none"
        self.finish(self.folder("calm"))
        if self.faults:
            said = (work / "calm" / "log").read_text().strip().splitlines() or ["nothing"]
            raise SystemExit(f"storm: {program} does not run with method={method}, undisturbed: {said[-1]}")
        for name in json.loads((work / "calm" / "modules").read_text()):  # so that programs start faster
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        self.tracker = "wandb_offline"
        began = time.monotonic()
        self.finish(self.folder("calm with tracker"))
        self.duration = time.monotonic() - began
        self.span = 0.7 * self.duration  # in which faults are drawn
        self.calm = (rows(only_run(work / "calm" / "runs")), state(work / "calm"))

    def folder(self, name: str) -> Path:
        """A new folder to start programs in."""
        (self.work / name).mkdir()
        return self.work / name

    def start(self, folder: Path) -> int:
        """Start the program there, in a process group of its own; its process id."""
        child = os.fork()
        if child:
            return child
        os.setsid()
        os.chdir(folder)
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = [self.module, *self.options, f"tracker={self.tracker}"]
        before = set(sys.modules)
        code = 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                runpy.run_module(self.module, run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as leave:
            code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        if self.runs == 0:
            Path("modules").write_text(json.dumps(sorted(set(sys.modules) - before)))
        os._exit(code)

    def wait(self, child: int, accepted: tuple[int, ...], what: str) -> int:
        """The exit code of a process; one that is not accepted is a fault."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                if code not in accepted:
                    self.faults.append(f"{what}: exit code {code}")
                return code
            time.sleep(0.005)
        self.faults.append(f"{what}: still there after {PATIENCE:g} s")
        kill_group(child)
        os.waitpid(child, 0)
        return 0

    def finish(self, folder: Path) -> None:
        """Start the same command until the run is done."""
        for _ in range(3):
            if self.wait(self.start(folder), (0, 3), "finish") == 0:
                return
        self.faults.append("finish: three starts did not end the run")

    def disturb(self, folder: Path, kind: str) -> bool:
        """Start the program and cause one fault; whether the run still has to be finished."""
        if kind == "16 starters":
            children = [self.start(folder) for _ in range(STARTERS)]
            codes = [self.wait(child, (0, 2), kind) for child in children]
            if 0 not in codes:
                self.faults.append(f"{kind}: none finished")
            return False
        child = self.start(folder)
        time.sleep(self.draw.uniform(0, self.span))
        accepted: tuple[int, ...] = (0,)
        if kind == "kill":
            os.kill(child, signal.SIGKILL)
            accepted = (0, -signal.SIGKILL)
        elif kind == "kill the group":
            kill_group(child)
            accepted = (0, -signal.SIGKILL)
        elif kind in SIGNALS:
            os.kill(child, SIGNALS[kind])
            early = -SIGNALS[kind]  # before Python has a handler
            accepted = (0, 75, 130, early)
        elif kind == "stop":
            os.kill(child, signal.SIGSTOP)
            time.sleep(0.3)
            os.kill(child, signal.SIGCONT)
        elif kind == "kill the mirror":
            for pid in children_of(child):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        elif kind == "delete the cache":
            shutil.rmtree(folder / "runs" / ".cache", ignore_errors=True)
        elif kind == "full disk":
            fill(folder / "ballast")
            time.sleep(self.draw.uniform(0, self.duration))
            (folder / "ballast").unlink(missing_ok=True)
            accepted = (0, 2, 3)
        return self.wait(child, accepted, kind) != 0

    def trial(self, kills: int, kinds: list[str]) -> int:
        """One run under at most `kills` lethal faults, and what it has lost; the number that interrupted it."""
        self.runs += 1
        folder = self.folder(f"run-{self.runs}")
        plan = [self.draw.choice(kinds) for _ in range(self.draw.randint(1, 12))]
        self.tracker = "wandb_offline" if "kill the mirror" in plan or self.draw.random() < 0.2 else "none"
        made = 0
        faults = len(self.faults)
        with disk(folder, "full disk" in plan):
            for kind in plan:
                if made < kills or kind not in LETHAL:
                    interrupted = self.disturb(folder, kind)
                    self.made[kind] += interrupted or kind not in LETHAL
                    if kind in LETHAL:  # two of three shall hit, however busy the machine is
                        self.span *= 1.1 if interrupted else 0.8
                    if not interrupted:
                        break
                    made += kind in LETHAL
            self.finish(folder)
            self.compare(folder)
            if len(self.faults) > faults:
                kept = self.work / f"kept-{self.runs}"
                shutil.copytree(folder, kept, symlinks=True)
                self.faults[faults:] = [f"{fault} [{', '.join(plan)}] {kept}" for fault in self.faults[faults:]]
        shutil.rmtree(folder)
        return made

    def compare(self, folder: Path) -> None:
        """Compare a finished run with the undisturbed one."""
        if "Traceback" in (folder / "log").read_text():
            self.faults.append("a traceback")
        try:
            if rows(only_run(folder / "runs")) != self.calm[0]:
                self.faults.append("rows differ")
            if not same(state(folder), self.calm[1]):
                self.faults.append("final states differ")
        except Exception as error:  # anything wrong with the folder is a finding
            self.faults.append(f"cannot be read: {type(error).__name__}: {error}")
        if left := [str(path) for path in (folder / "runs").rglob(".*.tmp")]:
            self.faults.append(f"left behind: {left}")


def kill_group(child: int) -> None:
    """SIGKILL to a process and all its descendants."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def children_of(process: int) -> list[int]:
    """The processes that a process has started (Linux)."""
    try:
        return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


@contextlib.contextmanager
def disk(folder: Path, small: bool) -> Any:
    """`folder` as a small disk of its own, if asked for."""
    if small:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}m", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        if small:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def can_mount(work: Path) -> bool:
    """Whether this process may mount a tmpfs."""
    place = work / "mount"
    place.mkdir()
    try:
        with disk(place, True):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        place.rmdir()


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


def state(folder: Path) -> dict[str, Any]:
    """The trainer's final state; a run that is not marked done has none."""
    run = only_run(folder / "runs")
    json.loads((run / "DONE").read_text())
    return newest_state(run)


def main() -> int:
    """Cause the faults and print what was done and lost."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", choices=PROGRAMS, required=True)
    parser.add_argument("--method", default="fire")
    parser.add_argument("--kills", type=int, default=25, help="interruptions in all; other faults come on top")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the counts there as JSON")
    options = parser.parse_args()
    if options.kills < 1:
        parser.error(f"--kills must be at least 1, got {options.kills}")
    torch.set_num_threads(1)
    sys.modules.pop("__mp_main__", None)
    __import__(PROGRAMS[options.program][0] + (".train" if options.program in ("dqn", "sac") else ""))
    work = Path(tempfile.mkdtemp(prefix=f"storm-{options.program}-"))
    kinds = [kind for kind in KINDS if kind != "full disk" or can_mount(work)]
    if "full disk" not in kinds:
        print("no right to mount a tmpfs: disks are not filled")
    began, made = time.monotonic(), 0
    storm = Storm(options.program, options.method, options.seed, work)
    while made < options.kills:
        made += storm.trial(options.kills - made, kinds)
        print(f"{made} kills, {storm.runs} runs, {len(storm.faults)} faults", flush=True)
    found = {
        "program": options.program, "method": options.method, "seed": options.seed, "kills": made,
        "runs": storm.runs, "made": dict(sorted(storm.made.items())), "faults": storm.faults,
        "seconds": round(time.monotonic() - began),
    }  # fmt: skip
    print(json.dumps(found, indent=2))
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n")
    if not storm.faults:
        shutil.rmtree(work)
    return int(bool(storm.faults))


if __name__ == "__main__":
    sys.exit(main())
