"""Digits, a small network, and what the tests ask of each framework."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

BATCH = 32


def digits(samples: int = 320) -> TensorDataset:
    data = load_digits()
    return TensorDataset(
        torch.tensor(data.data[:samples], dtype=torch.float32) / 16, torch.tensor(data.target[:samples])
    )


def loader(samples: int = 320) -> DataLoader:
    """Ten batches an epoch, always the same ones."""
    return DataLoader(digits(samples), BATCH)


def batches() -> list[tuple[Tensor, Tensor]]:
    """The same, without the random number that a DataLoader draws."""
    x, y = digits().tensors
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True))


def network(width: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def deviation(weight: Tensor) -> float:
    """How far the singular values are from FIRE's target, sqrt(d_out / d_in): the largest relative distance."""
    d_out, d_in = weight.shape
    values = torch.linalg.svdvals(weight.detach().double()) / (d_out / d_in) ** 0.5
    return float((values - 1).abs().max())


def isometric(model: nn.Module, tolerance: float = 1e-3) -> list[bool]:
    """For each matrix of a module, whether it is one that FIRE has just projected exactly."""
    return [deviation(p) < tolerance for p in model.parameters() if p.ndim == 2]


class Named(Dataset):
    """The digits as transformers wants them: a dict for each sample."""

    def __init__(self) -> None:
        self.data = digits()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x, y = self.data[index]
        return {"x": x, "labels": y}
