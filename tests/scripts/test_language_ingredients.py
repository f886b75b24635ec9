"""Parts of FIRE on language models, against their definitions."""

import copy

import numpy as np
import pytest
import torch

from fire_core.methods import Context, Net
from fire_core.reinit.fire import fire_
from language.model import GPT
from scripts.language_ingredients import Parts, part_of


def trained() -> tuple[GPT, torch.optim.AdamW]:
    torch.manual_seed(0)
    model = GPT(11, 8, 1, 2, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for _ in range(3):
        optimizer.zero_grad()
        tokens = torch.randint(0, 11, (4, 9))
        model(tokens[:, :-1], tokens[:, 1:])[1].backward()
        optimizer.step()
    return model, optimizer


def test_parts_of_a_spectrum() -> None:
    """U S V^T and U T V^T: each part has the singular values that its name says."""
    draw = np.random.default_rng(0)
    u, v = (np.linalg.qr(draw.normal(size=(6, 6)))[0] for _ in range(2))
    s, t = np.array([5.0, 3, 2, 1, 0.5, 0.1]), np.array([1.0, 0.9, 0.8, 0.7, 0.6, 0.2])
    old, new = (torch.from_numpy(u @ np.diag(values) @ v) for values in (s, t))
    expected = {
        "all": t,
        "nothing": s,
        "shape": t * np.linalg.norm(s) / np.linalg.norm(t),
        "norm": s * np.linalg.norm(t) / np.linalg.norm(s),
        "small": np.concatenate([s[:3], t[3:]]),
        "large": np.concatenate([t[:3], s[3:]]),
    }
    for change, values in expected.items():
        assert torch.allclose(part_of(change, old, new), torch.from_numpy(u @ np.diag(values) @ v)), change


@pytest.mark.parametrize(("reset", "forgotten"), [("none", 0), ("changed", 1), ("all", 9)])
def test_all_of_it_is_fire_and_resets_what_it_says(reset: str, forgotten: int) -> None:
    """On q and k, which are rows of one matrix; the values' rows stay."""
    model, optimizer = trained()
    net = Net.of({"model": model}, "gpt")
    other = copy.deepcopy(model)
    fire_(other, layout="qk", iterations=5)
    held = len(optimizer.state)
    moment = Context(1, 3, torch.Generator(), optimizers=[optimizer])
    Parts(change="all", reset=reset, iterations=5, layout="qk").at_boundary(net, moment)
    for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.allclose(one, two), name
    assert held - len(optimizer.state) == (held if reset == "all" else forgotten)


def test_unknown_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="change=some is unknown; accepted: all, shape"):
        Parts(change="some")
    with pytest.raises(ValueError, match="reset=some is unknown; accepted: none, changed, all"):
        Parts(reset="some")
