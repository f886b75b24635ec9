"""Token files: written once, mapped into memory, and refused if they are damaged or made with other options.

A corpus is a folder `<paths.data>/language/<name>-<tokenizer>-<hash of its options>` with `train.bin` and `val.bin`,
the tokens as consecutive little-endian numbers, and a header beside each:

    {"format": 1, "tokenizer": "byte", "dtype": "uint8", "count": 421337, "largest": 226,
     "source": "...", "fingerprint": "...", "sha256": "..."}

The header is written last: a file without one is incomplete.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from harness.config.errors import ConfigError
from harness.run.files import content_of, reading, write_atomically
from language.tokenizers import Tokenizer

FORMAT = 1
SPLITS = ("train", "val")
# Types of the keys of a header whose values are not known before; the values of the other keys are compared.
HEADER_TYPES = {"count": int, "largest": int, "sha256": str}
# Files up to this size are hashed each time they are opened; larger ones are hashed by language.prepare only.
MAX_HASHED_BYTES = 2**30


@dataclass(frozen=True)
class TokenFile:
    """A token file that is mapped into memory.

    Attributes:
        path: path of the `.bin` file.
        tokens: its tokens, (n,).
        header: its header.
    """

    path: Path
    tokens: np.ndarray
    header: dict[str, Any]

    def part(self, ratio: float) -> "TokenFile":
        """Return the file with only the first `ratio` of its tokens."""
        return TokenFile(self.path, self.tokens[: int(ratio * len(self.tokens))], self.header)

    def __len__(self) -> int:
        return len(self.tokens)


def digest_file(path: Path) -> str:
    """Return the SHA-256 digest of a file, in hexadecimal."""
    with reading(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_header(path: Path, tokenizer: Tokenizer, source: str, fingerprint: str) -> dict[str, Any]:
    """Write the header of the token file `path`, which marks it as complete, and return it."""
    tokens = np.memmap(path, tokenizer.dtype, "r") if path.stat().st_size else np.zeros(0, tokenizer.dtype)
    step = 2**26
    header = {
        "format": FORMAT,
        "tokenizer": tokenizer.name,
        "dtype": tokenizer.dtype,
        "count": len(tokens),
        "largest": max((int(tokens[i : i + step].max()) for i in range(0, len(tokens), step)), default=0),
        "source": source,
        "fingerprint": fingerprint,
        "sha256": digest_file(path),
    }
    write_atomically(path.with_suffix(".json"), (json.dumps(header, indent=1) + "\n").encode())
    return header


def open_tokens(path: Path, tokenizer: Tokenizer, fingerprint: str = "", hash_large_files: bool = False) -> TokenFile:
    """Map a token file into memory after checking it against its header and the tokenizer.

    Args:
        path: path of the `.bin` file.
        tokenizer: the model's tokenizer.
        fingerprint: fingerprint of the texts as they are now; empty if not known.
        hash_large_files: hash the file even if it has more than `MAX_HASHED_BYTES`.

    Raises:
        ConfigError: the file is missing, damaged, truncated or made with other options; the message says which.
        TrainingError: a file cannot be read at the moment.
    """
    header_path = path.with_suffix(".json")
    with reading(header_path):
        content = content_of(header_path)
    if content is None:
        raise ConfigError(f"{path} is not prepared")
    try:
        header: dict[str, Any] = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{header_path} is damaged: {error}; {_remedy(path)}") from None
    if not isinstance(header, dict):
        raise ConfigError(f"{header_path} is damaged: it is no JSON object; {_remedy(path)}")
    required = {"format": FORMAT, "tokenizer": tokenizer.name, "dtype": tokenizer.dtype}
    for key, value in required.items():
        if header.get(key) != value:
            raise ConfigError(f"{path} has {key}={header.get(key)}, {value} is needed; {_remedy(path)}")
    if missing := [key for key, kind in HEADER_TYPES.items() if not isinstance(header.get(key), kind)]:
        raise ConfigError(f"{header_path} is damaged: it does not say {', '.join(missing)}; {_remedy(path)}")
    if fingerprint and header.get("fingerprint") not in ("", fingerprint):  # older versions wrote "" for some corpora
        raise ConfigError(f"{path}: its source ({header.get('source')}) has changed since; {_remedy(path)}")
    with reading(path):
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise ConfigError(f"{path} is missing beside its header; {_remedy(path)}") from None
    dtype = np.dtype(tokenizer.dtype)
    if size != (expected := header["count"] * dtype.itemsize):
        raise ConfigError(f"{path} has {size} bytes, its header says {expected}; {_remedy(path)}")
    if (hash_large_files or size <= MAX_HASHED_BYTES) and digest_file(path) != header["sha256"]:
        raise ConfigError(f"{path} is damaged: it does not match its checksum; {_remedy(path)}")
    if header["largest"] >= tokenizer.vocab_size:
        raise ConfigError(f"{path} holds token {header['largest']}, the vocabulary has {tokenizer.vocab_size}")
    tokens = np.asarray(np.memmap(path, dtype, "r")) if size else np.zeros(0, dtype)
    return TokenFile(path, tokens, header)


def _remedy(path: Path) -> str:
    return f"remove {path.parent} and prepare it again (python -m language.prepare)"


def windows(tokens: np.ndarray, starts: np.ndarray, length: int) -> Tensor:
    """Return the runs of `length` tokens that begin at `starts`, (n,), in one gather: int64 (n, length)."""
    return torch.from_numpy(sliding_window_view(tokens, length)[starts].astype(np.int64))


@dataclass(frozen=True)
class Mixture:
    """Token files, one of which is drawn for each batch or each sequence.

    Args:
        files: the token files.
        probabilities: probability of each file.
        block_size: length of a sequence, in tokens.
        by: whether one file is drawn for each `batch` (as in the FIRE authors' code) or for each `sequence`.

    Raises:
        ConfigError: a file is too short for a sequence and its next token.
    """

    files: tuple[TokenFile, ...]
    probabilities: tuple[float, ...]
    block_size: int
    by: str = "batch"

    def __post_init__(self) -> None:
        for file in self.files:
            if len(file) <= self.block_size:
                raise ConfigError(
                    f"{file.path} has {len(file)} tokens here, too few for model.block_size={self.block_size}"
                )

    def batch(self, generator: np.random.Generator, size: int) -> tuple[Tensor, Tensor]:
        """Draw `size` sequences at random positions: inputs and next tokens, int64 (size, block_size) each."""
        draws = generator.random(size if self.by == "sequence" else 1)
        file_of_row = np.searchsorted(np.cumsum(self.probabilities)[:-1], draws, side="right")
        file_of_row = np.broadcast_to(file_of_row, (size,))
        positions = generator.random(size)  # as shares of the file's length
        rows = torch.empty(size, self.block_size + 1, dtype=torch.int64)
        for i, file in enumerate(self.files):
            from_file = np.flatnonzero(file_of_row == i)
            if len(from_file):
                starts = (positions[from_file] * (len(file) - self.block_size)).astype(np.int64)
                rows[torch.from_numpy(from_file)] = windows(file.tokens, starts, self.block_size + 1)
        return rows[:, :-1], rows[:, 1:]


def evenly_spaced(file: TokenFile, block_size: int, count: int) -> Tensor:
    """Return at most `count` runs of block_size + 1 tokens, spread evenly over a file without overlap.

    Returns:
        int64 (n, block_size + 1), n at least 1, always the same.

    Raises:
        ConfigError: the file is shorter than one run.
    """
    last = len(file) - block_size - 1
    if last < 0:
        raise ConfigError(f"{file.path} has {len(file)} tokens, too few for model.block_size={block_size}")
    count = max(1, min(count, len(file) // (block_size + 1)))
    return windows(file.tokens, np.linspace(0, last, count).astype(np.int64), block_size + 1)
