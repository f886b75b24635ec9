"""The words of `language.sample` and `rl.play`."""

import pytest

from harness.config.errors import ConfigError
from harness.trained.command import read_words
from language.sample import Options as SampleOptions
from rl.play import Options as PlayOptions


def test_a_folder_s_name_may_have_an_equals_sign() -> None:
    folder, options = read_words(["runs/lr=0.1/x", "prompt=a/b=c", "tokens=3"], SampleOptions)
    assert folder == "runs/lr=0.1/x"
    assert options == SampleOptions(prompt="a/b=c", tokens=3)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["", "tokens=3"], "the run folder must be a path, got '': is a shell variable not set?"),
        (["$RUN/x"], "the run folder=$RUN/x: the shell has not replaced $RUN"),
        (["x", "--tokens=3"], "--tokens=3: options are written option=value; accepted: prompt, tokens, "),
        (["x", "--tokens", "3"], "--tokens: options are written option=value"),
        (["x", "tokens="], "tokens must be a number, got ''"),
        (["x", "y"], "expected one run folder and options such as prompt=..., got x y"),
    ],
)
def test_words_that_are_refused(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_words(words, SampleOptions)
    assert str(caught.value).startswith(says)


def test_a_film_s_path_is_checked() -> None:
    with pytest.raises(ConfigError, match="video must be a path, got ''"):
        read_words(["x", "video="], PlayOptions)
