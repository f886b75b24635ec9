"""Thirty faults put into the sources one at a time: does a test notice?

    python -m tests.mutations TREE [NAME ...]      in a clone whose files may be changed; all faults, or some

A fault is caught if one of its tests fails with it and passes without it. Each line that is printed is a fault, and the
test that caught it or `MISSED`. The clone is as it was afterwards. The faults were chosen from the formulae and the
promises of the project by somebody who wrote none of the tests, and are the same for every tree: where a line is
written otherwise, a fault has several spellings.
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 900  # seconds for the tests of one fault


@dataclass(frozen=True)
class Fault:
    """One wrong line.

    Attributes:
        name: what is wrong.
        tests: folders of tests that are asked, those that the tree has.
        spellings: text of the sources -> what it becomes; the first that the tree has is used, everywhere it stands.
    """

    name: str
    tests: tuple[str, ...]
    spellings: dict[str, str]


POLAR, REINIT, METHODS = ("tests/polar", "tests/reinit"), ("tests/reinit",), ("tests/methods", "tests/parity")
VISION, DQN, SAC = ("tests/vision", "tests/curves"), ("tests/rl/dqn", "tests/rl"), ("tests/rl/sac", "tests/rl")
LANGUAGE, RUN = ("tests/language",), ("tests/harness", "tests/vision", "tests/language")
ANALYSIS, TRIGGERS = ("tests/analysis",), ("tests/triggers",)

FAULTS = [
    Fault("a wrong sign in Newton-Schulz", POLAR, {"beta=a, alpha=b, out=out": "beta=a, alpha=-b, out=out"}),
    Fault(
        "the small side's iteration loses a term",
        POLAR,
        {"A = torch.baddbmm(B, A, B, beta=a, alpha=b)": "A = B.mul(a)"},
    ),
    Fault("the paper's scale upside down", REINIT, {"math.sqrt(d_out / d_in) /": "math.sqrt(d_in / d_out) /"}),
    Fault(
        "a scale without its square root",
        REINIT,
        {"return (squares / min(d_out, d_in)).sqrt()": "return squares / min(d_out, d_in)"},
    ),
    Fault(
        "the optimizer's state of projected weights is lost sight of",
        (*REINIT, "tests/methods"),
        {"                    _forget(part, group, p)\n": "                    pass\n"},
    ),
    Fault(
        "shrink and perturb keeps what it should shrink",
        METHODS,
        {"shrink_and_perturb_(module, scaled, self.coef": "shrink_and_perturb_(module, scaled, 1 - self.coef"},
    ),
    Fault(
        "a full reset leaves the optimizer's state",
        METHODS,
        {
            "        reset_optimizer_state(context.optimizers, net.parameters())\n": "        pass\n",
            "        reset_optimizer_state(context.optimizers, net.parameters(context.spared))\n": "        pass\n",
        },
    ),
    Fault(
        "DASH follows the gradient, not the descent",
        METHODS,
        {"(descent, gradients, alpha=-alpha)": "(descent, gradients, alpha=alpha)", "alpha=-alpha)": "alpha=alpha)"},
    ),
    Fault("continual backprop without bias correction", METHODS, {" / (1 - self.decay ** ages[i])": ""}),
    Fault(
        "ReDo recycles nothing",
        METHODS,
        {
            "dormant(activity[None], self.threshold)": "dormant(activity[None], -1.0)",
            "dormant(activity[None] / seen, self.threshold)": "dormant(activity[None], -1.0)",
        },
    ),
    Fault(
        "Parseval draws rows to another length",
        METHODS,
        {'2.0 if variant == "original"': '1.0 if variant == "original"'},
    ),
    Fault(
        "L2 init pulls to zero", METHODS, {"(parameter, net.init[key][name])": "(parameter, net.init[key][name] * 0)"}
    ),
    Fault("a terminated episode is bootstrapped from", DQN, {" * (1 - terminated.to(best.dtype))": ""}),
    Fault(
        "DQN's loss is summed",
        DQN,
        {"F.smooth_l1_loss(values, targets)": 'F.smooth_l1_loss(values, targets, reduction="sum")'},
    ),
    Fault(
        "an emptied replay goes on with what it held",
        DQN,
        {"self.begins = list(self.written)": "self.begins = list(self.begins)"},
    ),
    Fault("SAC's target takes the larger critic", SAC, {"(q.amin(-2) - temperature": "(q.amax(-2) - temperature"}),
    Fault("SAC's temperature moves the wrong way", SAC, {"(entropy - target_entropy)": "(target_entropy - entropy)"}),
    Fault(
        "SAC's target copies at once", SAC, {"list(source.parameters()), tau)": "list(source.parameters()), 1 - tau)"}
    ),
    Fault(
        "the paper's schedule is off by a pass", METHODS, {"(number + 1) % epochs / epochs": "number % epochs / epochs"}
    ),
    Fault("the first boundary passes unused", VISION, {"if index > 0 and acts_at": "if index > 1 and acts_at"}),
    Fault(
        "gradients are not clipped",
        ("tests/vision",),
        {
            "nn.utils.clip_grad_norm_(trained, config.grad_clip)": "nn.utils.get_total_norm([p.grad for p in trained])",
            "nn.utils.clip_grad_norm_(parameters, clip)": "nn.utils.get_total_norm([p.grad for p in parameters])",
        },
    ),
    Fault("the run's seed is not passed on", RUN, {"map(str, (seed, *names))": "map(str, (0, *names))"}),
    Fault(
        "a phase draws what the phase before drew",
        (*RUN, "tests/methods"),
        {'seed, "phase", index': 'seed, "phase", 0'},
    ),
    Fault("a resume forgets the random generators", RUN, {'    torch.set_rng_state(state["torch"].cpu())\n': ""}),
    Fault(
        "a checkpoint is written in place",
        ("tests/harness",),
        {"        os.replace(temporary, path)\n": "        path.write_bytes(temporary.read_bytes()[:-1])\n"},
    ),
    Fault("a divergence is turned around", LANGUAGE, {"(p.exp() * (p - q))": "(q.exp() * (q - p))"}),
    Fault("a phase has one batch", LANGUAGE, {'"batch", phase, step, number)': '"batch", phase, 0, number)'}),
    Fault(
        "an interval takes the wrong freedom",
        ANALYSIS,
        {"interval(CONFIDENCE, len(x) - 1)": "interval(CONFIDENCE, len(x))"},
    ),
    Fault("Holm counts from the wrong end", ANALYSIS, {"np.arange(len(order), 0, -1)": "np.arange(1, len(order) + 1)"}),
    Fault(
        "a plateau is said a window early",
        TRIGGERS,
        {"self.waited < self.patience:": "self.waited < self.patience - 1:"},
    ),
]


def main(tree: Path, names: list[str]) -> int:
    """Try the faults; how many were missed."""
    missed = 0
    for fault in FAULTS:
        if names and not any(name in fault.name for name in names):
            continue
        began = time.monotonic()
        test = caught_by(tree, fault)
        missed += test is None
        print(f"{fault.name}: {test or 'MISSED'} ({time.monotonic() - began:.0f} s)", flush=True)
    return missed


def caught_by(tree: Path, fault: Fault) -> str | None:
    """The first test that fails with the fault and passes without it; None: there is none.

    Raises:
        SystemExit: the tree has no line of the fault.
    """
    changed = dict(applied(tree, fault))
    if not changed:
        sys.exit(f"error: {tree} has no line for: {fault.name}")
    ignored: list[str] = []
    while True:
        for path, (_, new) in changed.items():
            path.write_text(new)
        try:
            failing = first_failure(tree, [test for test in fault.tests if (tree / test).exists()], ignored)
        finally:
            for path, (old, _) in changed.items():
                path.write_text(old)
        if failing is None or first_failure(tree, [failing], []) is None:
            return failing
        ignored.append(failing)  # it fails here without the fault too


def applied(tree: Path, fault: Fault) -> Iterator[tuple[Path, tuple[str, str]]]:
    """The files that a fault changes, each with its text before and after."""
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=tree, capture_output=True, text=True, check=True)
    sources = [tree / name for name in tracked.stdout.split() if not name.startswith(("tests/", "scripts/"))]
    texts = {path: path.read_text() for path in sources}
    for old, new in fault.spellings.items():
        if holding := [path for path, text in texts.items() if old in text]:
            yield from ((path, (texts[path], texts[path].replace(old, new))) for path in holding)
            return


def first_failure(tree: Path, tests: list[str], ignored: list[str]) -> str | None:
    """The first test of these that fails; a run that hangs or dies counts as its first file."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "--no-header", *tests]
    command += [f"--deselect={name}" for name in ignored]
    try:
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return tests[0]
    failed = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if failed:
        return failed.group(1)
    return None if done.returncode == 0 else tests[0]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
