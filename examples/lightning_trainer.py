"""FIRE in Lightning's Trainer, on a schedule, with its averaged model. Needs pip install -e ".[lightning]"."""

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from fire_core.integrations.lightning import FireCallback
from fire_core.triggers import Every


class Product(L.LightningModule):
    """Is the product of the first two inputs positive?"""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
        )

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        inputs, targets = batch
        return nn.functional.cross_entropy(self.net(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


L.seed_everything(0)
x = torch.randn(1000, 20)
data = torch.utils.data.TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())
loader = torch.utils.data.DataLoader(data, batch_size=50, shuffle=True)
fire = FireCallback(Every(50), solver="exact")
callbacks = [fire, EMAWeightAveraging()]
trainer = L.Trainer(max_epochs=10, callbacks=callbacks, logger=CSVLogger("logs"))
trainer.fit(Product(), loader)
print("acted at", [firing.step for firing in fire.intervention.fired])
print(fire.intervention.report)
