"""Corpora of text. A corpus is a list of documents in a fixed order, each with its split.

`pydoc` (English), `stdlib` (Python), `headers` (C++) and `characters` (a table) are on every machine with Python and
torch. The paper's pair, WikiText-103 and OpenWebText, is loaded through Hugging Face `datasets`.
"""

import codecs
import hashlib
import json
import logging
import os
import platform
import re
import sysconfig
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch

from fire_core.ranges import Seed, checked, within
from harness.config.errors import ConfigError
from harness.config.own_files import LeftOut, files_below
from harness.config.paths import Place, expanded

log = logging.getLogger(__name__)
Part = Annotated[float, within(0, 1, open_low=True, open_high=True)]  # share that is held out for validation

TRAIN, HELD_OUT = "train", "held out"  # names of the two documents of a text that is split by position

# The version of the corpora that come with Python and torch. Raise it when a change moves their texts or their splits.
VERSION = 2

# Folders that are left out because they are not the library itself: tests, bundled programs, the text of `pydoc`; and
# `encodings`, a hundred tables with the same code around them, which would stand in training and in held-out text.
SKIPPED = {
    "encodings",
    "test",
    "tests",
    "site-packages",
    "__pycache__",
    "idlelib",
    "lib2to3",
    "ensurepip",
    "pydoc_data",
    "turtledemo",
}


# Byte order marks and the encodings that they announce. UTF-32 comes first, as its mark begins like that of UTF-16.
MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


# First bytes of files that hold texts in a form that must be unpacked or extracted first.
PACKED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "ZIP (or a document of an office program)",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"%PDF-": "PDF",
    b"{\\rtf": "RTF",
    b"version https://git-lfs.github.com/spec/": "Git LFS, which stands for content that was not fetched",
}
# What no text has but files of other kinds and texts that were decoded wrongly: control characters besides tabulators,
# line ends and page breaks.
CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")


@dataclass(frozen=True)
class Corpus:
    """Documents, read one by one.

    Attributes:
        source: name of the corpus, for the header of its token files.
        count: number of documents.
        documents: returns an iterator over (text, whether it is held out for validation) of each document.
        ends: whether a token marks the end of each document.
        fingerprint: a digest that changes with the texts; empty if the corpus's name has a version.
    """

    source: str
    count: int
    documents: Callable[[], Iterator[tuple[str, bool]]]
    ends: bool = True
    fingerprint: str = ""


def for_validation(name: str, fraction: float) -> bool:
    """Return whether a document is held out, which depends on its name alone; `fraction` of all names are."""
    return _number_of(name) < fraction * 2**64


def _number_of(name: str) -> int:
    """Return a number in [0, 2^64) that looks random and depends on a name alone."""
    # A file's name need not be in UTF-8; its other bytes count as they are.
    return int.from_bytes(hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:8], "big")


@checked
def pydoc(val_fraction: Part = 0.1) -> Corpus:
    """CPython's language reference as it ships with the interpreter (`pydoc_data.topics`); sections are documents.

    Many sections hold others: "compound" holds "for", "while" and "class". Of these the larger ones alone are taken, so
    that no text is both held out and trained on.

    Args:
        val_fraction: fraction of the sections that is held out.
    """
    from pydoc_data.topics import topics

    source = f"pydoc_data.topics of Python {platform.python_version()}"
    return _in_memory(source, sorted(_without_contained(topics).items()), val_fraction)


def _without_contained(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of which no larger one that is returned holds more than half of the longer lines."""
    kept: dict[str, str] = {}
    lines_of_kept: list[set[str]] = []
    for name, content in sorted(texts.items(), key=lambda item: len(item[1]), reverse=True):
        lines = {line.strip() for line in content.splitlines() if len(line.strip()) > 15}
        if all(2 * len(lines & others) <= len(lines) for others in lines_of_kept):
            kept[name] = content
            lines_of_kept.append(lines)
    return kept


@checked
def stdlib(val_fraction: Part = 0.05) -> Corpus:
    """Read the sources of CPython's standard library, without its tests and its tables of characters.

    Args:
        val_fraction: fraction of the files that is held out.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED]  # os.walk enters only those that are left
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return _in_memory(f"standard library of Python {platform.python_version()}", _read(root, files), val_fraction)


@checked
def headers(val_fraction: Part = 0.1) -> Corpus:
    """Read the headers of torch's core library (c10), C++.

    Args:
        val_fraction: fraction of the files that is held out.
    """
    root = Path(torch.__file__).parent / "include" / "c10"
    named = _read(root, root.rglob("*.h"))
    if not named:
        raise ConfigError(f"this build of torch brings no C++ headers in {root}: choose another dataset=")
    return _in_memory(f"c10 headers of torch {torch.__version__}", named, val_fraction)


