"""Replicas that began or go on apart: local experts, initial weights of before the wrapping, a NaN in one of them."""

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from fire_core import dfi, fire_, plasticity_gap, polar_factor, sfe, should_reinitialize, shrink_and_perturb_
from fire_core.integrations.torch import FireHook
from fire_core.methods import Dash, FullReset, Method, ShrinkAndPerturb
from fire_core.triggers import Every, Plateau
from tests.weights.test_distributed import same_on_all_ranks, start_ranks
from tests.zygote import Zygote

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
DDP = nn.parallel.DistributedDataParallel


def drawn(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 3))


def raised(call: Callable[[], Any]) -> str:
    with pytest.raises(ValueError, match=r"\w") as caught:
        call()
    return str(caught.value)


def local_experts(rank: int) -> None:
    """Each process projects its own expert, which may be one of several shapes, and shares the work of the others."""
    model = drawn(0)
    model[1] = nn.Sequential(
        *(nn.Linear(5, 5) for _ in range(rank + 1)), nn.Linear(5, 5 + rank), nn.Linear(5 + rank, 5)
    )
    torch.manual_seed(rank)
    for p in model[1].parameters():
        nn.init.normal_(p)
    names = [name for name, _ in model.named_parameters() if name.startswith("1.")]
    DDP._set_params_and_buffers_to_ignore_for_model(model, names)
    wanted = {n: polar_factor(p.detach()) for n, p in model.named_parameters() if p.ndim == 2}
    fire_(DDP(model), solver="exact", scale="orthogonal")
    for name, p in model.named_parameters():
        if p.ndim == 2:
            torch.testing.assert_close(p.detach(), wanted[name], rtol=0, atol=1e-5)
    assert same_on_all_ranks(model[0].weight.detach(), model[3].weight.detach())
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model[1][0].weight[0, 0] = float("nan") if rank == 0 else 1.0
    said = raised(lambda: fire_(DDP(model)))
    assert said.startswith("NaN or Inf in 1.0.weight" if rank == 0 else "NaN or Inf in the weights of another process")
    torch.testing.assert_close(model[0].weight.detach(), before["0.weight"])


def initial_weights_of_before_the_wrapping(rank: int) -> None:
    """A hook has copied them before DDP made all processes equal: those of the first count. Given ones are refused."""
    acts: list[Method] = [ShrinkAndPerturb(variant="fire_paper"), ShrinkAndPerturb(), FullReset()]
    for method in acts:
        model = drawn(rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        hook = FireHook(optimizer, model, method=method)
        wrapped = DDP(model)
        wrapped(torch.randn(4, 6)).sum().backward()
        optimizer.step()
        hook.act()
        assert same_on_all_ranks(*model.state_dict().values())
        wanted = drawn(0).state_dict()
        if isinstance(method, FullReset):
            assert all(torch.equal(value, wanted[name]) for name, value in model.state_dict().items())
    model = drawn(rank)
    init = copy.deepcopy(model.state_dict())
    wrapped = DDP(model)
    before = copy.deepcopy(model.state_dict())
    assert "copy init after DistributedDataParallel" in raised(lambda: shrink_and_perturb_(wrapped, init, 0.5))
    assert "copy init after" in raised(lambda: fire_(wrapped, solver="exact", init=init))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    torch.set_num_threads(1 + rank)  # a check that sums floats would depend on it
    shrink_and_perturb_(wrapped, before, 0.5)
    fire_(wrapped, solver="exact", init=before)
    fire_(wrapped, init=init)  # which is not read
    torch.set_num_threads(1)


def a_nan_in_one_replica(rank: int) -> None:
    """The others would wait for it in the next collective."""
    for act in (fire_, lambda model: shrink_and_perturb_(model, copy.deepcopy(drawn(0).state_dict()), 0.5)):
        wrapped = DDP(drawn(0))
        with torch.no_grad():
            wrapped.module[0].weight[0, 0] = float("nan") if rank else 1.0
        said = raised(lambda act=act, wrapped=wrapped: act(wrapped))  # type: ignore[misc]
        assert "NaN or Inf in " in said


def other_numbers_of_batches(rank: int) -> None:
    """DASH passes batches through a wrapped model with batch norm, whose buffers each pass of DDP would share."""
    for is_compiled in (False, True):
        other_numbers(rank, is_compiled)


def other_numbers(rank: int, is_compiled: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3), nn.Linear(3, 0))
    wrapped = DDP(model)
    batches = [(torch.randn(4, 6), torch.zeros(4, dtype=torch.int64)) for _ in range(1 + 2 * rank)]
    hook = FireHook(
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.compile(wrapped, backend="eager") if is_compiled else wrapped,
        method=Dash(),
        batches=lambda: iter(batches),
        loss=lambda x, y: F.cross_entropy(wrapped(x)[:, :0].sum() + model[:3](x), y),
    )
    hook.act()
    assert same_on_all_ranks(model[0].weight.detach(), model[2].weight.detach())
    assert wrapped.broadcast_buffers


