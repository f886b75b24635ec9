"""GPT-0.1B's weights at initialisation, and hardened, for `python -m fire_core.convergence` (scripts/convergence.sh).

    python scripts/gpt_weights.py weights                             # weights/gpt-init.pt, weights/gpt-hardened.pt
    python scripts/gpt_weights.py weights --layers 1 --width 32       # small ones

Hardened: input directions fade over two decades, as in scripts/bench_projection.py. That is not training: it makes
matrices as ill-conditioned as long training does, without its weeks. Of a checkpoint of one's own the same table is
`python -m fire_core.convergence CHECKPOINT`.
"""

import argparse
import sys
from pathlib import Path

import torch

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from language.model import GPT
from scripts.bench_projection import harden_

VOCABULARY, BLOCK = 50_304, 1_024


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    heads = max(1, options.width // 64)
    model = GPT(options.vocabulary, BLOCK, n_layer=options.layers, n_head=heads, n_embd=options.width, bias=False)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in ("init", "hardened"):
        if name == "hardened":
            for parameter in {p for p in model.parameters() if p.ndim == 2}:
                harden_(parameter)
        torch.save(
            {key: value.detach() for key, value in model.state_dict().items()}, options.folder / f"gpt-{name}.pt"
        )
        print(f"wrote {options.folder}/gpt-{name}.pt")


if __name__ == "__main__":
    main()
