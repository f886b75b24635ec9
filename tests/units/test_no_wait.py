"""No step of a method reads a number from the weights' device: on a GPU it would wait for all that is under way."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from fire_core.methods import Context, Method, Net, snr
from fire_core.methods.cbp import ContinualBackprop
from fire_core.methods.contrib.c_chain import ChurnReduction
from fire_core.methods.contrib.cpr import CalibratedPartialResets
from fire_core.methods.contrib.nap import NormalizeAndProject
from fire_core.methods.contrib.regrama import ReGraMa
from fire_core.methods.contrib.spectral import SpectralRegularisation
from fire_core.methods.contrib.swr import SelectiveWeightReinitialization
from fire_core.methods.contrib.trac import Trac
from fire_core.methods.contrib.weight_clipping import WeightClipping
from fire_core.methods.snr import SelfNormalizedResets
from fire_core.units import recycle
from fire_core.units.recycle import recycle_
from fire_core.units.trace import unit_graph
from vision.models import MLP, SmallResNet

METHODS: dict[str, Callable[[], Method]] = {
    "cbp": lambda: ContinualBackprop(rate=0.2, maturity=1),
    "snr": lambda: SelfNormalizedResets(percentile=0.5, every=1, max_age=16),
    "regrama": lambda: ReGraMa(threshold=0.9, every=2),
    "cpr": lambda: CalibratedPartialResets(rate=0.5, every=2),
    "swr": lambda: SelectiveWeightReinitialization(factor=0.5, every=2, decay=0.9),
    "trac": lambda: Trac(scale=0.5),
    "weight_clipping": WeightClipping,
    "nap": NormalizeAndProject,
    "spectral": SpectralRegularisation,
    "c_chain": lambda: ChurnReduction(warmup=3, window=5),
}
READS = {
    torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.is_nonzero, torch.ops.aten.equal,
    torch.ops.aten.masked_select, torch.ops.aten.item, torch.ops.aten._unique2, torch.ops.aten.repeat_interleave,
}  # fmt: skip


class NoReads(TorchDispatchMode):
    """Refuses operations whose result the host has to see: numbers, and shapes that depend on them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        by_mask = packet in (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_) and any(
            isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if packet in READS or by_mask:
            raise AssertionError(f"{func} makes the host wait")
        return func(*args, **(kwargs or {}))


def models() -> list[nn.Module]:
    """With two features of a unit; with channels of which some are silent."""
    torch.manual_seed(0)
    resnet = SmallResNet(4, width=4, stages=2)
    for module in resnet.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.bias[1:2], -100)
    return [MLP(4, hidden=12, depth=2, norm="layer", activation="crelu"), resnet]


def steps(method: Method, model: nn.Module, forbidden: Callable[[], Any], device: str = "cpu") -> Net:
    """Train a little; the method's own work is done within `forbidden`."""
    model = model.to(device)
    net, optimizer = Net.of({"model": model}), torch.optim.Adam(model.parameters(), lr=0.05)
    torch.manual_seed(1)
    images, labels = torch.randn(6, 8, 1, 8, 8).to(device), torch.randint(4, (6, 8)).to(device)
    with method.watch(net):
        for t in range(6):
            loss = F.cross_entropy(model(images[t]), labels[t])
            optimizer.zero_grad()
            loss.backward()
            context = Context(0, t, torch.Generator().manual_seed(t), optimizers=[optimizer], step_loss=loss.detach())
            with forbidden():
                if (penalty := method.penalty(net)) is not None:
                    penalty.backward()
                method.before_step(net, context)
            optimizer.step()
            with forbidden():
                method.after_step(net, context)
    return net


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are treated as those of a GPU."""
    for module in (recycle, snr):
        monkeypatch.setattr(module, "is_cpu", lambda device: False)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("name", METHODS)
def test_no_step_reads_a_number(name: str) -> None:
    acted = [steps(METHODS[name](), model, NoReads) for model in models()]
    without = [steps(Method(), model, NoReads) for model in models()]
    pairs = [zip(one.parameters(), two.parameters(), strict=True) for one, two in zip(acted, without, strict=True)]
    assert any(not torch.equal(a, b) for parameters in pairs for a, b in parameters), "it did nothing here"


@pytest.mark.usefixtures("elsewhere")
def test_masks_and_indices_recycle_alike() -> None:
    """With the same new weights: every weight, bias, norm entry, running statistic and moment afterwards."""

    def half(layer: nn.Module, shape: Any, generator: torch.Generator) -> Tensor:
        return torch.full(tuple(shape), 0.5)

    for one, two in zip(models(), models(), strict=True):
        states = []
        for model in (one, two):
            optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
            model(torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(1))).square().sum().backward()
            optimizer.step()
            chosen = [(units, torch.tensor([0, 2, units.count - 1])) for units in unit_graph({"model": model})]
            if model is one:
                recycle_(chosen, half, torch.Generator(), [optimizer])
            else:
                marked = [(units, torch.zeros(units.count).bool().index_fill(0, i, True)) for units, i in chosen]
                with NoReads():
                    recycle_(marked, half, torch.Generator(), [optimizer])
            moments = [value for entry in optimizer.state.values() for value in entry.values()]
            states.append([*model.state_dict().values(), *moments])
        for first, second in zip(*states, strict=True):
            assert torch.equal(first, second)


@contextmanager
def no_synchronisation() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", METHODS)
def test_no_step_synchronises_a_gpu(name: str) -> None:
    for model in models():
        steps(METHODS[name](), model, no_synchronisation, device="cuda")
