"""What all integrations do alike: ask the trigger after each step, and let the method act where it fires."""

from __future__ import annotations

import copy
import hashlib
import inspect
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.integrations.copies import Source, changed, named_weights, weights_of, write
from fire_core.integrations.keep import Keep, find_kept, kept_tensors
from fire_core.methods.protocol import BoundaryReport, Context, Method, Net
from fire_core.reinit.fire import check_options, fire_
from fire_core.triggers.trigger import Firing, Trigger
from fire_core.weights.layout import Entries, Selector, resolve, selectors_of
from fire_core.weights.optimizer_state import holding

log = logging.getLogger("fire_core")
Batches = Callable[[], Iterator[tuple[Tensor, Tensor]]]
PREFIX = "fire/"


class FireWith(Method):
    """`fire_` with any of its options; beside those, the weights that the selectors of `keep` mean are kept."""

    def __init__(self, options: Mapping[str, Any], keep: Keep = ()) -> None:
        parameters = inspect.signature(fire_).parameters
        for name in options:
            if name not in parameters or name in ("model", "optimizer"):
                raise TypeError(f"{name!r} is no option of fire_ that can be given here")
        self.options, self.keep = dict(options), selectors_of("keep", keep)
        self.values = {name: p.default for name, p in parameters.items()} | self.options

    def check(self, net: Net) -> None:
        """Refuse options that `fire_` would refuse, and a layout that leaves nothing to do.

        Raises:
            ValueError: with the reason.
        """
        check_options(**{name: self.values[name] for name in inspect.signature(check_options).parameters})
        entries = [entry for found in self._entries(net, self._excluded(net)).values() for entry in found]
        if all(entry.action == "keep" for entry in entries):
            reasons = list(dict.fromkeys(entry.reason for entry in entries if entry.kind != "vector"))
            raise ValueError(f"nothing would be projected: {'; '.join(reasons[:3]) or 'the model has no matrices'}")

    def needs_init(self, net: Net) -> bool:
        """Whether it reads the initial weights: to reinitialise, or for the scale of that name."""
        entries = [entry for found in self._entries(net, self._excluded(net)).values() for entry in found]
        return self.values["scale"] == "match_init" or any(entry.action == "reinit" for entry in entries)

    def _entries(self, net: Net, excluded: Mapping[str, list[Selector]]) -> dict[str, Entries]:
        names = ("layout", "include", "blocks", "transposed", "example", "strict", "trainable_only")
        options = {name: self.values[name] for name in names}
        return {name: resolve(module, **options, exclude=excluded[name]) for name, module in net.modules.items()}

    def _excluded(self, net: Net) -> dict[str, list[Selector]]:
        """For each module what `fire_` is to exclude: its own option, and what `keep` means there."""
        given: dict[str, list[Selector]] = dict.fromkeys(net.modules, selectors_of("exclude", self.values["exclude"]))
        if not self.keep:
            return given
        kept, _ = find_kept(net.modules, self._entries(net, given), self.keep)
        return {name: [*given[name], *(e.label if e.block else e.parameter for e in kept[name])] for name in kept}

    def at_boundary(self, net: Net, context: Context) -> BoundaryReport:
        reports, excluded = {}, self._excluded(net)
        for name, module in net.modules.items():
            options = {"init": net.init.get(name), **self.options, "exclude": excluded[name]}
            reports[name] = fire_(module, optimizer=context.optimizers, **options)
        return BoundaryReport(weights=reports)


