"""Terms of a sentence: source matches as token sequences, and their places in the translation."""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.results import AppliedTerm, TextSpan
from jumok_serve.manifest.languages import Direction, primary_language, writes_spaces
from jumok_serve.runtime.graphs import Integers
from jumok_serve.search.search import FinishedHypothesis
from jumok_serve.search.terms import NO_TERMS, Terms
from jumok_serve.tokenizers.tokenizer import Tokenizer

MAX_TERMS: Final = 64
"""Most terms of a sentence: each takes places in the beam."""
MAX_TERM_WORK: Final = 2**20
"""Most work for the terms of a sentence: its search keeps each beginning of each token sequence."""
MAX_CACHED_TERMS: Final = 4096
ATTACHING: Final = frozenset({"ko"})
"""Languages with spaces that write particles at the end of words, so that a term may end within a word."""


Kept: TypeAlias = tuple[int, int]
"""First character of a placeholder, and the character after it."""


class TermMatch(NamedTuple):
    """A term that occurs in a text.

    Attributes:
        first, after: its place in the text, in characters.
        targets: alternative texts; the translation must contain one.
    """

    first: int
    after: int
    targets: tuple[str, ...]


class TermFinder(Protocol):
    """Glossary of a request."""

    def find(self, text: str) -> Iterable[TermMatch]:
        """Return the terms of a text in their order; they share no character."""


@dataclass(frozen=True, slots=True)
class SentenceTerms:
    """Terms of a sentence, as texts and as tokens.

    Attributes:
        matches: terms in the text, [n].
        tokens: their token sequences, [n]; none for a term that the tokenizer cannot write, or that is too long.
    """

    text: str
    matches: tuple[TermMatch, ...]
    tokens: Terms

    def applied(
        self, hypothesis: FinishedHypothesis, text: str, prefix: Sequence[int], tokenizer: Tokenizer
    ) -> tuple[AppliedTerm, ...]:
        """Return the terms with their places in a hypothesis and its text."""
        written = (*prefix, *hypothesis.token_ids)
        spans = hypothesis.terms or (None,) * len(self.matches)
        applied = []
        for match, span in zip(self.matches, spans, strict=True):
            target = None if span is None else _find(match.targets, text, tokenizer.decode(written[: span.first]))
            applied.append(
                AppliedTerm(
                    source=self.text[match.first : match.after],
                    targets=match.targets,
                    source_span=TextSpan(match.first, match.after),
                    target_span=target,
                    satisfied=span is not None,
                )
            )
        return tuple(applied)


def _find(targets: Sequence[str], text: str, before: str) -> TextSpan | None:
    """Return the place of a term in a text, at or after the end of the text before it."""
    least = max(0, len(before) - 1)  # a space at the end may be written differently
    found = [(text.find(target, least), -len(target)) for target in targets]
    first, negated = min((place for place in found if place[0] >= 0), default=(-1, 0))
    return None if first < 0 else TextSpan(first, first - negated)


