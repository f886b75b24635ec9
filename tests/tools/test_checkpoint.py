"""Checkpoints are read as what they are, a tensor at a time, and no class of theirs runs."""

import argparse
import collections
import datetime
import json
import os
import pathlib
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fire_core.tools.checkpoint.cuts import cut_checkpoint
from fire_core.tools.checkpoint.source import load
from fire_core.tools.checkpoint.stored import CheckpointError
from fire_core.weights.layout import resolve
from tests.tools.tiny import saved


def contents(path: Path) -> dict[str, torch.Tensor]:
    return {stored.name: stored.tensor for stored in load(path).tensors}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one
    )


def test_safetensors_are_read_as_their_own_package_reads_them(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
    tensors = {str(dtype): (100 * torch.randn(3, 5)).to(dtype) for dtype in dtypes}
    tensors |= {"scalar": torch.tensor(3.0), "empty": torch.zeros(0, 4)}
    safetensors.save_file(tensors, tmp_path / "a.safetensors", metadata={"format": "pt"})
    assert same(contents(tmp_path / "a.safetensors"), tensors)


def header(content: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = json.dumps(content).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BROKEN = {
    "empty": b"",
    "no json": struct.pack("<Q", 5) + b"hello",
    "huge header": header({"a": A}, length=2**62),
    "too short": header({"a": A}, b"1234"),
    "wrong size": header({"a": {**A, "shape": [3]}}, bytes(8)),
    "deep": struct.pack("<Q", 200_000) + b"[" * 200_000,
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_safetensors_file_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(BROKEN[kind])
    with pytest.raises(CheckpointError, match=r"a\.safetensors: no readable checkpoint") as error:
        load(tmp_path / "a.safetensors")
    assert "\n" not in str(error.value)


def nested() -> dict[str, Any]:
    big = torch.randn(8, 6)
    return {
        "state_dict": {"big": big, "part": big[2:5, 1:3], "turned": torch.randn(4, 7).T.bfloat16()},
        "parameter": nn.Parameter(torch.randn(3)),
        "list": [torch.ones(2), {"x": torch.zeros(2, 2)}],
        "epoch": 3,
    }


FLAT = ("state_dict.big", "state_dict.part", "state_dict.turned", "parameter", "list.0", "list.1.x")


def test_files_of_torch_are_read_in_their_place(tmp_path: Path) -> None:
    content = nested()
    torch.save(content, tmp_path / "a.pt")
    state = content["state_dict"]
    wanted = [
        state["big"],
        state["part"],
        state["turned"],
        content["parameter"],
        content["list"][0],
        content["list"][1]["x"],
    ]
    assert same(contents(tmp_path / "a.pt"), dict(zip(FLAT, wanted, strict=True)))
    torch.save(content, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(
        CheckpointError, match=r"old.pt: no readable checkpoint: no file of .*one from before torch 1.6"
    ):
        load(tmp_path / "old.pt")


HARMLESS = {
    "namespace": argparse.Namespace(lr=0.1, path=pathlib.Path("x/y")),
    "numpy scalar": np.float64(3.5),
    "numpy array": np.arange(4),
    "date": datetime.datetime(2026, 1, 2),
    "ordered": collections.OrderedDict(a=1),
}


@pytest.mark.parametrize("kind", HARMLESS)
def test_classes_that_hold_data_alone_are_let_in(kind: str, tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.eye(3)}, "args": HARMLESS[kind]}, tmp_path / "a.pt")
    assert same(contents(tmp_path / "a.pt"), {"model.w": torch.eye(3)})


class Runs:
    """Unpickling this creates a folder: a stand-in for what a malicious file would do."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.folder,)


class Mine:
    """A class that no list knows."""


def test_any_other_class_is_refused_by_its_name_and_not_run(tmp_path: Path) -> None:
    for content, name in ((Runs(tmp_path / "ran"), "posix.mkdir"), (Mine(), "tests.tools.test_checkpoint.Mine")):
        torch.save({"w": torch.eye(2), "x": content}, tmp_path / "a.pt")
        with pytest.raises(CheckpointError, match=rf"refused: it holds {name}") as error:
            load(tmp_path / "a.pt")
        assert "\n" not in str(error.value)
    assert not (tmp_path / "ran").exists()


def test_states_of_optimizers_are_passed_over(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    optimizers = [torch.optim.Adam(model.parameters()), torch.optim.SGD(model.parameters(), momentum=0.9)]
    model(torch.ones(1, 4)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    content = {
        "state_dict": model.state_dict(),
        "optimizer_states": [optimizer.state_dict() for optimizer in optimizers],
        "anything": {"adam": optimizers[0].state_dict()},
        "flat": {"weight.exp_avg": torch.ones(4, 4)},
    }
    torch.save(content, tmp_path / "a.ckpt")
    found = load(tmp_path / "a.ckpt")
    assert [stored.name for stored in found.tensors] == ["state_dict.weight", "state_dict.bias"]
    assert len(found.skipped) == 6 + 2 + 6 + 1


def test_a_folder_and_its_index(tmp_path: Path) -> None:
    folder = saved("LlamaForCausalLM", tmp_path / "llama")
    (folder / "optimizer.pt").write_bytes(b"stale")
    (folder / "pytorch_model.bin").write_bytes(b"stale")
    found = load(folder)
    assert len(found.files) > 1
    assert {str(path) for path in found.stale} == {"optimizer.pt", "pytorch_model.bin"}


def test_folders_that_are_not_whole(tmp_path: Path) -> None:
    folder = saved("LlamaForCausalLM", tmp_path / "llama")
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    for weight_map, message in (
        (
            {**content["weight_map"], "more.weight": "model-00001-of-00002.safetensors"},
            "names more.weight, which is not in",
        ),
        ({"a": "../../secret.safetensors"}, "does not name files beside it"),
        ({"a": "none.safetensors"}, "no such file, but the index names it"),
        ([], "does not name files beside it"),
    ):
        index.write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(CheckpointError, match=message):
            load(folder)
    index.write_text("{")
    with pytest.raises(CheckpointError, match="not readable as JSON"):
        load(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="holds no model"):
        load(tmp_path / "empty")


def test_without_a_model_only_what_an_option_names_is_projected(tmp_path: Path) -> None:
    shapes = {"a.q_proj.weight": (8, 8), "a.qkv.weight": (24, 8), "fc1.bias": (16,), "x..y": (2, 2), "fc1": (2, 2)}
    torch.save({name: torch.randn(shape) for name, shape in shapes.items()}, tmp_path / "a.pt")
    for options, projected in (
        ({}, set()),
        ({"include": ["*.q_proj.*"]}, {"a.q_proj.weight"}),
        ({"blocks": {"*.qkv.weight": (8, 8, 8)}}, {f"a.qkv.weight[{i}]" for i in "qkv"}),
    ):
        cuts = cut_checkpoint(load(tmp_path / "a.pt"), **options)
        entries = [entry for one in cuts.cuts for entry in one.entries]
        assert {entry.label for entry in entries if entry.action == "project"} == projected
        assert all(entry.reason for entry in entries if entry.action == "keep")
        assert ["nothing says what the weights are" in note for note in cuts.notes] == [True]


def test_tensors_that_share_numbers(tmp_path: Path) -> None:
    table = torch.randn(8, 8)
    torch.save({"wte.weight": table, "lm_head.weight": table, "fc1.weight": torch.randn(8, 8)}, tmp_path / "a.pt")
    cuts = {one.stored.name: one for one in cut_checkpoint(load(tmp_path / "a.pt"), include=["*.weight"]).cuts}
    assert cuts["fc1.weight"].entries
    assert "shares its numbers with wte.weight" in cuts["lm_head.weight"].reason
    assert "shares its numbers with lm_head.weight" in cuts["wte.weight"].reason


def test_a_folder_that_timm_saved_is_known_by_its_config(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    options = {"num_classes": 7, "img_size": 96, "global_pool": "avg"}
    model = timm.create_model("test_vit", **options)
    timm.models._hub.save_for_hf(model, tmp_path, model_args={**options, "img_size": [96, 96]}, safe_serialization=True)
    cuts = cut_checkpoint(load(tmp_path))
    assert not cuts.notes
    labels = {e.label for one in cuts.cuts for e in one.entries if e.action == "project"}
    assert labels == {e.label for e in resolve(model) if e.action == "project"}


def test_a_torchscript_archive_and_a_file_that_is_cut_off_are_told_apart(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that TorchScript is deprecated
        torch.jit.script(nn.Linear(4, 4)).save(tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=r"a.pt: a TorchScript archive, .*: save its state_dict\(\)"):
        load(tmp_path / "a.pt")
    torch.save({"a": torch.randn(64, 64)}, tmp_path / "b.pt")
    (tmp_path / "b.pt").write_bytes((tmp_path / "b.pt").read_bytes()[:9000])
    with pytest.raises(CheckpointError, match=r"b.pt: no readable checkpoint: its end is missing"):
        load(tmp_path / "b.pt")


def test_a_model_by_name_finds_its_weights_in_a_training_loops_file(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    state = timm.create_model("test_vit").state_dict()
    content = {part: {f"net.{name}": value.clone() for name, value in state.items()} for part in ("state_dict", "ema")}
    torch.save({**content, "step": 1}, tmp_path / "a.ckpt")
    cuts = cut_checkpoint(load(tmp_path / "a.ckpt"), "timm:test_vit", "qk")
    labels = {e.label for one in cuts.cuts for e in one.entries if e.action == "project"}
    assert {"state_dict.net.blocks.0.attn.qkv.weight[q]", "ema.net.blocks.0.attn.qkv.weight[k]"} < labels
    assert not cuts.notes
    with pytest.raises(CheckpointError, match="not of the model that --model names"):
        cut_checkpoint(load(tmp_path / "a.ckpt"), "torchvision:alexnet")
    for name, message in (
        ("timm:nothing", "--model=timm:nothing: timm .* has no model .nothing"),
        ("x", "accepted: timm:<name>"),
    ):
        with pytest.raises(CheckpointError, match=message):
            cut_checkpoint(load(tmp_path / "a.ckpt"), name)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architecture": "hf_hub:someone/evil"}, "has no model 'hf_hub:someone/evil'"),
        ({"architecture": "resnet18", "model_args": {"checkpoint_path": "payload.pth"}}, "model_args is refused"),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attn_implementation": "someone/evil"},
         "attn_implementation='someone/evil' is refused"),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "text": {"_attn_implementation": "a/b"}},
         "_attn_implementation='a/b' is refused"),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attn_implementation": {"": "a/b"}},
         "attn_implementation.='a/b' is refused"),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "parts": [{"attn_implementation": "a/b"}]},
         "attn_implementation='a/b' is refused"),
        ({"architectures": ["DetrModel"], "model_type": "detr", "backbone_config": {"backbone": "hf-hub:a/b"}},
         "backbone='hf-hub:a/b' is refused: it is an address or a path"),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
          "vision_config": {"architecture": "hf_hub:a/b"}}, "architecture='hf_hub:a/b' is refused"),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
          "vision_config": {"model_args": {"checkpoint_path": "w.pth"}}}, "checkpoint_path='w.pth' is refused"),
        ({"architectures": ["DepthAnythingForDepthEstimation"], "model_type": "depth_anything", "backbone": "gpt2"},
         "offline mode is enabled"),
    ],
)  # fmt: skip
def test_a_config_that_names_files_or_repositories_is_refused(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Nothing is opened or fetched: weights are known by their names, and the note says why."""
    pytest.importorskip("timm")
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"fc1.weight": torch.eye(4)}, tmp_path / "model.safetensors")
    cuts = cut_checkpoint(load(tmp_path))
    assert cuts.without_model
    assert message in cuts.notes[0]
