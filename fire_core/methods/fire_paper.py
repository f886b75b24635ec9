"""What the authors' reference code does in ReDo, SNR and CBP where it departs from the papers that it cites.

The figures of the FIRE paper come from that code, so `variant=fire_paper` repeats its behaviour: docs/paper.md lists it
(A1 to A13), and tests/parity compares with that code's numbers. A method's file holds the algorithm, this one the
difference.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from fire_core.methods.layers import output_layers
from fire_core.methods.protocol import Context, Saved
from fire_core.units.graph import weight
from fire_core.units.recycle import redraw_rows_
from fire_core.units.watch import is_trained, mean_magnitude
from fire_core.weights.topology import unwrap


def uniform(layer: nn.Module, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Uniform in +-1/sqrt(fan_in): torch's default initialisation of linear layers and convolutions."""
    draw = torch.rand(*shape, generator=generator, dtype=torch.float32, device=generator.device)
    return (draw * 2 - 1) / math.sqrt(weight(layer)[0].numel())


def he_normal(layer: nn.Module, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Normal with variance 2 / fan_in (He et al., arXiv 1502.01852)."""
    draw = torch.randn(*shape, generator=generator, dtype=torch.float32, device=generator.device)
    return draw * math.sqrt(2 / weight(layer)[0].numel())


SIDE_BRANCHES = ("shortcut", "downsample")
PROJECTIONS = ("to_q", "to_k", "to_v")


@dataclass
class Link:
    """A layer of the chain, with the batch norm and the max-pool that follow it."""

    name: str
    layer: nn.Module
    norm: nn.Module | None = None
    pool: nn.Module | None = None

    @property
    def projects(self) -> bool:
        """Whether it makes queries, keys or values."""
        return self.name.rpartition(".")[2] in PROJECTIONS


def chain(root: nn.Module) -> list[Link]:
    """A network's linear layers and convolutions in the order in which they run, side branches left out.

    Each one is taken to be read by the next one, whatever the skips and the attention between them. The network's
    modules are registered in the order in which they run. Of heads side by side (SAC's actor) only the first is in it.
    """
    links: list[Link] = []
    heads = output_layers(unwrap(root))
    for name, module in unwrap(root).named_modules():
        if any(word in name for word in SIDE_BRANCHES):
            continue
        if module in heads and links and links[-1].layer in heads:
            continue
        if isinstance(module, (nn.Linear, _ConvNd)):
            links.append(Link(name, module))
        elif links and isinstance(module, _BatchNorm) and links[-1].norm is None:
            links[-1].norm = module
        elif links and isinstance(module, nn.MaxPool2d) and links[-1].pool is None:
            links[-1].pool = module
    return links


def chains(modules: Mapping[str, nn.Module]) -> list[list[Link]]:
    """The chain of each network: no layer of one is read by a layer of the next one."""
    return [chain(root) for root in modules.values()]


@torch.no_grad()
def recycle_rows_(
    networks: Sequence[Sequence[Link]], masks: Sequence[Tensor], context: Context, spared: int = 1
) -> None:
    """Redraw the incoming weights of masked units.

    Outgoing weights and moments stay, for the reference changes copies of them. Step counters of all weights that it
    touches, or means to touch, start again.

    Args:
        networks: the chain of each.
        masks: for each layer of each chain, one after the other, which of its units are recycled, (units,).
        context: of the method.
        spared: how many of each chain's last layers are left alone.
    """
    left = iter(masks)
    for links in networks:
        of_network = list(itertools.islice(left, len(links)))
        for link, after, mask in zip(links, links[1:], of_network[: len(links) - spared], strict=False):
            _recycle_rows_of_(link, after, mask, context)


def _recycle_rows_of_(link: Link, after: Link, mask: Tensor, context: Context) -> None:
    index = mask.nonzero().flatten()
    if not len(index):
        return
    redraw_rows_(link.layer, index, uniform, context.generator, draw_bias=True)
    touched = [link.layer.weight, link.layer.bias, after.layer.weight]
    for optimizer in context.optimizers:
        for parameter in touched:
            if isinstance(parameter, Tensor) and "step" in optimizer.state.get(parameter, {}):
                optimizer.state[parameter]["step"].zero_()


class OutputWatch:
    """As `units.watch.Watch`, but of the layers' own outputs, before norm and nonlinearity.

    Args:
        links: the layers, of all networks.
        reduce: (layer, outputs, all dimensions but the units') -> a number for each unit.
        only_training: ignore layers in evaluation mode.
    """

    def __init__(
        self, links: list[Link], reduce: Callable[[Link, Tensor, Sequence[int]], Tensor], only_training: bool = True
    ) -> None:
        self.links, self.reduce, self.only_training = links, reduce, only_training
        self.samples = 0
        self._seen: dict[nn.Module, Tensor] = {}  # not by name: several networks share names

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Hooks on the layers within this block."""
        with contextlib.ExitStack() as hooks:
            for link in self.links:
                hooks.callback(link.layer.register_forward_hook(functools.partial(self._look, link)).remove)
            yield

    @torch.no_grad()
    def _look(self, link: Link, layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        if is_trained(layer) or not self.only_training:
            x = output.detach()
            channel = x.ndim - (weight(layer).ndim - 1 if isinstance(layer, _ConvNd) else 1)
            self._seen[layer] = self.reduce(link, x, [d for d in range(x.ndim) if d != channel])
            self.samples = len(x)

    def read(self) -> list[Tensor]:
        """(units,) for each layer."""
        return [self._seen[link.layer] for link in self.links]


def rectified(link: Link, x: Tensor, dims: Sequence[int]) -> Tensor:
    """ReDo's measure: mean rectified outputs, of projections mean absolute ones."""
    return mean_magnitude(x if link.projects else x.relu(), dims)


class FirePaperCBP:
    """Continual backpropagation as in the reference code.

    Against `ContinualBackprop`: magnitudes are sums that never decay (A6) and are kept when the unit is replaced (A7);
    debts grow by all units once one is mature; a linear layer that reads a convolution makes units of its inputs, whole
    channels are redrawn for one of them and the wrong ages are cleared (A8, A9); a layer before or among projections
    has no reader, and utility is its magnitude; layers are processed front to back, so a row drawn in the next layer
    overwrites zeroed columns; the optimizer keeps its state. Where the reference would crash because too few units are
    mature (A10), all mature ones are replaced.

    Args:
        networks: the chain of each network.
        rate, maturity, decay: see `ContinualBackprop`.
        state: filled here, or from a checkpoint: lists with an entry for each layer but each network's last.
    """

    def __init__(
        self, networks: list[list[Link]], rate: float, maturity: int, decay: float, state: dict[str, Any]
    ) -> None:
        self.rate, self.maturity, self.decay, self.state = rate, maturity, decay, state
        self.links: list[Link] = []
        self.readers: list[nn.Module | None] = []
        for link, after in itertools.chain(*map(itertools.pairwise, networks)):
            self.links.append(link)
            self.readers.append(None if link.projects or after.projects else after.layer)
        self.watch = OutputWatch(self.links, self.reduce)
        if not state:
            sizes = [self._count(i) for i in range(len(self.links))]
            devices = [weight(link.layer).device for link in self.links]
            for key in ("age", "magnitude"):
                state[key] = [
                    torch.zeros(size, dtype=torch.float32, device=at) for size, at in zip(sizes, devices, strict=True)
                ]
            state["debt"] = [0.0 for _ in sizes]
        self.utility: list[Tensor | None] = [None for _ in self.links]  # as of the last replacement

    def _flattens(self, i: int) -> bool:
        return isinstance(self.links[i].layer, _ConvNd) and isinstance(self.readers[i], nn.Linear)

    def _count(self, i: int) -> int:
        reader = self.readers[i]
        return weight(reader).shape[1] if reader is not None and self._flattens(i) else len(weight(self.links[i].layer))

    def reduce(self, link: Link, x: Tensor, dims: Sequence[int]) -> Tensor:
        """Mean |output| of a layer's units; before a linear layer, rows of its width mix channels and positions."""
        i = self.links.index(link)
        if link.pool is not None:
            x = link.pool(x)
        return mean_magnitude(x.reshape(-1, self._count(i)), [0]) if self._flattens(i) else mean_magnitude(x, dims)

    def step(self, context: Context) -> None:
        """After an optimizer step."""
        self.update(self.watch.read(), context.generator)

    @torch.no_grad()
    def update(self, features: list[Tensor], generator: torch.Generator) -> list[Tensor]:
        """One step from the mean |feature| of every layer's units; the indices of the replaced ones."""
        chosen = [self._choose(i, feature) for i, feature in enumerate(features)]
        for i, index in enumerate(chosen):
            if len(index):
                self._replace_(i, index, generator)
        return chosen

    def _choose(self, i: int, feature: Tensor) -> Tensor:
        age: Tensor = self.state["age"][i]
        magnitude: Tensor = self.state["magnitude"][i]
        debt = self.state["debt"]
        age += 1
        magnitude += (1 - self.decay) * feature
        mature = age > self.maturity
        if mature.any():
            debt[i] += self.rate * len(age)
        number = int(debt[i])
        debt[i] -= number
        number = min(number, int(mature.sum()))
        if not number:
            return age.new_zeros(0, dtype=torch.int64)
        reader = self.readers[i]
        utility = magnitude if reader is None else magnitude * weight(reader).abs().transpose(0, 1).flatten(1).mean(1)
        index = utility.masked_fill(~mature, torch.inf).topk(number, largest=False).indices
        utility[index] = 0  # without a reader this is the magnitude itself
        self.utility[i] = utility
        return index

    def _replace_(self, i: int, index: Tensor, generator: torch.Generator) -> None:
        link, reader = self.links[i], self.readers[i]
        rows = index
        if self._flattens(i):
            rows = torch.unique(index // (self._count(i) // len(weight(link.layer))))
        if reader is not None:
            weight(reader)[:, index] = 0
        redraw_rows_(link.layer, rows, he_normal, generator)
        if link.norm is not None:
            for name, value in (("weight", 1), ("bias", 0), ("running_mean", 0), ("running_var", 1)):
                tensor = getattr(link.norm, name)
                tensor[rows] = value
        self.state["age"][i][rows] = 0


class UnitSilences(Saved):
    """For how many samples each unit has been silent, and from how many on that is too long.

    Args:
        units: how many.
        percentile, every, max_age, growth: see `SelfNormalizedResets`.
        device: of the state.
    """

    def __init__(
        self,
        units: int,
        percentile: float,
        every: int,
        max_age: int,
        growth: float,
        device: torch.device | str = "cpu",
    ) -> None:
        self.percentile, self.every, self.max_age, self.growth = percentile, every, max_age, growth
        self.age = torch.zeros(units, dtype=torch.int64, device=device)
        self.threshold = torch.full_like(self.age, max_age // 2)


class FirePaperSilences(UnitSilences):
    """How long each unit has been silent, in samples, and from when on that is too long; as the FIRE authors' code.

    Thresholds move every `every` steps, at the very first one too: to the percentile of the silences since the last
    time if it is smaller, else by `growth`, within a window and `max_age`; a unit without a silence has a percentile
    of 1. A step uses a window, the last `WINDOW` samples (whole batches), which ages the unit by all of it. At most
    one silence ends in a step, so `every` numbers for each unit hold all of them.
    """

    FIELDS = ("age", "threshold", "ended", "steps", "window")
    WINDOW = 512

    def __init__(self, *options: Any, **more: Any) -> None:
        super().__init__(*options, **more)
        self.steps = 0
        self.ended = self.age.new_zeros(
            self.every + 1, len(self.age)
        )  # silences since the last update; 0: none. Row 0: right at it
        self.window: list[tuple[Tensor, int]] = []  # (fired, samples) of the batches before

    @torch.no_grad()
    def step(self, fired: Tensor, samples: int) -> Tensor:
        """One batch: (units,) whether each unit fired -> (units,) whether it has been silent for too long."""
        self.window.append((fired, samples))
        while sum(n for _, n in self.window[1:]) >= self.WINDOW:
            self.window.pop(0)
        whole = min(sum(n for _, n in self.window), max(self.WINDOW, samples))
        return self.look(torch.stack([flags for flags, _ in self.window]).any(0), whole)

    @torch.no_grad()
    def look(self, fired: Tensor, samples: int) -> Tensor:
        """As `step`, of one window."""
        row = (self.steps - 1) % self.every + 1
        self.ended[row] = torch.where(fired, self.age, 0)
        self.age = torch.where(fired, 0, self.age + samples)
        if self.steps % self.every == 0:
            self._update(samples)
            row = 0
        silent = self.age >= self.threshold
        self.ended[row] = torch.where(silent, self.age, self.ended[row])
        self.age = torch.where(silent, 0, self.age)
        self.steps += 1
        return silent

    def _update(self, samples: int) -> None:
        silences = self.ended.clamp(max=self.max_age).sort(dim=0).values  # (every + 1, units), no silence first
        count = (silences > 0).sum(dim=0)  # (units,)
        rank = torch.arange(1, len(silences) + 1, device=count.device)[:, None] - (len(silences) - count)
        reached = (rank > 0) & (rank / (count + 1e-8) >= self.percentile)
        quantile = silences.gather(0, reached.int().argmax(dim=0)[None])[0]  # the first that reaches the percentile
        quantile = torch.where(count > 0, quantile, 1)
        grown = (self.threshold * self.growth).long()
        self.threshold = torch.where(quantile < self.threshold, quantile, grown).clamp(samples, self.max_age)
        self.ended.zero_()
