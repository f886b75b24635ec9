"""Measure a loss of plasticity, act, and compare: the code of docs/tutorial.md. It takes a minute on one core."""

import copy
from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

from fire_core import fire_, plasticity_gap, reset_optimizer_state

TASKS, EPOCHS = 12, 30
images = torch.tensor(load_digits().data[:1200] / 16, dtype=torch.float32)


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 100),
        nn.ReLU(),
        nn.Linear(100, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )


def new_labels() -> torch.Tensor:
    return torch.randint(10, (len(images),))


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Learn new labels, and return the share of them that is right at the end."""
    labels = new_labels()
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(64):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return (model(images).argmax(1) == labels).float().mean().item()


Act = Callable[[nn.Module, torch.optim.Optimizer], object]


def train_on_all_tasks(name: str, act: Act) -> tuple[list[float], nn.Module]:
    """Act before each task but the first; return the accuracy of each task, and the network."""
    torch.manual_seed(0)  # every act meets the same initial weights and labels
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    accuracies = []
    for task in range(TASKS):
        if task > 0:
            with torch.random.fork_rng():  # what an act draws does not change the tasks
                act(model, optimizer)
        accuracies.append(train(model, optimizer))
    print(f"{name:10}", *(f"{accuracy:.2f}" for accuracy in accuracies))
    return accuracies, model


# 1. Measure
def nothing(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Leave both as they are."""


base, worn = train_on_all_tasks("base", nothing)

labels = new_labels()
batches = [
    (images[batch], labels[batch])
    for _ in range(16)
    for batch in torch.randperm(len(images)).split(64)
]
print(plasticity_gap(worn, fresh=make_model, batches=batches, steps=300))

# 2. Act
restored = copy.deepcopy(worn)
print(fire_(restored))
print(plasticity_gap(restored, fresh=make_model, batches=batches, steps=300))


# 3. Compare
def fire(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    fire_(model, optimizer=optimizer)


def full_reset(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.load_state_dict(make_model().state_dict())
    reset_optimizer_state(optimizer, model.parameters())


results = {
    "base": base,
    "full reset": train_on_all_tasks("full reset", full_reset)[0],
    "FIRE": train_on_all_tasks("FIRE", fire)[0],
}

for name, accuracies in results.items():
    plt.plot(range(1, TASKS + 1), accuracies, marker="o", label=name)
plt.xlabel("task")
plt.ylabel("training accuracy at the end of a task")
plt.ylim(0, 1)
plt.legend()
plt.savefig("tutorial.png", dpi=150, bbox_inches="tight")
