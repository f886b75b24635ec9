"""From disk to disk: the numbers of `fire_` in memory, every other byte as it was, and no harm from a kill."""

import argparse
import hashlib
import json
import os
import signal
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fire_core import fire_
from fire_core.tools import audit
from fire_core.tools.checkpoint.source import load
from fire_core.tools.checkpoint.stored import CheckpointError
from fire_core.tools.command import blocks_of
from fire_core.tools.project import main, project, report_path
from fire_core.tools.reader import read_cuts
from tests.tools.tiny import MODELS, RENAMED, loaded, saved
from tests.zygote import Zygote


def digests(folder: Path) -> dict[str, str]:
    """A hash of each file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("name", [*MODELS, *RENAMED])
def test_a_sharded_folder_becomes_what_fire_makes_of_the_loaded_model(name: str, tmp_path: Path) -> None:
    source, target = saved(name, tmp_path / "in"), tmp_path / "out"
    before = digests(source)
    report = project(source, target, solver="exact", exclude=["*.1.*"])
    model = loaded(name, source)
    wanted = fire_(model, solver="exact", exclude=["*.1.*"])
    new = loaded(name, target)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), new.state_dict().values(), strict=True))
    assert sum(row["matrices"] for row in report["rows"]) == sum(row.matrices for row in wanted.rows) >= 5
    assert sum(row["dfi_after"] for row in report["rows"]) == pytest.approx(wanted.total("dfi_after"))
    assert digests(source) == before
    assert digests(target).keys() == before.keys()
    assert {file for file, digest in digests(target).items() if digest != before[file]} <= {
        p.name for p in load(source).files
    }
    assert len(load(source).files) > 1 or name in ("Qwen2ForCausalLM", "ViTForImageClassification")  # small ones
    assert json.loads(report_path(target).read_text()) == json.loads(json.dumps(report))


def test_the_header_and_what_is_kept_stay_byte_for_byte(tmp_path: Path) -> None:
    source, target = saved("LlamaForCausalLM", tmp_path / "in"), tmp_path / "out"
    report = project(source, target, layout="qk", include=["*.embed_tokens.weight"])
    changed = {row["name"] for row in report["rows"]}
    assert len(changed) == 5
    old, new = ({stored.name: stored.tensor for stored in load(folder).tensors} for folder in (source, target))
    assert old.keys() == new.keys()
    assert {name for name, tensor in old.items() if not torch.equal(tensor, new[name])} == changed
    for file in load(source).files:
        before, after = file.read_bytes(), (target / file.name).read_bytes()
        start = 8 + int.from_bytes(before[:8], "little")
        assert (before[:start], len(before)) == (after[:start], len(after))


def checkpoint(path: Path) -> nn.Module:
    """A file as Lightning writes it: weights, a copy of an average, the optimizer, arguments."""
    torch.manual_seed(0)
    model = pytest.importorskip("timm").create_model("test_vit")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(1, 3, 160, 160)).sum().backward()
    optimizer.step()
    content = {
        "state_dict": {f"net.{name}": value for name, value in model.state_dict().items()},
        "optimizer_states": [optimizer.state_dict()],
        "hyper_parameters": argparse.Namespace(lr=1e-3, folder=Path("data")),
        "epoch": 4,
    }
    torch.save(content, path)
    return model


def test_a_file_of_a_training_loop(tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "in.ckpt")
    report = project(tmp_path / "in.ckpt", tmp_path / "out.ckpt", model="timm:test_vit", solver="exact")
    fire_(model, solver="exact")
    with torch.serialization.safe_globals([argparse.Namespace, type(Path())]):
        old, new = (torch.load(tmp_path / name, weights_only=True) for name in ("in.ckpt", "out.ckpt"))
    for name, value in model.state_dict().items():
        assert torch.equal(new["state_dict"][f"net.{name}"], value), name
    assert (new["epoch"], new["hyper_parameters"]) == (4, old["hyper_parameters"])
    states = [part["optimizer_states"][0]["state"] for part in (old, new)]
    assert all(torch.equal(states[0][i]["exp_avg"], states[1][i]["exp_avg"]) for i in states[0])
    assert "reset those of the projected weights" in report["notes"][-1]
    with zipfile.ZipFile(tmp_path / "out.ckpt") as archive:
        assert archive.testzip() is None, "checksums are right"


def test_turned_and_shared_weights(tmp_path: Path) -> None:
    whole = torch.randn(12, 6)
    state = {"a.q_proj.weight": whole[2:8], "a.k_proj.weight": torch.randn(5, 7).T, "b.fc1.weight": torch.randn(9, 6)}
    torch.save({**state, "step": 3}, tmp_path / "in.pt")
    project(tmp_path / "in.pt", tmp_path / "out.pt", include=["a.*"], solver="exact")
    new = torch.load(tmp_path / "out.pt", weights_only=True)
    for name in ("a.q_proj.weight", "a.k_proj.weight"):
        (m, n), weight = state[name].shape, state[name]
        U, _, Vh = torch.linalg.svd(weight.double(), full_matrices=False)
        torch.testing.assert_close(new[name].double(), (m / n) ** 0.5 * U @ Vh, atol=1e-5, rtol=0)
        assert new[name].stride() == weight.stride()
    assert torch.equal(new["b.fc1.weight"], state["b.fc1.weight"])
    rest = new["a.q_proj.weight"].untyped_storage()
    assert torch.equal(torch.tensor(rest, dtype=torch.uint8).view(torch.float32).reshape(12, 6)[8:], whole[8:])


def test_declared_blocks_are_cut_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    qkv, flipped = torch.randn(24, 8), torch.randn(8, 12)
    torch.save({"a.qkv.weight": qkv, "b.c_attn.weight": flipped, "c.qkv.weight": qkv.clone()}, tmp_path / "in.pt")
    blocks, transposed = ["a.qkv.weight=q:4,k:4,v:4,repeats:2", "b.*=8,4"], "b.c_attn.*"
    options = ["--blocks", blocks[0], "--blocks", blocks[1], "--transposed", transposed]
    assert main([str(tmp_path / "in.pt"), str(tmp_path / "out.pt"), "--solver", "exact", *options]) == 0
    assert capsys.readouterr().out.startswith("5 matrices of 5 weights")
    new = torch.load(tmp_path / "out.pt", weights_only=True)
    heads, after = (weight.unflatten(0, (2, 3, 4)).double() for weight in (qkv, new["a.qkv.weight"]))
    pairs = [(heads[:, i].flatten(0, 1), after[:, i].flatten(0, 1)) for i in range(3)]
    pairs += zip(flipped.T.double().split([8, 4]), new["b.c_attn.weight"].T.double().split([8, 4]), strict=True)
    for before, now in pairs:
        U, _, Vh = torch.linalg.svd(before, full_matrices=False)
        torch.testing.assert_close(now, (before.shape[0] / 8) ** 0.5 * U @ Vh, atol=1e-5, rtol=0)
    assert torch.equal(new["c.qkv.weight"], qkv)
    cuts = read_cuts(tmp_path / "out.pt", blocks=dict(map(blocks_of, blocks)), transposed=[transposed])
    seen = {finding.name: finding for finding in audit.examine(cuts)[0]}
    for name in ("a.qkv.weight[q]", "a.qkv.weight[k]", "a.qkv.weight[v]", "b.c_attn.weight[0]"):
        assert seen[name].condition == pytest.approx(1, abs=1e-3)


def test_part_of_the_way_and_options_that_it_does_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight = torch.randn(10, 6)
    torch.save({"a.fc1.weight": weight}, tmp_path / "in.pt")
    paths = [str(tmp_path / "in.pt"), str(tmp_path / "out.pt")]
    assert main([*paths, "--include", "a.*", "--blend", "0.5", "--iterations", "5"]) == 2
    assert capsys.readouterr().err == "iterations=5 has no effect with blend=0.5\n"
    assert main([*paths, "--include", "a.*", "--blend", "2"]) == 2
    assert capsys.readouterr().err == "blend=2.0: must be between 0 and 1\n"
    assert not (tmp_path / "out.pt").exists()
    assert main([*paths, "--include", "a.*", "--blend", "0.5"]) == 0
    U, S, Vh = torch.linalg.svd(weight.double(), full_matrices=False)
    expected = (U * (S * (10 / 6) ** 0.5).sqrt()) @ Vh
    new = torch.load(tmp_path / "out.pt", weights_only=True)["a.fc1.weight"]
    torch.testing.assert_close(new.double(), expected, atol=1e-6, rtol=0)


def small(path: Path, **more: torch.Tensor) -> Path:
    torch.save({"a.q_proj.weight": torch.randn(6, 6), "a.k_proj.weight": torch.randn(6, 6), **more}, path)
    return path


def test_what_cannot_be_done_is_said_in_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = small(tmp_path / "good.pt")
    saved("BertForMaskedLM", tmp_path / "bert")
    torch.save({"a.q_proj.weight": torch.full((3, 3), float("nan"))}, tmp_path / "nan.pt")
    torch.save(torch.load(good), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save({"thing": torch.eye(3)}, tmp_path / "none.pt")
    torch.save({"a.weight": torch.zeros(0, 3)}, tmp_path / "empty.pt")
    (tmp_path / "earlier.pt.fire.json").write_text("{}")
    (tmp_path / "linked").mkdir()
    small(tmp_path / "linked" / "pytorch_model.bin")
    (tmp_path / "linked" / "notes.txt").symlink_to(tmp_path / "gone")
    before = digests(tmp_path)
    for arguments, message in (
        ((good, good), "IN and OUT are the same"),
        ((good, tmp_path / "earlier.pt"), "earlier.pt.fire.json: exists already"),
        ((good, "."), ".: exists already"),
        ((tmp_path / "linked", tmp_path / "out", "--include", "a.*"), "notes.txt: cannot be copied ([Errno 2]"),
        ((tmp_path / "empty.pt", tmp_path / "out.pt", "--include", "a.*"), "projects none of its weights"),
        ((good, tmp_path / "out.pt", "--iterations", "9" * 30), "is no whole number from 1 to 1000"),
        ((good, tmp_path / "nan.pt"), "exists already"),
        ((tmp_path / "bert", tmp_path / "bert" / "inner"), "lies in the folder"),
        ((tmp_path / "no.pt", tmp_path / "out.pt"), "no such file or folder"),
        ((good, tmp_path / "no" / "out.pt"), "no such folder"),
        ((tmp_path / "nan.pt", tmp_path / "out.pt", "--include", "a.*"), "NaN or Inf in a.q_proj.weight"),
        ((tmp_path / "old.pt", tmp_path / "out.pt"), "before torch 1.6"),
        ((tmp_path / "none.pt", tmp_path / "out.pt"), "projects none of its weights"),
        ((good, tmp_path / "out.pt", "--include", "*.nothing"), "no parameter matches '*.nothing'"),
        ((tmp_path / "bert", tmp_path / "out", "--layout", "dqn"), "to its initial value, which a checkpoint does not"),
        ((good, tmp_path / "out.pt", "--model", "timm:no"), "has no model 'no'"),
        ((good, tmp_path / "out.pt", "--iterations", "0"), "from 1 to 1000"),
        ((good, tmp_path / "out.pt", "--blocks", "a.q_proj.weight"), "is not of the form"),
        ((good, tmp_path / "out.pt", "--blocks", "a.q_proj.weight=4,4"), "add up to 8, not to its 6 rows"),
        ((good, tmp_path / "out.pt", "--scale", "match_init"), "invalid choice"),
    ):
        with pytest.raises(SystemExit) as ended:
            raise SystemExit(main([str(argument) for argument in arguments]))
        captured = capsys.readouterr()
        assert (ended.value.code, captured.out, captured.err.count("\n")) == (2, "", 1), captured.err
        assert message in captured.err
        assert digests(tmp_path) == before
        assert not list(tmp_path.glob(".*partial"))


# Is killed at the rename of the number that is given, from 1 up.
KILLED = """
import os, signal, sys
from fire_core.tools.project import project
rename, left = os.rename, [int(sys.argv[3])]

