"""DDP and sharded weights: every rank ends with the numbers of a single process. Real processes, gloo, CPU."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fire_core import fire_, shrink_and_perturb_
from tests.networks import GPT

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")


def network() -> nn.Sequential:
    """Convolutions, several linear layers of one shape, and widths that no number of ranks divides."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 7, 3), nn.Flatten(), nn.Linear(7 * 9, 13), *(nn.Linear(13, 13) for _ in range(5)), nn.Linear(13, 3)
    )


def expected(solver: str) -> dict[str, torch.Tensor]:
    model = network()
    fire_(model, solver=solver)
    return model.state_dict()


# ------------------------------------------------------------------------------------- what each process runs


def ddp(rank: int, world: int) -> dict[str, object]:
    model = nn.parallel.DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.no_grad():
        report = fire_(model, solver="exact", optimizer=optimizer)
    gap = max(float((p - expected("exact")[name]).abs().max()) for name, p in network_state(model.module))
    after = copy.deepcopy(model.module.state_dict())
    model(torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(rank))).sum().backward()
    optimizer.step()  # the reducer and the optimizer still hold the same parameters
    return {
        "gap": gap,
        "equal": same_on_all_ranks(after),
        "equal_after_step": same_on_all_ranks(model.module.state_dict()),
        "moved": not torch.equal(after["2.weight"], model.module.state_dict()["2.weight"]),
        "dfi": report.total("dfi_after"),
        "names": [row.name for row in report],
    }


def fsdp(rank: int, world: int) -> dict[str, object]:
    from torch.distributed.fsdp import fully_shard

    init = copy.deepcopy(network().state_dict())
    out: dict[str, object] = {}
    for solver in ("newton_schulz", "exact"):
        model = network()
        for layer in (model[2], model[4]):
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.Adam(model.parameters())
        report = fire_(model, solver=solver, optimizer=optimizer, init=init)
        whole = {name: p.full_tensor() for name, p in model.named_parameters()}
        out[f"gap_{solver}"] = max(
            float((p - expected(solver)[name]).detach().abs().max()) for name, p in whole.items()
        )
        out[f"dfi_{solver}"] = report.total("dfi_after")
        model(torch.randn(2, 3, 5, 5)).sum().backward()
        optimizer.step()
    shrink_and_perturb_(model, init, 1.0)
    out["restored"] = all(torch.equal(p.full_tensor().detach(), init[n]) for n, p in model.named_parameters())
    with torch.no_grad():
        if rank == world - 1:  # one shard of one rank
            model[3].weight.to_local().fill_(float("nan"))
    try:
        fire_(model)
    except ValueError as error:
        out["error"] = str(error)
    return out


def fused(rank: int, world: int) -> dict[str, object]:
    """Row blocks of a sharded fused projection, with the optimizer forgetting only those rows; tied weights."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = GPT(n_layer=1)
    single = copy.deepcopy(model)
    fire_(single, layout="qk", solver="exact")
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    optimizer.step()
    model.load_state_dict(sharded_like(model, GPT(n_layer=1), 0))
    fire_(model, layout="qk", solver="exact", optimizer=optimizer)
    name = "transformer.h.0.attn.c_attn.weight"
    weight = model.get_parameter(name)
    moment = optimizer.state[weight]["exp_avg_sq"].full_tensor()
    return {
        "gap": float((weight.full_tensor() - single.get_parameter(name)).detach().abs().max()),
        "forgotten": not moment[:24].any(),
        "kept": bool(moment[24:].any()),
    }


def meshes(rank: int, world: int) -> dict[str, object]:
    """Tensor parallel, FSDP2 around tensor parallel, and HSDP: how far each is from the single process's result."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    square = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("outer", "inner"))
    makers = {
        "tensor_parallel": lambda model: parallelize_module(model, init_device_mesh("cpu", (world,)), plan),
        "fsdp_tensor_parallel": lambda model: fully_shard(
            parallelize_module(model, square["inner"], plan), mesh=square["outer"]
        ),
        "hsdp": lambda model: fully_shard(model, mesh=square),
    }
    out: dict[str, object] = {}
    for name, shard in makers.items():
        single = mlp()
        fire_(single, solver="exact")
        model = mlp()
        shard(model)
        optimizer = torch.optim.Adam(model.parameters())
        report = fire_(model, solver="exact", optimizer=optimizer)
        whole = {key: whole_tensor(p) for key, p in model.named_parameters()}
        out[name] = max(float((whole[key] - p.detach()).abs().max()) for key, p in single.named_parameters())
        assert report.total("dfi_after") < 1e-8
        model(torch.randn(4, 12)).sum().backward()
        optimizer.step()
        moved = whole_tensor(model.get_parameter("0.weight"))
        assert not torch.equal(moved, whole["0.weight"])
    return out


