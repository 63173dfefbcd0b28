"""Tokenizer of Moses words cut by byte-pair codes (Argos Translate)."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Self

from jumok_serve.errors import ForeignCodeError
from jumok_serve.manifest.tokenizers import MosesBPEDescription
from jumok_serve.native import ForeignCode
from jumok_serve.tokenizers.piece_vocabulary import VocabularyTokenizer, read_vocabularies, write_vocabulary
from jumok_serve.tokenizers.sentencepiece import checked_ids, ranges

_MOSES = ForeignCode("sacremoses")
_SEPARATOR = "@@"
"""Ending of a piece that another piece of the word follows."""
_END = "</w>"
"""Ending of a word's last symbol in the codes."""
_LONGEST_WORD = 1000
"""Characters of a word; a longer one is unknown."""
_CACHED_WORDS = 2**14
_DOTS_BEFORE_QUOTE = r'(\.+)"(\s*[^<])'
_DOTS = re.compile(r'(\.++)(?:"(\s*[^<]))?')
_AHEAD = 3
"""Words that Moses looks ahead when it joins words."""
_LOOKS_AT_THE_END = {"cs"}
"""Languages whose words are joined by the last ones of the text."""


class MosesBPETokenizer(VocabularyTokenizer):
    """Moses words cut by byte-pair codes; safe in any number of threads.

    It encodes and decodes as Argos Translate does: punctuation is normalized, words are Moses tokens, and codes are
    those of subword-nmt. Special tokens and the unknown token decode to nothing.

    Args:
        codes: content of a codes file of subword-nmt.
        source_vocabulary: id of every source piece, and of target pieces if there is no `target_vocabulary`.
        target_vocabulary: id of every target piece.

    For the other arguments see `jumok_serve.manifest.tokenizers.MosesBPEDescription`.

    Raises:
        ValueError: sacremoses is not installed, invalid codes, or a vocabulary that does not fit.
    """

    def __init__(
        self,
        codes: bytes,
        *,
        source_vocabulary: Mapping[str, int],
        target_vocabulary: Mapping[str, int] | None = None,
        source_vocab_size: int,
        target_vocab_size: int,
        unknown: str,
        special_tokens: Sequence[str],
        source_language: str,
        target_language: str,
    ) -> None:
        self._codes, self._vocabularies = codes, (source_vocabulary, target_vocabulary)
        self._unknown, self._special = unknown, tuple(special_tokens)
        self._languages = source_language, target_language
        cut = lru_cache(_CACHED_WORDS)(_Codes(codes).cut)
        source_moses, self._target_moses = _Moses(source_language, cut), _Moses(target_language, cut)
        super().__init__(
            (source_moses.split, self._target_moses.split),
            self._vocabularies,
            (source_vocab_size, target_vocab_size),
            unknown=unknown,
            special={unknown, *special_tokens},
        )
        self._shown = {token: piece for piece, token in self._target.text.items()}

    @classmethod
    def load(cls, description: MosesBPEDescription, folder: Path) -> Self:
        """Load the described tokenizer from its files in ``folder``.

        Raises:
            ValueError: the files do not load.
        """
        codes = (folder / description.codes).read_bytes()
        return cls(codes, **read_vocabularies(description, folder), **description.settings)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of target token ids."""
        return self._target_moses.join(self._words(ids))

    def decode_stable(self, ids: Sequence[int]) -> str:
        """Return the part of ``decode(ids)`` that further ids cannot change."""
        if self._languages[1] in _LOOKS_AT_THE_END:
            return ""
        return self._target_moses.join(self._words(ids)[:-_AHEAD])

    def _words(self, ids: Sequence[int]) -> list[str]:
        pieces = [self._shown[token] for token in checked_ids(ids, self.vocab_size) if token in self._shown]
        return " ".join(pieces).replace(f"{_SEPARATOR} ", "").split(" ")

    def save(self, folder: Path) -> MosesBPEDescription:
        """Write codes and vocabularies into ``folder``, as ``bpe.codes``, ``vocabulary.json`` and so on."""
        source, target = self._vocabularies
        (folder / "bpe.codes").write_bytes(self._codes)
        write_vocabulary(folder / "vocabulary.json", source)
        if target is not None:
            write_vocabulary(folder / "target_vocabulary.json", target)
        return MosesBPEDescription(
            codes="bpe.codes",
            source_vocabulary="vocabulary.json",
            target_vocabulary=None if target is None else "target_vocabulary.json",
            source_vocab_size=self.source_vocab_size,
            target_vocab_size=self.vocab_size,
            unknown=self._unknown,
            special_tokens=self._special,
            source_language=self._languages[0],
            target_language=self._languages[1],
        )


class _Moses:
    """Moses' normalizer, tokenizer and detokenizer of a language.

    Args:
        cut: cuts a word into pieces.
    """

    def __init__(self, language: str, cut: Callable[[str], Sequence[str]]) -> None:
        self._cut = cut
        try:
            import sacremoses  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise ValueError(
                "its tokenizer needs sacremoses, which is not installed; install it with: pip install 'jumok[moses]'"
            ) from error
        try:
            with _MOSES:
                self._normalizer: Any = _linear(sacremoses.MosesPunctNormalizer(language))
                self._tokenizer: Any = _faster(sacremoses.MosesTokenizer(language))
                self._detokenizer: Any = sacremoses.MosesDetokenizer(language)
        except ForeignCodeError as error:
            raise ValueError(f"sacremoses has no tokenizer for {language!r}: {error}") from error

    def split(self, text: str) -> list[str]:
        """Cut a text into the pieces of its words."""
        with _MOSES:
            words: list[str] = self._tokenizer.tokenize(self._normalizer.normalize(text))
        return [piece for word in " ".join(words).split(" ") if word for piece in self._cut(word)]

    def join(self, words: Sequence[str]) -> str:
        """Join words to a text."""
        with _MOSES:
            text: str = self._detokenizer.detokenize(words)
        return text


def _linear(normalizer: Any) -> Any:
    """Replace the part of Moses' normalizer that tries all of many dots in a row from each one; results stay equal."""
    normalizer.substitutions = [
        (_DOTS, _with_quote_before) if pair[0] == _DOTS_BEFORE_QUOTE else pair for pair in normalizer.substitutions
    ]
    return normalizer


