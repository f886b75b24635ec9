"""DeepSpeed's engine on CPU processes: an act changes its float32 copies too, each process its part, or is refused."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fire_core import dfi, fire_
from fire_core.integrations.torch import FireHook
from fire_core.methods.snp import ShrinkAndPerturb
from fire_core.triggers import At
from tests.networks import GPT
from tests.weights.test_distributed import start_ranks
from tests.zygote import Zygote

# stage, precision, further options -> what DeepSpeed wraps AdamW in
STAGES: list[tuple[int, str, dict[str, Any], str]] = [
    (0, "bf16", {}, "FP16_UnfusedOptimizer"),  # serves both precisions
    (0, "fp16", {}, "FP16_UnfusedOptimizer"),
    (1, "bf16", {}, "DeepSpeedZeroOptimizer"),
    (1, "bf16", {"data_types": {"grad_accum_dtype": "fp32"}}, "BF16_Optimizer"),
    (1, "fp16", {}, "DeepSpeedZeroOptimizer"),
    (2, "bf16", {}, "DeepSpeedZeroOptimizer"),
    (2, "fp16", {}, "DeepSpeedZeroOptimizer"),
]


def started(stage: int, precision: str, options: dict[str, Any]) -> Any:
    """An engine that has taken three steps, on other tokens in each process."""
    import deepspeed

    torch.manual_seed(0)
    model = GPT()
    scaler = {"initial_scale_power": 8} if precision == "fp16" else {}
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage}, **options}
    config[precision] = {"enabled": True, **scaler}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
    torch.manual_seed(dist.get_rank())
    step(engine, 3)
    return engine


def step(engine: Any, times: int = 1) -> None:
    for _ in range(times):
        engine.backward(engine(torch.randint(40, (2, 8))).float().logsumexp(-1).mean())
        engine.step()


def fused(engine: Any) -> torch.Tensor:
    """The first block's q, k and v, the same in every process."""
    weight = engine.module.transformer["h"][0].attn.c_attn.weight.detach().float()
    first = weight.clone()
    dist.broadcast(first, 0)
    assert torch.equal(first, weight)
    return weight.view(3, 12, 12)


def check(stage: int, precision: str, options: dict[str, Any], wrapper: str) -> None:
    engine = started(stage, precision, options)
    assert type(engine.optimizer).__name__ == wrapper
    before = dfi(fused(engine)).sum()
    report = fire_(engine.module, solver="exact", optimizer=engine.optimizer)
    after = dfi(fused(engine)).sum()
    step(engine)
    stepped = dfi(fused(engine)).sum()
    print(dist.get_world_size(), stage, precision, wrapper, f"{before:.2f} -> {after:.2g} -> {stepped:.2g}")
    # The norm of the last gradient, which DeepSpeed keeps to show it; no step reads it.
    assert all("keeps _global_grad_norm, so that" in line for line in report.warnings), report.warnings
    assert after < before / 10_000
    assert stepped < before / 1_000
    hook = FireHook(engine.optimizer, engine.module, At([1]), method=ShrinkAndPerturb(coef=1.0))
    step(engine)
    drawn = fused(engine).clone()
    assert dfi(drawn).sum() > before / 2, "a new draw"
    step(engine)
    moved = float((fused(engine) - drawn).norm() / drawn.norm())
    assert moved < 0.1, f"which the next step, of AdamW as new, keeps: it moved the weights by {moved}"
    hook.remove()


def main(rank: int, world: int, folder: str) -> None:
    import deepspeed

    torch.set_num_threads(1)
    os.environ |= {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": str(world)}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    deepspeed.init_distributed("gloo")
    deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True  # torch has it on a CPU, if slowly
    for row in STAGES:
        check(*row)
    with pytest.raises(ValueError, match=r"is divided by ZeRO stage 3, .* from disk to disk"):
        fire_((engine := started(3, "bf16", {})).module, optimizer=engine.optimizer)


@pytest.mark.slow  # DeepSpeed compiles a C++ extension when it is first started on a machine
@pytest.mark.parametrize("world", [1, 2])
def test_an_act_reaches_the_copies_of_every_stage(world: int, tmp_path: Path, zygote: Zygote) -> None:
    pytest.importorskip("deepspeed")
    start_ranks(zygote, "tests.integrations.test_deepspeed", world, tmp_path)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
