"""Reading `.wandb` files that wandb itself wrote, offline."""

import json
import zlib
from pathlib import Path

import pytest

from analysis.runs import LeftOut
from analysis.sources import wandb_local
from tests.analysis.synthetic import config, rows

WRITE = """
import json, os, sys
os.environ.update(WANDB_SILENT="true", WANDB_ERROR_REPORTING="false")
import wandb
settings = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True)
for leg in json.loads(sys.argv[2]):
    run = wandb.init(mode="offline", project="p", id=leg["id"], name=leg["id"], dir=sys.argv[1], config=leg["config"],
                     settings=settings)
    for number, row in enumerate(leg["rows"], 1):  # as harness/run/wandb_mirror.py
        run.log(row, step=number)
    if leg["done"]:
        run.summary.update({"final/test/accuracy": 1.0})
    run.finish()
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory, zygote) -> Path:
    """Three runs: one whole and larger than a block, one in two legs, one interrupted."""
    root = tmp_path_factory.mktemp("offline")
    short = rows("base", 1, 5)
    lost = [row | {"test/accuracy": 0.0} for row in short[6:8]]  # after the last checkpoint: made again later
    legs = [
        {"id": "whole", "config": config("fire", 0), "rows": rows("fire", 0, 75), "done": True},
        {"id": "resumed", "config": config("base", 1), "rows": short[:6] + lost, "done": False},
        {"id": "resumed", "config": config("base", 1), "rows": short[6:], "done": True},
        {"id": "stopped", "config": config("snp", 2), "rows": short[:3], "done": False},
    ]
    assert zygote.code(root, WRITE, str(root), json.dumps(legs)).code == 0
    return root


def test_real_offline_runs_come_back_as_they_were_logged(written):
    found = {run.name: run for run in wandb_local.read(written)}
    assert set(found) == {"whole", "resumed", "stopped"}
    for name, method, seed, n in (("whole", "fire", 0, 75), ("resumed", "base", 1, 5)):
        run, logged = found[name], [row for row in rows(method, seed, n) if "kind" not in row]
        assert (run.method, run.seed, run.finished) == (method, seed, True)
        assert run.config == config(method, seed)
        for key in logged[0]:
            assert run.history[key].tolist() == [row[key] for row in logged]
        assert run.boundaries["boundary/sfe"].tolist() == [20.0]
    assert not found["stopped"].finished


def test_a_file_is_read_up_to_where_it_was_cut(written, tmp_path):
    (source,) = written.rglob("run-whole.wandb")
    raw = source.read_bytes()
    assert len(raw) > 2 * wandb_local.BLOCK  # or records over block borders would not be covered
    whole = list(wandb_local.records(raw))
    cut = list(wandb_local.records(raw[: len(raw) // 2]))
    assert 0 < len(cut) < len(whole)
    assert cut == whole[: len(cut)]
    (tmp_path / "run-whole.wandb").write_bytes(raw[: len(raw) // 2])
    (run,) = wandb_local.read(tmp_path)
    assert not run.finished


@pytest.mark.parametrize("left", [1, 6, 7, 8])
def test_a_block_that_ends_too_early_for_a_piece_is_padded(left):
    """LevelDB's rule: with under 7 bytes left, zeros follow; with 7 or more, a piece begins there."""

    def piece(kind: int, data: bytes) -> bytes:
        return wandb_local.PIECE.pack(zlib.crc32(bytes([kind]) + data), len(data), kind) + data

    one = b"a" * (wandb_local.BLOCK - len(wandb_local.HEADER) - wandb_local.PIECE.size - left)
    raw = wandb_local.HEADER + piece(wandb_local.FULL, one)
    if left < wandb_local.PIECE.size:
        raw += bytes(left) + piece(wandb_local.FULL, b"second")
    else:
        cut = left - wandb_local.PIECE.size
        raw += piece(wandb_local.FIRST, b"second"[:cut]) + piece(wandb_local.LAST, b"second"[cut:])
    assert list(wandb_local.records(raw)) == [one, b"second"]


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda raw: b"", "empty"),
        (lambda raw: b"x" + raw, "not a .wandb"),
        (lambda raw: raw[:200] + bytes([raw[200] ^ 1]) + raw[201:], "checksum"),
        (lambda raw: raw[:7], "no history"),
    ],
)
def test_damaged_files_are_left_out_with_the_reason(written, tmp_path, damage, word):
    (source,) = written.rglob("run-whole.wandb")
    (tmp_path / "run-x.wandb").write_bytes(damage(source.read_bytes()))
    (item,) = wandb_local.read(tmp_path)
    assert isinstance(item, LeftOut)
    assert word in item.reason
