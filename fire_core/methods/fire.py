"""FIRE: Frobenius-Isometry Reinitialization (Han et al., ICLR 2026, arXiv 2602.08040)."""

from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated

from fire_core.methods.layers import ChosenLayout
from fire_core.methods.protocol import BoundaryReport, Context, Method, Net
from fire_core.ranges import checked, within
from fire_core.reinit.fire import fire_
from fire_core.reinit.project import Projection
from fire_core.weights.optimizers import optimizers_that_hold


class Fire(Method):
    """Replace every weight matrix of the layout by the nearest isometry, times sqrt(d_out/d_in) / (k_h k_w).

    The defaults are the paper's: ten cubic Newton-Schulz steps from W / ||W||_F, which end short of isometry on trained
    weights. `solver="exact"` is the paper's aim, the nearest isometry itself. The deviation from isometry (DfI) that
    was reached is logged as `boundary/dfi_after`.

    Args:
        solver: newton_schulz, exact, or for comparisons muon; see `PolarOptions`.
        iterations: Newton-Schulz steps.
        norm_init: norm by which a matrix is divided before the first step: frobenius, spectral, power or schatten4.
        layout: which weights are projected, see `fire_core.weights.layout`; None takes the network's own layout.
        scale: modular, orthogonal, match_init, init_norm, keep_norm or variance_factor; docs/scales.md.
        blend: in [0, 1], how far to go; 1 is the full projection. Below 1 the result is exact, whatever steps
            solver, iterations, norm_init and tol ask for: the programs refuse these on the command line.
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
        self.projection = Projection(
            solver,
            iterations,
            norm_init,
            tol,
            scale=scale,
            min_norm=min_norm,
            blend=blend,
            variance_factor=variance_factor,
        )
        self.layout, self.trainable_only = layout, trainable_only

    def idle_options(self) -> dict[str, str]:
        return self.projection.idle()

    def at_boundary(self, net: Net, context: Context) -> BoundaryReport:
        options = {name: value for name, value in asdict(self.projection).items() if name not in self.idle_options()}
        reports = {}
        # `fire_` changes nothing of a network that it refuses; the networks before that one are changed by then.
        with net.unchanged_on_error(context.optimizers) if len(net.modules) > 1 else nullcontext():
            for name, module in net.modules.items():
                reports[name] = fire_(
                    module,
                    layout=self.layout or net.layout,
                    optimizer=optimizers_that_hold(context.optimizers, module.parameters()),  # empty for a target
                    init=net.init[name],
                    exclude=net.spared_or_shared(name, context.spared),
                    trainable_only=self.trainable_only,
                    **options,
                )
        measuring = sum(report.total("measuring") for report in reports.values())
        return BoundaryReport(weights=reports, measuring=measuring)
