"""What the language trainer's speed options gain over a plain eager float32 loop, alternating in one process.

    python scripts/bench_language.py                      4 layers, 256 wide, the full vocabulary: for CPUs
    python scripts/bench_language.py --model gpt_0.1b     on a GPU: also MFU, and the time spent waiting for data

The plain loop slices tokens one sequence at a time, runs the model eagerly and uses torch's default AdamW. This loop
("ours" in the output) is that of `language.train compile=true precision=bfloat16`: vectorised draws, a compiled loss
without kept logits, bf16 autocast, fused AdamW. Both train copies of the same weights on the same batches; the losses
reached are printed beside the times.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.config.config import resolve_device
from language.data import Mixture, TokenFile
from language.model import GPT
from language.speed import NextTokenLoss, flops_per_token, peak_flops

SHAPES: dict[str, dict[str, Any]] = {
    "small": {"n_layer": 4, "n_head": 4, "n_embd": 256, "block_size": 256, "vocab_size": 50_304},
    "gpt_0.1b": {},
    "gpt_tiny": {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 128, "vocab_size": 256},
}
OPTIONS: dict[str, Any] = {"lr": 6e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="small")
    parser.add_argument("--batch", type=int, default=8, help="sequences")
    parser.add_argument("--steps", type=int, default=4, help="in each turn")
    parser.add_argument("--turns", type=int, default=6, help="of each loop, the first of which warms up")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = resolve_device(arguments.device)
    torch.manual_seed(0)
    model = GPT(**SHAPES[arguments.model]).to(device)
    vocab = len(model.lm_head.weight)
    tokens = np.random.default_rng(0).zipf(1.2, 2_000_000) % min(vocab, 50_257)  # skewed, like language
    data = Mixture((TokenFile(Path("zipf"), tokens.astype(np.uint16), {}),), (1.0,), model.block_size)

    loops = {
        "plain": plain_loop(copy.deepcopy(model), data, arguments.batch, device),
        "ours": our_loop(model, data, arguments, device),
    }
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    losses: dict[str, Tensor] = {}
    for turn in range(arguments.turns):
        for name, step in loops.items():
            began = time.perf_counter()
            for _ in range(arguments.steps):
                losses[name] = step()
            losses[name].item()  # waits for the device
            if turn > 0:
                seconds[name].append((time.perf_counter() - began) / arguments.steps)
    report(arguments, device, model, seconds, losses)


def report(
    arguments: argparse.Namespace,
    device: torch.device,
    model: GPT,
    seconds: dict[str, list[float]],
    losses: dict[str, Tensor],
) -> None:
    """The table."""
    per_step = arguments.batch * model.block_size
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {arguments.threads} threads"
    print(f"{arguments.model}, {arguments.batch} x {model.block_size} tokens, {kind}, torch {torch.__version__}")
    for name, times in seconds.items():
        rate = per_step / statistics.median(times)
        precision = "float32" if name == "plain" else arguments.precision
        mfu = rate * flops_per_token(model) / peak_flops(device, precision)
        middle, low, high = (1000 * statistic(times) for statistic in (statistics.median, min, max))
        print(
            f"{name:6} {middle:9.1f} ms/step ({low:.1f} to {high:.1f})  {rate:10.0f} tokens/s  MFU {mfu:.1%}"
            f"  last loss {losses[name].item():.4f}"
        )
    ratios = [a / b for a, b in zip(seconds["plain"], seconds["ours"], strict=True)]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(f"ours is {statistics.median(ratios):.2f} times as fast, paired ({spread}; n={len(ratios)})")


def plain_loop(model: GPT, data: Mixture, batch: int, device: torch.device) -> Callable[[], Tensor]:
    """The plain loop's step."""
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
    generator = np.random.default_rng(1)
    tokens, block = data.files[0].tokens, data.block_size

    def step() -> Tensor:
        generator.random(1)  # the mixture's draw, so that the places are the same
        starts = (generator.random(batch) * (len(tokens) - block)).astype(np.int64)
        inputs = torch.stack([torch.from_numpy(tokens[i : i + block].astype(np.int64)) for i in starts])
        targets = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + block].astype(np.int64)) for i in starts])
        loss: Tensor = model(inputs.to(device), targets.to(device))[1]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step


def our_loop(model: GPT, data: Mixture, arguments: argparse.Namespace, device: torch.device) -> Callable[[], Tensor]:
    """The trainer's step."""
    forward = NextTokenLoss(model) if arguments.no_compile else torch.compile(NextTokenLoss(model))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, **OPTIONS)
    generator = np.random.default_rng(1)
    bf16 = arguments.precision == "bfloat16"

    def step() -> Tensor:
        inputs, targets = data.batch(generator, arguments.batch)
        if device.type == "cuda":
            inputs, targets = inputs.contiguous().pin_memory(), targets.contiguous().pin_memory()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss: Tensor = forward(inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    main()
