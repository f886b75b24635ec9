"""Measure whether a network has lost plasticity: train a copy of it and a fresh network on the same new task."""

import contextlib
import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fire_core.ranges import Count, at_least, checked
from fire_core.weights.distributed import is_sharded
from fire_core.weights.forward_pass import detach_histories
from fire_core.weights.topology import unwrap

Loss = Callable[[nn.Module, Any], Tensor]
# 97.5 % quantiles of Student's t distribution for 1 to 30 degrees of freedom.
STUDENT_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True)
class PlasticityGap:
    """The result of `plasticity_gap`. Losses are means over all batches, in evaluation mode.

    Attributes:
        aged: loss of the aged copy after its training, one for each draw.
        fresh: loss of the fresh network after the same training, one for each draw.
        steps: optimizer steps of each training.
        gap: mean over draws of aged - fresh; above 0 the aged network learns less in the same number of steps.
        low: lower end of the gap's 95 % interval. The aged network, too, had initial weights of its own, so it is
            compared with single fresh networks, not with their mean: it is mean -+ t s sqrt(1 + 1 / draws), with s the
            standard deviation over draws. Of networks that have lost nothing one in forty lies above it by chance.
        high: upper end of this interval.
    """

    aged: tuple[float, ...]
    fresh: tuple[float, ...]
    steps: int
    gap: float
    low: float
    high: float

    @property
    def lost(self) -> bool:
        """Return whether plasticity is lost: the whole interval of the gap lies above 0."""
        return self.low > 0

    def __str__(self) -> str:
        n = len(self.aged)
        verdict = "plasticity is lost" if self.lost else "no loss of plasticity is seen"
        return (
            f"{verdict}: after {self.steps} steps the aged network's loss is {sum(self.aged) / n:.4g}, a fresh one's "
            f"{sum(self.fresh) / n:.4g}; gap {self.gap:.4g} [{self.low:.4g}, {self.high:.4g}] over {n} draws"
        )


def default_loss(model: nn.Module, batch: Any) -> Tensor:
    """Return the cross-entropy of a batch `(inputs, labels)`; for a mapping, the loss that the model returns for it.

    Models of transformers take such mappings.
    """
    if isinstance(batch, Mapping):
        loss: Tensor = model(**batch).loss
        return loss
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        kind = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, (tuple, list)) else type(batch).__name__
        raise ValueError(f"a batch is a {kind}: only (inputs, labels) or a mapping is known; give loss=")
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


@checked
def plasticity_gap(
    model: nn.Module,
    fresh: Callable[[], nn.Module],
    batches: Sequence[Any],
    steps: Count,
    *,
    loss: Loss = default_loss,
    optimizer: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer] = torch.optim.Adam,
    draws: Annotated[int, at_least(2)] = 5,
    seed: int = 0,
) -> PlasticityGap:
    """Train a copy of an aged network and a fresh one on the same new task, and compare what they have learned.

    Studies of plasticity in language models use this probe (arXiv 2606.24752). It is repeated in several draws: each
    draws an order of the batches, the same for both networks, and new initial weights of the fresh one. Both networks
    get a new optimizer, are trained in training mode and then evaluated in evaluation mode on all batches. The result
    holds for this optimizer and this number of steps: an aged network may be ahead after few steps and behind after
    many.

    Args:
        model: the aged network; neither it nor the state of torch's random generators is changed.
        fresh: returns a newly initialised network of the same shape, on the same device, each time it is called. Torch
            is seeded before each call, so that `fresh` must not seed it.
        batches: list of batches of the new task, on which both networks are trained. They must be new to the aged
            network: on more of what it was trained on it is ahead, however little it can still learn.
        steps: optimizer steps of each training; if there are fewer batches, they come again in another order.
        loss: (network, batch) -> mean loss over the samples, a scalar.
        optimizer: makes an optimizer for given parameters, as `lambda p: torch.optim.AdamW(p, lr=3e-4)`.
        draws: repetitions, over which the interval is taken.
        seed: seed of the draws.

    Returns:
        A `PlasticityGap`; `print` it to read what it means.

    Raises:
        ValueError: `fresh` returns a network of another shape, the aged network's weights, or the same weights twice;
            `batches` is empty or no list; the loss is not finite, or changes the mode of the network (comparing a loss
            in evaluation mode with one in training mode would measure dropout, not plasticity); the optimizer's
            `step` takes a closure, as torch's do, and does not call it; or nothing would be trained, because the
            optimizer has the parameters of another network or a learning rate of 0, or the loss is that of another one.
    """
    if isinstance(fresh, nn.Module) or not callable(fresh):
        raise ValueError(f"fresh is a {type(fresh).__name__}: give a function that builds a new network at each call")
    if isinstance(optimizer, torch.optim.Optimizer) or not callable(optimizer):
        raise ValueError("optimizer must be a function of the parameters, as lambda p: torch.optim.AdamW(p, lr=3e-4)")
    if not isinstance(batches, Sequence) or not batches:
        raise ValueError("batches must be a list that is not empty, as list(loader): both networks train on the same")
    model = _unwrap(model)
    devices = {p.device for p in model.parameters()} - {torch.device("cpu"), torch.device("meta")}
    aged_losses: list[float] = []
    fresh_losses: list[float] = []
    last_fresh_weights = None
    generators = torch.random.fork_rng(devices=[device for device in devices if device.type == "cuda"])
    with torch.inference_mode(False), generators, _gradients_put_aside(model):
        for draw in range(draws):
            _seed_generators(_seed_of_draw(seed, draw), devices)
            fresh_network = _build_fresh(fresh, model, last_fresh_weights)
            last_fresh_weights = [p.detach().clone() for p in fresh_network.parameters()]
            order = _order(len(batches), steps, _seed_of_draw(seed, draw))
            training_batches = [batches[i] for i in order]
            for network, losses in ((_deep_copy(model), aged_losses), (fresh_network, fresh_losses)):
                _seed_generators(_seed_of_draw(seed, draw), devices)  # the same dropout for both
                losses.append(_train(network, training_batches, batches, loss, optimizer))
    gaps = torch.tensor(
        [a - b for a, b in zip(aged_losses, fresh_losses, strict=True)], dtype=torch.float64, device="cpu"
    )
    half_width = STUDENT_T[min(draws - 2, len(STUDENT_T) - 1)] * float(gaps.std()) * math.sqrt(1 + 1 / draws)
    gap = float(gaps.mean())
    return PlasticityGap(tuple(aged_losses), tuple(fresh_losses), steps, gap, gap - half_width, gap + half_width)


