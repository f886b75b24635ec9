"""Weights sharded over the processes (FSDP2), for models that do not fit on one device: `parallel=fsdp`.

Checkpoints hold whole tensors, so that a run can be resumed with any number of processes, sharded or not.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

from fire_core.weights.distributed import is_sharded
from language.model import GPT


def shard_(model: GPT, device: torch.device, size: int) -> None:
    """Shard a model's weights over `size` processes, block by block; the tied matrix stays one."""
    mesh = init_device_mesh(device.type, (size,))
    for block in model.transformer["h"]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def gathered(state: Any) -> Any:
    """A nested state with whole tensors on the CPU instead of shards; all ranks call it."""
    if isinstance(state, Tensor):
        whole: Any = state
        return whole.full_tensor().cpu() if is_sharded(state) else state
    if isinstance(state, dict):
        return {key: gathered(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(gathered(value) for value in state)
    return state


def to_shards(state: dict[str, Any], model: GPT) -> dict[str, Any]:
    """A learner's state with shards of the weights instead of whole tensors, where the model's are sharded."""
    own = model.state_dict()
    if not any(is_sharded(tensor) for tensor in own.values()):
        return state

    def shards(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: _like(own[name], value) for name, value in weights.items()}

    return {
        **state,
        "modules": {"model": shards(state["modules"]["model"])},
        "init": {"model": shards(state["init"]["model"])},
        "kept": {name: {**entry, "weights": shards(entry["weights"])} for name, entry in state["kept"].items()},
    }


def shard_moments(optimizer: torch.optim.Optimizer) -> None:
    """Replace whole moments of sharded parameters by their shards."""
    for parameter, slots in optimizer.state.items():
        slots |= {key: _like(parameter, value) for key, value in slots.items()}


def _like(parameter: Tensor, value: Any) -> Any:
    """This process's shard of a whole tensor of the parameter's shape; anything else as it is."""
    if not isinstance(value, Tensor) or not is_sharded(parameter) or value.shape != parameter.shape:
        return value
    sharded: Any = parameter
    whole = value.to(sharded.to_local().device)
    return distribute_tensor(whole, sharded.device_mesh, sharded.placements, src_data_rank=None)
