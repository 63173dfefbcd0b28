"""Tokenizers: the protocol, the SentencePiece tokenizer, and loading from a bundle."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

from jumok_serve.manifest.tokenizers import (
    MosesBPEDescription,
    PieceVocabularyDescription,
    SentencePieceDescription,
    TokenizerDescription,
    TokenizerJsonDescription,
    WordListDescription,
)
from jumok_serve.tokenizers.moses_bpe import MosesBPETokenizer
from jumok_serve.tokenizers.piece_vocabulary import (
    PieceVocabularyTokenizer,
    SentencePieceModel,
    checked_ids,
    stable_text,
)
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


class SentencePieceTokenizer:
    """One SentencePiece model for both languages, or one each; thread-safe.

    An unknown character becomes the unknown token, which decodes to ``" ⁇ "``. Control tokens (padding, start, end)
    decode to nothing. Text that spells ``</s>`` is only text. The model defines the normalization of Unicode and space.

    Args:
        source_model: file path or content of the model, of both languages without a `target_model`.
        target_model: file path or content of the target language's model.

    Raises:
        ValueError: a file is not a SentencePiece model.
    """

    def __init__(self, source_model: Path | bytes, target_model: Path | bytes | None = None) -> None:
        self._source = SentencePieceModel(source_model)
        self._target = self._source if target_model is None else SentencePieceModel(target_model)

    @property
    def vocab_size(self) -> int:
        """Number of target token ids, V."""
        return self._target.size

    @property
    def source_vocab_size(self) -> int:
        """Number of source token ids."""
        return self._source.size

    @property
    def source_unknown(self) -> int | None:
        """The unknown token."""
        return self._source.unknown

    @property
    def target_unknown(self) -> int | None:
        """The unknown token of translations."""
        return self._target.unknown

    def encode(self, text: str) -> list[int]:
        """Return the source token ids of ``text``; none for an empty text."""
        return self._source.encode(text)

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """``encode`` several texts."""
        return self._source.encode_all(texts)

    def pieces(self, text: str) -> list[str]:
        """Return the source pieces of ``text``, unknown ones as in it."""
        return self._source.split(text)

    def encode_target(self, text: str) -> list[int]:
        """Return the target token ids of ``text``; none for an empty text."""
        return self._target.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of target token ids, without control tokens."""
        return self._target.decode(checked_ids(ids, self.vocab_size))

    def decode_all(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """``decode`` several texts."""
        return self._target.decode_all([checked_ids(of_one, self.vocab_size) for of_one in ids])

    def decode_stable(self, ids: Sequence[int]) -> str:
        """Return the part of ``decode(ids)`` that further ids cannot change."""
        return stable_text(self.decode(ids), clean_up=False)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces of target token ids, such as ``▁Haus``."""
        return self._target.pieces(ids)

    def source_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces of source token ids, such as ``▁house``."""
        return self._source.pieces(ids)

    @classmethod
    def load(cls, description: SentencePieceDescription, folder: Path) -> Self:
        """Load the described tokenizer from its files in ``folder``; ``ValueError`` if they differ."""
        target_model = None if description.target_model is None else folder / description.target_model
        tokenizer = cls(folder / description.source_model, target_model)
        for name, found, described in (
            ("source vocabulary", tokenizer.source_vocab_size, description.source_vocab_size),
            ("target vocabulary", tokenizer.vocab_size, description.target_vocab_size),
        ):
            if found != described:
                raise ValueError(f"tokenizer: the {name} is {found}, the manifest says {described}")
        return tokenizer

    def save(self, folder: Path) -> SentencePieceDescription:
        """Write the models into ``folder`` as ``tokenizer.model``, or ``source.model`` and ``target.model``."""
        shared = self._target is self._source
        source_model = "tokenizer.model" if shared else "source.model"
        target_model = None if shared else "target.model"
        (folder / source_model).write_bytes(self._source.serialized)
        if target_model is not None:
            (folder / target_model).write_bytes(self._target.serialized)
        return SentencePieceDescription(
            source_model=source_model,
            target_model=target_model,
            source_vocab_size=self.source_vocab_size,
            target_vocab_size=self.vocab_size,
        )


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