def _with_quote_before(dots: re.Match[str]) -> str:
    return dots[0] if dots[2] is None else f'"{dots[1]}{dots[2]}'


def _faster(tokenizer: Any) -> Any:
    """Replace parts of Moses' tokenizer that cost a text far more than its length; results stay the same.

    For each word before a full stop the library makes sets of all letters. Dots in a row become the word DOT, which a
    text may hold too: many of them take time by the square of their number. In Chinese, Japanese and Korean, it looks
    for each character among 90,000: a text of 16,000 characters took 1.5 s, with Python's lock held.
    """
    _, padded = tokenizer.PAD_NOT_ISALNUM
    tokenizer.PAD_NOT_ISALNUM = re.compile(rf"([^{ranges(tokenizer.IsAlnum)}\s.'`,-])"), padded
    letters, lower = frozenset(tokenizer.IsAlpha), frozenset(tokenizer.IsLower)
    tokenizer.isanyalpha = lambda word: not letters.isdisjoint(word)
    tokenizer.islower = lower.issuperset
    tokenizer.MULTIDOT_MARKER = re.compile("(?<!DOT)(?:DOT)+MULTI")
    return tokenizer


class _Codes:
    """Byte-pair codes: pairs of symbols, in the order in which they are merged."""

    def __init__(self, content: bytes) -> None:
        try:
            lines = content.decode().replace("\r\n", "\n").removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"the codes are not UTF-8: {error}") from error
        self._separate_end = True
        if lines[0].startswith("#version:"):
            version = lines.pop(0).split()[-1]
            if version not in {"0.1", "0.2"}:
                raise ValueError(f"the codes have version {version!r}: 0.1 and 0.2 are known")
            self._separate_end = version == "0.1"
        pairs = [tuple(line.strip("\r ").split(" ")) for line in lines]
        wrong = next((number for number, pair in enumerate(pairs, 1) if len(pair) != 2), None)
        if wrong is not None:
            raise ValueError(f"line {wrong} of the codes is no pair of symbols")
        self._ranks: dict[tuple[str, ...], int] = {}
        for rank, pair in enumerate(pairs):
            self._ranks.setdefault(pair, rank)

    def cut(self, word: str) -> tuple[str, ...]:
        """Cut a word into pieces; all but the last end with the separator."""
        if len(word) > _LONGEST_WORD:
            return (word,)
        symbols = self._merged([*word, _END] if self._separate_end else [*word[:-1], word[-1] + _END])
        symbols[-1] = symbols[-1].removesuffix(_END)
        kept = [symbol for symbol in symbols if symbol]
        return (*(f"{symbol}{_SEPARATOR}" for symbol in kept[:-1]), *kept[-1:])

    def _merged(self, symbols: list[str]) -> list[str]:
        """Merge pairs, the first of the codes first: all of its places from left to right.

        The time is proportional to the number of symbols, but for sorting.
        """
        end = len(symbols)
        after, before = list(range(1, end + 1)), list(range(-1, end - 1))  # places of the neighbours
        waiting: list[int] = []  # heap of ranks with places
        places: dict[int, list[int]] = {}

        def rank_at(place: int) -> int | None:
            return self._ranks.get((symbols[place], symbols[after[place]])) if after[place] < end else None

        def note(place: int) -> None:
            rank = rank_at(place)
            if rank is not None:
                if rank not in places:
                    heappush(waiting, rank)
                places.setdefault(rank, []).append(place)

        for place in range(end):
            note(place)
        while waiting:
            rank = heappop(waiting)
            changed = []
            for place in sorted(places.pop(rank)):
                if symbols[place] and rank_at(place) == rank:
                    gone = after[place]
                    symbols[place] += symbols[gone]
                    symbols[gone] = ""
                    after[place] = after[gone]
                    if after[place] < end:
                        before[after[place]] = place
                    changed.append(place)
            for place in changed:
                for start in {place, max(before[place], 0)}:
                    note(start)
        return [symbol for symbol in symbols if symbol]
