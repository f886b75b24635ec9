"""Text from a trained language model."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import harness
from harness.config.errors import ConfigError
from harness.trained.command import read_words
from language.sample import Options, generate, sample
from language.tokenizers import get_tokenizer
from language.trained import text_of, tokens_of
from tests.programs import ALIKE, LANGUAGE, VISION


class Next(nn.Module):
    """A model that is nearly sure that the next token is the last one and one more."""

    block_size = 4

    def forward(self, idx: Tensor) -> tuple[Tensor, None]:
        assert idx.shape[1] <= self.block_size
        logits = torch.full((1, 1, 10), -2.0)
        logits[0, 0, (idx[0, -1] + 1) % 10] = 2.0
        return logits, None


def test_tokens_are_drawn_from_the_model_s_distribution() -> None:
    prompt = torch.tensor([[0]])
    generator = torch.Generator().manual_seed(0)
    greedy = generate(Next(), prompt, 12, 0.0, None, generator)
    assert greedy.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]]
    for tiny in (1e-30, 1e-320):  # by the second a logit cannot be divided
        assert generate(Next(), prompt, 12, tiny, None, generator).tolist() == greedy.tolist()
    assert generate(Next(), prompt, 12, 5.0, 1, generator).tolist() == greedy.tolist(), "the likeliest one alone"
    drawn = generate(Next(), prompt, 3000, 2.0, None, generator)[0]
    share = ((drawn[1:] - drawn[:-1]) % 10 == 1).float().mean().item()
    expected = torch.tensor([1.0, *[-1.0] * 9]).softmax(0)[0].item()  # logits 2 and -2 at temperature 2
    assert share == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("temperature", [0.0, 1e-320, 1.0])
def test_nan_is_refused_and_no_token(temperature: float) -> None:
    class Broken(Next):
        def forward(self, idx: Tensor) -> tuple[Tensor, None]:
            return torch.full((1, 1, 10), torch.nan), None

    with pytest.raises(ConfigError, match="the model gives NaN in place of the next token's logits"):
        generate(Broken(), torch.tensor([[0]]), 3, temperature, None, torch.Generator())


def test_a_trained_model_writes_text(tmp_path: Path, capsys: pytest.CaptureFixture[str], zygote: Any) -> None:
    folder = LANGUAGE.run(tmp_path)
    trained = harness.load(folder)
    written = sample(trained, Options(prompt="import ", tokens=40))
    assert written.startswith("import ")
    assert len(written) > len("import ")
    assert sample(trained, Options(prompt="import ", tokens=40)) == written
    assert sample(trained, Options(prompt="import ", tokens=40, seed=1)) != written
    answer = zygote.run(tmp_path, "language.sample", str(folder), "prompt=import ", "tokens=40")
    assert (answer.code, answer.out.strip()) == (0, written.strip())


def test_a_run_with_a_method_of_one_s_own_needs_its_folder(tmp_path: Path, zygote: Any) -> None:
    (tmp_path / "mine/method").mkdir(parents=True)
    (tmp_path / "mine/method/mine.yaml").write_text("_target_: own_module.Own\nname: mine\n")
    (tmp_path / "own_module.py").write_text("from fire_core.methods.base import Base\n\n\nclass Own(Base):\n    pass\n")
    made = zygote.run(tmp_path, "language.train", *LANGUAGE.tiny("method=mine"), "paths.runs=runs", "--config-dir=mine")
    assert made.code == 0, made.err
    (folder,) = (tmp_path / "runs/language").glob("*-mine-*")
    without = zygote.run(tmp_path, "language.sample", str(folder), "tokens=4")
    assert (without.code, "in a command with config_dir=mine" in without.err) == (2, True), without.err
    answer = zygote.run(tmp_path, "language.sample", str(folder), "tokens=4", "config_dir=mine")
    assert answer.code == 0, answer.err


def test_a_permuted_alphabet_is_undone(tmp_path: Path) -> None:
    options = (*ALIKE, "experiment=permuted_text", "benchmark.tasks=2", "benchmark.iterations=4")
    LANGUAGE.run_to_end(LANGUAGE.compose_only((*options, f"paths.runs={tmp_path}")))
    (folder,) = (tmp_path / "language").glob("permuted_text*")
    trained = harness.load(folder)
    tokens = tokens_of(trained.task, 1, "abc")
    assert tokens.tolist() != [[97, 98, 99]]
    assert text_of(trained.task, 1, tokens[0]) == "abc"


def test_an_empty_prompt_is_the_start_of_a_document_in_the_task_s_alphabet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (*ALIKE, "experiment=permuted_text", "benchmark.tasks=2", "benchmark.iterations=4")
    folder = LANGUAGE.run_composed(tmp_path, LANGUAGE.compose_only(options))
    trained = harness.load(folder)
    prompts = list[list[list[int]]]()

    def remember(model: Any, prompt: Tensor, *others: Any) -> Tensor:
        prompts.append(prompt.tolist())
        return prompt

    monkeypatch.setattr("language.sample.generate", remember)
    sample(trained, Options())
    relabel = trained.task.phases[1].relabel
    end = torch.tensor([[get_tokenizer(trained.config.tokenizer).end]])
    assert relabel is not None
    assert prompts == [relabel(end).tolist()] != [end.tolist()]


def test_bytes_that_are_no_text_are_shown() -> None:
    assert get_tokenizer("byte").decode([104, 105, 255]) == "hi\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["prompt=a"], "expected one run folder"),
        (["a", "b"], "expected one run folder"),
        (["a", "promt=b"], "did you mean prompt?"),
        (["a", "tokens=0"], "tokens must"),
        (["a", "tokens=many"], "tokens must be a number"),
        (["a", "temperature=-1"], "temperature must"),
        (["a", "temperature=nan"], "temperature must"),
    ],
)
def test_wrong_words_are_one_line(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        read_words(words, Options)


def test_words_are_taken_as_they_stand() -> None:
    folder, options = read_words(["runs/x", "prompt=a=b", "top_k=null", "temperature=1"], Options)
    assert (folder, options) == ("runs/x", Options(prompt="a=b", top_k=None, temperature=1.0))


def test_only_language_models_write(tmp_path: Path) -> None:
    from language.sample import main

    with pytest.raises(ConfigError, match="only language models"):
        main(str(VISION.run(tmp_path)), Options())
