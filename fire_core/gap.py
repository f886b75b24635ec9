"""Has this network lost plasticity? A copy of it and a fresh network are trained on the same task, a new one."""

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fire_core.ranges import Count, at_least, checked
from fire_core.weights.read import detach_histories
from fire_core.weights.topology import unwrap

Loss = Callable[[nn.Module, Any], Tensor]
# Student's t that a share of 0.025 exceeds, for 1 to 30 degrees of freedom.
T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True)
class PlasticityGap:
    """What `plasticity_gap` found. Losses are means over all batches, in evaluation mode.

    Attributes:
        aged: loss of the aged copy after its training, one a draw.
        fresh: loss of the fresh network after the same training, one a draw.
        steps: optimizer steps of each training.
        gap: mean over draws of aged - fresh; above 0 the aged network learns less in as many steps.
        low: lower end of its 95 % t-interval over draws.
        high: upper end.
    """

    aged: tuple[float, ...]
    fresh: tuple[float, ...]
    steps: int
    gap: float
    low: float
    high: float

    @property
    def lost(self) -> bool:
        """Whether the whole interval lies above 0."""
        return self.low > 0

    def __str__(self) -> str:
        n = len(self.aged)
        said = "plasticity is lost" if self.lost else "no loss of plasticity is seen"
        return (
            f"{said}: after {self.steps} steps the aged network's loss is {sum(self.aged) / n:.4g}, a fresh one's "
            f"{sum(self.fresh) / n:.4g}; gap {self.gap:.4g} [{self.low:.4g}, {self.high:.4g}] over {n} draws"
        )