def killed(source, target):
    left[0] -= 1
    os.kill(os.getpid(), signal.SIGKILL) if left[0] == 0 else rename(source, target)

os.rename = killed
project(sys.argv[1], sys.argv[2], include=["a.*"], solver="exact")
"""


def test_killed_and_repeated(tmp_path: Path, zygote: Zygote) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    small(source / "pytorch_model.bin")
    project(source, tmp_path / "calm", include=["a.*"], solver="exact")
    before = digests(source)
    assert zygote.code(tmp_path, KILLED, str(source), str(target), "1").code == -signal.SIGKILL
    assert not target.exists()
    assert not report_path(target).exists()
    (left,) = tmp_path.glob(".out.*.partial")
    project(source, target, include=["a.*"], solver="exact")
    assert digests(source) == before
    assert digests(target) == digests(tmp_path / "calm")
    assert [*tmp_path.glob(".out.*.partial")] == [left]


def test_killed_between_its_two_renames_it_leaves_no_copy_without_a_report(tmp_path: Path, zygote: Zygote) -> None:
    source, target = small(tmp_path / "in.pt"), tmp_path / "out.pt"
    assert zygote.code(tmp_path, KILLED, str(source), str(target), "2").code == -signal.SIGKILL
    assert not target.exists()
    assert json.loads(report_path(target).read_text())["rows"]
    with pytest.raises(CheckpointError, match=r"out\.pt\.fire\.json: exists already; remove it"):
        project(source, target, include=["a.*"])


def test_a_full_disk_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28), "out.pt")

    monkeypatch.setattr("shutil.copyfile", full)
    assert main([str(small(tmp_path / "in.pt")), str(tmp_path / "out.pt"), "--include", "a.*"]) == 2
    assert capsys.readouterr().err == "out.pt: No space left on device\n"
    assert [path.name for path in tmp_path.iterdir()] == ["in.pt"]


MEMORY = """
import sys
from pathlib import Path
from fire_core.tools.project import project
project(sys.argv[1], sys.argv[2], include=["a.*"])
(line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
print(int(line.split()[1]) // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_is_that_of_the_largest_projected_tensor(tmp_path: Path, zygote: Zygote) -> None:
    peaks = []
    for rows, others in ((64, 1), (8192, 60)):
        tensors = {f"{i}.thing.weight": torch.randn(1024, 1024) for i in range(others)}
        tensors["a.fc1.weight"] = torch.randn(rows, 512).bfloat16()
        path, out = tmp_path / f"{others}.safetensors", tmp_path / f"out-{others}.safetensors"
        save_file(tensors, path)
        peaks.append(int(zygote.code(tmp_path, MEMORY, str(path), str(out)).out))
    assert peaks[1] - peaks[0] < 24 * 8192 * 512 / 2**20 + 16, f"{peaks} MB for a file of 4 and one of 248 MB"


def test_weights_of_other_number_formats_are_named_and_stay(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {
        "a.weight": torch.randn(16, 8),
        "b.weight": torch.randn(16, 8).to(torch.float8_e4m3fn),
        "c.qweight": torch.ones(4, 8, dtype=torch.int32),
        "ids": torch.ones(2, 8, dtype=torch.int64),
    }
    source, target = tmp_path / "mixed.safetensors", tmp_path / "out.safetensors"
    save_file(tensors, source)
    line = "2 of 3 weights are of float8_e4m3fn, int32 and were not read: c.qweight, b.weight"  # in the file's order
    assert line in read_cuts(source).notes
    report = project(source, target, include=["*weight"], solver="exact")
    assert line in report["notes"]
    [(reason, names)] = report["kept"].items()
    assert reason == "its number format is one that a projection does not write"
    assert sorted(names) == ["b.weight", "c.qweight", "ids"]
    new = {stored.name: stored.tensor for stored in load(target).tensors}
    assert torch.linalg.svdvals(new["a.weight"].double()).sub(2**0.5).abs().max() < 1e-5
    assert all(
        torch.equal(new[name].view(torch.uint8), tensors[name].view(torch.uint8)) for name in ("b.weight", "ids")
    )


def test_the_reason_is_given_if_what_is_included_cannot_be_projected(tmp_path: Path) -> None:
    weight = torch.randn(6, 4)
    torch.save({"a.weight": weight, "b.weight": weight.T}, tmp_path / "shared.pt")
    with pytest.raises(CheckpointError, match=r"a\.weight: shares its numbers with b\.weight"):
        project(tmp_path / "shared.pt", tmp_path / "out.pt", include=["a.weight"])


def test_experts_that_transformers_gathers_are_kept_and_named(tmp_path: Path) -> None:
    source = saved("MixtralForCausalLM", tmp_path / "in")
    report = project(source, tmp_path / "out")
    assert sum("q_proj" in row["name"] for row in report["rows"]) == 2
    [(reason, names)] = [(reason, names) for reason, names in report["kept"].items() if "transformers joins" in reason]
    assert "load the model and act" in reason
    assert len(names) == 2 * 2 * 3  # layers, experts, matrices of each
    assert not any("not in the checkpoint" in note for note in report["notes"])


def test_a_model_of_another_size_is_doubted_or_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timm = pytest.importorskip("timm")
    state = timm.create_model("test_resnet").state_dict()
    more = {f"layer{i}.{j}.conv.weight": torch.randn(64, 64, 3, 3) for i in range(5, 9) for j in range(4)}
    save_file(state | more, tmp_path / "deeper.safetensors")
    assert main([str(tmp_path / "deeper.safetensors"), str(tmp_path / "a"), "--model", "timm:test_resnet"]) == 0
    doubt = (
        f"the model that --model names lacks 16 of its {len([p for p in state.values() if p.ndim > 1]) + 16} weights"
    )
    assert doubt in capsys.readouterr().out
    assert audit.main([str(tmp_path / "deeper.safetensors"), "--model", "timm:test_resnet"]) == 0
    said = capsys.readouterr().out
    assert doubt in said
    assert "not read, no parameter of the model has this name: layer5.0.conv.weight, " in said
    source = saved("LlamaForCausalLM", tmp_path / "llama")
    (saved("GPT2LMHeadModel", tmp_path / "gpt2") / "config.json").replace(source / "config.json")
    assert main([str(source), str(tmp_path / "b")]) == 2
    assert "is not of the model that config.json names, which lacks" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("whole", ["GPT2LMHeadModel", "BertForMaskedLM", "ViTForImageClassification"])
def test_the_file_of_a_body_is_read_by_the_model_with_a_head(whole: str, tmp_path: Path) -> None:
    """As `gpt2` is on the hub: the file lacks the prefix `transformer.` that the names of the model have."""
    config = (saved(whole, tmp_path / "whole") / "config.json").read_text()
    body = loaded(whole, tmp_path / "whole").base_model
    body.save_pretrained(tmp_path / "in")
    (tmp_path / "in" / "config.json").write_text(config)
    report = project(tmp_path / "in", tmp_path / "out", solver="exact")
    model = loaded(whole, tmp_path / "in")
    assert len(report["rows"]) >= 8
    fire_(model, solver="exact")
    wanted, new = model.base_model.state_dict(), loaded(whole, tmp_path / "out").base_model.state_dict()
    assert all(torch.equal(value, new[name]) for name, value in wanted.items())


def test_a_larger_vocabulary_is_doubted_and_not_refused(tmp_path: Path) -> None:
    source = saved("BertForMaskedLM", tmp_path / "in")
    model = loaded("BertForMaskedLM", source)
    model.resize_token_embeddings(4000)
    torch.save(model.state_dict(), tmp_path / "in.pt")
    report = project(tmp_path / "in.pt", tmp_path / "out.pt", model=str(source))
    assert len(report["rows"]) == 13
    assert "of the numbers: is it the right one?" in report["notes"][0]


def test_a_buffer_is_no_weight_that_the_model_lacks(tmp_path: Path) -> None:
    source = saved("GPT2LMHeadModel", tmp_path / "in")
    state = loaded("GPT2LMHeadModel", source).state_dict() | {
        f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 512, 512).tril()
        for i in range(2)  # masks of older versions
    }
    torch.save(state, tmp_path / "in.pt")
    report = project(tmp_path / "in.pt", tmp_path / "out.pt", model=str(source))
    assert report["notes"] == []
    assert report["kept"]["a buffer, no parameter"] == ["transformer.h.0.attn.bias", "transformer.h.1.attn.bias"]


def test_the_copy_of_a_read_only_folder_is_written(tmp_path: Path) -> None:
    source = saved("LlamaForCausalLM", tmp_path / "in")
    for path in (*source.iterdir(), source):
        path.chmod(0o555 if path.is_dir() else 0o444)
    report = project(source, tmp_path / "out")
    assert report["rows"]
    assert all(path.stat().st_mode & 0o600 == 0o600 for path in load(tmp_path / "out").files)
    assert all(path.stat().st_mode & 0o777 == 0o444 for path in load(source).files)
    source.chmod(0o755)


def test_a_name_that_says_several_matrices_is_told_where_it_is_taken_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({f"{name}.weight": torch.randn(12, 4) for name in ("a.qkv", "b.c_attn", "c.fc1")}, tmp_path / "in.st")
    (tmp_path / "in.st").rename(tmp_path / "in.safetensors")
    told = "taken as one matrix, though the name says that it holds several: "
    for arguments, names in (
        (["--include", "*.weight"], "a.qkv.weight, b.c_attn.weight; --model or --blocks cuts it"),
        (["--include", "*.weight", "--blocks", "a.qkv.weight=4,4,4"], "b.c_attn.weight; --model"),
    ):
        target = tmp_path / f"out{len(arguments)}.safetensors"
        assert main([str(tmp_path / "in.safetensors"), str(target), *arguments]) == 0
        assert told + names in capsys.readouterr().out
    assert any(told in note for note in read_cuts(tmp_path / "in.safetensors").notes)


def test_weights_in_subfolders_stay_and_are_named(tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "checkpoint-5").mkdir(parents=True)
    small(source / "pytorch_model.bin")
    small(source / "model.ckpt")
    small(source / "checkpoint-5" / "pytorch_model.bin")
    (source / "checkpoint-5" / "config.json").write_text("{}")
    report = project(source, tmp_path / "out", include=["a.*"])
    assert report["left_out"] == ["model.ckpt"]
    assert digests(tmp_path / "out" / "checkpoint-5") == digests(source / "checkpoint-5")
    (line,) = [note for note in report["notes"] if "sub-folders" in note]
    assert line.endswith("copies of the old ones: checkpoint-5/pytorch_model.bin")


def test_tensors_that_were_saved_from_a_gpu_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("torch.serialization.location_tag", lambda storage: "cuda:1")  # what torch.save writes down
        small(tmp_path / "in.pt")
    report = project(tmp_path / "in.pt", tmp_path / "out.pt", include=["a.*"])
    assert any(
        note.startswith("it was saved from cuda:1; in the copy all tensors are on the CPU") for note in report["notes"]
    )
    assert torch.load(tmp_path / "out.pt")["a.q_proj.weight"].device.type == "cpu"
    again = project(tmp_path / "out.pt", tmp_path / "again.pt", include=["a.*"])
    assert not any("saved from" in note for note in again["notes"])


def test_what_fire_warns_of_is_in_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"a.weight": torch.zeros(4, 4), "b.weight": torch.randn(4, 4)}, tmp_path / "in.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main([str(tmp_path / "in.pt"), str(tmp_path / "out.pt"), "--include", "*.weight", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["numbers"] == {"all": 32, "projected": 16}
    # The advice of fire_'s warning needs initial weights, which the command cannot be given.
    assert "zero matrices have no nearest isometry and stay zero: a.weight" in report["notes"]


@pytest.mark.parametrize("path", [(), ("state_dict",), ("state", "trainer", "modules", "model"), ("half", "_orig_mod")])
def test_weights_below_any_key_are_read_projected_and_cut(path: tuple[str, ...], tmp_path: Path) -> None:
    """Also below names that are methods of every module, and those of a compiled model."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    content: dict[str, object] = dict(model.state_dict())
    if path[-1:] == ("_orig_mod",):
        content = {f"_orig_mod.{name}": tensor for name, tensor in content.items()}
    for key in [key for key in path if key != "_orig_mod"][::-1]:
        content = {key: content}
    average = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.save({"model_ema": average, **content}, tmp_path / "in.pt")
    project(tmp_path / "in.pt", tmp_path / "out.pt", include=["*.weight"], blocks={"*0.weight": (4, 4)}, solver="exact")
    fire_(model, solver="exact", blocks={"0.weight": (4, 4)})
    projected: dict[str, object] = torch.load(tmp_path / "out.pt")
    for name in ("0.weight", "2.weight"):
        found = projected
        for key in path:
            found = found[key] if key != "_orig_mod" else {name: found[f"_orig_mod.{name}"]}
        assert torch.allclose(found[name], model.state_dict()[name], atol=1e-6)
        assert torch.allclose(projected["model_ema"][name], model.state_dict()[name], atol=1e-6)