def an_expert_without_samples(rank: int) -> None:
    """A replica that has none knows no direction for the weights that it alone holds, and leaves them."""
    model = drawn(0)
    DDP._set_params_and_buffers_to_ignore_for_model(model, ["1.weight", "1.bias"])
    wrapped = DDP(model)
    hook = FireHook(
        torch.optim.SGD(model.parameters(), lr=0.1),
        wrapped,
        method=Dash(),
        batches=lambda: iter([(torch.randn(4, 6), torch.zeros(4, dtype=torch.int64))] * (1 - rank)),
        loss=lambda x, y: F.cross_entropy(wrapped(x), y),
    )
    before = model[1].weight.detach().clone()
    hook.act()
    assert torch.equal(before, model[1].weight) is (rank == 1)
    assert same_on_all_ranks(model[0].weight.detach(), model[3].weight.detach())


def sharded(rank: int) -> None:
    """What measures a weight gathers it; what returns a matrix, or trains a whole network, refuses it in one line."""
    from torch.distributed.fsdp import fully_shard

    model, whole = drawn(0), drawn(0)
    fully_shard(model)
    x, y = model[0].weight, whole[0].weight.detach()
    assert float(dfi(x)) == pytest.approx(float(dfi(y)), rel=1e-6)
    assert float(sfe(x, 2 * x)) == pytest.approx(float(sfe(y, 2 * y)), rel=1e-6)
    for call in (polar_factor, should_reinitialize):
        assert "full_tensor()" in raised(lambda call=call: call(x))  # type: ignore[misc]
    batches = [(torch.randn(4, 6), torch.zeros(4, dtype=torch.int64))]
    assert "sharded" in raised(lambda: plasticity_gap(model, fresh=lambda: drawn(1), batches=batches, steps=1))
    # Both shards of a weight of one row: all ranks count it, or none.
    row = nn.Sequential(nn.Linear(6, 1, bias=False), nn.Linear(1, 6, bias=False))
    fully_shard(row)
    hook = FireHook(torch.optim.SGD(row.parameters(), lr=0.1), row, solver="exact")
    assert same_on_all_ranks(torch.tensor(hook.act().changed))


def layers_of_transformers(rank: int) -> None:
    """`fully_shard` gives each layer another class, which is known all the same."""
    pytest.importorskip("transformers")
    from torch.distributed.fsdp import fully_shard
    from transformers.pytorch_utils import Conv1D

    model, whole = nn.Sequential(Conv1D(6, 4), nn.ReLU(), Conv1D(3, 6)), None
    whole = copy.deepcopy(model)
    for layer in (model[0], model[2]):
        fully_shard(layer)
    assert [row.name for row in fire_(model, solver="exact")] == [row.name for row in fire_(whole, solver="exact")]
    weight: Tensor = model[0].weight.full_tensor()
    torch.testing.assert_close(weight, whole[0].weight, rtol=0, atol=1e-6)


def steps_without_effect(rank: int) -> None:
    """Torch's distributed checkpoints make a step to fill an optimizer's state; it is none of training."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    for trigger in (Every(1), Plateau("loss")):
        model = drawn(0)
        optimizer = torch.optim.AdamW(model.parameters())
        hook = FireHook(optimizer, model, trigger)
        before = copy.deepcopy(model.state_dict())
        state = get_optimizer_state_dict(model, optimizer)
        set_optimizer_state_dict(model, optimizer, state)
        assert hook.step == 0
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        model(torch.randn(4, 6)).sum().backward()
        hook.observe(loss=1.0)
        optimizer.step()
        assert hook.step == 1


CASES = (
    local_experts,
    initial_weights_of_before_the_wrapping,
    a_nan_in_one_replica,
    other_numbers_of_batches,
    an_expert_without_samples,
    sharded,
    layers_of_transformers,
    steps_without_effect,
)


def main(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    for case in CASES:
        case(rank)
    dist.barrier()
    dist.destroy_process_group()


def test_replicas_that_differ(tmp_path: Path, zygote: Zygote) -> None:
    start_ranks(zygote, "tests.weights.test_replicas", 2, tmp_path)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
