"""check_muon on groups as public scripts build them, each as it is and with each error planted; its lines mend them."""

import copy
import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fire_core import (
    MuonReport,
    SplitMuon,
    check_muon,
    gram_newton_schulz_groups,
    matrices,
    muon_groups,
    muonium_groups,
)
from fire_core.methods.muon import CombinedOptimizer
from tests.muon.test_optimizer import vit
from tests.networks import GPT, GPTMLP, SeparateAttention, UnevenFused

Pick = Callable[[nn.Module, str, Tensor], bool]  # whether a script gives a parameter to Muon
Found = set[tuple[str, str]]  # (kind, name) of errors


@pytest.fixture(autouse=True)
def _eagerly() -> Iterator[None]:
    with torch.compiler.set_stance("force_eager"):
        yield


class Block(nn.Module):
    """A block without fused weights."""

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.attn, self.mlp, self.norm = SeparateAttention(dim), GPTMLP(dim, bias=False), nn.LayerNorm(dim)


class Plain(nn.Module):
    """A language model of such blocks, with a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.lm_head = nn.Linear(8, 20, bias=False)


def of_transformers(name: str) -> nn.Module:
    from tests.zoo import test_transformers as zoo

    kind, settings, _ = zoo.FAMILIES[name]
    return zoo.build(kind, settings | {"attn_implementation": "eager"})


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8, 4)
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "nanogpt": GPT,
    "plain": Plain,
    "vit": vit,
    "mlp": mlp,
    "convnet": convnet,
    **{name: lambda name=name: of_transformers(name) for name in ("llama", "gpt2", "phi3", "gpt_neox", "qwen3_moe")},
}


def by_names(model: nn.Module, name: str, p: Tensor) -> bool:
    """As scripts around nanoGPT do."""
    return p.ndim >= 2 and not any(word in name for word in ("wte", "wpe", "embed", "head"))


def in_blocks(model: nn.Module, name: str, p: Tensor) -> bool:
    """As modded-nanogpt does: what lies in the list of blocks."""
    return p.ndim >= 2 and any(part.isdigit() for part in name.split("."))


def by_ndim(model: nn.Module, name: str, p: Tensor) -> bool:
    return p.ndim == 2


def by_type(model: nn.Module, name: str, p: Tensor) -> bool:
    """All weights of linear layers and convolutions, a tied head's too."""
    return any(module.weight is p for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d))


C_ATTN: Found = {("fused", f"transformer.h.{i}.attn.c_attn.weight") for i in range(2)}
GPT2: Found = {
    ("fused", "transformer.h.0.attn.c_attn.weight"),
    ("transposed", "transformer.h.0.mlp.c_fc.weight"),
    ("transposed", "transformer.h.0.mlp.c_proj.weight"),
}
TABLES: Found = {("outside", "transformer.wte.weight"), ("outside", "transformer.wpe.weight")}
MLP = "model.layers.0.mlp"
EXPERTS: Found = {("fused", f"{MLP}.experts.gate_up_proj"), ("outside", f"{MLP}.gate.weight")}
ENDS: Found = {("outside", "model.embed_tokens.weight"), ("outside", "lm_head.weight")}
PHI3: Found = {("fused", f"{MLP}.gate_up_proj.weight"), ("fused", "model.layers.0.self_attn.qkv_proj.weight")}
VIT: Found = {("fused", "blocks.0.attn.qkv.weight"), ("outside", "head.weight")}
PATCHES: Found = {("outside", "patch_embed.proj.weight")}

