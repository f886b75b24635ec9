"""Parseval regularisation against the authors' code (tests/golden/reg.npz): terms and gradients."""

import re
from collections.abc import Collection

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


def compare_gradients(net: Net, expected: dict[str, Tensor], without: Collection[str] = ()) -> None:
    assert expected.keys() == dict(net.modules["model"].named_parameters()).keys()
    for name, gradient in expected.items():
        if name not in without:
            got = net.modules["model"].get_parameter(name).grad
            got = torch.zeros_like(gradient) if got is None else got
            torch.testing.assert_close(got, gradient, rtol=0, atol=RTOL * max(float(gradient.abs().max()), 1e-30))


def group_norms(net: Net) -> dict[str, Tensor]:
    """The scales on which the reference is at fault: norms that it does not know."""
    parameters = dict(net.modules["model"].named_parameters())
    known = set(golden.load("reg")["norm_param_names"].tolist())
    assert known <= {name for name, p in parameters.items() if p.ndim == 1}
    scales = {n: p.detach() for n, p in parameters.items() if p.ndim == 1 and n.endswith("weight") and n not in known}
    return {n: p.requires_grad_() for n, p in scales.items()}


@pytest.mark.parametrize("scale", SCALES)
def test_parseval(scale: str) -> None:
    net, s = network(), float(scale)
    penalty = Parseval(coef=1.0, scale=s, variant="fire_paper").penalty(net)
    penalty.backward()
    terms, gradients = (golden.tensors("reg", f"parseval_s{scale}.{part}.") for part in ("term", "grad"))
    expected = total = sum(terms.values())
    unknown = group_norms(net)
    for name, gamma in unknown.items():
        as_matrix = torch.linalg.matrix_norm(torch.outer(gamma, gamma) - s * torch.eye(len(gamma))) ** 2
        as_matrix.backward()
        torch.testing.assert_close(terms[name], as_matrix.detach(), rtol=RTOL, atol=0)  # what the reference makes of it
        torch.testing.assert_close(gradients[name], gamma.grad, rtol=RTOL, atol=1e-6)
        expected = expected - terms[name] + (gamma.detach().square() - s).square().sum()
    torch.testing.assert_close(penalty.detach(), expected, rtol=RTOL, atol=0)
    torch.testing.assert_close(total, golden.tensors("reg", f"parseval_s{scale}.loss")[""], rtol=RTOL, atol=0)
    compare_gradients(net, gradients, without=unknown)


@pytest.mark.skipif("parseval_effective_s1.loss" not in golden.load("reg"), reason="not in the golden data")
def test_of_rows_of_unit_norm() -> None:
    """The reference's `effective` variant: the same penalty of normalised rows."""
    net = network()
    parameters = dict(net.modules["model"].named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            if name.endswith("weight") and parameter.ndim > 1:
                parameter.copy_(torch.nn.functional.normalize(parameter.flatten(1)).view_as(parameter))
    expected = golden.tensors("reg", "parseval_effective_s1.loss")[""]
    for gamma in group_norms(net).values():  # to the reference a matrix (n, 1), whose rows become 1 or -1
        expected = expected - len(gamma) * (len(gamma) - 1) + (gamma.detach().square() - 1).square().sum()
    torch.testing.assert_close(
        Parseval(coef=1.0, variant="fire_paper").penalty(net).detach(), expected, rtol=RTOL, atol=0
    )
