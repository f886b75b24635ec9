"""SplitMuon on sharded weights: every rank ends with one process's numbers. Real processes, gloo, CPU."""

import copy
import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fire_core import SplitMuon, fire_, muon_groups
from fire_core.muon import optimizer as muon_optimizer
from tests.weights.test_distributed import start_ranks
from tests.zygote import Zygote

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")


def rows(*parts: tuple[int, int], **options: Any) -> tuple[Any, ...]:
    """Cuts of a "matrix" at rows, as `muon_groups` writes them."""
    plain = {"groups": 1, "transposed": False, "repeats": 1, "heads": 1, "columns": False}
    return tuple(("matrix", part, *(plain | options).values()) for part in parts)


# name: (shape, how many such weights, cuts); most lengths are divided by neither two nor four
WEIGHTS: dict[str, tuple[tuple[int, ...], int, tuple[Any, ...]]] = {
    "plain": ((13, 7), 5, ()),
    "thin": ((3, 10), 1, ()),  # with four ranks one has no row
    "fused": ((21, 6), 3, rows((0, 13), (13, 17), (17, 21))),  # q is scaled otherwise than k and v
    "interleaved": ((27, 5), 2, rows((0, 4), (4, 9), repeats=3)),
    "stored_transposed": ((6, 18), 1, rows((0, 10), (10, 14), (14, 18), transposed=True)),
    "experts": ((3, 9, 6), 2, rows((0, 5), (5, 9))),
    "conv": ((6, 5, 3, 3), 2, (("conv", None, 2, False, 1, 1, False),)),
    "deconv": ((4, 3, 2, 2), 1, (("conv_transpose", None, 2, False, 1, 1, False),)),
    "deconv_halves": (
        (5, 9, 2, 2),
        1,
        (("conv_transpose", (0, 5), 1, False, 1, 1, False), ("conv_transpose", (5, 9), 1, False, 1, 1, False)),
    ),
    "partly": ((11, 6), 1, rows((0, 4))),  # rows that no matrix has only decay
    "idle": ((9, 6), 1, ()),  # never has a gradient
}
OPTIONS = [
    {"lr": 0.02},
    {"lr": 0.02, "nesterov": False, "weight_decay": 0.0, "adjust_lr_fn": "match_rms_adamw"},
    {"lr": torch.tensor(0.02), "momentum": 0.5, "adjust_lr_fn": "spectral_unclamped"},
]


class Weights(nn.Module):
    """All of `WEIGHTS`, of one dtype."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name, (shape, count, _) in WEIGHTS.items():
            for at in range(count):
                value = torch.randn(shape, generator=generator).to(dtype)
                self.register_parameter(f"{name}{at}", nn.Parameter(value))

    def groups(self) -> list[dict[str, Any]]:
        return [
            {"params": [self.get_parameter(f"{name}{at}") for at in range(count)], "cuts": cuts}
            for name, (_, count, cuts) in WEIGHTS.items()
        ]


def feed(model: nn.Module, seed: int, skip: str = "idle") -> None:
    """The same gradients for every layout of a model."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        gradient = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        parameter.grad = None if name.startswith(skip) else sharded_as(parameter, gradient)


def sharded_as(parameter: Tensor, whole: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(parameter, DTensor):
        return whole
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)


def whole(tensor: Tensor) -> Tensor:
    full: Tensor = getattr(tensor, "full_tensor", lambda: tensor)().detach()
    return full


def assert_equal(model: nn.Module, single: nn.Module) -> None:
    """Within rounding: the last product is fused with the sum in one of them and not in the other."""
    expected = dict(single.named_parameters())
    for name, parameter in model.named_parameters():
        rtol, atol = (1.6e-2, 1e-4) if parameter.dtype == torch.bfloat16 else (1.3e-6, 1e-6)
        gap = (whole(parameter) - expected[name].detach()).abs()
        assert bool((gap <= atol + rtol * expected[name].abs()).all()), (name, gap.max())


