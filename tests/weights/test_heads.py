"""`layout="heads"`: q, k, v and the output projection cut by head, each head a matrix of its own."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fire_core import fire_
from fire_core.weights.layout import Entry, resolve
from language.model import GPT
from tests.networks import SeparateAttention
from vision.models.vit import ViT

WIDTH, IN = 4, 12  # of a head; of the residual stream


class Mixer(nn.Module):
    """torch's attention, by itself."""

    def __init__(self, **options: int) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(IN, 3, batch_first=True, **options)


SMALL = {"vocab_size": 11, "num_hidden_layers": 1, "max_position_embeddings": 16, "pad_token_id": 0, "hidden_size": IN}
SMALL |= {"num_attention_heads": 3, "intermediate_size": 16, "bos_token_id": 1, "eos_token_id": 2}
KV = SMALL | {"num_key_value_heads": 1}
GPT2 = {"n_embd": IN, "n_head": 3, "n_layer": 1, "n_positions": 16, "vocab_size": 11}
SPEECH = {"d_model": IN, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
# Classes of the table by a model type of transformers and its sizes.
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "phi3": KV,
    "gpt_neox": SMALL,
    "llama": KV,
    "bloom": SMALL | {"n_head": 3, "n_layer": 1},
    "mistral": KV | {"head_dim": WIDTH},
    "mixtral": KV | {"head_dim": WIDTH, "num_local_experts": 2},
    "qwen2": KV,
    "qwen3": KV | {"head_dim": WIDTH},
    "gemma": KV | {"head_dim": WIDTH},
    "gemma2": KV | {"head_dim": WIDTH},
    "granite": KV,
    "olmo2": KV,
    "imagegpt": GPT2,
    "opt": SMALL | {"ffn_dim": 16, "word_embed_proj_dim": IN},
    "bart": SPEECH | {"vocab_size": 11, "encoder_attention_heads": 3, "decoder_attention_heads": 3},
    "bert": SMALL,
    "roberta": SMALL,
    "clip_text_model": SMALL,
}


def of_type(kind: str) -> nn.Module:
    transformers = pytest.importorskip("transformers", minversion="5.0")
    config = transformers.AutoConfig.for_model(kind, **SIZES[kind], attn_implementation="eager")
    return transformers.AutoModel.from_config(config)


def of_images(package: str, name: str, *sizes: Any, **options: Any) -> nn.Module:
    return getattr(pytest.importorskip(package), name)(*sizes, num_classes=3, **options)


OURS = partial(GPT, vocab_size=11, block_size=8, n_layer=1, n_head=3, n_embd=IN)
SWIN: dict[str, Any] = {"embed_dim": IN, "depths": [1, 1], "num_heads": [3, 3]}
TIMM: dict[str, Any] = {"img_size": 8, "patch_size": 4, "embed_dim": IN, "depth": 1, "num_heads": 3, "mlp_ratio": 2}
# A model, and how many heads of keys and values it has; of queries and in the output projection there are three.
MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "torch": (Mixer, 3),
    "torch, other widths of keys": (partial(Mixer, kdim=5, vdim=6), 3),
    "our ViT": (partial(ViT, num_classes=3, image_size=8, dim=IN, depth=1, heads=3, dim_head=WIDTH, mlp_dim=16), 3),
    "our GPT": (OURS, 3),
    "our GPT, one head of keys": (partial(OURS, n_kv_head=1), 1),
    "timm": (partial(of_images, "timm.models.vision_transformer", "VisionTransformer", **TIMM), 3),
    "timm, swin": (
        partial(of_images, "timm.models", "SwinTransformer", img_size=16, patch_size=4, window_size=2, **SWIN),
        3,
    ),
    "torchvision, swin": (
        partial(
            of_images, "torchvision.models.swin_transformer", "SwinTransformer", [4, 4], window_size=[2, 2], **SWIN
        ),
        3,
    ),
    **{kind: (partial(of_type, kind), sizes.get("num_key_value_heads", 3)) for kind, sizes in SIZES.items()},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_the_heads_are_those_of_the_forward_pass(name: str) -> None:
    """A head of zero queries attends as one of zero keys; one of zero values gives what zero columns of o give."""
    torch.manual_seed(0)
    make, keys = MODELS[name]
    model = make().eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("bias") and "table" not in parameter_name:
            nn.init.zeros_(parameter)
        elif parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.5)
    found = {entry.role: entry for entry in reversed(resolve(model, "heads")) if entry.action == "project"}
    counts = {"q": 3, "k": keys, "v": keys, "attention_out": 3}
    assert {role: entry.count for role, entry in found.items()} == counts
    for one, other in (("k", "q"), ("v", "attention_out")):
        usual = passed(model)
        for head in range(keys):
            results = [without(model, found[role], head, keys) for role in (one, other)]
            torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
            assert not torch.allclose(results[0], usual, rtol=1e-3, atol=1e-4)


