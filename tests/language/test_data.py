"""Token files: what goes in comes out, damage is refused by name."""

import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import hydra
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from harness.config.errors import ConfigError
from harness.config.groups import CONF
from language import corpora, prepare
from language.data import Mixture, TokenFile, evenly_spaced, open_tokens
from language.prepare import corpus_folder, load
from language.tokenizers import ByteTokenizer, get_tokenizer

BYTE = ByteTokenizer()
TEXTS = [f"document {i}: " + "süß " * i for i in range(40)]


@pytest.fixture
def options(tmp_path: Path) -> dict[str, object]:
    """A corpus of one's own files."""
    (tmp_path / "texts").mkdir()
    for i, text in enumerate(TEXTS):
        (tmp_path / "texts" / f"{i:02d}.txt").write_text(text)
    return {
        "_target_": "language.corpora.text",
        "name": "text",
        "local": True,
        "path": str(tmp_path / "texts"),
        "val_fraction": 0.2,
    }


def make(tmp_path: Path, options: dict[str, object]) -> dict[str, TokenFile]:
    return prepare.prepare(tmp_path / "data", options, BYTE, progress=False)


def test_documents_come_out_as_they_went_in(tmp_path, options):
    files = make(tmp_path, options)
    found = [bytes(part[:-1].tolist()).decode() for f in files.values() for part in np.split(f.tokens, ends(f))[:-1]]
    assert Counter(text.strip("\n") for text in found) == Counter(text.strip("\n") for text in TEXTS)
    assert 0 < len(ends(files["val"])) < len(TEXTS) / 2
    for file in files.values():
        assert file.header["count"] == len(file) > 0
        assert {"tokenizer", "dtype", "count", "source", "sha256"} <= file.header.keys()


def ends(file: TokenFile) -> np.ndarray:
    return np.flatnonzero(file.tokens == BYTE.end) + 1


def test_prepared_once(tmp_path, options):
    first = make(tmp_path, options)["train"].path.stat().st_mtime_ns
    assert make(tmp_path, options)["train"].path.stat().st_mtime_ns == first


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def edit(**change: object):
    def do(path: Path) -> None:
        name = path.with_suffix(".json")
        name.write_text(json.dumps(json.loads(name.read_text()) | change))

    return do


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        (flip, "does not match its checksum"),
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), "its header says"),
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.with_suffix(".json").write_text("{"), "is damaged"),
        (edit(dtype="uint16"), "dtype=uint16"),
        (edit(tokenizer="gpt2"), "tokenizer=gpt2"),
        (edit(largest=256), "holds token 256"),
        (edit(format=7), "format=7"),
    ],
)
def test_damage_is_refused_with_name_and_cause(tmp_path, options, damage, cause):
    path = make(tmp_path, options)["train"].path
    damage(path)
    with pytest.raises(ConfigError, match=cause) as caught:
        make(tmp_path, options)
    assert str(path.with_suffix("")) in str(caught.value)


def test_large_files_are_hashed_when_asked(tmp_path, options, monkeypatch):
    path = make(tmp_path, options)["train"].path
    monkeypatch.setattr("language.data.HASHED", 0)
    flip(path)
    open_tokens(path, BYTE)
    with pytest.raises(ConfigError, match="checksum"):
        open_tokens(path, BYTE, whole=True)


def test_changed_source_is_refused(tmp_path, options):
    make(tmp_path, options)
    (tmp_path / "texts" / "00.txt").write_text("other")
    with pytest.raises(ConfigError, match="has changed since"):
        make(tmp_path, options)


def test_an_interrupted_preparation_begins_anew(tmp_path, options, monkeypatch):
    whole = {split: file.tokens.tobytes() for split, file in make(tmp_path / "whole", options).items()}
    encode = ByteTokenizer.encode
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "BATCH", 7)
        patch.setattr(ByteTokenizer, "encode", lambda self, texts: encode(self, [*texts, 1 / 0]))
        with pytest.raises(ZeroDivisionError):
            make(tmp_path, options)
    assert not (corpus_folder(tmp_path / "data", options, BYTE) / "train.bin").exists()
    assert {split: file.tokens.tobytes() for split, file in make(tmp_path, options).items()} == whole


def test_one_document_leaves_nothing_to_hold_out(tmp_path, options):
    (tmp_path / "one.txt").write_text("line\n" * 50)
    with pytest.raises(ConfigError, match=r"1 documents leave one split empty"):
        make(tmp_path, options | {"path": str(tmp_path / "one.txt")})


def test_what_must_be_downloaded_is_not_prepared_by_the_trainer(tmp_path, options):
    with pytest.raises(ConfigError, match=r"is not prepared .*python -m language\.prepare dataset=text"):
        load(tmp_path, options, BYTE, local=False)


def test_missing_packages_and_names():
    with pytest.raises(ConfigError, match="tokenizer=nope is unknown; accepted: byte, gpt2"):
        get_tokenizer("nope")
    with pytest.raises(ConfigError, match="path=/nowhere is neither"):
        corpora.text("/nowhere")
    with pytest.raises(ConfigError, match="needs path="):
        corpora.text(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["pydoc", "stdlib"])
