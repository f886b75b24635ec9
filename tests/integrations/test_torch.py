"""FireHook in plain loops, in accelerate, with timm's averaged models, and what every integration shares."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from fire_core import FireWarning, fire_
from fire_core.integrations.torch import FireHook
from fire_core.methods.cbp import ContinualBackprop
from fire_core.methods.dash import Dash
from fire_core.methods.fire import Fire
from fire_core.methods.muon import MuonOptimizer
from fire_core.methods.optimizer_reset import OptimizerReset
from fire_core.methods.pi import PlasticityInjection
from fire_core.methods.snp import ShrinkAndPerturb
from fire_core.triggers import At, Drift, EffectiveRank, Every
from tests.integrations.digits import batches, deviation, isometric, network
from tests.weights.test_distributed import start_ranks


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    after: Callable[[int], object] = lambda step: None,
    first: int = 1,
) -> None:
    """Steps on the digits, the same batches each time."""
    for step in range(first, steps + 1):
        x, y = batches()[step % 10]
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        after(step)


def test_it_acts_after_the_right_steps_and_the_optimizer_forgets():
    model, seen, rows = network(), {}, []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    FireHook(optimizer, model, Every(10), solver="exact", total_steps=31, log=lambda *row: rows.append(row))

    def after(step: int) -> None:
        seen[step] = all(isometric(model)), len(optimizer.state)

    train(model, optimizer, 30, after)
    assert [step for step, (fired, _) in seen.items() if fired] == [10, 20, 30]
    assert {states for _, states in seen.values()} == {6, 3}
    assert seen[10][1] == 3, "of the three matrices it is gone, of the biases it is there"
    assert seen[11][1] == 6
    assert [step for step, _ in rows] == [10, 20, 30]
    assert rows[0][1]["fire/dfi_after"] < 1e-6 < rows[0][1]["fire/dfi_before"]
    assert rows[2][1]["fire/firings"] == 3


@pytest.mark.parametrize("scale", ["match_init", "init_norm"])
def test_the_state_travels_with_the_optimizers_and_a_resumed_run_does_not_fire_again(tmp_path, scale):
    def begin() -> tuple[nn.Module, torch.optim.Optimizer, FireHook, list[int]]:
        model, fired = network(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trigger = At([10, 21]) | Drift(above=2e-5, every=4)
        hook = FireHook(optimizer, model, trigger, scale=scale, log=lambda step, _: fired.append(step))
        return model, optimizer, hook, fired

    undisturbed, optimizer, _, whole = begin()
    train(undisturbed, optimizer, 30)
    assert 10 in whole
    assert len(whole) > 2
    for stop in (4, 10):
        model, optimizer, _, fired = begin()
        train(model, optimizer, stop)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "c.pt")
        saved = torch.load(tmp_path / "c.pt", weights_only=True)
        again, optimizer, hook, more = begin()
        with torch.no_grad():
            again[0].weight.mul_(0)  # the initial weights that count are those of the first run
            hook.intervention.init["model"]["0.weight"].mul_(0)
        again.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        train(again, optimizer, 30, first=stop + 1)
        assert fired + more == whole, stop
        assert all(torch.equal(a, b) for a, b in zip(again.parameters(), undisturbed.parameters(), strict=True))


# ---------------------------------------------------------------------------------------------------------- copies


def test_averaged_copies_do_not_blend_the_old_weights_back():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    plain = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
    FireHook(optimizer, model, At(10), solver="exact", copies=[ema, shadow])

    def after(step: int) -> None:
        for average in (ema, plain):
            average.update_parameters(model)

    before = network()[0].bias.detach().clone()
    train(model, optimizer, 14, after)
    assert all(isometric(ema, 0.05))
    assert [deviation(p) < 1e-3 for p in shadow.values() if p.ndim == 2] == [True] * 3
    assert not any(isometric(plain, 0.5)[:2]), "what happens without copies="
    assert torch.equal(shadow["0.bias"], before), "biases, which FIRE leaves alone, stay the copy's own"


def test_a_tied_weight_is_renewed_in_a_copy_under_both_of_its_names():
    """`load_state_dict` of such a copy takes the later name's."""
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"embedding": nn.Embedding(5, 4), "hidden": nn.Linear(4, 4), "head": nn.Linear(4, 5, bias=False)}
    )
    model["head"].weight = model["embedding"].weight
    average = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    before = average["head.weight"].clone()
    FireHook(torch.optim.SGD(model.parameters(), lr=0.1), model, solver="exact", copies=[average]).act()
    assert not torch.equal(before, model["head"].weight)
    for name, tensor in model.state_dict().items():
        assert torch.equal(average[name], tensor), name


