"""What the source of a model tells of one weight (`source.py` records it)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fire_core.weights.flows import Part

Signature = set[tuple[Any, ...]]  # the operations that a part meets


@dataclass
class LayerUse:
    """What the source tells of one weight.

    Attributes:
        calls: how often its layer is called, or the weight itself multiplied.
        multiplied: how often the weight, as it is stored, is an operand of a product of matrices.
        sums_over: over what the products with the weight as it is stored sum: "columns" in x W^T, "rows" in x W, "" if
            that is not known.
        fused_by_torch: whether torch's own code for attention or recurrent layers takes it, and so cuts it as always.
        own_forward: what the forward pass of a user's layer class does with it: "plain", "changed" or "unclear"; "" if
            the class is torch's.
        signatures: from each part of its output to the operations that the part meets.
        lines: from each part to the place where it is taken, `file:line`.
        spans: from each part to the same place as (file, first line, last line).
        sections: from the place of a cut of the output as the layer returns it to the numbers of features of its parts;
            () if these are not known, or differ from call to call.
        is_rejoined: whether some of its parts are put together again.
        unsure: those parts that were taken along an axis of which it is not known whether it holds the features.
        by_rank: those of the unsure parts that are features or not depending on the number of axes of the model's
            input: `h[:, :n]` takes features of an h with two axes, and positions of one with three.
        changed: where the weight is changed before it is multiplied; "" if it is not.
        computed_with: where something else than a product is computed with the weight; "" if nothing is.
        is_uncalled: whether no call of its layer was found.
        overwritten: where the forward pass writes to the weight itself, in place; "" if it does not.
        escapes: whether the output is used where it cannot be followed.
        is_lost: whether code that cannot be followed takes the output, such as a call or an attribute, or no call of
            the layer was found. False if only the model's caller or a module with layers of its own takes it.
    """

    calls: int = 0
    multiplied: int = 0
    sums_over: set[str] = field(default_factory=set)
    fused_by_torch: bool = False
    own_forward: str = ""
    signatures: dict[Part, Signature] = field(default_factory=dict)
    lines: dict[Part, str] = field(default_factory=dict)
    spans: dict[Part, tuple[str, int, int]] = field(default_factory=dict)
    sections: dict[Any, tuple[int, ...]] = field(default_factory=dict)
    is_rejoined: bool = False
    unsure: set[Part] = field(default_factory=set)
    by_rank: set[Part] = field(default_factory=set)
    changed: str = ""
    computed_with: str = ""
    is_uncalled: bool = False
    overwritten: str = ""
    escapes: bool = False
    is_lost: bool = False

    def take_parts_of(self, other: LayerUse) -> None:
        """Add what another function does with the output of the layer, but not what it does to the weight."""
        if not self.calls:
            self.changed = other.changed
        self.calls += other.calls
        self.multiplied += other.multiplied
        self.sums_over |= other.sums_over
        self.fused_by_torch |= other.fused_by_torch
        self.own_forward = self.own_forward or other.own_forward
        for part, signature in other.signatures.items():
            self.signatures.setdefault(part, set()).update(signature)
        self._take_places_of(other)
        self.escapes |= other.escapes
        self.is_lost |= other.is_lost

    def take_cuts_of(self, other: LayerUse) -> None:
        """Add which parts of the output another module takes, and what these meet there, if it takes several."""
        if not other.cut:
            return
        for part, signature in other.signatures.items():
            if part:
                self.signatures.setdefault(part, set()).update(signature)
        self._take_places_of(other)

    def _take_places_of(self, other: LayerUse) -> None:
        """Add where and into which sizes other code cuts the output."""
        self.lines = {**other.lines, **self.lines}
        self.spans = {**other.spans, **self.spans}
        for where, sizes in other.sections.items():
            self.state_sections(where, sizes)
        self.is_rejoined |= other.is_rejoined
        self.unsure |= other.unsure
        self.by_rank |= other.by_rank

    def state_sections(self, where: Any, sizes: tuple[int, ...]) -> None:
        """Record into which sizes the output is cut at a place; () if another call there has other sizes."""
        self.sections[where] = sizes if self.sections.get(where, sizes) == sizes else ()

    @property
    def cut(self) -> list[Part]:
        """The parts of the output that meet different operations, from its first such cut; empty if there is none."""
        return next(iter(self._cuts()), [])

    def _cuts(self) -> Iterator[list[Part]]:
        """Yield for each cut of the output, or of a part of it, its parts, if these meet different operations."""
        groups: dict[Part, dict[Part, Signature]] = {}
        for part, signature in self.signatures.items():
            for depth in range(len(part)):
                group = groups.setdefault(part[:depth], {})
                group.setdefault(part[: depth + 1], set()).update(signature)
        for group in groups.values():
            if len(group) > 1 and len({frozenset(signature) for signature in group.values()}) > 1:
                yield list(group)

    @property
    def is_sure(self) -> bool:
        """Whether the parts of `cut` are certainly parts of the features, and not of another axis."""
        return not any(part[: depth + 1] in self.unsure for part in self.cut for depth in range(len(part)))

    @property
    def depends_on_rank(self) -> bool:
        """Whether the number of axes of the model's input decides whether the output is cut."""
        return any(part[: depth + 1] in self.by_rank for part in self.cut for depth in range(len(part)))

    @property
    def heights(self) -> tuple[int, ...]:
        """The numbers of features of the parts of `cut`, if the code states them and cuts no part again; else ()."""
        parts = self.cut
        if self.is_rejoined or any(len(part) > 1 for part in self.signatures):
            return ()
        places = {part[0][0] for part in parts}
        heights = self.sections.get(next(iter(places), None), ()) if len(places) == 1 else ()
        is_whole = {part[0][1] for part in parts} == set(range(len(heights)))
        return heights if is_whole and self.is_sure else ()

    @property
    def line(self) -> str:
        """Where the output is cut, as `file:line`; "" if it is not."""
        parts = self.cut
        return next((self.lines[part] for part in parts if part in self.lines), "its forward") if parts else ""

    @property
    def places(self) -> list[tuple[str, int, int]]:
        """The places where the output, or a part of it, is cut, each as (file, first line, last line)."""
        parts = (part for parts in self._cuts() for part in parts)
        return list(dict.fromkeys(self.spans[part] for part in parts if part in self.spans))
