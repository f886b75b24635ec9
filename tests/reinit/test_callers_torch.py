"""The caller's settings of torch: the same bits under any default dtype, on any default device, in any mode."""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fire_core import fire_, matrices, polar_factor, reset_optimizer_state, shrink_and_perturb_
from fire_core.metrics import dormant_ratio, effective_rank, hessian_spectral_norm, stable_rank


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "float16": lambda: default_dtype(torch.float16),
    "float64": lambda: default_dtype(torch.float64),
    "a default device": lambda: torch.device("meta"),  # stands for "cuda", on which nothing can run here
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "deterministic": deterministic,
}


class Model(nn.Module):
    """Tall, wide, square and rank-deficient matrices, a convolution, an interleaved fused weight, a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tall, self.wide, self.square = nn.Linear(40, 400), nn.Linear(30, 8), nn.Linear(9, 9)
        self.dead, self.conv, self.rnn = nn.Linear(6, 6), nn.Conv2d(3, 5, 3), nn.GRU(4, 5)
        self.qkv, self.attend = nn.Linear(8, 24), nn.MultiheadAttention(8, 2)
        self.half = nn.Linear(7, 5, dtype=torch.bfloat16)
        with torch.no_grad():
            self.dead.weight[3:] = 0

    def matrix_blocks(self) -> dict[str, dict[str, int]]:
        return {"qkv.weight": {"q": 2, "k": 2, "v": 2, "repeats": 4}}


def build() -> tuple[Model, Model]:
    torch.manual_seed(0)
    return Model(), Model()


ACTS: dict[str, Callable[[Model, Model], Any]] = {
    "newton_schulz": lambda model, other: fire_(model),
    "exact": lambda model, other: fire_(model, solver="exact", scale="orthogonal"),
    "muon": lambda model, other: fire_(model, solver="muon", scale="variance_factor"),
    "by head": lambda model, other: fire_(model, layout="heads"),
    "spectral": lambda model, other: fire_(model, norm_init="spectral", scale="keep_norm"),
    "power": lambda model, other: fire_(model, norm_init="power", tol=1e-3),
    "blend": lambda model, other: fire_(model, blend=0.5, scale="init_norm", init=other.state_dict()),
    "init": lambda model, other: fire_(model, solver="exact", scale="match_init", init=other.state_dict()),
    "reinit": lambda model, other: fire_(model, layout={"linear": "reinit"}, init=other.state_dict()),
    "shrink": lambda model, other: shrink_and_perturb_(model, other.state_dict(), 0.4),
}


@pytest.mark.filterwarnings("ignore:layout=.heads. keeps")
@pytest.mark.filterwarnings("ignore:blend=0.5 does not bring back directions:fire_core.errors.FireWarning")
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("act", ACTS)
def test_an_act_writes_the_same_bits(act: str, setting: str) -> None:
    plain, other = build()
    model = copy.deepcopy(plain)
    ACTS[act](plain, other)
    with SETTINGS[setting]():
        ACTS[act](model, other)
    for (name, expected), value in zip(plain.state_dict().items(), model.state_dict().values(), strict=True):
        assert torch.equal(expected, value), name
        assert (expected.dtype, expected.device) == (value.dtype, value.device)


NUMBERS: dict[str, Callable[[Tensor, Model], Any]] = {
    "polar_factor": lambda W, model: polar_factor(W.view(2, 3, 20)),
    "of a deficient matrix": lambda W, model: polar_factor(W[:1].expand(4, 30)),
    "float64": lambda W, model: polar_factor(W.double()),
    "effective_rank": lambda W, model: effective_rank(W),
    "stable_rank": lambda W, model: stable_rank(W),
    "dormant_ratio": lambda W, model: dormant_ratio([W, W.relu()], 0.2),
    "hessian": lambda W, model: hessian_spectral_norm(lambda: model.square.weight.pow(3).sum(), [model.square.weight]),
    "matrices": lambda W, model: [(m.label, m.shape, m.count) for m in matrices(model)],
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_is_the_same(number: str, setting: str) -> None:
    if number == "hessian" and setting == "inference_mode":
        pytest.skip("nothing is differentiated in inference mode, by torch's own rule")
    (model, _), W = build(), torch.randn(4, 30, generator=torch.Generator().manual_seed(1))
    expected = NUMBERS[number](W, model)
    with SETTINGS[setting]():
        value = NUMBERS[number](W, model)
    same = torch.equal(value, expected) if isinstance(value, Tensor) else value == expected
    assert same


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("optimizer", [torch.optim.Adagrad, torch.optim.Adam, torch.optim.Rprop])
def test_training_goes_on_after_a_reset(optimizer: Any, setting: str) -> None:
    """As without the setting: what is new in the state is a tensor that training can write to."""
    results = []
    for context in (nullcontext, SETTINGS[setting]):
        torch.manual_seed(0)
        model = nn.Linear(6, 4)
        train = optimizer(model.parameters(), lr=0.1)
        for moment in range(2):
            model(torch.ones(3, 6)).square().sum().backward()
            train.step()
            if moment == 0:
                with context():
                    reset_optimizer_state(train, [model.weight], rows=[1, 2])
                    reset_optimizer_state(train, [model.bias])
                    fire_(model, optimizer=train)
        results.append(model.weight.detach())
    assert torch.equal(*results)
