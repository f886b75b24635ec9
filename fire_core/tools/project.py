"""FIRE from disk to disk: a projected copy of a checkpoint, a tensor at a time.

    fire project IN OUT --layout qk --solver exact
    fire project resnet.pth projected.pth --model timm:resnet18

IN is a transformers folder (one file of weights, or several with their index), a .safetensors file, or a file of
`torch.save` (.pt, .ckpt of Lightning). OUT is a copy of it in which the numbers of the projected weights are others,
and nothing else: number formats, metadata, further tensors and a folder's other files stay. What is projected, and how
it is cut, is what `fire_` would do with the loaded model, as far as that has the file's names; see `checkpoint.cuts`
and `checkpoint.skeleton`. What is not known is kept, and the report says why.

Copies of the weights beside them (other formats, optimizers) are left out of OUT; weights in sub-folders of IN stay as
they are, and the report names them. Tensors that `torch.save` wrote from a GPU are on the CPU in OUT.

Memory, whatever the checkpoint's size: what torch and transformers take themselves (0.9 GB) and some bytes for each
number of the largest projected tensor: 20 for the default solver; for `exact` 20 if it is tall or wide, 40 if square,
60 if square and rank-deficient; for a blend below 1 20 if it is tall or wide, 70 if square or rank-deficient. Of a file
of `torch.save` its projected weights are in memory until it is saved.
OUT appears at the end, whole, by a rename, after its report beside it; neither may exist before. A run that is killed
leaves a folder `.<OUT>.*.partial`, and between the two renames a report without OUT.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import os
import shutil
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fire_core
from fire_core.errors import FireWarning
from fire_core.polar.options import NORM_INITS, SOLVERS
from fire_core.reinit.fire import fire_
from fire_core.reinit.project import Projection
from fire_core.reinit.report import Row
from fire_core.tools.checkpoint import safetensors_file
from fire_core.tools.checkpoint.cuts import CheckpointCuts, TensorCut, cut_checkpoint
from fire_core.tools.checkpoint.source import Checkpoint, is_named_as_weights, load
from fire_core.tools.checkpoint.stored import CheckpointError
from fire_core.tools.command import MOST_ITERATIONS, Parser, add_model, at_least, progress
from fire_core.tools.reader import fused_by_name
from fire_core.weights.entry import Declared
from fire_core.weights.layout import PRESETS, listed

SCALES = ("modular", "orthogonal", "keep_norm", "variance_factor")  # those that need no initial weights


def project(
    source: str | Path,
    target: str | Path,
    *,
    model: str | None = None,
    layout: str = "all",
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    blocks: Mapping[str, Declared] | None = None,
    transposed: Iterable[str] = (),
    **options: Any,
) -> dict[str, Any]:
    """Write a projected copy of a checkpoint.

    Args:
        source: see `checkpoint.source.load`.
        target: a path that does not exist yet, nor `<target>.fire.json`.
        model: `timm:<name>`, `torchvision:<name>` or a folder with a config.json; None for the checkpoint's own.
        layout: a preset of `weights.layout`.
        include: patterns of parameters to project beside the layout's.
        exclude: patterns of parameters to keep.
        blocks: how fused weights are cut, by pattern; see `weights.layout.resolve`.
        transposed: patterns of weights that are stored (d_in, d_out).
        **options: of `fire_` (solver, iterations, ...).

    Returns:
        What is written to `<target>.fire.json`: rows as in `fire_`'s report, what was kept and why, notes.

    Raises:
        CheckpointError: anything that cannot be done, on one line; nothing is at `target` then.
    """
    begin = time.perf_counter()
    source, target = Path(source), Path(target)
    transposed = [transposed] if isinstance(transposed, str) else [*transposed]
    _check_places(source, target)
    _check_options(options)
    checkpoint = load(source)
    cuts = cut_checkpoint(checkpoint, model, layout, include, exclude, blocks, transposed)
    chosen = [one for one in cuts.cuts if any(entry.action == "project" and entry.size for entry in one.entries)]
    _check_chosen(checkpoint, cuts, chosen, layout)
    with tempfile.TemporaryDirectory(".partial", f".{target.name}.", target.parent) as folder:  # the same file system
        copy = Path(folder) / target.name
        rows, warned = _write_copy(checkpoint, copy, chosen, options)
        given = {"layout": layout, "model": model, "blocks": blocks, "transposed": transposed, **options}
        report = _report(checkpoint, target, cuts, rows, given, time.perf_counter() - begin)
        report["notes"] += warned
        text = Path(folder) / "report.json"
        text.write_text(json.dumps(report, indent=1, default=str) + "\n")
        os.rename(text, report_path(target))  # first, so that there is never an OUT without its report
        os.rename(copy, target)
    return report


def report_path(target: Path) -> Path:
    """Return the path of a projected checkpoint's report, which lies beside it."""
    return target.with_name(f"{target.name}.fire.json")


