"""Token files: what goes in comes out, damage is refused by name."""

import gzip
import json
import lzma
import os
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import hydra
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from harness.config.errors import ConfigError, TrainingError
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
        (lambda path: path.with_suffix(".json").write_text("[1]"), "is damaged: it is no JSON object"),
        (lambda path: path.with_suffix(".json").write_bytes(b'{"\xe4": 1}'), "is damaged"),
        (edit(count="12"), "is damaged: it does not say count"),
        (edit(sha256=None, largest=None), "is damaged: it does not say largest, sha256"),
    ],
)
def test_damage_is_refused_with_name_and_cause(tmp_path, options, damage, cause):
    path = make(tmp_path, options)["train"].path
    damage(path)
    with pytest.raises(ConfigError, match=cause) as caught:
        make(tmp_path, options)
    assert str(path.with_suffix("")) in str(caught.value)


@pytest.mark.parametrize("suffix", [".bin", ".json"])
def test_a_token_file_that_cannot_be_read_now_is_not_called_damaged(tmp_path, options, suffix):
    path = make(tmp_path, options)["train"].path.with_suffix(suffix)
    path.rename(path.with_suffix(".away"))
    path.symlink_to(path)  # a loop, which the system refuses to open
    with pytest.raises(TrainingError, match=f"^cannot read {path} .*start the same command again"):
        open_tokens(path.with_suffix(".bin"), BYTE)


def test_large_files_are_hashed_when_asked(tmp_path, options, monkeypatch):
    path = make(tmp_path, options)["train"].path
    monkeypatch.setattr("language.data.MAX_HASHED_BYTES", 0)
    flip(path)
    open_tokens(path, BYTE)
    with pytest.raises(ConfigError, match="checksum"):
        open_tokens(path, BYTE, hash_large_files=True)


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


def split_of(path: Path, **options: object) -> tuple[list[str], list[str]]:
    """Training and held-out documents of one's own texts."""
    documents = list(corpora.text(str(path), **options).documents())
    return [text for text, held_out in documents if not held_out], [text for text, held_out in documents if held_out]


@pytest.mark.parametrize("in_folder", [False, True])
def test_a_text_without_paragraphs_is_split_by_position(tmp_path, in_folder):
    whole = "\n".join(f"line {i} of the text" for i in range(500))
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "my.txt").write_text(whole)
    path = tmp_path / "one" if in_folder else tmp_path / "one" / "my.txt"
    (train,), (held_out,) = split_of(path, val_fraction=0.2)
    assert train + held_out == whole
    assert len(held_out) == pytest.approx(0.2 * len(whole), abs=10)
    assert train.endswith(("line", "of", "the", "text")) or train[-1].isdigit(), "cut at the end of a word"
    (tmp_path / "one" / "my.txt").write_text("x" * 100)
    assert [len(part) for (part,) in split_of(path)] == [90, 10]
    (tmp_path / "one" / "my.txt").write_text("x")
    with pytest.raises(ConfigError, match="a text of 1 characters is too short to hold a part of it out"):
        corpora.text(str(path))


def test_a_text_with_one_large_paragraph_is_split_by_position(tmp_path):
    """A title and an author are no tenth of a book."""
    body = " ".join(f"word{i}" for i in range(2000))
    (tmp_path / "book.txt").write_text(f"The title\n\nAn author\n\n{body}")
    (train,), (held_out,) = split_of(tmp_path / "book.txt")
    assert len(held_out) == pytest.approx(0.1 * len(body), rel=0.05)
    assert train.startswith("The title")
    assert (train + held_out).endswith("word1999")


def test_documents_of_unequal_sizes_are_held_out_by_their_characters(tmp_path, caplog):
    """By names alone nothing, or far too much, would be held out; one file that is nearly all is told."""
    for i in range(30):
        (tmp_path / f"{i}.txt").write_text(f"text {i} " * (200 if i % 7 == 0 else 10))
    train, held_out = split_of(tmp_path)
    share = sum(map(len, held_out)) / sum(map(len, train + held_out))
    assert 0.05 <= share <= 0.2
    assert "characters are held out" not in caplog.text
    for i in range(28):
        (tmp_path / f"{i}.txt").unlink()
    (tmp_path / "all.txt").write_text("all of it " * 10_000)
    split_of(tmp_path)
    assert "% of the characters are held out, as documents are few or large" in caplog.text