class Intervention:
    """A method, the trigger that says when it acts, and what has to follow.

    Args:
        trigger: asked after each optimizer step, on every rank.
        method: any method that acts at a boundary; None: `fire_` with `options`.
        trainable_only: frozen weights stay as they are, whatever the method.
        keep: selectors of weights that stay as they are, whatever the method, and keep their optimizer state: what
            `exclude` of `fire_` takes (a pattern such as `"head"` or `"*.bias"`, a module, a type, a parameter), one
            or several. With several networks a name may begin with the network's (`"actor.*"`).
        batches: for a method that takes gradients (DASH): the next training batches `(inputs, targets)`, one pass.
        loss: with them: mean loss of a batch.
        seed: of the method's own draws; the run's random numbers are left alone.
        options: of `fire_`.

    Raises:
        TypeError: an argument is of another kind, an option is unknown.
        ValueError: the method cannot work at a trigger's firing, or lacks data.
    """

    def __init__(
        self,
        trigger: Trigger,
        method: Method | None = None,
        *,
        trainable_only: bool = True,
        keep: Keep = (),
        batches: Batches | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if not isinstance(trigger, Trigger):
            raise TypeError(f"trigger must be one of fire_core.triggers, got {type(trigger).__name__}")
        if method is not None and options:
            raise TypeError(f"options of fire_ ({', '.join(options)}) go with method=None; give them to the method")
        if method is not None:
            check_method(method, batches is not None and loss is not None)
        self.trigger, self.batches, self.loss, self.seed = trigger, batches, loss, seed
        self.trainable_only, self.keep = trainable_only, selectors_of("keep", keep)
        self.method = method or FireWith({"trainable_only": trainable_only, **options}, self.keep)
        self.firings = 0
        self.init: dict[str, dict[str, Tensor]] | None = None
        self.report: BoundaryReport | None = None  # of the last action
        self._total: int | None = None
        self._names_known = False

    # --------------------------------------------------------------------------------------------------- the run

    def begin(
        self,
        modules: Mapping[str, nn.Module],
        optimizers: Sequence[Optimizer],
        copies: Mapping[str, Sequence[Source]] | None = None,
        metrics: Collection[str] | None = None,
        total_steps: int | None = None,
        log: Callable[[int, dict[str, float]], None] | None = None,
    ) -> None:
        """Check everything before the first step, and keep the initial weights if the method needs them.

        Args:
            modules: what is trained, by name.
            optimizers: all that train them.
            copies: of modules, by the module's name.
            metrics: names of the numbers that `ask` will get; None: those of the first `ask`.
            total_steps: of the run, where known.
            log: takes the step and the numbers of each action.

        Raises:
            ValueError: trigger, method, optimizers or copies do not fit the model.
        """
        self.optimizers, self.copies, self.log = list(optimizers), dict(copies or {}), log
        self.net = Net(dict(modules), {})
        for name, module in modules.items():
            if not holding(self.optimizers, module.parameters()):
                raise ValueError(f"the optimizers hold none of the weights of {name} ({type(module).__name__})")
            for source in self.copies.get(name, ()):
                weights_of(source, module)
        if isinstance(self.method, FireWith):
            self.method.keep = self.keep
        self.method.check(self.net)
        if not isinstance(self.method, FireWith):
            self._chosen()  # refuses a selector that matches nothing
        if not isinstance(self.method, FireWith) or self.method.needs_init(self.net):
            self.net.init = self.init = self.init or Net.of(dict(modules)).init
        self._total, self._names_known = total_steps, metrics is not None
        self._start(metrics)

    def _start(self, metrics: Collection[str] | None) -> None:
        try:
            self.trigger.start(self.net, metrics=metrics, total_steps=self._total)
        except ValueError as error:
            if self._total is None or self.trigger.earliest() != self._total:
                raise
            hint = "nothing fires at the last one; to act between two runs, call fire_(model, optimizer=...) there"
            raise ValueError(f"{error}: {hint}") from None

    def ask(self, step: int, /, **metrics: Tensor | float | None) -> Firing | None:
        """Ask the trigger about a step, and act if it fires."""
        if not self._names_known:
            self._names_known = True
            self._start(tuple(metrics))
        firing = self.trigger.ask(step, self.net, **metrics)
        if firing is not None:
            self._act(firing)
        return firing

    def _act(self, firing: Firing) -> None:
        begin = time.perf_counter()
        modules = self.net.modules
        before = {name: _cloned(named_weights(modules[name])) for name in self.copies if self.copies[name]}
        kept = self._kept()
        digest = hashlib.sha256(f"{self.seed} {firing.step}".encode()).digest()  # torch takes 32 bits of a seed
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))
        self.firings += 1
        context = Context(self.firings, firing.step, generator, self.batches, self.loss, self.optimizers)
        done = self.method.at_boundary(self.net, context)
        self.report = done if isinstance(done, BoundaryReport) else BoundaryReport(done)
        self._restore(kept)
        for name, old in before.items():
            new = named_weights(modules[name])
            names = changed(old, new)
            for source in self.copies[name]:
                write(new, names, weights_of(source, modules[name]))
        numbers = {PREFIX + key: value for key, value in {**self.report.numbers, **self._measured()}.items()}
        numbers |= {f"{PREFIX}firings": float(self.firings), f"{PREFIX}seconds": time.perf_counter() - begin}
        numbers |= {f"{PREFIX}trigger/{name}": value for name, value in firing.numbers.items()}
        log.info("step %d, %s: %s", firing.step, firing.reason, ", ".join(f"{k} {v:.4g}" for k, v in numbers.items()))
        if self.log is not None:
            self.log(firing.step, numbers)

    def _measured(self) -> dict[str, float]:
        reports = self.report.weights.values() if self.report else ()
        columns = ("dfi_before", "dfi_after", "sfe")
        return {column: sum(report.total(column) for report in reports) for column in columns if reports}

    def _kept(self) -> list[tuple[Tensor, Tensor, list[tuple[Optimizer, dict[str, Any]]]]]:
        """(weight, its value, its states) of all that must stay; of FIRE's own choice nothing is left to do."""
        if isinstance(self.method, FireWith):
            return []
        found, chosen = [], self._chosen()
        for root in self.net.modules.values():
            for p in named_weights(root).values():
                frozen = self.trainable_only and isinstance(p, nn.Parameter) and not p.requires_grad
                if frozen or id(p) in chosen:
                    states = [(o, copy.deepcopy(o.state[p])) for o in self.optimizers if o.state.get(p)]
                    found.append((p, p.detach().clone(), states))
        return found

    def _chosen(self) -> set[int]:
        """`id` of every parameter and buffer that `keep` means."""
        if not self.keep:
            return set()
        entries = {name: resolve(module, {}) for name, module in self.net.modules.items()}
        return {id(tensor) for tensor in kept_tensors(self.net.modules, entries, self.keep)}

    @torch.no_grad()
    def _restore(self, kept: list[tuple[Tensor, Tensor, list[tuple[Optimizer, dict[str, Any]]]]]) -> None:
        for p, value, states in kept:
            p.copy_(value)
            for optimizer, state in states:
                optimizer.state[p] = state

    # --------------------------------------------------------------------------------------------------- its state

    def state_dict(self, weights: bool = True) -> dict[str, Any]:
        """What a resume needs: numbers and strings, and the initial weights if the method needs them (`weights`)."""
        state = {"kind": str(self.trigger), "trigger": self.trigger.state_dict(), "firings": self.firings}
        state["method"] = self.method.state_dict()
        return state | ({"init": self.init} if weights and self.init is not None else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave; of another trigger, only how far it had asked."""
        if state["kind"] == str(self.trigger):
            self.trigger.load_state_dict(state["trigger"])
        else:
            log.warning("the checkpoint's trigger was %s, now it is %s, which starts anew", state["kind"], self.trigger)
            self.trigger.last = state["trigger"]["last"]
        self.firings = state["firings"]
        self.method.load_state_dict(state["method"])
        if self.init is not None and "init" in state:
            for name, saved in state["init"].items():
                self.init[name] = {key: value.to(self.init[name][key].device) for key, value in saved.items()}
        elif "init" in state:
            self.init = dict(state["init"])


def check_method(method: Method, has_data: bool) -> None:
    """Refuse a method that cannot do its work at single moments of a run that belongs to another program.

    Raises:
        TypeError: it is no method.
        ValueError: with the reason.
    """
    name = type(method).__name__
    if not isinstance(method, Method):
        raise TypeError(
            f"method must be an object of a class in fire_core.methods, got {method!r}; "
            "say Fire(), ShrinkAndPerturb(), FullReset(), Dash() or a Chain of these"
        )
    for hook, reason in (
        ("reshape", "puts new modules into the network, which the optimizer and the checkpoint here do not know"),
        ("optimizer", "chooses the optimizer, which here is given"),
    ):
        if method.overrides(hook):
            raise ValueError(f"method={name} {reason}")
    if method.acts_within_phases or not method.overrides("at_boundary"):
        raise ValueError(f"method={name} acts within training, at every step or epoch, not when a trigger fires")
    if method.follows_gradients and not has_data:
        raise ValueError(f"method={name} needs data: give batches= (training batches, one pass) and loss= (of a batch)")


def _cloned(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in weights.items()}