@contextlib.contextmanager
def _gradients_put_aside(model: nn.Module) -> Iterator[None]:
    """Put the gradients of a network aside within this block, where a user's loss may add to them by mistake."""
    gradients = [(p, p.grad) for p in model.parameters()]
    for p, _ in gradients:
        p.grad = None
    try:
        yield
    finally:
        for p, gradient in gradients:
            p.grad = gradient


def _seed_generators(seed: int, devices: Iterable[torch.device]) -> None:
    """Seed the generators of the CPU and of these devices, and of no other GPU, whose state would not be restored."""
    torch.default_generator.manual_seed(seed)
    for device in devices:
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        else:
            torch.get_device_module(device).manual_seed(seed)


def _seed_of_draw(seed: int, draw: int) -> int:
    """Return a seed for one draw of a measurement, so that draws of neighbouring seeds do not meet."""
    return seed * 1_000_003 + draw


def _order(count: int, steps: int, seed: int) -> list[int]:
    """Return the indices of the batches of all steps: all batches in a drawn order, then all again in another."""
    generator = torch.Generator().manual_seed(seed)
    passes = math.ceil(steps / count)
    return torch.cat([torch.randperm(count, generator=generator, device="cpu") for _ in range(passes)])[:steps].tolist()


def _unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside wrappers such as DataParallel and DistributedDataParallel."""
    while isinstance(model, nn.DataParallel):
        model = model.module
    return unwrap(model)


def _deep_copy(model: nn.Module) -> nn.Module:
    """Return a copy of a network.

    Tensors with an autograd history, which weight norm stores between passes, cannot be deep-copied: they are detached.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        for name, value in vars(module).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                detach_histories(value, memo)
    return copy.deepcopy(model, memo)


def _copy_of_batch(batch: Any) -> Any:
    """Return a copy of a batch, without autograd history, since a network or loss may write to its input.

    A batch that holds something that cannot be copied, such as a generator, is returned as it is.
    """
    memo: dict[int, Any] = {}
    detach_histories(batch, memo)
    try:
        return copy.deepcopy(batch, memo)
    except TypeError:
        return batch


def _signature(network: nn.Module) -> dict[str, tuple[torch.Size, torch.dtype, bool]]:
    """Return the shape, dtype and trainability of each parameter and buffer, by name.

    Raises:
        ValueError: a lazy layer has no shape yet.
    """
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(f"{name} has no shape yet: run the lazy network once on a batch, in fresh too")
        if is_sharded(tensor):
            raise ValueError(f"{name} is sharded over processes: give the gap a network with whole weights")
    signature = {name: (p.shape, p.dtype, p.requires_grad) for name, p in network.named_parameters()}
    return signature | {name: (buffer.shape, buffer.dtype, False) for name, buffer in network.named_buffers()}


