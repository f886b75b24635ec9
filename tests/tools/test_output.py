"""Readers that leave early, and streams that are closed: in processes of their own, through a real shell."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / "fire_core/tools/output.py"
PRINTS = """
import os, sys
from output import keep_output
keep_output()
for i in range(20_000):
    print("line", i)
    print("line", i, file=sys.stderr)
file = open("last", "w")
os.system("echo a library in C speaks; echo and complains >&2")
file.write(f"{file.fileno()}")
"""


SAYS_NOTHING = ("harness/run/wandb_mirror.py", "harness/run/provenance.py")  # started by other programs
MEASURE = ("bench_gpu", "bench_sac", "quarter_hour", "record_originals")  # scripts of one machine, read as they run


def test_every_program_goes_on_where_its_reader_leaves() -> None:
    for folder in ("fire_core", "harness", "vision", "language", "rl", "analysis", "studies", "scripts"):
        for file in (ROOT / folder).rglob("*.py"):
            source = file.read_text()
            if '\nif __name__ == "__main__"' not in source or "sys.exit(" in source.rpartition("__main__")[2]:
                continue
            if str(file.relative_to(ROOT)) not in SAYS_NOTHING and file.stem not in MEASURE:
                assert re.search(r"\b(keep_output|run_program|run_command)\(", source), file


def run_in_shell(text: str, folder: Path, form: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a shell; `form` is a command line in which `program` stands for the code."""
    shutil.copy(OUTPUT, folder)  # it needs Python alone, so that a process starts without torch
    (folder / "program.py").write_text(text, encoding="utf-8")
    line = form.replace("program", f"{sys.executable} program.py")
    command = ["bash", "-c", f"set -o pipefail; {line}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("end", ["| head -1", "2>&1 | head -1", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_command_goes_on_to_its_end(end: str, tmp_path: Path) -> None:
    answer = run_in_shell(PRINTS, tmp_path, f"program {end}")
    assert answer.returncode == 0, answer.stderr
    assert "Traceback" not in answer.stderr
    assert "Exception" not in answer.stderr
    assert int((tmp_path / "last").read_text()) > 2, "what is printed would go into the file"


def test_a_full_disk_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    assert run_in_shell(PRINTS, tmp_path, "program > /dev/full").returncode != 0


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    text = "from output import *\nkeep_output()\n"
    text += 'with system_errors_explained():\n    print("line\\n" * 100_000)\n'
    answer = run_in_shell(text, tmp_path, "program > /dev/full")
    assert answer.stderr == "error: cannot read or write the output: No space left on device\n"
    assert answer.returncode == 1


def test_ctrl_c_is_no_traceback(tmp_path: Path) -> None:
    text = "from output import *\nkeep_output()\n"
    text += "with system_errors_explained():\n    raise KeyboardInterrupt\n"
    answer = run_in_shell(text, tmp_path, "program")
    assert (answer.returncode, answer.stderr) == (130, "")


def test_characters_that_the_encoding_lacks(tmp_path: Path) -> None:
    text = "from output import keep_output\nkeep_output()\nprint('l\u00e4ufe \u2192')\n"
    answer = run_in_shell(text, tmp_path, "PYTHONIOENCODING=ascii program")
    assert answer.stdout == "l\\xe4ufe \\u2192\n", answer.stderr
