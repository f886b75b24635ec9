"""FIRE on the attention of a vision transformer of timm, with timm's averaged model. Needs timm."""

import timm
import torch
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3

from fire_core.integrations.torch import FireHook
from fire_core.triggers import Every

torch.manual_seed(0)
model = timm.create_model("test_vit", num_classes=10, img_size=32)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
ema = ModelEmaV3(model, decay=0.99)
hook = FireHook(
    optimizer, model, Every(10), copies=[ema], layout="attention", solver="exact"
)

for _ in range(30):
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update(model)
print(hook.intervention.report.weights["model"])  # which weights, and how far they came
