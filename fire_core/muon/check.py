"""Does Muon train the right matrices? What is wrong with groups of parameters, and the line of code that fixes it.

    print(check_muon(model, (muon, adamw)))

Muon takes whatever it is given for one matrix and raises no error: a fused q, k, v, a stack of experts, a head. This
compares what an optimizer takes for a matrix with what the model multiplies with, as `matrices(model)` reads it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.methods.layers import named_layers
from fire_core.muon.behaviour import JOINED, REFUSED, SEPARATE, UNKNOWN, Behaviour, behaviour_of, heeds_splits
from fire_core.muon.cuts import FIELDS, WHOLE, Cuts, cut_of, entries_of, matrices_of
from fire_core.muon.groups import entries_by_parameter, is_hidden, outside_layers
from fire_core.muon.holders import Holder, holders_of, weights_by_master
from fire_core.muon.optimizer import SplitMuon
from fire_core.text_table import text_table
from fire_core.weights.entry import Entry
from fire_core.weights.layout import listed
from fire_core.weights.matrices import Matrices, matrices
from fire_core.weights.overlap import overlapping
from fire_core.weights.reader import says_fused
from fire_core.weights.topology import clean_name, is_named_table, numberless

WIDTH = 120  # columns of a printed report
DOUBTFUL = ("fused", "changed", "unused", "other")  # roles of weights whose matrices the reader does not know

# ----------------------------------------------------------------------------------------------------------- the report


@dataclass(frozen=True)
class MuonProblem:
    """One thing that is wrong with one parameter.

    Attributes:
        severity: "error", a wrong update; or "note", a choice or what could not be read.
        kind: of errors "fused", "stack", "transposed", "cut", "outside" (a head, an embedding, a router, an input
            layer), "vector", "unknown" (it looks fused, and how is not known), "missing" (from all groups), "twice"; of
            notes "adam", "heads", "raw", "foreign".
        name: the parameter's name in `named_parameters()`, without those of wrappers.
        message: what is wrong, the end of a sentence that begins with the name.
        line: Python that fixes it, in the names `model` and those of the call: `optimizer`, `optimizers` or `groups`.
    """

    severity: str
    kind: str
    name: str
    message: str
    line: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.name} {self.message}. {self.line}"


@dataclass
class MuonReport:
    """What `check_muon` found; true if there is no error. `print(report)` shows it as a table.

    Attributes:
        problems: errors first, each severity in the order of the model's parameters.
        muon: names of the parameters that Muon trains.
        count: how many matrices these hold.
        other: names of those that another optimizer trains.
    """

    problems: list[MuonProblem] = field(default_factory=list)
    muon: list[str] = field(default_factory=list)
    count: int = 0
    other: list[str] = field(default_factory=list)

    @property
    def errors(self) -> list[MuonProblem]:
        """Return the problems of severity "error": updates that are wrong."""
        return [problem for problem in self.problems if problem.severity == "error"]

    @property
    def notes(self) -> list[MuonProblem]:
        """Return the problems of severity "note": choices, and what could not be read."""
        return [problem for problem in self.problems if problem.severity == "note"]

    @property
    def ok(self) -> bool:
        """Return whether there is no problem of severity "error"."""
        return not self.errors

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        first = (
            f"{len(self.errors)} errors, {len(self.notes)} notes; Muon trains {len(self.muon)} parameters with "
            f"{self.count} matrices, another optimizer {len(self.other)}"
        )
        if not self.problems:
            return first
        alike: dict[tuple[str, str, str], list[MuonProblem]] = {}  # layers that differ by their number together
        for problem in self.problems:
            alike.setdefault((problem.severity, numberless(problem.name), problem.message), []).append(problem)
        rows, lines = [], dict[str, list[str]]()
        for (severity, pattern, message), several in alike.items():
            label = several[0].name if len(several) == 1 else f"{pattern} ({len(several)})"
            rows.append((severity, label, message))
            lines.setdefault(several[0].line, []).append(label)
        table = text_table(("severity", "parameter", "what is wrong"), rows)
        fixes = [textwrap.fill(f"{listed(labels)}:", WIDTH) + f"\n    {line}" for line, labels in lines.items()]
        return "\n".join([first, "", table, "", "The lines that fix it:", *fixes])


# ------------------------------------------------------------------------------------------------------------ the check


def check_muon(
    model: nn.Module,
    optimizer_or_groups: Optimizer | Iterable[Optimizer] | Mapping[str, Optimizer] | Iterable[Mapping[str, Any]],
    **options: Any,
) -> MuonReport:
    """Compare what Muon takes for a matrix with the matrices that a model holds.

    Understood are `torch.optim.Muon`, `SplitMuon`, classes with Muon in their names, and any optimizer or list of
    groups that say `use_muon=True` or `algorithm="muon"`; `split_sizes` and `param_split_fn` too. How an optimizer of
    another package takes a stack and scales its rate is tried out by a new one of its class on small parameters; not in
    a process group, where a step of one rank alone would wait for the others. Nothing that is given changes.

    Args:
        model: the module whose parameters are trained; wrappers are looked through, the meta device will do.
        optimizer_or_groups: an optimizer, several (in a list, or by name), the groups for one, or the result of
            `muon_groups`. Give all that train the model, since a parameter in none of them is an error.
            An optimizer that sorts its parameters itself, as timm's Muon, says how after its first step.
        **options: of `resolve`, as for `matrices`; give those that you gave to `muon_groups`, as `blocks=`.

    Returns:
        The report: `ok`, `problems`, and a table when it is printed. Frozen parameters are never a problem.

    Raises:
        TypeError: `model` is no module, or what should be an optimizer or a group is none.
        ValueError: groups that do not say which of them Muon trains, or an option that `resolve` refuses.
    """
    read = matrices(model, **options)
    holders = list(holders_of(optimizer_or_groups))
    checker = _Checker(model, read, holders, weights_by_master(model, holders))
    return checker.report()


class _Checker:
    """Finds the problems of one model and its groups.

    Args:
        model: the module.
        read: the matrices of the model.
        holders: all groups.
        masters: the result of `weights_by_master`.
    """

    def __init__(self, model: nn.Module, read: Matrices, holders: list[Holder], masters: Mapping[int, Tensor]) -> None:
        self.model, self.holders = model, holders
        self.entries = entries_by_parameter(read)
        self.unread = dict(line.split(": ", 1) for line in read.unread)
        self.paths = {id(p): name for name, p in model.named_parameters()}  # as `get_parameter` takes them
        self.layers = {id(layer.weight) for layer in named_layers(model).values()}
        self.outside = outside_layers(model, read)
        self.holders_of: dict[int, list[tuple[Holder, bool]]] = {}  # of a parameter: who holds it, and whether by Muon
        self.foreign: list[tuple[Holder, Tensor]] = []
        for holder in holders:
            for held in holder.parameters:
                parameter = masters.get(id(held), held)
                if id(parameter) in self.paths:
                    place = holder, holder.trains_by_muon(held)
                    self.holders_of.setdefault(id(parameter), []).append(place)
                else:
                    self.foreign.append((holder, held))
        # The groups that something else than Muon trains.
        self.others = [h for h in holders if h.parameters and not any(map(h.trains_by_muon, h.parameters))]
        self._behaviours: dict[tuple[int, int], Behaviour] = {}
        self._heeding: dict[tuple[int, int], bool] = {}

    def report(self) -> MuonReport:
        """Return the report on all trainable parameters, with the errors first."""
        report, problems = MuonReport(), list[MuonProblem]()
        for p in self.model.parameters():
            if not p.requires_grad or p.numel() == 0:
                continue
            places = self.holders_of.get(id(p), [])
            by_muon = [holder for holder, is_muon in places if is_muon]
            problems += self._check_membership(p, places)
            for holder in {id(holder.group): holder for holder in by_muon}.values():
                problems += self._check_under_muon(p, holder)
            if places and not by_muon and is_hidden(p, self.entries.get(p, []), self.outside):
                message = "is a hidden matrix, and Muon does not train it"
                problems.append(self._problem("note", "adam", p, message, self._line_to_muon(places[0][0])))
            if places:
                (report.muon if by_muon else report.other).append(clean_name(self.paths[id(p)]))
            report.count += sum(_count_and_shape(entry)[0] for entry in self.entries.get(p, [])) if by_muon else 0
        problems += self._check_shared_memory()
        for holder, stranger in self.foreign:
            shape = " x ".join(map(str, stranger.shape))
            message = "is trained, and is no parameter of the model"
            line = f"{holder.code}[:] = [p for p in {holder.code} if any(p is q for q in model.parameters())]"
            problems.append(MuonProblem("note", "foreign", f"a tensor of {shape}", message, line))
        report.problems = sorted(dict.fromkeys(problems), key=lambda problem: problem.severity != "error")
        return report

    # ------------------------------------------------------------------------------------------------- in which groups

    def _check_membership(self, p: Tensor, places: list[tuple[Holder, bool]]) -> Iterator[MuonProblem]:
        """Yield an error if no group holds a parameter, or if several do.

        Args:
            p: a trainable parameter.
            places: the groups that hold it, each with whether Muon trains it there.
        """
        if not places:
            yield self._problem(
                "error", "missing", p, "is in no group, so that nothing trains it", self._line_to_add(p)
            )
        elif len(places) > 1:
            where = listed(holder.code.removesuffix('["params"]') for holder, _ in places)
            message = f"is trained {len(places)} times in each step: it is in {where}"
            yield self._problem("error", "twice", p, message, self._line_to_remove(p, places))

    def _check_shared_memory(self) -> Iterator[MuonProblem]:
        """Yield an error for each pair of parameters in one memory: they are one weight with two updates."""
        named = {clean_name(name): p for name, p in self.model.named_parameters() if p.requires_grad}
        for first, second in overlapping(named.items()):
            if self.holders_of.get(id(named[first])) and self.holders_of.get(id(named[second])):
                other = f"model.{second}"
                line = f"{_indexed_path(other)} = {_indexed_path(f'model.{first}')}  # then build the groups anew"
                message = f"shares its memory with {first}, so that one weight is trained twice in each step"
                yield MuonProblem("error", "twice", second, message, line)

    # ------------------------------------------------------------------------------------------------------ under Muon

    def _check_under_muon(self, p: Tensor, holder: Holder) -> Iterator[MuonProblem]:
        """Yield the problems of a parameter that Muon trains, as part of the group `holder`."""
        entries = self.entries.get(p, [])
        if (reason := self._why_not_for_muon(p, entries)) is not None:
            kind, message = reason
            yield self._problem("error", kind, p, message, self._line_to_move(p, holder))
        elif not entries or entries[0].role in DOUBTFUL:
            yield from self._check_doubtful(p, entries, holder)
        else:
            yield from self._check_matrices(p, entries, holder)

    def _why_not_for_muon(self, p: Tensor, entries: list[Entry]) -> tuple[str, str] | None:
        """Return the kind and the message of the error if Muon is not for this parameter, else None."""
        name = clean_name(self.paths[id(p)])
        roles = {entry.role for entry in entries}
        kind = self.outside.get(id(p), "")
        if is_named_table(name):
            return "outside", "is a table of positions or tokens, which are vectors; Muon is for hidden matrices"
        if "embedding" in roles:
            return "outside", "is an embedding, a table of vectors; Muon is for hidden matrices"
        if "head" in roles and (kind or id(p) not in self.layers):
            others = [alias for alias in entries[0].aliases if alias != entries[0].name]
            tied = f", tied to {listed(others)}" if others else ""
            return "outside", f"is the head{tied}; Muon is for hidden matrices"
        if "router" in roles:
            return "outside", "is a router, not a map between hidden layers; Muon is for hidden matrices"
        if kind:
            return "outside", f"is {kind}; Muon is for hidden matrices"
        if not entries and p.ndim < 4 and name not in self.unread:
            return "vector", "holds no matrix: it is a bias, a scale, or a stack of these"
        return None

    def _check_doubtful(self, p: Tensor, entries: list[Entry], holder: Holder) -> Iterator[MuonProblem]:
        """Yield the problems of a parameter if the reader does not know which matrices it holds."""
        name = clean_name(self.paths[id(p)])
        declare = f"check_muon(model, {holder.code.partition('.')[0].partition('[')[0]}, blocks={{{name!r}: (...)}})"
        declare = f"{declare}  # and the same blocks= for muon_groups"
        if not entries:
            message = f"is not read: {self.unread.get(name, 'a raw parameter of more than three dimensions')}"
            yield self._problem("note", "raw", p, message, self._line_to_move(p, holder))
        elif entries[0].role == "fused":
            if len(self._cuts(p, holder) or ()) < 2:  # else the caller has declared its parts
                message = f"{entries[0].reason}; how its {entries[0].d_out} rows divide is not known"
                yield self._problem("error", "unknown", p, message, declare)
        elif entries[0].role in ("changed", "unused"):
            message = f"is trained as it is stored, but {entries[0].reason}"
            yield self._problem("note", "raw", p, message, self._line_to_move(p, holder))
        elif entries[0].role == "other" and _is_whole(self._cuts(p, holder) or ()):
            raw = "is a raw parameter that no rule knows"
            behaviour = self._behaviour(p, holder)
            if says_fused(name.rpartition(".")[2]):
                message = f"{raw}, and its name says that it is fused; how its rows divide is not known"
                yield self._problem("error", "unknown", p, message, declare)
            elif p.ndim == 3 and behaviour.stack != SEPARATE:
                message = f"{raw}, a stack of {len(p)} or a table, and Muon takes it {behaviour.stack}"
                yield self._problem("error", "stack", p, message, declare)
            else:
                yield self._problem("note", "raw", p, f"{raw}: which matrices it holds is not known", declare)

    def _check_matrices(self, p: Tensor, entries: list[Entry], holder: Holder) -> Iterator[MuonProblem]:
        """Yield an error if Muon takes something else than a parameter's matrices, or scales by another shape.

        Matrices that are cut by head give a note.
        """
        behaviour, cuts = self._behaviour(p, holder), self._cuts(p, holder)
        truth = tuple(map(cut_of, entries))
        if cuts is None:
            yield from self._check_split_function(p, entries, holder)
            return
        if set(cuts) == set(truth) and cuts != (WHOLE,):
            return
        if set(map(_uncut_by_head, cuts)) == set(map(_uncut_by_head, truth)) and cuts != (WHOLE,):
            message = "is cut by head; its matrices hold all heads"
            yield self._problem("note", "heads", p, message, self._line_to_rebuild(holder))
            return
        wrong = self._fault_of_uncut(p, entries, behaviour) if _is_whole(cuts) else self._fault_of_cuts(entries, cuts)
        if wrong is not None:
            yield self._problem("error", wrong[0], p, wrong[1], self._line_to_rebuild(holder))

    def _fault_of_uncut(self, p: Tensor, entries: list[Entry], behaviour: Behaviour) -> tuple[str, str] | None:
        """Return the kind and the message of the fault of a parameter that no cut divides; None if it has no fault."""
        first, shape = entries[0], " x ".join(map(str, p.shape))
        if first.kind == "conv_transpose":
            return (
                "transposed",
                f"is a transposed convolution, stored (c_in, c_out, ...), and Muon takes it as {shape}",
            )
        if len(entries) > 1:
            taken = f"trains them as one matrix ({shape})" if p.ndim != 3 else f"does not cut it ({shape})"
            return "fused", f"holds {_matrices_in_words(entries)}, and Muon {taken}"
        if first.kind == "conv":
            if first.groups > 1:
                return (
                    "stack",
                    f"holds {first.groups} matrices, one a group, and Muon takes it for one matrix ({shape})",
                )
            taken = behaviour.stack if p.ndim == 3 else behaviour.kernel
            if taken in (JOINED, REFUSED):
                return None
            what = "each kernel for a matrix" if taken == SEPARATE else f"its kernels {taken}"
            return "stack", f"is a convolution, one matrix (c_out, c_in times the kernel), and Muon takes {what}"
        if first.count > 1 and (p.ndim == 2 or first.heads > 1):
            return "stack", f"holds {_matrices_in_words(entries)}, and Muon trains them as one matrix ({shape})"
        if p.ndim == 3 and behaviour.stack != SEPARATE:
            unknown = behaviour.stack == UNKNOWN
            hint = "; give the optimizer itself, before the process group begins" if unknown else ""
            return "stack", f"holds {_matrices_in_words(entries)}, and Muon takes them {behaviour.stack}{hint}"
        if first.transposed and not behaviour.scales_alike(*first.shape):
            m, n = first.shape
            wrong = f"is stored (d_in, d_out): the rate is scaled as that of a {n} x {m} matrix"
            if behaviour.factor is None:
                return "transposed", f"{wrong}, and its matrix is {m} x {n}"
            wrong = f"{wrong}, by {behaviour.factor(n, m):.3g}"
            return "transposed", f"{wrong}, and that of its {m} x {n} matrix is {behaviour.factor(m, n):.3g}"
        return None

    def _fault_of_cuts(self, entries: list[Entry], cuts: Cuts) -> tuple[str, str]:
        """Return the kind and the message of what is wrong with a parameter that is not cut between its matrices."""
        shown = ", ".join(_cut_in_words(dict(zip(FIELDS, cut, strict=True))) for cut in cuts)
        truth = ", ".join(_cut_in_words({name: getattr(entry, name) for name in FIELDS}) for entry in entries)
        return "cut", f"is cut into {shown}, and its matrices are {truth}"

    def _check_split_function(self, p: Tensor, entries: list[Entry], holder: Holder) -> Iterator[MuonProblem]:
        """Yield an error if the group's `param_split_fn` does not give the matrices of the parameter.

        The function is applied to the positions of the parameter's numbers, so that its parts can be compared.
        """
        positions = torch.arange(p.numel(), device="cpu").view(p.shape)
        try:
            parts = holder.group["param_split_fn"](positions)
            taken = [matrix for part in parts for matrix in part.reshape(-1, *part.shape[-2:])]
        except Exception as error:  # whatever the user's function raises
            said = f"cannot be cut by its param_split_fn ({type(error).__name__})"
            yield self._problem("error", "cut", p, said, self._line_to_rebuild(holder))
            return
        truth = [matrix for entry in entries for matrix in matrices_of(entry, positions)]
        if not _are_same(taken, truth):
            one = "as one matrix" if len(taken) == 1 else f"cut into {len(taken)} others"
            kind = "fused" if len(taken) == 1 else "cut"
            message = f"holds {_matrices_in_words(entries)}, and its param_split_fn gives it {one}"
            yield self._problem("error", kind, p, message, self._line_to_rebuild(holder))

    def _cuts(self, p: Tensor, holder: Holder) -> Cuts | None:
        """Return how the group says that a parameter is cut, or None if a function (`param_split_fn`) says it."""
        group, optimizer = holder.group, holder.optimizer
        if isinstance(optimizer, SplitMuon) or (optimizer is None and "cuts" in group):
            return tuple(tuple(cut) for cut in group["cuts"]) or tuple(map(cut_of, entries_of(p, ())))
        if optimizer is not None and not self._heeds_splits(p, holder):  # an entry that its class does not read
            return (WHOLE,)
        if sizes := group.get("split_sizes"):
            ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
            return tuple(("matrix", (end - size, end), *WHOLE[2:]) for size, end in zip(sizes, ends, strict=True))
        if group.get("param_split_fn") is not None:
            return None
        return (WHOLE,)

    def _heeds_splits(self, p: Tensor, holder: Holder) -> bool:
        """Return whether the optimizer reads `split_sizes` and `param_split_fn`, tried once for each group.

        Args:
            p: a parameter of the group.
            holder: a group that is given with its optimizer.
        """
        key = id(holder.optimizer), id(holder.group)
        if holder.optimizer is not None and key not in self._heeding:
            self._heeding[key] = heeds_splits(holder.optimizer, holder.group, p)
        return self._heeding[key]

    def _behaviour(self, p: Tensor, holder: Holder) -> Behaviour:
        """Return how the group's optimizer takes stacks and kernels and scales its rate, tried once for each group."""
        key = id(holder.optimizer), id(holder.group)
        if key not in self._behaviours:
            self._behaviours[key] = behaviour_of(holder.optimizer, holder.group, p)
        return self._behaviours[key]

    # -------------------------------------------------------------------------------------------- the lines that fix it

    def _problem(self, severity: str, kind: str, p: Tensor, message: str, line: str) -> MuonProblem:
        return MuonProblem(severity, kind, clean_name(self.paths[id(p)]), message, line)

    def _code_of_parameter(self, p: Tensor) -> str:
        """Return Python that finds a parameter in the model."""
        return f'model.get_parameter("{self.paths[id(p)]}")'

    def _line_to_move(self, p: Tensor, holder: Holder) -> str:
        """Return the line that moves a parameter from Muon's list to that of another optimizer.

        It builds all groups anew if there is no other optimizer, or if Muon is `SplitMuon` or torch's.
        """
        if not self.others or isinstance(holder.optimizer, SplitMuon | torch.optim.Muon):
            return self._line_to_rebuild(holder)
        remove = f"p = {self._code_of_parameter(p)}; {holder.code}[:] = [q for q in {holder.code} if q is not p]"
        is_there = any(q is p for other in self.others for q in other.parameters)
        return remove if is_there else f"{remove}; {self.others[0].code}.append(p)"

    def _line_to_muon(self, holder: Holder) -> str:
        """Return the line that has Muon train a parameter which another optimizer trains: it builds all groups anew."""
        muon = next((h for h in self.holders if any(map(h.trains_by_muon, h.parameters))), None)
        return self._line_to_rebuild(muon if muon is not None else holder)

    def _line_to_add(self, p: Tensor) -> str:
        """Return the line that adds a parameter, which nothing trains, to the list of an optimizer other than Muon.

        For a hidden matrix, or if there is no such optimizer, it builds all groups anew.
        """
        hidden = is_hidden(p, self.entries.get(p, []), self.outside)
        if self.others and not hidden:
            return f"{self.others[0].code}.append({self._code_of_parameter(p)})"
        return self._line_to_rebuild(self.holders[0]) if self.holders else _line_of_both_optimizers({}, {})

    def _line_to_remove(self, p: Tensor, places: list[tuple[Holder, bool]]) -> str:
        """Return the line that leaves a parameter in one list: Muon's for a hidden matrix, else another optimizer's.

        Args:
            p: a parameter that is trained several times in each step.
            places: the groups that hold it, each with whether Muon trains it there.
        """
        hidden = is_hidden(p, self.entries.get(p, []), self.outside)
        right = next((holder for holder, is_muon in places if is_muon == hidden), places[0][0])
        wrong = list(dict.fromkeys(holder.code for holder, _ in places if holder.code != right.code))
        if [holder.code for holder, _ in places].count(right.code) > 1:
            wrong.append(right.code)
        lines = [f"{place}[:] = [q for q in {place} if q is not p]" for place in wrong]
        again = f"; {right.code}.append(p)" if right.code in wrong else ""
        return f"p = {self._code_of_parameter(p)}; {'; '.join(lines)}{again}"

    def _line_to_rebuild(self, holder: Holder) -> str:
        """Return the line that builds all groups anew, for `SplitMuon` or a package that has options for cuts."""
        package = type(holder.optimizer).__module__.partition(".")[0]
        rate = _number_text(holder.group.get("lr"), 0.02)
        if package == "muonium":
            return f"optimizer = muonium.Muon(muonium_groups(model), lr={rate})"
        if package == "gram_newton_schulz":
            return (
                f"muon, adam = gram_newton_schulz_groups(model); optimizer = gram_newton_schulz.Muon(muon, lr={rate})"
            )
        is_other = any(holder is other for other in self.others)
        return _line_of_both_optimizers({} if is_other else holder.group, self.others[0].group if self.others else {})


