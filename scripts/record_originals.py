"""Run the public code of methods on small inputs, and record its results for tests/parity/originals.

    python scripts/record_originals.py <folder> [name ...]

<folder> holds clones of the repositories in `CLONES`, each under its own name. What needs jax (redo, snr, cpr, l2_er,
spectral) is recorded by a Python that has jax, flax, optax and gin-config; the rest by one that has torch. Nothing of
the clones' code is kept: the files hold numbers.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts.originals import paper, rivals
from scripts.originals.tools import stacked

OUT = Path(__file__).parent.parent / "tests" / "parity" / "originals"
CLONES = {
    "cbp": "shibhansh/loss-of-plasticity",
    "muon": "KellerJordan/Muon",
    "parseval": "wechu/parseval_reg",
    "dash": "NAVER-INTEL-Co-Lab/gaudi-dash",
    "upgd": "mohmdelsayed/upgd",
    "clipping": "mohmdelsayed/weight-clipping",
    "trac": "ComputationalRobotics/TRAC",
    "redo": "google/dopamine",
    "snr": "ajozefiak/SelfNormalizedResets",
    "cpr": "LucMc/continual-learning",
    "l2_er": "KevinGuo27/lop-jax",
    "spectral": "KevinGuo27/lop-jax",
    "c_chain": "bluecontra/C-CHAIN",
    "swr": "JFernando4/collas_2025_swr_paper",
}
RECORDERS = {name: getattr(rivals, name, None) or getattr(paper, name) for name in CLONES}


def main() -> None:
    """Record the named methods, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", choices=[[], *RECORDERS], metavar="name")
    arguments = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    for name in arguments.names or RECORDERS:
        clone = arguments.folder / CLONES[name].partition("/")[2]
        if not clone.is_dir():
            parser.error(f"{clone} is missing: git clone https://github.com/{CLONES[name]} {clone}")
        record = stacked(RECORDERS[name](clone.absolute()))
        np.savez_compressed(OUT / f"{name}.npz", **record)
        print(f"{name}: {len(record)} arrays, {(OUT / f'{name}.npz').stat().st_size} bytes")


if __name__ == "__main__":
    main()