def test_offline_corpora(name):
    corpus = getattr(corpora, name)()
    documents = list(corpus.documents())
    assert len(documents) == corpus.count > 50
    assert sum(len(text) for text, held_out in documents if not held_out) > 200_000
    assert sum(len(text) for text, held_out in documents if held_out) > 5_000
    if name == "stdlib":  # the first corpus is not in the second
        assert not any("topics = {" in text[:2000] for text, _ in documents)


def token_file(tokens: np.ndarray) -> TokenFile:
    return TokenFile(Path("some.bin"), tokens, {})


@pytest.mark.parametrize("by", ["batch", "sequence"])
def test_mixture(by):
    """Targets are the next tokens, every place can be drawn, and corpora come as often as they should."""
    low, high = np.arange(20, dtype=np.uint8), np.arange(100, 140, dtype=np.uint8)
    mixture = Mixture((token_file(low), token_file(high)), (0.25, 0.75), 16, by)
    generator = np.random.default_rng(0)
    batches = [mixture.batch(generator, 4) for _ in range(500)]
    inputs = torch.stack([x for x, _ in batches])  # (500, 4, 16)
    assert all(torch.equal(y, x + 1) for x, y in batches)
    of_low = inputs[..., 0] < 100
    assert of_low.float().mean() == pytest.approx(0.25, abs=0.06)
    assert (of_low == of_low[:, :1]).all() == (by == "batch")
    assert set(inputs[of_low][:, 0].tolist()) == set(range(4))
    assert set(inputs[~of_low][:, 0].tolist()) == set(range(100, 124))


def test_too_short_for_a_block():
    with pytest.raises(ConfigError, match=r"some\.bin has 16 tokens here, too few for model.block_size=16"):
        Mixture((token_file(np.zeros(16, np.uint8)),), (1.0,), 16)
    with pytest.raises(ConfigError, match=r"some\.bin has 3 tokens, too few"):
        evenly_spaced(token_file(np.zeros(3, np.uint8)), 16, 8)


def test_held_out_sequences_do_not_overlap():
    rows = evenly_spaced(token_file(np.arange(100, dtype=np.uint8)), 16, 50)
    assert rows.shape == (5, 17)
    assert len(set(rows.flatten().tolist())) == rows.numel()
    assert rows[0, 0] == 0
    assert rows[-1, -1] == 99


# ---- what cannot be downloaded here, through stand-ins for the packages


class Split(list):
    """Rows as Hugging Face `datasets` gives them: a dict for an index, a dict of columns for a slice."""

    def __getitem__(self, key):
        return {"text": super().__getitem__(key)}

    def train_test_split(self, test_size: float, seed: int, shuffle: bool) -> dict[str, "Split"]:
        assert (seed, shuffle) == (2357, True)
        held_out = max(1, int(test_size * len(self)))
        return {"train": Split(list(self)[held_out:]), "test": Split(list(self)[:held_out])}


class Encoding:
    """Every character is a token from 1,000 on."""

    def encode_ordinary_batch(self, texts: list[str]) -> list[list[int]]:
        return [[1000 + ord(c) for c in text] for text in texts]

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(token - 1000) for token in tokens if token != 50_256)


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = {
        ("Salesforce/wikitext", "wikitext-103-raw-v1"): {
            "train": Split(f"wiki {i}\n" for i in range(2345)),
            "validation": Split(["held\n", "out\n"]),
        },
        ("Salesforce/wikitext", "wikitext-103-v1"): {"train": Split(f"row {i}" for i in range(3000))},
        ("Skylion007/openwebtext", None): {"train": Split(f"web {i}" for i in range(3000))},
    }

    def load_dataset(repository: str, name: str | None, revision: str | None) -> dict[str, Split]:
        if revision == "old":
            raise RuntimeError("Dataset scripts are no longer supported, but found openwebtext.py")
        return hub[repository, name]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setitem(sys.modules, "tiktoken", SimpleNamespace(get_encoding=lambda name: Encoding()))


@pytest.mark.parametrize("name", ["wikitext103", "wikitext103_tokenised", "openwebtext"])
def test_corpora_of_the_hub(tmp_path, stand_ins, name, caplog):
    gpt2 = get_tokenizer("gpt2")
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        options = OmegaConf.to_container(hydra.compose("language_prepare", [f"dataset={name}"]).dataset)
    files = prepare.prepare(tmp_path, options, gpt2, progress=False)
    texts = {split: Encoding().decode([t for t in file.tokens if t < gpt2.end]) for split, file in files.items()}
    assert files["train"].tokens.dtype == np.uint16
    if name == "wikitext103":
        assert texts == {"train": "".join(f"wiki {i}\n" for i in range(2345)), "val": "held\nout\n"}
    else:  # every document, or line, ends with a mark
        kind = "web" if name == "openwebtext" else "row"
        assert texts == {"train": "".join(f"{kind} {i}" for i in range(1, 3000)), "val": f"{kind} 0"}
        assert int((files["train"].tokens == gpt2.end).sum()) == 2999
    assert ("are usual" in caplog.text) == ("expected_tokens" in options)  # ours is not as large as the real one
    assert load(tmp_path, options, gpt2, local=False)["val"].header["sha256"] == files["val"].header["sha256"]


def test_the_hub_says_no(stand_ins):
    with pytest.raises(ConfigError, match=r"cannot load Skylion007/openwebtext: .*scripts.*dataset\.repository="):
        corpora.openwebtext(revision="old")
