"""Text to token numbers: bytes as they are, or GPT-2's byte-pair encoding."""

from typing import Any

import numpy as np

from harness.config.errors import ConfigError


class Tokenizer:
    """The interface of a tokenizer.

    Attributes:
        name: as in `tokenizer=`.
        vocab_size: rows of the embedding; it may be padded above the largest token.
        dtype: numpy's name of the type that token files use.
        end: the token between documents.
    """

    name: str
    vocab_size: int
    dtype: str
    end: int

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """The tokens of each text, without the one between documents."""
        raise NotImplementedError

    def decode(self, tokens: list[int]) -> str:
        """The text of tokens; what is no text is shown as a replacement character."""
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
        text: str = encoding.decode([token for token in tokens if token < encoding.n_vocab])  # beyond it is padding
        return text

    def _encoding(self) -> Any:
        try:
            import tiktoken
        except ImportError:
            raise ConfigError('tokenizer=gpt2 needs tiktoken: pip install -e ".[harness,language]"') from None
        try:
            return tiktoken.get_encoding("gpt2")  # tiktoken keeps it in memory after the first time
        except Exception as error:  # whatever its HTTP client raises
            raise ConfigError(
                f"tokenizer=gpt2: tiktoken cannot load its vocabulary ({error}); it downloads it once, or reads it "
                "from the folder that TIKTOKEN_CACHE_DIR names"
            ) from None


TOKENIZERS: dict[str, type[Tokenizer]] = {kind.name: kind for kind in (ByteTokenizer, GPT2Tokenizer)}


def get_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a name.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in TOKENIZERS:
        raise ConfigError(f"tokenizer={name} is unknown; accepted: {', '.join(TOKENIZERS)}")
    return TOKENIZERS[name]()
