"""`fire matrices`, on a folder, a file and a function, and the command `fire` itself."""

import json
from pathlib import Path

import pytest
import torch

from fire_core.tools.fire import main


def test_a_transformers_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPTNeoXConfig(
        hidden_size=32, num_attention_heads=4, num_hidden_layers=1, vocab_size=48, intermediate_size=24
    )
    model = transformers.GPTNeoXForCausalLM(config)
    model.save_pretrained(tmp_path)
    capsys.readouterr()
    assert main(["matrices", str(tmp_path), "--json"]) == 0
    found = {f"{m['name']}[{m['block']}]": m for m in json.loads(capsys.readouterr().out)["matrices"]}
    name = "gpt_neox.layers.0.attention.query_key_value.weight"
    k = found[f"{name}[k]"]
    assert (k["rows"], k["repeats"], k["shape"]) == ([8, 16], 4, [32, 32])
    true = model.get_parameter(name).detach().view(4, 3, 8, 32)[:, 1].reshape(32, 32)
    values = torch.linalg.svdvals(true.double())
    assert k["largest"] == pytest.approx(values[0].item(), rel=1e-6)
    assert k["smallest"] == pytest.approx(values[-1].item(), rel=1e-4)
    assert main(["matrices", str(tmp_path), "--only", "*dense.weight"]) == 0
    head, line, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "weight"
    assert line.split()[:5] == ["gpt_neox.layers.0.attention.dense.weight", "attention_out", "32", "x", "32"]


def test_a_file_of_which_only_names_are_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"conv.weight": torch.randn(8, 3, 2, 2), "fc.weight": torch.full((4, 4), torch.nan)}, tmp_path / "a.pt")
    assert main(["matrices", str(tmp_path / "a.pt"), "--json"]) == 0
    conv, fc = json.loads(capsys.readouterr().out)["matrices"]
    assert (conv["shape"], conv["count"]) == ([8, 3], 4)
    assert "largest" in conv
    assert "largest" not in fc


def test_a_function(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_models.py").write_text("from torch import nn\ndef lstm():\n    return nn.LSTM(6, 5)\nnumber = 1\n")
    (tmp_path / "broken_models.py").write_text("def build(:")
    (tmp_path / "ending_models.py").write_text("raise SystemExit(0)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["matrices", "my_models:lstm"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 9
    for wrong, says in (
        ("my_models:gru", "no attribute 'gru'"),
        ("none:x", "No module named 'none'"),
        ("broken_models:build", "broken_models:build: SyntaxError: invalid syntax"),
        ("ending_models:build", "ending_models:build: SystemExit: 0"),
        (":build", ":build: ValueError: Empty module name"),
        ("my_models:number", "is no function"),
        ("builtins:dict", "gives a dict"),
        ("torch.nn:Bilinear", "missing 3 required"),
        ("not/there", "not/there"),
    ):
        assert main(["matrices", wrong]) == 2
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1


def test_the_command_names_its_tools(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "fire audit PATH" in capsys.readouterr().out
    assert main(["aduit"]) == 2
    assert capsys.readouterr().err == "fire aduit is unknown: one of matrices, audit, project, convergence\n"
