"""What FIRE does to a language model, one thing at a time: methods for `scripts/language_grid.sh` alone.

    python -m language.train experiment=permuted_text method=fire method._target_=scripts.language_ingredients.Parts \
        method.name=only_norm +method.change=norm +method.reset=changed

Newton-Schulz steps turn W = U S V^T into U S' V^T. `change` says what of this is kept:

- all: S', as FIRE.
- shape: S' times ||S|| / ||S'||: the new spectrum at the old Frobenius norm.
- norm: S times ||S'|| / ||S||: the old spectrum at FIRE's norm.
- small, large: S' for the smaller half of the singular values and S for the larger, or the other way round.
- nothing: S.
"""

from typing import Any

import torch
from torch import Tensor

from fire_core.methods.fire import Fire
from fire_core.methods.protocol import BoundaryReport, Context, Net
from fire_core.reinit.fire import fire_
from fire_core.weights.layout import resolve
from fire_core.weights.optimizer_state import reset_optimizer_state

CHANGES = ("all", "shape", "norm", "small", "large", "nothing")
RESETS = ("none", "changed", "all")  # whose optimizer state


class Parts(Fire):
    """A part of FIRE.

    Args:
        change: see above.
        reset: whose optimizer state is reset: none's, that of the weights of the layout (as FIRE), or all.
        **options: FIRE's.

    Raises:
        ValueError: `change` or `reset` is unknown.
    """

    def __init__(self, change: str = "all", reset: str = "changed", **options: Any) -> None:
        super().__init__(**options)
        for name, value, known in (("change", change, CHANGES), ("reset", reset, RESETS)):
            if value not in known:
                raise ValueError(f"{name}={value} is unknown; accepted: {', '.join(known)}")
        self.change, self.reset = change, reset

    @torch.no_grad()
    def at_boundary(self, net: Net, context: Context) -> BoundaryReport:
        for name, module in net.modules.items():
            entries = [e for e in resolve(module, self.layout or net.layout) if e.action == "project"]
            old = {entry.label: entry.view(entry.parameter).clone() for entry in entries}  # (..., m, n) each
            fire_(module, layout=self.layout or net.layout, init=net.init[name], measure=False, **self.options)
            for entry in entries:
                entry.write_(entry.parameter, part_of(self.change, old[entry.label], entry.view(entry.parameter)))
            reset: dict[str, list[Tensor]] = {"none": [], "all": list(net.parameters())}
            reset["changed"] = [entry.parameter for entry in entries]
            reset_optimizer_state(context.optimizers, reset[self.reset])
        return BoundaryReport()


def part_of(change: str, old: Tensor, new: Tensor) -> Tensor:
    """What a part of FIRE makes of matrices.

    Args:
        change: see the top of the file.
        old: (..., m, n).
        new: the same after FIRE; with the singular vectors of `old`.
    """
    if change == "all":
        return new.clone()
    if change == "nothing":
        return old
    before: Tensor
    after: Tensor
    before, after = (torch.linalg.matrix_norm(m, keepdim=True) for m in (old, new))  # (..., 1, 1)
    if change == "shape":
        return new * (before / after)
    if change == "norm":
        return old * (after / before)
    u: Tensor
    values: Tensor
    v: Tensor
    u, values, v = torch.linalg.svd(old, full_matrices=False)
    moved = (u.mT @ new @ v.mT).diagonal(dim1=-2, dim2=-1)  # S', in the order of S
    half = values.shape[-1] // 2
    few = torch.arange(values.shape[-1]) >= half  # the smaller ones
    chosen = torch.where(few if change == "small" else ~few, moved, values)
    return u @ torch.diag_embed(chosen) @ v