def default_loss(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of `inputs, labels`; of a mapping, as transformers' models take them, the model's own loss."""
    if isinstance(batch, Mapping):
        loss: Tensor = model(**batch).loss
        return loss
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

    The probe that studies of plasticity in language models use (arXiv 2606.24752). A draw is an order of the batches,
    the same for both, and new initial weights of the fresh network. Both get a new optimizer, train in training mode
    and are then evaluated in evaluation mode on all batches. The answer holds for this optimizer and this number of
    steps: an aged network may be ahead after few steps and behind after many.

    Args:
        model: the aged network; neither it nor the state of torch's random generators is changed.
        fresh: gives a newly initialised network of the same shape, on the same device, each time it is called.
        batches: of what the network shall learn next; a list, since both train on the same. On more of what it was
            trained on an aged network is ahead, however little it can still learn.
        steps: of each training; beyond the number of batches they come again, in another order.
        loss: of a model and a batch, a mean over the samples.
        optimizer: of the parameters, as `lambda p: torch.optim.AdamW(p, lr=3e-4)`.
        draws: repetitions, over which the interval is taken.
        seed: of the draws.

    Returns:
        A `PlasticityGap`; `print` says what it means.

    Raises:
        ValueError: `fresh` gives another shape, the aged network's weights, or the same twice; no batches, or such as
            can be read only once; a loss that is not finite, or that changes the mode of the network (a loss in
            evaluation mode against one in training mode compares dropout, not plasticity).
    """
    if isinstance(fresh, nn.Module) or not callable(fresh):
        raise ValueError(f"fresh is a {type(fresh).__name__}: give a function that builds a new network at each call")
    if isinstance(optimizer, torch.optim.Optimizer) or not callable(optimizer):
        raise ValueError("optimizer must be a function of the parameters, as lambda p: torch.optim.AdamW(p, lr=3e-4)")
    if not isinstance(batches, Sequence) or not batches:
        raise ValueError("batches must be a list that is not empty: both networks train on the same")
    model = _bare(model)
    cuda = {p.device for p in model.parameters() if p.is_cuda}
    aged_losses: list[float] = []
    fresh_losses: list[float] = []
    before = None
    with torch.random.fork_rng(devices=list(cuda)):
        for draw in range(draws):
            torch.manual_seed(_seed(seed, draw))
            new = _built(fresh, model, before)
            before = [p.detach().clone() for p in new.parameters()]
            order = _order(len(batches), steps, _seed(seed, draw))
            chosen = [batches[i] for i in order]
            for network, losses in ((_copied(model), aged_losses), (new, fresh_losses)):
                torch.manual_seed(_seed(seed, draw))  # the same dropout for both
                losses.append(_train(network, chosen, batches, loss, optimizer))
    gaps = torch.tensor(
        [a - b for a, b in zip(aged_losses, fresh_losses, strict=True)], dtype=torch.float64, device="cpu"
    )
    half = T[min(draws - 2, len(T) - 1)] * float(gaps.std()) / math.sqrt(draws)
    middle = float(gaps.mean())
    return PlasticityGap(tuple(aged_losses), tuple(fresh_losses), steps, middle, middle - half, middle + half)


def _seed(seed: int, draw: int) -> int:
    return seed * 1_000_003 + draw


def _order(count: int, steps: int, seed: int) -> list[int]:
    """Indices of batches for all steps: each batch once, in a drawn order, then all again in another."""
    generator = torch.Generator().manual_seed(seed)
    passes = math.ceil(steps / count)
    return torch.cat([torch.randperm(count, generator=generator, device="cpu") for _ in range(passes)])[:steps].tolist()


def _bare(model: nn.Module) -> nn.Module:
    """A network without wrappers, DataParallel among them."""
    while isinstance(model, nn.DataParallel):
        model = model.module
    return unwrap(model)


def _copied(model: nn.Module) -> nn.Module:
    """A copy of a network, also of one that keeps tensors with a history, as weight norm does between passes."""
    twins: dict[int, Any] = {}
    for module in model.modules():
        for name, value in vars(module).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                detach_histories(value, twins)
    return copy.deepcopy(model, twins)


def _built(fresh: Callable[[], nn.Module], model: nn.Module, before: Sequence[Tensor] | None) -> nn.Module:
    """A new network, which must be of the aged one's shape and have weights of its own."""
    new = fresh()
    if not isinstance(new, nn.Module):
        raise ValueError(f"fresh gives a {type(new).__name__}: it must give a new network at each call")
    new = _bare(new)
    built = [
        {name: (p.shape, p.dtype, p.requires_grad) for name, p in network.named_parameters()}
        | {name: (buffer.shape, buffer.dtype, False) for name, buffer in network.named_buffers()}
        for network in (model, new)
    ]
    for name in sorted({*built[0], *built[1]}):
        a, b = built[0].get(name), built[1].get(name)
        if a is None or b is None or a[0] != b[0]:
            raise ValueError(f"fresh gives a network of another shape: {name}")
        if a != b:
            raise ValueError(f"fresh gives a network of another type, or with other frozen weights: {name}")
    mine = {id(p) for p in model.parameters()}
    if any(id(p) in mine for p in new.parameters()):
        raise ValueError("fresh gives the aged network's own weights: it must build a new network at each call")
    if _equal(list(model.parameters()), list(new.parameters())):
        raise ValueError(
            "fresh gives weights equal to the aged network's own weights: it copies them, or the aged network is "
            "untrained and was drawn from the same seed. Train it first, or give another seed="
        )
    if before is not None and _equal(before, list(new.parameters())):
        raise ValueError("fresh gives the same weights twice: it must draw new ones at each call")
    return new


def _equal(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b.to(a.device)) for a, b in zip(some, others, strict=True))


def _train(
    network: nn.Module,
    chosen: Sequence[Any],
    batches: Sequence[Any],
    loss: Loss,
    optimizer: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer],
) -> float:
    """Train on the chosen batches; the mean loss on all of them afterwards."""
    stepper = optimizer(p for p in network.parameters() if p.requires_grad)
    step: Any = stepper.step
    takes_closure = "closure" in inspect.signature(step).parameters  # LBFGS evaluates the loss several times a step

    def evaluate(batch: Any) -> Tensor:
        stepper.zero_grad()
        value = _loss_of(network, batch, loss)
        value.backward()
        return value

    network.train()
    with torch.enable_grad():
        for batch in chosen:
            if takes_closure:
                step(partial(evaluate, batch))
            else:
                evaluate(batch)
                step()
    network.eval()
    with torch.no_grad():
        total = sum(float(_loss_of(network, batch, loss)) for batch in batches)
    return total / len(batches)


def _loss_of(network: nn.Module, batch: Any, loss: Loss) -> Tensor:
    training = network.training
    value = loss(network, batch)
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ValueError("loss must give one number, as a tensor: a mean over the samples")
    if network.training != training:
        raise ValueError("loss changes the network's mode: the two networks would not be compared alike")
    if not math.isfinite(float(value.detach())):
        raise ValueError(f"a loss of {float(value.detach())} while training: a smaller learning rate, or other data")
    return value