SCRIPTS: dict[str, tuple[str, Pick, Found]] = {
    "nanogpt, by names": ("nanogpt", by_names, C_ATTN),
    "nanogpt, its blocks": ("nanogpt", in_blocks, C_ATTN),
    "nanogpt, by ndim, tied head": ("nanogpt", by_ndim, C_ATTN | TABLES),
    "nanogpt, by type, tied head": ("nanogpt", by_type, C_ATTN | {("outside", "transformer.wte.weight")}),
    "plain, by names": ("plain", by_names, set()),
    "plain, its blocks": ("plain", in_blocks, set()),
    "plain, by type": ("plain", by_type, {("outside", "lm_head.weight")}),
    "transformers' Llama, by names": ("llama", by_names, set()),
    "transformers' Llama, by ndim": ("llama", by_ndim, ENDS),
    "transformers' GPT-2, by names": ("gpt2", by_names, GPT2),
    "transformers' GPT-2, by ndim, tied head": ("gpt2", by_ndim, GPT2 | TABLES),
    "transformers' Phi-3, by names": ("phi3", by_names, PHI3),
    "transformers' GPT-NeoX, by type": (
        "gpt_neox",
        by_type,
        {("fused", "gpt_neox.layers.0.attention.query_key_value.weight"), ("outside", "lm_head.weight")},
    ),
    "transformers' Qwen 3 MoE, by ndim": ("qwen3_moe", by_ndim, ENDS | {("outside", f"{MLP}.gate.weight")}),
    "timm's ViT, by type": ("vit", by_type, VIT | PATCHES),
    "timm's ViT, by ndim": ("vit", by_ndim, VIT),
    "a perceptron, by ndim": ("mlp", by_ndim, {("outside", "0.weight"), ("outside", "4.weight")}),
}


def groups_of(model: nn.Module, pick: Pick) -> list[dict[str, Any]]:
    """Groups that say use_muon, as many optimizers want them."""
    chosen = {name: pick(model, name, p) for name, p in model.named_parameters()}
    named = dict(model.named_parameters())
    return [
        {"params": [p for name, p in named.items() if chosen[name] == is_muon], "use_muon": is_muon}
        for is_muon in (True, False)
    ]


def errors(report: MuonReport) -> Found:
    return {(problem.kind, problem.name) for problem in report.errors}


def torchs(groups: list[dict[str, Any]], adam_lr: float = 3e-4) -> list[torch.optim.Optimizer]:
    muon, rest = (group["params"] for group in groups)
    return [torch.optim.Muon(muon, lr=0.02), torch.optim.AdamW(rest, lr=adam_lr)]


def by_algorithm(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As dion and muonium have it: Muon's group may say nothing."""
    return [{"params": groups[0]["params"]}, {"params": groups[1]["params"], "algorithm": "adamw"}]


class OneOptimizer(torch.optim.Optimizer):
    """Groups with use_muon, as several public files have it; stacks one by one, kernels flattened, rates by rows."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.02})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    update = self.direction(p.grad) if group["use_muon"] else p.grad.sign()
                    p.add_(update.reshape(p.shape), alpha=-group["lr"])

    def direction(self, grad: Tensor) -> Tensor:
        """The polar factor, of a stack (..., m, n) those of its matrices."""
        matrix = grad.flatten(1) if grad.ndim == 4 else grad
        return polar(matrix) * max(1, matrix.shape[-2] / matrix.shape[-1]) ** 0.5


class Flattening(OneOptimizer):
    """Takes every parameter as (first dimension, rest), and scales by the root mean square."""

    def direction(self, grad: Tensor) -> Tensor:
        matrix = grad.flatten(1)
        return polar(matrix) * max(matrix.shape) ** 0.5


def polar(matrix: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    return left @ right


class InStates(torch.optim.Optimizer):
    """Writes into the state of each parameter whether Muon trains it, as Moonlight's example does."""

    def __init__(self, muon: list[Tensor], rest: list[Tensor]) -> None:
        super().__init__([*muon, *rest], {"lr": 0.02})
        for p in muon:
            self.state[p]["use_muon"] = True
        for p in rest:
            self.state[p]["use_muon"] = False


FORMS: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "torch's two optimizers": torchs,
    "optimizers by name": lambda groups: dict(zip(("muon", "adam"), torchs(groups), strict=True)),
    "groups with use_muon": lambda groups: groups,
    "groups with algorithm": by_algorithm,
    "one optimizer": OneOptimizer,
    "in states": lambda groups: InStates(groups[0]["params"], groups[1]["params"]),
    "a combined optimizer": lambda groups: CombinedOptimizer(*torchs(groups)),
}


MORE_DIMENSIONS = ("transformers' Qwen 3 MoE, by ndim", "timm's ViT, by type")  # than torch.optim.Muon takes
SOME = ("nanogpt, by ndim, tied head", "plain, by names", "plain, by type", "a perceptron, by ndim")
FORMED = [(script, "one optimizer" if script in MORE_DIMENSIONS else "torch's two optimizers") for script in SCRIPTS]


