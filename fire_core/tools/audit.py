"""Look into a checkpoint: which of its matrices have drifted from isometry, and which would a projection help?

    python -m fire_core.audit path/to/transformers-folder
    python -m fire_core.audit model.safetensors --only '*.mlp.*'
    python -m fire_core.audit resnet.pth --model timm:resnet18

Reads transformers folders, .safetensors, and files of `torch.save` (`weights_only=True`: no code in a file is run), a
tensor at a time; states of optimizers are passed over. Where config.json or --model says which model it is, weights
are cut as `fire_` cuts them. Where nothing does, shapes and names have to do: a convolution is cut into its kernel
positions, all else (embeddings too) is one matrix unless --blocks says otherwise; biases, depthwise convolutions and
other stacks of vectors are left out.
"""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from pathlib import Path

from torch import Tensor

from fire_core.reinit.scales import modular
from fire_core.tools.checkpoint.cuts import Cut, Cuts, cut
from fire_core.tools.checkpoint.source import load
from fire_core.tools.checkpoint.stored import CheckpointError
from fire_core.tools.command import Parser, add_model, progress
from fire_core.tools.spectra import RULE, Finding, finding
from fire_core.weights.entry import Declared

OF_A_RUN = "state.trainer.modules."  # what a run of this project trains, beside targets, initial weights and counters
ONLY = "weights whose names match, such as '*.trainer.model.*'"


def examine(cuts: Cuts) -> tuple[list[Finding], list[str]]:
    """A finding for each weight or block of one, and a line for each weight that could not be examined."""
    findings, refused = [], []
    for one in progress(cuts.cuts, "weights"):
        for name, matrices, scale in matrices_of(one, cuts.named):
            if not bool(matrices.isfinite().all()):
                refused.append(f"{name}: holds NaN or Inf")
            else:
                findings.append(finding(name, matrices, scale))
    return findings, refused


def read_cuts(
    path: str | Path,
    model: str | None = None,
    only: str | None = None,
    blocks: Mapping[str, Declared] | None = None,
    transposed: Iterable[str] = (),
) -> Cuts:
    """The tensors of a checkpoint whose names match `only`, cut; of a run of this project by default those it trains.

    Raises:
        CheckpointError: the checkpoint cannot be used, or no name matches.
    """
    checkpoint = load(path)
    trained = [stored for stored in checkpoint.tensors if stored.name.startswith(OF_A_RUN)]
    if only is None and trained:
        networks = [replace(stored, name=stored.name.removeprefix(OF_A_RUN)) for stored in trained]
        return cut(replace(checkpoint, tensors=networks), model, blocks=blocks, transposed=tuple(transposed))
    found = [stored for stored in checkpoint.tensors if only is None or fnmatchcase(stored.name, only)]
    if not found:
        names = [stored.name for stored in checkpoint.tensors]
        raise CheckpointError(f"--only={only}: no name matches; there are {', '.join(names[:6])}, ...")
    return cut(replace(checkpoint, tensors=found), model, blocks=blocks, transposed=tuple(transposed))


def matrices_of(one: Cut, named: bool = True) -> Iterator[tuple[str, Tensor, float]]:
    """Of a tensor and each of its blocks the label, the matrices (count, m, n) and FIRE's scale; nothing for what
    holds none.

    Args:
        one: the tensor and its entries.
        named: nothing but its name and shape is known.
    """
    stored, weight = one.stored, one.stored.tensor
    if not stored.floating or weight.ndim < 2 or weight.numel() == 0 or "the same numbers" in one.reason:
        return
    if named and len(one.entries) < 2:  # more: --blocks says how it is cut
        if not stored.name.endswith("bias") and weight.ndim <= 5 and min(weight.shape[:2]) > 1:
            if weight.ndim > 2:  # no vectors, depthwise convolutions, class tokens
                kernel = weight.flatten(2).movedim(-1, 0)
                yield stored.name, kernel, modular(weight.shape[0], weight.shape[1], len(kernel))
            else:
                yield stored.name, weight[None], modular(weight.shape[0], weight.shape[1], 1)
        return
    for entry in one.entries:
        if entry.kind not in ("vector", "locked") and min(entry.shape) > 1 and entry.role != "depthwise":
            matrices = entry.view(weight).reshape(-1, *entry.shape)
            yield entry.label, matrices, modular(*entry.shape, entry.positions)


def table(findings: list[Finding]) -> str:
    """The findings as an aligned table, with the rule that marks them."""
    wide = max(len("name"), *(len(f.name) for f in findings)) if findings else len("name")
    head = f"{'name':{wide}}       shape    n       DfI  stable rank  effective rank  condition  would benefit"
    rows = [
        f"{f.name:{wide}} {f'{f.shape[0]}x{f.shape[1]}':>11} {f.matrices:4} {f.dfi:9.4g} {f.stable_rank:12.1f} "
        f"{f.effective_rank:15.1f} {f.condition:10.3g}" + "            yes" * f.benefits
        for f in findings
    ]
    count = sum(f.benefits for f in findings)
    notes = [
        "",
        f"{count} of {len(findings)} weights would benefit from a projection.",
        "DfI: of the weight divided by FIRE's scale, summed over its n matrices, as in fire_'s report.",
        "Ranks and condition number: of the worst of the n matrices.",
        *textwrap.wrap(f"A weight {RULE}.", 110),
    ]
    return "\n".join([head, *rows, *notes])


def main(arguments: list[str] | None = None) -> int:
    """Command line; 0, or 2 with one line on stderr for what cannot be used."""
    parser = Parser(prog="python -m fire_core.audit", description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", help="a transformers folder, a .safetensors file, or a file of torch.save")
    parser.add_argument("--only", metavar="PATTERN", help=ONLY)
    parser.add_argument("--json", action="store_true", help="a JSON object instead of the table")
    add_model(parser)
    options = parser.parse_args(arguments)
    try:
        cuts = read_cuts(options.checkpoint, options.model, options.only, dict(options.blocks), options.transposed)
        findings, refused = examine(cuts)
        if not findings and not refused:
            raise CheckpointError(f"{options.checkpoint}: holds no weight matrices")
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        rows = [asdict(found) | {"benefits": found.benefits} for found in findings]
        for row in rows:  # JSON has no infinity
            row["condition"] = row["condition"] if math.isfinite(row["condition"]) else None
        print(json.dumps({"weights": rows, "not_examined": refused, "notes": cuts.notes}, indent=1))
        return 0
    print(table(findings))
    for line in (*(f"not examined: {line}" for line in refused), *(f"note: {line}" for line in cuts.notes)):
        print(line)
    return 0
