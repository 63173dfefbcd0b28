"""Tokenizers: the protocol, and loading from a bundle."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from jumok_serve.manifest.tokenizers import (
    MosesBPEDescription,
    PieceVocabularyDescription,
    SentencePieceDescription,
    TokenizerDescription,
    TokenizerJsonDescription,
    WordListDescription,
)
from jumok_serve.tokenizers.moses_bpe import MosesBPETokenizer
from jumok_serve.tokenizers.piece_vocabulary import PieceVocabularyTokenizer
from jumok_serve.tokenizers.sentencepiece import SentencePieceTokenizer
from jumok_serve.tokenizers.tokenizer_json import TokenizerJson
from jumok_serve.tokenizers.word_list import WordListTokenizer


class Tokenizer(Protocol):
    """Conversion between texts and token ids; safe in several threads at once.

    It adds no language tokens and no EOS: those are in the manifest's languages. Ids beyond the vocabulary raise
    IndexError.
    """

    @property
    def vocab_size(self) -> int:
        """Number of target token ids, V."""

    @property
    def source_vocab_size(self) -> int:
        """Number of source token ids; equal to `vocab_size` if the languages share a vocabulary."""

    @property
    def source_unknown(self) -> int | None:
        """Source token of text that the vocabulary lacks; None if every text has tokens."""

    @property
    def target_unknown(self) -> int | None:
        """Target token of text that the vocabulary lacks; None if every text has tokens."""

    def encode(self, text: str) -> list[int]:
        """Return the source token ids of ``text``, without special tokens."""

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """``encode`` several texts, possibly in less time."""

    def pieces(self, text: str) -> list[str]:
        """Return the tokens of ``encode(text)`` as `source_tokens` spells them, but unknown ones as in the text."""

    def encode_target(self, text: str) -> list[int]:
        """Return the token ids of a translation (beginning), without special tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of target token ids, without special tokens."""

    def decode_all(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """``decode`` several texts, possibly in less time."""

    def decode_stable(self, ids: Sequence[int]) -> str:
        """Return the part of ``decode(ids)`` that further ids cannot change."""

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the vocabulary's spelling of target token ids, special tokens included."""

    def source_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the vocabulary's spelling of source token ids, special tokens included."""

    def save(self, folder: Path) -> TokenizerDescription:
        """Write the tokenizer's files into ``folder`` and describe them for the manifest."""


def load_tokenizer(description: TokenizerDescription, folder: Path) -> Tokenizer:
    """Load the tokenizer of the bundle in ``folder``.

    Raises:
        ValueError: it does not load, or differs from its description.
    """
    match description:
        case PieceVocabularyDescription():
            return PieceVocabularyTokenizer.load(description, folder)
        case TokenizerJsonDescription():
            return TokenizerJson.load(description, folder)
        case SentencePieceDescription():
            return SentencePieceTokenizer.load(description, folder)
        case WordListDescription():
            return WordListTokenizer.load(description, folder)
        case MosesBPEDescription():
            return MosesBPETokenizer.load(description, folder)
