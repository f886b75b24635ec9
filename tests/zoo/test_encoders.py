"""Encoders and encoder-decoders of transformers, and x-transformers: fused or plain, each against its forward pass."""

# ruff: noqa: C408
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn

from fire_core.weights.layout import resolve
from tests.zoo.checks import Cuts, Fused, check_forward_pass, check_singular_values, share

transformers = pytest.importorskip("transformers", minversion="5.0")
pytestmark = pytest.mark.filterwarnings("ignore")

TEXT = dict(
    vocab_size=48,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=4,
    intermediate_size=24,
    max_position_embeddings=16,
)
IMAGES = dict(
    hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=24, image_size=8, patch_size=4
)
T5 = dict(vocab_size=48, d_model=32, d_kv=8, d_ff=24, num_layers=1, num_decoder_layers=1, num_heads=4)
IDS = torch.randint(3, 48, (2, 9), generator=torch.Generator().manual_seed(1))
PIXELS = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))

# name -> (model type, configuration, input, the weights that are fused)
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any], Cuts]] = {
    "bert": ("bert", TEXT, {"input_ids": IDS}, {}),
    "modernbert": (
        "modernbert", TEXT | dict(pad_token_id=0), {"input_ids": IDS},
        {
            "layers.0.attn.Wqkv.weight": Fused("q 32 k 32 v 32"),
            "layers.0.mlp.Wi.weight": Fused("gate 24 up 24"),
        },
    ),
    "deberta": (
        "deberta", TEXT | dict(relative_attention=True, pos_att_type="c2p|p2c"),
        {"input_ids": IDS},
        {"encoder.layer.0.attention.self.in_proj.weight": Fused("q 8 k 8 v 8", 4)},
    ),
    "t5": ("t5", T5, {"input_ids": IDS, "decoder_input_ids": IDS}, {}),
    "blip": (
        "blip_vision_model", IMAGES, {"pixel_values": PIXELS},
        {"encoder.layers.0.self_attn.qkv.weight": Fused("q 32 k 32 v 32")},
    ),
    "mobilevitv2": (
        "mobilevitv2", dict(image_size=64, n_attn_blocks=[1, 1, 1]), {"pixel_values": torch.randn(1, 3, 64, 64)},
        {
            f"encoder.layer.{stage}.transformer.layer.0.attention.qkv_proj.convolution.weight": Fused(
                f"q 1 k {width} v {width}", seen=False
            )
            for stage, width in ((2, 128), (3, 192), (4, 256))
        },
    ),
    "whisper": (
        "whisper",
        dict(
            vocab_size=48, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, num_mel_bins=8, max_source_positions=8,
            max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        ),
        {"input_features": torch.randn(2, 8, 16), "decoder_input_ids": IDS}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family(name):
    torch.manual_seed(0)
    kind, settings, example, cuts = FAMILIES[name]
    if kind == "blip_vision_model":  # in no list of transformers' own
        model = transformers.BlipVisionModel(transformers.BlipVisionConfig(**settings))
    else:
        model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **settings))
    check_forward_pass(model, example, cuts)
    check_singular_values(model, cuts)
    assert share(model) > 0.4  # embeddings and positions are the rest


def test_x_transformers():
    x_transformers = pytest.importorskip("x_transformers")
    torch.manual_seed(0)
    model: nn.Module = x_transformers.TransformerWrapper(
        num_tokens=48, max_seq_len=16, attn_layers=x_transformers.Decoder(dim=32, depth=1, heads=4, ff_glu=True)
    )
    fused = [name for name, _ in model.named_parameters() if name.endswith("ff.0.proj.weight")]
    assert len(fused) == 1
    cuts = {fused[0]: Fused("up 128 gate 128")}
    check_forward_pass(model, IDS, cuts)
    check_singular_values(model, cuts)


def of(package: str, name: str, *arguments: Any, config: str = "", **settings: Any) -> tuple[str, str, Any, Any]:
    return package, name, arguments, (config, settings)


# Audio layers whose two halves torch's GLU takes: no rule knows them, their source says it.
GATED = {
    "conv": of("wav2vec2", "Wav2Vec2AdapterLayer", config="Wav2Vec2Config", output_hidden_size=16),
    "conv_layers.1": of(
        "speech_to_text", "Conv1dSubsampler",
        config="Speech2TextConfig", d_model=16, conv_channels=16, input_feat_per_channel=8,
    ),
    "pointwise_conv1": of(
        "fastspeech2_conformer", "FastSpeech2ConformerConvolutionModule", {"kernel_size": 7},
        config="FastSpeech2ConformerConfig", hidden_size=16,
    ),
    "up_conv": of(
        "granite_speech", "GraniteSpeechConformerConvModule",
        config="GraniteSpeechEncoderConfig", hidden_dim=16, dim_head=4, num_heads=4,
    ),
    "linear_start": of(
        "gemma3n", "Gemma3nAudioConformerLightConv1d", config="Gemma3nAudioConfig", hidden_size=16
    ),
}  # fmt: skip


@pytest.mark.parametrize("layer", GATED)
def test_gated_layers_of_audio_models_are_read_off_their_source(layer):
    package, name, arguments, (config, settings) = GATED[layer]
    path = f"transformers.models.{package}.modeling_{package}"
    module = getattr(import_module(path), name)(getattr(transformers, config)(**settings), *arguments)
    entries = [e for e in resolve(nn.ModuleDict({"layer": module})) if e.name == f"layer.{layer}.weight"]
    half = entries[0].parameter.shape[0] // 2
    assert [(e.block, e.rows, e.action) for e in entries] == [
        ("value", (0, half), "project"),
        ("gate", (half, 2 * half), "project"),
    ]
