"""Muon for any model: fused weights are orthogonalised block by block, experts one by one, convolutions as matrices.

    muon, adam = muon_groups(model)
    optimizers = SplitMuon(muon, lr=0.02), torch.optim.AdamW(adam, lr=3e-4)

Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024) replaces each matrix of momentum
by the nearest orthogonal one. Of a fused weight (q, k and v in one tensor, say) that is another update than of its
parts: the parts then share one spectrum, and the rate is scaled by the shape of the whole.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn

from fire_core.errors import FireWarning
from fire_core.methods.layers import input_layers, output_layers
from fire_core.weights import distributed, exchange
from fire_core.weights.entry import Entry
from fire_core.weights.layout import listed
from fire_core.weights.matrices import matrices
from fire_core.weights.output_layers import networks_within, parts_of
from fire_core.weights.topology import (
    RAW,
    Surroundings,
    input_count,
    is_layer,
    is_named_table,
    numberless,
    output_count,
    unwrap,
)

MOST_CHANNELS = 4  # of what a convolution reads that no layer made: gray, stereo, colours, colours and depth
DTYPE = torch.bfloat16  # of the steps, as in `torch.optim.Muon`
NOT_HIDDEN = ("head", "embedding", "router", "fused", "changed", "unused", "other")


class MuonGroups(NamedTuple):
    """The parameters of a model, for two optimizers.

    Attributes:
        muon: groups for `SplitMuon`: hidden matrices, with how each is cut.
        adam: all other trainable parameters, for AdamW, say: embeddings, heads, input layers, biases, norms.
    """

    muon: list[dict[str, Any]]
    adam: list[nn.Parameter]


def muon_groups(model: nn.Module, **options: Any) -> MuonGroups:
    """Return the trainable parameters of a model in two lists: groups for `SplitMuon`, and those of another optimizer.

    Each group has `params`, and `cuts`: how these divide into matrices, which only `SplitMuon` reads.
    Muon is for hidden layers. Left to the other optimizer: heads, embeddings, routers, the layer that reads the
    network's input where no embedding comes before it, vectors, and weights that look fused and are not known
    (`matrices(model).warnings` says how to declare them).

    Args:
        model: any module.
        **options: of `resolve`, as for `matrices`: `blocks=`, `transposed=`, `example=`, `strict=True`.

    Returns:
        `muon, adam`.

    Raises:
        TypeError: `model` is no module.
        ValueError: an option that `resolve` refuses, or no hidden matrix.

    Warns:
        FireWarning: raw parameters that may be stacks of matrices, or weights in doubt, go to the other optimizer. Not
            of tables of positions or tokens, which their names tell.
    """
    read = matrices(model, **options)
    blocks, outside = entries_by_parameter(read), outside_layers(model, read)
    raw = [e.name for e in read if e.reason == RAW and min(e.shape) > 1 and not is_named_table(e.name)]
    lines = [line for line in read.warnings if "raw parameters" not in line]
    if raw:
        lines.append(
            f"raw parameters are left to the other optimizer: {listed(raw)}. If they hold matrices that Muon should "
            "train, say how they are stored: blocks={name: (rows,)}, and transposed=name for (d_in, d_out)"
        )
    for line in lines:
        warnings.warn(line, FireWarning, stacklevel=2)
    groups: dict[tuple[Any, ...], list[nn.Parameter]] = {}
    rest = []
    for parameter in (p for p in model.parameters() if p.requires_grad):
        entries = blocks.get(parameter, [])
        if is_hidden(parameter, entries, outside):
            groups.setdefault(tuple(map(cut_of, entries)), []).append(parameter)
        else:
            rest.append(parameter)
    if not groups:
        why = f": {read.unread[0]}" if read.unread else ""
        raise ValueError(f"the model has no hidden matrix that Muon could train{why}")
    return MuonGroups([{"params": parameters, "cuts": cut} for cut, parameters in groups.items()], rest)


def tower_inputs(model: nn.Module) -> set[Any]:
    """Return the layers that read pixels or other raw inputs, in each tower of a model with several (CLIP, critics).

    The number of inputs of such a layer is neither the number of outputs of another layer nor a multiple of it, as that
    of a flattened map is. Of convolutions those with at most four inputs count, of linear layers the first of each part
    of the model.
    """
    layers = [module for module in unwrap(model).modules() if is_layer(module)]
    output_sizes = {output_count(layer) for layer in layers} | {
        module.embedding_dim for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
    }
    wrapped = [network.module for network in networks_within(unwrap(model))]
    parts = [*wrapped, *(part.module for network in (unwrap(model), *wrapped) for part in parts_of(network))]
    first_layers = {next((layer for layer in part.modules() if is_layer(layer)), None) for part in parts}
    input_layers_of_towers = set()
    for layer in layers:
        inputs = input_count(layer)
        is_first = layer in first_layers if isinstance(layer, nn.Linear) else inputs <= MOST_CHANNELS
        if is_first and not any(inputs % size == 0 for size in output_sizes if size > 1):
            input_layers_of_towers.add(layer)
    return input_layers_of_towers


def entries_by_parameter(read: Iterable[Entry]) -> dict[Tensor, list[Entry]]:
    """Return the matrices of each parameter, in their order: several where it is fused."""
    entries: dict[Tensor, list[Entry]] = {}
    for entry in read:
        entries.setdefault(entry.parameter, []).append(entry)
    return entries


def outside_layers(model: nn.Module, read: Iterable[Entry]) -> dict[int, str]:
    """Return which layers are not hidden: `id` of the weight -> "an input layer" or "an output layer".

    Of a network without anything that is called a head the output layer is the one that scores a vocabulary, else the
    last one registered. A body has none: a network whose last layer ends a numbered block, if such blocks recur or
    parameters outside of the block come after it.

    Args:
        model: any module.
        read: its matrices.
    """
    last: set[Any] = set(output_layers(model))
    if not any(entry.role == "head" for entry in read):
        last = vocabulary_layers(model) or {layer for layer in last_layers(model) if not _is_in_body(model, layer)}
    outside = {id(layer.weight): "an input layer" for layer in input_layers(model) | tower_inputs(model)}
    return outside | {id(layer.weight): "an output layer" for layer in last}


def vocabulary_layers(model: nn.Module) -> set[Any]:
    """Return the one linear layer that scores a vocabulary, as a set; the set is empty if there is none, or several.

    The layer lies outside of all blocks, and its weight has as many rows and columns as an embedding.
    """
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    tables = {(embedding.num_embeddings, embedding.embedding_dim) for embedding in embeddings}
    named = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    scores = [(name, layer) for name, layer in named if (layer.out_features, layer.in_features) in tables]
    if len(scores) != 1 or any(part.isdigit() for part in scores[0][0].split(".")):
        return set()  # as many outputs as positions, say
    return {scores[0][1]}


def last_layers(model: nn.Module) -> set[Any]:
    """Return the last linear layer or convolution of a model; of several networks of one class in it, that of each."""
    networks = Surroundings(unwrap(model)).networks
    innermost = [network for network in networks if not any(child in networks for child in network.children())]
    layers_at_the_end = set()
    for network in innermost:
        layers = [module for module in network.modules() if is_layer(module)]
        if layers:
            layers_at_the_end.add(layers[-1])
    return layers_at_the_end


def _is_in_body(model: nn.Module, layer: nn.Module) -> bool:
    """Return whether a layer ends a numbered block of a body, whose outputs a next such block could read.

    It does if blocks with such a layer recur, or if a parameter outside of the block comes after it, as a last norm's.
    """
    layers = {name: module for name, module in model.named_modules() if is_layer(module)}
    name = next(key for key, module in layers.items() if module is layer)
    numbered = [i for i, part in enumerate(name.split(".")[:-1]) if part.isdigit()]
    if not numbered:
        return False
    block = ".".join(name.split(".")[: numbered[-1] + 1]) + "."
    first = next(module for key, module in layers.items() if key.startswith(block))
    if input_count(first) != output_count(layer):
        return False
    sizes = {key: (output_count(module), input_count(module)) for key, module in layers.items()}
    like_layers = [key for key in layers if numberless(key) == numberless(name) and sizes[key] == sizes[name]]
    parameters = [key for key, _ in model.named_parameters()]
    positions = [i for i, key in enumerate(parameters) if key.startswith(f"{name}.")]
    after = parameters[positions[-1] + 1 :] if positions else []
    return len(like_layers) > 1 or any(not key.startswith(block) for key in after)


def is_hidden(parameter: Tensor, entries: Iterable[Entry], outside: Mapping[int, str]) -> bool:
    """Return whether a parameter holds hidden matrices alone, which Muon is for.

    Args:
        parameter: a parameter of the model.
        entries: its entries in the result of `entries_by_parameter`; none for a parameter without matrices.
        outside: the result of `outside_layers`.
    """
    entries = list(entries)
    are_hidden = all(entry.role not in NOT_HIDDEN and min(entry.shape) > 1 for entry in entries)
    return bool(entries) and are_hidden and id(parameter) not in outside


class SplitMuon(torch.optim.Optimizer):
    """`torch.optim.Muon` for weights that hold several matrices.

    It has the options, the defaults and the results of torch's class.

    Fed the same gradients, a fused weight is changed bit for bit as its parts are by `torch.optim.Muon`: each block has
    its own orthogonalised direction, and the rate is scaled by the block's shape. A convolution is one matrix
    (c_out, c_in k_h k_w) a group, as in the first public code (KellerJordan/Muon).

    Under FSDP2 and tensor parallelism a step is called on every rank, as always. Momentum stays sharded; of weights of
    one shape each rank orthogonalises some, whole, and sends the directions back (docs/sharded.md). A weight must have
    a gradient on all ranks or on none.

    The momentum buffer of a half-precision weight is never worked on in place: torch's own step with `nesterov=False`
    overwrites a bfloat16 buffer with its direction (pytorch #194664).

    Args:
        params: the groups of `muon_groups`, or parameters, each of which is one matrix or a convolution.
        lr: learning rate.
        weight_decay: decoupled weight decay, which is multiplied by the learning rate.
        momentum: momentum of the running mean of gradients.
        nesterov: whether the direction looks one gradient ahead.
        ns_coefficients: coefficients (a, b, c) of the quintic step.
        eps: least norm that a direction is divided by.
        ns_steps: number of quintic steps.
        adjust_lr_fn: how the rate of an m x n matrix is scaled: "original" (None too) by sqrt(max(1, m / n)),
            "match_rms_adamw" by 0.2 sqrt(max(m, n)), "spectral_unclamped" by sqrt(m / n).

    Raises:
        ValueError: an option outside of its range, a parameter that is no matrix, or one that is sharded in another way
            than FSDP2 and tensor parallelism do.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        for name, value in (("lr", lr), ("weight_decay", weight_decay), ("momentum", momentum), ("eps", eps)):
            if not isinstance(value, (int, float, Tensor)) or not value >= 0:
                raise ValueError(f"{name}={value}: a number, at least 0")
        if ns_steps != int(ns_steps) or not 0 <= ns_steps < 100:
            raise ValueError(f"ns_steps={ns_steps}: a whole number from 0 to 99")
        if len(ns_coefficients) != 3:
            raise ValueError(f"ns_coefficients={tuple(ns_coefficients)}: three numbers")
        if adjust_lr_fn not in ADJUST:
            raise ValueError(f"adjust_lr_fn={adjust_lr_fn!r}: one of {', '.join(str(name) for name in ADJUST)}")
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": tuple(ns_coefficients),
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
            "cuts": (),
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as in every optimizer, unless Muon cannot train it: then the optimizer stays as it was.

        Raises:
            ValueError: a parameter is complex, a vector, of three dimensions without a cut, or sharded in another way
                than FSDP2 and tensor parallelism do.
        """
        super().add_param_group(param_group)
        group = self.param_groups.pop()
        for parameter in group["params"]:
            if distributed.is_sharded(parameter):
                exchange.divisions_of(parameter)
            if parameter.is_complex():
                raise ValueError(f"a parameter of shape {tuple(parameter.shape)} is complex, which Muon does not train")
            if parameter.ndim < 2 or (parameter.ndim == 3 and not group["cuts"]):
                raise ValueError(
                    f"a parameter of shape {tuple(parameter.shape)} is no matrix: muon_groups(model) sorts them"
                )
        self.param_groups.append(group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, as in every optimizer, but for how weights are cut: so `torch.optim.Muon`'s states load too.

        The momentum of a whole weight loads into a sharded one and the reverse: call it on every rank.
        """
        cuts = [group["cuts"] for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, own in zip(self.param_groups, cuts, strict=True):
            group["cuts"] = own
        for parameter, state in self.state.items():
            buffer = state["momentum_buffer"]
            if distributed.is_sharded(parameter) != distributed.is_sharded(buffer):
                state["momentum_buffer"] = torch.empty_like(parameter, dtype=buffer.dtype, requires_grad=False)
                distributed.write_(state["momentum_buffer"], distributed.full(buffer))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step of every parameter that has a gradient.

        Args:
            closure: evaluates the model again, as in every optimizer.

        Returns:
            What `closure` returned, or None without one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in parameters:
                if not distributed.is_sharded(parameter):
                    self._update(parameter, group)
            for alike in _rounds([parameter for parameter in parameters if distributed.is_sharded(parameter)]):
                self._update_sharded(alike, group)
        return loss

    def _direction(self, parameter: Tensor, group: Mapping[str, Any]) -> Tensor:
        """Update the momentum with the gradient, and return what is to be orthogonalised.

        Of a sharded weight it is this rank's part.
        """
        state, momentum, gradient = self.state[parameter], group["momentum"], cast(Tensor, parameter.grad)
        if distributed.is_sharded(gradient):  # tensor parallelism may leave sums over ranks to be made
            gradient = cast(Any, gradient).redistribute(placements=cast(Any, parameter).placements)
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        gradient = distributed.local(gradient)
        buffer = distributed.local(state["momentum_buffer"]).lerp_(gradient, 1 - momentum)
        return gradient.lerp(buffer, momentum) if group["nesterov"] else buffer

    def _update(self, parameter: Tensor, group: Mapping[str, Any]) -> None:
        """Update a weight that this process holds whole."""
        direction, lr = self._direction(parameter, group), float(group["lr"])
        parameter.mul_(1 - lr * group["weight_decay"])
        for entry in entries_of(parameter, group["cuts"]):
            new = matrices_of(entry, parameter)
            for matrix, step in zip(new, matrices_of(entry, direction), strict=True):
                scale = ADJUST[group["adjust_lr_fn"]](*matrix.shape)
                step = orthogonalised(step, group["ns_coefficients"], group["ns_steps"], group["eps"])
                matrix.add_(step, alpha=-lr * scale)
            write_matrices(entry, parameter, new)

    def _update_sharded(self, parameters: list[Tensor], group: Mapping[str, Any]) -> None:
        """Update weights of one shape, sharded alike: each rank orthogonalises some of them, whole."""
        lr, divisions = float(group["lr"]), exchange.divisions_of(parameters[0])
        # Only `DTYPE` travels: the steps begin with it and end with it, so nothing is rounded for the way.
        shard = distributed.local(parameters[0])
        stack = torch.empty(len(parameters), *shard.shape, dtype=DTYPE, device=_mesh_device(parameters[0]))
        for at, parameter in enumerate(parameters):
            stack[at] = self._direction(parameter, group)
        stack = exchange.to_owners(stack, divisions)
        for weight in stack:
            _orthogonalise_(weight, group)
        stack = exchange.to_shards(stack, len(parameters), divisions)
        scales = exchange.local_part(_scales(parameters[0], group["cuts"], group["adjust_lr_fn"]), divisions).to(
            stack.device
        )
        for parameter, step in zip(parameters, stack, strict=True):
            shard = distributed.local(parameter)
            shard.mul_(1 - lr * group["weight_decay"]).add_((step * scales).to(shard.device), alpha=-lr)


def _orthogonalise_(weight: Tensor, group: Mapping[str, Any]) -> None:
    """Put each matrix's orthogonal direction in its place."""
    for entry in entries_of(weight, group["cuts"]):
        matrices = matrices_of(entry, weight)
        for matrix in matrices:
            matrix.copy_(orthogonalised(matrix, group["ns_coefficients"], group["ns_steps"], group["eps"]))
        write_matrices(entry, weight, matrices)


ROUND_ELEMENTS = 2**21  # of small weights a rank orthogonalises as many in one round: fewer, larger messages


def _rounds(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yield sharded weights of one shape and layout, in each list as many as the ranks orthogonalise at once."""
    alike: dict[Any, list[Tensor]] = {}
    for parameter in parameters:
        sharded = cast(Any, parameter)
        alike.setdefault((parameter.shape, sharded.device_mesh, sharded.placements), []).append(parameter)
    for (shape, _, _), several in alike.items():
        ranks = math.prod(len(division.lengths) for division in exchange.divisions_of(several[0]))
        size = ranks * max(1, ROUND_ELEMENTS // max(1, shape.numel()))
        yield from (several[at : at + size] for at in range(0, len(several), size))


def _mesh_device(parameter: Tensor) -> torch.device:
    """Return the device where ranks can exchange a weight: the GPU, also if FSDP2 keeps the weight on the CPU."""
    device, kind = distributed.local(parameter).device, cast(Any, parameter).device_mesh.device_type
    return device if device.type == kind else torch.device(kind)


def _scales(parameter: Tensor, cuts: Iterable[tuple[Any, ...]], adjust: str | None) -> Tensor:
    """Return what the rate of each number of a sharded weight is multiplied by: a view of the whole shape, float32.

    The matrices' own shapes tell it, whatever part of them a shard holds. It is 0 for rows that no matrix has.
    """
    whole = torch.empty(parameter.shape, device="meta")
    entries = entries_of(whole, cuts)
    shape = [1] * whole.ndim
    shape[entries[0].row_dim] = -1
    rows = torch.zeros(whole.shape[entries[0].row_dim], dtype=torch.float32, device="cpu")
    for entry in entries:
        rows[entry.where] = ADJUST[adjust](*matrices_of(entry, whole).shape[-2:])
    return rows.view(shape).expand(whole.shape)


def orthogonalised(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Return a matrix (m, n) with its singular values moved to about 1 by quintic steps in `DTYPE`, as Muon does."""
    a, b, c = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    X = (matrix.T if tall else matrix).to(DTYPE, copy=True)
    X.div_(X.norm().clamp(min=eps))
    for _ in range(steps):
        gram = X @ X.T
        X = torch.addmm(X, torch.addmm(gram, gram, gram, beta=b, alpha=c), X, beta=a)
    return X.T if tall else X


ADJUST: dict[str | None, Callable[[int, int], float]] = {
    None: lambda m, n: math.sqrt(max(1, m / n)),
    "original": lambda m, n: math.sqrt(max(1, m / n)),
    "match_rms_adamw": lambda m, n: 0.2 * math.sqrt(max(m, n)),
    "spectral_unclamped": lambda m, n: math.sqrt(m / n),
}


# ------------------------------------------------------------------------------------------------------------- the cuts

MuonCut: TypeAlias = tuple[Any, ...]
Cuts: TypeAlias = tuple[MuonCut, ...]
# A cut is a plain tuple, so that it can be hashed, compared, and stored in the state_dict of an optimizer.
FIELDS = ("kind", "rows", "groups", "transposed", "repeats", "heads", "columns")  # what a cut is, as plain data


WHOLE: MuonCut = ("matrix", None, 1, False, 1, 1, False)  # one matrix, (1, T, d) tokens too


def cut_of(entry: Entry) -> MuonCut:
    """Return the cut from which `entries_of` makes the entry's matrices again, for any parameter of its shape."""
    return tuple(getattr(entry, field) for field in FIELDS)


def entries_of(parameter: Tensor, cuts: Iterable[tuple[Any, ...]]) -> list[Entry]:
    """Return one entry for each block of a parameter that cuts make; without cuts one entry for the whole of it."""
    plain = {"kind": "conv" if parameter.ndim > 3 else "matrix"}
    return [
        Entry("", parameter, "", **options)
        for options in ([dict(zip(FIELDS, cut, strict=True)) for cut in cuts] or [plain])
    ]


def matrices_of(entry: Entry, tensor: Tensor) -> Tensor:
    """Return a contiguous copy (count, d_out, d_in) of an entry's matrices in a tensor of its parameter's shape.

    Of a convolution it is (groups, c_out / groups, c_in / groups * k_h k_w).
    """
    if entry.kind == "conv":
        return torch.unflatten(tensor[entry.where], 0, (entry.groups, -1)).flatten(2).clone()
    if entry.kind == "conv_transpose":
        return torch.unflatten(tensor, 0, (entry.groups, -1)).transpose(1, 2).flatten(2).clone()
    return entry.view(tensor).reshape(-1, *entry.shape).clone(memory_format=torch.contiguous_format)


def write_matrices(entry: Entry, tensor: Tensor, values: Tensor) -> None:
    """Write matrices, as `matrices_of` gives them, to their places in a tensor."""
    if entry.kind == "conv":
        tensor[entry.where] = values.reshape(-1, *tensor.shape[1:])
    elif entry.kind == "conv_transpose":
        shape = (entry.groups, tensor.shape[1], tensor.shape[0] // entry.groups, *tensor.shape[2:])
        tensor.copy_(values.reshape(shape).transpose(1, 2).reshape(tensor.shape))
    else:
        entry.write_(tensor, values)
