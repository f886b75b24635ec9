"""Where every trainer lets a method act: at the boundary between two phases and after an epoch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fire_core.harness.options.errors import TrainingError
from fire_core.harness.run.folder import Run
from fire_core.harness.training.measure import Meter, Stopwatch, total_sfe
from fire_core.methods import Context, Method, Net
from fire_core.weights.distributed import full
from fire_core.weights.layout import resolve

KEPT = 256  # singular values of a parameter that spectra.json holds at most


def act_at_boundary(
    net: Net,
    method: Method,
    context: Context,
    *,
    name: str,
    device: torch.device,
    measure: Callable[[], dict[str, float]],
    run: Run | None,
    with_spectra: bool = True,
    afterwards: Callable[[], None] | None = None,
) -> dict[str, float]:
    """Let the method act, in place.

    Args:
        net: the networks.
        method: acts on them.
        context: the moment.
        name: the method's, for errors.
        device: whose work is waited for and whose memory is measured.
        measure: numbers of the network, taken before and after.
        run: keeps the spectra; None (a process that is not the first of its team) keeps none.
        with_spectra: whether to take singular values, seconds for a large network.
        afterwards: done with the networks before they are measured again.

    Returns:
        For the next row: `boundary/<number>_before`, `boundary/<number>_after`, `boundary/sfe` and what the method
        tells, with the seconds and the peak memory that it took.

    Raises:
        TrainingError: the method cannot work on these weights.
    """
    before, spectra_before = measure(), spectra(net) if with_spectra else {}
    old = {key: {k: v.clone() for k, v in module.state_dict().items()} for key, module in net.modules.items()}
    with Stopwatch(device) as watch:
        try:
            numbers = method.at_boundary(net, context)
        except ValueError as error:
            raise TrainingError(f"method={name} before phase {context.phase}: {error}") from error
    if afterwards is not None:
        afterwards()
    numbers |= {f"{key}_before": value for key, value in before.items()}
    numbers |= {f"{key}_after": value for key, value in measure().items()}
    numbers |= {"sfe": total_sfe(net, old)}
    if with_spectra:
        spectra_after = spectra(net)
        pairs = {
            key: {"before": values, "after": spectra_after[key]}
            for key, values in spectra_before.items()
            if key in spectra_after
        }
        if run is not None:
            run.keep_spectra(context.phase, pairs)
    row = {f"boundary/{key}": value for key, value in numbers.items()}
    return row | {"method/seconds": watch.seconds, "method/peak_bytes": watch.peak_bytes}


def act_after_epoch(net: Net, method: Method, context: Context, meter: Meter, row: dict[str, Any]) -> dict[str, float]:
    """Let the method act after a row is made; its numbers for it, and all its seconds since the row before.

    The seconds are those of the hooks that the trainer calls, which `meter` has counted. What a method does within the
    networks' own passes is not in them.
    """
    with meter:
        numbers = method.after_epoch(net, context)
    seconds = meter.take() + row.get("method/seconds", 0.0)
    return {f"method/{key}": value for key, value in numbers.items()} | {"method/seconds": seconds}


@torch.no_grad()
def spectra(net: Net) -> dict[str, list[float]]:
    """Singular values by parameter, largest first, those of all kernel positions and heads together.

    Of more than `KEPT` values, evenly spaced ones, the largest and the smallest among them.
    """
    found = {}
    for key, module in net.modules.items():
        for entry in resolve(module, "all", trainable_only=False):
            if entry.action != "project":
                continue
            matrices = entry.view(full(entry.parameter.detach())).float()
            values: Tensor = torch.linalg.svdvals(matrices).flatten().sort(descending=True).values.cpu()
            if len(values) > KEPT:
                values = values[torch.linspace(0, len(values) - 1, KEPT).round().long()]
            label = entry.label if len(net.modules) == 1 else f"{key}.{entry.label}"
            found[label] = [float(f"{value:.5g}") for value in values.tolist()]
    return found
