"""Frozen weights (`requires_grad=False`) stay bit for bit, whichever method acts."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fire_core.methods import Context, FullReset, Fuse, Method, Net, RandomIsometry, ShrinkAndPerturb
from fire_core.methods.cbp import ContinualBackprop
from fire_core.methods.contrib.cpr import CalibratedPartialResets
from fire_core.methods.contrib.hare_tortoise import HareTortoise
from fire_core.methods.contrib.l2_er import L2EffectiveRank
from fire_core.methods.contrib.nap import NormalizeAndProject
from fire_core.methods.contrib.regrama import ReGraMa
from fire_core.methods.contrib.swr import SelectiveWeightReinitialization
from fire_core.methods.contrib.trac import Trac
from fire_core.methods.contrib.weight_clipping import WeightClipping
from fire_core.methods.dash import Dash
from fire_core.methods.fire import Fire
from fire_core.methods.redo import ReDo
from fire_core.methods.snr import SelfNormalizedResets
from tests.methods.small import moment

METHODS: dict[str, Callable[[], Method]] = {
    "cbp": lambda: ContinualBackprop(rate=0.3, maturity=1),
    "cbp fire_paper": lambda: ContinualBackprop(rate=0.3, maturity=1, variant="fire_paper"),
    "cpr": lambda: CalibratedPartialResets(rate=0.5, sharpness=0.0, every=2),
    "dash": Dash,
    "fire": Fire,
    "full_reset": FullReset,
    "full_reset new": lambda: FullReset("new"),
    "fuse": Fuse,
    "hare_tortoise": lambda: HareTortoise(every=1),
    "l2_er": lambda: L2EffectiveRank(every=2),
    "nap": NormalizeAndProject,
    "random_isometry": RandomIsometry,
    "redo": lambda: ReDo(threshold=1.0),
    "redo fire_paper": lambda: ReDo(threshold=1.0, variant="fire_paper"),
    "regrama": lambda: ReGraMa(threshold=1.0, every=2),
    "snp": ShrinkAndPerturb,
    "snp fire_paper": lambda: ShrinkAndPerturb(variant="fire_paper"),
    "snr": lambda: SelfNormalizedResets(max_age=8, every=1),
    "snr fire_paper": lambda: SelfNormalizedResets(max_age=8, every=1, variant="fire_paper"),
    "swr": lambda: SelectiveWeightReinitialization(factor=1.0, every=2),
    "trac": Trac,
    "weight_clipping": lambda: WeightClipping(zeta=0.1),
}


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(5, 12), nn.Linear(12, 10), nn.Linear(10, 8)
        self.norm, self.head = nn.BatchNorm1d(12), nn.Linear(8, 3)
        self.register_buffer("constant", torch.randn(1000))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.three(self.two(self.norm(self.one(x)).relu()).relu()).relu())


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        yield torch.randn(8, 5, generator=generator), torch.randint(3, (8,), generator=generator)


def train(method: Method, model: Network) -> None:
    """Six steps, an epoch's end and a boundary."""
    net = Net.of({"model": model})
    with torch.no_grad():
        for p in model.parameters():  # as after some training, so that no weight is its initial one
            p.mul_(1.3)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    def context(step: int) -> Context:
        new = {"model": Network().state_dict()}
        return moment(step, batches=batches, loss=loss, optimizers=[optimizer], new_networks=lambda: new)

    method.check(net)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    with method.watch(net):
        for step, (x, y) in enumerate(batches(), start=1):
            optimizer.zero_grad()
            loss(x, y).backward()
            method.before_step(net, context(step))
            optimizer.step()
            method.after_step(net, context(step))
    method.after_epoch(net, context(7))
    method.at_boundary(net, context(7))


@pytest.mark.parametrize("frozen", ["one", "two", "two.weight", "two.bias", "norm", "head"])
@pytest.mark.parametrize("name", METHODS)
def test_frozen_weights_stay(name: str, frozen: str) -> None:
    torch.manual_seed(0)
    model = Network()
    kept = {key: p for key, p in model.named_parameters() if key.startswith(frozen)}
    for p in kept.values():
        p.requires_grad_(requires_grad=False)
        p.grad = torch.ones_like(p)  # of the last step before it was frozen
    before = {key: 1.3 * p.detach() for key, p in kept.items()}
    constant = model.constant.clone()
    train(METHODS[name](), model)
    assert all(torch.equal(p, before[key]) for key, p in kept.items()), [*kept]
    assert torch.equal(model.constant, constant) or name == "full_reset new"


def test_units_that_cannot_be_changed_are_said_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    model = Network()
    model.three.bias.requires_grad_(requires_grad=False)
    ReGraMa().check(Net.of({"m": model}))
    assert "hidden units with a frozen weight, bias or norm stay as they are: two, three" in caplog.text
    for layer in (model.one, model.three):
        layer.requires_grad_(requires_grad=False)
    for name in ("cbp", "cpr", "redo", "regrama", "snr"):
        with pytest.raises(ValueError, match="no hidden unit can be changed: each has a frozen weight"):
            METHODS[name]().check(Net.of({"m": model}))


def test_a_network_without_a_trained_weight_takes_a_step_of_trac() -> None:
    model = nn.Linear(3, 2).requires_grad_(requires_grad=False)
    net, method = Net.of({"m": model}), Trac()
    with method.watch(net):
        method.before_step(net, moment())
        method.after_step(net, moment())
    assert torch.equal(model.weight, net.init["m"]["weight"])
