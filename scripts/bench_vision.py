"""Images per second of the trainer's loop against other loops over the same network, interleaved in one run.

    python scripts/bench_vision.py                                  # the digits default
    python scripts/bench_vision.py model=resnet18 --size 32 --batch 256 --threads 2 --steps 2 precision=bfloat16

The plain loop is a DataLoader without workers, over PIL images and torchvision transforms (over tensors where the data
are no images), float32, eager, `loss.item()` at each step. The lean loop is written as the fastest public scripts for
CIFAR are (airbench, arXiv 2404.00498): whole tensors normalised once and cut into batches, channels last, the
trainer's precision, Nesterov's SGD, label smoothing, no loss read and nothing counted. All train the same network from
the same weights and on the same data; the whole loop is compared, data included. With several threads the trainer's
loop also runs in as many processes of one thread each, whose images are added up.
"""

import argparse
import contextlib
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
from fire_core.tools.output import keep_output
from fire_core.weights.optimizers import set_rate_factor
from harness.config.groups import compose
from scripts.interleaved import report, seconds_of
from vision.benchmarks import Phase
from vision.data import ImageData
from vision.learner import Learner
from vision.phase import batches, no_denormals
from vision.task import Task, compiled


class PlainImages(Dataset[tuple[torch.Tensor, int]]):
    """Images (n, C, H, W) as PIL images that are transformed one at a time."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, mean: list[float], std: list[float]) -> None:
        channels_last = images.permute(0, 2, 3, 1).numpy()  # (n, H, W, C)
        self.images = [Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image) for image in channels_last]
        self.labels = labels.tolist()
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean, std)])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.images[index]), self.labels[index]


def synthetic(count: int, size: int, classes: int) -> ImageData:
    """Return random colour images of size x size pixels; speed does not depend on their content."""
    generator = np.random.default_rng(0)
    images = torch.from_numpy(generator.integers(0, 256, (count, 3, size, size), dtype=np.uint8))
    labels = torch.from_numpy(generator.integers(0, classes, count))
    return ImageData.of((images, labels), (images[:256], labels[:256]), num_classes=classes)


def ours(task: Task, steps: int) -> Callable[[], None]:
    """Return a function that makes `steps` steps of the trainer's own loop."""
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
    """Return a function that makes `steps` steps of a plain loop."""
    config, data = task.config, task.data_of(0)
    model = Learner.new(task).model.float().to(memory_format=torch.contiguous_format)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    images, labels = data.train_images.cpu(), data.train_labels.cpu()
    dataset: Any = TensorDataset(images.float(), labels)
    if task.classifies:
        dataset = PlainImages(images, labels, *[(s.flatten() / 255).tolist() for s in (data.mean, data.std)])
    loader = DataLoader(dataset, config.batch_size, shuffle=True)

    def go() -> None:
        steps_made, total = 0, 0.0
        while steps_made < steps:
            for images, labels in loader:
                loss = task.loss(model(images.to(task.device)), labels.to(task.device))
                optimizer.zero_grad()
                loss.backward()
                if config.grad_clip is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
                optimizer.step()
                total += loss.item()
                steps_made += 1
                if steps_made == steps:
                    return

    return go


def lean(task: Task, steps: int) -> Callable[[], None]:
    """Return a function that makes `steps` steps of a loop with nothing in it but the training."""
    config, data = task.config, task.data_of(0)
    model = Learner.new(task).model
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.9, nesterov=True, fused=True)
    images = ((data.train_images.float() - data.mean) / data.std).contiguous(memory_format=torch.channels_last)
    labels, size = data.train_labels, config.batch_size
    if config.compile != "off":
        model = compiled(model, config.compile)

    @no_denormals()
    def go() -> None:
        order = torch.randperm(len(labels), device=labels.device)
        for step in range(steps):
            batch = order[torch.arange(step * size, (step + 1) * size, device=labels.device) % len(order)]
            with task.autocast():
                loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch], label_smoothing=0.2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return go


class Processes:
    """Several processes of one thread each; a call lets all of them make their steps at the same time.

    Args:
        count: number of processes.
        words: the command line, which each process parses.
    """

    def __init__(self, count: int, words: list[str]) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self.pipes, self.workers = [], []
        for _ in range(count):
            ours, theirs = context.Pipe()
            worker = context.Process(target=serve, args=(theirs, words), daemon=True)
            worker.start()
            theirs.close()  # so that reading fails once the worker has ended
            self.pipes.append(ours)
            self.workers.append(worker)
        for pipe in self.pipes:
            pipe.recv()

    def __call__(self) -> None:
        for pipe in self.pipes:
            pipe.send("go")
        for pipe in self.pipes:
            pipe.recv()


def serve(pipe: Any, words: list[str]) -> None:
    """Make the steps of one process for each message on the pipe, and answer when they are made."""
    args = parse(words)
    go = ours(prepared(args, threads=1), args.steps)
    pipe.send("ready")
    with contextlib.suppress(EOFError):  # the benchmark has ended
        while pipe.recv():
            go()
            pipe.send("done")


def parse(words: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("overrides", nargs="*", help="options of vision.train")
    parser.add_argument("--size", type=int, help="synthetic colour images of this size instead of the data set")
    parser.add_argument("--batch", type=int, default=None)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_intermixed_args(words)


def prepared(args: argparse.Namespace, threads: int) -> Task:
    """Return the task that the options ask for, with a single phase that never ends."""
    quiet = ["tracker=none", "cache=off", "progress=false", f"threads={threads}"]
    config = compose("vision", [*args.overrides, *quiet])
    if args.batch:
        config.batch_size = args.batch
    data = synthetic(2048, args.size, 10) if args.size else None
    task = Task.from_config(config, data)
    task.phases = [Phase(np.arange(len(task.data.train_labels)), np.arange(1), epochs=10**6)]
    return task


def main() -> None:
    """Print the images per second of all loops."""
    args = parse(sys.argv[1:])
    several = Processes(args.threads, sys.argv[1:]) if args.threads > 1 else None
    task = prepared(args, args.threads)
    images = args.steps * task.config.batch_size
    loops = {"a plain loop": plain(task, args.steps), "this loop": ours(task, args.steps)}
    if task.classifies:
        loops["a lean loop"] = lean(task, args.steps)
    seconds = seconds_of(loops | ({} if several is None else {"processes": several}), args.rounds, args.threads)
    if several is not None:  # each process makes all steps
        name = f"this loop, {args.threads} processes"
        seconds[name] = [time / args.threads for time in seconds.pop("processes")]
    report(seconds, images, "images")


if __name__ == "__main__":
    keep_output()
    main()
