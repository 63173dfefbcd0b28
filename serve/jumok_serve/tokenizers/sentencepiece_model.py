"""One SentencePiece model, typed: the one place of this room that touches the library."""

import os
from collections.abc import Sequence
from pathlib import Path

from sentencepiece import SentencePieceProcessor

from jumok_serve.tokenizers.detokenize import checked_ids

TEXTS_PER_THREAD = 64
"""The library makes threads whenever it is given several texts, and one takes as long to make as 25 texts to read."""


class SentencePieceModel:
    """A SentencePiece model, from a file's path or its content.

    Encoding and decoding do not change the model and release the GIL, so one object serves any number of threads.

    Attributes:
        name: for messages.
        serialized: the file's content.
        size: number of its pieces.

    Raises ``ValueError`` for a file that is no SentencePiece model.
    """

    def __init__(self, model: Path | bytes) -> None:
        self.name = model.name if isinstance(model, Path) else f"content of {len(model)} bytes"
        self.serialized = model.read_bytes() if isinstance(model, Path) else model
        processor = SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(self.serialized)
            self.size = int(processor.GetPieceSize())
        except RuntimeError as exc:
            raise ValueError(f"{self.name} is not a SentencePiece model: {exc}") from exc
        self._processor = processor
        self._pieces = _Pieces(processor)

    def encode(self, text: str) -> list[int]:
        """Ids of the most likely pieces of ``text``."""
        ids: list[int] = self._processor.EncodeAsIds(text)
        return ids

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """``encode`` of each, of many with all cores."""
        threads = _threads(len(texts))
        if threads == 1:
            return list(map(self.encode, texts))
        ids: list[list[int]] = self._processor.EncodeAsIds(list(texts), num_threads=threads)
        return ids

    def split(self, text: str) -> list[str]:
        """The most likely pieces of ``text``; an unknown one is spelled as in the text."""
        pieces: list[str] = self._processor.EncodeAsPieces(text)
        return pieces

    def decode(self, ids: list[int]) -> str:
        """Text of ids, control pieces left out."""
        text: str = self._processor.DecodeIds(ids)
        return text

    def decode_all(self, ids: Sequence[list[int]]) -> list[str]:
        """``decode`` of each, of many with all cores."""
        threads = _threads(len(ids))
        if threads == 1:
            return list(map(self.decode, ids))
        texts: list[str] = self._processor.DecodeIds(list(ids), num_threads=threads)
        return texts

    def join(self, pieces: list[str]) -> str:
        """Text of pieces; those that the model does not have stand for themselves."""
        text: str = self._processor.DecodePieces(pieces)
        return text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Spelling of ids; ``IndexError`` for one beyond the vocabulary."""
        return [self._pieces[token] for token in ids]


class _Pieces(dict[int, str]):
    """Spelling of those ids that were asked for so far: the library takes as long for one as for decoding a word."""

    def __init__(self, processor: SentencePieceProcessor) -> None:
        self._processor = processor

    def __missing__(self, token: int) -> str:
        [checked] = checked_ids([token], self._processor.GetPieceSize())
        piece = self[checked] = str(self._processor.IdToPiece(checked))
        return piece


def _threads(texts: int) -> int:
    """How many are worth making for so many texts."""
    return max(1, min(texts // TEXTS_PER_THREAD, len(os.sched_getaffinity(0))))