@pytest.mark.parametrize("name", ["pydoc", "stdlib", "headers", "characters"])
def test_held_out_text_of_our_corpora_is_not_trained_on(name):
    """Of evenly spaced pieces of 200 characters. Sections of pydoc, and the tables of encodings, repeat each other."""
    documents = list(getattr(corpora, name)().documents())
    train = "\0".join(text for text, is_held_out in documents if not is_held_out)
    held_out = [text for text, is_held_out in documents if is_held_out]
    whole = "".join(held_out)
    starts = range(0, len(whole) - 200, len(whole) // 100)
    assert 0.02 <= len(whole) / (len(whole) + len(train)) <= 0.2
    assert sum(whole[start : start + 200] in train for start in starts) <= 4


HIDDEN = (".ipynb_checkpoints/0.txt", "@eaDir/0.txt", "__MACOSX/a/0.txt", "._0.txt", "~$0.txt", "lost+found/0.txt")


def test_hidden_and_system_files_are_left_out_and_counted(tmp_path, options, caplog):
    caplog.set_level("INFO", "language.corpora")
    folder = tmp_path / "texts"
    before = split_of(folder)
    assert not caplog.text
    for name in HIDDEN:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(TEXTS[0])
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / "empty.txt").write_text(" \n")
    assert split_of(folder) == before
    (line,) = (record.getMessage() for record in caplog.records)
    assert f"hidden or system files ({len(HIDDEN)}: " in line
    assert "files that do not match *.txt (1: .png)" in line
    assert "documents without content (1: " in line


def test_a_held_out_document_that_is_trained_on_is_counted(tmp_path, options, caplog):
    _, held_out = split_of(tmp_path / "texts")
    for i in range(12):  # some of these names are not held out
        (tmp_path / "texts" / f"copy{i}.txt").write_text(held_out[0] + "\n")
    split_of(tmp_path / "texts")
    assert "held-out documents are trained on too, word for word" in caplog.text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "crlf"])
def test_a_byte_order_mark_and_line_ends_change_nothing(tmp_path, options, encoding, caplog):
    caplog.set_level("INFO", "language.corpora")
    folder = tmp_path / "texts"
    before = split_of(folder)
    for file in folder.iterdir():
        content = file.read_text() + "\n\nend"
        data = content.replace("\n", "\r\n").encode() if encoding == "crlf" else content.encode(encoding)
        file.write_bytes(data)
    assert split_of(folder) == tuple([text + "\n\nend" for text in part] for part in before)
    counted = encoding not in ("utf-8", "crlf")
    assert (f"40 {encoding} of 40 texts were read by their byte order mark" in caplog.text) == counted


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        ("schön".encode("latin-1"), r"byte 0xf6 at 3 is no utf-8"),
        ("schön".encode("utf-16-le"), r"byte 0xf6 at 6 is no utf-8"),
        ("plain".encode("utf-16-be"), r"it has characters 0, as binary files have, and UTF-16 without"),
        ("日本".encode("shift-jis"), r"byte 0x93 at 0 is no utf-8"),
        (b"\xff\xfea", r"byte 0x61 at 2 is no utf-16"),
        (b"\x00\x01\x02", r"it has characters 0"),
    ],
)
def test_another_encoding_is_refused_with_counts(tmp_path, options, data, cause):
    (tmp_path / "texts" / "05.txt").write_bytes(data)
    (tmp_path / "texts" / "06.txt").write_bytes(data)
    with pytest.raises(ConfigError, match=rf"^2 of 40 texts are not in UTF-8 \(.*05\.txt: {cause}.*iconv") as caught:
        corpora.text(str(tmp_path / "texts"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (gzip.compress(b"a text", mtime=0), "gzip"),
        (lzma.compress(b"a text"), "xz"),
        (b"PK\x03\x04\x14\x00", "ZIP"),
        (b"%PDF-1.7\n1 0 obj\n", "PDF"),
        (b"{\\rtf1\\ansi a text}", "RTF"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
            "Git LFS, which stands for content",
        ),
    ],
)
def test_texts_that_are_packed_are_refused_with_their_kind(tmp_path, options, data, kind):
    (tmp_path / "texts" / "05.txt").write_bytes(data)
    (tmp_path / "texts" / "06.txt").write_bytes(data)
    with pytest.raises(
        ConfigError, match=rf"^2 of 40 texts are no plain .*05\.txt, which is a file of {kind}"
    ) as caught:
        corpora.text(str(tmp_path / "texts"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "counted"),
    [
        ("“quotes” – dash…".encode("cp1252").decode("latin-1").encode(), True),  # what iconv -f latin1 makes of it
        ("größer ß".encode().decode("latin-1").encode(), True),  # encoded twice
        ("日本語".encode("iso2022_jp"), True),
        (b"\x1b[31mred", True),
        (b"\x01\x02", True),
        ("page\fpage\ttab\vline\x85 größer\u2028“quotes”\n".encode(), False),
    ],
    ids=["cp1252", "twice", "iso2022", "colours", "binary", "none"],
)
def test_control_characters_are_counted(tmp_path, options, data, counted, caplog):
    (tmp_path / "texts" / "05.txt").write_bytes(data)
    corpora.text(str(tmp_path / "texts"))
    assert ("1 of 40 texts hold control characters" in caplog.text) == counted


