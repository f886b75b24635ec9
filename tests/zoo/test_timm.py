"""timm and torchvision: attention and gated layers by themselves, tiny, with every way to store fused projections."""

from collections.abc import Callable
from importlib import import_module

import pytest
import torch
from torch import Tensor, nn

from tests.zoo.checks import Cuts, Fused, check_forward_pass, check_singular_values

pytest.importorskip("timm")
pytestmark = pytest.mark.filterwarnings("ignore")


def made(path: str, *args, **kwargs) -> Callable[[], nn.Module]:
    """The class at a dotted path, built when it is needed."""
    module, _, name = path.rpartition(".")
    return lambda: getattr(import_module(module), name)(*args, **kwargs)


def tokens(count: int, width: int = 32) -> tuple[int, ...]:
    return (2, count, width)


def image(side: int, channels: int = 32) -> tuple[int, ...]:
    return (2, channels, side, side)


QKV = {"qkv.weight": Fused("q 32 k 32 v 32")}
HEADS = {"qkv.weight": Fused("q 8 k 8 v 8", 4)}
MODELS, LAYERS = "timm.models", "timm.layers"

# name -> (module, shape of its input, the weights that are fused)
FAMILIES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Cuts]] = {
    "vit": (made(f"{LAYERS}.attention.Attention", 32, num_heads=4), tokens(9), QKV),
    "swin": (made(f"{MODELS}.swin_transformer.WindowAttention", 32, num_heads=4, window_size=3), tokens(9), QKV),
    "tiny_vit": (
        made(f"{MODELS}.tiny_vit.Attention", 32, 8, num_heads=4, attn_ratio=2, resolution=(3, 3)), tokens(9),
        {"qkv.weight": Fused("q 8 k 8 v 16", 4)},
    ),
    "efficientformer": (
        made(f"{MODELS}.efficientformer.Attention", 32, 8, 4, 2, 3), tokens(9),
        {"qkv.weight": Fused("q 8 k 8 v 16", 4)},
    ),
    "levit": (
        made(f"{MODELS}.levit.Attention", 32, 8, 4, 2.0, resolution=3), tokens(9),
        {"qkv.linear.weight": Fused("q 8 k 8 v 16", 4)},
    ),
    "levit_conv": (
        made(f"{MODELS}.levit.Attention", 32, 8, 4, 2.0, resolution=3, use_conv=True), image(3),
        {"qkv.linear.weight": Fused("q 8 k 8 v 16", 4)},
    ),
    "tnt": (made(f"{MODELS}.tnt.Attention", 32, 32, num_heads=4), tokens(9), {"qk.weight": Fused("q 32 k 32")}),
    "convit": (
        made(f"{MODELS}.convit.GPSA", 32, num_heads=4), tokens(9), {"qk.weight": Fused("q 32 k 32")},
    ),
    "gcvit_local": (made(f"{MODELS}.gcvit.WindowAttentionGlobal", 32, 4, (3, 3), use_global=False), tokens(9), QKV),
    "botnet": (
        made(f"{LAYERS}.bottleneck_attn.BottleneckAttn", 32, feat_size=(4, 4), num_heads=4, qk_ratio=0.5), image(4),
        {"qkv.weight": Fused("q 16 k 16 v 32")},
    ),
    "halonet": (
        made(f"{LAYERS}.halo_attn.HaloAttn", 32, num_heads=4, block_size=4, halo_size=1), image(8),
        {"kv.weight": Fused("k 8 v 8", 4)},
    ),
    "lambda": (
        made(f"{LAYERS}.lambda_layer.LambdaLayer", 32, num_heads=4, dim_head=8, r=3), image(6),
        {"qkv.weight": Fused("q 32 k 8 v 8")},
    ),
    "efficientvit_mit": (
        made(f"{MODELS}.efficientvit_mit.LiteMLA", 32, 32, dim=8), image(6),
        {"qkv.conv.weight": Fused("q 8 k 8 v 8", 4)},
    ),
    "efficientvit_msra": (
        made(f"{MODELS}.efficientvit_msra.CascadedGroupAttention", 32, 4, num_heads=2, resolution=4), image(4),
        {f"qkvs.{head}.conv.weight": Fused("q 4 k 4 v 16") for head in range(2)},
    ),
    "maxxvit_heads": (
        made(f"{MODELS}.maxxvit.Attention2d", 32, dim_head=8, head_first=True), image(3), HEADS,
    ),
    "mobilevit": (
        made(f"{MODELS}.mobilevit.LinearSelfAttention", 32), (2, 32, 4, 9),
        {"qkv_proj.weight": Fused("q 1 k 32 v 32")},
    ),
    "pvt": (made(f"{MODELS}.pvt_v2.Attention", 32, num_heads=4), None, {"kv.weight": Fused("k 32 v 32")}),
    "hiera": (
        made(f"{MODELS}.hiera.MaskUnitAttention", 32, 64, heads=4), tokens(9),
        {"qkv.weight": Fused("q 64 k 64 v 64")},
    ),
    "levit_down": (
        made(f"{MODELS}.levit.AttentionDownsample", 32, 48, 8, num_heads=4, attn_ratio=2.0, resolution=4), tokens(16),
        {"kv.linear.weight": Fused("k 8 v 16", 4)},
    ),
    "shvit": (
        made(f"{MODELS}.shvit.SHSA", 32, 8, 16), image(6), {"qkv.c.weight": Fused("q 8 k 8 v 16")},
    ),
    "lowformer": (
        made(f"{MODELS}.lowformer.ConvAttention", 64, head_dim_mul=1.0), image(4, 64),
        {"pwise.weight": Fused("q 32 k 32 v 32", 2)},
    ),
    "iformer": (made(f"{MODELS}.iformer.SHMA", 32), image(4), {"v_gate.c.weight": Fused("v 32 gate 32")}),
    "focalnet": (
        made(f"{MODELS}.focalnet.FocalModulation", 32, 3, 2), image(6),
        {"f.weight": Fused("q 32 context 32 gates 3", seen=False)},  # each gate multiplies alone
    ),
    "efficientvim": (
        made(f"{MODELS}.efficientvim.HSMSSD", 32, state_dim=8), image(4),
        {"BCdt_proj.conv.weight": Fused("B 8 C 8 dt 8"), "hz_proj.conv.weight": Fused("h 32 z 32")},
    ),
    "swiglu_packed": (
        made(f"{LAYERS}.mlp.SwiGLUPacked", 32, 48), tokens(9), {"fc1.weight": Fused("gate 24 up 24")},
    ),
    "mambaout": (
        made(f"{MODELS}.mambaout.GatedConvBlock", 32, conv_ratio=0.5), (2, 4, 4, 32),
        {"fc1.weight": Fused("gate 85 value 85")},
    ),
    "torchvision_swin": (
        made("torchvision.models.swin_transformer.ShiftedWindowAttention", 32, [3, 3], [0, 0], 4), (2, 3, 3, 32), QKV,
    ),
    "torchvision_maxvit": (
        made("torchvision.models.maxvit.RelativePositionalMultiHeadAttention", 32, 8, 9), (2, 1, 9, 32),
        {"to_qkv.weight": Fused("q 32 k 32 v 32")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family(name):
    torch.manual_seed(0)
    build, shape, cuts = FAMILIES[name]
    model = build()
    example: tuple[object, ...] = (torch.randn(2, 9, 32), (3, 3)) if shape is None else (torch.randn(shape),)
    check_forward_pass(model, example, cuts)
    check_singular_values(model, cuts)


def test_a_global_window_attention_holds_k_and_v_alone():
    model = made(f"{MODELS}.gcvit.WindowAttentionGlobal", 32, 4, (3, 3), use_global=True)()
    queries: Tensor = torch.randn(1, 9, 32)
    cuts = {"qkv.weight": Fused("k 32 v 32")}
    check_forward_pass(model, (torch.randn(2, 9, 32), queries), cuts)
    check_singular_values(model, cuts)
