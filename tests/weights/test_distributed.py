"""DDP and sharded weights: every rank ends with the numbers of a single process. Real processes, gloo, CPU."""

import copy
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fire_core import FireWarning, fire_, is_fresh, muon_groups, shrink_and_perturb_
from fire_core.integrations.torch import FireHook
from fire_core.methods import Chain, Dash, Fire, FullReset, Method, RandomIsometry, ShrinkAndPerturb
from fire_core.triggers import Plateau
from tests.networks import GPT
from tests.zygote import Zygote

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")


def network() -> nn.Sequential:
    """Convolutions, several linear layers of one shape, and widths that no number of ranks divides."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 7, 3), nn.Flatten(), nn.Linear(7 * 9, 13), *(nn.Linear(13, 13) for _ in range(5)), nn.Linear(13, 3)
    )


def projected(model: nn.Module, solver: str, **options: Any) -> nn.Module:
    """What a single process makes of it."""
    fire_(model, solver=solver, **options)
    return model


# ------------------------------------------------------------------------------------- what each process runs


def ddp(rank: int, world: int) -> None:
    """Every rank ends with the numbers of a single process, and trains on with the others."""
    model = nn.parallel.DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.no_grad():
        report = fire_(model, solver="exact", optimizer=optimizer)
    assert gap(model.module, projected(network(), "exact")) < 1e-6
    assert report.rows[0].name == "0.weight"
    assert report.total("dfi_after") < 1e-8
    assert same_on_all_ranks(torch.tensor([report.total("dfi_after")]), *model.module.state_dict().values())
    before = model.module[2].weight.detach().clone()
    model(torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(rank))).sum().backward()
    optimizer.step()  # the reducer and the optimizer still hold the same parameters
    assert same_on_all_ranks(*model.module.state_dict().values())
    assert not torch.equal(before, model.module[2].weight)


def fsdp(rank: int, world: int) -> None:
    """Both solvers, a step afterwards, shrink and perturb, and a NaN in one shard, which stops every rank."""
    from torch.distributed.fsdp import fully_shard

    init = copy.deepcopy(network().state_dict())
    for solver in ("newton_schulz", "exact"):
        model = network()
        for layer in (model[2], model[4]):
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.Adam(model.parameters())
        report = fire_(model, solver=solver, optimizer=optimizer, init=init)
        assert gap(model, projected(network(), solver)) < 1e-6
        assert same_on_all_ranks(torch.tensor([report.total("dfi_after")]))
        model(torch.randn(2, 3, 5, 5)).sum().backward()
        optimizer.step()
    shards = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model[4].weight.zero_()  # which one rank solves again, with initial weights that all have to gather
    report = fire_(model, solver="exact", init=shards)
    assert next(row for row in report if row.name == "4.weight").completed == 1
    shrink_and_perturb_(model, init, 1.0)
    assert all(torch.equal(whole_tensor(p), init[name]) for name, p in model.named_parameters())
    with torch.no_grad():
        if rank == world - 1:  # one shard of one rank
            model[3].weight.to_local().fill_(float("nan"))
    with pytest.raises(ValueError, match=r"^NaN or Inf in 3\.weight: the model is unchanged$"):
        fire_(model)


def after_an_evaluation(rank: int, world: int) -> None:
    """An evaluation leaves the outermost module's weights whole; an act still changes those that are trained."""
    from torch.distributed.fsdp import fully_shard

    single, images = projected(network(), "exact"), torch.randn(2, 3, 5, 5)
    for by_hook in (False, True):
        model = network()
        fully_shard(model[4])
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        average = {name: tensor.clone() for name, tensor in network().state_dict().items()}  # whole on each rank
        hook = FireHook(optimizer, model, solver="exact", copies=[average])
        with torch.no_grad():
            model(images)
        if by_hook:
            hook.act()
            assert (
                max(float((tensor - single.state_dict()[name]).abs().max()) for name, tensor in average.items()) < 1e-6
            )
        else:
            fire_(model, solver="exact", optimizer=optimizer)
        assert is_fresh(optimizer)
        model(images).sum().backward()
        optimizer.step()
        assert gap(model, single) < 1e-6
    with torch.no_grad():
        model(images)
    muon, _ = muon_groups(model)
    assert all(hasattr(p, "device_mesh") for group in muon for p in group["params"]), "the weights that are trained"


