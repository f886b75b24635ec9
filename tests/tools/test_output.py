"""Readers that leave early, and streams that are closed: in processes of their own, through a real shell."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRINTS = """
import os, sys
sys.path.insert(0, {root!r})
from fire_core.tools.output import keep_output
keep_output()
for i in range(20_000):
    print("line", i)
    print("line", i, file=sys.stderr)
file = open("last", "w")
os.system("echo a library in C speaks; echo and complains >&2")
file.write(f"{{file.fileno()}}")
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


@pytest.mark.parametrize("end", ["| head -1", "2>&1 | head -1", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_command_goes_on_to_its_end(end: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PRINTS.format(root=str(ROOT)))
    command = f"set -o pipefail; {sys.executable} program.py {end}"
    answer = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "Traceback" not in answer.stderr
    assert "Exception" not in answer.stderr
    assert int((tmp_path / "last").read_text()) > 2, "what is printed would go into the file"


def test_a_full_disk_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PRINTS.format(root=str(ROOT)))
    command = f"{sys.executable} program.py > /dev/full"
    answer = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode != 0


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    text = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom fire_core.tools.output import *\n"
    text += 'keep_output()\nwith system_errors_explained():\n    print("line\\n" * 100_000)\n'
    (tmp_path / "program.py").write_text(text)
    command = f"{sys.executable} program.py > /dev/full"
    answer = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.stderr == "error: cannot read or write the output: No space left on device\n"
    assert answer.returncode == 1


def test_characters_that_the_encoding_lacks(tmp_path: Path) -> None:
    text = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom fire_core.tools.output import keep_output\n"
    (tmp_path / "program.py").write_text(text + "keep_output()\nprint('l\u00e4ufe \u2192')\n", encoding="utf-8")
    command = f"PYTHONIOENCODING=ascii {sys.executable} program.py"
    answer = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.stdout == "l\\xe4ufe \\u2192\n", answer.stderr
