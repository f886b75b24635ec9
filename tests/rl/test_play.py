"""Playing with a trained agent: returns, films, strips."""

import contextlib
import functools
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import harness
from harness.config.errors import ConfigError, TrainingError
from rl import play
from rl.common.film import Film, enlarged, save_strip
from scripts import strips
from tests.programs import ATARI, DQN, SAC, SMALL, Program
from tests.zygote import ROOT

av = pytest.importorskip("av", reason='pip install -e ".[video]"')
AGENTS: dict[str, tuple[Program, str]] = {
    "cartpole": (DQN, "total_steps=160 midpoint=100"),
    "cartpole, fire": (DQN, "total_steps=160 midpoint=100 method=fire"),
    "atari": (ATARI, "total_steps=60 midpoint=40 learning_starts=20 eval.every=60"),
    "mujoco": (SAC, "env_steps=80 random_steps=20 eval_episodes=1"),
    "stream": (SAC, "benchmark=continual_control benchmark.tasks=2 benchmark.steps=40 env_steps=80 random_steps=20"),
}

RATES = {"cartpole": 50, "atari": 30, "mujoco": 20, "stream": 20}  # the environments' own, where they have one


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The finished run of an agent, trained once for all tests, which only read it."""
    root = tmp_path_factory.mktemp("agents")

    @functools.cache
    def run(name: str) -> Path:
        program, options = AGENTS[name]
        return program.run(root / name, *options.split())

    return run


@pytest.mark.parametrize("name", ["cartpole", "atari", "mujoco", "stream"])
def test_it_plays_and_films(
    name: str, agent: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = agent(name)
    capsys.readouterr()
    chosen = play.Options(episodes=2, video=str(tmp_path / "a.mp4"), strip=str(tmp_path / "a.png"), steps=60)
    play.main(str(folder), chosen)
    printed = capsys.readouterr().out
    returns = [float(value) for value in re.findall(r"^episode \d: return (-?[\d.]+)", printed, re.MULTILINE)]
    steps = [int(value) for value in re.findall(r" in (\d+) steps", printed)]
    assert len(returns) == 2
    assert float(re.findall(r"mean of 2: (-?[\d.]+)", printed)[0]) == pytest.approx(np.mean(returns), abs=0.011)
    with av.open(str(tmp_path / "a.mp4")) as film:
        stream = film.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert stream.average_rate == RATES[name]
        pictures = [frame.to_ndarray(format="rgb24") for frame in film.decode(stream)]
    assert len(pictures) == 1 + sum(steps)
    assert np.ptp(pictures[0]) > 50, "the picture shows something"
    assert min(pictures[0].shape[:2]) >= 160
    assert any(not np.array_equal(pictures[0], other) for other in pictures), "something moves"
    strip = np.array(Image.open(tmp_path / "a.png"))
    cut = "cut after" in printed.split("\n")[0]  # an episode that ends has shown the next one's first state
    assert strip.shape[1] == min(8, steps[0] + cut) * enlarged(pictures[0]).shape[1]
    assert not list(tmp_path.glob(".*part*"))
    again = play.Options(episodes=2, steps=60)
    play.main(str(folder), again)
    assert capsys.readouterr().out.splitlines()[:2] == printed.splitlines()[:2], "the same seed plays the same"


@pytest.mark.parametrize(("task", "first_line"), [(0, "episode 1:"), (1, "episode 1:"), (2, "task 2 is new to this")])
def test_it_says_when_it_plays_a_task_that_the_agent_has_not_trained_on(
    task: int, first_line: str, agent: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = agent("stream")
    capsys.readouterr()
    play.main(str(folder), play.Options(task=task, steps=20))
    assert capsys.readouterr().out.startswith(first_line)


def test_a_film_that_breaks_leaves_no_file(tmp_path: Path) -> None:
    def breaking() -> None:
        with Film(tmp_path / "a.mp4", 30) as film:
            film.add(np.zeros((100, 101, 3), np.uint8))
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        breaking()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["at 12:00.mp4", "100%d.mp4", "größe ☃.mp4"])
def test_a_film_may_have_any_name_that_a_file_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """FFmpeg reads 12: as a protocol."""
    monkeypatch.chdir(tmp_path)
    with Film(Path(name), 30) as film:
        film.add(np.zeros((240, 320, 3), np.uint8))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_where_a_film_has_no_room_one_line_names_it_and_nothing_is_left(tmp_path: Path) -> None:
    def film_noise() -> None:
        with limited_files(2000), Film(tmp_path / "a.mp4", 30) as film:
            for i in range(60):
                film.add(np.random.default_rng(i).integers(0, 256, (240, 320, 3), dtype=np.uint8))

    with pytest.raises(TrainingError, match=r"video=.*a\.mp4 cannot be written: File too large"):
        film_noise()
    assert not list(tmp_path.iterdir())


@contextlib.contextmanager
def limited_files(most: int) -> Iterator[None]:
    """No file may have more bytes within this block, as on a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_strip_is_evenly_spaced(tmp_path: Path) -> None:
    pictures = [np.full((240, 4, 3), number, np.uint8) for number in range(22)]
    save_strip(tmp_path / "strip.png", pictures)
    shown = np.array(Image.open(tmp_path / "strip.png"))[0, ::4, 0].tolist()
    assert shown == [0, 3, 6, 9, 12, 15, 18, 21]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"video": "out.avi"}, "must end in .mp4"),
        ({"video": "/proc/nothing/out.mp4"}, "cannot be written"),
        ({"video": "/proc/out.mp4"}, "video=/proc/out.mp4 cannot be written"),
        ({"strip": "out"}, "must end in .png"),
        ({"strip": "/proc/out.png"}, "strip=/proc/out.png cannot be written"),
        ({"task": 1}, "of one environment, not of a stream"),
    ],
)
def test_what_cannot_be_is_one_line(options: dict[str, Any], says: str, agent: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match=says):
        play.main(str(agent("cartpole")), play.Options(**options))


