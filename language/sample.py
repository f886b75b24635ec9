"""Write text with a trained language model.

    python -m language.sample RUN prompt="def main" tokens=200 temperature=0.8

RUN is a run folder, runs/language/<name>. Options: prompt= (empty: the start of a document), tokens= (how many to
write), temperature= (0: always the likeliest token), top_k= (null: all tokens), seed=, device=, config_dir= (what
--config-dir was, if the run was trained with it).
"""

import sys
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from fire_core.ranges import Count, NonNegative, Seed, within
from harness import load
from harness.config.config import set_up_torch
from harness.config.errors import ConfigError
from harness.config.paths import Place
from harness.trained.command import run_command
from harness.trained.load import Trained
from language.trained import end_of, text_of


@dataclass(frozen=True)
class Options:
    """Options of `language.sample`."""

    prompt: str = ""
    tokens: Annotated[int, within(1, 1_000_000)] = 200
    temperature: NonNegative = 0.8
    top_k: Count | None = None
    seed: Seed = 0
    device: str = "cpu"
    config_dir: Place | None = None


def main(folder: str, options: Options) -> None:
    """Print the prompt and what the model writes after it."""
    trained = load(folder, options.device, options.config_dir)
    if trained.program != "language":
        raise ConfigError(f"{folder} is of {trained.program}.train: only language models write text")
    set_up_torch(trained.task.device, trained.config.threads, trained.config.deterministic)
    print(sample(trained, options))


def sample(trained: Trained, options: Options) -> str:
    """Return the prompt and the text that the model writes after it."""
    prompt: Tensor = trained.preprocess(options.prompt)  # (1, tokens)
    if not prompt.numel():
        prompt = end_of(trained.task, trained.learner.phase)
    generator = torch.Generator().manual_seed(options.seed)
    written = generate(trained.model, prompt, options.tokens, options.temperature, options.top_k, generator)
    return options.prompt + text_of(trained.task, trained.learner.phase, written[0, prompt.shape[1] :])


@torch.inference_mode()
def generate(
    model: nn.Module, prompt: Tensor, tokens: int, temperature: float, top_k: int | None, generator: torch.Generator
) -> Tensor:
    """Draw tokens one by one, each given the tokens before it as far as the model's block size reaches.

    Args:
        model: a GPT in evaluation mode.
        prompt: int64 (1, n), n at least 1.
        tokens: number of tokens to draw.
        temperature: number by which logits are divided; 0 takes the likeliest token.
        top_k: draw from this many likeliest tokens only; None draws from all.
        generator: a CPU generator, so that all devices draw alike.

    Returns:
        int64 (1, n + tokens).

    Raises:
        ConfigError: the model gives NaN.
    """
    block = int(model.block_size)  # type: ignore[arg-type]
    for _ in range(tokens):
        logits = model(prompt[:, -block:])[0][0, -1].float().cpu()  # (vocabulary,)
        if logits.isnan().any():
            raise ConfigError("the model gives NaN in place of the next token's logits: its weights are not finite")
        divided = logits / temperature
        if temperature == 0 or not divided.max().isfinite():  # so small that the quotient is no number of float32
            drawn = logits.argmax(keepdim=True)
        else:
            if top_k is not None:
                smallest_kept = logits.topk(min(top_k, len(logits))).values[-1]
                divided = divided.masked_fill(logits < smallest_kept, -torch.inf)
            drawn = torch.multinomial(divided.softmax(0), 1, generator=generator)
        prompt = torch.cat([prompt, drawn.view(1, 1).to(prompt.device)], 1)
    return prompt


if __name__ == "__main__":
    run_command(main, Options, str(sys.modules[__name__].__doc__))