class TermTokenizer:
    """Writes terms as target tokens.

    A term is written as after a space, or after a character in languages without spaces.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._joins: bytes | None = None
        self._lock = threading.Lock()
        # Without a reference to self: a cycle would keep the tokenizer of an unloaded model in memory.
        self._sequence = lru_cache(MAX_CACHED_TERMS)(partial(_sequence, tokenizer))
        self._within = lru_cache(MAX_CACHED_TERMS)(partial(_within, tokenizer))

    def tokens(self, text: str, *, spaced: bool) -> tuple[int, ...]:
        """Return the tokens of a term within a text; empty if the tokenizer cannot write it."""
        return self._sequence(text, spaced)

    def find(
        self, text: str, finder: TermFinder, direction: Direction, *, field: str, kept: Sequence[Kept] = ()
    ) -> SentenceTerms:
        """Find the terms of a text, with their token sequences in the target language.

        Args:
            kept: places of placeholders, in which no term is.

        Raises:
            InvalidArgumentError: the text has too many terms; names `field`.
        """
        matches = list(islice(terms_apart(finder.find(text), kept), MAX_TERMS + 1))
        if not matches:
            return SentenceTerms(text, (), NO_TERMS)
        if len(matches) > MAX_TERMS:
            raise InvalidArgumentError(
                f"a sentence takes at most {MAX_TERMS} terms, this one has more: split the text", field=field
            )
        spaced = writes_spaces(direction.target)
        sequences = tuple(self._sequences(matches, spaced))
        joins = self._continuing_tokens() if spaced and primary_language(direction.target) not in ATTACHING else b""
        return SentenceTerms(text, tuple(matches), Terms(sequences, joins))

    def continues_word(self, token: int) -> bool:
        """True if a token continues a word."""
        return bool(self._continuing_tokens()[token])

    def glued(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text without a space before it; none if the tokenizer cannot write it so."""
        return self._within(text)

    def _sequences(self, matches: Sequence[TermMatch], spaced: bool) -> Iterator[tuple[tuple[int, ...], ...]]:
        """Yield the token sequences of each term, as far as the work for a sentence goes."""
        left = MAX_TERM_WORK
        for match in matches:
            sequences = []
            for ids in filter(None, (self._sequence(target, spaced) for target in match.targets)):
                if (work := len(ids) ** 2) <= left:
                    left -= work
                    sequences.append(ids)
            yield tuple(sequences)

    def _continuing_tokens(self) -> bytes:
        """Return a 1 for each token that continues a word."""
        with self._lock:
            if self._joins is None:
                self._joins = _continuing_tokens(self._tokenizer)
            return self._joins


def terms_apart(found: Iterable[TermMatch], kept: Sequence[Kept]) -> Iterator[TermMatch]:
    """Yield the terms that overlap no placeholder."""
    firsts = [first for first, _ in kept]
    for one in found:
        number = bisect_left(firsts, one.after)
        if not number or kept[number - 1][1] <= one.first:
            yield one


def with_tokens(allowed: Integers | None, terms: Terms) -> Integers | None:
    """Add the tokens of terms to a shortlist, ascending; None stays all tokens."""
    tokens = [token for alternatives in terms.alternatives for sequence in alternatives for token in sequence]
    return allowed if allowed is None or not tokens else np.union1d(allowed, tokens)


_CONTEXT = "a"
"""A word before a term or a token, to see if these begin a word."""


def _sequence(tokenizer: Tokenizer, text: str, spaced: bool) -> tuple[int, ...]:
    """Return the tokens of a term within a text; empty if the tokenizer cannot write it."""
    before = _CONTEXT if spaced else "。"
    context = tokenizer.encode_target(before)
    joined = f"{before} {text}" if spaced else before + text
    whole, alone = tokenizer.encode_target(joined), tokenizer.encode_target(text)
    candidates = [whole[len(context) :]] if whole[: len(context)] == context else []
    for ids in (*candidates, alone):
        if ids and tokenizer.decode([*context, *ids]) == joined:
            return tuple(ids)
    return ()


def _within(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Return the tokens of a text within a word; empty if the tokenizer cannot write it there."""
    context = tokenizer.encode_target(_CONTEXT)
    whole = tokenizer.encode_target(_CONTEXT + text)
    ids = whole[len(context) :] if whole[: len(context)] == context else ()
    return tuple(ids) if ids and tokenizer.decode(whole) == _CONTEXT + text else ()


def _continuing_tokens(tokenizer: Tokenizer) -> bytes:
    (*_, word) = tokenizer.encode_target(_CONTEXT)
    texts = tokenizer.decode_all([(word, token) for token in range(tokenizer.vocab_size)])
    begin = len(tokenizer.decode([word]))
    return bytes(text[begin : begin + 1].isalnum() for text in texts)