def methods(rank: int, world: int) -> None:
    """The methods that act at boundaries, on shards and on replicas, end with the numbers of a single process."""
    from torch.distributed.fsdp import fully_shard

    def acted(model: nn.Module, method: Method, **data: Any) -> nn.Module:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        FireHook(optimizer, model, method=method, **data).act()
        return model

    for method in (
        ShrinkAndPerturb(),
        RandomIsometry(),
        FullReset(),
        Chain({"full_reset": FullReset(), "fire": Fire()}),
    ):
        single, sharded = acted(network(), copy.deepcopy(method)), network()
        fully_shard(sharded)
        assert gap(acted(sharded, copy.deepcopy(method)), single) < 1e-6, type(method).__name__

    inputs = torch.randn(4 * world, 3, 5, 5, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(4 * world) % 3

    def given_to(*samples: int) -> dict[str, Any]:
        """What the hook of a process gets of its own samples."""
        return {
            "batches": lambda: [(inputs[slice(*samples)], targets[slice(*samples)])],
            "loss": lambda x, y: nn.functional.cross_entropy(wanted(x), y),
        }

    wanted = network()
    single = acted(wanted, Dash(), **given_to(0, 4 * world))
    wanted = nn.parallel.DistributedDataParallel(network())
    replica = acted(wanted, Dash(), **given_to(4 * rank, 4 * rank + 4))
    assert same_on_all_ranks(*replica.module.state_dict().values())
    assert gap(replica.module, single) < 1e-5
    sharded = network()
    fully_shard(sharded)
    with pytest.raises(ValueError, match="DASH takes gradients of whole weights"):
        acted(sharded, Dash(), **given_to(0, 4))


def a_metric_of_one_rank(rank: int, world: int) -> None:
    """A validation on rank 0 alone neither mixes with the gradients' sums nor stops the others."""
    trigger = Plateau("val", every=3, patience=2, min_delta=0.0)
    fired = []
    for step in range(1, 19):
        gradient = torch.ones(1)
        dist.all_reduce(gradient)
        assert gradient.item() == world, step
        if trigger.ask(step, val=5.0 if rank == 0 and step % 2 == 0 else None):
            fired.append(step)
    assert fired == [9, 18], "windows end alike on all ranks"
    assert trigger.value == 5.0


def part_of_the_way(rank: int, world: int) -> None:
    """A blend of replicas and of shards, with a matrix that has lost directions, which stay lost on every rank."""
    from torch.distributed.fsdp import fully_shard

    def damaged() -> nn.Sequential:
        model = network()
        with torch.no_grad():
            model[4].weight[2:6] = 0
            model[0].weight[:, 1, 2, 2] = 0
        return model

    for wrap in (nn.parallel.DistributedDataParallel, fully_shard):
        model, single = wrap(damaged()), damaged()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FireWarning)
            report, wanted = fire_(model, blend=0.5), fire_(single, blend=0.5)
        assert gap(getattr(model, "module", model), single) < 1e-6
        assert {row.name: row.rank for row in report}["4.weight"] == 9
        assert [row.rank for row in report] == [row.rank for row in wanted]
        assert report.warnings == wanted.warnings
        assert len(caught) == 2
        assert same_on_all_ranks(torch.tensor([report.total("dfi_after"), report.total("sfe")]))


