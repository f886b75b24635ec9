"""What fire_ and shrink_and_perturb_ refuse or leave alone: one clear line, and nothing is changed."""

import copy
import math

import pytest
import torch
from torch import nn

from fire_core import FireWarning, dfi, fire_, newton_schulz, polar_factor, sfe, shrink_and_perturb_
from fire_core.weights.layout import resolve


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4))


@pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated
@pytest.mark.parametrize("call", [fire_, lambda model: shrink_and_perturb_(model, {})], ids=["fire_", "perturb"])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: network().state_dict(), "expected a module .* got OrderedDict: load it into its model first"),
        (lambda: torch.eye(3), "got Tensor: load it"),
        (lambda: [network()], "expected a module .* got list"),
        (lambda: torch.jit.trace(network(), torch.zeros(1, 6)), "TorchScript module: call it on the module that"),
        (lambda: torch.export.export(network(), (torch.zeros(1, 6),)), "got ExportedProgram"),
        (lambda: torch.export.export(network(), (torch.zeros(1, 6),)).module(), "exported program, without its layers"),
    ],
)
def test_what_is_no_module_with_layers(call, make, message):
    with pytest.raises(TypeError, match=message):
        call(make())


def test_parameters_in_one_place_of_memory_are_refused_and_tied_ones_are_not():
    model = network()
    model[0].weight.data = model[2].weight.data.new_ones(6, 1).expand(6, 6)
    with pytest.raises(ValueError, match=r"0\.weight is expanded"):
        fire_(model)
    model = nn.Sequential(nn.Embedding(6, 6), nn.Linear(6, 6, bias=False))
    model[1].weight.data = model[0].weight.data
    with pytest.raises(ValueError, match=r"1\.weight and 0\.weight are two tensors in the same memory"):
        fire_(model)
    model[1].weight = model[0].weight
    fire_(model, include="1.weight")


def test_a_symbolically_traced_module_keeps_its_layers():
    report = fire_(torch.fx.symbolic_trace(network()))
    assert [row.name for row in report] == ["0.weight", "2.weight"]


def test_meta_complex_and_sparse_weights_are_named():
    with pytest.raises(ValueError, match=r"0\.weight is on the meta device and holds no numbers"):
        fire_(network().to("meta"))
    model = network()
    model[2] = nn.Linear(6, 4, dtype=torch.complex64)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"2\.weight is complex, .* exclude='2\.weight'"):
        fire_(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [row.name for row in fire_(model, exclude="2.weight")] == ["0.weight"]
    model[2] = nn.Linear(6, 4)
    model[2].weight = nn.Parameter(model[2].weight.detach().to_sparse())
    with pytest.raises(ValueError, match=r"2\.weight is sparse"):
        fire_(model)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2])
def test_integer_and_eight_bit_weights_are_kept_and_named(dtype):
    model = network()
    model[0].weight = nn.Parameter((model[0].weight.detach() * 100).to(dtype), requires_grad=False)
    before = model[0].weight.clone()
    report = fire_(model)
    assert torch.equal(model[0].weight.view(torch.uint8), before.view(torch.uint8))
    assert [row.name for row in report] == ["2.weight"]
    assert str(dtype).removeprefix("torch.") in report.kept["0.weight"].reason
    with pytest.raises(ValueError, match=r"0\.weight"):
        fire_(model, include="0.weight", trainable_only=False)
    with pytest.raises(ValueError, match=r"0\.weight is torch\..*: only floating-point weights can be mixed"):
        shrink_and_perturb_(model, copy.deepcopy(model.state_dict()), 0.5)


def test_polar_functions_refuse_vectors_complex_and_integer_tensors():
    for function in (polar_factor, newton_schulz):
        with pytest.raises(ValueError, match=r"shape \(3,\) holds no matrix"):
            function(torch.ones(3))
        with pytest.raises(ValueError, match=r"torch\.complex64 is not supported"):
            function(torch.eye(3, dtype=torch.complex64))
        with pytest.raises(ValueError, match=r"torch\.int64 is not supported"):
            function(torch.ones(3, 3, dtype=torch.int64))
    for measure in (dfi, lambda W: sfe(W, W)):
        with pytest.raises(ValueError, match=r"torch\.complex64 is not supported"):
            measure(torch.eye(3, dtype=torch.complex64))