def without(model: nn.Module, entry: Entry, head: int, heads: int) -> Tensor:
    """The output with a head's matrix zero, or with those of all heads that share one."""
    weight = entry.parameter.detach()
    kept, matrices = weight.clone(), entry.read().clone()
    matrices.view(heads, -1, *entry.shape)[head] = 0
    entry.write_(weight, matrices)
    answer = passed(model)
    weight.copy_(kept)
    return answer


def passed(model: nn.Module) -> Tensor:
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        if isinstance(model, Mixer):
            x, options = torch.randn(2, 5, IN, generator=draw), model.attn
            return model.attn(x, x[..., : options.kdim], x[..., : options.vdim])[0]
        if isinstance(model, GPT) or hasattr(model, "get_input_embeddings"):
            return model(torch.randint(3, 11, (2, 5), generator=draw))[0]
        side = 16 if "Swin" in type(model).__name__ else 8
        return model(torch.randn(2, 3, side, side, generator=draw))


@pytest.mark.parametrize("name", ["our ViT", "phi3"])
def test_each_head_is_an_isometry_at_its_own_scale(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name][0]()
    entries = [entry for entry in resolve(model, "heads") if entry.action == "project"]
    before = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    report = fire_(model, layout="heads", solver="exact")
    assert {row.name: row.matrices for row in report} == {entry.label: entry.count for entry in entries}
    for entry in entries:
        assert entry.shape[entry.role == "attention_out"] == WIDTH
        heads, originals = entry.read().double(), entry.read(before[entry.name]).double()
        u, _, v = torch.linalg.svd(originals, full_matrices=False)
        torch.testing.assert_close(heads, math.sqrt(entry.shape[0] / entry.shape[1]) * u @ v, rtol=0, atol=2e-4)
    touched = {entry.name for entry in entries}
    assert all(p.equal(before[key]) for key, p in model.named_parameters() if key not in touched)


class Own(nn.Module):
    """An attention that no rule knows, whatever its attributes say."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 2
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.to_out(self.to_q(x) * self.to_k(x) * self.to_v(x))


def test_unknown_heads_are_kept_and_named() -> None:
    model = nn.ModuleDict({"known": nn.MultiheadAttention(8, 2), "own": Own(), "apart": SeparateAttention()})
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with pytest.warns(UserWarning, match=r'layout="heads" keeps own\.to_q\.weight, .*number of heads is not known'):
        report = fire_(model, layout="heads")
    assert {row.name.split(".")[0] for row in report if row.action == "project"} == {"known"}
    assert all(p.equal(before[name]) for name, p in model.named_parameters() if not name.startswith("known."))
    kept = {entry.label: entry.reason for entry in resolve(model, "heads") if entry.action == "keep"}
    assert kept["own.to_k.weight"] == "its number of heads is not known: no rule knows Own"
    torn = nn.MultiheadAttention(8, 2)
    torn.num_heads = 3
    reasons = [entry.reason for entry in resolve(torn, "heads") if entry.name == "in_proj_weight"]
    assert reasons == ["its number of heads is not known: 8 x 8 is not 3 heads of MultiheadAttention"] * 3