@checked
def characters(val_fraction: Part = 0.1) -> Corpus:
    """Make a line for each character of Python's Unicode tables: code point, category, name.

    Characters that are named by their number or their sound (ideographs, Hangul syllables) are left out.

    Args:
        val_fraction: fraction of the blocks of 16 code points that is held out.
    """
    blocks: dict[int, list[str]] = {}
    for point in range(0x30000):
        name = unicodedata.name(chr(point), "")
        if name and not name.endswith(f"-{point:04X}") and not name.startswith("HANGUL SYLLABLE"):
            blocks.setdefault(point // 16, []).append(f"{point:04X} {unicodedata.category(chr(point))} {name}\n")
    named = [(f"{block:04X}0", "".join(lines)) for block, lines in blocks.items()]
    return _in_memory(f"Unicode {unicodedata.unidata_version}", named, val_fraction)


@checked
def text(path: Place | None, pattern: Place = "*.txt", val_fraction: Part = 0.1) -> Corpus:
    """Your own files, in UTF-8 or with a byte order mark.

    A text without paragraphs, or with one that is nearly all of it, is split by position: its last part is held out.
    Hidden and system files, files of other
    names and documents without content are left out; one line of the log counts them, and another the held-out
    documents that are trained on too.

    Args:
        path: a text file, whose paragraphs are the documents, or a folder, whose files are. A folder of one file counts
            as the file itself.
        pattern: pattern that the names of a folder's files must match, at any depth.
        val_fraction: fraction of the documents that is held out.

    Raises:
        ConfigError: there is no text, or a file is in an encoding that cannot be known.
    """
    if path is None:
        raise ConfigError("dataset=text needs path=<file or folder>")
    place, left_out = expanded(path), LeftOut()
    try:
        is_folder, is_file = place.is_dir(), place.is_file()
    except OSError as error:
        raise ConfigError(f"text {place} cannot be read ({error.strerror or error}): repair or remove it") from error
    if is_folder:
        files = _matching(place, pattern, left_out)
    elif is_file:
        files = [place]
    else:
        raise ConfigError(f"dataset=text: path={path} is neither a file nor a folder")
    if not files:
        hint = f"; left out are {left_out}" if str(left_out) else ""
        raise ConfigError(f"dataset=text: path={path} holds no file that matches pattern={pattern}{hint}")
    contents = _decoded(files)
    if len(files) == 1:
        candidates = [(str(i), paragraph) for i, paragraph in enumerate(contents[0].split("\n\n"))]
        paragraphs = [(name, paragraph) for name, paragraph in candidates if paragraph.strip()]
        if len(paragraphs) == 1 or _is_uneven(paragraphs, _held_out(paragraphs, val_fraction), val_fraction):
            candidates = _split_by_position(contents[0].strip(), val_fraction)
    else:
        candidates = [(str(file.relative_to(place)), content) for file, content in zip(files, contents, strict=True)]
    documents = [(name, content) for name, content in candidates if content.strip()]
    if not documents:
        raise ConfigError(f"dataset=text: path={path} holds no text: {len(files)} files without content")
    if empty := len(candidates) - len(documents):
        left_out.add("documents without content", "of a folder's files or a file's paragraphs", empty)
    if str(left_out):
        log.info("dataset.path=%s: left out are %s", path, left_out)
    serialised = json.dumps([val_fraction, documents])
    fingerprint = hashlib.sha256(serialised.encode(errors="surrogatepass")).hexdigest()
    corpus = _in_memory(f"{len(files)} files of {place.resolve()}", documents, val_fraction, fingerprint)
    training_texts = {content.strip() for content, held_out in corpus.documents() if not held_out}
    held_out_texts = [content.strip() for content, held_out in corpus.documents() if held_out]
    if duplicates := sum(content in training_texts for content in held_out_texts):
        log.warning(
            "dataset.path=%s: %d of %d held-out documents are trained on too, word for word: they measure memory",
            path,
            duplicates,
            len(held_out_texts),
        )
    return corpus


@checked
def wikitext103(repository: str = "Salesforce/wikitext", revision: str | None = None) -> Corpus:
    """WikiText-103, raw (Merity et al., arXiv 1609.07843), with its own validation set; no token between lines.

    Args:
        repository: name on the Hugging Face hub, or a folder of parquet files.
        revision: revision of the repository; None takes the newest.
    """
    splits = _load_dataset(repository, "wikitext-103-raw-v1", revision)
    return _from_hub("wikitext-103-raw-v1", splits["train"], splits["validation"], ends=False)


@checked
def wikitext103_tokenised(
    val_fraction: Part = 0.0005,
    split_seed: Seed = 2357,
    repository: str = "Salesforce/wikitext",
    revision: str | None = None,
) -> Corpus:
    """WikiText-103 as the FIRE authors prepare it: tokenised, a token after each line, a part of *train* held out.

    Args:
        val_fraction: fraction of the lines that is held out.
        split_seed: seed of the choice of these lines.
        repository: name on the Hugging Face hub, or a folder of parquet files.
        revision: revision of the repository; None takes the newest.
    """
    rows = _load_dataset(repository, "wikitext-103-v1", revision)["train"]
    return _with_random_split("wikitext-103-v1", rows, val_fraction, split_seed)


@checked
def openwebtext(
    val_fraction: Part = 0.0005,
    split_seed: Seed = 2357,
    repository: str = "Skylion007/openwebtext",
    revision: str | None = "79d93d786212f7344586290adb811d4ae6a1762c",
) -> Corpus:
    """OpenWebText (Gokaslan and Cohen), split as nanoGPT does.

    Args:
        val_fraction: fraction of the documents that is held out.
        split_seed: seed of the choice of these documents.
        repository: name on the Hugging Face hub, or a folder of parquet files, or of text files with a document in each
            line.
        revision: revision of the repository; None takes the newest.
    """
    rows = _load_dataset(repository, None, revision)["train"]
    return _with_random_split("openwebtext", rows, val_fraction, split_seed)


def _read(root: Path, files: Iterable[Path]) -> list[tuple[str, str]]:
    """Return the name below `root` and the text of each file, sorted by path."""
    return [(str(p.relative_to(root)), p.read_text(encoding="utf-8", errors="replace")) for p in sorted(files)]


def _matching(folder: Path, pattern: str, left_out: LeftOut) -> list[Path]:
    """Return the files of a folder, at any depth, that match a pattern such as `*.txt` or `notes/*.md`."""
    files = files_below(folder, left_out)
    folders = {folder, *(parent for file in files for parent in file.parents if parent.is_relative_to(folder))}
    try:
        matching = {path for subfolder in folders for path in subfolder.glob(pattern)}
    except (NotImplementedError, ValueError) as error:  # pathlib's, of an absolute path and of ** within a name
        raise ConfigError(f"dataset=text: pattern={pattern} is no pattern of names in a folder ({error})") from error
    for file in files:
        if file not in matching:
            left_out.add(f"files that do not match {pattern}", file.suffix or file.name)
    return sorted(matching.intersection(files))


def _decoded(files: Sequence[Path]) -> list[str]:
    """Return the texts of files, with the line ends of Unix.

    Raises:
        ConfigError: a file is packed, or in an unknown encoding; the message counts such files.
    """
    contents, reasons, marked = list[str](), list[str](), Counter[str]()
    packed = list[tuple[Path, str]]()
    for file in files:
        try:
            data = file.read_bytes()
            if kind := next((kind for begin, kind in PACKED.items() if data.startswith(begin)), None):
                packed.append((file, kind))
                continue
            encoding = next((name for mark, name in MARKS if data.startswith(mark)), "utf-8")
            content = data.decode(encoding)
            if "\0" in content:
                raise ValueError("it has characters 0, as binary files have, and UTF-16 without a byte order mark")
        except OSError as error:
            raise ConfigError(f"text {file} cannot be read ({error.strerror or error}): repair or remove it") from error
        except UnicodeDecodeError as error:
            reasons.append(f"{file}: byte 0x{data[error.start]:02x} at {error.start} is no {error.encoding}")
        except ValueError as error:
            reasons.append(f"{file}: {error}")
        else:
            marked.update([encoding] if encoding != "utf-8" else [])
            contents.append(content.replace("\r\n", "\n").replace("\r", "\n"))
    if packed:
        file, kind = packed[0]
        raise ConfigError(
            f"{len(packed)} of {len(files)} texts are no plain texts, such as {file}, which is a file of {kind}: "
            "unpack, convert or remove them"
        )
    if reasons:
        raise ConfigError(
            f"{len(reasons)} of {len(files)} texts are not in UTF-8 ({reasons[0]}): convert them, for example those of "
            "Windows and in Latin-1 by iconv -f cp1252 -t utf-8, or remove them"
        )
    if marked:
        log.info("%s of %d texts were read by their byte order mark", _counted(marked), len(files))
    if damaged := sum("\ufffd" in content for content in contents):
        log.warning("%d of %d texts hold replacement characters: they were damaged before", damaged, len(files))
    if controlled := sum(CONTROL.search(content) is not None for content in contents):
        log.warning(
            "%d of %d texts hold control characters, as binary files have and texts that were decoded wrongly",
            controlled,
            len(files),
        )
    return contents


def _counted(numbers: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in numbers.items())


def _split_by_position(content: str, val_fraction: float) -> list[tuple[str, str]]:
    """Cut a text whose paragraphs cannot be split into two named documents where a word ends; the second is held out.

    Raises:
        ConfigError: the text is too short to be cut.
    """
    middle = len(content) - max(1, round(val_fraction * len(content)))
    last_break = max(content.rfind("\n", 0, middle), content.rfind(" ", 0, middle))
    cut = last_break if last_break > middle / 2 else middle
    if not cut:
        raise ConfigError(f"dataset=text: a text of {len(content)} characters is too short to hold a part of it out")
    return [(TRAIN, content[:cut]), (HELD_OUT, content[cut:])]


def _held_out(named: Sequence[tuple[str, str]], val_fraction: float) -> list[bool]:
    """Return which documents are held out; both splits get at least one, if there are two documents.

    A document's name alone decides, so that other documents do not move it to the other split. Where this holds out
    less than half of `val_fraction` of the characters, or more than twice as much, documents are held out in the order
    of the same numbers until about this fraction is reached.

    Args:
        named: name and text of each document.
        val_fraction: fraction of the documents that is held out.
    """
    if any(name in (TRAIN, HELD_OUT) for name, _ in named):  # split by position
        return [name == HELD_OUT for name, _ in named]
    held_out = [for_validation(name, val_fraction) for name, _ in named]
    if _is_uneven(named, held_out, val_fraction):
        wanted, count = val_fraction * sum(len(content) for _, content in named), 0
        held_out = [False] * len(named)
        for i in sorted(range(len(named)), key=lambda i: _number_of(named[i][0])):
            size = len(named[i][1])
            if count < wanted and count + size <= 1.5 * wanted:
                held_out[i], count = True, count + size
    if not any(held_out) and len(named) > 1:
        held_out[-1] = True
    if all(held_out) and len(named) > 1:
        held_out[0] = False
    return held_out


def _share_held_out(named: Sequence[tuple[str, str]], held_out: Sequence[bool]) -> float:
    """Return the share of the characters that is held out."""
    sizes = [len(content) for _, content in named]
    return sum(size for size, held in zip(sizes, held_out, strict=True) if held) / max(1, sum(sizes))


def _is_uneven(named: Sequence[tuple[str, str]], held_out: Sequence[bool], val_fraction: float) -> bool:
    """Return whether less than half of the wanted fraction of the characters is held out, or more than twice."""
    return not val_fraction / 2 <= _share_held_out(named, held_out) <= 2 * val_fraction


def _in_memory(source: str, named: Sequence[tuple[str, str]], val_fraction: float, fingerprint: str = "") -> Corpus:
    """Return a corpus of documents that are in memory.

    Args:
        source: name of the corpus.
        named: name and text of each document.
        val_fraction: fraction that is held out, see `_held_out`.
        fingerprint: see `Corpus`.

    Raises:
        ConfigError: there is only one document.
    """
    held_out = _held_out(named, val_fraction)
    if all(held_out) or not any(held_out):
        raise ConfigError(
            f"{source}: {len(named)} documents leave one split empty; these are a folder's files or a file's paragraphs"
        )

    if _is_uneven(named, held_out, val_fraction):
        share = _share_held_out(named, held_out)
        log.warning("%s: %.1f %% of the characters are held out, as documents are few or large", source, 100 * share)

    def documents() -> Iterator[tuple[str, bool]]:
        return ((content, val) for (_, content), val in zip(named, held_out, strict=True))

    return Corpus(source, len(named), documents, fingerprint=fingerprint)


def _with_random_split(source: str, rows: Any, val_fraction: float, seed: int) -> Corpus:
    """Return a corpus of a Hugging Face data set, of which a random fraction of the rows is held out."""
    splits = rows.train_test_split(test_size=val_fraction, seed=seed, shuffle=True)
    return _from_hub(source, splits["train"], splits["test"])


def _from_hub(source: str, train: Any, val: Any, ends: bool = True) -> Corpus:
    """Return a corpus of two Hugging Face data sets, each row of which is a document."""

    def documents() -> Iterator[tuple[str, bool]]:
        for rows, held_out in ((val, True), (train, False)):
            for start in range(0, len(rows), 1000):  # reading 1,000 rows at once is much faster than single rows
                for content in rows[start : start + 1000]["text"]:
                    yield content, held_out

    return Corpus(source, len(val) + len(train), documents, ends)


def _load_dataset(repository: str, name: str | None, revision: str | None) -> Any:
    """Load a Hugging Face data set, its splits by name.

    Raises:
        ConfigError: the package is missing, or the data set cannot be loaded.
    """
    try:
        from datasets import load_dataset
    except ImportError:
        raise ConfigError(
            f'{repository} comes through Hugging Face datasets: pip install -e ".[harness,language]"'
        ) from None
    try:
        return load_dataset(repository, None if Path(repository).is_dir() else name, revision=revision)
    except Exception as error:  # connection, hub and disk errors of many classes
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"cannot load {repository}: {cause}; dataset.repository= takes a folder of parquet, or with "
            "dataset.revision= another copy on the hub"
        ) from None