def mlp() -> nn.Sequential:
    """Two layers that tensor parallelism divides, and one whose rows two ranks do not share evenly."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 12), nn.Linear(12, 5))


def whole_tensor(parameter: torch.Tensor) -> torch.Tensor:
    return getattr(parameter, "full_tensor", lambda: parameter)().detach().clone()


def sharded_like(model: nn.Module, fresh: nn.Module, seed: int) -> dict[str, torch.Tensor]:
    from torch.distributed.tensor import distribute_tensor

    torch.manual_seed(seed)
    fresh = type(fresh)(n_layer=1)
    return {
        name: distribute_tensor(fresh.state_dict()[name].detach(), value.device_mesh, value.placements)
        for name, value in model.state_dict().items()
    }


def network_state(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, value.detach()) for name, value in model.state_dict().items()]


def same_on_all_ranks(state: dict[str, torch.Tensor]) -> bool:
    flat = torch.cat([value.flatten() for value in state.values()])
    parts = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, flat)
    return all(torch.equal(part, flat) for part in parts)


CASES = {"ddp": ddp, "fsdp": fsdp, "fused": fused, "meshes": meshes}


def main(case: str, rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    result = {name: CASES[name](rank, world) for name in case.split(",") if name != "meshes" or world == 4}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


# ------------------------------------------------------------------------------------------------------- the tests


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def results(request, tmp_path_factory) -> list[dict]:
    """What all processes report, one start for all cases."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "tests.weights.test_distributed", ",".join(CASES)]
    root = Path(__file__).parents[2]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(request.param), str(folder)],
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(request.param)
    ]
    try:
        outputs = [process.communicate(timeout=180)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(request.param)]


def test_ddp_ranks_end_equal(results):
    for result in (result["ddp"] for result in results):
        assert result["gap"] < 1e-6
        assert result["equal"]
        assert result["equal_after_step"]
        assert result["moved"]
        assert result["dfi"] < 1e-8
        assert result["names"][0] == "0.weight"
    assert len({result["ddp"]["dfi"] for result in results}) == 1


@pytest.mark.parametrize("solver", ["newton_schulz", "exact"])
def test_sharded_weights_agree_with_a_single_process(results, solver):
    for result in results:
        assert result["fsdp"][f"gap_{solver}"] < 1e-6
    assert len({result["fsdp"][f"dfi_{solver}"] for result in results}) == 1


def test_sharded_shrink_and_perturb(results):
    assert all(result["fsdp"]["restored"] for result in results)


def test_nan_in_one_shard_stops_every_rank(results):
    assert {result["fsdp"]["error"] for result in results} == {"NaN or Inf in 3.weight: the model is unchanged"}


def test_blocks_of_a_sharded_fused_projection(results):
    for result in (result["fused"] for result in results):
        assert result["gap"] < 1e-6
        assert result["forgotten"]
        assert result["kept"]


@pytest.mark.parametrize("kind", ["tensor_parallel", "fsdp_tensor_parallel", "hsdp"])
def test_weights_on_meshes_of_four_processes(results, kind):
    if len(results) < 4:
        pytest.skip("four processes, which the slow tests start")
    assert all(result["meshes"][kind] < 1e-6 for result in results)  # one batch or another: sums of two orders


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
