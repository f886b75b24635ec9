"""Tokenizers: the bytes of a text, or GPT-2's byte-pair encoding."""

from typing import Any

import numpy as np

from harness.config.errors import ConfigError


class Tokenizer:
    """The interface of a tokenizer.

    Attributes:
        name: name of the tokenizer in `tokenizer=`.
        vocab_size: number of rows of the embedding, which may be padded above the largest token.
        dtype: NumPy's name of the type in which token files store tokens.
        end: the token that separates documents.
    """

    name: str
    vocab_size: int
    dtype: str
    end: int

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """Return the tokens of each text, (n,), without the token that separates documents."""
        raise NotImplementedError

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens; tokens that make no valid text become replacement characters."""
        raise NotImplementedError


class ByteTokenizer(Tokenizer):
    """The bytes of UTF-8; the byte 0, which text does not contain, separates documents."""

    name, vocab_size, dtype, end = "byte", 256, "uint8", 0

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.replace("\0", "").encode(errors="replace"), np.uint8) for text in texts]

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode(errors="replace")


class GPT2Tokenizer(Tokenizer):
    """GPT-2's byte-pair encoding, through tiktoken; 50,257 tokens padded to a multiple of 64."""

    name, vocab_size, dtype, end = "gpt2", 50_304, "uint16", 50_256

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        return [np.array(ids, np.uint16) for ids in self._encoding().encode_ordinary_batch(texts)]

    def decode(self, tokens: list[int]) -> str:
        encoding = self._encoding()
        text: str = encoding.decode([token for token in tokens if token < encoding.n_vocab])  # the rest is padding
        return text

    def _encoding(self) -> Any:
        try:
            import tiktoken
        except ImportError:
            raise ConfigError('tokenizer=gpt2 needs tiktoken: pip install -e ".[harness,language]"') from None
        try:
            return tiktoken.get_encoding("gpt2")  # tiktoken caches it in memory
        except Exception as error:  # its HTTP client raises errors of many classes
            raise ConfigError(
                f"tokenizer=gpt2: tiktoken cannot load its vocabulary ({error}); it downloads it once, or reads it "
                "from the folder that TIKTOKEN_CACHE_DIR names"
            ) from None


TOKENIZERS: dict[str, type[Tokenizer]] = {kind.name: kind for kind in (ByteTokenizer, GPT2Tokenizer)}


def get_tokenizer(name: str) -> Tokenizer:
    """Return the tokenizer of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in TOKENIZERS:
        raise ConfigError(f"tokenizer={name} is unknown; accepted: {', '.join(TOKENIZERS)}")
    return TOKENIZERS[name]()
