"""Vocabularies of pieces, SentencePiece's models, and text from pieces."""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import groupby, repeat
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter, ValidationError
from sentencepiece import SentencePieceProcessor

from jumok_serve.errors import ForeignCodeError
from jumok_serve.files import MOST_JSON_BYTES, UnusableFileError, read_file
from jumok_serve.manifest.parts import TokenId
from jumok_serve.manifest.tokenizers import PieceVocabularyDescription
from jumok_serve.native import ForeignCode


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


SPACE = "▁"
"""SentencePiece's character for a space."""

_VOCABULARY: TypeAdapter[dict[str, int]] = TypeAdapter(dict[str, TokenId])


class PieceVocabularyTokenizer:
    """SentencePiece models with vocabularies of their pieces' ids; safe in any number of threads.

    It encodes and decodes as Hugging Face's `MarianTokenizer` and `M2M100Tokenizer` (`skip_special_tokens`):

    - A piece that the vocabulary lacks becomes the unknown token.
    - Text that spells a special token is only text, unless it is among the input tokens.
    - Special tokens, the unknown token, language codes and ids without a piece decode to nothing.
    - Punctuation is not normalized: `MarianTokenizer` has a normalizer, but its encoding does not call it.

    Args:
        source_model: SentencePiece model of source texts, and of translations if there is no `target_model`.
        target_model: SentencePiece model of translations.
        source_vocabulary: id of every source piece, and of target pieces if there is no `target_vocabulary`.
        target_vocabulary: id of every target piece.

    For the other arguments see `jumok_serve.manifest.tokenizers.PieceVocabularyDescription`.

    Raises:
        ValueError: a model is not a SentencePiece model; a vocabulary lacks the unknown token, or has ids over the
            model's size.
    """

    def __init__(
        self,
        source_model: Path | bytes,
        target_model: Path | bytes | None = None,
        *,
        source_vocabulary: Mapping[str, int],
        target_vocabulary: Mapping[str, int] | None = None,
        source_vocab_size: int,
        target_vocab_size: int,
        unknown: str,
        special_tokens: Sequence[str],
        input_tokens: Sequence[str] = (),
        leading_codes: bool = False,
        clean_up_spaces: bool = False,
    ) -> None:
        self._source_model = SentencePieceModel(source_model)
        self._target_model = self._source_model if target_model is None else SentencePieceModel(target_model)
        self._sizes = (source_vocab_size, target_vocab_size)
        special = {unknown, *special_tokens, *input_tokens}

        def vocabulary_of(ids: Mapping[str, int]) -> _Vocabulary:
            return _Vocabulary(ids, unknown=unknown, special=special, typable=input_tokens, leading_codes=leading_codes)

        self._shared = target_vocabulary is None
        self._source = vocabulary_of(source_vocabulary)
        self._target = self._source if target_vocabulary is None else vocabulary_of(target_vocabulary)
        self._source.check("source", source_vocab_size)
        self._target.check("target", target_vocab_size)
        # With separate vocabularies, Hugging Face looks up special tokens in the source's.
        silent = self._target.silent | {source_vocabulary[token] for token in special & source_vocabulary.keys()}
        self._shown = {token: piece for token, piece in self._target.spelling.items() if token not in silent}
        # As in MarianTokenizer: the source's model joins the pieces of a shared vocabulary.
        self._joining = self._source_model if self._shared else self._target_model
        self._unknown = unknown
        self._special_tokens = tuple(special_tokens)
        self._input_tokens = tuple(input_tokens)
        self._leading_codes = leading_codes
        self._clean_up_spaces = clean_up_spaces

    @classmethod
    def load(cls, description: PieceVocabularyDescription, folder: Path) -> Self:
        """Load the described tokenizer from its files in ``folder``.

        Raises:
            ValueError: the files do not load.
        """
        target_model, target_vocabulary = description.target_model, description.target_vocabulary
        return cls(
            folder / description.source_model,
            None if target_model is None else folder / target_model,
            source_vocabulary=read_vocabulary(folder / description.source_vocabulary),
            target_vocabulary=None if target_vocabulary is None else read_vocabulary(folder / target_vocabulary),
            source_vocab_size=description.source_vocab_size,
            target_vocab_size=description.target_vocab_size,
            unknown=description.unknown,
            special_tokens=description.special_tokens,
            input_tokens=description.input_tokens,
            leading_codes=description.leading_codes,
            clean_up_spaces=description.clean_up_spaces,
        )

    @property
    def vocab_size(self) -> int:
        """Number of target token ids, the width of the logits."""
        return self._sizes[1]

    @property
    def source_vocab_size(self) -> int:
        """Number of source token ids."""
        return self._sizes[0]

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
        return self._source.encode(self._source_model, text)

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """``encode`` several texts."""
        return list(map(self.encode, texts))

    def pieces(self, text: str) -> list[str]:
        """Return the source pieces of ``text``, unknown ones as in it."""
        return self._source.pieces(self._source_model, text)

    def encode_target(self, text: str) -> list[int]:
        """Return the target token ids of ``text``; none for an empty text."""
        return self._target.encode(self._target_model, text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of target token ids."""
        text = self._joined(ids)
        return clean_up_spaces(text) if self._clean_up_spaces else text

    def decode_all(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """``decode`` several texts."""
        return list(map(self.decode, ids))

    def _joined(self, ids: Sequence[int]) -> str:
        pieces = [self._shown[token] for token in checked_ids(ids, self.vocab_size) if token in self._shown]
        return self._joining.join(pieces).replace(SPACE, " ").strip()

    def decode_stable(self, ids: Sequence[int]) -> str:
        """Return the part of ``decode(ids)`` that further ids cannot change."""
        return stable_text(self._joined(ids), clean_up=self._clean_up_spaces)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces of target token ids, "" for none."""
        return list(map(self._target.spelling.get, checked_ids(ids, self.vocab_size), repeat("")))

    def source_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces of source token ids, "" for none."""
        return list(map(self._source.spelling.get, checked_ids(ids, self.source_vocab_size), repeat("")))

    def save(self, folder: Path) -> PieceVocabularyDescription:
        """Write models and vocabularies into ``folder``, as ``source.model``, ``vocabulary.json`` and so on."""
        target_model = None if self._target_model is self._source_model else "target.model"
        target_vocabulary = None if self._shared else "target_vocabulary.json"
        (folder / "source.model").write_bytes(self._source_model.serialized)
        self._source.write(folder / "vocabulary.json")
        if target_model is not None:
            (folder / target_model).write_bytes(self._target_model.serialized)
        if target_vocabulary is not None:
            self._target.write(folder / target_vocabulary)
        return PieceVocabularyDescription(
            source_model="source.model",
            target_model=target_model,
            source_vocabulary="vocabulary.json",
            target_vocabulary=target_vocabulary,
            source_vocab_size=self.source_vocab_size,
            target_vocab_size=self.vocab_size,
            unknown=self._unknown,
            special_tokens=self._special_tokens,
            input_tokens=self._input_tokens,
            leading_codes=self._leading_codes,
            clean_up_spaces=self._clean_up_spaces,
        )


class _Vocabulary:
    """Ids of the pieces of one language, or of both."""

    def __init__(
        self, ids: Mapping[str, int], *, unknown: str, special: Set[str], typable: Sequence[str], leading_codes: bool
    ) -> None:
        if unknown not in ids:
            raise ValueError(f"the vocabulary has no {unknown!r}, the token of unknown pieces")
        self.spelling = {token: piece for piece, token in ids.items()}
        self._text = {piece: token for piece, token in ids.items() if piece not in special}
        self._special = {piece: token for piece, token in ids.items() if piece in special}
        self._codes = {piece: token for piece, token in ids.items() if _is_code(piece)} if leading_codes else None
        self.unknown = ids[unknown]
        longest_first = sorted(ids.keys() & set(typable), key=len, reverse=True)
        self._typable = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None

    @property
    def silent(self) -> set[int]:
        """Ids that decode to nothing."""
        return {*self._special.values(), *(self._codes or {}).values()}

    def encode(self, model: SentencePieceModel, text: str) -> list[int]:
        if self._typable is None:
            return self._encode(model, text)
        # Texts alternate with input tokens.
        parts = self._typable.split(text)
        read = ([self._special[part]] if at % 2 else self._encode(model, part) for at, part in enumerate(parts) if part)
        return [token for ids in read for token in ids]

    def _encode(self, model: SentencePieceModel, text: str) -> list[int]:
        code, text = self._split_code(text)
        ids = [] if not code or self._codes is None else [self._codes.get(code, self.unknown)]
        return [*ids, *map(self._text.get, model.split(text), repeat(self.unknown))]

    def pieces(self, model: SentencePieceModel, text: str) -> list[str]:
        """Spell the tokens of a text, unknown ones as in it."""
        pieces: list[str] = []
        for at, part in enumerate([text] if self._typable is None else self._typable.split(text)):
            code, rest = ("", part) if at % 2 else self._split_code(part)
            pieces += [code] if code else []
            if rest:
                pieces += [rest] if at % 2 else model.split(rest)
        return pieces

    def _split_code(self, text: str) -> tuple[str, str]:
        """Split a text into its leading language code, or nothing, and the rest."""
        if self._codes is None or not text.startswith(">>") or "<<" not in text:
            return "", text
        end = text.index("<<") + len("<<")
        return text[:end], text[end:]

    def check(self, side: str, size: int) -> None:
        largest = max(self.spelling)
        if largest >= size:
            raise ValueError(f"the {side} vocabulary has ids up to {largest}, but the model's ids end at {size - 1}")

    def write(self, path: Path) -> None:
        ids = self._text | self._special
        path.write_text(json.dumps(ids, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


def _is_code(piece: str) -> bool:
    return piece.startswith(">>") and piece.endswith("<<")


def read_vocabulary(path: Path) -> dict[str, int]:
    """Read the id of every piece from a JSON object.

    Raises:
        ValueError: the file is not such an object.
    """
    try:
        return _VOCABULARY.validate_json(read_file(path, MOST_JSON_BYTES), strict=True)
    except UnusableFileError as error:
        raise ValueError(f"{path.name} {error}") from error
    except ValidationError as error:
        fault = error.errors()[0]
        where = f" at {'.'.join(map(str, fault['loc']))!r}" if fault["loc"] else ""
        raise ValueError(f"{path.name} is not a JSON object from piece to id: {fault['msg']}{where}") from error
