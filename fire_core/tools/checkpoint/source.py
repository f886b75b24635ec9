"""What a user points at: a transformers folder, a .safetensors file, or a file of `torch.save`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fire_core.tools.checkpoint import safetensors_file, torch_file
from fire_core.tools.checkpoint.stored import CheckpointError, StoredTensor

# The files that transformers, timm and diffusers look for, in their order.
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "diffusion_pytorch_model.safetensors")
# Other weights, in whatever format: beside the folder's own they are copies that a projection makes stale.
OTHER = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf", ".pkl", ".tflite", ".ot")
KEPT = ("training_args.bin", "scheduler.pt", "scaler.pt", "rng_state")  # of transformers' Trainer: no weights


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as it lies on disk.

    Attributes:
        path: the folder or file.
        tensors: in the order of the files; without optimizer states.
        files: those that hold the tensors.
        config: of its config.json; None without one.
        contents: what each file of `torch.save` holds, beside tensors too.
        skipped: names of tensors of optimizers.
        devices: those other than the CPU from which tensors of files of `torch.save` were saved, such as `cuda:0`.
        stale: in a folder, copies of the weights in other files or formats, and optimizers: not to lie beside projected
            weights.
    """

    path: Path
    tensors: list[StoredTensor]
    files: list[Path]
    config: dict[str, Any] | None = None
    contents: dict[Path, Any] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    stale: list[Path] = field(default_factory=list)


def load(path: str | Path) -> Checkpoint:
    """Look at a checkpoint; its numbers are mapped into memory.

    Args:
        path: a folder with config.json and weights (one file, or several with their index), a .safetensors file, or a
            file of `torch.save`.

    Raises:
        CheckpointError: it is missing, broken, holds no tensors, or holds more than data.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder")
    files, placed, index = _weight_files(path) if path.is_dir() else ([path], {}, None)
    tensors: list[StoredTensor] = []
    skipped: list[str] = []
    devices: dict[str, None] = {}
    contents: dict[Path, Any] = {}
    for file in files:
        if file.suffix == ".safetensors":
            found = safetensors_file.tensors_of(file)
        else:
            contents[file], found, of_optimizers, devices_of_file = torch_file.tensors_of(file)
            skipped += of_optimizers
            devices |= dict.fromkeys(devices_of_file)
        tensors += [stored for stored in found if placed.get(stored.name, file.name) == file.name]
    if missing := sorted(set(placed) - {stored.name for stored in tensors}):
        raise CheckpointError(f"{path}: the index names {missing[0]}, which is not in {placed[missing[0]]}")
    if not tensors:
        raise CheckpointError(f"{path}: holds no tensors")
    beside = sorted(p for p in path.glob("*") if p.is_file() and p not in (*files, index))  # of a file: none
    stale = [p.relative_to(path) for p in beside if is_named_as_weights(p)]
    config = read_config(path if path.is_dir() else path.parent)
    return Checkpoint(path, tensors, files, config, contents, skipped, [*devices], stale)


def is_named_as_weights(path: Path) -> bool:
    """Return whether a file has the name of weights, in any format, of an index of them, or of an optimizer."""
    return path.name.endswith((*OTHER, ".index.json")) and not path.name.startswith(KEPT)


def read_config(folder: Path) -> dict[str, Any] | None:
    """Return what the folder's config.json holds; None without one.

    Raises:
        CheckpointError: it cannot be read, or holds no JSON object.
    """
    return _read_json_object(folder / "config.json") if (folder / "config.json").is_file() else None


def _read_json_object(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Raises:
        CheckpointError: the file cannot be read, is no JSON, or holds something else than an object.
    """
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return content


def _weight_files(folder: Path) -> tuple[list[Path], dict[str, str], Path | None]:
    """Return the files that hold a folder's weights, in which of them each tensor is, and the index that says so.

    Returns:
        files, tensor -> name of its file, path of the index; the last two are empty and None without an index.

    Raises:
        CheckpointError: there are no weights, or the index names files that are not there.
    """
    for name in WEIGHTS:
        if (folder / name).is_file():
            return [folder / name], {}, None
        index = folder / f"{name}.index.json"
        if index.is_file():
            placed = _read_json_object(index).get("weight_map")
            named = isinstance(placed, dict) and all(isinstance(v, str) and v == Path(v).name for v in placed.values())
            if not isinstance(placed, dict) or not named:
                raise CheckpointError(f"{index}: its weight_map does not name files beside it")
            files = [folder / name for name in dict.fromkeys(placed.values())]
            for file in files:
                if not file.is_file():
                    raise CheckpointError(f"{file}: no such file, but the index names it")
            return files, placed, index
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found, {}, None
    raise CheckpointError(f"{folder}: holds no {', '.join(WEIGHTS)}, nor an index of one")
