"""Tokenizer of plain lists of characters or words, one per line."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

from jumok_serve.manifest.tokenizers import WordListDescription
from jumok_serve.tokenizers.sentencepiece import checked_ids
from jumok_serve.tokenizers.tokenizer import Tokenizer

Unit = Literal["character", "word"]


class WordListTokenizer(Tokenizer):
    """Characters or words by their place in a list; safe in any number of threads.

    - Words stand between white space, and are joined by one space. Characters are Unicode code points, joined by
      nothing. Texts are not normalized.
    - A character or word that the list lacks becomes the unknown token. Without an unknown token it is left out.
    - Special tokens and the unknown token decode to nothing. Text that spells one is unknown.

    Args:
        unit: part of a text that is a token.
        source: source tokens, or those of both languages without a `target`; the id of a token is its index.
        target: target tokens.
        target_unit: part of a translation that is a token, as with words of phonemes for characters; default: `unit`.
        unknown: the unknown token, which the source tokens have; None: none.
        special_tokens: tokens that are no text, such as padding and EOS; each is in one list or in both.

    Raises:
        ValueError: a token occurs twice, a special token is in no list, or a token cannot be a line of a file.
    """

    def __init__(
        self,
        unit: Unit,
        source: Sequence[str],
        target: Sequence[str] | None = None,
        *,
        target_unit: Unit | None = None,
        unknown: str | None = None,
        special_tokens: Sequence[str] = (),
    ) -> None:
        self._unit = unit
        self._target_unit = target_unit or unit
        self._unknown = unknown
        self._special = tuple(special_tokens)
        silent = {*special_tokens, *(() if unknown is None else (unknown,))}
        self._source = _List("source", source, silent, unknown)
        self._target = self._source if target is None else _List("target", target, silent, unknown)
        self.source_vocab_size, self.vocab_size = len(self._source.tokens), len(self._target.tokens)
        self.source_unknown, self.target_unknown = self._source.unknown, self._target.unknown
        if unknown is not None and self.source_unknown is None:
            raise ValueError(f"the source vocabulary has no {unknown!r}, the token of unknown parts")
        missing = sorted(silent - {*self._source.tokens, *self._target.tokens})
        if missing:
            raise ValueError(f"no vocabulary has {missing[0]!r}, which is a special token")

    @classmethod
    def load(cls, description: WordListDescription, folder: Path) -> Self:
        """Load the described tokenizer from its files in ``folder``.

        Raises:
            ValueError: the files do not load.
        """
        target = description.target_vocabulary
        return cls(
            description.unit,
            read_tokens(folder / description.source_vocabulary),
            None if target is None else read_tokens(folder / target),
            target_unit=description.target_unit,
            unknown=description.unknown,
            special_tokens=description.special_tokens,
        )

    def encode(self, text: str) -> list[int]:
        """Return the source token ids of ``text``; none for an empty text."""
        return self._source.encode(_split(text, self._unit))

    def pieces(self, text: str) -> list[str]:
        """Return the characters or words of ``text`` that have a source token, unknown ones too."""
        return [part for part in _split(text, self._unit) if self._source.encode([part])]

    def encode_target(self, text: str) -> list[int]:
        """Return the target token ids of ``text``; none for an empty text."""
        return self._target.encode(_split(text, self._target_unit))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of target token ids."""
        spelled = self._target.spelled
        parts = [spelled[token] for token in checked_ids(ids, self.vocab_size) if token in spelled]
        return ("" if self._target_unit == "character" else " ").join(parts)

    def decode_stable(self, ids: Sequence[int]) -> str:
        """Return the part of ``decode(ids)`` that further ids cannot change: all of it."""
        return self.decode(ids)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the spelling of target token ids."""
        return [self._target.tokens[token] for token in checked_ids(ids, self.vocab_size)]

    def source_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the spelling of source token ids."""
        return [self._source.tokens[token] for token in checked_ids(ids, self.source_vocab_size)]

    def save(self, folder: Path) -> WordListDescription:
        """Write the lists into ``folder``, as ``vocabulary.txt`` and ``target_vocabulary.txt``."""
        target = None if self._target is self._source else "target_vocabulary.txt"
        _write_tokens(folder / "vocabulary.txt", self._source.tokens)
        if target is not None:
            _write_tokens(folder / target, self._target.tokens)
        return WordListDescription(
            unit=self._unit,
            target_unit=None if self._target_unit == self._unit else self._target_unit,
            source_vocabulary="vocabulary.txt",
            target_vocabulary=target,
            source_vocab_size=self.source_vocab_size,
            target_vocab_size=self.vocab_size,
            unknown=self._unknown,
            special_tokens=self._special,
        )


class _List:
    """Tokens of one language, or of both."""

    def __init__(self, side: str, tokens: Sequence[str], silent: set[str], unknown: str | None) -> None:
        ids = {token: number for number, token in enumerate(tokens)}
        if len(ids) < len(tokens):
            twice = next(token for number, token in enumerate(tokens) if ids[token] != number)
            raise ValueError(f"the {side} vocabulary has {twice!r} twice: remove one")
        broken = [token for token in tokens if not token or "\n" in token or "\r" in token]
        if broken:
            raise ValueError(f"the {side} vocabulary has {broken[0]!r}, which is no line of a file: replace it")
        self.tokens = tuple(tokens)
        self._ids = {token: number for token, number in ids.items() if token not in silent}
        self.spelled = {number: token for token, number in self._ids.items()}
        self.unknown = None if unknown is None else ids.get(unknown)

    def encode(self, parts: Sequence[str]) -> list[int]:
        ids = (self._ids.get(part, self.unknown) for part in parts)
        return [token for token in ids if token is not None]


def _split(text: str, unit: Unit) -> Sequence[str]:
    return text if unit == "character" else text.split()


def read_tokens(path: Path) -> list[str]:
    """Read a token from each line of a UTF-8 file; a line may be one space.

    Raises:
        ValueError: the file is not UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is not UTF-8: {error}") from error
    return text.removesuffix("\n").split("\n") if text else []


def _write_tokens(path: Path, tokens: Sequence[str]) -> None:
    path.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8", newline="\n")
