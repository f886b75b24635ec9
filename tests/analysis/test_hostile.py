"""One bad folder costs one line: whatever is wrong with it, it is left out by name, or does no harm."""

import copy
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from matplotlib import pyplot as plt

from analysis import make_figures, make_report, plotting, style
from analysis.runs import settings as group_runs
from analysis.sources import load
from tests.analysis.synthetic import config, rows, write_run, write_sweep

ROOT = Path(__file__).parents[2]
GOOD = {"methods": ("base", "fire"), "seeds": range(2)}
# What a value of a row or of a configuration may be replaced by.
ODD = (
    None, True, "", "text", "$\\frac{1}{0}$", "<script>alert(1)</script>", "../../etc/passwd", "\ud800", "\x1b[31m",
    "a\nb", "x" * 5000, -1, 0, 1e308, -1e308, 10**400, float("nan"), float("inf"), float("-inf"), [], [1], {},
    {"name": {"name": 1}},
)  # fmt: skip


def replace_files(folder: Path, what: str) -> None:
    """The cases of files that are not what they should be."""
    metrics, about = folder / "metrics.jsonl", folder / "env.json"
    if what == "pipe":
        metrics.unlink()
        os.mkfifo(metrics)
    elif what == "device":
        metrics.unlink()
        metrics.symlink_to("/dev/zero")
    elif what == "folder":
        metrics.unlink()
        metrics.mkdir()
    elif what == "deep env":
        about.write_text("[" * 100_000)
    elif what == "env of bad bytes":
        about.write_bytes(b"\xff\xfe{")
    elif what == "deep row":
        metrics.write_text('{"step": ' + "[" * 100_000 + "\n")
    elif what == "deep config":
        (folder / "config.yaml").write_text("a: " + "[" * 3000)
    elif what == "aliases":
        (folder / "config.yaml").write_text("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n")
    elif what.startswith("DONE"):
        (folder / "DONE").write_text(what.removeprefix("DONE"))
    elif what.startswith("seed"):
        text = (folder / "config.yaml").read_text()
        (folder / "config.yaml").write_text(text.replace("seed: 7", f"seed: {what.removeprefix('seed')}"))
    elif what == "huge":
        with metrics.open("ab") as file:
            file.truncate(2**31)


FILES = ("pipe", "device", "folder", "deep env", "env of bad bytes", "deep row", "deep config", "aliases",
         "DONE[]", "DONEtext", "DONE", "seed.inf", "seed1" + "0" * 30, "seed[1]", "seed-1", "huge")  # fmt: skip


@pytest.mark.parametrize("what", FILES, ids=lambda what: what[:16])
def test_files_that_are_not_what_they_should_be_are_named(what: str, tmp_path: Path) -> None:
    write_sweep(tmp_path, **GOOD)
    folder = write_run(tmp_path, "fire", 7, name="bad")
    replace_files(folder, what)
    runs, left_out = load([str(tmp_path)], cache=False)
    assert len(runs) == 4
    (line,) = map(str, left_out)
    assert line.startswith(f"left out {folder}: ")
    assert "\n" not in line


