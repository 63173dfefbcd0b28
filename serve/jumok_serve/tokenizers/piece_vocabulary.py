"""Tokenizers of a vocabulary of pieces: those with SentencePiece's models, and what others share."""

import json
import re
from collections.abc import Callable, Mapping, Sequence, Set
from itertools import repeat
from pathlib import Path
from typing import Any, Self, TypeAlias

from pydantic import TypeAdapter, ValidationError

from jumok_serve.files import MOST_JSON_BYTES, UnusableFileError, read_file
from jumok_serve.manifest.parts import TokenId
from jumok_serve.manifest.tokenizers import MosesBPEDescription, PieceVocabularyDescription
from jumok_serve.tokenizers.sentencepiece import SentencePieceModel, checked_ids, clean_up_spaces, stable_text
from jumok_serve.tokenizers.tokenizer import Tokenizer

SPACE = "▁"
"""SentencePiece's character for a space."""

_CODE = re.compile(">>.*<<", re.DOTALL)
_VOCABULARY: TypeAdapter[dict[str, int]] = TypeAdapter(dict[str, TokenId])


Split: TypeAlias = Callable[[str], list[str]]
"""Returns the pieces of a text; safe in any number of threads."""


class VocabularyTokenizer(Tokenizer):
    """Tokenizer of pieces that have ids in vocabularies.

    Args:
        splits: those of sources and of translations.
        vocabularies: id of every source piece, and of every target piece; None: those of source pieces.
        sizes: the model's sizes of both.
        settings: arguments of `Vocabulary`.

    Raises:
        ValueError: a vocabulary lacks the unknown token, or has ids over the model's size.
    """

    def __init__(
        self,
        splits: tuple[Split, Split],
        vocabularies: tuple[Mapping[str, int], Mapping[str, int] | None],
        sizes: tuple[int, int],
        **settings: Any,
    ) -> None:
        source, target = vocabularies
        self._split_source, self._split_target = splits
        self._source = Vocabulary("source", source, **settings)
        self._target = self._source if target is None else Vocabulary("target", target, **settings)
        self.source_vocab_size, self.vocab_size = sizes
        self.source_unknown, self.target_unknown = self._source.unknown, self._target.unknown
        for side, vocabulary, size in zip(("source", "target"), (self._source, self._target), sizes, strict=True):
            largest = max(vocabulary.spelling)
            if largest >= size:
                message = f"the {side} vocabulary has ids up to {largest}, but the model's ids end at {size - 1}"
                raise ValueError(message)

    def encode(self, text: str) -> list[int]:
        """Return the source token ids of ``text``; none for an empty text."""
        return self._source.encode(self._split_source, text)

    def pieces(self, text: str) -> list[str]:
        """Return the source pieces of ``text``, unknown ones as in it."""
        return self._source.pieces(self._split_source, text)

    def encode_target(self, text: str) -> list[int]:
        """Return the target token ids of ``text``; none for an empty text."""
        return self._target.encode(self._split_target, text)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces of target token ids, "" for none."""
        return list(map(self._target.spelling.get, checked_ids(ids, self.vocab_size), repeat("")))

    def source_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces of source token ids, "" for none."""
        return list(map(self._source.spelling.get, checked_ids(ids, self.source_vocab_size), repeat("")))


