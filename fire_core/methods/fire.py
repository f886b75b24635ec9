"""FIRE: Frobenius-Isometry Reinitialization (Han et al., ICLR 2026, arXiv 2602.08040)."""

import inspect
from typing import Annotated, Any

from fire_core.methods.layers import ChosenLayout
from fire_core.methods.protocol import BoundaryReport, Context, Method, Net
from fire_core.polar.options import PolarOptions
from fire_core.ranges import checked, within
from fire_core.reinit.fire import IDLE, fire_
from fire_core.reinit.scales import check_scaling
from fire_core.weights.optimizer_state import holding


class Fire(Method):
    """Every weight matrix of the layout to the nearest isometry, times sqrt(d_out/d_in) / (k_h k_w).

    The defaults are the paper's: ten cubic Newton-Schulz steps from W / ||W||_F, which end short of isometry on trained
    weights. `solver="exact"` is the paper's aim, the nearest isometry itself. The log has what was reached,
    `boundary/dfi_after`.

    Args:
        solver: newton_schulz or exact.
        iterations: Newton-Schulz steps.
        norm_init: frobenius, spectral, power or schatten4.
        layout: which weights, see `fire_core.weights.layout`; None: the network's own.
        scale: modular, orthogonal, match_init, init_norm, keep_norm or variance_factor; docs/scales.md.
        blend: in [0, 1]; 1 is the full projection.
        min_norm: matrices whose Frobenius norm lies below this are left alone.
        tol: stop the Newton-Schulz steps of a batch early, once its largest DfI lies below this.
        variance_factor: for the scale of that name; refused with another.
        trainable_only: leave frozen weights alone.
    """

    @checked
    def __init__(
        self,
        solver: str = "newton_schulz",
        iterations: Annotated[int, within(1, 1000)] = 10,
        norm_init: str = "frobenius",
        layout: ChosenLayout = None,
        scale: str = "modular",
        blend: float = 1.0,
        min_norm: float = 0.0,
        tol: float | None = None,
        variance_factor: float = 1.0,
        trainable_only: bool = True,
    ) -> None:
        PolarOptions(solver, iterations, norm_init, tol)  # checks them
        check_scaling(scale, min_norm, blend, variance_factor)
        self.layout = layout
        self.options: dict[str, Any] = {
            "solver": solver,
            "iterations": iterations,
            "norm_init": norm_init,
            "scale": scale,
            "blend": blend,
            "min_norm": min_norm,
            "tol": tol,
            "variance_factor": variance_factor,
            "trainable_only": trainable_only,
        }

    def idle_options(self) -> dict[str, str]:
        solver, defaults = self.options["solver"], inspect.signature(Fire).parameters
        moved = [name for name in IDLE[solver] if self.options[name] != defaults[name].default]
        return dict.fromkeys(moved, f"solver={solver}")

    def at_boundary(self, net: Net, context: Context) -> BoundaryReport:
        options = {name: value for name, value in self.options.items() if name not in self.idle_options()}
        reports = {
            name: fire_(
                module,
                layout=self.layout or net.layout,
                optimizer=holding(context.optimizers, module.parameters()),  # none of a target network
                init=net.init[name],
                exclude=[p for p in module.parameters() if p in context.spared],
                **options,
            )
            for name, module in net.modules.items()
        }
        measuring = sum(report.total("measuring") for report in reports.values())
        return BoundaryReport(weights=reports, measuring=measuring)