@pytest.mark.parametrize(("script", "form"), [*FORMED, *((s, form) for s in SOME for form in FORMS if form[0] != "t")])
def test_groups_of_public_scripts_as_they_are(script: str, form: str) -> None:
    name, pick, known = SCRIPTS[script]
    model = MODELS[name]()
    report = check_muon(model, FORMS[form](groups_of(model, pick)))
    assert errors(report) == known, str(report)
    assert report.ok == bool(report) == (not known)


# ------------------------------------------------------------------------------------------------------------ by hand


def move(groups: list[dict[str, Any]], p: Tensor, source: int | None, target: int | None) -> None:
    if source is not None:
        groups[source]["params"] = [q for q in groups[source]["params"] if q is not p]
    if target is not None:
        groups[target]["params"].append(p)


PLANTED: dict[str, tuple[str, int | None, int | None, Found]] = {
    "a head": ("lm_head.weight", 1, 0, {("outside", "lm_head.weight")}),
    "an embedding": ("embed.weight", 1, 0, {("outside", "embed.weight")}),
    "a vector": ("blocks.1.norm.weight", 1, 0, {("vector", "blocks.1.norm.weight")}),
    "a matrix in no group": ("blocks.0.attn.c_q.weight", 0, None, {("missing", "blocks.0.attn.c_q.weight")}),
    "a vector in no group": ("blocks.0.norm.bias", 1, None, {("missing", "blocks.0.norm.bias")}),
    "a matrix in two groups": ("blocks.0.attn.c_q.weight", None, 1, {("twice", "blocks.0.attn.c_q.weight")}),
    "a vector in one group twice": ("blocks.0.norm.bias", None, 1, {("twice", "blocks.0.norm.bias")}),
    "a head in two groups": ("lm_head.weight", None, 0, {("twice", "lm_head.weight"), ("outside", "lm_head.weight")}),
    "nothing": ("blocks.0.attn.c_q.weight", 0, 1, set()),  # a note
}


@pytest.mark.parametrize("form", ["groups with use_muon", "groups with algorithm"])
@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_error_is_found_and_its_line_mends_it(planted: str, form: str) -> None:
    name, source, target, known = PLANTED[planted]
    model = Plain()
    groups = groups_of(model, by_names)
    move(groups, model.get_parameter(name), source, target)
    groups = FORMS[form](groups)
    report = check_muon(model, groups)
    assert errors(report) == known, str(report)
    assert bool(report.notes) == (planted == "nothing")
    for problem in report.problems:
        assert check_muon(model, mended(problem.line, model, groups=copied(groups))).ok or len(known) > 1
    namespace: Any = groups
    for problem in report.problems:  # one after the other they mend all
        namespace = mended(problem.line, model, groups=namespace)
    assert check_muon(model, namespace).problems == []


