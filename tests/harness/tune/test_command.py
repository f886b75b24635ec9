"""`python -m harness.tune`: as many trials for each method, in all programs; resumable, on seeds of its own."""

import csv
import functools
import json
import math
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from fire_core.methods import Method
from harness.config import groups
from harness.config.build import build
from harness.config.errors import ConfigError, TrainingError
from harness.config.groups import CONF
from harness.tune import command
from harness.tune.command import Request, main, read_request, write_winner
from harness.tune.search import effective, idle_in_runs, score, search_space, tune
from harness.tune.space import trials
from harness.tune.table import Trial, append, best
from harness.tune.table import read_table as read_trials
from tests.programs import compose, wait_for
from tests.zygote import Zygote
from vision.task import Task

TINY = ("benchmark.tasks=2", "benchmark.samples=64", "epochs=1", "model.hidden=8", "seeds=2", "workers=1")
WHERE = ("table=table.csv", "publish=published")
SEARCHED = {
    folder.name: {file.stem: OmegaConf.to_container(OmegaConf.load(file)) for file in folder.glob("*.yaml")}
    for folder in (CONF / "tuned" / "searched").glob("*/")
}


@functools.cache
def parse(*words: str) -> Request:
    return read_request(["program=vision", *words])


def run_search(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *words: str,
    program: str = "vision",
) -> list[str]:
    """Run a search to its end in this process and in this folder; the lines that it printed."""
    monkeypatch.chdir(folder)
    capsys.readouterr()
    assert main([f"program={program}", *words]) == 0
    return capsys.readouterr().out.splitlines()


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "table.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_search_goes_on_where_it_was_stopped_and_a_finished_one_prints_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*TINY, *WHERE, "method=base", "trials=2")
    said = run_search(tmp_path, monkeypatch, capsys, *words)
    first, made = rows(tmp_path), {path: path.stat().st_mtime_ns for path in tmp_path.rglob("DONE")}
    assert [(row["method"], row["trial"]) for row in first] == [("base", "0"), ("base", "1")]
    assert len(made) == 4
    assert first[1]["options"].startswith("lr=")
    (tmp_path / "table.csv").write_text((tmp_path / "table.csv").read_text().rsplit("\n", 2)[0] + "\n")  # as if killed
    shutil.rmtree(tmp_path / "published")
    again = run_search(tmp_path, monkeypatch, capsys, *words)
    assert again == [said[0], *said[2:]]
    lr = 3e-3 if float(first[0]["score"]) >= float(first[1]["score"]) else first[1]["options"].removeprefix("lr=")
    assert rows(tmp_path) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("DONE")} == made, "a run was trained again"
    assert OmegaConf.load(tmp_path / "published/random_labels_digits/base.yaml") == {"lr": float(lr)}


def test_the_best_values_are_those_that_were_scored_fixed_ones_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = ("method.iterations=3", "method.layout={linear:project}")
    run_search(tmp_path, monkeypatch, capsys, *TINY, *WHERE, "method=fire", "trials=1", "seeds=1", *fixed)
    monkeypatch.setattr(groups, "CONF", Path(shutil.copytree(CONF, tmp_path / "conf")))
    shutil.copytree(tmp_path / "published", tmp_path / "conf/tuned/searched", dirs_exist_ok=True)
    (run,) = tmp_path.glob("runs/tune/vision/*/config.yaml")
    scored = OmegaConf.load(run).method
    assert (scored.iterations, scored.layout) == (3, {"linear": "project"})
    # The seed makes it another configuration than that of other tests: each is composed once in a process.
    assert compose("vision", "method=fire", "tuned=searched", "seed=3").method == scored