def place(model: nn.Module, mesh: Any, choose: Callable[[Tensor], list[Any]]) -> None:
    """Shard every parameter as `choose` says, without any wrapper."""
    from torch.distributed.tensor import distribute_tensor

    for name, parameter in list(model.named_parameters()):
        value = distribute_tensor(parameter.detach(), mesh, choose(parameter), src_data_rank=None)
        model.register_parameter(name, nn.Parameter(value))


# ------------------------------------------------------------------------------------- what each process runs


def fsdp(rank: int, world: int) -> None:
    """Every kind of cut under FSDP2, in float32 and bfloat16; momentum stays sharded."""
    from torch.distributed.fsdp import fully_shard

    for dtype, options in [*((torch.float32, options) for options in OPTIONS), (torch.bfloat16, OPTIONS[0])]:
        single, model = Weights(dtype), fully_shard(Weights(dtype))
        ours, expected = SplitMuon(model.groups(), **options), SplitMuon(single.groups(), **options)
        for seed in range(2):
            for each, optimizer in ((model, ours), (single, expected)):
                feed(each, seed)
                optimizer.step()
        assert_equal(model, single)
        assert not torch.equal(whole(model.get_parameter("fused0")), Weights(dtype).get_parameter("fused0"))
        buffer = ours.state[model.get_parameter("experts0")]["momentum_buffer"]
        assert buffer.to_local().shape == model.get_parameter("experts0").to_local().shape
        assert model.get_parameter("idle0") not in ours.state


def placements(rank: int, world: int) -> None:
    """Tensor parallelism along rows and columns, sums that are still to be made, replicas, and meshes of two sides."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    line = init_device_mesh("cpu", (world,))
    square = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("outer", "inner"))
    for mesh, choose in (
        (line, lambda p: [Shard(1)]),
        (line, lambda p: [Replicate()]),
        (square, lambda p: [Shard(1), Shard(0)]),
        (square, lambda p: [Shard(0), Shard(0)]),
        (square, lambda p: [Replicate(), Shard(p.ndim - 1)]),
    ):
        single, model = Weights(), Weights()
        place(model, mesh, choose)
        for each in (model, single):
            optimizer = SplitMuon(each.groups())
            for seed in range(2):
                feed(each, seed)
                optimizer.step()
        assert_equal(model, single)
    weight, model = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), nn.Module()
    model.weight = nn.Parameter(weight.clone())
    place(model, line, lambda p: [Shard(0)])
    part = DTensor.from_local(weight / world, line, [Partial()])
    single = nn.Parameter(weight.clone())
    for parameter, gradient in ((model.weight, part), (single, weight)):
        parameter.grad = gradient
        SplitMuon([parameter]).step()
    torch.testing.assert_close(whole(model.weight), single.detach())
    model.weight = nn.Parameter(part)
    with pytest.raises(ValueError, match=r"^a parameter of shape \(6, 4\) is sharded as \(Partial\(sum\),\): shard it"):
        SplitMuon([model.weight])


def wrappers(rank: int, world: int) -> None:
    """A loop as users write it, with `muon_groups`: DDP, FSDP2, tensor parallelism, FSDP2 around it, and HSDP."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"2": ColwiseParallel(), "4": RowwiseParallel()}
    square = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("outer", "inner"))
    for wrap in (
        nn.parallel.DistributedDataParallel,
        fully_shard,
        lambda model: parallelize_module(model, init_device_mesh("cpu", (world,)), plan),
        lambda model: fully_shard(parallelize_module(model, square["inner"], plan), mesh=square["outer"]),
        lambda model: fully_shard(model, mesh=square),
    ):
        single, model = perceptron(), wrap(perceptron())
        for each in (model, single):
            muon, adam = muon_groups(each, blocks={"2.weight": {"gate": 10, "up": 6}})  # the cut lies in a shard
            assert sum(len(group["params"]) for group in muon) == 2
            optimizers = SplitMuon(muon, lr=0.02), torch.optim.AdamW(adam, lr=1e-3)
            for seed in range(3):
                each(torch.randn(8, 12, generator=torch.Generator().manual_seed(seed))).square().sum().backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
        for ours, expected in zip(model.parameters(), single.parameters(), strict=True):
            # gradients are sums of another order, and a number that bfloat16 rounds the other way moves a step a little
            torch.testing.assert_close(whole(ours), expected.detach(), atol=2e-4, rtol=0)