def _check_places(source: Path, target: Path) -> None:
    """Check that the checkpoint is there, and that its copy can be written to a new place.

    Raises:
        CheckpointError: with what is wrong.
    """
    if not source.exists():
        raise CheckpointError(f"{source}: no such file or folder")
    if source.resolve() == target.resolve() or (target.exists() and source.samefile(target)):
        raise CheckpointError(f"{target}: IN and OUT are the same")
    if source.resolve() in target.resolve().parents:
        raise CheckpointError(f"{target}: lies in the folder that it would be a copy of")
    taken = target if target.exists() or target.is_symlink() else report_path(target)
    if taken.exists() or taken.is_symlink():
        raise CheckpointError(f"{taken}: exists already; remove it, or give another name")
    if not target.parent.is_dir():
        raise CheckpointError(f"{target.parent}: no such folder")


def _check_options(options: Mapping[str, Any]) -> None:
    """Check options of `fire_` before anything is read or copied.

    Raises:
        CheckpointError: an option is unknown, or its value is not accepted or has no effect.
    """
    accepted = inspect.signature(fire_).parameters
    for name in options:
        if name not in accepted or name in ("model", "optimizer", "masters", "example", "strict"):
            raise CheckpointError(f"{name} is no option of a projection on disk")
    names = {field.name for field in dataclasses.fields(Projection)}
    try:
        Projection(**{name: value for name, value in options.items() if name in names}).check_idle()
    except ValueError as error:
        raise CheckpointError(str(error)) from error


def _check_chosen(checkpoint: Checkpoint, cuts: CheckpointCuts, chosen: list[TensorCut], layout: str) -> None:
    """Check that there is something to project, and nothing to reset.

    Args:
        checkpoint: for its path, in messages.
        cuts: all tensors with their matrices.
        chosen: the tensors of which something is projected.
        layout: name of the preset, for messages.

    Raises:
        CheckpointError: nothing is projected, or a weight is to get its initial value, which no checkpoint holds.
    """
    reset = [entry.label for one in cuts.cuts for entry in one.entries if entry.action == "reinit"]
    if reset:
        raise CheckpointError(
            f"layout={layout} resets {reset[0]} to its initial value, which a checkpoint does not hold"
        )
    if not chosen:
        reasons = {one.reason: f"{one.stored.name}: {one.reason}" for one in cuts.cuts if one.reason}
        lines = [*cuts.notes, *[*reasons.values()][:3]]
        notes = f" ({'; '.join(lines)})" if lines else ""
        raise CheckpointError(f"{checkpoint.path}: layout={layout} projects none of its weights{notes}")


