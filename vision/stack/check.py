"""Whether runs can be trained at once, and what they need."""

import copy
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from fire_core.harness.options.checks import check_options
from fire_core.harness.options.errors import ConfigError, one_line
from fire_core.harness.run.checkpoint import loading
from fire_core.harness.run.stack import with_seed
from fire_core.harness.stacked.method import can_act_at_once
from fire_core.harness.stacked.network import StackedNetworks, shares_weights
from vision.learner import Learner
from vision.task import Task

FILES = 64  # that a process holds open beside those of its runs
COPIES = 8  # tensors of a weight's shape for each run: weights, gradients, moments, initial ones, and what methods keep


def make_tasks(config: DictConfig) -> list[Task]:
    """The tasks of the runs of a stack, with one copy of a data set that does not depend on the seed.

    Raises:
        ConfigError: an option is wrong, or there is no room for so many runs.
    """
    check_options(config)
    one = with_seed(config, config.seed)
    tasks, dataset = [Task.from_config(one)], OmegaConf.to_container(one.dataset, resolve=True)
    check_room(tasks[0], config.stack)
    for seed in range(config.seed + 1, config.seed + config.stack):
        one = with_seed(config, seed)
        same = OmegaConf.to_container(one.dataset, resolve=True) == dataset
        tasks.append(Task.from_config(one, tasks[0].data if same else None))
    return tasks


def check_room(task: Task, stack: int) -> None:
    """Refuse more runs than memory and open files allow.

    Raises:
        ConfigError: with the largest number that is allowed.
    """
    weights = sum(tensor.numel() * tensor.element_size() for tensor in task.model.state_dict().values())
    batch = 4 * task.config.batch_size * task.data.train_images[:0].flatten(1).shape[1]
    each = COPIES * weights + 4 * batch  # activations are about as large as the images and less than the weights
    free, files = free_bytes(task.device), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if stack * each > free:
        most, why = free // each, f"needs about {stack * each / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
        raise ConfigError(f"stack={stack} {why}: at most {most}")
    if (most := (files - FILES) // 2) < stack:
        raise ConfigError(f"stack={stack} needs {2 * stack} open files: at most {most}, or raise `ulimit -n`")


def free_bytes(device: torch.device) -> int:
    """Memory that this process may still take on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # not Linux
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return free if limit == resource.RLIM_INFINITY else min(free, limit)


def try_state(task: Task, state: dict[str, Any]) -> None:
    """Load a state into a learner that is thrown away.

    Raises:
        DamagedStateError: it cannot be loaded.
    """
    with loading():
        Learner.new(task).load_state_dict(task, state)


def why_not(tasks: Sequence[Task]) -> str | None:
    """Why these runs cannot be trained at once; None if they can."""
    task = tasks[0]
    for option, value in (("compile", False), ("precision", "float32"), ("on_nan", "stop")):
        if getattr(task.config, option) != value:
            return f"it needs {option}={str(value).lower()}"
    if task.trigger is not None:
        return f"with trigger={task.config.trigger['name']} the method acts at steps of each seed's own"
    lengths = [[(len(p.train), p.epochs, p.passes_per_epoch) for p in one.phases] for one in tasks]
    if any(length != lengths[0] for length in lengths):
        return f"the phases of benchmark={task.config.benchmark['name']} are not of one length for all seeds"
    learner = Learner.new(task)
    if shares_weights(learner.model):
        return f"layers of model={task.config.model['name']} share weights"
    if learner.method.overrides("reshape"):
        return f"method={task.config.method['name']} puts new modules into the network"
    if not can_act_at_once(learner.method, StackedNetworks([learner.model])):
        learner = Learner.new(task)
        with learner.method.watch(learner.net):
            if any(m._forward_hooks or m._forward_pre_hooks for m in learner.model.modules()):
                return f"method={task.config.method['name']} looks at activations in each pass"
    return cannot_pass(task)


def cannot_pass(task: Task) -> str | None:
    """Try two networks as one, forward and backward."""
    networks = StackedNetworks([copy.deepcopy(task.model).to(task.device) for _ in range(2)])
    images = task.probe(0, 2)[0]
    try:
        outputs = networks.forward(torch.stack([images, images]))
        networks.backward(torch.ones_like(outputs))
    except Exception as error:
        return f"model={task.config.model['name']} cannot be batched ({one_line(error)})"
    return None