def test_an_act_comes_after_the_last_of_several_optimizers():
    torch.manual_seed(0)
    model = network()
    first = torch.optim.Adam(model[0].parameters(), lr=0.1)
    second = torch.optim.Adam([*model[2].parameters(), *model[4].parameters()], lr=0.1)
    FireHook([first, second], model, At(3), solver="exact")
    for _ in range(3):
        model(batches()[0][0]).square().sum().backward()
        first.step()
        second.step()
    assert not first.state.get(model[0].weight)
    assert not second.state.get(model[2].weight), "a step after the act would have made one"
    assert isometric(model, 1e-5)[1]


def test_states_under_ids_are_refused_before_the_act():
    class ById(torch.optim.Optimizer):
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                self.state[id(p)] = {"count": 1}

    model = network()
    optimizer = ById(model.parameters(), {})
    hook = FireHook(optimizer, model, solver="exact")
    optimizer.step()
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(TypeError, match=r"keeps the state of a parameter p under id\(p\)"):
        hook.act()
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


def test_accelerate_saves_and_restores_it(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)

    def begin() -> tuple[nn.Module, torch.optim.Optimizer, list[int]]:
        model, fired = network(), []
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
        FireHook(optimizer, model, At([3, 5]), log=lambda step, _: fired.append(step))
        return model, optimizer, fired

    def run(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        for x, y in batches()[:steps]:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()

    model, optimizer, fired = begin()
    run(model, optimizer, 8)
    assert fired == [3], "four steps of two batches"
    accelerator.save_state(tmp_path)
    accelerator.free_memory()
    model, optimizer, fired = begin()
    accelerator.load_state(tmp_path)
    run(model, optimizer, 4)
    assert fired == [5]
    accelerator.free_memory()


# -------------------------------------------------------------------------------------------------- other methods


def test_other_methods_leave_frozen_and_kept_weights_alone():
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    FireHook(optimizer, model, At(5), method=ShrinkAndPerturb(coef=0.5), keep=["4.*"])
    frozen, before = model[0].weight.clone(), {}

    def after(step: int) -> None:
        if step == 4:
            before["2"], before["4"] = model[2].weight.clone(), model[4].weight.clone()
        if step == 5:
            assert set(optimizer.state) == set(model[4].parameters()), "its state is kept, the others' is gone"
            assert int(optimizer.state[model[4].weight]["step"]) == 5

    train(model, optimizer, 5, after)
    assert torch.equal(model[0].weight, frozen)
    assert (model[2].weight - before["2"]).abs().max() > 0.01
    assert (model[4].weight - before["4"]).abs().max() < 0.005, "one step of Adam"


def test_a_loop_says_itself_when_another_method_acts():
    """It draws as where a trigger fires at this step."""
    ends = []
    for trigger in (None, At(3)):
        torch.manual_seed(0)
        model = network()
        optimizer = torch.optim.AdamW(model.parameters())
        hook = FireHook(optimizer, model, trigger, method=ShrinkAndPerturb(coef=0.6, perturb=0.1), keep="4.*")
        train(model, optimizer, 3)
        if trigger is None:
            hook.act()
        assert set(optimizer.state) == set(model[4].parameters()), "its state is kept, the others' is gone"
        assert [firing.step for firing in hook.intervention.fired] == [3]
        ends.append([p.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_two_acts_at_one_step_draw_other_numbers():
    model = network()
    hook = FireHook(torch.optim.AdamW(model.parameters()), model, method=ShrinkAndPerturb(coef=0.6, perturb=0.1))
    draws = []
    for _ in range(2):
        before = model[0].weight.clone()
        assert str(hook.act()) == "6 weights changed"
        draws.append(model[0].weight - 0.4 * before)
    assert not torch.allclose(*draws)


def test_a_trigger_is_told_of_an_act_of_the_loop():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    hook = FireHook(optimizer, model, Drift(1e9, every=1))
    train(model, optimizer, 2)
    hook.act()
    train(model, optimizer, 1)
    assert hook.intervention.trigger.acted_at == 2


def test_dash_with_data():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), y)

    FireHook(optimizer, model, At(1), method=Dash(), batches=lambda: iter(batches()), loss=loss)
    train(model, optimizer, 1)
    ratio = model[0].weight / network()[0].weight
    assert ratio.min() < 0.5
    assert ratio.max() <= 1 + 1e-6


# ---------------------------------------------------------------------------------------------- what is refused


def make(**options: object) -> FireHook:
    model = network()
    given = {"optimizer": torch.optim.SGD(model.parameters()), "model": model, "trigger": Every(10), **options}
    return FireHook(**given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trigger": 1000}, "trigger must be one of fire_core.triggers, got int"),
        ({"method": Fire}, "method must be an object of a class in fire_core.methods, got <class"),
        ({"method": Dash()}, r"method=Dash needs data: give batches= .* and loss="),
        ({"method": ContinualBackprop()}, "method=ContinualBackprop acts within training"),
        ({"method": MuonOptimizer()}, "method=MuonOptimizer chooses the optimizer, which here is given"),
        ({"method": PlasticityInjection()}, "method=PlasticityInjection puts new modules into the network"),
        ({"method": Fire(), "iterations": 5}, r"options of fire_ \(iterations\) go with method=None"),
        ({"copies": [nn.Linear(3, 4)]}, "copies: a Linear has no weight with a name and shape of the model's"),
        ({"copies": network()}, r"^copies=Sequential: give a list, copies=\[\.\.\.\]$"),
        ({"layout": "conv"}, "nothing would be projected: layout='conv' leaves it alone"),
        ({"model": network()}, "the optimizers hold none of the weights of model"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_step(options, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        make(**options)
    assert "\n" not in str(caught.value)


def test_numbers_that_were_not_measured_are_not_logged():
    model, rows = network(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    FireHook(optimizer, model, Every(1), measure=False, log=lambda *row: rows.append(row))
    train(model, optimizer, 1)
    ((_, numbers),) = rows
    assert numbers["fire/firings"] == 1
    assert not [name for name in numbers if "dfi" in name or "sfe" in name]


def test_the_hook_and_the_method_act_alike_where_directions_are_lost():
    """Null spaces and zero matrices are filled from the initial weights by both."""
    results = []
    for options in ({"solver": "exact"}, {"method": Fire("exact")}):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        FireHook(optimizer, model, Every(1), **options)
        with torch.no_grad():
            model[0].weight[0] = 0
            model[-1].weight.zero_()
        train(model, optimizer, 1)
        results.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(
    ("options", "stores"),
    [
        ({}, False),
        ({"solver": "exact"}, True),
        ({"blend": 0.5}, False),
        ({"scale": "match_init"}, True),
        ({"method": OptimizerReset()}, False),
        ({"method": Fire()}, True),
        ({"method": Dash(), "batches": lambda: iter(batches()), "loss": F.cross_entropy}, False),
    ],
)
def test_a_copy_of_the_initial_weights_is_stored_for_methods_that_use_it(options, stores):
    model = network()
    hook = FireHook(torch.optim.SGD(model.parameters(), lr=0.1), model, Every(1), **options)
    assert (hook.intervention.init is not None) == stores


def test_a_compiled_model_needs_a_probe():
    """Its own passes run no hooks that came later; a probe given before is kept."""
    model, fired = network(), []
    compiled = torch.compile(model, backend="eager")
    compiled(torch.zeros(2, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trigger = EffectiveRank(below=1.0, every=4)
    trigger.start(model, probe=lambda: model(batches()[0][0]))
    hook = FireHook(optimizer, compiled, trigger, log=lambda step, _: fired.append(step))
    train(compiled, optimizer, 6)
    assert fired == [4]
    hook.remove()
    FireHook(optimizer, compiled, EffectiveRank(below=1.0, every=4))
    with pytest.raises(ValueError, match="EffectiveRank: no training pass was seen"):
        train(compiled, optimizer, 12)


@pytest.mark.slow
@pytest.mark.filterwarnings(f"ignore::{FireWarning.__module__}.{FireWarning.__name__}")
def test_two_ranks_agree(tmp_path, zygote):
    start_ranks(zygote, "tests.integrations.ranks", 2, tmp_path)


def test_a_run_that_goes_back_to_before_an_action_acts_again():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    hook = FireHook(optimizer, model, At(5))
    train(model, optimizer, 3)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, 5, first=4)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    train(model, optimizer, 7, first=4)
    assert [firing.step for firing in hook.intervention.fired] == [5]
    assert hook.step == 7


def test_several_hooks_of_one_optimizer_keep_a_state_each():
    def begin() -> tuple[nn.Module, torch.optim.Optimizer, list[FireHook]]:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return model, optimizer, [FireHook(optimizer, model, trigger) for trigger in (Every(2), Every(3), At(4))]

    model, optimizer, hooks = begin()
    train(model, optimizer, 7)
    saved = [hook.state_dict() for hook in hooks]
    again, new_optimizer, new_hooks = begin()
    again.load_state_dict(model.state_dict())
    new_optimizer.load_state_dict(optimizer.state_dict())
    assert [hook.state_dict() for hook in new_hooks] == saved
    assert [[firing.step for firing in hook.intervention.fired] for hook in new_hooks] == [[2, 4, 6], [3, 6], [4]]


@pytest.mark.filterwarnings("ignore::fire_core.FireWarning")  # Lookahead's counter belongs to all parameters
@pytest.mark.parametrize("scheduler_first", [True, False])
def test_a_scheduler_and_a_wrapper(scheduler_first):
    """The scheduler wraps the wrapper's step, which the hook wraps too."""
    lookahead = pytest.importorskip("timm.optim").Lookahead
    model = network()
    optimizer = lookahead(torch.optim.AdamW(model.parameters(), lr=1e-3), k=3)
    makers = [
        lambda: torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=5),
        lambda: FireHook(optimizer, model, At(4), solver="exact"),
    ]
    made = [make() for make in (makers if scheduler_first else makers[::-1])]
    scheduler, hook = made if scheduler_first else made[::-1]
    seen = []
    train(model, optimizer, 5, lambda step: (seen.append(all(isometric(model))), scheduler.step()))
    assert seen == [False] * 3 + [True, False]
    hook.remove()
    train(model, optimizer, 3, lambda step: scheduler.step())
    assert hook.step == 5
    assert scheduler.last_epoch == 8


@pytest.mark.parametrize("in_two_steps", [True, False])
def test_the_two_steps_of_sam(in_two_steps):
    """Sharpness-aware minimisation is one `step` with a closure, or `first_step` and `second_step`."""
    sam = pytest.importorskip("pytorch_optimizer").SAM

    def run(with_hook: bool) -> list[Tensor]:
        model, (x, y) = network(), batches()[0]
        optimizer = sam(model.parameters(), base_optimizer=torch.optim.SGD, lr=0.1, momentum=0.9)
        hook = FireHook(optimizer, model, At(3)) if with_hook else None

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        for step in range(1, 6):
            closure()
            if in_two_steps:
                optimizer.first_step(zero_grad=True)
                closure()
                optimizer.second_step(zero_grad=True)
            else:
                optimizer.step(closure)
            if hook is None and step == 3:
                fire_(model, optimizer=optimizer)
        assert hook is None or hook.step == 5
        return list(model.parameters())

    assert all(torch.equal(a, b) for a, b in zip(run(True), run(False), strict=True))


@pytest.mark.filterwarnings("ignore::fire_core.FireWarning")
def test_a_wrapper_without_state_hooks_saves_them_with_the_inner_optimizer():
    lookahead = pytest.importorskip("pytorch_optimizer").Lookahead
    steps = []
    for state in (None, "saved"):
        model = network()
        optimizer = lookahead(torch.optim.AdamW(model.parameters(), lr=1e-3), k=3)
        hook = FireHook(optimizer, model, At(4))
        if state is None:
            train(model, optimizer, 6)
            saved = optimizer.state_dict()
        else:
            optimizer.load_state_dict(saved)
        steps.append((hook.step, hook.intervention.firings))
    assert steps == [(6, 1), (6, 1)]