def _write_copy(
    checkpoint: Checkpoint, copy: Path, chosen: list[TensorCut], options: dict[str, Any]
) -> tuple[list[Row], list[str]]:
    """Copy the checkpoint with projected numbers in the place of the old ones.

    Args:
        checkpoint: stays as it is.
        copy: path of the copy, which does not exist yet.
        chosen: the tensors of which something is projected.
        options: options of `fire_`.

    Returns:
        The rows of `fire_`'s reports, and their warnings.

    Raises:
        CheckpointError: `fire_` refuses an option or a weight, or a file of the folder cannot be copied.
    """
    if checkpoint.path.is_dir():
        try:
            shutil.copytree(checkpoint.path, copy)
        except shutil.Error as error:
            path, _, reason = error.args[0][0]
            raise CheckpointError(f"{path}: cannot be copied ({reason})") from error
        for folder in (copy, *(path for path in copy.rglob("*") if path.is_dir())):
            folder.chmod(folder.stat().st_mode | stat.S_IRWXU)  # the original may be read-only
        for path in checkpoint.stale:
            (copy / path).unlink()
    else:
        shutil.copyfile(checkpoint.path, copy)
    places = {file: copy / file.name if checkpoint.path.is_dir() else copy for file in checkpoint.files}
    for place in places.values():
        place.chmod(place.stat().st_mode | stat.S_IRUSR | stat.S_IWUSR)
    written = {
        (file, stored.name): stored.tensor
        for file, place in places.items()
        if file not in checkpoint.contents
        for stored in safetensors_file.tensors_of(place, writable=True)
    }
    rows: list[Row] = []
    warned: dict[str, None] = {}
    for one in progress(chosen, "weights"):
        holder = nn.Module()
        holder.weight = nn.Parameter(written.get((one.stored.file, one.stored.name), one.stored.tensor))
        entries = [dataclasses.replace(entry, parameter=holder.weight) for entry in one.entries]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FireWarning)  # they go into the report
                report = fire_(holder, layout=entries, **options)
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        rows += report.rows
        for line in report.warnings:
            if line.startswith("zero matrices") and options.get("init") is None:
                line = line.rpartition("; ")[0]  # without its advice: the command takes no initial weights
            if not line.startswith("nothing was projected"):
                warned[line] = None
    for file, content in checkpoint.contents.items():
        torch.save(content, places[file])
    return rows, [*warned]


# -------------------------------------------------------------------------------------------------------- the report


def _report(
    checkpoint: Checkpoint, target: Path, cuts: CheckpointCuts, rows: list[Row], options: dict[str, Any], seconds: float
) -> dict[str, Any]:
    """Return the report of a projected copy, in numbers and strings that JSON holds.

    Args:
        checkpoint: the one that was copied.
        target: the copy.
        cuts: all tensors with their matrices.
        rows: one for each projected weight.
        options: as the user gave them.
        seconds: how long it took.
    """
    reasons: dict[str, list[str]] = {}
    for one in cuts.cuts:
        kept = {entry.label: entry.reason for entry in one.entries if entry.action == "keep"}
        for label, reason in (kept if one.entries else {one.stored.name: one.reason}).items():
            if one.stored.tensor.ndim > 1:
                reasons.setdefault(reason, []).append(label)
    notes = list(cuts.notes)
    if cuts.without_model:
        projected = [one for one in cuts.cuts if any(entry.action == "project" for entry in one.entries)]
        notes += fused_by_name(projected)
        stacks = [one.stored.name for one in projected if one.stored.tensor.ndim > 2]
        if stacks:
            notes.append(
                f"taken as stacks of matrices, their last two dimensions: {listed(stacks)}; of a convolution this is "
                "wrong: --model names its model, or load it and call fire_"
            )
    if checkpoint.skipped:
        notes.append(
            f"the states of optimizers in it ({len(checkpoint.skipped)} tensors) stay as they are: reset those of the "
            "projected weights before you train on (fire_core.reset_optimizer_state)"
        )
    if checkpoint.devices:
        notes.append(
            f"it was saved from {', '.join(checkpoint.devices)}; in the copy all tensors are on the CPU, and "
            "torch.load(..., map_location=) moves them"
        )
    if nested := _weights_in_subfolders(checkpoint.path):
        more = f" and {len(nested) - 3} more" if len(nested) > 3 else ""
        shown = ", ".join(map(str, nested[:3]))
        notes.append(f"weights in sub-folders stay as they are, and may be copies of the old ones: {shown}{more}")
    return {
        "input": str(checkpoint.path.resolve()),
        "output": str(target.resolve()),
        "options": options,
        "fire_core": fire_core.__version__,
        "torch": torch.__version__,
        "numbers": {
            "all": sum(one.stored.tensor.numel() for one in cuts.cuts if one.stored.floating),
            "projected": sum(e.size for one in cuts.cuts for e in one.entries if e.action == "project")
            - sum(math.prod(row.shape) * row.skipped for row in rows),
        },
        "rows": [dataclasses.asdict(row) for row in rows],
        "kept": reasons,
        "left_out": [str(path) for path in checkpoint.stale],
        "notes": notes,
        "seconds": round(seconds, 3),
    }