def test_names_of_files_need_not_be_in_utf_8(tmp_path, options):
    before = split_of(tmp_path / "texts")
    Path(os.fsdecode(os.fsencode(tmp_path / "texts") + b"/gr\xf6\xdfer.txt")).write_text("by Latin-1's name")
    (texts, held_out) = split_of(tmp_path / "texts")
    assert len(texts) + len(held_out) == len(before[0]) + len(before[1]) + 1
    assert {split: len(file.tokens) > 0 for split, file in make(tmp_path, options).items()} == {
        "train": True,
        "val": True,
    }


def test_texts_that_may_not_be_looked_into_are_refused(tmp_path, options, monkeypatch):
    """As after `chmod -R 644`: the names in a folder can be read, and nothing else of it."""
    folder, is_file, is_dir = tmp_path / "texts", Path.is_file, Path.is_dir
    for checked, forbidden in (("is_dir", folder), ("is_dir", tmp_path), ("is_file", folder)):

        def denied(path: Path, checked: str = checked, forbidden: Path = forbidden) -> bool:
            if path.parent == forbidden:
                raise PermissionError(13, "Permission denied", str(path))
            return (is_dir if checked == "is_dir" else is_file)(path)

        with monkeypatch.context() as patch:
            patch.setattr(Path, checked, denied)
            with pytest.raises(ConfigError, match=rf"{folder} cannot be read .Permission denied.: repair or remove"):
                corpora.text(str(folder))


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda f: (f / "loop").symlink_to("."), "loop is a link back to .*texts, in which it stands: remove the link"),
        (lambda f: (f / "gone.txt").symlink_to("nowhere"), "gone.txt is a link to nothing that is there"),
        (lambda f: [file.write_text(" ") for file in f.iterdir()], "holds no text: 40 files without content"),
        (
            lambda f: [file.rename(f / f".{file.name}") for file in f.iterdir()],
            r"left out are hidden or system files .40: ",
        ),
    ],
)
def test_links_that_loop_and_texts_without_content_are_refused(tmp_path, options, change, cause):
    change(tmp_path / "texts")
    with pytest.raises(ConfigError, match=cause):
        corpora.text(str(tmp_path / "texts"))


def test_patterns_name_files_at_any_depth(tmp_path, options):
    (tmp_path / "texts" / "notes").mkdir()
    (tmp_path / "texts" / "notes" / "a.md").write_text("first")
    (tmp_path / "texts" / "b.md").write_text("second")
    for pattern, number in (("*.md", 2), ("**/*.md", 2), ("*.txt", 40)):
        train, held_out = split_of(tmp_path / "texts", pattern=pattern)
        assert len(train + held_out) == number
    assert split_of(tmp_path / "texts", pattern="notes/*.md") == (["firs"], ["t"])


def test_an_absolute_pattern_is_refused(tmp_path, options):
    with pytest.raises(ConfigError, match=r"pattern=/absolute/.* is no pattern of names in a folder \(Non-relative"):
        corpora.text(str(tmp_path / "texts"), pattern="/absolute/*.txt")


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
