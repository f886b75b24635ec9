"""The program, end to end, on folders of every kind."""

from pathlib import Path

import pytest

from analysis import figures, make_figures, style
from analysis.runs import settings
from analysis.sources import load
from tests.analysis.synthetic import write_run, write_sweep
from tests.zygote import Zygote

BASE = "warm_start-digits-resnet_small"


def test_draws_each_format_and_prints_what_it_found(tmp_path, capsys):
    write_sweep(tmp_path / "runs")
    assert make_figures.main(["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "figures")]) == 0
    out = capsys.readouterr().out
    heads = {"png": b"\x89PNG", "pdf": b"%PDF"}
    for suffix, head in heads.items():
        assert (tmp_path / "figures" / f"{BASE}.{suffix}").read_bytes().startswith(head)
    assert f"wrote {tmp_path / 'figures' / BASE}.pdf" in out
    # The generator ends fire at .870, .871, .872 and base at .800, .801, .802; t(2, .975) = 4.3027.
    fire = next(line for line in out.splitlines() if line.startswith("FIRE"))
    assert "0.8710 [0.8685, 0.8735]" in fire
    assert fire.endswith("+0.0700"), "its n is the row's"


def test_the_terminal_shows_the_differences_to_base_and_the_file_those_to_fire_too(tmp_path, capsys):
    for method in ("base", "fire"):
        write_run(tmp_path / "runs", method, hyper={"norm_init": "spectral"} if method == "fire" else {})
    assert make_figures.main(["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "vs Base" in printed
    assert "vs FIRE" not in printed
    (table,) = (tmp_path / "out/tables").glob("warm_start*.md")
    assert "vs FIRE (norm_init=spectral)" in table.read_text()


def test_a_missing_difference_is_explained_in_the_table_that_lacks_it_and_in_no_other(tmp_path, capsys):
    for solver in ("newton_schulz", "exact"):
        write_run(tmp_path / "runs", "fire", name=f"fire-{solver}", hyper={"solver": solver})
    write_run(tmp_path / "runs", "base")
    assert make_figures.main(["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    note = "There are no differences to method=fire, of which there are several variants."
    assert capsys.readouterr().out.count(note) == 1
    written = {file.stem: note in file.read_text() for file in (tmp_path / "out/tables").iterdir()}
    assert written == {BASE: True, "convergence": False}


@pytest.mark.parametrize("runs", ["absent", "empty"])
def test_no_runs_is_one_line_and_an_error(tmp_path, capsys, runs):
    (tmp_path / "empty").mkdir()
    assert make_figures.main(["--runs", str(tmp_path / runs), "--out", str(tmp_path / "figures")]) != 0
    captured = capsys.readouterr()
    assert len((captured.out + captured.err).splitlines()) == 1
    assert not (tmp_path / "figures").exists()


@pytest.mark.parametrize(
    ("program", "options", "says"),
    [
        ("make_figures", "--out /dev/null/x", "make_figures: cannot write to --out /dev/null/x: Not a directory"),
        ("make_figures", "--export /dev/null/x.csv", "error: cannot read or write /dev/null"),
        ("make_figures", "--export results", "make_figures.py: error: argument --export: results must end in .csv"),
        (
            "make_figures",
            "--out $HOME/figures",
            "make_figures.py: error: argument --out: $HOME/figures: the shell has ",
        ),
        ("make_report", "--out /dev/null/x.html", "error: cannot read or write /dev/null"),
        ("make_report", "--out /proc/x.html", "error: cannot read or write /proc/x.html"),
    ],
)
def test_what_cannot_be_written_is_one_line(program: str, options: str, says: str, tmp_path: Path, zygote: Zygote):
    write_run(tmp_path / "runs", "fire", 0)
    answer = zygote.run(tmp_path, f"analysis.{program}", *options.split())
    assert answer.code in (1, 2)
    assert answer.err.splitlines()[-1].startswith(says)
    assert "Traceback" not in answer.err


DAMAGED = {  # name of a folder: what is written over one of its files, and a word of the reason
    "torn": ("metrics.jsonl", '{"step": 1, "test/accuracy": 0.5}\n{"step": 2, "te', "line 2"),
    "rowless": ("metrics.jsonl", "", "empty"),
    "unordered": ("metrics.jsonl", '{"step": 2, "test/accuracy": 1}\n{"step": 1, "test/accuracy": 1}\n', "step"),
    "yamlless": ("config.yaml", "a: [", "config.yaml"),
    "methodless": ("config.yaml", "seed: 1\n", "not a run of this project"),
    "nobody": ("identity.json", '{"run": "x"}', "identity.json"),
    "listed": ("DONE", "[]", "DONE"),
}


def spoil(root: Path) -> dict[str, str]:
    """Folders that must not be used, and a word of the reason for each."""
    write_run(root, "fire", 10, done=False, name="unfinished")
    write_run(root, "fire", 1, name="zz_again")
    (write_run(root, "fire", 13, name="configless") / "config.yaml").unlink()
    (root / "vision" / "notes").mkdir()  # no run, and not named
    for seed, (name, (file, text, _)) in enumerate(DAMAGED.items(), 20):
        (write_run(root, "fire", seed, name=name) / file).write_text(text)
    words = {"unfinished": "unfinished", "zz_again": "duplicate", "configless": "config.yaml"}
    return words | {name: word for name, (_, _, word) in DAMAGED.items()}


def test_bad_folders_are_named_once_and_left_out(tmp_path, capsys):
    runs, out = tmp_path / "runs", tmp_path / "figures"
    write_sweep(runs)
    make_figures.main(["--runs", str(runs), "--out", str(out)])
    clean = capsys.readouterr().out
    reasons = spoil(runs)
    assert make_figures.main(["--runs", str(runs), "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    named = [line for line in lines if line.startswith("left out")]
    assert len(named) == len(reasons)
    for name, word in reasons.items():
        (line,) = [line for line in named if Path(line.split(":")[0]).name == name]
        assert word in line.split(":", 1)[1]
    assert [line for line in lines if not line.startswith("left out")] == clean.splitlines()


def test_settings_are_never_mixed_nor_written_over_each_other(tmp_path, capsys):
    for lr in (0.1, 0.2):
        write_run(tmp_path / "runs", "fire", 0, lr=lr, device="cuda", name=f"a{lr}")
        write_run(tmp_path / "runs", "fire", 1, lr=lr, device="cpu", name=f"b{lr}")  # same setting
    write_run(tmp_path / "runs", "fire", 0, lr=0.1, **{f"long_option_{i}": i for i in range(20)}, name="c")
    write_run(tmp_path / "runs", "fire", 0, lr=0.2, **{f"long_option_{i}": i for i in range(20)}, name="d")
    assert make_figures.main(["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "f")]) == 0
    assert len(list((tmp_path / "f").glob("*.png"))) == 4
    assert sorted(line.split()[1] for line in capsys.readouterr().out.splitlines() if line[:4] == "FIRE") == list(
        "1122"
    )


ALIKE = (
    "größe",
    "gräße",
    "Hopper",
    "hopper",
    "hopper2",
    "a+b",
    "a-b",
    "环境一",
    "环境二",
    "minatar_asterix",
    "rl",
    "_mine",
)


def write_agent(root: Path, name: str) -> None:
    """A run in an environment of this name, which a user may choose."""
    env = {"name": name, "task": name}
    write_run(
        root, "base", metric="eval/return", name=f"{name}-0",
        env=env, benchmark=None, dataset=None, model=None, program="dqn",
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
def test_environments_with_names_that_are_alike_have_files_and_panels_of_their_own(tmp_path: Path):
    """The names are in other scripts, differ in case or in a sign, or contain one another."""
    for name in ALIKE:
        write_agent(tmp_path, name)
    found = settings(load([str(tmp_path)])[0])
    files = [name.casefold() for name in (*make_figures.file_names(found), *make_figures.OTHER_FILES)]
    assert len(set(files)) == len(files) == len(ALIKE) + len(make_figures.OTHER_FILES), "no file is written twice"
    (atari,) = [figures.with_others(grid, found) for grid in figures.GRIDS if grid.name == "figure4a"]
    panels = {panel.what: panel.choose(found) for row in atari.rows for panel in row}
    assert {what: setting.dataset for what, setting in panels.items() if setting} == {name: name for name in ALIKE}
    style.use()  # titles are then at the left, whatever other tests have set
    figure = figures.grid_figure(atari, found, style.Palette(["base"]), "page")
    assert len({axes.get_title(loc="left") for axes in figure.axes}) == len(figure.axes) == len(ALIKE)
    assert {axes.get_subplotspec().colspan.start for axes in figure.axes} == set(range(figures.ACROSS))


def test_settings_that_differ_in_their_metric_alone_are_told_apart(tmp_path: Path, capsys):
    """As where no episode of a seed's evaluations has ended, so that its rows lack that return."""
    for seed, metric in enumerate(("eval/return", "test/accuracy")):
        write_run(tmp_path / "runs", "base", seed, metric=metric)
    assert make_figures.main(["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "f")]) == 0
    assert len(list((tmp_path / "f").glob("warm_start*.png"))) == 2


def test_runs_that_were_moved_behind_a_link_count_once_and_a_link_to_nothing_is_named(tmp_path: Path, capsys):
    for seed in (0, 1):
        write_run(tmp_path / "disk", "fire", seed, name=f"moved-{seed}")
    write_run(tmp_path / "runs", "fire", 2)
    here = tmp_path / "runs" / "vision"
    (here / "moved-0").symlink_to(tmp_path / "disk" / "vision" / "moved-0")
    (tmp_path / "runs" / "more").symlink_to(tmp_path / "disk" / "vision")
    (here / "up").symlink_to("..")
    (here / "system").symlink_to("/")
    (here / "unmounted").symlink_to("/nowhere/run")
    assert make_figures.main(["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "f")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("FIRE")] == ["3"]
    assert [line for line in lines if line.startswith("left out")] == [
        f"left out {here / 'unmounted'}: a link that leads nowhere: is a disk not mounted?"
    ]


def test_a_folder_that_cannot_be_read_stops_no_other(tmp_path: Path, capsys, monkeypatch):
    write_run(tmp_path / "runs", "fire", 0)
    (tmp_path / "runs" / "of_others").mkdir()
    iterdir = Path.iterdir

    def refused(folder: Path):
        if folder.name == "of_others":
            raise PermissionError(13, "Permission denied", str(folder))
        return iterdir(folder)

    monkeypatch.setattr(Path, "iterdir", refused)
    assert make_figures.main(["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "f")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"left out {tmp_path / 'runs' / 'of_others'}: unreadable: Permission denied" in lines
    assert [line.split()[1] for line in lines if line.startswith("FIRE")] == ["1"]