def _build_fresh(fresh: Callable[[], nn.Module], model: nn.Module, last_weights: Sequence[Tensor] | None) -> nn.Module:
    """Call `fresh` and check that the network has the shape of the aged one and weights of its own.

    Args:
        fresh: builds a network.
        model: the aged network.
        last_weights: the weights of the network that `fresh` returned the last time.

    Raises:
        ValueError: see `plasticity_gap`.
    """
    new = fresh()
    if not isinstance(new, nn.Module):
        raise ValueError(f"fresh gives a {type(new).__name__}: it must give a new network at each call")
    new = _unwrap(new)
    aged_signature, new_signature = _signature(model), _signature(new)
    for name in sorted({*aged_signature, *new_signature}):
        a, b = aged_signature.get(name), new_signature.get(name)
        if a is None or b is None or a[0] != b[0]:
            raise ValueError(f"fresh gives a network of another shape: {name}")
        if a != b:
            raise ValueError(f"fresh gives a network of another type, or with other frozen weights: {name}")
    aged_ids = {id(p) for p in model.parameters()}
    if any(id(p) in aged_ids for p in new.parameters()):
        raise ValueError("fresh gives the aged network's own weights: it must build a new network at each call")
    if _are_equal(list(model.parameters()), list(new.parameters())):
        raise ValueError(
            "fresh gives weights equal to the aged network's own weights: it copies them, or the aged network is "
            "untrained and was drawn from the same seed. Train it first, or give another seed="
        )
    if last_weights is not None and _are_equal(last_weights, list(new.parameters())):
        raise ValueError("fresh gives the same weights twice: it must draw new ones at each call")
    return new


def _are_equal(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Return whether two lists of tensors have the same numbers, on whatever devices they lie."""
    return all(torch.equal(a, b.to(a.device)) for a, b in zip(tensors, others, strict=True))


def _train(
    network: nn.Module,
    training_batches: Sequence[Any],
    batches: Sequence[Any],
    loss: Loss,
    make_optimizer: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer],
) -> float:
    """Train a network with one step for each training batch, and return its mean loss on `batches` afterwards."""
    optimizer = make_optimizer(p for p in network.parameters() if p.requires_grad)
    step: Any = getattr(optimizer, "step", None)
    if not callable(step):
        raise ValueError(f"optimizer makes a {type(optimizer).__name__}: it must make one optimizer, which has a step")
    _check_trains(optimizer, network)
    # As torch's own optimizers do. LBFGS needs a closure, since it evaluates the loss several times a step.
    takes_closure = "closure" in inspect.signature(step).parameters
    evaluations = 0

    def compute_gradients(batch: Any) -> Tensor:
        nonlocal evaluations
        evaluations += 1
        optimizer.zero_grad()
        value = _checked_loss(network, batch, loss)
        if not value.requires_grad:
            raise ValueError("the loss has no gradient: it is detached, or all weights of the network are frozen")
        value.backward()
        if evaluations == 1 and all(p.grad is None for p in network.parameters()):
            raise ValueError(
                "the loss reaches no weight of the network that it is given: it is that of another network"
            )
        return value

    network.train()
    with torch.enable_grad():
        for batch in training_batches:
            if takes_closure:
                step(partial(compute_gradients, batch))
            else:
                compute_gradients(batch)
                step()
    if evaluations < len(training_batches):
        raise ValueError(
            f"{type(optimizer).__name__}.step takes a closure and does not call it, so that nothing would be trained"
        )
    network.eval()
    with torch.no_grad():
        total = sum(float(_checked_loss(network, batch, loss)) for batch in batches)
    return total / len(batches)


def _check_trains(optimizer: Any, network: nn.Module) -> None:
    """Check before the first step that an optimizer trains a network, as far as its groups tell.

    Raises:
        ValueError: it has only other parameters, or its learning rates are 0.
    """
    groups = getattr(optimizer, "param_groups", [])
    if not groups:
        return
    own = {id(p) for p in network.parameters()}
    if not any(id(p) in own for group in groups for p in group["params"]):
        raise ValueError("optimizer has parameters of another network: it must take those that it is given")
    if all("lr" in group and float(group["lr"]) == 0 for group in groups):
        raise ValueError("optimizer has a learning rate of 0, so that nothing would be trained")


def _checked_loss(network: nn.Module, batch: Any, loss: Loss) -> Tensor:
    """Return the loss of a batch, a finite scalar.

    Raises:
        ValueError: the loss is no finite scalar, or computing it has changed the network's mode.
    """
    training = network.training
    value = loss(network, _copy_of_batch(batch))
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ValueError("loss must give one number, as a tensor: a mean over the samples")
    if network.training != training:
        raise ValueError("loss changes the network's mode: the two networks would not be compared alike")
    if not math.isfinite(float(value.detach())):
        raise ValueError(f"a loss of {float(value.detach())} while training: a smaller learning rate, or other data")
    return value
