"""Small models of transformers at random initialisation, as `save_pretrained` writes them."""

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96}
GROUPED = {**SMALL, "num_key_value_heads": 2}
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": GROUPED,
    "Qwen2ForCausalLM": {**GROUPED, "tie_word_embeddings": True},
    "GPT2LMHeadModel": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96},
    "Phi3ForCausalLM": {**GROUPED, "pad_token_id": 0},
    "BertForMaskedLM": SMALL,
}
# Models that have other names in memory than on disk (transformers 5).
RENAMED: dict[str, dict[str, Any]] = {
    "ViTForImageClassification": {**SMALL, "image_size": 16, "patch_size": 4},
    "GPTNeoXForCausalLM": SMALL,
}
EXPERTS: dict[str, dict[str, Any]] = {"MixtralForCausalLM": {**GROUPED, "num_local_experts": 2}}


def quiet_transformers() -> Any:
    """The package, without its warnings and bars; skips the test where it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
    return transformers


def saved(name: str, folder: Path) -> Path:
    """The folder that `save_pretrained` makes of a seeded model of the class `name`, with a file of a tokenizer."""
    cls = getattr(quiet_transformers(), name)
    torch.manual_seed(0)
    cls(cls.config_class(**(MODELS | RENAMED | EXPERTS)[name])).bfloat16().save_pretrained(
        folder, max_shard_size="40KB"
    )
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    return folder


def loaded(name: str, folder: Path) -> nn.Module:
    """The model that `from_pretrained` makes of a folder."""
    options = {"dtype": torch.bfloat16, "local_files_only": True}
    model: nn.Module = getattr(quiet_transformers(), name).from_pretrained(folder, **options)
    return model