def _weights_in_subfolders(path: Path) -> list[Path]:
    """Return the files in sub-folders of a checkpoint's folder that are called as weights are; of a file, none."""
    nested = (p for p in path.glob("*/**/*") if p.is_file() and is_named_as_weights(p)) if path.is_dir() else ()
    return sorted(p.relative_to(path) for p in nested)


def summary(report: dict[str, Any]) -> str:
    """Return the report in a few lines of text."""
    rows, numbers = report["rows"], report["numbers"]
    total = {key: sum(row[key] or 0 for row in rows) for key in ("dfi_before", "dfi_after", "sfe")}
    matrices = sum(row["matrices"] - row["skipped"] for row in rows)
    named = {f"kept, {reason}": names for reason, names in report["kept"].items()}
    named["left out, other weights or optimizers"] = report["left_out"]
    lines = [
        f"{matrices} matrices of {len(rows)} weights projected, {numbers['projected'] / numbers['all']:.1%} of "
        f"{numbers['all']:,} numbers; DfI {total['dfi_before']:.4g} -> {total['dfi_after']:.4g}, SFE "
        f"{total['sfe']:.4g}; {report['seconds']:.1f} s"
    ]
    for what, names in named.items():
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            lines.append(f"{what}: {', '.join(names[:3])}{more}")
    return "\n".join([*lines, *(f"note: {note}" for note in report["notes"])])


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0, or 2 with one line on stderr for what cannot be done."""
    parser = Parser(prog="fire project", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("source", metavar="IN", help="a transformers folder, a .safetensors file, or a file of torch.save")
    add("target", metavar="OUT", help="the projected copy; must not exist yet")
    add("--layout", default="all", choices=sorted(PRESETS), metavar="NAME", help=f"{', '.join(PRESETS)} (default: all)")
    add("--include", action="append", default=[], metavar="PATTERN", help="parameters to project beside the layout's")
    add("--exclude", action="append", default=[], metavar="PATTERN", help="parameters to keep")
    add_model(parser)
    add("--solver", default="newton_schulz", choices=SOLVERS, help="newton_schulz is the paper's (default)")
    add(
        "--iterations",
        type=at_least(1, MOST_ITERATIONS),
        default=10,
        help="steps of the iterative solvers (default: 10)",
    )
    add(
        "--norm-init", default="frobenius", choices=NORM_INITS, help="what a matrix is divided by before the first step"
    )
    add("--scale", default="modular", choices=SCALES, help="target of the singular values (default: modular)")
    add(
        "--blend",
        type=float,
        default=1.0,
        metavar="T",
        help="how far to go, 0 to 1: singular values s become s^(1-T) scale^T (default: 1)",
    )
    add("--variance-factor", type=float, default=1.0, help="for the scale of that name (default: 1)")
    add("--json", action="store_true", help="the report as a JSON object")
    options = vars(parser.parse_args(arguments))
    as_json = options.pop("json")
    options["blocks"] = dict(options["blocks"])
    try:
        report = project(options.pop("source"), options.pop("target"), **options)
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{error.filename or 'writing'}: {error.strerror}", file=sys.stderr)
        return 2
    print(json.dumps(report, indent=1, default=str) if as_json else summary(report))
    return 0
