"""The model that a checkpoint belongs to, built without numbers (on torch's meta device), so that `resolve` can say how
each weight is cut.

From config.json (transformers, timm) or by name (`timm:resnet18`, `torchvision:resnet18`). With neither, a tree of
modules is made from the tensors' names: 2-D weights whose names are those of linear layers become such, and all else is
a bare parameter, which no layout touches.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fire_core.tools.checkpoint import source
from fire_core.tools.checkpoint.source import Checkpoint
from fire_core.tools.checkpoint.stored import CheckpointError, Stored
from fire_core.weights.topology import HOLDS

# Names that linear layers have everywhere, stored (d_out, d_in). Not `c_attn`, `c_fc`, `c_proj`: GPT-2's are transposed
# in transformers and not in other code. Not what is fused: how q, k and v lie in it, a name does not say.
LINEAR = {
    "q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "to_q", "to_k", "to_v", "wq", "wk", "wv", "wo", "query",
    "key", "value", "q_lin", "k_lin", "v_lin", "out_lin", "gate_proj", "up_proj", "down_proj", "fc1", "fc2", "w1",
    "w2", "w3", "lin1", "lin2", "linear1", "linear2", "lm_head",
}  # fmt: skip
FUSED = {name for name, held in HOLDS.items() if len(held) > 1}
FUSED |= {"in_proj", "gate_up_proj", "w12", "Wi", "fused_qkv", "in_proj_qkvz"}


def model_of(checkpoint: Checkpoint, name: str | None = None) -> tuple[nn.Module | None, str]:
    """The model of a checkpoint, and what to tell the user of how it was found; None where nothing says.

    Args:
        checkpoint: what `source.load` gave.
        name: `timm:<model>`, `torchvision:<model>` or a folder with a config.json; None for its own config.json.

    Raises:
        CheckpointError: the name is unknown, or its package is missing.
    """
    if name is None and checkpoint.config is None:
        return None, "no config.json and no --model: weights are known by their names only"
    try:
        if name is None:
            return _from_config(checkpoint.folder, checkpoint.config or {}), ""
        kind, _, which = name.partition(":")
        if kind in ("timm", "torchvision"):
            return (_timm(which) if kind == "timm" else _torchvision(which)), ""
        if Path(name).is_dir() and (config := source.read_config(Path(name))) is not None:
            return _from_config(Path(name), config), ""
    except CheckpointError as error:
        if name is None:  # the checkpoint's own file: names are the next best thing
            return None, f"{error}: weights are known by their names only"
        raise CheckpointError(f"--model={name}: {error}") from error
    raise CheckpointError(f"--model={name}: accepted: timm:<name>, torchvision:<name>, a folder with a config.json")


def _from_config(folder: Path, config: Mapping[str, Any]) -> nn.Module:
    if isinstance(config.get("architecture"), str):  # timm's own files on the hub
        return _timm(config["architecture"], num_classes=config.get("num_classes", 1000), **_plain_arguments(config))
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
        settings = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model: Any = found(settings)
        model.tie_weights()  # early releases of transformers 5 tie only what they load: a tied head would be kept
        built: nn.Module = model
        return built


def _plain_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """`model_args` of a timm model's config.json: sizes, switches and short names.

    Raises:
        CheckpointError: one names a file or weights, which timm would open or fetch, or is not plain.
    """
    arguments = config.get("model_args") or {}
    for key, value in arguments.items() if isinstance(arguments, dict) else [("model_args", arguments)]:
        plain = all(
            part is None or isinstance(part, int | float) or (isinstance(part, str) and re.fullmatch(r"\w{1,40}", part))
            for part in (value if isinstance(value, list) else [value])
        )
        if not plain or str(key).startswith(("pretrained", "checkpoint", "cache", "model_args")):
            raise CheckpointError(f"config.json: model_args.{key} is refused: it is no size, switch or plain name")
    return dict(arguments)


def _refuse_code_of_others(config: Mapping[str, Any]) -> None:
    """Refuse what lets transformers fetch code: an implementation of attention or experts that is a repository's name.

    Raises:
        CheckpointError: there is such a value, at any depth.
    """
    for key, value in config.items():
        if isinstance(value, dict):
            _refuse_code_of_others(value)
        elif "implementation" in key and not re.fullmatch(r"\w{1,40}", str(value)):
            raise CheckpointError(f"config.json: {key}={value!r} is refused: it is no plain name")


def _timm(name: str, **options: Any) -> nn.Module:
    with _quiet("timm"):
        import timm

        if not timm.is_model(name):  # `hf_hub:...` and paths would be fetched and opened
            raise CheckpointError(f"timm {timm.__version__} has no model {name!r}")
        with torch.device("meta"):
            model: nn.Module = timm.create_model(name, pretrained=False, **options)
        return model


def _torchvision(name: str) -> nn.Module:
    with _quiet("torchvision"):
        torchvision = importlib.import_module("torchvision")
        with torch.device("meta"):
            model: nn.Module = torchvision.models.get_model(name, weights=None)
        return model


@contextlib.contextmanager
def _quiet(package: str) -> Iterator[None]:
    """Around code of others: its warnings dropped, its errors on one line."""
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


def model_of_names(tensors: list[Stored], declared: Iterable[str] = ()) -> nn.Module:
    """A tree of modules with the tensors' names and shapes; see above. `declared`: see `is_linear`."""
    root = nn.Module()
    for stored in tensors:
        parts = stored.name.split(".")
        if not stored.floating or not all(parts):
            continue
        with contextlib.suppress(KeyError):  # a name that is a tensor's and a module's at once
            parameter = nn.Parameter(torch.empty(stored.shape, device="meta", dtype=stored.dtype))
            holder = _holder(root, parts[:-1], is_linear(stored, declared))
            holder.register_parameter(parts[-1], parameter)
    return root


def is_linear(stored: Stored, declared: Iterable[str] = ()) -> bool:
    """Whether name and shape are those of a linear layer's weight; `declared`: patterns of names that are."""
    parts = stored.name.split(".")
    known = parts[-2:-1] and (parts[-2] in LINEAR or any(fnmatchcase(stored.name, pattern) for pattern in declared))
    return len(stored.shape) == 2 and parts[-1] == "weight" and bool(known)


def _holder(module: nn.Module, parts: list[str], linear: bool) -> nn.Module:
    for i, part in enumerate(parts):
        child = module._modules.get(part)
        if child is None or (linear and i == len(parts) - 1 and not isinstance(child, nn.Linear)):
            made = nn.Linear(1, 1, bias=False, device="meta") if linear and i == len(parts) - 1 else nn.Module()
            for name, parameter in (child._parameters if child is not None else {}).items():
                made.register_parameter(name, parameter)
            for name, inner in (child._modules if child is not None else {}).items():
                made.add_module(name, inner)
            module.add_module(part, made)
            child = made
        module = child
    return module
