"""Sources of texts. A corpus is a list of documents in a fixed order, each with its split.

`pydoc`, `stdlib`, `headers` and `characters` are on every machine with Python and torch: English, Python, C++, a
table. The paper's pair, WikiText-103 and OpenWebText, comes through Hugging Face `datasets`.
"""

import hashlib
import os
import platform
import sysconfig
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch

from fire_core.ranges import Seed, checked, within
from harness.config.errors import ConfigError

Part = Annotated[float, within(0, 1, open_low=True, open_high=True)]  # held out for validation

# Not the library itself: its tests, bundled programs, and the text of `pydoc`.
SKIPPED = {
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


@dataclass(frozen=True)
class Corpus:
    """Documents, read one by one.

    Attributes:
        source: its name, for the header of its token files.
        count: number of documents.
        documents: gives (text, is for validation) of each document.
        ends: whether a token marks the end of each document.
        fingerprint: changes with the source; empty if the source's name has a version.
    """

    source: str
    count: int
    documents: Callable[[], Iterator[tuple[str, bool]]]
    ends: bool = True
    fingerprint: str = ""


def for_validation(name: str, fraction: float) -> bool:
    """Whether a document is held out; depends on its name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") < fraction * 2**64


@checked
def pydoc(val_fraction: Part = 0.1) -> Corpus:
    """CPython's language reference as it ships with the interpreter (`pydoc_data.topics`); sections are documents.

    Args:
        val_fraction: fraction of the sections that is held out.
    """
    from pydoc_data.topics import topics

    source = f"pydoc_data.topics of Python {platform.python_version()}"
    return _in_memory(source, sorted(topics.items()), val_fraction)


@checked
def stdlib(val_fraction: Part = 0.05) -> Corpus:
    """The sources of CPython's standard library, without its tests.

    Args:
        val_fraction: fraction of the files that is held out.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files: list[Path] = []
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in SKIPPED]  # which it then does not enter
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return _in_memory(f"standard library of Python {platform.python_version()}", _read(root, files), val_fraction)


@checked
def headers(val_fraction: Part = 0.1) -> Corpus:
    """The headers of torch's core library (c10), C++.

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
    """A line for each character of Python's Unicode tables: code point, category, name.

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
def text(path: str | None, pattern: str = "*.txt", val_fraction: Part = 0.1) -> Corpus:
    """Your own files.

    Args:
        path: a text file, whose paragraphs are documents, or a folder, whose files are.
        pattern: of the files of a folder, at any depth.
        val_fraction: fraction of the documents that is held out.
    """
    if path is None:
        raise ConfigError("dataset=text needs path=<file or folder>")
    place = Path(path).expanduser()
    if place.is_dir():
        files = sorted(p for p in place.rglob(pattern) if p.is_file())
        named = _read(place, files)
    elif place.is_file():
        files = [place]
        whole = place.read_text(encoding="utf-8", errors="replace")
        named = [(str(i), part) for i, part in enumerate(whole.split("\n\n"))]
    else:
        raise ConfigError(f"dataset=text: path={path} is neither a file nor a folder")
    if not files:
        raise ConfigError(f"dataset=text: path={path} holds no file that matches pattern={pattern}")
    state = "\n".join(f"{p} {p.stat().st_size} {p.stat().st_mtime_ns}" for p in files)
    fingerprint = hashlib.sha256(state.encode()).hexdigest()
    return _in_memory(f"{len(files)} files of {place.resolve()}", named, val_fraction, fingerprint)


@checked
def wikitext103(repository: str = "Salesforce/wikitext", revision: str | None = None) -> Corpus:
    """WikiText-103, raw (Merity et al., arXiv 1609.07843), with its own validation set; no token between lines.

    Args:
        repository: on the Hugging Face hub, or a folder of parquet files.
        revision: of it; None: the newest.
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
        split_seed: of the choice of these.
        repository: on the Hugging Face hub, or a folder of parquet files.
        revision: of it; None: the newest.
    """
    whole = _load_dataset(repository, "wikitext-103-v1", revision)["train"]
    return _held_out("wikitext-103-v1", whole, val_fraction, split_seed)


@checked
def openwebtext(
    val_fraction: Part = 0.0005,
    split_seed: Seed = 2357,
    repository: str = "Skylion007/openwebtext",
    revision: str | None = "79d93d786212f7344586290adb811d4ae6a1762c",
) -> Corpus:
    """OpenWebText (Gokaslan and Cohen), split as nanoGPT does.

    Args:
        repository: on the Hugging Face hub, or a folder of parquet or text files, a line a document.
        revision: of it; None: the newest.
        val_fraction: fraction of the documents that is held out.
        split_seed: of the choice of these.
    """
    return _held_out("openwebtext", _load_dataset(repository, None, revision)["train"], val_fraction, split_seed)


def _read(root: Path, files: Iterable[Path]) -> list[tuple[str, str]]:
    """Name below a folder and text of each file, sorted."""
    return [(str(p.relative_to(root)), p.read_text(encoding="utf-8", errors="replace")) for p in sorted(files)]


def _in_memory(source: str, named: Sequence[tuple[str, str]], val_fraction: float, fingerprint: str = "") -> Corpus:
    held_out = [for_validation(name, val_fraction) for name, _ in named]
    if not any(held_out) and len(named) > 1:
        held_out[-1] = True
    if all(held_out) or not any(held_out):
        raise ConfigError(
            f"{source}: {len(named)} documents leave one split empty; these are a folder's files or a file's paragraphs"
        )

    def documents() -> Iterator[tuple[str, bool]]:
        return ((content, val) for (_, content), val in zip(named, held_out, strict=True))

    return Corpus(source, len(named), documents, fingerprint=fingerprint)


def _held_out(source: str, whole: Any, val_fraction: float, seed: int) -> Corpus:
    parts = whole.train_test_split(test_size=val_fraction, seed=seed, shuffle=True)
    return _from_hub(source, parts["train"], parts["test"])


def _from_hub(source: str, train: Any, val: Any, ends: bool = True) -> Corpus:
    def documents() -> Iterator[tuple[str, bool]]:
        for rows, held_out in ((val, True), (train, False)):
            for part in range(0, len(rows), 1000):  # a column of 1,000 rows at once is much faster than single rows
                for content in rows[part : part + 1000]["text"]:
                    yield content, held_out

    return Corpus(source, len(val) + len(train), documents, ends)


def _load_dataset(repository: str, name: str | None, revision: str | None) -> Any:
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
