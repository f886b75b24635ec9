"""The convergence table: its numbers are right, and its files are readable."""

import csv

import pytest
import torch

from fire_core.tools.checkpoint.stored import CheckpointError
from fire_core.tools.convergence import count_steps, family, from_checkpoint, main, measure


def test_a_row_holds_what_the_iteration_gives():
    W = family("square", 12, 4, seed=1)
    row = measure("w", [W], "newton_schulz", "spectral", 3)
    U, s, Vh = torch.linalg.svd(W.double())
    t = s / s[:, :1]
    for _ in range(3):
        t = 1.5 * t - 0.5 * t**3
    X = (U * t[:, None, :]) @ Vh
    assert row.dfi_mean == pytest.approx(float((t**2 - 1).square().sum(-1).mean()), rel=1e-5)
    assert row.dfi_per_n == pytest.approx(float((t**2 - 1).square().sum(-1).max()) / 12, rel=1e-5)
    assert row.sfe_mean == pytest.approx(float((W - X).square().sum((-2, -1)).mean()), rel=1e-5)
    assert (row.sigma_min, row.sigma_max) == pytest.approx((float(t.min()), float(t.max())), rel=1e-4)
    # For each of the 4 matrices, two products of 2 n^3 a step, and one for the spectral norm.
    assert row.matmul_gflop == pytest.approx(4 * (3 * 2 + 1) * 2 * 12**3 / 1e9)


def test_step_counts_are_the_first_that_suffice():
    W = family("tall", 16, 3, seed=2)
    steps = count_steps("w", [W], ["frobenius", "spectral"])
    s = torch.linalg.svdvals(W.double())
    for norm_init, start in (("frobenius", s.square().sum(-1, keepdim=True).sqrt()), ("spectral", s[:, :1])):
        t, needed = s / start, torch.zeros(3)
        for _ in range(30):
            needed += (t**2 - 1).square().sum(-1) > 1e-6 * 16
            t = 1.5 * t - 0.5 * t**3
        assert steps.median[norm_init] == needed.median()
        assert steps.worst[norm_init] == needed.max()
    assert steps.median["spectral"] < steps.median["frobenius"]


def test_checkpoints_are_cut_and_thinned(tmp_path):
    torch.save(
        {
            "conv.weight": torch.randn(6, 5, 3, 3),
            "attn.c_attn.weight": torch.randn(12, 4),
            "fc.weight": torch.randn(7, 4),
            "fc.bias": torch.randn(7),
        },
        tmp_path / "model.pt",
    )
    shapes = sorted(tuple(batch.shape) for batch in from_checkpoint(tmp_path / "model.pt", limit=4))
    assert shapes == [(1, 7, 4), (1, 12, 4), (4, 6, 5)]


def test_files(tmp_path):
    torch.save({"fc.weight": torch.randn(9, 6)}, tmp_path / "net.pt")
    arguments = [str(tmp_path / "net.pt"), "--families", "square", "rank-deficient", "--size", "10", "--draws", "2"]
    assert main([*arguments, "--iterations", "2", "5", "--out", str(tmp_path / "out")]) == 0
    with (tmp_path / "out" / "convergence.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * (4 * 2 + 1 + 2)
    assert {row["weights"] for row in rows} == {"square 10x10", "rank-deficient 10x10", "net"}
    exact = [row for row in rows if row["solver"] == "exact"]
    assert all(float(row["dfi_per_n"]) < 1e-11 for row in exact)
    text = (tmp_path / "out" / "convergence.md").read_text()
    assert [line.split(" | ")[0] for line in text.splitlines()[-5:-2]] == [
        "| square 10x10",
        "| rank-deficient 10x10",
        "| net",
    ]
    assert str(tmp_path) not in text
    assert (tmp_path / "out" / "convergence.png").read_bytes()[1:4] == b"PNG"
    assert (tmp_path / "out" / "convergence.pdf").read_bytes()[:4] == b"%PDF"


def test_bad_options_are_one_line_before_any_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fire_core.tools.convergence.run", lambda *_: pytest.fail("work was begun"))
    (tmp_path / "file").touch()
    for arguments, message in (
        (["--size", "0"], "--size: 0 is no whole number from 2 up"),
        (["--iterations", "2", "-1"], "--iterations: -1"),
        (["--families"], "nothing to do"),
        (["--families", "round"], "invalid choice: 'round'"),
        (["--size", "4", "--out", str(tmp_path / "file" / "out")], "--out"),
        ([str(tmp_path / "none.pt"), "--families"], "no such file"),
    ):
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = ended.code
        captured = capsys.readouterr()
        assert (code, captured.out, captured.err.count("\n")) == (2, "", 1)
        assert message in captured.err


def test_files_of_an_earlier_call_do_not_stay_beside_other_rows(tmp_path, monkeypatch):
    arguments = ["--families", "square", "--size", "4", "--draws", "1", "--iterations", "2", "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert (tmp_path / "convergence.md").exists()

    def without_matplotlib(*_):
        raise ImportError

    monkeypatch.setattr("fire_core.tools.convergence.plot", without_matplotlib)
    assert main([*arguments, "--solvers", "exact"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["convergence.csv"]


def test_not_finite_weights_are_refused_by_name(tmp_path):
    torch.save({"a.weight": torch.full((3, 3), float("nan"))}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=r"NaN or Inf in a.weight$"):
        from_checkpoint(tmp_path / "a.pt", 4)