@pytest.mark.parametrize("wrap", [lambda m: m, torch.compile], ids=["plain", "compiled"])
def test_init_that_is_the_models_own_memory(wrap):
    model = wrap(network())
    before = copy.deepcopy(model.state_dict())
    for call in (
        lambda init: fire_(model, init=init),
        lambda init: fire_(model, layout="dqn", init=init),
        lambda init: fire_(model, scale="match_init", init=init),
        lambda init: shrink_and_perturb_(model, init, 0.5),
    ):
        for own in (model.state_dict(), dict(model.named_parameters())):
            with pytest.raises(ValueError, match=r"init\['0\.(weight|bias)'\] is the model's own weight.*deepcopy"):
                call(own)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(TypeError, match="init is a list"):
        fire_(model, init=[torch.eye(2)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": "svd"}, "^solver=svd is unknown; accepted: newton_schulz, exact, muon$"),
        ({"solver": ["exact"]}, "is unknown; accepted: newton_schulz"),
        ({"norm_init": "fro"}, "norm_init=fro .*frobenius"),
        ({"iterations": "10"}, "^iterations='10': must be a whole number"),
        ({"iterations": -1}, "iterations=-1: must be a whole number"),
        ({"iterations": 2.5}, r"iterations=2\.5: must be a whole number"),
        ({"iterations": 0}, "iterations=0: must be at least 1"),
        ({"solver": "muon", "iterations": 0}, "iterations=0: must be at least 1"),
        ({"solver": "exact", "iterations": 3}, "iterations=3 has no effect with solver=exact"),
        ({"solver": "exact", "norm_init": "spectral"}, "norm_init=spectral has no effect with solver=exact"),
        ({"solver": "muon", "norm_init": "spectral"}, "norm_init=spectral has no effect with solver=muon"),
        ({"tol": "a"}, "^tol='a': must be a number, 0 or more, or None$"),
        ({"tol": -1.0}, "^tol=-1.0: must be 0 or more, or None$"),
        ({"tol": 1.0, "solver": "exact"}, "tol=1.0 needs solver=newton_schulz"),
        ({"seed": "a"}, "^seed='a': must be a whole number"),
        ({"seed": 2**64}, "^seed=18446744073709551616: must be a whole number of at most 64 bits$"),
        ({"scale": "modlar"}, "scale=modlar .*modular, orthogonal"),
        ({"scale": None}, "^scale=None is unknown; accepted: modular"),
        ({"min_norm": "a"}, "^min_norm='a': must be a number, 0 or more$"),
        ({"min_norm": float("nan")}, "^min_norm=nan: must be 0 or more$"),
        ({"blend": None}, "^blend=None: must be a number, between 0 and 1$"),
        ({"blend": 1.5}, "^blend=1.5: must be between 0 and 1$"),
        ({"blend": True}, "^blend=True: must be a number"),
        ({"variance_factor": 2.0}, "variance_factor=2.0 needs scale=variance_factor, not scale=modular"),
        ({"scale": "variance_factor", "variance_factor": "2"}, "^variance_factor='2': must be a number"),
        ({"scale": "variance_factor", "variance_factor": float("inf")}, "^variance_factor=inf: must be finite"),
        ({"scale": "variance_factor", "variance_factor": 0.0}, r"variance_factor=0\.0"),
        ({"layout": "dqn"}, r"init has no '0\.weight'"),
        ({"layout": "dqn", "init": {"0.weight": torch.zeros(2, 2)}}, r"init\['0\.weight'\] has shape \(2, 2\)"),
        ({"blocks": {"qkv": (3, 3)}}, "blocks: no parameter matches 'qkv'; the first are 0.weight, 0.bias, 2.weight"),
        ({"exclude": network()}, "exclude: no parameter matches the Sequential given$"),
    ],
)
def test_an_option_that_is_not_accepted_is_one_line(options, message):
    model = network()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message) as caught:
        fire_(model, **options)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("coef", [None, "a", -0.1, 1.5, float("nan")])
def test_the_share_of_a_perturbation_is_a_number_from_0_to_1(coef):
    model = network()
    with pytest.raises(ValueError, match=rf"^coef={coef!r}: must be .*between 0 and 1$"):
        shrink_and_perturb_(model, copy.deepcopy(model.state_dict()), coef)


# ------------------------------------------------------------------------------------------------------ zero matrices


@pytest.mark.parametrize("solver", ["newton_schulz", "exact", "muon"])
@pytest.mark.parametrize("measure", [True, False])
@pytest.mark.parametrize("init", ["none", "zero"])
def test_a_zero_matrix_stays_zero_and_is_named(solver, measure, init):
    model = network()
    with torch.no_grad():
        model[2].weight.zero_()
    start = copy.deepcopy(model.state_dict()) if init == "zero" else None
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        model[2].weight.zero_()
    with pytest.warns(FireWarning, match=r"stay zero: 2\.weight; solver=.exact. with other values"):
        report = fire_(model, solver, init=start, measure=measure, optimizer=optimizer)
    assert not model[2].weight.any()
    assert [(row.action, row.zeros, row.completed) for row in report] == [("project", 0, 0), ("skip", 1, 0)]
    assert report.optimizer_states_reset == 1
    assert model[2].weight in optimizer.state


def test_an_init_that_cannot_be_used_changes_nothing():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    with torch.no_grad():
        model[1].weight.zero_()
    before, start = copy.deepcopy(model.state_dict()), copy.deepcopy(model.state_dict())
    for bad, message in ((torch.zeros(2, 2), "has shape"), (torch.full((4, 8), math.nan), r"NaN or Inf in init\['1.w")):
        start["1.weight"] = bad
        for options in ({"solver": "exact"}, {"scale": "match_init"}):
            with pytest.raises(ValueError, match=message):
                fire_(model, init=start, **options)
    with pytest.raises(ValueError, match="another model"):
        fire_(model, layout=resolve(copy.deepcopy(model)))
    with pytest.raises(ValueError, match="make a layout"):
        fire_(model, layout=resolve(model), strict=True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_shrink_and_perturb_takes_parameters_alone_and_restores_what_has_diverged():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    start = copy.deepcopy(model.state_dict())
    for exclude in ("1", model[1], model[1].weight, [model[1]]):
        with pytest.raises(TypeError, match="list of parameters"):
            shrink_and_perturb_(model, start, exclude=exclude)
    with torch.no_grad():
        model[0].weight.fill_(math.nan)
    shrink_and_perturb_(model, start, coef=1.0)
    assert all(torch.equal(value, start[name]) for name, value in model.state_dict().items())