def copied(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [group | {"params": [*group["params"]]} for group in groups]


def mended(line: str, model: nn.Module, **given: Any) -> Any:
    """What there is to train with after a line of the report, run as it stands."""
    names = {"model": model, "muon_groups": muon_groups, "SplitMuon": SplitMuon, "torch": torch} | given
    names |= {"muonium_groups": muonium_groups, "gram_newton_schulz_groups": gram_newton_schulz_groups}
    names |= {"check_muon": check_muon}
    before = {key: names[key] for key in given}
    exec(line, names)
    for key in ("optimizers", "optimizer", "groups"):
        if key in names and names[key] is not before.get(key):
            return names[key]
    return next(iter(given.values()))


@pytest.mark.parametrize(
    ("script", "form"),
    [*FORMED, *((script, form) for script in SOME for form in ("groups with use_muon", "one optimizer"))],
)
def test_the_lines_mend_what_public_scripts_have_wrong(script: str, form: str) -> None:
    name, pick, _ = SCRIPTS[script]
    model = MODELS[name]()
    given = FORMS[form](groups_of(model, pick))
    key = {"torch's two optimizers": "optimizers", "groups with use_muon": "groups", "one optimizer": "optimizer"}[form]
    report = check_muon(model, given)
    for problem in report.errors:
        again = check_muon(model, mended(problem.line, model, **{key: given}))
        assert (problem.kind, problem.name) not in errors(again), problem


def test_what_muon_groups_gives_is_right() -> None:
    for name, build in MODELS.items():
        model = build()
        muon, adam = muon_groups(model)
        for given in ((muon, adam), (SplitMuon(muon), torch.optim.AdamW(adam))):
            report = check_muon(model, given)
            assert report.problems == [], f"{name}: {report}"
        assert len(report.muon) == sum(len(group["params"]) for group in muon)


def test_what_other_packages_get_is_right() -> None:
    muonium, gram = (pytest.importorskip(name) for name in ("muonium", "gram_newton_schulz"))
    for name in ("nanogpt", "phi3", "convnet", "llama"):
        model = MODELS[name]()
        assert check_muon(model, muonium.Muon(muonium_groups(model), lr=0.02)).problems == []
        muon, adam = gram_newton_schulz_groups(model)
        optimizer = gram.Muon(muon, lr=0.02, ns_use_kernels=False, scalar_optimizer=torch.optim.AdamW(adam))
        assert check_muon(model, optimizer).problems == [], name


# -------------------------------------------------------------------------------------------------- cuts and behaviour


@pytest.mark.parametrize(
    ("sizes", "kind"), [((12, 12, 12), None), ((18, 18), "cut"), ((12, 24), "cut"), (None, "fused"), ((36,), "cut")]
)
def test_split_sizes_are_compared_with_the_blocks(sizes: tuple[int, ...] | None, kind: str | None) -> None:
    model = GPT()
    muon, adam = muon_groups(model)
    groups = [{"params": g["params"], "use_muon": True} for g in muon]
    for group, g in zip(groups, muon, strict=True):
        if len(g["cuts"]) > 1:
            group["split_sizes"] = sizes
    found = errors(check_muon(model, [*groups, {"params": adam, "use_muon": False}]))
    assert found == ({(kind, name) for _, name in C_ATTN} if kind else set())


SPLITS: dict[str, tuple[Callable[[Tensor], list[Tensor]], str | None]] = {
    "rows": (lambda w: [*w.chunk(3)], None),
    "in another order": (lambda w: [*w.chunk(3)][::-1], None),
    "columns": (lambda w: [*w.chunk(3, dim=1)], "cut"),
    "every third row": (lambda w: [w[i::3] for i in range(3)], "cut"),
    "not at all": (lambda w: [w], "fused"),
    "square ones, transposed": (lambda w: [part.T for part in w.chunk(3)], None),
    "in other heights": (lambda w: [*w.split((10, 14, 12))], "cut"),
    "one row short": (lambda w: [w[:12], w[12:24], w[24:35]], "cut"),
    "an error": (lambda w: [w[99]], "cut"),
}


@pytest.mark.parametrize("split", SPLITS)
def test_a_function_that_cuts_is_tried_on_positions(split: str) -> None:
    function, kind = SPLITS[split]
    model = GPT()
    muon, adam = muon_groups(model)
    groups = [{"params": g["params"], "param_split_fn": function if len(g["cuts"]) > 1 else None} for g in muon]
    found = errors(check_muon(model, [g | {"use_muon": True} for g in groups] + [{"params": adam, "use_muon": False}]))
    assert found == ({(kind, name) for _, name in C_ATTN} if kind else set())


def test_cuts_of_another_weight_are_an_error_and_heads_a_note() -> None:
    model = GPT()
    muon, adam = muon_groups(model)
    attention = of_transformers("phi3")
    report = check_muon(attention, muon_groups(attention, layout="heads"))
    assert report.ok
    assert {problem.kind for problem in report.notes} == {"heads"}
    for group in muon:
        if len(group["cuts"]) > 1:
            group["cuts"] = tuple((kind, (a + 1, b + 1), *rest) for kind, (a, b), *rest in group["cuts"])
    assert errors(check_muon(model, (muon, adam))) == {("cut", name) for _, name in C_ATTN}
    whole = SplitMuon([p for group in muon for p in group["params"]])
    assert errors(check_muon(model, (whole, torch.optim.AdamW(adam)))) == C_ATTN


def experts(one: type[OneOptimizer] | None) -> tuple[nn.Module, Any]:
    model = of_transformers("qwen3_moe")
    groups = groups_of(model, lambda model, name, p: by_names(model, name, p) and "mlp.gate." not in name)
    return model, groups if one is None else one(groups)


@pytest.mark.parametrize(
    ("one", "says"),
    [(OneOptimizer, None), (Flattening, "as one matrix"), (None, "give the optimizer itself")],
)
def test_a_stack_of_experts_is_tried_out(one: type[OneOptimizer] | None, says: str | None) -> None:
    model, given = experts(one)
    report = check_muon(model, given)
    stack = {("stack", f"{MLP}.experts.down_proj")} if says else set()
    assert errors(report) == stack | {("fused", f"{MLP}.experts.gate_up_proj")}
    assert says is None or says in next(problem.message for problem in report.errors if problem.kind == "stack")


def test_a_stored_transpose_is_an_error_where_the_rate_rate_depends_on_orientation() -> None:
    model = of_transformers("gpt2")
    groups = groups_of(model, by_names)
    fused = {error for error in GPT2 if error[0] == "fused"}
    assert errors(check_muon(model, OneOptimizer(copied(groups)))) == GPT2
    assert errors(check_muon(model, Flattening(copied(groups)))) == fused
    muon, rest = (group["params"] for group in groups)
    for adjust, known in (("original", GPT2), ("spectral_unclamped", GPT2), ("match_rms_adamw", fused)):
        assert (
            errors(check_muon(model, [torch.optim.Muon(muon, adjust_lr_fn=adjust), torch.optim.AdamW(rest)])) == known
        )
    report = check_muon(model, [torch.optim.Muon(muon), torch.optim.AdamW(rest)])
    (message,) = [problem.message for problem in report.errors if problem.name.endswith("c_fc.weight")]
    assert message.endswith("that of a 32 x 128 matrix, by 1, and that of its 128 x 32 matrix is 2")


class Experts(nn.Module):
    """Eight square matrices in one tensor, which the model declares."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.w_up, self.head = nn.Embedding(9, 16), nn.Parameter(torch.randn(8, 16, 16)), nn.Linear(16, 9)

    def matrix_blocks(self) -> dict[str, tuple[int, ...]]:
        return {"w_up": (16,)}


@pytest.mark.parametrize("package", ["pytorch_optimizer", "timm.optim", "heavyball"])
def test_optimizers_of_packages_are_tried_out(package: str) -> None:
    module = pytest.importorskip(package)
    model = Experts()
    groups = groups_of(model, lambda model, name, p: name == "w_up")
    given: Any
    if package == "pytorch_optimizer":
        given, key = module.Muon(groups), "optimizer"
    else:
        given, key = [module.Muon(groups[0]["params"]), torch.optim.AdamW(groups[1]["params"])], "optimizers"
    before = copy.deepcopy(model.state_dict())
    report = check_muon(model, given)
    assert errors(report) == {("stack", "w_up")}
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert check_muon(model, mended(report.errors[0].line, model, **{key: given})).ok


def test_an_optimizer_that_sorts_by_itself_says_how_after_its_first_step() -> None:
    timm = pytest.importorskip("timm.optim")
    model = Plain()
    optimizer = timm.Muon(model.parameters())
    known = {("outside", "embed.weight"), ("outside", "lm_head.weight")}
    assert errors(check_muon(model, optimizer)) == known
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert errors(check_muon(model, optimizer)) == known
    for state in optimizer.state.values():
        state["use_muon"] = False
    assert check_muon(model, optimizer).muon == []


def test_convolutions_are_flattened_or_wrong() -> None:
    model = convnet()
    groups = groups_of(model, lambda model, name, p: p.ndim > 1 and name in ("2.weight", "4.weight"))
    assert check_muon(model, OneOptimizer(copied(groups))).ok
    for flatten, known in ((True, set()), (False, {("stack", "2.weight"), ("stack", "4.weight")})):
        said = [groups[0] | {"flatten": flatten}, groups[1]]
        assert errors(check_muon(model, said)) == known
    grouped = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=2), nn.Flatten(), nn.Linear(8, 2))
    groups = groups_of(grouped, lambda model, name, p: name == "1.weight")
    assert errors(check_muon(grouped, groups)) == {("stack", "1.weight")}
    turned = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ConvTranspose2d(8, 6, 2), nn.Flatten(), nn.Linear(6, 2))
    groups = groups_of(turned, lambda model, name, p: name == "1.weight")
    assert errors(check_muon(turned, groups)) == {("transposed", "1.weight")}


def test_biases_of_experts_are_no_matrices() -> None:
    model = of_transformers("gpt_oss")
    groups = groups_of(model, by_names)
    found = errors(check_muon(model, groups))
    assert ("vector", f"{MLP}.experts.down_proj_bias") in found
    assert ("fused", f"{MLP}.experts.gate_up_proj") in found


def test_a_weight_that_looks_fused_is_an_error_until_it_is_declared() -> None:
    model = UnevenFused()
    groups = groups_of(model, lambda model, name, p: name == "qkv.weight")
    (problem,) = check_muon(model, groups).errors
    assert problem.kind == "unknown"
    assert "blocks={'qkv.weight': (...)}" in problem.line
    blocks = {"qkv.weight": {"q": 16, "k": 12, "v": 12}}
    assert errors(check_muon(model, groups, blocks=blocks)) == {("fused", "qkv.weight")}
    assert check_muon(model, muon_groups(model, blocks=blocks), blocks=blocks).problems == []
    assert check_muon(model, muon_groups(model, blocks=blocks)).ok  # who has declared them knows


# ----------------------------------------------------------------------------------------------------------- the rest


def test_frozen_parameters_are_no_problem_wherever_they_are() -> None:
    model = GPT()
    for p in model.parameters():
        p.requires_grad_(False)
    model.transformer["h"][0].mlp.c_fc.weight.requires_grad_(True)
    groups = [{"params": [model.transformer["h"][0].mlp.c_fc.weight], "use_muon": True}]
    assert check_muon(model, groups).problems == []
    groups[0]["params"].append(model.lm_head.weight)
    assert check_muon(model, groups).problems == []


def test_two_parameters_in_one_memory_are_trained_twice() -> None:
    model = Plain()
    model.lm_head.weight.data = model.embed.weight.data
    report = check_muon(model, groups_of(model, by_names))
    assert errors(report) == {("twice", "lm_head.weight")}
    exec(report.errors[0].line, {"model": model})
    assert model.lm_head.weight is model.embed.weight


def test_an_optimizer_of_an_older_copy_trains_nothing() -> None:
    model = Plain()
    groups = groups_of(copy.deepcopy(model), by_names)
    report = check_muon(model, groups)
    assert {problem.kind for problem in report.errors} == {"missing"}
    assert len(report.errors) == len(list(model.parameters()))
    assert {problem.kind for problem in report.notes} == {"foreign"}


def test_master_copies_stand_for_their_weights() -> None:
    model = GPT().bfloat16()
    copies = {name: p.detach().float().requires_grad_() for name, p in model.named_parameters()}
    chosen = [copies[name] for name, p in model.named_parameters() if by_names(model, name, p)]
    rest = [copies[name] for name, p in model.named_parameters() if not by_names(model, name, p)]
    assert errors(check_muon(model, [torch.optim.Muon(chosen), torch.optim.AdamW(rest)])) == C_ATTN


def test_wrapped_and_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = GPT()
    assert errors(check_muon(model, groups_of(model, by_names))) == C_ATTN
    compiled: Any = torch.compile(GPT())
    report = check_muon(compiled, groups_of(compiled, by_names))
    assert errors(report) == C_ATTN
    assert check_muon(compiled, mended(report.errors[0].line, compiled, groups=[])).ok


def test_it_prints_layers_together_and_each_line_once() -> None:
    model = GPT()
    text = str(check_muon(model, torchs(groups_of(model, by_ndim))))
    assert text.count("transformer.h.*.attn.c_attn.weight (2)") >= 1
    assert text.count("muon_groups(model)") == 1
    assert "holds 3 matrices (q, k, v) of 12 x 12 each" in text
    assert "is the head, tied to lm_head.weight" in text
    assert "0 errors" in str(check_muon(model, muon_groups(model)))
    assert str(next(iter(check_muon(model, torchs(groups_of(model, by_ndim))).errors))).startswith("error: transformer")


def test_the_line_keeps_the_user_s_options() -> None:
    model = GPT()
    muon, rest = (group["params"] for group in groups_of(model, by_names))
    options: Any = {"lr": 0.05, "weight_decay": 0.0, "adjust_lr_fn": "match_rms_adamw"}
    report = check_muon(model, [torch.optim.Muon(muon, **options), torch.optim.AdamW(rest, lr=7e-4)])
    new = mended(report.errors[0].line, model, optimizers=[])
    assert {key: new[0].param_groups[0][key] for key in options} == options
    assert new[1].param_groups[0]["lr"] == 7e-4


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (lambda m: [{"params": [*m.parameters()]}], ValueError, "group 0 does not say whether Muon trains it"),
        (lambda m: m, TypeError, "got Plain"),
        (lambda m: ([*m.parameters()], []), TypeError, "of parameters make groups"),
        (lambda m: [m], TypeError, r"optimizers\[0\]: expected an optimizer"),
        (lambda m: [{"params": m.parameters(), "use_muon": True}], TypeError, "group 0 has a generator as params"),
        (lambda m: [{"use_muon": True}], TypeError, "group 0 has no params"),
        (lambda m: [{"params": ["a"], "use_muon": True}], TypeError, "group 0 holds a str"),
        (lambda m: iter([]), TypeError, "an iterator"),
    ],
)
def test_what_cannot_be_checked_is_refused(given: Any, error: type[Exception], says: str) -> None:
    model = Plain()
    with pytest.raises(error, match=says):
        check_muon(model, given(model))
    with pytest.raises(TypeError, match="expected a module"):
        check_muon([], [])  # type: ignore[arg-type]


def test_nothing_changes_and_gradients_stay() -> None:
    model = Plain()
    optimizer = OneOptimizer(groups_of(model, by_type))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before, draws = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    check_muon(model, optimizer)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), draws)
    assert not optimizer.state
    assert matrices(model)


class Unembed(nn.Module):
    """A language model whose head has another name and is registered before the blocks, and which ends in a norm."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.tokens, self.unembed = nn.Embedding(20, 8), nn.Linear(8, 20)
        self.blocks, self.norm = nn.ModuleList([Block() for _ in range(blocks)]), nn.LayerNorm(8)


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_head_of_another_name_is_found_and_a_body_has_none(blocks: int) -> None:
    model = Unembed(blocks)
    report = check_muon(model, groups_of(model, by_type))
    assert errors(report) == {("outside", "unembed.weight")}
    assert check_muon(model, mended(report.errors[0].line, model, groups=groups_of(model, by_type))).problems == []
    del model.unembed
    assert check_muon(model, groups_of(model, by_type)).problems == []
    assert check_muon(model, muon_groups(model)).problems == []
    del model.norm  # nothing comes after the last block: that it recurs tells
    assert errors(check_muon(model, groups_of(model, by_type))) == (
        set() if blocks > 1 else {("outside", "blocks.0.mlp.c_proj.weight")}
    )


class Raw(nn.Module):
    """Weights without layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)
        self.W_qkv, self.W_o = nn.Parameter(torch.randn(24, 8)), nn.Parameter(torch.randn(8, 8))
        self.up, self.pos_emb = nn.Parameter(torch.randn(4, 8, 16)), nn.Parameter(torch.randn(1, 16, 8))


def test_raw_parameters_are_errors_where_they_must_be_wrong() -> None:
    model = Raw()
    groups = groups_of(model, lambda model, name, p: p.ndim > 1 and "." not in name)
    known = {("unknown", "W_qkv"), ("outside", "pos_emb")}
    assert errors(check_muon(model, OneOptimizer(copied(groups)))) == known
    assert {problem.name for problem in check_muon(model, OneOptimizer(copied(groups))).notes} == {"W_o", "up"}
    assert errors(check_muon(model, Flattening(copied(groups)))) == known | {("stack", "up")}
    blocks = {"W_qkv": (8, 8, 8), "W_o": (8,), "up": (8,)}
    assert check_muon(model, muon_groups(model, blocks=blocks), blocks=blocks).problems == []


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's, of a transformers to come
def test_the_first_factor_of_lora_is_one_matrix_and_the_last_holds_three() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=6, target_modules=["c_attn"], fan_in_fan_out=True)
    model = peft.get_peft_model(of_transformers("gpt2"), config)
    report = check_muon(model, groups_of(model, by_ndim))
    assert {(problem.kind, problem.name.split(".")[-3]) for problem in report.errors} == {("fused", "lora_B")}


def test_a_layer_that_blocks_share_is_collected_twice() -> None:
    model = Plain()
    model.blocks[1].mlp = model.blocks[0].mlp
    chosen = [m.weight for block in model.blocks for m in block.modules() if isinstance(m, nn.Linear)]
    rest = [p for p in model.parameters() if not any(p is q for q in chosen)]
    report = check_muon(model, [{"params": chosen, "use_muon": True}, {"params": rest, "use_muon": False}])
    assert errors(report) == {("twice", f"blocks.0.mlp.{name}.weight") for name in ("c_fc", "c_proj")}
    groups = [{"params": chosen, "use_muon": True}, {"params": rest, "use_muon": False}]
    for problem in report.errors:
        groups = mended(problem.line, model, groups=groups)
    assert check_muon(model, groups).problems == []


def test_entries_that_an_optimizer_does_not_read_cut_nothing() -> None:
    """torch's Muon keeps the cuts of `muon_groups` in its groups, and reads none of them."""
    model = GPT()
    muon, adam = muon_groups(model)
    rest = torch.optim.AdamW(adam)
    assert errors(check_muon(model, [torch.optim.Muon(copied(muon)), rest])) == C_ATTN
    marked = [group | {"use_muon": True} for group in muon]
    assert errors(check_muon(model, [OneOptimizer(copied(marked)), rest])) == C_ATTN
    for group in marked:
        group |= {"split_sizes": (12, 12, 12), "param_split_fn": None} if len(group["cuts"]) > 1 else {}
    assert errors(check_muon(model, [OneOptimizer(copied(marked)), rest])) == C_ATTN
    assert errors(check_muon(model, [torch.optim.Muon(copied(marked)), rest])) == C_ATTN
    assert check_muon(model, [Halving(copied(marked)), rest]).ok


class Halving(OneOptimizer):
    """Reads `split_sizes`."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                sizes = group.get("split_sizes") or (len(p),)
                p.data.sub_(torch.cat([self.direction(part) for part in p.grad.split(sizes)]))


def test_each_of_several_networks_has_an_input_and_an_output() -> None:
    model = nn.ModuleDict({"actor": mlp(), "critic": mlp()})
    found = errors(check_muon(model, groups_of(model, by_ndim)))
    assert found == {("outside", f"{network}.{layer}.weight") for network in ("actor", "critic") for layer in (0, 4)}


def test_whoever_asks_for_heads_is_told_where_they_are_one_matrix() -> None:
    model = of_transformers("llama")
    found = errors(check_muon(model, groups_of(model, by_names), layout="heads"))
    assert found == {("stack", f"model.layers.0.self_attn.{name}_proj.weight") for name in "qkvo"}


def test_a_head_that_was_replaced_after_the_groups_were_built() -> None:
    model = Plain()
    groups = groups_of(model, by_names)
    model.lm_head = nn.Linear(8, 5, bias=False)
    report = check_muon(model, groups)
    assert errors(report) == {("missing", "lm_head.weight")}
    assert [problem.kind for problem in report.notes] == ["foreign"]
    for problem in report.problems:
        groups = mended(problem.line, model, groups=groups)
    assert check_muon(model, groups).problems == []


def test_the_page_s_code_runs_and_its_report_is_printed() -> None:
    page = (Path(__file__).parents[2] / "docs/muon.md").read_text()
    model = GPT()
    names: dict[str, Any] = {"torch": torch, "model": model}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        package = re.search(r"^import (muonium|gram_newton_schulz)$", code, re.MULTILINE)
        if package is None or importlib.util.find_spec(package[1]):
            exec(code.replace("lr=0.02, scalar", "lr=0.02, ns_use_kernels=False, scalar"), names)
    assert names["text"] == matrices(model).to_json()
    assert str(check_muon(model, torchs(groups_of(model, by_ndim), adam_lr=1e-3))) in page
