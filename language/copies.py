"""Documents that stand in two of the corpora that a run trains on, which are counted and said."""

import hashlib
import itertools
import logging
from collections.abc import Mapping

import numpy as np

from language.data import SPLITS, TokenFile
from language.tokenizers import Tokenizer

log = logging.getLogger(__name__)
MOST = 2**27  # bytes of a token file in which copies are looked for
WHITE = b" \t\n\r\f\v"
Documents = dict[str, set[bytes]]  # digests, by split


def say_copies(corpora: Mapping[str, Mapping[str, TokenFile]], tokenizer: Tokenizer) -> None:
    """Log, in one line for two corpora, how many documents stand in both, and how many of these are held out in one.

    Args:
        corpora: token files by name, then by split; each document ends with the tokenizer's own token.
        tokenizer: of all of them.
    """
    known: dict[str, Documents] = {}
    for name, files in corpora.items():
        if any(file.tokens.nbytes > MOST for file in files.values()):
            log.info("documents of %s are not compared with those of the other corpora: it is too large", name)
        else:
            known[name] = {split: documents(files[split], tokenizer) for split in SPLITS}
    for one, other in itertools.combinations(known, 2):
        train, held_out = SPLITS
        both = (known[one][train] | known[one][held_out]) & (known[other][train] | known[other][held_out])
        tested = (known[one][held_out] & known[other][train]) | (known[other][held_out] & known[one][train])
        if both:
            log.warning(
                "%d documents stand both in %s and in %s, word for word; %d of them are held out in one and trained on "
                "in the other: they measure memory",
                len(both), one, other, len(tested),
            )  # fmt: skip


def documents(file: TokenFile, tokenizer: Tokenizer) -> set[bytes]:
    """A digest of each document of a token file, without white space at its ends where tokens are bytes."""
    ends = np.flatnonzero(file.tokens == tokenizer.end)
    digests = set()
    for begin, end in zip([0, *(ends[:-1] + 1)], ends, strict=True) if len(ends) else ():
        content = file.tokens[begin:end].tobytes()
        content = content.strip(WHITE) if file.tokens.itemsize == 1 else content
        if content:
            digests.add(hashlib.sha256(content).digest())
    return digests