def _line_of_both_optimizers(muon: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return the line that builds `SplitMuon` and AdamW anew.

    Args:
        muon: the options of a group; those that differ from the defaults are written out.
        other: the options of a group of another optimizer, of which the rate is taken over.
    """
    options = [f"lr={_number_text(muon.get('lr'), 0.02)}"]
    for name, default in (("weight_decay", 0.1), ("momentum", 0.95), ("nesterov", True), ("adjust_lr_fn", None)):
        value = muon.get(name, default)
        if isinstance(value, bool | int | float | str) and value != default:
            options.append(f"{name}={value!r}")
    adam = f"torch.optim.AdamW(adam, lr={_number_text(other.get('lr'), 3e-4)})"
    return f"muon, adam = muon_groups(model); optimizers = SplitMuon(muon, {', '.join(options)}), {adam}"


def _number_text(value: Any, default: float) -> str:
    """Return a number as short text; the default in place of what is no number."""
    return f"{float(value):g}" if isinstance(value, int | float | Tensor) else f"{default:g}"


def _indexed_path(path: str) -> str:
    """Return a dotted path with its numbers as indices: `model.h[0].weight` for `model.h.0.weight`."""
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", path)


def _is_whole(cuts: Cuts) -> bool:
    """Return whether there is one cut, and it divides nothing."""
    return len(cuts) == 1 and cuts[0][1:] == WHOLE[1:]


def _uncut_by_head(cut: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a cut as it is when all heads stay together."""
    options = dict(zip(FIELDS, cut, strict=True)) | {"heads": 1, "columns": False}
    return tuple(options[name] for name in FIELDS)


def _matrices_in_words(entries: Sequence[Entry]) -> str:
    """Return the matrices of a weight in words: `3 matrices (q, k, v) of 32 x 32 each`."""
    names = ", ".join(entry.block for entry in entries if entry.block)
    sizes = [_count_and_shape(entry) for entry in entries]
    total, named = sum(count for count, _, _ in sizes), f" ({names})" if names else ""
    if len({(m, n) for _, m, n in sizes}) == 1:
        return f"{total} matrices{named} of {sizes[0][1]} x {sizes[0][2]} each"
    listing = ", ".join(f"{entry.block} {m} x {n}" for entry, (_, m, n) in zip(entries, sizes, strict=True))
    return f"{total} matrices ({listing})"


def _count_and_shape(entry: Entry) -> tuple[int, int, int]:
    """Return how many matrices an entry has for Muon, and their rows and columns: of a convolution one a group."""
    return tuple(matrices_of(entry, torch.empty(entry.parameter.shape, device="meta")).shape)  # type: ignore[return-value]


def _cut_in_words(cut: Mapping[str, Any]) -> str:
    """Return one cut in words: `rows 0:32 of each of 4`."""
    words = "the whole" if cut["rows"] is None else f"rows {cut['rows'][0]}:{cut['rows'][1]}"
    words += f" of each of {cut['repeats']}" if cut["repeats"] > 1 else ""
    words += f" in {cut['groups']} groups" if cut["groups"] > 1 else ""
    words += f", {cut['heads']} heads" if cut["heads"] > 1 else ""
    return words + (" (stored d_in, d_out)" if cut["transposed"] else "")


def _are_same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Return whether two lists of matrices of positions hold the same ones.

    The order of the matrices does not count, nor that of the positions within one; its shape does.
    """
    pairs = [sorted(several, key=lambda matrix: int(matrix.min())) for several in (some, others)]
    return len(some) == len(others) and all(
        a.shape == b.shape and torch.equal(a.flatten().sort().values, b.flatten().sort().values)
        for a, b in zip(*pairs, strict=True)
    )
