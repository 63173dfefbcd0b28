"""Tokenizers: the protocol, with what is the same for most."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from jumok_serve.manifest.tokenizers import TokenizerDescription


class Tokenizer(Protocol):
    """Conversion between texts and token ids; safe in several threads at once.

    It adds no language tokens and no EOS: those are in the manifest's languages. Ids beyond the vocabulary raise
    IndexError.

    Attributes:
        vocab_size: number of target token ids, V, the width of the logits.
        source_vocab_size: number of source token ids; equal to `vocab_size` if the languages share a vocabulary.
        source_unknown: source token of text that the vocabulary lacks; None if every text has tokens, or such text is
            left out.
        target_unknown: as `source_unknown`, for targets.
    """

    vocab_size: int
    source_vocab_size: int
    source_unknown: int | None
    target_unknown: int | None

    def encode(self, text: str) -> list[int]:
        """Return the source token ids of ``text``, without special tokens."""

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """``encode`` several texts, possibly in less time."""
        return list(map(self.encode, texts))

    def pieces(self, text: str) -> list[str]:
        """Return the tokens of ``encode(text)`` as `source_tokens` spells them, but unknown ones as in the text."""

    def encode_target(self, text: str) -> list[int]:
        """Return the token ids of a translation (beginning), without special tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of target token ids, without special tokens."""

    def decode_all(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """``decode`` several texts, possibly in less time."""
        return list(map(self.decode, ids))

    def decode_stable(self, ids: Sequence[int]) -> str:
        """Return the part of ``decode(ids)`` that further ids cannot change."""

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the vocabulary's spelling of target token ids, special tokens included."""

    def source_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the vocabulary's spelling of source token ids, special tokens included."""

    def save(self, folder: Path) -> TokenizerDescription:
        """Write the tokenizer's files into ``folder`` and describe them for the manifest."""