def refused(rank: int, world: int) -> None:
    """FSDP1's weights have lost their shape: `muon_groups`, the optimizer and `fire_` say so in one line each."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that FSDP1 is deprecated
        for original in (True, False):
            model = FullyShardedDataParallel(perceptron(), use_orig_params=original, device_id=torch.device("cpu"))
            with pytest.raises(ValueError, match=r"Muon could train: .*: a flat shard \(FSDP1\): wrap with fully_sh"):
                muon_groups(model)
            with pytest.raises(ValueError, match="is no matrix: muon_groups"):
                SplitMuon(model.parameters())
            inside = nn.Sequential(nn.Embedding(8, 8), nn.GRU(8, 8))
            alone = FullyShardedDataParallel(inside, use_orig_params=original, device_id=torch.device("cpu"))
            with pytest.raises(ValueError, match=r"a flat shard \(FSDP1\)"):
                fire_(alone)
            with FullyShardedDataParallel.summon_full_params(alone):
                assert fire_(alone, layout={"recurrent": "project"}).rows or not original
            model = nn.Sequential(model, nn.Linear(5, 8))
            with pytest.raises(
                ValueError, match=r"a flat shard \(FSDP1\): wrap with fully_shard .*; exclude= keeps it"
            ):
                fire_(model)
            assert [row.name for row in fire_(model, exclude="0").rows] == ["1.weight"]


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 5)
    )


class Counted(TorchDispatchMode):
    """Bytes that collectives bring from other ranks, and the most memory that a step's tensors take at once.

    What is there before the step is not counted: shards of weights, gradients and momentum. A memory counts until the
    step holds no tensor on it any more. gloo's own thread holds what was sent for a moment longer, how long is chance;
    so it is handed another tensor on the same memory, which is not counted.
    """

    def __init__(self, optimizer: SplitMuon) -> None:
        super().__init__()
        before = [t for p in optimizer.param_groups[0]["params"] for t in (p, p.grad, *optimizer.state[p].values())]
        self.known = {tensor.to_local().untyped_storage().data_ptr() for tensor in before}
        self.received, self.names, self.alive, self.most = 0, set[str](), 0, 0
        self.holders = Counter[int]()  # tensors of the step, by the address of their memory

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            self.names.add(func.name())
            output, sent, group, lengths, *more = args  # those of an all-to-all; another collective fails here
            rank = dist.distributed_c10d.ProcessGroup.unbox(group).rank()
            self.received += (sum(lengths) - lengths[rank]) * output.itemsize
            args = (output.detach(), sent.detach(), group, lengths, *more)
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if type(tensor) is Tensor and tensor.device.type == "cpu" and tensor.numel():
                self.watch(tensor)
        return result

    def watch(self, tensor: Tensor) -> None:
        address, size = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
        if address in self.known:
            return
        if not self.holders[address]:
            self.alive += size
            self.most = max(self.most, self.alive)
        self.holders[address] += 1

        def end() -> None:
            self.holders[address] -= 1
            if not self.holders[address]:
                self.alive -= size

        weakref.finalize(tensor, end)


def counted(rank: int, world: int) -> None:
    """Bytes and memory of a step are those of the formulae in docs/sharded.md."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard

    muon_optimizer.ROUND_ELEMENTS = 2**15  # so that the weights are small and the test quick
    square = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("outer", "inner"))
    line = init_device_mesh("cpu", (world,))
    layouts = [
        (line, [Shard(0)], [world]),
        (line, [Shard(1)], [world]),
        (line, [Replicate()], []),
        (square, [Shard(0), Shard(1)], [2, world // 2]),
        (square, [Replicate(), Shard(0)], [world // 2]),
    ]
    for mesh, layout, sides in layouts:
        model = nn.Module()
        for at in range(8):
            model.register_parameter(f"square{at}", nn.Parameter(torch.randn(64, 64)))
            model.register_parameter(f"wide{at}", nn.Parameter(torch.randn(32, 128)))
        place(model, mesh, lambda p, layout=layout: layout)
        optimizer = SplitMuon(model.parameters())
        feed(model, 0)
        optimizer.step()
        with Counted(optimizer) as count:
            optimizer.step()
        P, R = sum(p.numel() for p in model.parameters()), torch.Size(sides).numel()
        assert count.received == sum(4 * P // R * (side - 1) // side for side in sides), (layout, count.received)
        assert count.names == ({"c10d::alltoall_base_"} if count.received else set())
    for mesh, layout in ((line, [Shard(0)]), (line, [Shard(1)]), (square, [Shard(0), Shard(1)])):
        # E numbers of one large weight, and of several small ones
        several = 8 if layout == [Shard(0), Shard(1)] else 6
        for side, numbers, most in ((256, 2**16, 12), (64, muon_optimizer.ROUND_ELEMENTS, several)):
            model = nn.Module()
            for at in range(world * numbers // side**2):
                model.register_parameter(f"weight{at}", nn.Parameter(torch.randn(side, side)))
            place(model, mesh, lambda p, layout=layout: layout)
            optimizer = SplitMuon(model.parameters(), ns_steps=1)
            feed(model, 0)
            optimizer.step()
            with Counted(optimizer) as count:
                optimizer.step()
            assert 6 <= count.most / numbers <= most, (side, count.most / numbers)


def saved(rank: int, world: int, folder: Path) -> None:
    """A state goes on bit for bit: torch.save, a distributed checkpoint, and from and to one process."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
    from torch.distributed.fsdp import fully_shard

    def steps(model: nn.Module, optimizer: SplitMuon, seeds: Iterable[int]) -> None:
        for seed in seeds:
            feed(model, seed)
            optimizer.step()

    def copy_of(model: nn.Module) -> tuple[nn.Module, SplitMuon]:
        other = fully_shard(Weights())
        other.load_state_dict(model.state_dict())
        return other, SplitMuon(other.groups())

    single, model = Weights(), fully_shard(Weights())
    alone, optimizer = SplitMuon(single.groups()), SplitMuon(model.groups())
    steps(single, alone, range(2))
    steps(model, optimizer, range(2))
    torch.save(optimizer.state_dict(), folder / f"{rank}.pt")
    state = get_optimizer_state_dict(model, optimizer)
    dcp.save({"optimizer": state}, checkpoint_id=folder / "checkpoint")
    plain, plain_optimizer = copy_of(model)
    plain_optimizer.load_state_dict(torch.load(folder / f"{rank}.pt", weights_only=False))
    spread, spread_optimizer = copy_of(model)
    state = {"optimizer": get_optimizer_state_dict(spread, spread_optimizer)}
    planner = dcp.DefaultLoadPlanner(allow_partial_load=True)  # torch makes a state for the weight without gradient
    dcp.load(state, checkpoint_id=folder / "checkpoint", planner=planner)
    set_optimizer_state_dict(spread, spread_optimizer, state["optimizer"])
    once, once_optimizer = copy_of(model)
    once_optimizer.load_state_dict(copy.deepcopy(alone.state_dict()))  # of one process
    back = Weights()
    back_optimizer = SplitMuon(back.groups())
    back.load_state_dict(single.state_dict())
    back_optimizer.load_state_dict(optimizer.state_dict())  # to one process
    pairs = ((plain, plain_optimizer), (spread, spread_optimizer), (once, once_optimizer), (back, back_optimizer))
    for each, its in ((single, alone), (model, optimizer), *pairs):
        steps(each, its, range(2, 4))
    assert_equal(model, single)
    for each, _ in pairs:
        assert_equal(each, single)
    for each, its in pairs[:2]:
        assert all(torch.equal(whole(p), whole(q)) for p, q in zip(each.parameters(), model.parameters(), strict=True))
        assert its.param_groups[2]["cuts"] == WEIGHTS["fused"][2]


def main(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    for case in (fsdp, placements, wrappers, refused, counted):
        case(rank, world)
    saved(rank, world, Path(folder))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_rank_ends_with_the_numbers_of_a_single_process(world: int, tmp_path: Path, zygote: Zygote) -> None:
    start_ranks(zygote, "tests.muon.test_sharded", world, tmp_path)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
