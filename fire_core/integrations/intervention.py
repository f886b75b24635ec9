"""The part that all integrations share: ask the trigger after each step, and let the method act when it fires."""

from __future__ import annotations

import hashlib
import inspect
import logging
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.errors import FireWarning
from fire_core.integrations.copies import Copy, matching_names, named_weights, weights_of
from fire_core.integrations.keep import Keep, kept_tensors
from fire_core.methods.chain import Chain
from fire_core.methods.protocol import BoundaryReport, Context, Method, Net
from fire_core.reinit.fire import check_flat_shards, fire_
from fire_core.reinit.project import Projection
from fire_core.reinit.report import Report
from fire_core.triggers.trigger import Firing, Metrics, Trigger
from fire_core.weights import distributed
from fire_core.weights.entry import Entry
from fire_core.weights.layout import resolve, selectors_of
from fire_core.weights.masters import Master, Masters, copied_to_masters, find_masters, reset_state_of_masters
from fire_core.weights.optimizer_state import StateReset
from fire_core.weights.optimizers import optimizers_of, optimizers_that_hold
from fire_core.weights.topology import unwrap

logger = logging.getLogger("fire_core")
Batches = Callable[[], Iterator[tuple[Tensor, Tensor]]]
PREFIX = "fire/"  # of the names of logged numbers
MANY_STEPS = 10  # a weight that came back to its old values over as many of its steps was brought back
FEW_NUMBERS = 8  # a weight of fewer numbers may come back by chance