class PieceVocabularyTokenizer(VocabularyTokenizer):
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
        special = {unknown, *special_tokens, *input_tokens}
        super().__init__(
            (self._source_model.split, self._target_model.split),
            (source_vocabulary, target_vocabulary),
            (source_vocab_size, target_vocab_size),
            unknown=unknown,
            special=special,
            typable=input_tokens,
            leading_codes=leading_codes,
        )
        self._shared = target_vocabulary is None
        # With separate vocabularies, Hugging Face looks up special tokens in the source's.
        silent = self._target.silent | {source_vocabulary[token] for token in special & source_vocabulary.keys()}
        self._shown = {token: piece for token, piece in self._target.spelling.items() if token not in silent}
        # As in MarianTokenizer: the source's model joins the pieces of a shared vocabulary.
        self._joining = self._source_model if self._shared else self._target_model
        self._clean_up_spaces = clean_up_spaces
        self._settings: dict[str, Any] = {
            "source_vocab_size": source_vocab_size,
            "target_vocab_size": target_vocab_size,
            "unknown": unknown,
            "special_tokens": tuple(special_tokens),
            "input_tokens": tuple(input_tokens),
            "leading_codes": leading_codes,
            "clean_up_spaces": clean_up_spaces,
        }

    @classmethod
    def load(cls, description: PieceVocabularyDescription, folder: Path) -> Self:
        """Load the described tokenizer from its files in ``folder``.

        Raises:
            ValueError: the files do not load.
        """
        target_model = None if description.target_model is None else folder / description.target_model
        vocabularies = read_vocabularies(description, folder)
        return cls(folder / description.source_model, target_model, **vocabularies, **description.settings)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of target token ids."""
        text = self._joined(ids)
        return clean_up_spaces(text) if self._clean_up_spaces else text

    def _joined(self, ids: Sequence[int]) -> str:
        pieces = [self._shown[token] for token in checked_ids(ids, self.vocab_size) if token in self._shown]
        return self._joining.join(pieces).replace(SPACE, " ").strip()

    def decode_stable(self, ids: Sequence[int]) -> str:
        """Return the part of ``decode(ids)`` that further ids cannot change."""
        return stable_text(self._joined(ids), clean_up=self._clean_up_spaces)

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
            **self._settings,
        )


class Vocabulary:
    """Ids of the pieces of one language, or of both.

    Attributes:
        spelling: pieces by their ids.
        text: ids of pieces that are no special tokens.
        unknown: id of the unknown token.
    """

    def __init__(
        self,
        side: str,
        ids: Mapping[str, int],
        *,
        unknown: str,
        special: Set[str],
        typable: Sequence[str] = (),
        leading_codes: bool = False,
    ) -> None:
        if unknown not in ids:
            raise ValueError(f"the {side} vocabulary has no {unknown!r}, the token of unknown pieces")
        self.spelling = {token: piece for piece, token in ids.items()}
        self.text = {piece: token for piece, token in ids.items() if piece not in special}
        self._special = {piece: token for piece, token in ids.items() if piece in special}
        self._codes = (
            {piece: token for piece, token in ids.items() if _CODE.fullmatch(piece)} if leading_codes else None
        )
        self.unknown = ids[unknown]
        longest_first = sorted(ids.keys() & set(typable), key=len, reverse=True)
        self._typable = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None

    @property
    def silent(self) -> set[int]:
        """Ids that decode to nothing."""
        return {*self._special.values(), *(self._codes or {}).values()}

    def encode(self, split: Split, text: str) -> list[int]:
        """Return the ids of a text."""
        if self._typable is None:
            return self._encode(split, text)
        # Texts alternate with input tokens.
        parts = self._typable.split(text)
        read = ([self._special[part]] if at % 2 else self._encode(split, part) for at, part in enumerate(parts) if part)
        return [token for ids in read for token in ids]

    def _encode(self, split: Split, text: str) -> list[int]:
        code, text = self._split_code(text)
        ids = [] if not code or self._codes is None else [self._codes.get(code, self.unknown)]
        return [*ids, *map(self.text.get, split(text), repeat(self.unknown))]

    def pieces(self, split: Split, text: str) -> list[str]:
        """Spell the tokens of a text, unknown ones as in it."""
        pieces: list[str] = []
        for at, part in enumerate([text] if self._typable is None else self._typable.split(text)):
            code, rest = ("", part) if at % 2 else self._split_code(part)
            pieces += [code] if code else []
            if rest:
                pieces += [rest] if at % 2 else split(rest)
        return pieces

    def _split_code(self, text: str) -> tuple[str, str]:
        """Split a text into its leading language code, or nothing, and the rest."""
        if self._codes is None or not text.startswith(">>") or "<<" not in text:
            return "", text
        end = text.index("<<") + len("<<")
        return text[:end], text[end:]

    def write(self, path: Path) -> None:
        """Write the id of every piece, for `read_vocabulary`."""
        write_vocabulary(path, self.text | self._special)


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


def read_vocabularies(description: MosesBPEDescription | PieceVocabularyDescription, folder: Path) -> dict[str, Any]:
    """Read the vocabularies of a tokenizer, by the names of their fields."""
    files = ((name, getattr(description, name)) for name in ("source_vocabulary", "target_vocabulary"))
    return {name: read_vocabulary(folder / file) for name, file in files if file is not None}


def write_vocabulary(path: Path, ids: Mapping[str, int]) -> None:
    """Write the id of every piece, for `read_vocabulary`."""
    path.write_text(json.dumps(dict(ids), ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
