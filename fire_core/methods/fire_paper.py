"""What the authors' reference code does in ReDo, SNR and CBP where it departs from the papers that it cites.

The figures of the FIRE paper come from that code, so `variant=fire_paper` repeats its behaviour: docs/paper.md lists
the differences (A1 to A13), and tests/parity compares with that code's numbers. A method's own file holds the algorithm
as its authors wrote it; this file holds the differences.
"""

import abc
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
from fire_core.units.graph import is_frozen, weight
from fire_core.units.recycle import NEW_NORM, redraw_rows_
from fire_core.units.watch import dims_without_units, is_trained, mean_magnitude
from fire_core.weights.topology import unwrap


def uniform(layer: nn.Module, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Draw a tensor of `shape` uniformly in +-1/sqrt(fan_in of the layer), torch's default initialisation."""
    draw = torch.rand(*shape, generator=generator, dtype=torch.float32, device=generator.device)
    return (draw * 2 - 1) / math.sqrt(weight(layer)[0].numel())


def he_normal(layer: nn.Module, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Draw a tensor of `shape` from a normal distribution of variance 2 / fan_in of the layer (He et al., 2015)."""
    draw = torch.randn(*shape, generator=generator, dtype=torch.float32, device=generator.device)
    return draw * math.sqrt(2 / weight(layer)[0].numel())


SIDE_BRANCHES = ("shortcut", "downsample")  # parts of module names that the reference code leaves out of its chain
PROJECTIONS = ("to_q", "to_k", "to_v")  # names of the layers that make queries, keys and values


@dataclass
class Link:
    """One linear layer or convolution of a chain, with the batch norm and the max-pool that follow it.

    Attributes:
        name: the layer's name in its network.
        layer: the linear layer or convolution.
        norm: the first batch norm after it, None if there is none before the next layer.
        pool: the first max-pool after it, None if there is none before the next layer.
    """

    name: str
    layer: nn.Module
    norm: nn.Module | None = None
    pool: nn.Module | None = None

    @property
    def projects(self) -> bool:
        """Return whether the layer makes queries, keys or values."""
        return self.name.rpartition(".")[2] in PROJECTIONS


def chain(root: nn.Module) -> list[Link]:
    """Return a network's linear layers and convolutions in the order of registration, without side branches.

    As in the reference code, each layer counts as read by the next one, whatever the skips and the attention between
    them, and the order of registration counts as the order in which they run. Of heads that stand side by side (SAC's
    actor), the chain has the first only.
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
    """Return the chain of each network. They stay separate, as no layer of a network reads one of another network."""
    return [chain(root) for root in modules.values()]


@torch.no_grad()
def recycle_rows_(
    networks: Sequence[Sequence[Link]], masks: Sequence[Tensor], context: Context, last_layers_kept: int = 1
) -> None:
    """Redraw the incoming weights and biases of masked units, and restart the step counters of their weights.

    Outgoing weights and moments stay, because the reference code changes only copies of them. The step counters of
    incoming and outgoing weights restart, as there. A layer with a frozen weight or bias stays as it is.

    Args:
        networks: the chain of each network.
        masks: which units of each layer are recycled, (units,) bool; the layers of the first chain, then of the second.
        context: gives the generator and the optimizers.
        last_layers_kept: how many of each chain's last layers stay as they are.
    """
    remaining_masks = iter(masks)
    for links in networks:
        network_masks = list(itertools.islice(remaining_masks, len(links)))
        for link, reader, mask in zip(links, links[1:], network_masks[: len(links) - last_layers_kept], strict=False):
            _recycle_rows_of_layer_(link, reader, mask, context)


def _recycle_rows_of_layer_(link: Link, reader: Link, mask: Tensor, context: Context) -> None:
    """Redraw the incoming weights and biases of a layer's masked units, and restart the step counters.

    Args:
        link: the layer, changed in place.
        reader: the next layer, whose weight keeps its numbers; its step counter restarts.
        mask: which units are recycled, (units,) bool.
        context: gives the generator and the optimizers.
    """
    index = mask.nonzero().flatten()
    if not len(index) or is_frozen(link.layer):
        return
    redraw_rows_(link.layer, index, uniform, context.generator, draw_bias=True)
    touched = [link.layer.weight, link.layer.bias, reader.layer.weight]
    for optimizer in context.optimizers:
        for parameter in touched:
            if isinstance(parameter, Tensor) and "step" in optimizer.state.get(parameter, {}):
                optimizer.state[parameter]["step"].zero_()


class OutputWatch:
    """Measure each unit by its layer's own output, before norm and nonlinearity; `units.watch.Watch` measures after.

    Args:
        links: the layers of all networks.
        reduce: (layer, outputs, all dimensions but the units') -> one number for each unit, (units,).
        only_training: ignore layers in evaluation mode, and passes that are a method's own.
    """

    def __init__(
        self, links: list[Link], reduce: Callable[[Link, Tensor, Sequence[int]], Tensor], only_training: bool = True
    ) -> None:
        self.links, self.reduce, self.only_training = links, reduce, only_training
        self.samples = 0
        self._statistics: dict[nn.Module, Tensor] = {}  # not by name: several networks share names

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Measure the passes within this block, by hooks that are removed at its end."""
        with contextlib.ExitStack() as hooks:
            for link in self.links:
                hooks.callback(link.layer.register_forward_hook(functools.partial(self._measure, link)).remove)
            yield

    @torch.no_grad()
    def _measure(self, link: Link, layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        """Store each unit's statistic of one pass through a layer; this is the hook of `on`.

        Args:
            link: the layer's place in its chain.
            layer: the layer itself.
            inputs: not used.
            output: (batch, ..., units), or of a convolution (batch, units, ...).
        """
        if is_trained(layer) or not self.only_training:
            x = output.detach()
            dims = dims_without_units(layer, x)
            if all(x.shape[dim] for dim in dims):  # an empty batch is not measured
                self._statistics[layer] = self.reduce(link, x, dims)
                self.samples = len(x)

    def read(self) -> list[Tensor]:
        """Return the statistic of the last pass, one (units,) tensor for each layer.

        Raises:
            RuntimeError: no pass went through some layer.
        """
        for link in self.links:
            if link.layer not in self._statistics:
                raise RuntimeError(
                    f"no pass with samples went through {link.name}; a network that torch.compile compiled before the "
                    "hooks were put on does not run them"
                )
        return [self._statistics[link.layer] for link in self.links]


def rectified(link: Link, x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return ReDo's measure of a unit: its mean rectified output; for queries, keys and values its mean |output|."""
    return mean_magnitude(x if link.projects else x.relu(), dims)


class FirePaperCBP:
    """Continual backpropagation as in the FIRE authors' code, which resembles its own authors' `res_gnt.py`.

    Differences from `ContinualBackprop`:
        - magnitudes are sums that never decay (A6) and are kept when the unit is replaced (A7)
        - a debt grows by all units of its layer as soon as one of them is mature
        - where a linear layer reads a convolution, each of its inputs counts as a unit: the whole channel is redrawn
          for one of them, and the wrong ages are cleared (A8, A9)
        - a layer before or among queries, keys and values has no reader; the utility of its units is their magnitude
        - layers are processed front to back, so that a row drawn in the next layer overwrites zeroed columns
        - the optimizer keeps its state
    Where the reference would crash because too few units are mature (A10), all mature ones are replaced.

    Args:
        networks: the chain of each network.
        rate: see `ContinualBackprop`.
        maturity: see `ContinualBackprop`.
        decay: see `ContinualBackprop`.
        state: "age", "magnitude" and "debt", each a list with one entry for each layer except each network's last.
            An empty dict is filled with zeros; one from a checkpoint is taken as it is. It is updated in place.
    """

    def __init__(
        self, networks: list[list[Link]], rate: float, maturity: int, decay: float, state: dict[str, Any]
    ) -> None:
        self.rate, self.maturity, self.decay, self.state = rate, maturity, decay, state
        self.links: list[Link] = []
        self.readers: list[nn.Module | None] = []
        for links in networks:
            for link, next_link in itertools.pairwise(links):
                self.links.append(link)
                self.readers.append(None if link.projects or next_link.projects else next_link.layer)
        self.watch = OutputWatch(self.links, self.reduce)
        if not state:
            state["age"] = [self._zeros(i) for i in range(len(self.links))]
            state["magnitude"] = [self._zeros(i) for i in range(len(self.links))]
            state["debt"] = [0.0 for _ in self.links]
        self.utility: list[Tensor | None] = [None for _ in self.links]  # as of the last replacement

    def _zeros(self, i: int) -> Tensor:
        """Return a float32 zero for each unit of layer i, (units,), on the layer's device."""
        return torch.zeros(self._unit_count(i), dtype=torch.float32, device=weight(self.links[i].layer).device)

    def _is_flattened(self, i: int) -> bool:
        """Return whether layer i is a convolution whose map a linear layer reads flattened."""
        return isinstance(self.links[i].layer, _ConvNd) and isinstance(self.readers[i], nn.Linear)

    def _is_frozen(self, i: int) -> bool:
        """Return whether layer i, its norm or its reader has a frozen parameter; its units then stay as they are."""
        link, reader = self.links[i], self.readers[i]
        return is_frozen(*(module for module in (link.layer, link.norm, reader) if module is not None))

    def _unit_count(self, i: int) -> int:
        """Return how many units the reference counts in layer i: inputs of its reader if flattened, else outputs."""
        reader = self.readers[i]
        if reader is not None and self._is_flattened(i):
            return weight(reader).shape[1]
        return len(weight(self.links[i].layer))

    def reduce(self, link: Link, x: Tensor, dims: Sequence[int]) -> Tensor:
        """Return the mean |output| of a layer's units, (units,).

        A map that a linear layer reads is reshaped to rows of that layer's width. As in the reference code these rows
        are not aligned with samples: they mix channels and positions.
        """
        i = self.links.index(link)
        if link.pool is not None:
            x = link.pool(x)
        if self._is_flattened(i):
            return mean_magnitude(x.reshape(-1, self._unit_count(i)), [0])
        return mean_magnitude(x, dims)

    def step(self, context: Context) -> None:
        """Update ages and utilities by the last training pass and replace units; called after an optimizer step."""
        self.update(self.watch.read(), context.generator)

    @torch.no_grad()
    def update(self, features: list[Tensor], generator: torch.Generator) -> list[Tensor]:
        """Make one step of the algorithm.

        Args:
            features: mean |output| of each layer's units, (units,).
            generator: for the new weights.

        Returns:
            Indices of the replaced units of each layer.
        """
        replaced = [self._choose(i, feature) for i, feature in enumerate(features)]
        for i, index in enumerate(replaced):
            if len(index) and not self._is_frozen(i):
                self._replace_(i, index, generator)
        return replaced

    def _choose(self, i: int, feature: Tensor) -> Tensor:
        """Update the state of layer i by the mean |output| of its units, and return the indices of those to replace."""
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
        """Zero the outgoing weights of these units of layer i, redraw their rows and reset their norm's entries."""
        link, reader = self.links[i], self.readers[i]
        rows = index
        if self._is_flattened(i):
            rows = torch.unique(index // (self._unit_count(i) // len(weight(link.layer))))  # units -> their channels
        if reader is not None:
            weight(reader)[:, index] = 0
        redraw_rows_(link.layer, rows, he_normal, generator)
        if link.norm is not None:
            for name, value in NEW_NORM.items():
                tensor = getattr(link.norm, name)
                tensor[rows] = value
        self.state["age"][i][rows] = 0


class UnitSilences(Saved, abc.ABC):
    """The age of each unit's current silence, and the threshold at which the unit is recycled, both in samples.

    Args:
        units: number of units.
        percentile: see `SelfNormalizedResets`.
        every: see `SelfNormalizedResets`.
        max_age: see `SelfNormalizedResets`.
        growth: see `SelfNormalizedResets`.
        device: device of the state.
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

    @abc.abstractmethod
    def step(self, fired: Tensor, samples: int) -> Tensor:
        """Add a batch to the silences of all units, and return which of them are too long.

        Args:
            fired: (units,) bool, whether each unit fired anywhere in the batch.
            samples: samples of the batch.

        Returns:
            (units,) bool, whether each unit has been silent for too long.
        """


class FirePaperSilences(UnitSilences):
    """Silences and thresholds as the FIRE authors' code keeps them; `snr.Silences` keeps them as SNR's authors do.

    Thresholds move every `every` steps, and at the very first step too. A threshold goes to the percentile of the
    unit's silences since the last move if that is smaller, else it grows by the factor `growth`; it stays between the
    samples of a window and `max_age`. A unit that had no silence has a percentile of 1. Each step looks at a window of
    the last `WINDOW` samples (whole batches) and ages a silent unit by all of them. At most one silence of a unit ends
    in a step, so that `every` numbers for each unit hold them all.
    """

    FIELDS = ("age", "threshold", "ended", "steps", "window")
    WINDOW = 512  # samples

    def __init__(self, *options: Any, **more: Any) -> None:
        super().__init__(*options, **more)
        self.steps = 0
        # (every + 1, units): lengths of the silences that ended in each step since thresholds last moved, 0 where none
        # did. Row 0 takes those that end in the step that moves the thresholds.
        self.ended = self.age.new_zeros(self.every + 1, len(self.age))
        self.window: list[tuple[Tensor, int]] = []  # (which units fired, samples) of the last batches, oldest first

    @torch.no_grad()
    def step(self, fired: Tensor, samples: int) -> Tensor:
        self.window.append((fired, samples))
        while sum(n for _, n in self.window[1:]) >= self.WINDOW:
            self.window.pop(0)
        window_samples = min(sum(n for _, n in self.window), max(self.WINDOW, samples))
        return self.step_window(torch.stack([flags for flags, _ in self.window]).any(0), window_samples)

    @torch.no_grad()
    def step_window(self, fired: Tensor, samples: int) -> Tensor:
        """Process a window of batches.

        Args:
            fired: (units,) bool, whether each unit fired anywhere in the window.
            samples: samples of the window.

        Returns:
            (units,) bool, whether each unit has been silent for too long.
        """
        row = (self.steps - 1) % self.every + 1
        self.ended[row] = torch.where(fired, self.age, 0)
        self.age = torch.where(fired, 0, self.age + samples)
        if self.steps % self.every == 0:
            self._move_thresholds(samples)
            row = 0
        silent = self.age >= self.threshold
        self.ended[row] = torch.where(silent, self.age, self.ended[row])
        self.age = torch.where(silent, 0, self.age)
        self.steps += 1
        return silent

    def _move_thresholds(self, samples: int) -> None:
        """Move each threshold to the percentile of its unit's silences or by `growth`, and forget the silences."""
        silences = self.ended.clamp(max=self.max_age).sort(dim=0).values  # (every + 1, units), zeros (none) first
        count = (silences > 0).sum(dim=0)  # (units,)
        rank = torch.arange(1, len(silences) + 1, device=count.device)[:, None] - (len(silences) - count)
        reached = (rank > 0) & (rank / (count + 1e-8) >= self.percentile)
        quantile = silences.gather(0, reached.int().argmax(dim=0)[None])[0]  # the first that reaches the percentile
        quantile = torch.where(count > 0, quantile, 1)
        grown = (self.threshold * self.growth).long()
        self.threshold = torch.where(quantile < self.threshold, quantile, grown).clamp(samples, self.max_age)
        self.ended.zero_()
