"""FIRE on a plateau of the loss, in accelerate. Needs accelerate."""

import torch
from accelerate import Accelerator
from torch import nn

from fire_core.integrations.torch import FireHook
from fire_core.triggers import Plateau

torch.manual_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=2)
x = torch.randn(1000, 20)
data = torch.utils.data.TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())
model = nn.Sequential(
    nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(data, batch_size=50, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
hook = FireHook(
    optimizer,
    model,
    Plateau("loss", every=10, patience=3, min_delta=0.05),
    log=print,
    solver="exact",
)

for _ in range(10):
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            hook.observe(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
# accelerator.save_state(folder) saves the hook's state with the optimizer's
