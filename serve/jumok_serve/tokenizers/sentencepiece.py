"""SentencePiece's models and tokenizer, and what tokenizers share: ids that are checked, and text from pieces."""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any, Self, TypeVar

from sentencepiece import SentencePieceProcessor

from jumok_serve.errors import ForeignCodeError
from jumok_serve.files import UnusableFileError, read_file
from jumok_serve.manifest.tokenizers import SentencePieceDescription
from jumok_serve.native import ForeignCode
from jumok_serve.tokenizers.tokenizer import Tokenizer


def ranges(characters: Iterable[str]) -> str:
    """Return letters, digits or marks as ranges of a class; a search in thousands of single ones is slow."""
    codes = sorted(set(map(ord, characters)))
    runs = [list(run) for _, run in groupby(enumerate(codes), key=lambda pair: pair[1] - pair[0])]
    return "".join(f"{chr(run[0][1])}-{chr(run[-1][1])}" for run in runs)


# Spaces that English does not write, each with its replacement, in the order of removal.
_NEEDLESS = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


def clean_up_spaces(text: str) -> str:
    """Remove spaces before punctuation and n't, as Hugging Face's ``clean_up_tokenization_spaces`` does."""
    for spelled, clean in _NEEDLESS:
        text = text.replace(spelled, clean)
    return text


REPLACEMENT = "\ufffd"
"""Character that decoders write for bytes that are no character, or not yet."""

_BEGINNINGS = tuple(sorted({spelled[:end] for spelled, _ in _NEEDLESS for end in range(1, len(spelled))}, key=len))


def stable_text(text: str, *, clean_up: bool) -> str:
    """Return the beginning of a decoded text that further tokens cannot change.

    Left out are white space at the end, bytes that may become a character and, with ``clean_up``, endings that
    ``clean_up_spaces`` may still change. With ``clean_up`` the result is cleaned up.
    """
    beginnings = _BEGINNINGS if clean_up else ()
    text = _without_end(text, beginnings)
    return _without_end(clean_up_spaces(text), beginnings) if clean_up else text


def _without_end(text: str, beginnings: Sequence[str]) -> str:
    while True:
        shorter = text.rstrip().rstrip(REPLACEMENT)
        for beginning in beginnings:
            shorter = shorter.removesuffix(beginning)
        if shorter == text:
            return text
        text = shorter


def checked_ids(ids: Sequence[int], size: int) -> list[int]:
    """Plain integers, also from NumPy's.

    Raises:
        IndexError: an id beyond a vocabulary of ``size`` tokens.
    """
    checked = list(map(int, ids))
    if checked and not (min(checked) >= 0 and max(checked) < size):
        beyond = next(token for token in checked if not 0 <= token < size)
        raise IndexError(f"token {beyond} lies beyond the vocabulary of {size}")
    return checked


MOST_BYTES = 256 * 2**20
_SENTENCEPIECE = ForeignCode("SentencePiece")
_Given = TypeVar("_Given")
_Made = TypeVar("_Made")

TEXTS_PER_THREAD = 64
"""The library starts threads for every list of texts; starting one takes as long as reading 25 texts."""


class SentencePieceModel:
    """A SentencePiece model, from a file's path or its content.

    Safe in any number of threads: encoding and decoding do not change the model, and release the GIL. They raise
    ForeignCodeError if the library fails.

    Attributes:
        name: file name, for messages.
        serialized: the file's content.
        size: number of pieces.
        unknown: id of the unknown piece.

    Raises:
        ValueError: the file is not a SentencePiece model.
    """

    def __init__(self, model: Path | bytes) -> None:
        self.name = model.name if isinstance(model, Path) else f"content of {len(model)} bytes"
        try:
            self.serialized = read_file(model, MOST_BYTES) if isinstance(model, Path) else model
        except UnusableFileError as error:
            raise ValueError(f"{self.name} {error}") from error
        processor = SentencePieceProcessor()
        try:
            with _SENTENCEPIECE:
                processor.LoadFromSerializedProto(self.serialized)
                self.size = int(processor.GetPieceSize())
                self.unknown = int(processor.unk_id())
        except ForeignCodeError as exc:
            raise ValueError(f"{self.name} is not a SentencePiece model: {exc}") from exc
        self._processor = processor
        self._piece = cache(partial(_spelled, processor))  # the library's look-up is slow

    def encode(self, text: str) -> list[int]:
        """Return the ids of the most likely pieces of ``text``."""
        with _SENTENCEPIECE:
            ids: list[int] = self._processor.EncodeAsIds(text)
        return ids

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """``encode`` several texts, large numbers on all cores."""
        return _on_cores(self.encode, self._processor.EncodeAsIds, texts)

    def split(self, text: str) -> list[str]:
        """Return the most likely pieces of ``text``, unknown ones as in it."""
        with _SENTENCEPIECE:
            pieces: list[str] = self._processor.EncodeAsPieces(text)
        return pieces

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, without control pieces."""
        with _SENTENCEPIECE:
            text: str = self._processor.DecodeIds(ids)
        return text

    def decode_all(self, ids: Sequence[list[int]]) -> list[str]:
        """``decode`` several texts, large numbers on all cores."""
        return _on_cores(self.decode, self._processor.DecodeIds, ids)

    def join(self, pieces: list[str]) -> str:
        """Return the text of pieces; unknown pieces are copied."""
        with _SENTENCEPIECE:
            text: str = self._processor.DecodePieces(pieces)
        return text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces of ids; ``IndexError`` for an id over the vocabulary size."""
        return list(map(self._piece, ids))


def _spelled(processor: SentencePieceProcessor, token: int) -> str:
    """Return the piece of an id."""
    [checked] = checked_ids([token], processor.GetPieceSize())
    return str(processor.IdToPiece(checked))


def _on_cores(one: Callable[[_Given], _Made], several: Any, given: Sequence[_Given]) -> list[_Made]:
    """Encode or decode texts, large numbers on all cores.

    Args:
        one: encodes or decodes one.
        several: the library's function for several, with a number of threads.
    """
    wanted = len(given) // TEXTS_PER_THREAD
    threads = 1 if wanted <= 1 else min(wanted, len(os.sched_getaffinity(0)))
    if threads == 1:
        return list(map(one, given))
    with _SENTENCEPIECE:
        made: list[_Made] = several(list(given), num_threads=threads)
    return made


class SentencePieceTokenizer(Tokenizer):
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
        self.source_vocab_size, self.vocab_size = self._source.size, self._target.size
        self.source_unknown, self.target_unknown = self._source.unknown, self._target.unknown

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
