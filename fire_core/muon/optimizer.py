"""Muon for fused weights: each block is orthogonalised on its own, experts one by one, convolutions as matrices.

Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024) replaces each matrix of momentum
by the nearest orthogonal one. Of a fused weight (q, k and v in one tensor, say) that is another update than of its
parts: the parts then share one spectrum, and the rate is scaled by the shape of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from fire_core.muon.cuts import entries_of, matrices_of, write_matrices
from fire_core.weights import distributed, exchange
from fire_core.weights.optimizers import evaluated

DTYPE = torch.bfloat16  # of the steps, as in `torch.optim.Muon`
ADJUST: dict[str | None, Callable[[int, int], float]] = {
    None: lambda m, n: math.sqrt(max(1, m / n)),
    "original": lambda m, n: math.sqrt(max(1, m / n)),
    "match_rms_adamw": lambda m, n: 0.2 * math.sqrt(max(m, n)),
    "spectral_unclamped": lambda m, n: math.sqrt(m / n),
}


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
            ValueError: an option is not accepted; or a parameter is complex, a vector, of three dimensions without a
                cut, or sharded in another way than FSDP2 and tensor parallelism do.
        """
        super().add_param_group(param_group)
        group = self.param_groups.pop()
        _check_options(group)
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

        Raises:
            ValueError: the state is that of another optimizer; nothing is loaded then.
        """
        if not all("momentum_buffer" in state for state in state_dict["state"].values()):
            raise ValueError("this is the state of another optimizer than Muon: a weight has no momentum_buffer")
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
        loss = evaluated(closure)
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
        # Ranks exchange directions in `DTYPE`; the Newton-Schulz steps compute in it anyway, so this rounds nothing.
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


def _check_options(group: dict[str, Any]) -> None:
    """Check the options of a group of parameters.

    Raises:
        ValueError: one is of another type, or outside of its range.
    """
    for name in ("lr", "weight_decay", "momentum", "eps"):
        value = group[name]
        if not isinstance(value, (int, float, Tensor)) or not value >= 0:
            raise ValueError(f"{name}={value} must be a number, at least 0")
    steps, coefficients = group["ns_steps"], group["ns_coefficients"]
    if not isinstance(steps, int) or not 0 <= steps < 100:
        raise ValueError(f"ns_steps={steps} must be a whole number from 0 to 99")
    if len(coefficients) != 3 or not all(isinstance(number, (int, float)) for number in coefficients):
        raise ValueError(f"ns_coefficients={coefficients} must be three numbers")
    if group["adjust_lr_fn"] not in ADJUST:
        accepted = ", ".join(str(name) for name in ADJUST)
        raise ValueError(f"adjust_lr_fn={group['adjust_lr_fn']!r} must be one of {accepted}")


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
