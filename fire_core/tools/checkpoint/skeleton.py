"""The model that a checkpoint belongs to, built without numbers (on torch's meta device), so that `resolve` can say how
each weight is cut.

From config.json (transformers, timm) or by name (`timm:resnet18`, `torchvision:resnet18`). With neither, a tree of
modules is made from the tensors' names: all are bare parameters, which no layout touches, but 2-D weights that an
option declares to be linear layers'.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fire_core.tools.checkpoint import source
from fire_core.tools.checkpoint.source import Checkpoint
from fire_core.tools.checkpoint.stored import CheckpointError, StoredTensor


def model_of(checkpoint: Checkpoint, name: str | None = None) -> tuple[nn.Module | None, str]:
    """Return the model of a checkpoint, without numbers, and what the user has to know of how it was found.

    Args:
        checkpoint: what `source.load` gave.
        name: `timm:<model>`, `torchvision:<model>` or a folder with a config.json; None for its own config.json.

    Returns:
        The model, None where nothing names it; and a line for the user, "" if there is nothing to say.

    Raises:
        CheckpointError: the name is unknown, or its package is missing.
    """
    if name is None and checkpoint.config is None:
        return None, "no config.json and no --model: nothing says what the weights are, --include and --blocks can"
    try:
        if name is None:
            folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
            return _build_from_config(folder, checkpoint.config or {}), ""
        kind, _, which = name.partition(":")
        if kind in ("timm", "torchvision"):
            return (_build_timm(which, {}) if kind == "timm" else _build_torchvision(which)), ""
        if Path(name).is_dir() and (config := source.read_config(Path(name))) is not None:
            return _build_from_config(Path(name), config), ""
    except CheckpointError as error:
        if name is None:  # the checkpoint's own file: names are the next best thing
            return None, f"{error}: nothing else says what the weights are, --include and --blocks can"
        raise CheckpointError(f"--model={name}: {error}") from error
    raise CheckpointError(f"--model={name}: accepted: timm:<name>, torchvision:<name>, a folder with a config.json")


def _build_from_config(folder: Path, config: Mapping[str, Any]) -> nn.Module:
    """Build the model that a config.json names, without numbers: timm's by `architecture`, else transformers'.

    Args:
        folder: holds the config.json.
        config: what it says.

    Raises:
        CheckpointError: it names no model, or one that the installed package does not know, or asks for code of others.
    """
    if isinstance(config.get("architecture"), str):  # timm's own files on the hub
        arguments = config.get("model_args") or {}
        if not isinstance(arguments, dict) or not all(_is_harmless(key, value) for key, value in arguments.items()):
            raise CheckpointError("config.json: model_args is refused: not all of it are sizes, switches and layers")
        return _build_timm(config["architecture"], {"num_classes": config.get("num_classes", 1000), **arguments})
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise CheckpointError(f"{folder / 'config.json'} names no architecture")
    with _quiet("transformers, which knows config.json's model,"):
        import transformers

        transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call, unused-ignore]
        found = getattr(transformers, names[0], None)
        if not isinstance(found, type) or not issubclass(found, nn.Module):
            raise CheckpointError(f"transformers {transformers.__version__} has no {names[0]}")
        _refuse_code_of_others(config)
        with _offline():
            settings = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            with torch.device("meta"):
                model: Any = found(settings)
        model.tie_weights()  # early releases of transformers 5 tie only what they load: a tied head would be kept
        built: nn.Module = model
        return built


def _refuse_code_of_others(value: Any, name: str = "") -> None:
    """Refuse what lets transformers fetch code or a model's description from a hub or from a path.

    An implementation of attention or experts, a backbone or an architecture may be the name of a repository, and an
    argument of timm's models (`model_args`) a file of weights that older versions of timm unpickle.

    Args:
        value: what config.json says, or a part of it.
        name: the names of the keys that lead to it.

    Raises:
        CheckpointError: there is such a value, at any depth.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            _refuse_code_of_others(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for inner in value:
            _refuse_code_of_others(inner, name)
    elif "implementation" in name and not re.fullmatch(r"\w{1,40}", str(value)):
        raise CheckpointError(f"config.json: {name}={value!r} is refused: it is no plain name")
    elif re.search("backbone|architecture", name) and isinstance(value, str) and re.search(r"[:/\\]", value):
        raise CheckpointError(f"config.json: {name}={value!r} is refused: it is an address or a path")
    elif "model_args" in name and not _is_harmless(name.rpartition(".")[2], value):
        raise CheckpointError(f"config.json: {name}={value!r} is refused: not all of it are sizes, switches and layers")


def _is_harmless(key: str, value: Any) -> bool:
    """Return whether an argument of timm's models is a number, numbers, or the plain name of a layer or pooling.

    Other words could name a file (`checkpoint_path`) or other weights (`pretrained_cfg`).
    """
    if isinstance(value, str):
        is_choice = key in ("global_pool", "pool_type", "act_layer", "norm_layer", "pos_embed")
        return is_choice and (value == "" or value.isidentifier())
    if isinstance(value, list):
        return all(isinstance(number, int | float) for number in value)
    return isinstance(value, int | float | None)


def _build_timm(name: str, options: Mapping[str, Any]) -> nn.Module:
    """Build a model of timm, without numbers.

    Args:
        name: a model that timm itself defines; no address, no path.
        options: further arguments of `timm.create_model`.

    Raises:
        CheckpointError: timm is not installed, does not know the model, or cannot build it.
    """
    with _quiet("timm"):
        import timm

        if not timm.is_model(name):  # `hf_hub:...` and paths would be fetched and opened
            raise CheckpointError(f"timm {timm.__version__} has no model {name!r}")
        with torch.device("meta"):
            model: nn.Module = timm.create_model(name, pretrained=False, **options)
        return model


def _build_torchvision(name: str) -> nn.Module:
    """Build a model of torchvision, without numbers.

    Raises:
        CheckpointError: torchvision is not installed, or cannot build a model of this name.
    """
    with _quiet("torchvision"):
        torchvision = importlib.import_module("torchvision")
        with torch.device("meta"):
            model: nn.Module = torchvision.models.get_model(name, weights=None)
        return model


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Let nothing be asked of the hub: transformers looks up the backbone that a config names, say."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextlib.contextmanager
def _quiet(package: str) -> Iterator[None]:
    """Run code of another package without its warnings, and raise its errors as one line.

    Args:
        package: its name, for messages.

    Raises:
        CheckpointError: the package is not installed, or its code fails.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except CheckpointError:
            raise
        except ModuleNotFoundError as error:
            raise CheckpointError(f"{package} is not installed ({error.name})") from error
        except Exception as error:  # a config can ask for anything
            raise CheckpointError(f"{package} cannot build it ({' '.join(str(error).split())[:200]})") from error


def model_of_names(tensors: list[StoredTensor], declared: Sequence[str] = ()) -> nn.Module:
    """Return a tree of modules with the tensors' names and shapes, for a checkpoint whose model is not known.

    Args:
        tensors: the tensors of a checkpoint.
        declared: patterns of 2-D weights that are linear layers'.
    """
    weights = [stored.name for stored in tensors if stored.tensor.ndim == 2 and stored.name.endswith(".weight")]
    linear = {name.removesuffix(".weight") for name in weights if any(fnmatchcase(name, d) for d in declared)}
    root = nn.Module()
    for stored in tensors:
        *path, last = stored.name.split(".")
        if not stored.floating or not all([*path, last]):
            continue
        # Names such as `state_dict` and `half` are methods of every module, so that `add_module` would refuse them.
        holder: nn.Module = root
        for i, part in enumerate(path):
            is_layer = ".".join(path[: i + 1]) in linear
            new = nn.Linear(1, 1, bias=False, device="meta") if is_layer else nn.Module()
            child = holder._modules.setdefault(part, new)
            assert child is not None, "each child is a module"
            holder = child
        weight = torch.empty(stored.tensor.shape, device="meta", dtype=stored.tensor.dtype)
        holder._parameters[last] = nn.Parameter(weight)
    return root
