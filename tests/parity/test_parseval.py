"""Parseval regularisation against the reference (golden README, reg.npz): terms and gradients."""

import re

import pytest
import torch
from torch import Tensor

from fire_core.methods import Net
from fire_core.methods.parseval import Parseval
from tests.parity import golden
from tests.parity.trees import module_from

RTOL = 1e-5
SCALES = [found[1] for key in golden.load("reg") if (found := re.fullmatch(r"parseval_s([\d.]+)\.loss", key))]


def network() -> Net:
    model = module_from(golden.tensors("reg", "param."))
    return Net({"model": model}, {"model": golden.tensors("reg", "init.")})


def compare_gradients(net: Net, expected: dict[str, Tensor], without: str | None = None) -> None:
    for name, gradient in expected.items():
        if name != without:
            got = net.modules["model"].get_parameter(name).grad
            got = torch.zeros_like(gradient) if got is None else got
            torch.testing.assert_close(got, gradient, rtol=0, atol=RTOL * max(float(gradient.abs().max()), 1e-30))


def group_norm(net: Net) -> tuple[str, Tensor]:
    """The one scale on which the reference is at fault: a norm that it does not know."""
    known = set(golden.load("reg")["norm_param_names"].tolist())
    scales = [(n, p) for n, p in net.modules["model"].named_parameters() if p.ndim == 1 and n.endswith("weight")]
    (found,) = [(name, p.detach()) for name, p in scales if name not in known and name.split(".", 1)[-1] not in known]
    return found


@pytest.mark.parametrize("scale", SCALES)
def test_parseval(scale: str) -> None:
    net, s = network(), float(scale)
    penalty = Parseval(coef=1.0, scale=s).penalty(net)
    penalty.backward()
    name, gamma = group_norm(net)
    terms = golden.tensors("reg", f"parseval_s{scale}.term.")
    as_matrix = torch.linalg.matrix_norm(torch.outer(gamma, gamma) - s * torch.eye(len(gamma))) ** 2
    torch.testing.assert_close(terms[name], as_matrix, rtol=RTOL, atol=0)  # what the reference makes of it
    as_norm = (gamma.square() - s).square().sum()
    expected = sum(terms.values()) - terms[name] + as_norm
    torch.testing.assert_close(penalty.detach(), expected, rtol=RTOL, atol=0)
    torch.testing.assert_close(sum(terms.values()), golden.tensors("reg", f"parseval_s{scale}.loss")[""])
    compare_gradients(net, golden.tensors("reg", f"parseval_s{scale}.grad."), without=name)
