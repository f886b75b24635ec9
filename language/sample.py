"""Text from a checkpoint: `python -m language.sample run=runs/language/... prompt="def "`."""

from dataclasses import dataclass
from pathlib import Path

import hydra
import torch
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig
from torch import Tensor

from fire_core.ranges import Count, NonNegative, Seed
from harness.config.checks import check_options
from harness.config.cli import job, run_program
from harness.config.config import Paths, resolve_device
from harness.config.errors import ConfigError
from harness.config.groups import CONF
from harness.run.reader import building, newest_state, read_config
from harness.training import seeding
from language.model import GPT
from language.task import build_model
from language.tokenizers import get_tokenizer


@dataclass
class SampleConfig:
    """Options of `language.sample`; explained in `conf/language_sample.yaml`."""

    program: str = "language.sample"
    run: str | None = None
    prompt: str = "\n"
    tokens: Count = 400
    samples: Count = 1
    temperature: NonNegative = 0.8
    top_k: Count | None = 200
    seed: Seed = 0
    checkpoint: str = "newest"
    device: str = "auto"
    trust: bool = False
    paths: Paths | None = None


ConfigStore.instance().store(name="language_sample_schema", node=SampleConfig)


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="language_sample")
def main(config: DictConfig) -> None:
    """Print samples."""
    with job(config) as outcome:
        if config.run is None:
            raise ConfigError("run= is needed: a folder below runs/language")
        check_options(config)
        device = resolve_device(config.device)
        with building(Path(config.run)):
            model, trained = load_run(Path(config.run), config.checkpoint, device, config.trust)
            tokenizer = get_tokenizer(trained.tokenizer)
        seeding.seed_everything(config.seed)
        prompt = tokenizer.encode([config.prompt])[0].tolist() or [tokenizer.end]
        for number in range(config.samples):
            idx = torch.tensor([prompt], device=device)
            print(tokenizer.decode(generate(model, idx, config.tokens, config.temperature, config.top_k)[0].tolist()))
            if number + 1 < config.samples:
                print("-" * 40)
        outcome.state = "done"


def load_run(folder: Path, name: str, device: torch.device, trust: bool) -> tuple[GPT, DictConfig]:
    """The model of a run and its configuration.

    Args:
        folder: the run's, or that of a shared first phase.
        name: `newest`, or a checkpoint that phase 0 has kept (`best`, `30000`), in a first phase's folder.
        device: where the model goes.
        trust: whether the configuration may name anything to build.

    Raises:
        ConfigError: there is no such run or checkpoint, or it is damaged.
    """
    config = read_config(folder, ("language",), trust)
    state = newest_state(folder)
    model = build_model(config, get_tokenizer(config.tokenizer).vocab_size)
    if name == "newest":
        model.load_state_dict(state["modules"]["model"])
    elif name in state["kept"]:
        model.load_state_dict(state["kept"][name]["weights"], strict=False)  # tied: under its first name alone
    else:
        accepted = ", ".join(["newest", *state["kept"]])
        raise ConfigError(f"checkpoint={name} is not in {folder}; accepted: {accepted} (a first phase has more)")
    return model.to(device).eval(), config


@torch.no_grad()
def generate(model: GPT, idx: Tensor, count: int, temperature: float = 1.0, top_k: int | None = None) -> Tensor:
    """Append `count` tokens to each sequence.

    Args:
        model: in evaluation mode.
        idx: int64 (B, T), T at least 1; the model sees the last `block_size` tokens.
        count: tokens to draw.
        temperature: divides the logits; 0 takes the most probable token.
        top_k: draw among this many most probable tokens; None: among all.

    Returns:
        int64 (B, T + count).
    """
    for _ in range(count):
        logits = model(idx[:, -model.block_size :])[0][:, -1].float()  # (B, vocab_size)
        if temperature == 0:
            following = logits.argmax(1, keepdim=True)
        else:
            logits /= temperature
            if top_k is not None and top_k < logits.shape[1]:
                logits[logits < logits.topk(top_k).values[:, -1:]] = -torch.inf
            following = torch.multinomial(logits.softmax(1), 1)
        idx = torch.cat([idx, following], 1)
    return idx


if __name__ == "__main__":
    run_program(main, "language_sample")
