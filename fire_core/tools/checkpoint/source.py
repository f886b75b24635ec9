"""What a user points at: a transformers folder, a .safetensors file, or a file of `torch.save`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fire_core.tools.checkpoint import safetensors_file, torch_file
from fire_core.tools.checkpoint.stored import CheckpointError, Stored

# The files that transformers, timm and diffusers look for, in their order.
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "diffusion_pytorch_model.safetensors")
# Other weights, in whatever format. Beside the folder's own they are copies that a projection makes stale; those in
# folders below are parts of their own (sentence-transformers' layers, say).
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
        skipped: names of tensors of optimizers.
        others: the folder's other files, relative to it.
        stale: copies of the weights in other files or formats, and optimizers: not to lie beside projected weights.
        parts: weights in folders below.
    """

    path: Path
    tensors: list[Stored]
    files: list[Path]
    config: dict[str, Any] | None = None
    skipped: list[str] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)
    stale: list[Path] = field(default_factory=list)
    parts: list[Path] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Where config.json would be."""
        return self.path if self.path.is_dir() else self.path.parent


def load(path: str | Path) -> Checkpoint:
    """Look at a checkpoint; no number is read but those of files that torch before 1.6 wrote.

    Args:
        path: a folder with config.json and weights (one file, or several with their index), such an index, a
            .safetensors file, or a file of `torch.save`.

    Raises:
        CheckpointError: it is missing, broken, holds no tensors, or holds more than data.
    """
    path = Path(path)
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file or folder")
    if path.name.endswith(".index.json"):
        return _folder(path.parent, path)
    tensors, skipped = _tensors(path)
    if not tensors:
        raise CheckpointError(f"{path}: holds no tensors")
    return Checkpoint(path, tensors, [path], read_config(path.parent), skipped)


def _tensors(path: Path) -> tuple[list[Stored], list[str]]:
    if path.suffix == ".safetensors":
        return safetensors_file.tensors_of(path), []
    return torch_file.tensors_of(path)


def read_config(folder: Path) -> dict[str, Any] | None:
    """The folder's config.json; None without one."""
    return _json(folder / "config.json") if (folder / "config.json").is_file() else None


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return content


def _folder(folder: Path, index: Path | None = None) -> Checkpoint:
    files, placed, index = _weights(folder, index)
    tensors: list[Stored] = []
    skipped: list[str] = []
    for file in files:
        found, more = _tensors(file)
        tensors += [stored for stored in found if placed.get(stored.name, file.name) == file.name]
        skipped += more
    missing = sorted(set(placed) - {stored.name for stored in tensors})
    if missing:
        raise CheckpointError(f"{folder}: the index names {missing[0]}, which is not in {placed[missing[0]]}")
    if not tensors:
        raise CheckpointError(f"{folder}: holds no tensors")
    rest = sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file() and p not in (*files, index))
    weights = [p for p in rest if (p.suffix in OTHER and not p.name.startswith(KEPT)) or p.name.endswith(".index.json")]
    stale = [p for p in weights if len(p.parts) == 1]
    others = [p for p in rest if p not in stale] + ([index.relative_to(folder)] if index else [])
    parts = [p for p in weights if len(p.parts) > 1]
    return Checkpoint(folder, tensors, files, read_config(folder), skipped, others, stale, parts)


def _weights(folder: Path, index: Path | None) -> tuple[list[Path], dict[str, str], Path | None]:
    """The files that hold a folder's weights, in which of them its index says each tensor is, and that index."""
    for name in WEIGHTS:
        listed = index or folder / f"{name}.index.json"
        if listed.is_file() and (index is not None or not (folder / name).is_file()):
            placed = _json(listed).get("weight_map")
            if not isinstance(placed, dict) or not all(
                isinstance(v, str) and v == Path(v).name for v in placed.values()
            ):
                raise CheckpointError(f"{listed}: its weight_map does not name files beside it")
            files = [folder / name for name in dict.fromkeys(placed.values())]
            for file in files:
                if not file.is_file():
                    raise CheckpointError(f"{file}: no such file, but the index names it")
            return files, placed, listed
        if (folder / name).is_file():
            return [folder / name], {}, None
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found, {}, None
    raise CheckpointError(f"{folder}: holds no {', '.join(WEIGHTS)}, nor an index of one")