def test_a_folder_whose_name_is_no_text_is_left_out_or_printed(tmp_path: Path) -> None:
    write_run(tmp_path, "fire", 0)
    os.rename(write_run(tmp_path, "fire", 1, name="bad"), os.fsencode(tmp_path / "vision") + b"/bad\xff\x1b[31m")
    done = subprocess.run(
        [sys.executable, "analysis/make_figures.py", f"runs={tmp_path}", f"out={tmp_path / 'out'}"],
        cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert b"\x1b" not in done.stdout


@pytest.mark.parametrize("name", ["$\\frac{1}{0}$", "<b>&amp;</b>", "../../outside", "a|b", "%\\input{x}", "\x1b[31m"])
def test_names_are_text_and_nothing_else(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not mathematics, not HTML, not a path, not TeX, not a terminal's colours."""
    for group in ("method", "benchmark", "dataset", "model"):
        folder = write_run(tmp_path / "runs", "fire", 0, name=group)
        (folder / "config.yaml").write_text(json.dumps(config("fire", 0) | {group: {"name": name}}))
    write_run(tmp_path / "runs", "fire", 0, name="detail", hyper={"coef": name})
    write_run(tmp_path / "runs", "fire", 0, name="other", hyper={"coef": 1})
    out = tmp_path / "a" / "b" / "out"
    assert make_figures.main([f"runs={tmp_path / 'runs'}", f"out={out}"]) == 0
    assert make_report.main([f"runs={tmp_path / 'runs'}", f"out={out / 'report.html'}"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    page = (out / "report.html").read_text()
    assert "<b>" not in page
    assert "<script>alert" not in page
    for table in out.rglob("*.tex"):
        assert "\\input" not in table.read_text().replace("\\textbackslash{}input", "")
    everything = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")}
    assert everything == {"runs", "a"}, "nothing is written outside"


def damaged(content: bytes, cut: int, length: int, put: bytes) -> bytes:
    """Bytes with a part replaced."""
    at = cut % (len(content) + 1)
    return content[:at] + put + content[at + length :]


@st.composite
def damages(draw: Any) -> list[tuple[Any, ...]]:
    """What is done to a good folder: bytes of files replaced, values of rows and configurations exchanged or gone."""
    names = ("config.yaml", "env.json", "metrics.jsonl", "DONE", "spectra.json")
    byte = st.tuples(
        st.just("bytes"), st.sampled_from(names), st.integers(0, 10_000), st.integers(0, 50), st.binary(max_size=8)
    )
    keys = ("step", "phase", "epoch", "test/accuracy", "boundary/dfi_after", "boundary/test_accuracy_after", "seconds")
    row = st.tuples(st.just("row"), st.integers(0, 20), st.sampled_from(keys), st.sampled_from(range(len(ODD) + 1)))
    places = ("method", "method.name", "seed", "benchmark", "benchmark.name", "dataset.name", "model", "scale", "lr")
    value = st.tuples(st.just("config"), st.sampled_from(places), st.sampled_from(range(len(ODD) + 1)))
    gone = st.tuples(st.just("gone"), st.sampled_from(names))
    return draw(st.lists(st.one_of(byte, row, value, gone), min_size=1, max_size=3))


def exchange(content: dict[str, Any], place: str, number: int) -> None:
    """Put an odd value at a dotted place, or take the key away."""
    *parents, last = place.split(".") if "/" not in place else [place]
    for key in parents:
        content = content.get(key) if isinstance(content.get(key), dict) else {}  # type: ignore[assignment]
    if number == len(ODD):
        content.pop(last, None)
    else:
        content[last] = copy.deepcopy(ODD[number])


def do(folder: Path, damage: list[tuple[Any, ...]]) -> None:
    """Write a good folder and damage it."""
    lines, options = rows("fire", 1, 6), config("fire", 1)
    for kind, *how in damage:
        if kind == "row":
            exchange(lines[how[0] % len(lines)], how[1], how[2])
        elif kind == "config":
            exchange(options, how[0], how[1])
    write_run(folder, "fire", 1, name="bad", rows_=lines)
    where = folder / "vision" / "bad"
    (where / "config.yaml").write_text(json.dumps(options))  # JSON is YAML
    spectra = {"1": {"w": {"before": [2.0, 1.0], "after": [1.0, 1.0]}}}
    (where / "spectra.json").write_text(json.dumps(spectra))
    for kind, *how in damage:
        if kind == "bytes" and (where / how[0]).exists():
            (where / how[0]).write_bytes(damaged((where / how[0]).read_bytes(), *how[1:]))
        elif kind == "gone":
            (where / how[0]).unlink(missing_ok=True)


def look(root: Path, draw: bool, report: bool = True) -> None:
    """What the programs do with the runs that they accept."""
    runs, left_out = load([str(root)], cache=False)
    assert len(runs) + len(left_out) in (2, 3), "each folder is used or named"
    assert any(run.name == "good" for run in runs) or any("duplicate" in item.reason for item in left_out)
    for item in left_out:
        assert str(item).isprintable()
    found = group_runs(runs)
    if report:
        page = make_report.report_page(runs, left_out, "title")
        assert "<script>alert" not in page
        page.encode()
    if draw:
        style.use()
        palette = style.Palette(run.method for run in runs)
        for setting in found:
            figure = plotting.setting_figure(setting, palette)
            figure.savefig(io.BytesIO(), format="svg")
            plt.close(figure)
            make_figures.slug(setting).encode("ascii")


def try_damage(root: Path, damage: list[tuple[Any, ...]], draw: bool, report: bool = True) -> None:
    shutil.rmtree(root / "runs", ignore_errors=True)
    write_run(root / "runs", "base", 0, name="good", n=6)
    write_run(root / "runs", "fire", 0, name="fine", n=6)
    do(root / "runs", damage)
    look(root / "runs", draw, report)


QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=60, deadline=None, suppress_health_check=QUIET, derandomize=True, database=None)
@given(damage=damages())
@example(damage=[("config", "method.name", 4)])
@example(damage=[("row", 11, "test/accuracy", 13)])
@example(damage=[("row", 11, "step", 23)])
def test_damage_is_named_or_harmless(damage: list[tuple[Any, ...]], tmp_path: Path) -> None:
    try_damage(tmp_path, damage, draw=False)


@settings(max_examples=10, deadline=None, suppress_health_check=QUIET, derandomize=True, database=None)
@given(damage=damages())
def test_what_is_accepted_can_be_drawn(damage: list[tuple[Any, ...]], tmp_path: Path) -> None:
    try_damage(tmp_path, damage, draw=True)


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=QUIET, database=None)
@given(damage=damages(), more=st.integers(0, 49))
def test_hundreds_of_damages(damage: list[tuple[Any, ...]], more: int, tmp_path: Path) -> None:
    try_damage(tmp_path, damage, draw=more == 0, report=more < 5)
