"""Muon on fused weights against Muon on their parts: a small GPT on bytes, with the rate searched for each.

    python -m scripts.fused_muon --out docs/results/fused_muon.csv

The network has q, k and v in one weight. `fused`: torch.optim.Muon takes it for one matrix. `split`: SplitMuon its
three. All else is the same: initial weights, batches, AdamW at 3e-3 for embeddings and norms. The rate is the best of
four on seed 10000, by the mean training loss of the last fifty steps; seeds 201 to 205 are reported. `smallest` and
`largest` are of the singular values of the last update's q, k and v, each over the block's root mean square.
"""

import argparse
import csv
from pathlib import Path

import torch
from torch import Tensor

from fire_core import SplitMuon, matrices, muon_groups
from harness.run import provenance
from language.corpora import pydoc
from language.model import GPT

RATES, SEARCH_SEED, SEEDS = (0.003, 0.01, 0.03, 0.1), 10_000, range(201, 206)
BATCH, BLOCK = 16, 64
COLUMNS = ("optimizer", "seed", "lr", "loss", "block", "smallest", "largest")


def text() -> Tensor:
    """The bytes of Python's documentation that are for training, (n,)."""
    documents = (document for document, for_validation in pydoc().documents() if not for_validation)
    return torch.frombuffer(bytearray("\n".join(documents).encode()), dtype=torch.uint8).long()


def train(data: Tensor, split: bool, lr: float, seed: int, steps: int) -> tuple[float, dict[str, Tensor]]:
    """The mean loss of the last fifty steps, and the last update of q, k and v of the first layer."""
    torch.manual_seed(seed)
    model = GPT(256, BLOCK, n_layer=2, n_head=4, n_embd=64)
    muon, adam = muon_groups(model)
    hidden = [p for group in muon for p in group["params"]]
    first = SplitMuon(muon, lr=lr) if split else torch.optim.Muon(hidden, lr=lr)
    optimizers = first, torch.optim.AdamW(adam, lr=3e-3)
    fused = [matrix for matrix in matrices(model) if "c_attn" in matrix.name][:3]
    losses, generator = [], torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(data) - BLOCK, (BATCH,), generator=generator)
        rows = data[starts[:, None] + torch.arange(BLOCK + 1)]
        before = fused[0].parameter.detach().clone()
        _, loss = model(rows[:, :-1], rows[:, 1:])
        assert loss is not None
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    update = fused[0].parameter.detach() - before
    last = losses[-50:]
    return sum(last) / len(last), {matrix.block: matrix.read(update)[0] for matrix in fused}


def main() -> None:
    """Search, train, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200, help="of a run")
    options = parser.parse_args()
    out, steps, data, lines = options.out, options.steps, text(), []
    for name, split in (("fused", False), ("split", True)):
        found = {lr: train(data, split, lr, SEARCH_SEED, steps)[0] for lr in RATES}
        lr = min(found, key=found.__getitem__)
        print(name, {rate: round(loss, 4) for rate, loss in found.items()}, flush=True)
        for seed in SEEDS:
            loss, updates = train(data, split, lr, seed, steps)
            print(name, seed, round(loss, 4), flush=True)
            for block, update in updates.items():
                values = torch.linalg.svdvals(update.double())
                values /= values.square().mean().sqrt()
                lines.append((name, seed, lr, f"{loss:.6g}", block, f"{values[-1]:.4g}", f"{values[0]:.4g}"))
    with out.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *lines])
    provenance.write(out, provenance.of_process("language"))


if __name__ == "__main__":
    main()
