"""Several methods in one run."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fire_core.methods.full_reset import FullReset
from fire_core.methods.protocol import BoundaryReport, Context, MakeOptimizer, Method, Net


class Chain(Method):
    """Several methods in one run, such as FIRE and Muon, FIRE and ReDo, or S&P and CBP.

    Each hook of the chain calls that hook of every method in the order given. Penalties add up. One method at most may
    replace the optimizer.

    Args:
        methods: the methods by name, in the order in which they act.
        apart: at a boundary, leave unchanged the weights that a replaced optimizer trains in a way of its own: with
            Muon, the hidden weights.

    Raises:
        ValueError: the methods conflict, or `apart` has no effect.
    """

    def __init__(self, methods: Mapping[str, Method], apart: bool = False) -> None:
        if not methods:
            raise ValueError("a chain needs at least one method")
        for name, method in methods.items():
            if method.not_combinable and len(methods) > 1:
                raise ValueError(f"{name} cannot be combined, it {method.not_combinable}")
        for name, method in list(methods.items())[1:]:
            if isinstance(method, FullReset):
                raise ValueError(f"{name} undoes the methods before it, so it must be the first")
        replacing_optimizer = [name for name, method in methods.items() if method.overrides("optimizer")]
        if len(replacing_optimizer) > 1:
            raise ValueError(f"{' and '.join(replacing_optimizer)} each replace the optimizer")
        acting_after_steps = [name for name, method in methods.items() if method.overrides("after_step")]
        for name in acting_after_steps[1:]:
            if methods[name].follows_the_optimizer:
                raise ValueError(
                    f"{name} takes what has happened since the last step for the optimizer's, so it must come before "
                    f"{acting_after_steps[0]}, which acts after steps"
                )
        self.methods, self.apart = dict(methods), apart
        # The method that chooses the optimizer; `Method()` leaves the trainer's own.
        self.optimizer_method = methods[replacing_optimizer[0]] if replacing_optimizer else Method()
        if apart and not (self.optimizer_method.overrides("owned") and self.overrides("at_boundary")):
            raise ValueError(
                "apart=True has no effect: it needs a method that acts at boundaries, and one whose optimizer trains "
                "some of the weights in a way of its own"
            )
        self.restarts = {part: how for method in methods.values() for part, how in method.restarts.items()}
        self.follows_gradients = any(method.follows_gradients for method in methods.values())
        self.builds_networks = any(method.builds_networks for method in methods.values())
        self.uses_initial_weights = any(method.uses_initial_weights for method in methods.values())
        self.needs_kept_optimizer = any(method.needs_kept_optimizer for method in methods.values())

    def check(self, net: Net) -> None:
        for method in self.methods.values():
            method.check(net)

    def idle_options(self) -> dict[str, str]:
        return {
            f"parts.{name}.{option}": f"parts.{name}.{reason}"
            for name, method in self.methods.items()
            for option, reason in method.idle_options().items()
        }

    @property
    def reads_layout(self) -> bool:
        return any(method.reads_layout for method in self.methods.values())

    def overrides(self, hook: str) -> bool:
        return any(method.overrides(hook) for method in self.methods.values())

    def spared(self, net: Net) -> frozenset[nn.Parameter]:
        """Return the parameters that no method of the chain may change at a boundary; none unless `apart`."""
        return frozenset(self.optimizer_method.owned(net) if self.apart else ())

    def at_boundary(self, net: Net, context: Context) -> BoundaryReport:
        acting = [method for method in self.methods.values() if method.overrides("at_boundary")]
        context = replace(context, spared=context.spared | self.spared(net))
        report = BoundaryReport()
        with net.unchanged_on_error(context.optimizers) if len(acting) > 1 else nullcontext():
            for method in acting:
                returned = method.at_boundary(net, context)
                its_report = returned if isinstance(returned, BoundaryReport) else BoundaryReport(returned or {})
                # What one method measured of the weights is only true at the end if no other acted.
                weights = its_report.weights if len(acting) == 1 else {}
                numbers = report.numbers | its_report.numbers
                report = BoundaryReport(numbers, weights, report.measuring + its_report.measuring)
        for method in self.methods.values():
            another_acted = any(other is not method for other in acting)
            if another_acted:
                method.forget_weights()
        return report

    def idle_reason(self) -> str:
        reasons = {name: method.idle_reason() for name, method in self.methods.items()}
        return "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason)

    def optimizer(self, net: Net, default: MakeOptimizer) -> torch.optim.Optimizer:
        return self.optimizer_method.optimizer(net, default)

    @contextmanager
    def watch(self, net: Net) -> Iterator[None]:
        with ExitStack() as stack:
            for method in self.methods.values():
                stack.enter_context(method.watch(net))
            yield

    def penalty(self, net: Net) -> Tensor | None:
        terms = [term for method in self.methods.values() if (term := method.penalty(net)) is not None]
        return torch.stack(terms).sum() if terms else None

    def before_step(self, net: Net, context: Context) -> None:
        for method in self.methods.values():
            method.before_step(net, context)

    def after_step(self, net: Net, context: Context) -> None:
        for method in self.methods.values():
            method.after_step(net, context)

    def after_epoch(self, net: Net, context: Context) -> dict[str, float]:
        numbers: dict[str, float] = {}
        for method in self.methods.values():
            numbers |= method.after_epoch(net, context) or {}
        return numbers

    def reshape(self, net: Net) -> None:
        for method in self.methods.values():
            method.reshape(net)

    def state_dict(self) -> dict[str, Any]:
        return {name: method.state_dict() for name, method in self.methods.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, method in self.methods.items():
            method.load_state_dict(state[name])
