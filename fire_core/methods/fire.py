"""FIRE: Frobenius-Isometry Reinitialization (Han et al., ICLR 2026, arXiv 2602.08040)."""

from collections.abc import Mapping

from fire_core.methods.protocol import Context, Method, Net
from fire_core.polar.options import NORM_INITS, SOLVERS
from fire_core.reinit.fire import fire_
from fire_core.reinit.scales import SCALES
from fire_core.weights.layout import PRESETS


class Fire(Method):
    """Every weight matrix of the layout to the nearest isometry, times sqrt(d_out/d_in) / (k_h k_w).

    The defaults are the paper's: ten cubic Newton-Schulz steps from W / ||W||_F, which end short of isometry on trained
    weights. `solver="exact"` is what the paper means; the log says how far either one came (`boundary/dfi_after`).

    Args:
        solver: newton_schulz or exact.
        iterations: Newton-Schulz steps.
        norm_init: frobenius, spectral, power or schatten4.
        layout: which weights, see `fire_core.weights.layout`; None: the network's own.
        scale: modular, orthogonal, match_init.
        blend: in [0, 1]; 1 projects all the way.

    Raises:
        ValueError: an unknown name, or no iteration.
    """

    def __init__(
        self,
        solver: str = "newton_schulz",
        iterations: int = 10,
        norm_init: str = "frobenius",
        layout: str | Mapping[str, str] | None = None,
        scale: str = "modular",
        blend: float = 1.0,
    ) -> None:
        for name, value, accepted in (
            ("solver", solver, SOLVERS),
            ("norm_init", norm_init, NORM_INITS),
            ("scale", scale, SCALES),
            ("layout", layout, (None, *PRESETS)),
        ):
            if not isinstance(value, Mapping) and value not in accepted:
                raise ValueError(f"{name}={value} is unknown; accepted: {', '.join(map(str, accepted))}")
        if iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {iterations}")
        self.solver, self.iterations, self.norm_init = solver, iterations, norm_init
        self.layout, self.scale, self.blend = layout, scale, blend

    def at_boundary(self, net: Net, context: Context) -> dict[str, float]:
        for name, module in net.modules.items():
            fire_(
                module,
                solver=self.solver,
                iterations=self.iterations,
                norm_init=self.norm_init,
                layout=self.layout or net.layout,
                optimizer=context.optimizers,
                init=net.init[name],
                scale=self.scale,
                blend=self.blend,
            )
        return {}
