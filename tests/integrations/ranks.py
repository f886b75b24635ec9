"""What each of two processes of a DistributedDataParallel run does, for `test_two_ranks_agree`, and what it checks."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from fire_core.integrations.torch import FireHook
from fire_core.triggers import Dormancy, Plateau, Trigger
from tests.integrations.digits import batches, network


def run(rank: int, trigger: Trigger, solver: str = "exact") -> tuple[list[int], float]:
    """Where it fired, and a sum over the weights at the end."""
    model = network()
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    fired: list[int] = []
    hook = FireHook(optimizer, wrapped, trigger, solver=solver, log=lambda step, _: fired.append(step))
    for step in range(45):
        x, y = batches()[(2 * step + rank) % 10]
        loss = F.cross_entropy(wrapped(x), y)
        optimizer.zero_grad()
        loss.backward()
        hook.observe(loss=loss.detach() * (1 + 0.5 * rank * (step // 7 % 2)))
        optimizer.step()
    return fired, float(sum(p.double().square().sum() for p in model.parameters()))


def main(rank: int, world: int, folder: str) -> None:
    """Losses and activations differ by rank, the trigger follows their means, and all weights stay equal."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    plateau = run(rank, Plateau("loss", every=3, patience=2, min_delta=0.1))
    dormancy = run(rank, Dormancy(above=0.05, every=5, rearm=0.05))
    found: list[object] = [None] * world
    dist.all_gather_object(found, (plateau, dormancy))
    assert all(one == (plateau, dormancy) for one in found), found
    assert plateau[0]
    assert dormancy[0]
    dist.destroy_process_group()  # from here on nothing is averaged
    alone = Plateau("loss", every=3, patience=2, min_delta=0.1)
    fired = [step for step in range(1, 61) if alone.ask(step, None, loss=1.0 + 0.5 * ((step - 1) // 7 % 2))]
    assert fired != plateau[0], "without averaging this rank would have fired at other steps"


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
