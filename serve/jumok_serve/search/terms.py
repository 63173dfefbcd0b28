"""Terms: token sequences that a hypothesis must contain.

A hypothesis contains terms if each has an occurrence of its own, of any of its alternatives: occurrences share no
token, and none ends within a word. `TermAutomaton` follows all ways to read a hypothesis so, token by token.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.search.options import MAX_BEAM_SIZE, SearchOptions

BOOST: Final = 2.0**-20
"""Factor of the log-probabilities of a term's tokens: it brings them among the best candidates of their row.

A power of two, so dividing by it gives the log-probability back bit by bit.
"""

MAX_READINGS: Final = 32
"""Most ways to read a row that are followed; more need many terms that share alternatives."""
FEW_READINGS: Final = 8
"""Ways to read a row that do not count as work: following them costs little beside a step."""
MAX_WORK: Final = 2**14
"""Ways to read the rows of a sentence, beyond `FEW_READINGS` a row, after which the best two of a row are followed."""

_NO_TERM: Final = -1
_JOINED: Final = -2
"""These stand for all tokens of no term: those that begin a word, and those that continue one."""

Tokens: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of one sentence.

    Attributes:
        alternatives: token sequences that satisfy each term, none of them empty.
        joins: by token id, 1 if the token continues the word before it; empty: no token does.
    """

    alternatives: tuple[tuple[Tokens, ...], ...]
    joins: bytes = b""

    def continues_word(self, token: int) -> bool:
        """True if a token continues the word before it."""
        return token < len(self.joins) and bool(self.joins[token])


NO_TERMS: Final = Terms(())


class TermSpan(NamedTuple):
    """Tokens that satisfy a term: first and past-the-end position, target prefix included."""

    first: int
    after: int


def read_terms(tokens: Sequence[int], terms: Terms) -> list[TermSpan | None]:
    """Return the spans of as many terms as a complete hypothesis contains, and None for the others."""
    return TermAutomaton(terms).read(tokens)


def options_with_terms(options: SearchOptions, terms: Terms) -> SearchOptions:
    """Return options with a beam that has two places for each number of begun terms.

    A larger beam size becomes a power of two, so that few beam sizes share batches.

    Raises:
        InvalidArgumentError: tokens are drawn, or the model renormalizes after a repetition penalty.
    """
    if not terms.alternatives:
        return options
    if options.sampling is not None:
        raise InvalidArgumentError("terms need a search: leave out sample and the options of sampling", field="options")
    if options.renormalize and options.repetition_penalty != 1.0:
        raise InvalidArgumentError(
            "repetition_penalty and terms exclude each other with this model, which renormalizes probabilities: leave "
            "one of them out",
            field="options.repetition_penalty",
        )
    needed = min(2 * (len(terms.alternatives) + 1), MAX_BEAM_SIZE)
    return options if options.beam_size >= needed else _with_beam(options, 1 << (needed - 1).bit_length())


@lru_cache(maxsize=64)
def _with_beam(options: SearchOptions, beam_size: int) -> SearchOptions:
    return replace(options, beam_size=beam_size)


def reachable_terms(terms: Terms, options: SearchOptions, prefix: Sequence[int]) -> Terms:
    """Return the terms that a hypothesis can contain; the others have no alternatives.

    An alternative is out of reach if options forbid it. Terms that do not fit into the maximum length together are
    left out from the last on.
    """
    allowed = [
        tuple(dict.fromkeys(sequence for sequence in alternatives if _may_be_written(sequence, options)))
        for alternatives in terms.alternatives
    ]
    room = options.max_length - bool(options.forced_last_tokens)
    room -= options.forced_first_token is not None and not prefix
    copies: dict[Tokens, int] = {}
    spans = read_terms(prefix, replace(terms, alternatives=tuple(allowed))) if prefix else [None] * len(allowed)
    for index, span in enumerate(spans):
        if span is not None or not allowed[index]:
            continue
        size = options.no_repeat_ngram_size
        allowed[index] = tuple(one for one in allowed[index] if not (size and len(one) >= size and copies.get(one)))
        shortest = min(map(len, allowed[index]), default=0)
        if shortest > room:
            allowed[index] = ()
            continue
        room -= shortest
        for sequence in allowed[index] if len(allowed[index]) == 1 else ():
            copies[sequence] = copies.get(sequence, 0) + 1
    return replace(terms, alternatives=tuple(allowed))


