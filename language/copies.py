"""Warn of documents that stand in two of the corpora that a run trains on."""

import hashlib
import itertools
import logging
from collections.abc import Mapping

import numpy as np

from language.data import SPLITS, TokenFile
from language.tokenizers import Tokenizer

log = logging.getLogger(__name__)
MAX_COMPARED_BYTES = 2**27  # corpora with a larger token file are not compared with others
WHITE_SPACE = b" \t\n\r\f\v"
Digests = dict[str, set[bytes]]  # digests of a corpus's documents, by split


def warn_of_copies(corpora: Mapping[str, Mapping[str, TokenFile]], tokenizer: Tokenizer) -> None:
    """Log for each two corpora how many documents stand in both, and how many of these are held out in only one.

    Args:
        corpora: token files by name, then by split; each document ends with the tokenizer's end token.
        tokenizer: the tokenizer of all these files.
    """
    digests: dict[str, Digests] = {}
    for name, files in corpora.items():
        if any(file.tokens.nbytes > MAX_COMPARED_BYTES for file in files.values()):
            log.info("documents of %s are not compared with those of the other corpora: it is too large", name)
        else:
            digests[name] = {split: document_digests(files[split], tokenizer) for split in SPLITS}
    train, held_out = SPLITS
    for first_name, second_name in itertools.combinations(digests, 2):
        first, second = digests[first_name], digests[second_name]
        in_both = (first[train] | first[held_out]) & (second[train] | second[held_out])
        leaked = (first[held_out] & second[train]) | (second[held_out] & first[train])
        if in_both:
            log.warning(
                "%d documents stand both in %s and in %s, word for word; %d of them are held out in one and trained on "
                "in the other: they measure memory",
                len(in_both), first_name, second_name, len(leaked),
            )  # fmt: skip


def document_digests(file: TokenFile, tokenizer: Tokenizer) -> set[bytes]:
    """Return the SHA-256 digest of each document of a token file that is not empty.

    If tokens are bytes, white space at a document's ends does not count.
    """
    ends = np.flatnonzero(file.tokens == tokenizer.end)
    digests = set()
    for begin, end in zip([0, *(ends[:-1] + 1)], ends, strict=True) if len(ends) else ():
        content = file.tokens[begin:end].tobytes()
        content = content.strip(WHITE_SPACE) if file.tokens.itemsize == 1 else content
        if content:
            digests.add(hashlib.sha256(content).digest())
    return digests
