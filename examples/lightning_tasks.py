"""FIRE at known boundaries between tasks, in a hook of Lightning's module. Needs pip install -e ".[lightning]"."""

import lightning.pytorch as L
import torch
from torch import nn

from fire_core import fire_

EPOCHS = 5  # of a task


class Signs(L.LightningModule):
    """In task i: is the product of the inputs i and i + 1 positive?"""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
        )

    def on_train_epoch_start(self) -> None:
        if self.current_epoch and self.current_epoch % EPOCHS == 0:  # a new task begins
            # of several optimizers this gives the list
            print(fire_(self, optimizer=self.optimizers()))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        (inputs,), task = batch, self.current_epoch // EPOCHS
        targets = (inputs[:, task] * inputs[:, task + 1] > 0).long()
        return nn.functional.cross_entropy(self.net(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


L.seed_everything(0)
data = torch.utils.data.TensorDataset(torch.randn(1000, 20))
loader = torch.utils.data.DataLoader(data, batch_size=50, shuffle=True)
trainer = L.Trainer(max_epochs=3 * EPOCHS, logger=False, enable_checkpointing=False)
trainer.fit(Signs(), loader)