def test_a_trial_that_diverges_is_a_row_and_never_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = run_search(tmp_path, monkeypatch, capsys, *TINY, *WHERE, "method=base", "trials=1", "seeds=1", "lr=1e30")
    assert [row["score"] for row in rows(tmp_path)] == ["nan"]
    assert said[-1].endswith("best none: all diverged")
    assert not (tmp_path / "published").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("trials=0",), "trials=0 must be a whole number of at least 1"),
        (("seeds=x",), "seeds=x must be a whole number"),
        (("--methods=fire",), "options are written option=value"),
        (("method=fire,fire",), "names fire twice"),
        (("program=visoin",), r"program=visoin is unknown \(did you mean vision\?\)"),
        (("trails=3",), r"option trails is unknown \(did you mean trials\?\)"),
        (("model.hiden=3",), r"option model.hiden is unknown \(did you mean hidden\?\)"),
        (("method=fier",), r"method=fier is unknown \(did you mean fire\?\)"),
        (("method=fire+fier",), r"method=fier is unknown \(did you mean fire\?\)"),
        (("method.iterations=3",), r"option method.iterations is unknown; .* \(method=base\)"),
        (("metric=train/acuracy",), r"no number at the end of these tasks \(did you mean train/accuracy\?\)"),
        (("lr=1,2",), "lr=1,2 has several values"),
        (("optimizer.lr=0.1",), "optimizer.lr=0.1: it would replace lr=, which a search varies: give lr="),
        (("hydra/launcher=cores",), "a search starts its runs itself"),
        (("-m",), "-m: options are written option=value"),
        (("publish=",), "publish= is empty"),
        (("winners=here",), "winners= is publish= now"),
        (("table=/",), "table=/ is a folder"),
        (("program=sac", "publish=here"), r"publish=here is for vision: sac has no tuned=searched"),
        (("tuned=searched",), "tuned=searched is what a search gives"),
        (("tuned=none", "publish=here"), "publish= is for tuned=auto"),
        (("benchmark=warm_start", "holdout=0"), "holdout=0 would choose on the images that results report"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse("method=base", *options)


def test_an_optimizer_with_a_rate_of_its_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All trials would have that rate."""
    monkeypatch.setattr(groups, "CONF", Path(shutil.copytree(CONF, tmp_path / "conf")))
    (tmp_path / "conf" / "optimizer" / "sgd.yaml").write_text("_target_: torch.optim.SGD\nname: sgd\nlr: 0.01\n")
    with pytest.raises(ConfigError, match=r"optimizer.lr=0.01 does not follow lr=, which a search varies"):
        parse("method=base", "optimizer=sgd")


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("table=/dev/null/t.csv", "cannot write to /dev/null"),
        ("publish=/dev/null/here", "cannot write to /dev/null"),
        ("table=here", "table=here needs an ending, such as .csv"),
        ("table=notes.csv", "cannot write to notes: notes is no folder that can be written to (see table=)"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_first_run(
    option: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The best values go to a folder beside the table, which has its name without the ending."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").write_text("a file of the user's")
    assert main(["program=vision", "method=base", option]) == 2
    assert capsys.readouterr().err.startswith(f"error: {says}")
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_the_rate_is_searched_for_every_method_and_parts_of_a_chain_by_their_names() -> None:
    search = parse("method=base").search
    assert [one.option for one in search_space("base", search.compose("base"))] == ["lr"]
    space = search_space("fire+l2init", search.compose("fire+l2init"))
    assert {"lr", "method.parts.fire.blend", "method.parts.l2init.coef"} <= {one.option for one in space}
    assert space[0].values == pytest.approx((3e-4, 9e-3))


def test_a_trial_leaves_out_what_has_no_effect_beside_its_other_choices() -> None:
    search = parse("method=base").search
    steps = {"iterations": 9, "norm_init": "spectral"}
    for method, prefix in (("fire", "method."), ("fire+l2init", "method.parts.fire.")):
        config = search.compose(method)
        for blend, left in ((1, steps), (0.5, {})):
            options = {f"{prefix}{option}": value for option, value in {**steps, "blend": blend}.items()}
            expected = {"lr": 0.1, f"{prefix}blend": blend} | {f"{prefix}{name}": left[name] for name in left}
            assert effective(config, {"lr": 0.1, **options}) == expected
        assert len(trials(search_space(method, config), 17)) == 17
    assert effective(search.compose("base"), {"lr": 0.1}) == {"lr": 0.1}


@pytest.mark.parametrize(
    ("method", "words", "varies_lr"),
    [
        ("upgd", ("program=vision", "benchmark=permuted"), False),
        ("fire+upgd", ("program=vision", "benchmark=permuted"), False),
        ("muon", ("program=vision", "benchmark=permuted"), True),  # Adam takes it for the weights that are no matrices
        ("upgd", ("program=vision", "benchmark=warm_start", "benchmark.methods_from_phase=1"), True),
        ("upgd", ("program=language",), False),
        ("upgd", ("program=dqn",), True),  # chooses the optimizer after the first boundary alone
        ("upgd", ("program=sac",), True),  # the temperature's
    ],
)
def test_a_rate_that_a_method_s_optimizer_does_not_read_is_not_searched(
    method: str, words: tuple[str, ...], varies_lr: bool
) -> None:
    search = read_request([*words, f"method={method}"]).search
    assert ("lr" not in idle_in_runs(search.program, search.compose(method))) == varies_lr


def test_the_command_of_a_winner_with_an_optimizer_of_its_own_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], zygote: Zygote
) -> None:
    words = ("benchmark=permuted", *TINY[:4], "seeds=1", "workers=1", "table=table.csv")
    lines = run_search(tmp_path, monkeypatch, capsys, *words, "method=upgd", "trials=2")
    (command,) = [line.strip() for line in lines if line.startswith("  python -m vision.train")]
    assert all("method.lr=" in row["options"] and " lr=" not in f" {row['options']}" for row in rows(tmp_path)[1:])
    answer = zygote.run(tmp_path, "vision.train", *command.split()[3:], "tracker=none")
    assert answer.code == 0, answer.err


def test_nothing_is_chosen_on_test_images() -> None:
    """Where a stream tests on images, they are a tenth of the training images, none of which is trained on."""
    for stream, share in (("warm_start", 0.1), ("random_labels", 0.0)):
        config = parse("method=fire", f"benchmark={stream}").search.compose("fire")
        assert config.holdout == share
    whole, task = (Task.from_config(compose("vision", "benchmark=warm_start", f"holdout={h}")) for h in (0, 0.1))
    classes = [torch.bincount(one.data.train_labels) for one in (whole, task)]
    assert torch.equal(torch.bincount(task.data.test_labels), (0.1 * classes[0]).round().long())
    assert torch.equal(torch.bincount(task.data.test_labels) + classes[1], classes[0])
    trained, tested = ([i.numpy().tobytes() for i in x] for x in (task.data.train_images, task.data.test_images))
    assert sorted(trained + tested) == sorted(image.numpy().tobytes() for image in whole.data.train_images)
    assert task.identity()["holdout"] == 0.1
    assert "holdout" not in whole.identity()
    with pytest.raises(ConfigError, match=r"^holdout=0.1 has no effect: benchmark=random_labels tests on no images"):
        Task.from_config(compose("vision", "holdout=0.1"))
    with pytest.raises(ConfigError, match=r"^holdout=0.1: benchmark.samples=1280 is more than the 115\d training"):
        parse("method=base", "benchmark=permuted", "benchmark.samples=1280")
    single = replace(whole.data, train_labels=torch.arange(len(whole.data.train_labels)))
    with pytest.raises(ConfigError, match="the class 0 has one training image"):
        single.held_out(0.1)


def test_a_table_of_other_options_or_seeds_is_not_gone_on_with(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    append(table, Trial("ab", "base", 0, "lr=0.1", (0.5, 0.25)), (7, 8), "vision")
    assert read_trials(table, "ab", "base", (7, 8))[0] == Trial("ab", "base", 0, "lr=0.1", (0.5, 0.25))
    assert read_trials(table, "ab", "fire", (7, 8)) == {}
    with pytest.raises(ConfigError, match="of other options"):
        read_trials(table, "cd", "base", (7, 8))
    with pytest.raises(ConfigError, match="columns of these seeds"):
        read_trials(table, "ab", "base", (7, 9))


def test_the_best_is_the_earliest_of_equal_scores_and_less_may_be_better() -> None:
    found = [Trial("", "base", i, "", (score,)) for i, score in enumerate((0.5, 0.9, math.nan, 0.9, 0.1))]
    assert best(found, more=True) is found[1]
    assert best(found, more=False) is found[4]
    assert best(found[2:3], more=True) is None


def test_each_winner_is_a_file_that_hydra_takes(tmp_path: Path) -> None:
    write_winner(tmp_path / "a_b/fire.yaml", OmegaConf.from_dotlist(["lr=1e-05", "method.blend=0.5"]))
    write_winner(tmp_path / "a_b/base.yaml", OmegaConf.create({"lr": 0.1}), "python -m vision.train method=base lr=0.1")
    write_winner(tmp_path / "a_a/fire+muon.yaml", OmegaConf.from_dotlist(["lr=0.1", "method.parts.muon.lr=0.5"]))
    assert {str(file.relative_to(tmp_path)): file.read_text() for file in tmp_path.rglob("*.yaml")} == {
        "a_b/fire.yaml": "# @package _global_\nlr: 1.0e-05\nmethod: {blend: 0.5}\n",
        "a_b/base.yaml": "# @package _global_\n# python -m vision.train method=base lr=0.1\nlr: 0.1\n",
        "a_a/fire+muon.yaml": "# @package _global_\nlr: 0.1\nmethod: {parts: {muon: {lr: 0.5}}}\n",
    }


def test_every_entry_of_the_committed_table_builds_and_is_taken_where_it_is_asked_for() -> None:
    parts = compose("vision", "method=chain").method.parts
    for setting, rows_of_setting in SEARCHED.items():
        for method, values in rows_of_setting.items():
            own = values.get("method", {})
            for name in method.split("+"):
                node = OmegaConf.merge(parts[name], own.get("parts", {}).get(name, {}) if "+" in method else own)
                assert isinstance(build("method", node), Method), (setting, method)
    config, fire = compose("vision", "method=fire", "tuned=searched"), SEARCHED["random_labels_digits"]["fire"]
    assert config.lr == fire["lr"]
    assert {key: config.method[key] for key in fire["method"]} == fire["method"]
    assert compose("vision", "method=fire", "tuned=searched", "lr=1").lr == 1
    chain = compose("vision", "method=chain", "method.of=fire+weight_decay", "tuned=searched")
    assert chain.method.parts.weight_decay.coef == 0.0014
    assert compose("vision", "method=fire").lr == 3e-3, "nothing is taken that is not asked for"


def test_a_winner_has_the_values_with_which_its_trial_ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    where = ("method=cbp", "benchmark=warm_start", "dataset=digits")
    assert compose("vision", *where).method.maturity == 100
    monkeypatch.setattr(groups, "CONF", Path(shutil.copytree(CONF, tmp_path / "conf")))
    write_winner(tmp_path / "conf/tuned/searched/warm_start_digits/cbp.yaml", OmegaConf.create({"lr": 0.5}))
    searched = compose("vision", *where, "tuned=searched")
    assert (searched.method.maturity, searched.lr) == (100, 0.5)


def test_options_of_the_method_are_part_of_a_search() -> None:
    plain, fixed = (parse("method=fire", *more).search for more in ((), ("method.iterations=3",)))
    assert fixed.compose("fire").method.iterations == 3
    assert plain.setting("fire") != fixed.setting("fire")
    assert fixed.fixed_options("fire") == ["method.iterations=3"]


@pytest.mark.parametrize(
    ("method", "spellings", "other"),
    [
        ("snp", ("method.coef=1", "method.coef=1.0", "method.coef=1e0", "++method.coef=1"), "method.coef=0.9"),
        ("fire", ("method.layout={linear:keep}", "method.layout={linear: keep}"), "method.layout={linear:project}"),
    ],
)
def test_two_spellings_of_a_fixed_value_are_one_search(method: str, spellings: tuple[str, ...], other: str) -> None:
    searches = {word: parse(f"method={method}", word).search.setting(method) for word in (*spellings, other)}
    assert len({searches[word] for word in spellings}) == 1
    assert searches[other] != searches[spellings[0]]


def test_an_option_that_is_given_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("method=fire", "method.blend=0.75", "trials=3", "seeds=1", "table=table.csv")
    run_search(tmp_path, monkeypatch, capsys, *TINY, *options)
    assert len(rows(tmp_path)) == 3
    assert not any("blend" in row["options"] for row in rows(tmp_path))
    blends = [OmegaConf.load(file).method.blend for file in tmp_path.glob("runs/tune/vision/*/config.yaml")]
    assert blends == [0.75] * 3


def test_nothing_is_written_outside_of_the_search_unless_it_is_asked_for(tmp_path: Path, zygote: Zygote) -> None:
    before = {file: file.stat().st_mtime_ns for file in (CONF / "tuned").rglob("*.yaml")}
    answer = zygote.run(tmp_path, "vision.tune", *TINY, "method=base", "trials=2", "seeds=1", "scale=smoke")
    assert answer.code == 0, answer.err
    assert [path.name for path in tmp_path.iterdir() if path.name != ".hydra"] == ["runs"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["tune"]
    assert {file: file.stat().st_mtime_ns for file in (CONF / "tuned").rglob("*.yaml")} == before
    (table,) = (tmp_path / "runs/tune").glob("vision-random_labels-digits-*.csv")
    winner = (table.with_suffix("") / "base.yaml").read_text()
    command = winner.splitlines()[1].removeprefix("# ")
    assert command in answer.out, "the command that runs the winner is said"
    ran = zygote.run(tmp_path, "vision.train", *command.split()[3:], "--cfg", "job")
    assert OmegaConf.create(ran.out).lr == OmegaConf.load(table.with_suffix("") / "base.yaml").lr


SMALL = {
    "language": ("scale=smoke", "benchmark=permuted_text", "dataset=pydoc", "benchmark.tasks=2"),
    "dqn": ("experiment=continual_cartpole", "scale=smoke", "benchmark.tasks=2"),
}


@pytest.mark.parametrize("program", SMALL)
def test_a_search_in_each_program_prefers_what_should_be_large_or_small(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (*SMALL[program], "method=base", "trials=2", "seeds=1", "workers=1", "table=table.csv")
    said = run_search(tmp_path, monkeypatch, capsys, *options, program=program)
    trials = rows(tmp_path)
    scores = [float(trial["score"]) for trial in trials]
    right = (min if program == "language" else max)(scores)
    chosen = trials[scores.index(right)]["options"] or "(defaults)"
    best, words = re.fullmatch(r".* best \S+ (\S+)  (.*)", said[-2]).groups()  # type: ignore[union-attr]
    assert (float(best), words) == (pytest.approx(right, abs=1e-4), chosen), "scores of the table have six digits"
    assert len(set(scores)) == 2, "else nothing is preferred"


def test_a_metric_that_no_row_has_is_refused_and_never_taken_for_a_run_that_diverged(tmp_path: Path) -> None:
    (tmp_path / "DONE").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "phase": 0, "train/loss": 0.5}\n')
    assert score(tmp_path, "train/loss") == 0.5
    with pytest.raises(ConfigError, match=r"metric=train/lss is in no row of .* \(did you mean train/loss\?\)"):
        score(tmp_path, "train/lss")


def test_a_trial_is_scored_by_the_last_half_of_all_its_tasks(tmp_path: Path) -> None:
    """Also if tasks lack the metric, as a return where no episode ended. A row within a task does not stand for it."""
    returns: list[float | None] = [None, None, 1.0, 2.0, None, 8.0]
    (tmp_path / "DONE").write_text("{}")

    def write_rows(more: dict[int, float]) -> None:
        text = ""
        for phase, value in enumerate(returns):
            text += (
                json.dumps(
                    {"phase": phase, "online/return": 7.0}
                    | ({} if phase not in more else {"train/return": more[phase]})
                )
                + "\n"
            )
            text += (
                json.dumps({"phase": phase, "online/return": 7.0} | ({} if value is None else {"task/return": value}))
                + "\n"
            )
        (tmp_path / "metrics.jsonl").write_text(text)

    write_rows({})
    assert score(tmp_path, "task/return") == 5.0, "the mean of tasks 3 and 5"
    assert score(tmp_path, "task/return", first_task=4) == 8.0
    write_rows({4: 3.0})
    with pytest.raises(ConfigError, match=r"metric=train/return is in no row that ends one of the last 3 tasks"):
        score(tmp_path, "train/return")


def test_a_search_whose_scores_leave_out_a_phase_has_a_table_of_its_own() -> None:
    """Older tables have scores that count the mixture in front of the tasks as one of them."""
    options = ("program=language", "method=base", "benchmark=domains", "dataset=domains", "benchmark.tasks=4")
    plain, mixed = (read_request([*options, f"benchmark.pretrain={steps}"]).search for steps in (0, 20))
    assert (plain.first_task, mixed.first_task) == (0, 1)
    assert mixed.setting("base") != replace(mixed, first_task=0).setting("base")
    assert plain.setting("base") != mixed.setting("base")


@pytest.mark.parametrize("boundary", ["dqn", "dqn_paper"])
def test_a_search_of_agents_is_one_for_all_methods_in_any_order(boundary: str) -> None:
    """A task settles its method's `boundary` options in its configuration, which the next method must not get."""
    options = ("experiment=continual_cartpole", f"boundary={boundary}")
    orders = ("base,fire,pi", "pi,fire,base", "fire")
    requests = [read_request(["program=dqn", *options, f"method={methods}"]) for methods in orders]
    assert len({request.search.table for request in requests}) == 1
    assert len({request.search.setting(method) for request in requests for method in request.methods}) == 1
    other = read_request(["program=dqn", *options, "method=base", "boundary.replay=new"])
    assert other.search.table != requests[0].search.table


def test_after_a_kill_a_search_ends_with_the_same_table_and_winner(
    tmp_path: Path, zygote: Zygote, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is killed in the second trial: one is in the table, one has a run that has ended and one that has begun."""
    words = (*TINY, "epochs=20", "method=fire", "trials=2", "table=t.csv", "checkpoint.every_seconds=0")
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    undisturbed.mkdir()
    run_search(undisturbed, monkeypatch, capsys, *words)
    child = zygote.start(killed, "harness.tune", "program=vision", *words)
    wait_for(lambda: len([*killed.rglob("DONE")]) == 3)
    os.kill(child, signal.SIGKILL)
    zygote.wait(child)
    assert len((killed / "t.csv").read_text().splitlines()) == 2, "the names of the columns, and a trial"
    run_search(killed, monkeypatch, capsys, *words)
    assert (killed / "t.csv").read_text() == (undisturbed / "t.csv").read_text()
    winners = [(folder / "t/fire.yaml").read_text() for folder in (undisturbed, killed)]
    assert winners[0] == winners[1]


def test_a_table_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    append(table, Trial("ab", "base", 0, "lr=0.1", (0.5, 0.25)), (7, 8), "vision")
    table.write_text(table.read_text()[:-6])
    with pytest.raises(ConfigError, match="is damaged, or no table of a search"):
        read_trials(table, "ab", "base", (7, 8))
    table.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is damaged, or no table of a search"):
        read_trials(table, "ab", "base", (7, 8))


def test_a_table_without_its_last_line_s_end_is_gone_on_with(tmp_path: Path) -> None:
    """Some editors leave it out."""
    table = tmp_path / "t.csv"
    append(table, Trial("ab", "base", 0, "lr=0.1", (0.5, 0.25)), (7, 8), "vision")
    table.write_text(table.read_text().rstrip("\n"))
    append(table, Trial("ab", "base", 1, "lr=0.2", (0.5, 0.5)), (7, 8), "vision")
    assert [*read_trials(table, "ab", "base", (7, 8))] == [0, 1]


def test_a_signal_before_the_first_run_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "read_request", lambda argv: signal.raise_signal(signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["program=vision"]) == 75
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == "stopped: the same command goes on\n"


def test_a_table_with_a_changed_digit_or_a_row_twice_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    append(table, Trial("ab", "base", 0, "lr=0.1", (0.5, 0.25)), (7, 8), "vision")
    append(table, Trial("ab", "base", 1, "lr=0.2", (0.5, math.nan)), (7, 8), "vision")
    text = table.read_text()
    for damaged in (
        text.replace("0.25", "0.95"),
        text.replace("0.37500", "0.97500"),
        text.replace("base,1,", "base,0,"),
    ):
        assert damaged != text
        table.write_text(damaged)
        with pytest.raises(ConfigError, match="is damaged, or no table of a search"):
            read_trials(table, "ab", "base", (7, 8))
    table.write_text(text)
    assert math.isnan(read_trials(table, "ab", "base", (7, 8))[1].score)


def test_a_table_that_cannot_be_read_now_is_not_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "t.csv"
    append(table, Trial("ab", "base", 0, "lr=0.1", (0.5, 0.25)), (7, 8), "vision")
    table.rename(tmp_path / "elsewhere.csv")
    table.symlink_to(tmp_path / "not mounted.csv")
    with pytest.raises(TrainingError, match=r"cannot read .*t\.csv .No such file"):
        read_trials(table, "ab", "base", (7, 8))
    table.unlink()
    (tmp_path / "DONE").symlink_to(tmp_path / "not mounted")
    with pytest.raises(TrainingError, match="cannot read"):
        score(tmp_path, "test/accuracy")


def test_scores_of_a_table_are_whole_numbers_of_their_runs(tmp_path: Path) -> None:
    scores = (1 / 3, 2 / 3)
    append(tmp_path / "t.csv", Trial("ab", "base", 0, "", scores), (7, 8), "vision")
    assert read_trials(tmp_path / "t.csv", "ab", "base", (7, 8))[0].scores == scores


def test_an_experiment_of_one_s_own_has_the_last_word(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nmethod: {iterations: 3}\n")
    options = ("experiment=mine", "method=fire", "tuned=searched", "lr=0.25")
    config = groups.compose_with_hydra("vision", options, tmp_path)
    assert (config.method.iterations, config.lr) == (3, 0.25)
    assert config.method.blend == SEARCHED["random_labels_digits"]["fire"]["method"]["blend"]


def test_a_ratio_is_the_share_that_it_says() -> None:
    with pytest.raises(ConfigError, match="ratio=60 must divide 100"):
        build("benchmark", compose("vision", "benchmark=warm_start", "benchmark.ratio=60").benchmark)


def test_trials_with_equal_options_are_one_run_and_each_has_its_score(tmp_path: Path) -> None:
    """All that UPGD reads is fixed, and it has a rate of its own."""
    few = (
        "benchmark.tasks=2",
        "benchmark.samples=64",
        "epochs=1",
        "model.hidden=4",
        "cache=off",
        "trials=2",
        "seeds=1",
    )
    fixed = ("method=upgd", "method.lr=0.01", "method.weight_decay=1e-4", "method.sigma=1e-3")
    request = parse(*fixed, *few, f"table={tmp_path / 'table.csv'}", f"paths.runs={tmp_path / 'runs'}")
    (found,) = tune(request.search, request.methods, 1).values()
    assert [trial.number for trial in found] == [0, 1]
    assert found[0].scores == found[1].scores != ()
    assert len(list((tmp_path / "runs" / "vision").iterdir())) == 1
    append(request.search.table, found[0], request.search.seeds, "vision")
    assert len(request.search.table.read_text().splitlines()) == 3, "a trial that is there is not added again"
