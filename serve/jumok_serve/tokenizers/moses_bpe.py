"""Tokenizer of Moses words cut by byte-pair codes (Argos Translate)."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import repeat
from pathlib import Path
from typing import Any, Self

from jumok_serve.errors import ForeignCodeError
from jumok_serve.manifest.tokenizers import MosesBPEDescription
from jumok_serve.native import ForeignCode
from jumok_serve.tokenizers.piece_vocabulary import read_vocabulary, write_vocabulary
from jumok_serve.tokenizers.sentencepiece import checked_ids, ranges
from jumok_serve.tokenizers.tokenizer import Tokenizer

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


class MosesBPETokenizer(Tokenizer):
    """Moses words cut by byte-pair codes; safe in any number of threads.

    It encodes and decodes as Argos Translate does: punctuation is normalized, words are Moses tokens, and codes are
    those of subword-nmt. Special tokens and the unknown token decode to nothing.

    Args:
        codes: content of a codes file of subword-nmt.
        source_vocabulary: id of every source piece, and of target pieces if there is no `target_vocabulary`.
        target_vocabulary: id of every target piece.
        languages: Moses' codes of source and target language, such as ``en``.

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
        languages: tuple[str, str],
    ) -> None:
        self._codes = codes
        self._cut = lru_cache(_CACHED_WORDS)(_Codes(codes).cut)
        self._source, self._target = source_vocabulary, target_vocabulary or source_vocabulary
        self._shared = target_vocabulary is None
        self.source_vocab_size, self.vocab_size = source_vocab_size, target_vocab_size
        self._unknown, self._special, self._languages = unknown, tuple(special_tokens), languages
        for side, vocabulary, size in (
            ("source", self._source, source_vocab_size),
            ("target", self._target, target_vocab_size),
        ):
            if unknown not in vocabulary:
                raise ValueError(f"the {side} vocabulary has no {unknown!r}, the token of unknown pieces")
            if max(vocabulary.values()) >= size:
                raise ValueError(f"the {side} vocabulary has ids beyond the model's, which end at {size - 1}")
        self.source_unknown, self.target_unknown = self._source[unknown], self._target[unknown]
        silent = {unknown, *special_tokens}
        self._text = [
            {piece: token for piece, token in vocabulary.items() if piece not in silent}
            for vocabulary in (self._source, self._target)
        ]
        self._shown = {token: piece for piece, token in self._text[1].items()}
        self._spelling = [{token: piece for piece, token in one.items()} for one in (self._source, self._target)]
        self._moses = [_Moses(language) for language in languages]

    @classmethod
    def load(cls, description: MosesBPEDescription, folder: Path) -> Self:
        """Load the described tokenizer from its files in ``folder``.

        Raises:
            ValueError: the files do not load.
        """
        target = description.target_vocabulary
        return cls(
            (folder / description.codes).read_bytes(),
            source_vocabulary=read_vocabulary(folder / description.source_vocabulary),
            target_vocabulary=None if target is None else read_vocabulary(folder / target),
            source_vocab_size=description.source_vocab_size,
            target_vocab_size=description.target_vocab_size,
            unknown=description.unknown,
            special_tokens=description.special_tokens,
            languages=(description.source_language, description.target_language),
        )

    def encode(self, text: str) -> list[int]:
        """Return the source token ids of ``text``; none for an empty text."""
        return self._encode(text, 0)

    def pieces(self, text: str) -> list[str]:
        """Return the pieces of ``text``, unknown ones as in the text."""
        return self._pieces(text, 0)

    def encode_target(self, text: str) -> list[int]:
        """Return the target token ids of ``text``; none for an empty text."""
        return self._encode(text, 1)

    def _encode(self, text: str, side: int) -> list[int]:
        unknown = (self.source_unknown, self.target_unknown)[side]
        return list(map(self._text[side].get, self._pieces(text, side), repeat(unknown)))

    def _pieces(self, text: str, side: int) -> list[str]:
        return [piece for word in self._moses[side].split(text) for piece in self._cut(word)]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of target token ids."""
        return self._moses[1].join(self._words(ids))

    def decode_stable(self, ids: Sequence[int]) -> str:
        """Return the part of ``decode(ids)`` that further ids cannot change."""
        if self._languages[1] in _LOOKS_AT_THE_END:
            return ""
        return self._moses[1].join(self._words(ids)[:-_AHEAD])

    def _words(self, ids: Sequence[int]) -> list[str]:
        pieces = [self._shown[token] for token in checked_ids(ids, self.vocab_size) if token in self._shown]
        return " ".join(pieces).replace(f"{_SEPARATOR} ", "").split(" ")

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces of target token ids, "" for none."""
        return list(map(self._spelling[1].get, checked_ids(ids, self.vocab_size), repeat("")))

    def source_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces of source token ids, "" for none."""
        return list(map(self._spelling[0].get, checked_ids(ids, self.source_vocab_size), repeat("")))

    def save(self, folder: Path) -> MosesBPEDescription:
        """Write codes and vocabularies into ``folder``, as ``bpe.codes``, ``vocabulary.json`` and so on."""
        target_vocabulary = None if self._shared else "target_vocabulary.json"
        (folder / "bpe.codes").write_bytes(self._codes)
        write_vocabulary(folder / "vocabulary.json", self._source)
        if target_vocabulary is not None:
            write_vocabulary(folder / target_vocabulary, self._target)
        return MosesBPEDescription(
            codes="bpe.codes",
            source_vocabulary="vocabulary.json",
            target_vocabulary=target_vocabulary,
            source_vocab_size=self.source_vocab_size,
            target_vocab_size=self.vocab_size,
            unknown=self._unknown,
            special_tokens=self._special,
            source_language=self._languages[0],
            target_language=self._languages[1],
        )


class _Moses:
    """Moses' normalizer, tokenizer and detokenizer of a language."""

    def __init__(self, language: str) -> None:
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
        """Cut a text into words."""
        with _MOSES:
            words: list[str] = self._tokenizer.tokenize(self._normalizer.normalize(text))
        return [word for word in " ".join(words).split(" ") if word]

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
