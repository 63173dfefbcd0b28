"""From text to token ids and back."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

from jumok_serve.manifest.tokenizers import (
    PieceVocabularyDescription,
    SentencePieceDescription,
    TokenizerDescription,
    TokenizerJsonDescription,
)
from jumok_serve.tokenizers.detokenize import checked_ids, stable_text
from jumok_serve.tokenizers.piece_vocabulary import PieceVocabularyTokenizer
from jumok_serve.tokenizers.sentencepiece_model import SentencePieceModel
from jumok_serve.tokenizers.tokenizer_json import TokenizerJson


class Tokenizer(Protocol):
    """What the server and the exporter ask of a tokenizer; calls may come from several threads at once.

    It knows texts alone: language tokens, EOS and whatever else stands around them is in the manifest's languages.
    """

    @property
    def vocab_size(self) -> int:
        """Number of target token ids, the width of the logits."""

    @property
    def source_vocab_size(self) -> int:
        """Number of source token ids, the same where both languages share a vocabulary."""

    def encode(self, text: str) -> list[int]:
        """Source token ids of ``text``, no special token among them."""

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """``encode`` of each, which may take less time."""

    def encode_target(self, text: str) -> list[int]:
        """Target token ids of ``text``, a translation or the beginning of one, no special token among them."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of target token ids, special tokens left out; ``IndexError`` for an id beyond the vocabulary."""

    def decode_all(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """``decode`` of each, which may take less time."""

    def decode_stable(self, ids: Sequence[int]) -> str:
        """What of ``decode(ids)`` begins the text of all ids that begin with these; ``IndexError`` as there."""

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's own spelling of target token ids, special tokens included."""

    def source_tokens(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's own spelling of source token ids, special tokens included."""

    def save(self, folder: Path) -> TokenizerDescription:
        """Write the tokenizer's files into ``folder`` and describe them for the manifest."""


class SentencePieceTokenizer:
    """One SentencePiece model for both languages, or one for each; each as a file's path or its content.

    One object serves any number of threads. A character that the model never saw becomes the unknown token, which
    decodes to ``" ⁇ "``; control tokens (padding, start, end) decode to nothing; text that spells ``</s>`` is only
    text. Whether white space and Unicode forms are normalised is a property of the model.

    Raises ``ValueError`` for a file that is no SentencePiece model.
    """

    def __init__(self, source_model: Path | bytes, target_model: Path | bytes | None = None) -> None:
        self._source = SentencePieceModel(source_model)
        self._target = self._source if target_model is None else SentencePieceModel(target_model)

    @property
    def vocab_size(self) -> int:
        """Number of target token ids, the width of the logits."""
        return self._target.size

    @property
    def source_vocab_size(self) -> int:
        """Number of source token ids."""
        return self._source.size

    def encode(self, text: str) -> list[int]:
        """Source token ids of ``text``; none for an empty text."""
        return self._source.encode(text)

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """``encode`` of each."""
        return self._source.encode_all(texts)

    def encode_target(self, text: str) -> list[int]:
        """Target token ids of ``text``; none for an empty text."""
        return self._target.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of target token ids, control tokens left out; ``IndexError`` for an id beyond the vocabulary."""
        return self._target.decode(checked_ids(ids, self.vocab_size))

    def decode_all(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """``decode`` of each."""
        return self._target.decode_all([checked_ids(of_one, self.vocab_size) for of_one in ids])

    def decode_stable(self, ids: Sequence[int]) -> str:
        """What of ``decode(ids)`` begins the text of all ids that begin with these."""
        return stable_text(self.decode(ids), clean_up=False)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Pieces of target token ids such as ``▁Haus``; ``IndexError`` for an id beyond the vocabulary."""
        return self._target.pieces(ids)

    def source_tokens(self, ids: Sequence[int]) -> list[str]:
        """Pieces of source token ids such as ``▁house``; ``IndexError`` for an id beyond the vocabulary."""
        return self._source.pieces(ids)

    @classmethod
    def load(cls, description: SentencePieceDescription, folder: Path) -> Self:
        """The tokenizer that is described, from its files in ``folder``; ``ValueError`` if they are not so."""
        target_model = None if description.target_model is None else folder / description.target_model
        tokenizer = cls(folder / description.source_model, target_model)
        for what, found, described in (
            ("source vocabulary", tokenizer.source_vocab_size, description.source_vocab_size),
            ("target vocabulary", tokenizer.vocab_size, description.target_vocab_size),
        ):
            if found != described:
                raise ValueError(f"tokenizer: the {what} is {found}, the manifest says {described}")
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
    """Load the tokenizer of the bundle in ``folder``; ``ValueError`` if it does not load or is not as described."""
    match description:
        case PieceVocabularyDescription():
            return PieceVocabularyTokenizer.load(description, folder)
        case TokenizerJsonDescription():
            return TokenizerJson.load(description, folder)
        case SentencePieceDescription():
            return SentencePieceTokenizer.load(description, folder)