class FireWith(Method):
    """The method that calls `fire_` with given options.

    Args:
        options: options of `fire_` by name, except `model` and `optimizer`.

    Raises:
        TypeError: an option is unknown.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        parameters = inspect.signature(fire_).parameters
        for name in options:
            if name not in parameters or name in ("model", "optimizer"):
                raise TypeError(f"{name!r} is no option of fire_ that can be given here")
        self.options = dict(options)
        self.all_options = {name: p.default for name, p in parameters.items()} | self.options

    def check(self, net: Net) -> None:
        """Check the options as `fire_` would, and that there is something to project.

        Raises:
            ValueError: with the reason.
        """
        Projection(**{field.name: self.all_options[field.name] for field in fields(Projection)}).check_idle()
        entries = self._entries(net)
        check_flat_shards(entries, self.all_options["exclude"])
        if all(entry.action == "keep" for entry in entries):
            reasons = list(dict.fromkeys(entry.reason for entry in entries if entry.kind != "vector"))
            raise ValueError(f"nothing would be projected: {'; '.join(reasons[:3]) or 'the model has no matrices'}")

    def needs_init(self, net: Net) -> bool:
        """Return whether `fire_` uses the initial weights: to reinitialise, for their norms, or to fill null spaces."""
        fills = self.all_options["solver"] == "exact" and self.all_options["blend"] == 1
        takes_norms = self.all_options["scale"] in ("match_init", "init_norm")
        return fills or takes_norms or any(e.action == "reinit" for e in self._entries(net))

    def _entries(self, net: Net) -> list[Entry]:
        """Return the entries of all weights of all networks that `fire_` would resolve with these options."""
        options = {name: self.all_options[name] for name in inspect.signature(resolve).parameters if name != "model"}
        return [e for module in net.modules.values() for e in resolve(module, **options)]

    def at_boundary(self, net: Net, context: Context) -> BoundaryReport:
        reports: dict[str, Report] = {}
        # `fire_` changes nothing of a network that it refuses; the networks before that one are changed by then.
        with net.unchanged_on_error(context.optimizers) if len(net.modules) > 1 else nullcontext():
            for name, module in net.modules.items():
                exclude = [
                    *selectors_of("exclude", self.all_options["exclude"]),
                    *net.spared_or_shared(name, context.spared),
                ]
                options = {"init": net.init.get(name), **self.options, "exclude": exclude}
                if reports:
                    options.pop("masters", None)  # given masters are those of the first network
                reports[name] = fire_(module, optimizer=context.optimizers, **options)
        return BoundaryReport(weights=reports)


@dataclass(frozen=True, eq=False)
class ChangedWeight:
    """A weight that a method has changed.

    Attributes:
        name: name of the weight.
        weight: the weight itself.
        old: a sample of its numbers before, see `_sample`.
        new: the same sample after.
        returned: the same sample after a step that brought it close to `old`; None: no step has.
    """

    name: str
    weight: Tensor
    old: Tensor
    new: Tensor
    returned: Tensor | None = None


class Never(Trigger):
    """Takes the place of a trigger where the loop itself says when to act."""

    name = "never"

    def look(self, last: int, step: int, net: Net | None, metrics: Metrics) -> Firing | None:
        return None


class Intervention:
    """Lets a method act on a training loop's networks whenever a trigger fires, or the loop calls `act`.

    After the method has acted, master copies, averaged models and target networks get the new weights too.

    Args:
        trigger: asked after each optimizer step, on every rank; None: the method acts where the loop calls `act` alone.
        method: any method that acts at a boundary; None calls `fire_` with `options`.
        copies: averaged or target models, which take over every weight that the method changes. With several networks
            they are copies of the first.
        trainable_only: keep frozen weights as they are, whatever the method. Methods with an option of this name, such
            as `Fire(trainable_only=False)`, need False in both places to change them.
        keep: selectors of weights that stay as they are, whatever the method, and keep their optimizer state: what
            `exclude` of `fire_` accepts (a pattern such as `"head"` or `"*.bias"`, a module, a type, a parameter), one
            or several. With several networks a name may begin with the network's (`"actor.*"`).
        batches: for a method that needs gradients (DASH): returns an iterator over the next training batches
            `(inputs, targets)`, for one pass.
        loss: for a method that needs gradients: (inputs, targets) -> mean loss of a batch.
        seed: seed of the method's own draws; the random numbers of the run do not change.
        masters: float32 copies of half-precision weights that the optimizers do not show, by parameter name of the
            first network; those that they show are found (`weights.masters`). They are changed with the weights, and
            their optimizer state is reset.
        options: options of `fire_`.

    Raises:
        TypeError: an argument is of another kind, or an option is unknown.
        ValueError: the method cannot act when a trigger fires, or lacks data.
    """

    def __init__(
        self,
        trigger: Trigger | None,
        method: Method | None = None,
        *,
        copies: Sequence[Copy] = (),
        trainable_only: bool = True,
        keep: Keep = (),
        batches: Batches | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        seed: int = 0,
        masters: Masters | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(trigger, Trigger | None):
            raise TypeError(f"trigger must be one of fire_core.triggers, got {type(trigger).__name__}")
        if not isinstance(copies, Sequence):
            raise TypeError(f"copies={type(copies).__name__}: give a list, copies=[...]")
        if method is not None and options:
            raise TypeError(f"options of fire_ ({', '.join(options)}) go with method=None; give them to the method")
        if method is not None:
            check_method(method, batches is not None and loss is not None)
            if not trainable_only:
                refuse_methods_that_keep_frozen(method)
        self.trigger, self.batches, self.loss, self.seed = trigger or Never(), batches, loss, seed
        self.own_copies, self.trainable_only, self.keep, self.masters = list(copies), trainable_only, keep, masters
        self.method = method or FireWith({"trainable_only": trainable_only, "masters": masters, **options})
        self.firings = 0
        self.fired: list[Firing] = []  # when the method has acted, and why, oldest first
        self.changed: list[ChangedWeight] = []  # the weights changed last, until a later step has kept their new values
        self.init: dict[str, dict[str, Tensor]] | None = None
        self._shares_initial = False  # whether all replicas have the same initial weights, see `_share_initial`
        self.report: BoundaryReport | None = None  # of the last action
        self.observed: dict[str, Tensor | float | None] = {}  # metrics for the next `ask`
        self._times_logged = Counter[str]()  # how often training has logged each metric, see `warn_if_missing`
        self._warned_of: set[str] = set()  # metrics of which that has warned

    # --------------------------------------------------------------------------------------------------- the run

    def begin(
        self,
        modules: Mapping[str, nn.Module],
        optimizers: Sequence[Optimizer],
        copies: Mapping[str, Sequence[Copy]] | None = None,
        metrics: Collection[str] | None = None,
        total_steps: int | None = None,
        log: Callable[[int, dict[str, float]], None] | None = None,
    ) -> None:
        """Check everything before the first step, and copy the initial weights if the method needs them.

        Args:
            modules: the networks that are trained, by name.
            optimizers: all optimizers that train them.
            copies: averaged or target models that the framework has, by the name of their network; the user's own come
                on top.
            metrics: names of the numbers that `ask` will get; None takes the names at the first `ask`.
            total_steps: steps of the run, None if not known.
            log: called after each action with the step and the numbers.

        Raises:
            TypeError: `optimizers` holds something that is no optimizer.
            ValueError: trigger, method, optimizers or copies do not fit the model.
        """
        self.optimizers, self.log = optimizers_of(optimizers), log
        self.net = Net(dict(modules), {})
        self._reshard()
        self.copies = {name: list((copies or {}).get(name, ())) for name in modules}
        self.copies[next(iter(modules))] += self.own_copies
        self._masters = self._all_masters()
        with_masters = {id(master.weight) for master in self._masters}
        for name, module in modules.items():
            has_masters = not with_masters.isdisjoint(map(id, module.parameters()))
            if not has_masters and not optimizers_that_hold(self.optimizers, module.parameters()):
                raise ValueError(f"the optimizers hold none of the weights of {name} ({type(module).__name__})")
            for model_copy in self.copies[name]:
                weights_of(model_copy, module)  # raises if it is no copy
        self.method.check(self.net)
        self.kept = kept_tensors(modules, self.keep)
        self.keep_initial(modules)
        self.net.init = self.init or {}
        self._total, self._names_known = total_steps, metrics is not None
        self.trigger.start(self.net, metrics=metrics, total_steps=total_steps)

    def keep_initial(self, modules: Mapping[str, nn.Module]) -> None:
        """Copy the present weights as the initial ones, if the method needs initial weights and has none yet."""
        net, method = Net(dict(modules), {}), self.method
        is_needed = method.needs_init(net) if isinstance(method, FireWith) else method.uses_initial_weights
        if self.init is None and is_needed:
            self.init = Net.of(net.modules).init

    def observe(self, **metrics: Tensor | float | None) -> None:
        """Store metrics for the next `ask`; tensors are not read unless a measurement is due."""
        self.observed |= metrics

    def warn_if_missing(self, logged: Collection[str], prefix: str, times: int) -> None:
        """Warn, once, of a followed metric that training does not log, where its names are only known as it logs them.

        Args:
            logged: names that training has logged now.
            prefix: what names of this kind begin with, such as "eval_".
            times: a name of this kind has not come if another one has come so often.
        """
        self._times_logged.update(name for name in logged if name.startswith(prefix))
        names = sorted(name for name in self._times_logged if name.startswith(prefix))
        missing = {name for name in self.trigger.needs() if name.startswith(prefix)}.difference(names)
        if missing - self._warned_of and any(self._times_logged[name] >= times for name in names):
            self._warned_of |= missing
            warnings.warn(
                f"{self.trigger} waits for {', '.join(sorted(missing))}, which training does not log; "
                f"it logs {', '.join(names)}",
                FireWarning,
                stacklevel=2,
            )

    def ask(self, step: int, /, **metrics: Tensor | float | None) -> Firing | None:
        """Ask the trigger about a step, and let the method act if it fires.

        A method that refuses to act raises an error of its own; networks, optimizers and master copies are then as
        before. That firing is used up: the trigger does not fire again until it is due the next time.

        Raises:
            RuntimeError: steps have brought weights back to what they were before the last action.
        """
        self._check_that_changes_last()
        metrics, self.observed = {**self.observed, **metrics}, {}
        if not self._names_known:
            self._names_known = True
            self.trigger.start(self.net, metrics=tuple(metrics), total_steps=self._total)
        firing = self.trigger.ask(step, self.net, **metrics)
        if firing is not None:
            self._act(firing)
        return firing

    def act(self, step: int) -> BoundaryReport:
        """Let the method act now, after `step` optimizer steps, whatever the trigger says; the trigger is told of it.

        Returns:
            What the method did.

        Raises:
            RuntimeError: the steps before have brought weights back to what they were before the last action.
        """
        self._check_that_changes_last()
        self._act(Firing(step, "called", "called by the loop"))
        self.trigger.acted(step)
        assert self.report is not None, "`_act` sets it"
        return self.report

    def _act(self, firing: Firing) -> None:
        """Let the method act, carry its changes over to master copies and copied models, and log the action."""
        begin = time.perf_counter()
        self._reshard()  # an evaluation, or a trigger that measures, may have left weights whole
        self._share_initial()
        copied_modules = {name: module for name, module in self.net.modules.items() if self.copies[name]}
        weights_before = {name: _cloned(named_weights(module)) for name, module in copied_modules.items()}
        acts_at_this_step = sum(earlier.step == firing.step for earlier in self.fired)
        of_act = f" {acts_at_this_step}" if acts_at_this_step else ""  # each act draws numbers of its own
        digest = hashlib.sha256(f"{self.seed} {firing.step}{of_act}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))  # torch uses 32 bits of a seed
        context = Context(
            phase=self.firings + 1,
            step=firing.step,
            generator=generator,
            batches=self.batches,
            loss=self.loss,
            optimizers=self.optimizers,
            spared=frozenset(self.kept),
            trainable_only=self.trainable_only,
        )
        # Weights may have been frozen or unfrozen since the run began.
        context = replace(context, spared=context.spared_or_frozen(self.net))
        self._write_masters_to_weights()
        masters = self._masters = self._all_masters()
        weights = {key: weight for key, weight in self._weights().items() if weight not in context.spared}
        samples_before = {key: _sample(weight) for key, weight in weights.items()}
        with copied_to_masters(masters):
            returned = self.method.at_boundary(self.net, context)
        self.firings += 1
        self.fired.append(firing)
        self.changed = _changed_since(weights, samples_before)
        self._reset_state_of_masters(masters)
        self.report = returned if isinstance(returned, BoundaryReport) else BoundaryReport(returned or {})
        self.report.changed = len(self.changed)
        self._update_copies(copied_modules, weights_before)
        reports = self.report.weights.values()
        numbers = dict(self.report.numbers)
        for column in ("dfi_before", "dfi_after", "sfe"):
            total = sum(report.total(column) for report in reports)
            if reports and not math.isnan(total):  # else nothing was measured
                numbers[column] = total
        numbers |= {"firings": float(self.firings), "seconds": time.perf_counter() - begin}
        numbers |= {f"trigger/{name}": value for name, value in firing.numbers.items()}
        logger.info(
            "step %d, %s: %s", firing.step, firing.reason, ", ".join(f"{k} {v:.4g}" for k, v in numbers.items())
        )
        if self.log is not None:
            self.log(firing.step, {PREFIX + name: value for name, value in numbers.items()})

    def _reshard(self) -> None:
        """Let the networks' parameters be those that are trained; see `distributed.reshard_`."""
        for module in self.net.modules.values():
            distributed.reshard_(module)

    @torch.no_grad()
    def _share_initial(self) -> None:
        """Give all replicas the initial weights of the first, if DistributedDataParallel has wrapped the model later.

        It gives all of them the weights of the first then. Each process had copied weights of its own as the initial
        ones, and acts with these would drive the replicas apart.
        """
        if self.init is None or self._shares_initial:
            return
        for name, module in self.net.modules.items():
            wrapper = distributed.ddp_around(module)
            if wrapper is None or wrapper is module:
                continue
            group, ignored = wrapper.process_group, distributed.ignored_by_ddp(wrapper)
            weights = module.state_dict(keep_vars=True)
            for key, value in self.init[name].items():
                weight = weights.get(key)
                if not isinstance(weight, Tensor) or weight in ignored or not _is_plain(value, weight):
                    continue
                shared = value.to(weight.device, copy=True)
                dist.broadcast(shared, src=dist.get_global_rank(group, 0), group=group)
                self.init[name][key] = shared.to(value.device)
        self._shares_initial = True

    @torch.no_grad()
    def _update_copies(
        self, modules: Mapping[str, nn.Module], weights_before: Mapping[str, Mapping[str, Tensor]]
    ) -> None:
        """Write the weights that an action has changed to the copies of their models.

        Args:
            modules: the modules that have copies, by name.
            weights_before: the weights of each module before the action.
        """
        for name, module in modules.items():
            changed_weights = _changed(named_weights(module), weights_before[name])
            for model_copy in self.copies[name]:
                copied_weights = weights_of(model_copy, module)
                for key, weight in changed_weights.items():
                    if (copied := copied_weights.get(key)) is not None:
                        is_sharded = distributed.is_sharded(copied)
                        distributed.write_(copied, weight if is_sharded else distributed.full(weight))

    @torch.no_grad()
    def _write_masters_to_weights(self) -> None:
        """Copy master copies to their weights: within an optimizer's step the copies are newer than the weights.

        Raises:
            RuntimeError: a weight does not equal its copy yet, as DeepSpeed's step is not over.
        """
        for master in self._masters:
            weight, master_copy = master.pair()
            if master.part is not None and not master.agrees():
                raise RuntimeError("DeepSpeed's step is not over here: give its optimizer, engine.optimizer")
            weight.copy_(master_copy)

    def _reset_state_of_masters(self, masters: list[Master]) -> None:
        """Reset the optimizers' state of the master copies of changed weights."""
        changed_ids = {id(change.weight) for change in self.changed}
        reset = StateReset(self.optimizers)
        reset_state_of_masters(reset, (master for master in masters if id(master.weight) in changed_ids))
        for note in reset.notes:
            logger.warning(note)

    def _weights(self) -> dict[str, Tensor]:
        """Return all parameters by "network.parameter"."""
        modules = self.net.modules.items()
        return {f"{name}.{key}": weight for name, module in modules for key, weight in module.named_parameters()}

    def _all_masters(self) -> list[Master]:
        """Return the master copies of all networks' weights; the user names those of the first network alone."""
        first = next(iter(self.net.modules))
        masters = []
        for name, module in self.net.modules.items():
            masters += find_masters(unwrap(module), self.optimizers, self.masters if name == first else None)
        return masters

    def _check_that_changes_last(self) -> None:
        """Raise a RuntimeError if optimizer steps have brought a changed weight back to its old values.

        A weight that is close to its old values after one step may be there by chance, if the act was no larger than
        a step, as a full reset right after the first one. So the next step of this weight is awaited: only a weight
        that came back over a distance of many such steps was brought back. Weights of a few numbers are left out, and
        where a method acts after every step nothing is found.
        """
        samples = [_sample(change.weight) for change in self.changed]
        pairs = list(zip(self.changed, samples, strict=True))
        if all(change.returned is None and torch.equal(change.new, sample) for change, sample in pairs):
            return  # there was no step yet, or a gradient scaler has skipped it
        self.changed = []
        for change, sample in pairs:
            if len(sample) < FEW_NUMBERS:
                continue
            if change.returned is None:
                if (sample - change.old).norm() < 0.1 * (sample - change.new).norm():
                    self.changed.append(replace(change, returned=sample))
            elif torch.equal(sample, change.returned):  # a skipped step, or one below the weight's precision
                self.changed.append(change)
            elif MANY_STEPS * (sample - change.returned).norm() < (change.new - change.old).norm():
                raise RuntimeError(
                    f"{change.name} is back at its old values: a step undid the act, since the optimizer writes this "
                    "weight from a copy, which masters= can name, or from old weights in its own state, as TRAC does"
                )

    # --------------------------------------------------------------------------------------------------- its state

    def state_dict(self, weights: bool = True) -> dict[str, Any]:
        """Return what a resume needs: numbers, strings and, with `weights`, the initial weights if they are needed."""
        state = {"kind": str(self.trigger), "trigger": self.trigger.state_dict(), "firings": self.firings}
        state["fired"] = [asdict(firing) for firing in self.fired]
        state["method"] = self.method.state_dict()
        state["observed"] = {name: float(value) for name, value in self.observed.items() if value is not None}
        return state | ({"init": self.init} if weights and self.init is not None else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; if it had another trigger, only the last step that was asked about."""
        self.changed = []  # a run may go back to before its last action, with the weights of that time
        if state["kind"] == str(self.trigger):
            self.trigger.load_state_dict(state["trigger"])
        else:
            logger.warning(
                "the checkpoint's trigger was %s, now it is %s, which starts anew", state["kind"], self.trigger
            )
            self.trigger.last = state["trigger"]["last"]
        self.firings, self.observed = state["firings"], dict(state.get("observed", {}))
        self.fired = [Firing(**firing) for firing in state.get("fired", [])]  # older checkpoints have no list
        self.method.load_state_dict(state["method"])
        self._shares_initial = False
        if self.init is not None and "init" in state:
            for name, saved in state["init"].items():
                self.init[name] = _under_names_of(self.init[name], saved)
        elif "init" in state:
            self.init = dict(state["init"])


def _under_names_of(present: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return saved initial weights by the names, on the devices and with the sharding of the present ones.

    A model has other names if it is compiled, or wrapped for several processes, and was not when the state was saved.

    Raises:
        ValueError: names or shapes are those of another model.
    """
    names = matching_names(present, saved)
    if unknown := saved.keys() - names.values():
        raise ValueError(f"the state of the hook is of another model, with {min(unknown)}")
    weights = {}
    for name, value in present.items():
        loaded = saved[names[name]] if name in names else None
        if loaded is None or loaded.shape != value.shape:
            shape = "none" if loaded is None else tuple(loaded.shape)
            raise ValueError(
                f"the state of the hook is of another model: of {name}, {tuple(value.shape)}, its initial weights have "
                f"{shape}"
            )
        whole = distributed.full(loaded).to(value.device)
        weights[name] = distributed.shard_as(whole, value)
    return weights


def check_method(method: Method, has_data: bool) -> None:
    """Check that a method can act when a trigger fires in another program's training loop.

    Args:
        method: the method.
        has_data: whether batches and a loss are given.

    Raises:
        TypeError: it is no method.
        ValueError: it cannot, with the reason.
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
    if method.builds_networks:
        raise ValueError(
            f"method={name} needs newly built networks, and a loop of others builds none: weights='initial'"
        )
    if method.follows_gradients and not has_data:
        raise ValueError(f"method={name} needs data: give batches= (training batches, one pass) and loss= (of a batch)")


def refuse_methods_that_keep_frozen(method: Method) -> None:
    """Refuse a method whose own option says that it keeps frozen weights, so that `trainable_only=False` does nothing.

    Raises:
        ValueError: the message has the option that does it.
    """
    for part in method.methods.values() if isinstance(method, Chain) else (method,):
        if getattr(part, "trainable_only", False):
            name = type(part).__name__
            raise ValueError(f"trainable_only=False has no effect on {name}(): give {name}(trainable_only=False) too")


def _cloned(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return detached copies of weights, by the same names."""
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


def _is_plain(*tensors: Tensor) -> bool:
    """Return whether all are tensors of torch itself: not sharded, not quantised."""
    return all(type(tensor) in (Tensor, nn.Parameter) for tensor in tensors)


def _changed_since(weights: Mapping[str, Tensor], samples_before: Mapping[str, Tensor]) -> list[ChangedWeight]:
    """Return the weights whose samples are not those that were taken before, on any rank that has a part of them."""
    samples = {key: _sample(weight) for key, weight in weights.items()}
    equal = [torch.equal(samples_before[key], sample) for key, sample in samples.items()]
    return [
        ChangedWeight(key, weight, samples_before[key], samples[key])
        for (key, weight), is_equal in zip(weights.items(), _on_all_ranks(equal, [*weights.values()]), strict=True)
        if not is_equal
    ]


def _on_all_ranks(flags: list[bool], weights: list[Tensor]) -> list[bool]:
    """Return for each weight whether its flag is true on all ranks that have a part of it."""
    device = distributed.local(weights[0]).device if weights else None
    on_device = torch.tensor(flags, dtype=torch.int32, device=device)
    return [bool(flag) for flag in distributed.all_true_over_ranks(on_device, weights).tolist()]


def _sample(weight: Tensor) -> Tensor:
    """Return about a thousand evenly spaced numbers of this rank's part of a weight, (n,), a float32 copy."""
    flat = distributed.local(weight).detach().reshape(-1)
    return flat[:: max(1, flat.numel() // 1000)].to(torch.float32, copy=True)


def _changed(after: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights that have other numbers than before, on any rank that has a part of them."""
    equal = [torch.equal(distributed.local(new), distributed.local(before[name])) for name, new in after.items()]
    flags = _on_all_ranks(equal, [*after.values()])
    return {name: weight for (name, weight), is_equal in zip(after.items(), flags, strict=True) if not is_equal}
