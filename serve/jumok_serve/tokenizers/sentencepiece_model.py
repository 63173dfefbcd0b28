"""Typed wrapper of a SentencePiece model; no other module uses the library."""

import os
from collections.abc import Sequence
from pathlib import Path

from sentencepiece import SentencePieceProcessor

from jumok_serve.errors import ForeignCodeError
from jumok_serve.files import UnusableFileError, read_file
from jumok_serve.foreign import ForeignCode
from jumok_serve.tokenizers.detokenize import checked_ids

MOST_BYTES = 256 * 2**20
_SENTENCEPIECE = ForeignCode("SentencePiece")

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
        self._pieces = _Pieces(processor)

    def encode(self, text: str) -> list[int]:
        """Return the ids of the most likely pieces of ``text``."""
        with _SENTENCEPIECE:
            ids: list[int] = self._processor.EncodeAsIds(text)
        return ids

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """``encode`` several texts, large numbers on all cores."""
        threads = _threads(len(texts))
        if threads == 1:
            return list(map(self.encode, texts))
        with _SENTENCEPIECE:
            ids: list[list[int]] = self._processor.EncodeAsIds(list(texts), num_threads=threads)
        return ids

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
        threads = _threads(len(ids))
        if threads == 1:
            return list(map(self.decode, ids))
        with _SENTENCEPIECE:
            texts: list[str] = self._processor.DecodeIds(list(ids), num_threads=threads)
        return texts

    def join(self, pieces: list[str]) -> str:
        """Return the text of pieces; unknown pieces are copied."""
        with _SENTENCEPIECE:
            text: str = self._processor.DecodePieces(pieces)
        return text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces of ids; ``IndexError`` for an id over the vocabulary size."""
        return [self._pieces[token] for token in ids]


class _Pieces(dict[int, str]):
    """Cache of the pieces of ids, because the library's look-up is slow."""

    def __init__(self, processor: SentencePieceProcessor) -> None:
        self._processor = processor

    def __missing__(self, token: int) -> str:
        [checked] = checked_ids([token], self._processor.GetPieceSize())
        piece = self[checked] = str(self._processor.IdToPiece(checked))
        return piece


def _threads(texts: int) -> int:
    """Return the number of threads for a number of texts."""
    wanted = texts // TEXTS_PER_THREAD
    return 1 if wanted <= 1 else min(wanted, len(os.sched_getaffinity(0)))
