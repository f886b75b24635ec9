"""Files of `torch.save` (.pt, .pth, .bin, .ckpt), mapped into memory without running any code of theirs.

`weights_only=True` always. Beside tensors and plain containers, a few classes that hold nothing but data are let in;
any other is refused by its name.
"""

from __future__ import annotations

import argparse
import datetime
import pathlib
import re
import types
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from fire_core.tools.checkpoint.stored import CheckpointError, StoredTensor

OLD = "no file of torch.save, or one from before torch 1.6, which torch.save(torch.load(file), file) renews"
# What `optimizer.state_dict()` gives, by its keys; the names of files that flatten it.
OPTIMIZER = {"state", "param_groups"}
MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "sum")


def harmless() -> list[Any]:
    """Return the classes that hold data alone: building an object of theirs runs no code of the file's."""
    found: list[Any] = [argparse.Namespace, types.SimpleNamespace]
    found += [datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone]
    paths = {kind.__name__: kind for kind in (type(pathlib.Path()), pathlib.PurePosixPath, pathlib.PureWindowsPath)}
    for name, kind in (paths | {"WindowsPath": paths.get("WindowsPath", pathlib.PureWindowsPath)}).items():
        found += [(kind, f"{module}.{name}") for module in ("pathlib", "pathlib._local")]
    try:
        import numpy as np
    except ImportError:
        return found
    multiarray = getattr(np, "_core", None) or np.core  # numpy 1
    for function in ("scalar", "_reconstruct"):
        value = getattr(multiarray.multiarray, function)
        found += [(value, f"numpy.{core}.multiarray.{function}") for core in ("core", "_core")]
    kinds = {type(np.dtype(code)) for code in (*np.typecodes["All"], "O")}
    return [*found, np.dtype, np.ndarray, *kinds]


def tensors_of(path: Path) -> tuple[Any, list[StoredTensor], list[str], list[str]]:
    """Return what a file holds, its tensors, and the names of optimizers' tensors, which are left out of these.

    The last of the four are the devices from which tensors were saved, other than the CPU, such as `cuda:0`.

    Raises:
        CheckpointError: no such file, no checkpoint, or one that holds more than data.
    """
    skipped: list[str] = []
    devices: dict[str, None] = {}

    def to_cpu(storage: Any, location: str) -> Any:
        devices[location] = None
        return storage  # which is on the CPU

    with safe_globals(harmless()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about pickle protocols; what matters ends in an error
        try:
            if not zipfile.is_zipfile(path):
                with path.open("rb") as file:
                    is_cut_off = file.read(4) == b"PK\x03\x04"  # a zip archive, whose table of contents is at its end
                raise CheckpointError(f"{path}: no readable checkpoint: {'its end is missing' if is_cut_off else OLD}")
            if _is_torchscript(path):
                raise CheckpointError(f"{path}: a TorchScript archive, whose code is compiled: save its state_dict()")
            content = torch.load(path, map_location=to_cpu, mmap=True, weights_only=True)
            tensors = [StoredTensor(name, path, value) for name, value in _flatten(content, skipped)]
            return content, tensors, skipped, [name for name in devices if name != "cpu"]
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror or error}") from error
        except CheckpointError:
            raise
        except Exception as error:  # a broken file can fail in any way
            raise CheckpointError(f"{path}: {_reason_of_failure(path, error)}") from error


def _is_torchscript(path: Path) -> bool:
    """Return whether a zip archive is one of `torch.jit.save`, which holds code."""
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _reason_of_failure(path: Path, error: Exception) -> str:
    """Return the end of the message about a file that was not read: which classes it holds beside data, if any.

    Args:
        path: the file.
        error: what torch raised on reading it.
    """
    try:
        classes = sorted(set(get_unsafe_globals_in_checkpoint(path)))
    except Exception:  # not every file gets so far
        classes = re.findall(r"(?:GLOBAL|class|global) ([\w.]+\.[\w.]+)", str(error))[:1]
    if classes:
        return f"refused: it holds {', '.join(classes)}, and reading more than data could run code"
    return f"no readable checkpoint ({type(error).__name__})"


def _flatten(content: Any, skipped: list[str], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors within nested containers by dotted names; add the names of optimizers' tensors to `skipped`."""
    if isinstance(content, Tensor):
        if prefix.rsplit(".", 1)[-1] in MOMENTS:
            skipped.append(prefix)
        else:
            yield prefix, content.detach()
        return
    pairs = dict(enumerate(content)) if isinstance(content, list | tuple) else content
    if not isinstance(pairs, Mapping):
        return
    of_optimizer = set(pairs) >= OPTIMIZER
    for key, value in pairs.items():
        for name, tensor in _flatten(value, skipped, f"{prefix}.{key}" if prefix else str(key)):
            if of_optimizer:
                skipped.append(name)
            else:
                yield name, tensor