def test_a_film_takes_no_signal_for_itself(agent: Callable[[str], Path], tmp_path: Path) -> None:
    """SDL, which draws CartPole, would take SIGTERM, and the process would go on after `kill`."""
    code = (
        "import re, sys; from pathlib import Path; from rl import play\n"
        "caught = lambda: int(re.search(r'SigCgt:\\s*(\\w+)', Path('/proc/self/status').read_text())[1], 16)\n"
        "play.main(sys.argv[1], play.Options(episodes=1, strip=sys.argv[2]))\n"
        "assert not caught() >> (15 - 1) & 1"
    )
    subprocess.run([sys.executable, "-c", code, agent("cartpole"), tmp_path / "a.png"], cwd=ROOT, check=True)
    assert (tmp_path / "a.png").exists()


def test_without_the_extra_one_line_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(ConfigError, match=r'pip install -e "\.\[video\]"'):
        Film(tmp_path / "a.mp4", 30)


def test_only_agents_play(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only agents play"):
        play.main(str(SMALL.run(tmp_path, "epochs=1")), play.Options())


def test_what_it_plays_is_the_agent_that_was_trained(
    agent: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """With the actions of the run's own network: returns by hand from the loaded network are the same."""
    folder = agent("cartpole")
    capsys.readouterr()
    play.main(str(folder), play.Options(seed=3, episodes=8))
    shown = [float(value) for value in re.findall(r": return (-?[\d.]+)", capsys.readouterr().out)]
    trained = harness.load(folder)
    from rl.dqn.task import make_env

    env = make_env(trained.config, 1, "play/3")
    env.begin()
    ended: list[float] = []
    while len(ended) < 8:
        env.send(trained.model(trained.preprocess(env.observations)).argmax(1))
        ended += env.recv().returns
    assert shown == ended


def test_strips_of_several_agents_stand_below_each_other(agent: Callable[[str], Path], tmp_path: Path) -> None:
    folders = [str(agent("cartpole")), str(agent("cartpole, fire"))]
    out = tmp_path / "both.png"
    strips.main([*folders, f"out={out}"])
    with Image.open(out) as both:
        assert 3 < both.size[0] / both.size[1] < 6  # two strips of eight frames of 600 x 400, and their titles
    with pytest.raises(SystemExit, match="out="):
        strips.main(folders)