def fused(rank: int, world: int) -> None:
    """Row blocks of a sharded fused projection, with the optimizer forgetting only those rows; tied weights."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import distribute_tensor

    torch.manual_seed(0)
    model = GPT(n_layer=1)
    start, single = copy.deepcopy(model.state_dict()), projected(copy.deepcopy(model), "exact", layout="qk")
    half = projected(copy.deepcopy(model), "exact", layout="qk", blend=0.5)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    optimizer.step()
    shards = {n: distribute_tensor(start[n], p.device_mesh, p.placements) for n, p in model.state_dict().items()}
    model.load_state_dict(shards)
    fire_(model, layout="qk", solver="exact", optimizer=optimizer)
    assert gap(model, single) < 1e-6
    moment = optimizer.state[model.get_parameter("transformer.h.0.attn.c_attn.weight")]["exp_avg_sq"].full_tensor()
    assert not moment[:24].any()
    assert moment[24:].any()
    model.load_state_dict(shards)
    fire_(model, layout="qk", blend=0.5)
    assert gap(model, half) < 1e-6


def meshes(rank: int, world: int) -> None:
    """Tensor parallel, FSDP2 around tensor parallel, and HSDP, on four processes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    if world < 4:
        return
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    square = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("outer", "inner"))
    for shard in (
        lambda model: parallelize_module(model, init_device_mesh("cpu", (world,)), plan),
        lambda model: fully_shard(parallelize_module(model, square["inner"], plan), mesh=square["outer"]),
        lambda model: fully_shard(model, mesh=square),
    ):
        model = mlp()
        shard(model)
        optimizer = torch.optim.Adam(model.parameters())
        report = fire_(model, solver="exact", optimizer=optimizer)
        assert gap(model, projected(mlp(), "exact")) < 1e-6  # one batch or another: sums of two orders
        assert report.total("dfi_after") < 1e-8
        half = mlp()
        shard(half)
        fire_(half, blend=0.5)
        assert gap(half, projected(mlp(), "exact", blend=0.5)) < 1e-6
        before = whole_tensor(model.get_parameter("0.weight"))
        model(torch.randn(4, 12)).sum().backward()
        optimizer.step()
        assert not torch.equal(before, whole_tensor(model.get_parameter("0.weight")))


def mlp() -> nn.Sequential:
    """Two layers that tensor parallelism divides, and one whose rows two ranks do not share evenly."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 12), nn.Linear(12, 5))


def whole_tensor(parameter: torch.Tensor) -> torch.Tensor:
    return getattr(parameter, "full_tensor", lambda: parameter)().detach().clone()


def gap(model: nn.Module, single: nn.Module) -> float:
    """The largest distance of a sharded model's weights from those of a single process."""
    wanted = dict(single.named_parameters())
    return max(float((whole_tensor(p) - wanted[name].detach()).abs().max()) for name, p in model.named_parameters())


def same_on_all_ranks(*values: torch.Tensor) -> bool:
    flat = torch.cat([value.double().flatten() for value in values])
    parts = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, flat)
    return all(torch.equal(part, flat) for part in parts)


def main(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    for case in (ddp, fsdp, after_an_evaluation, methods, a_metric_of_one_rank, part_of_the_way, fused, meshes):
        case(rank, world)
    dist.barrier()
    dist.destroy_process_group()


def start_ranks(zygote: Zygote, module: str, world: int, folder: Path) -> None:
    """Run a module as so many processes, which check themselves.

    Raises:
        AssertionError: one of them failed.
    """
    ranks = [zygote.start(folder, module, str(rank), str(world), str(folder)) for rank in range(world)]
    answers = [zygote.end(folder, rank) for rank in ranks]
    assert all(answer.code == 0 for answer in answers), "\n".join(answer.err for answer in answers)


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_rank_ends_with_the_numbers_of_a_single_process(world: int, tmp_path: Path, zygote: Zygote) -> None:
    start_ranks(zygote, "tests.weights.test_distributed", world, tmp_path)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
