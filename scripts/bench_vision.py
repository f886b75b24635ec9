"""Images per second of the trainer's loop against a plain loop, interleaved in one run.

    python scripts/bench_vision.py                                  # the digits default
    python scripts/bench_vision.py model=resnet18 --size 32 --batch 256 --threads 2 --steps 2 precision=bfloat16

The plain loop is a DataLoader without workers, over PIL images and torchvision transforms (over tensors where the data
are no images), float32, eager, `loss.item()` at each step. Both train the same network from the same weights and on the
same data; the whole loop is compared, data included.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision import transforms

import vision.train as trainer
from fire_core.weights.optimizer_state import set_rate_factor
from harness.config.groups import compose
from scripts.interleaved import report, seconds_of
from vision.benchmarks import Phase
from vision.data import ImageData
from vision.learner import Learner
from vision.phase import batches, no_denormals
from vision.task import Task, compiled


class PlainImages(Dataset[tuple[torch.Tensor, int]]):
    """PIL images behind transforms, one at a time."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, mean: list[float], std: list[float]) -> None:
        scaled = images.permute(0, 2, 3, 1).numpy()
        self.images = [Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image) for image in scaled]
        self.labels = labels.tolist()
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean, std)])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.images[index]), self.labels[index]


def synthetic(count: int, size: int, classes: int) -> ImageData:
    """Random images in the shape of CIFAR's; speed does not depend on their content."""
    generator = np.random.default_rng(0)
    images = torch.from_numpy(generator.integers(0, 256, (count, 3, size, size), dtype=np.uint8))
    labels = torch.from_numpy(generator.integers(0, classes, count))
    return ImageData.of((images, labels), (images[:256], labels[:256]), num_classes=classes)


def ours(task: Task, steps: int) -> Callable[[], None]:
    """`steps` steps of the trainer's own loop."""
    learner = Learner.new(task)
    trainer.begin_phase(task, learner, 0, None)
    if task.config.compile != "off":
        learner.forward = compiled(learner.model, task.config.compile)

    @no_denormals()
    def go() -> None:
        for number, batch in enumerate(batches(task, 0)):
            if number == steps:
                break
            set_rate_factor(learner.optimizer, 1.0)
            trainer.train_step(task, learner, batch, acts=False)
        learner.loss_sum.item()

    return go


def plain(task: Task, steps: int) -> Callable[[], None]:
    """`steps` steps of a plain loop."""
    config, data = task.config, task.data_of(0)
    model = Learner.new(task).model.float().to(memory_format=torch.contiguous_format)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    images, labels = data.train_images.cpu(), data.train_labels.cpu()
    dataset: Any = TensorDataset(images.float(), labels)
    if task.classifies:
        dataset = PlainImages(images, labels, *[(s.flatten() / 255).tolist() for s in (data.mean, data.std)])
    loader = DataLoader(dataset, config.batch_size, shuffle=True)

    def go() -> None:
        done, total = 0, 0.0
        while done < steps:
            for images, labels in loader:
                loss = task.loss(model(images.to(task.device)), labels.to(task.device))
                optimizer.zero_grad()
                loss.backward()
                if config.grad_clip is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
                optimizer.step()
                total += loss.item()
                done += 1
                if done == steps:
                    return

    return go


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("overrides", nargs="*", help="options of vision.train")
    parser.add_argument("--size", type=int, help="synthetic colour images of this size instead of the data set")
    parser.add_argument("--batch", type=int, default=None)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_intermixed_args()
    quiet = ["tracker=none", "cache=off", "progress=false", f"threads={args.threads}"]
    config = compose("vision", [*args.overrides, *quiet])
    if args.batch:
        config.batch_size = args.batch
    task = trainer.PROGRAM.make_task(config)
    if args.size:
        task.data = synthetic(config.batch_size * 8, args.size, 10).to(task.device)
    task.phases = [Phase(np.arange(len(task.data.train_labels)), np.arange(1), epochs=10**6)]
    loops = {"a plain loop": plain(task, args.steps), "this loop": ours(task, args.steps)}
    report(seconds_of(loops, args.rounds, args.threads), args.steps * config.batch_size, "images")


if __name__ == "__main__":
    main()
