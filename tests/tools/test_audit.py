"""The audit of checkpoints: numbers against numpy, every layout of file, and refusals in one line."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fire_core import dfi, fire_, resolve
from fire_core.tools import audit, fire
from fire_core.tools.reader import read_cuts
from fire_core.tools.spectra import Finding
from tests.tools.tiny import MODELS, loaded, saved


def findings_of(tensors: dict[str, torch.Tensor], folder: Path) -> dict[str, Finding]:
    """What the audit of a file of these tensors finds."""
    torch.save(tensors, folder / "tensors.pt")
    return {found.name: found for found in audit.examine(read_cuts(folder / "tensors.pt"))[0]}


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    collapsed = torch.randn(12, 1, generator=generator) @ torch.randn(1, 10, generator=generator)
    return {
        "conv.weight": torch.randn(6, 5, 3, 2, generator=generator),
        "good.weight": torch.randn(12, 10, generator=generator),
        "collapsed.weight": collapsed + 0.01 * torch.randn(12, 10, generator=generator),
        "dead.weight": torch.cat([torch.randn(9, 10, generator=generator), torch.zeros(3, 10)]),
        "good.bias": torch.zeros(12),
        "steps": torch.tensor(3),
    }


def test_numbers_are_those_of_the_definitions(tmp_path):
    findings = findings_of(weights(), tmp_path)
    assert list(findings) == ["conv.weight", "good.weight", "collapsed.weight", "dead.weight"]
    for name, finding in findings.items():
        W = weights()[name].double().numpy()
        stack = W.transpose(2, 3, 0, 1).reshape(-1, *W.shape[:2]) if W.ndim == 4 else W[None]
        spectra = np.linalg.svd(stack, compute_uv=False)
        assert finding.matrices == len(stack)
        assert finding.shape == stack.shape[1:]
        stable = (spectra**2).sum(1) / spectra[:, 0] ** 2
        assert finding.stable_rank == pytest.approx(stable.min())
        p = spectra / spectra.sum(1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = -np.nansum(p * np.log(p), axis=1)
        assert finding.effective_rank == pytest.approx(np.exp(entropy).min())
        scale = np.sqrt(stack.shape[1] / stack.shape[2]) / len(stack)
        assert finding.dfi == pytest.approx((((spectra / scale) ** 2 - 1) ** 2).sum())
        if name != "dead.weight":
            assert finding.condition == pytest.approx((spectra[:, 0] / spectra[:, -1]).max())


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_is_cut_as_fire_cuts_the_loaded_model(name, tmp_path):
    folder = saved(name, tmp_path / "model")
    cuts = read_cuts(folder)
    findings, refused = audit.examine(cuts)
    entries = [entry for entry in resolve(loaded(name, folder)) if entry.kind not in ("vector", "locked")]
    assert sorted(found.shape for found in findings) == sorted(entry.shape for entry in entries)
    named = {found.name: found for found in findings}
    for entry in entries:
        values = torch.linalg.svdvals(entry.view(entry.parameter.detach()).double())
        assert named[entry.label].condition == pytest.approx(float((values[..., 0] / values[..., -1]).max()), rel=1e-4)
    assert not refused


def test_what_fire_keeps_does_not_count_and_a_choice_hides_no_parameter(tmp_path, capsys):
    folder = saved("LlamaForCausalLM", tmp_path / "model")
    findings, _ = audit.examine(read_cuts(folder))
    assert {found.name for found in findings if found.kept} == {"model.embed_tokens.weight"}
    assert not dataclasses.replace(findings[0], kept=True, stable_rank=1e-9).benefits
    assert audit.main([str(folder)]) == 0
    said = capsys.readouterr().out
    assert "of 15 weights would benefit" in said  # seven in each of two layers, and the head
    assert "kept: fire_ leaves it as it is, unless it is included by name." in said
    cuts = read_cuts(folder, only="*q_proj*")
    assert [one.stored.name.split(".")[2] for one in cuts.cuts] == ["0", "1"]
    assert cuts.notes == []
    state = loaded("LlamaForCausalLM", folder).state_dict()
    del state["model.norm.weight"]
    torch.save(state, tmp_path / "part.pt")
    assert (
        "1 parameters are not in the checkpoint: model.norm.weight"
        in read_cuts(tmp_path / "part.pt", str(folder)).notes
    )
    assert read_cuts(tmp_path / "part.pt", str(folder), only="*q_proj*").notes == []


def test_not_finite_weights_are_named(tmp_path):
    torch.save({"a.weight": torch.full((3, 3), float("nan")), "b.weight": torch.eye(3)}, tmp_path / "a.pt")
    findings, refused = audit.examine(read_cuts(tmp_path / "a.pt"))
    assert [f.name for f in findings] == ["b.weight"]
    assert refused == ["a.weight: holds NaN or Inf"]


def test_json_holds_no_infinity(tmp_path, capsys):
    torch.save({"a.weight": torch.zeros(3, 3)}, tmp_path / "a.pt")
    assert fire.main(["audit", str(tmp_path / "a.pt"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["weights"]
    assert found["condition"] is None


def test_command_line_reads_nested_checkpoints(tmp_path, capsys):
    path = tmp_path / "checkpoint.pt"
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.zeros(1, 4)).sum().backward()
    optimizer.step()
    torch.save({"model": {"net": weights()}, "optimizer": optimizer.state_dict(), "step": 7}, path)
    assert audit.main([str(path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split()[:3] == ["name", "shape", "n"]
    rows = {line.split()[0]: line.split()[-1] == "yes" for line in out[1:5]}
    assert rows == {
        "model.net.conv.weight": False,
        "model.net.good.weight": False,
        "model.net.collapsed.weight": True,
        "model.net.dead.weight": True,
    }
    assert "2 of 4 weights would benefit from a projection." in out


@pytest.mark.parametrize("tool", fire.COMMANDS)
def test_the_help_of_each_tool_names_the_command(tool, capsys):
    with pytest.raises(SystemExit) as ended:
        fire.main([tool, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: fire {tool} ")


def test_dfi_is_one_number_in_report_audit_and_metric(tmp_path, capsys):
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Linear(6, 4))
    torch.save(model.state_dict(), tmp_path / "a.pt")
    assert fire.main(["audit", str(tmp_path / "a.pt"), "--json"]) == 0
    audited = {found["name"]: found["dfi"] for found in json.loads(capsys.readouterr().out)["weights"]}
    source, target = str(tmp_path / "a.pt"), str(tmp_path / "b.pt")
    assert fire.main(["project", source, target, "--include", "*weight", "--json"]) == 0
    projected = {row["name"]: row["dfi_before"] for row in json.loads(capsys.readouterr().out)["rows"]}
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    for row in fire_(model):
        W = weights[row.name] if row.matrices == 1 else weights[row.name].permute(2, 3, 0, 1)
        assert row.dfi_before == pytest.approx(float(dfi(W, row.scale).sum()), rel=1e-5)
        assert audited[row.name] == pytest.approx(row.dfi_before, rel=1e-5)
        if row.matrices == 1:  # a kernel of an unknown model is kept
            assert projected[row.name] == pytest.approx(row.dfi_before, rel=1e-5)
    with pytest.raises(TypeError, match=r"dfi takes a weight, .* not a Sequential: print"):
        dfi(model)


def written(tensors: dict[str, torch.Tensor], folder: Path) -> str:
    save_file(tensors, folder / "weights.safetensors")
    return str(folder / "weights.safetensors")


@pytest.mark.parametrize("command", [["audit"], ["project", "--include", "*.weight"], ["matrices"]])
def test_a_file_of_integers_is_said_to_be_one(command, tmp_path, capsys):
    file = written({"embedding.weight": torch.zeros(8, 8, dtype=torch.int8), "x": torch.zeros(3).long()}, tmp_path)
    out = [str(tmp_path / "out.safetensors")] if command[0] == "project" else []
    assert fire.main([command[0], file, *out, *command[1:]]) == 2
    said = capsys.readouterr().err
    assert said.endswith(
        "its 2 tensors are of int64, int8; matrices are read from float64, float32, float16, bfloat16\n"
    )
    assert said.count("\n") == 1


def test_chosen_weights_of_integers_are_said_to_be_such(tmp_path, capsys):
    tensors = {"embedding.weight": torch.randn(8, 8), "head.weight": torch.zeros(8, 8, dtype=torch.int8)}
    words = ["project", written(tensors, tmp_path), str(tmp_path / "out"), "--include", "head.*"]
    assert fire.main(words) == 2
    assert "include=head.*: these 1 tensors are of int8; matrices are read from float64" in capsys.readouterr().err


def test_of_a_run_of_this_project_the_trained_networks_are_examined(tmp_path: Path) -> None:
    network = torch.nn.Linear(8, 6)
    others = {"init": {"q": network.state_dict()}, "targets": {"q": network.state_dict()}, "ended": torch.ones(9, 2)}
    torch.save({"state": {"trainer": {"modules": {"q": network.state_dict()}, **others}}}, tmp_path / "step.pt")
    findings, _ = audit.examine(read_cuts(tmp_path / "step.pt"))
    assert [found.name for found in findings] == ["q.weight"]
    findings, _ = audit.examine(read_cuts(tmp_path / "step.pt", only="*.init.*"))
    assert [found.name for found in findings] == ["state.trainer.init.q.weight"]


@pytest.mark.parametrize("command", ["audit", "matrices"])
def test_a_pattern_that_no_name_matches_is_refused_with_the_names(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"a.weight": torch.eye(3), "b.weight": torch.eye(3)}, tmp_path / "a.pt")
    assert fire.main([command, str(tmp_path / "a.pt"), "--only", "c.*"]) == 2
    assert capsys.readouterr().err == "--only=c.*: no name matches; there are a.weight, b.weight, ...\n"
    assert fire.main([command, str(tmp_path / "a.pt"), "--only", "b.*"]) == 0
    out = capsys.readouterr().out
    assert "b.weight" in out
    assert "a.weight" not in out
