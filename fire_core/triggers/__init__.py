"""When to act: small objects that are asked once after each optimizer step.

    trigger = Plateau("loss") | Every(10_000)
    for step, (x, y) in enumerate(loader, start=1):
        ...
        optimizer.step()
        if trigger.ask(step, model, loss=loss):
            fire_(model, optimizer=optimizer)

`At` and `Every` follow the step's number, `Plateau` a loss or score, the others measure the model. They combine with
`|`. None draws random numbers, and none makes the host wait for a device except in steps in which it measures.
"""

from fire_core.triggers.activations import Dormancy, EffectiveRank
from fire_core.triggers.measured import Drift
from fire_core.triggers.plateau import Plateau
from fire_core.triggers.schedule import At, Every
from fire_core.triggers.trigger import Firing, Trigger

__all__ = [
    "At",
    "Dormancy",
    "Drift",
    "EffectiveRank",
    "Every",
    "Firing",
    "Plateau",
    "Trigger",
]