def _may_be_written(sequence: Tokens, options: SearchOptions) -> bool:
    forbidden = {*options.suppress_tokens, *options.eos_ids}
    if not sequence or not forbidden.isdisjoint(sequence):
        return False
    if any(sequence[first : first + len(word)] == word for word in options.bad_words for first in range(len(sequence))):
        return False
    size = options.no_repeat_ngram_size
    grams = [sequence[first : first + size] for first in range(len(sequence) - size + 1)] if size else []
    return len(set(grams)) == len(grams)


class Reading(NamedTuple):
    """A way to read the tokens of a row.

    Attributes:
        unmet: bit mask of the terms that are not met.
        pending: last tokens of the row, if these begin or are an occurrence.
    """

    unmet: int
    pending: Tokens


@dataclass(slots=True, eq=False)
class TermState:
    """The ways to read the tokens of a row. States refer to nothing that refers to them: they are freed at once.

    Attributes:
        readings: the ways.
        left: tokens that the shortest way to all terms still needs.
        bank: most terms that a reading has met or begun.
        awaits_end: True if the row ends with a term, which the next token may turn into a part of a longer word.
    """

    readings: tuple[Reading, ...]
    left: int
    bank: int
    awaits_end: bool

    @property
    def complete(self) -> bool:
        """True if a hypothesis that ends here contains all terms."""
        return self.left == 0


