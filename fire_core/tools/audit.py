"""Look into a checkpoint: which of its matrices have drifted from isometry, and which would a projection help?

    fire audit path/to/transformers-folder
    fire audit model.safetensors --only '*.mlp.*'
    fire audit resnet.pth --model timm:resnet18

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
from dataclasses import asdict, replace

from fire_core.text_table import text_table
from fire_core.tools.checkpoint.cuts import CheckpointCuts
from fire_core.tools.checkpoint.stored import CheckpointError
from fire_core.tools.command import Parser, progress
from fire_core.tools.reader import add_choice, matrices_of, read_cuts
from fire_core.tools.spectra import RULE, Finding, finding


def examine(cuts: CheckpointCuts) -> tuple[list[Finding], list[str]]:
    """Return a finding for each weight or block of one, and a line for each weight that could not be examined."""
    findings, refused = [], []
    for weight_cut in progress(cuts.cuts, "weights"):
        kept = {entry.label for entry in weight_cut.entries if entry.action == "keep" and not cuts.without_model}
        for name, matrices, scale in matrices_of(weight_cut, cuts.without_model):
            if not bool(matrices.isfinite().all()):
                refused.append(f"{name}: holds NaN or Inf")
            else:
                findings.append(replace(finding(name, matrices, scale), kept=name in kept))
    return findings, refused


HEAD = ("name", "shape", "n", "DfI", "stable rank", "effective rank", "condition", "would benefit")


def cells(weight: Finding) -> tuple[str, ...]:
    """Return the line of a weight in the table, in the order of `HEAD`."""
    ranks = f"{weight.stable_rank:.1f}", f"{weight.effective_rank:.1f}"
    shape = f"{weight.shape[0]}x{weight.shape[1]}"
    benefits = "kept" if weight.kept else "zero" if weight.is_zero else "yes" if weight.benefits else ""
    return weight.name, shape, str(weight.matrices), f"{weight.dfi:.4g}", *ranks, f"{weight.condition:.3g}", benefits


def explanations(findings: list[Finding]) -> list[str]:
    """Return the lines below the table: how many weights would benefit, what the columns hold, the rule."""
    projected = [weight for weight in findings if not weight.kept]
    count, zeros = sum(weight.benefits for weight in projected), any(weight.is_zero for weight in projected)
    return [
        "",
        f"{count} of {len(projected)} weights would benefit from a projection.",
        *(["kept: fire_ leaves it as it is, unless it is included by name."] if len(projected) < len(findings) else []),
        *(["zero: a matrix of the weight is zero, and a projection would leave it so."] if zeros else []),
        "DfI: of the weight divided by FIRE's scale, summed over its n matrices, as in fire_'s report.",
        "Ranks and condition number: of the worst of the n matrices.",
        *textwrap.wrap(f"A weight {RULE}.", 110),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0, or 2 with one line on stderr for what cannot be used."""
    parser = Parser(prog="fire audit", description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", help="a transformers folder, a .safetensors file, or a file of torch.save")
    add_choice(parser)
    parser.add_argument("--json", action="store_true", help="a JSON object instead of the table")
    options = parser.parse_args(arguments)
    try:
        cuts = read_cuts(options.checkpoint, options.model, options.only, dict(options.blocks), options.transposed)
        findings, refused = examine(cuts)
        if not findings and not refused:
            reasons = f" ({'; '.join(cuts.notes)})" if cuts.notes else ""
            raise CheckpointError(f"{options.checkpoint}: holds no weight matrices{reasons}")
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        rows = [asdict(weight) | {"benefits": weight.benefits} for weight in findings]
        for row in rows:  # JSON has no infinity
            row["condition"] = row["condition"] if math.isfinite(row["condition"]) else None
        print(json.dumps({"weights": rows, "not_examined": refused, "notes": cuts.notes}, indent=1))
        return 0
    lines = [*(f"not examined: {line}" for line in refused), *(f"note: {note}" for note in cuts.notes)]
    print(text_table(HEAD, map(cells, findings)), *explanations(findings), *lines, sep="\n")
    return 0
