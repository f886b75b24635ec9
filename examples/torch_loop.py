"""FIRE every 100 steps in a plain torch loop, with an averaged model that follows. Needs torch alone."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from fire_core.integrations.torch import FireHook
from fire_core.triggers import Every, Plateau

torch.manual_seed(0)
x = torch.randn(1000, 20)
y = (x[:, 0] * x[:, 1] > 0).long()
model = nn.Sequential(
    nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def show(step: int, numbers: dict[str, float]) -> None:
    before, after = numbers["fire/dfi_before"], numbers["fire/dfi_after"]
    print(f"step {step}: DfI {before:.1f} -> {after:.1g}")


trigger = Every(100) | Plateau("loss", every=10, patience=5)
hook = FireHook(
    optimizer, model, trigger, copies=[ema], total_steps=300, log=show, solver="exact"
)

for step in range(300):
    batch = slice(step % 10 * 100, step % 10 * 100 + 100)
    loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
    optimizer.zero_grad()
    loss.backward()
    hook.observe(loss=loss)  # for Plateau; read only at the end of a window
    optimizer.step()
    ema.update_parameters(model)
# optimizer.state_dict() holds the hook's state too