class TermAutomaton:
    """States of the rows of a search; equal states are one object.

    Args:
        terms: terms that a hypothesis can contain; those without alternatives do not count.
        eos_ids: tokens that end a hypothesis.

    Attributes:
        first_reading: the reading of no token.
        start: the state before the first token.
        size: number of terms that count.
        tokens: tokens of all alternatives.
    """

    def __init__(self, terms: Terms, eos_ids: tuple[int, ...] = ()) -> None:
        self.terms = terms
        self.eos_ids = eos_ids
        self._by_prefix: dict[Tokens, list[tuple[int, Tokens]]] = {}  # terms, as bits, and their alternatives
        self._shortest: dict[int, int] = {}
        for index, alternatives in enumerate(terms.alternatives):
            if alternatives:
                self._shortest[1 << index] = min(map(len, alternatives))
            for sequence in dict.fromkeys(alternatives):
                for length in range(len(sequence) + 1):
                    self._by_prefix.setdefault(sequence[:length], []).append((1 << index, sequence))
        self.size = len(self._shortest)
        self.tokens = frozenset(token for group in terms.alternatives for sequence in group for token in sequence)
        self._first_tokens = {
            index: frozenset(sequence[0] for sequence in group)
            for index, group in enumerate(terms.alternatives)
            if group
        }
        self.first_reading = Reading(sum(self._shortest), ())
        self._missing: dict[int, int] = {}  # tokens of unmet terms
        self._readings: dict[Reading, Reading] = {}
        self._states: dict[tuple[Reading, ...], TermState] = {}
        self._after: dict[TermState, dict[int, TermState]] = {}
        self._boosted: dict[TermState, frozenset[int]] = {}
        self._work = 0
        self.start = self._state((self.first_reading,))

    @property
    def is_ambiguous(self) -> bool:
        """True if a row had more than `FEW_READINGS`."""
        return self._work > 0

    @property
    def is_exhausted(self) -> bool:
        """True if few readings of a row are followed from now on."""
        return self._work >= MAX_WORK

    def _state(self, readings: tuple[Reading, ...]) -> TermState:
        state = self._states.get(readings)
        if state is None:
            readings = tuple(self._readings.setdefault(one, one) for one in readings)
            state = self._states[readings] = TermState(
                readings,
                left=min(map(self.left, readings)),
                bank=max(map(self.bank, readings)),
                awaits_end=any(map(self.awaits_end, readings)),
            )
        return state

    def boosted(self, state: TermState) -> frozenset[int]:
        """Return the tokens that go on with a term, or end the hypothesis after the last."""
        boosted = self._boosted.get(state)
        if boosted is None:
            tokens = self.next_tokens(state.readings)
            if state.complete and state.awaits_end:  # all likely tokens may continue the word
                tokens.update(self.eos_ids)
            boosted = self._boosted[state] = frozenset(tokens)
        return boosted

    def next(self, state: TermState, token: int) -> TermState:
        """Return the state after a token."""
        if token in self.tokens:
            return self._state_after(state, token, joins=self.terms.continues_word(token))
        return self.after_other(state, joins=self.terms.continues_word(token))

    def after_other(self, state: TermState, *, joins: bool) -> TermState:
        """Return the state after a token of no term, which may continue the word before it."""
        if not any(reading.pending for reading in state.readings):
            return state
        joins = joins and state.awaits_end  # else both give one state
        return self._state_after(state, _JOINED if joins else _NO_TERM, joins=joins)

    def _state_after(self, state: TermState, token: int, *, joins: bool) -> TermState:
        after = self._after.setdefault(state, {})
        if token not in after:
            after[token] = self.state_after(state.readings, token, joins=joins)
        return after[token]

    def state_after(self, readings: Sequence[Reading], token: int, *, joins: bool) -> TermState:
        """Return the state of a row with these readings, after a token."""
        following = {reading for before in readings for reading, _ in self.follow(before, token, joins=joins)}
        return self._state(tuple(sorted(self.best(following))))

    def follow(self, reading: Reading, token: int | None, *, joins: bool) -> list[tuple[Reading, int]]:
        """Return the readings after a token, or after the end for None, each with the term that was met, or 0.

        Args:
            joins: True if the token continues the word before it.
        """
        unmet, pending = reading
        following = []
        idle = self.idle(reading, joins=joins)
        if token is None:
            return [(Reading(unmet, ()), 0), *((Reading(left, ()), bit) for left, bit in idle)]
        for left, bit in idle:
            following.append((Reading(left, ()), bit))
            if self._begins(left, (token,)):
                following.append((Reading(left, (token,)), bit))
        if pending and self._begins(unmet, (*pending, token)):
            following.append((Reading(unmet, (*pending, token)), 0))
        return following

    def idle(self, reading: Reading, *, joins: bool) -> list[tuple[int, int]]:
        """Return the unmet terms after a token that begins nothing, each with the term that was met, or 0."""
        unmet, pending = reading
        if not pending:
            return [(unmet, 0)]
        return [] if joins else [(unmet & ~bit, bit) for bit in self._met(reading)]

    def _begins(self, unmet: int, tokens: Tokens) -> bool:
        """True if the tokens begin, or are, an alternative of an unmet term."""
        return any(bit & unmet for bit, _ in self._by_prefix.get(tokens, ()))

    def read(self, tokens: Sequence[int]) -> list[TermSpan | None]:
        """See `read_terms`."""
        if self.is_ambiguous:  # it may follow few readings by now
            return read_terms(tokens, self.terms)
        found: dict[Reading, dict[int, TermSpan]] = {self.first_reading: {}}  # spans by the bit of their term
        for position in range(len(tokens) + 1):
            token = tokens[position] if position < len(tokens) else None
            if token not in self.tokens and not any(reading.pending for reading in found):
                continue
            joins = token is not None and self.terms.continues_word(token)
            after: dict[Reading, dict[int, TermSpan]] = {}
            for reading, spans in found.items():
                for following, met in self.follow(reading, token, joins=joins):
                    span = {met: TermSpan(position - len(reading.pending), position)} if met else {}
                    after.setdefault(following, spans | span)
            found = {reading: after[reading] for reading in self.best(after)}
        _, spans = min(found.items(), key=lambda item: (item[0].unmet.bit_count(), -item[0].unmet))
        return [spans.get(1 << index) for index in range(len(self.terms.alternatives))]

    def bank(self, reading: Reading) -> int:
        """Return the number of terms that a reading has met or begun."""
        unmet, pending = reading
        return self.size - unmet.bit_count() + bool(pending and self._begins(unmet, pending))

    def awaits_end(self, reading: Reading) -> bool:
        """True if the pending tokens meet a term, unless the next token continues the word."""
        return bool(self.terms.joins and reading.pending and self._met(reading))

    def _met(self, reading: Reading) -> list[int]:
        """Return the unmet terms that the pending tokens can meet, one of those with equal alternatives."""
        unmet, pending = reading
        bits = [bit for bit, sequence in self._by_prefix.get(pending, ()) if bit & unmet and sequence == pending]
        alike = {self.terms.alternatives[bit.bit_length() - 1]: bit for bit in reversed(bits)}
        return sorted(alike.values())

    def best(self, readings: Collection[Reading]) -> list[Reading]:
        """Return the readings that have met the most, at most `MAX_READINGS`."""
        if len(readings) == 1:
            return [*readings]
        self._work += max(0, len(readings) - FEW_READINGS)
        most = 2 if self.is_exhausted else MAX_READINGS
        compared = self._first(readings, 4 * most)  # each with each other
        kept = [
            one
            for one in compared
            if not any(
                one.pending == other.pending and one.unmet != other.unmet and one.unmet & other.unmet == other.unmet
                for other in compared
            )
        ]
        return self._first(kept, most)

    def _first(self, readings: Collection[Reading], most: int) -> list[Reading]:
        """Return the readings that need the fewest tokens; one has no pending tokens, as it alone reads any token."""
        if len(readings) <= most:
            return [*readings]
        ranked = sorted(readings, key=lambda one: (self.left(one), one))
        idle = next(one for one in ranked if not one.pending)
        return [idle, *(one for one in ranked[:most] if one != idle)][:most]

    def left(self, reading: Reading) -> int:
        """Return the number of tokens that the shortest way from a reading to all terms needs."""
        unmet, pending = reading
        missing = self._missing.get(unmet)
        if missing is None:
            missing = self._missing[unmet] = sum(length for bit, length in self._shortest.items() if bit & unmet)
        if not pending:
            return missing
        return min(
            (
                missing - self._shortest[bit] + len(sequence) - len(pending)
                for bit, sequence in self._by_prefix.get(pending, ())
                if bit & unmet
            ),
            default=missing,
        )

    def next_tokens(self, readings: Collection[Reading]) -> set[int]:
        """Return the tokens that go on with a term, or begin one if a term is met."""
        tokens = {
            sequence[len(pending)]
            for unmet, pending in readings
            for bit, sequence in (self._by_prefix.get(pending, ()) if pending else ())
            if bit & unmet and len(sequence) > len(pending)
        }
        idle = {unmet for reading in readings for unmet, _ in self.idle(reading, joins=False)}
        begun = {term for term in self._first_tokens if any(1 << term & unmet for unmet in idle)}
        return tokens.union(*(self._first_tokens[term] for term in begun))

    def first_tokens(self) -> dict[int, dict[int, int]]:
        """Return the tokens that begin terms, and by term the tokens that each adds to the shortest way at least."""
        added: dict[int, dict[int, int]] = {}
        for bit, sequence in self._by_prefix.get((), ()):
            of_token, more = added.setdefault(sequence[0], {}), len(sequence) - 1 - self._shortest[bit]
            term = bit.bit_length() - 1
            of_token[term] = min(more, of_token.get(term, more))
        return added

    def going_on(self, readings: Collection[Reading]) -> set[int]:
        """Return the tokens that go on with pending ones, of terms that are met too."""
        return {
            sequence[len(pending)]
            for _, pending in readings
            for _, sequence in (self._by_prefix.get(pending, ()) if pending else ())
            if len(sequence) > len(pending)
        }
