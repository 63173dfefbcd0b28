"""The sentences of one beam size that are decoded together; they join and leave between steps."""

import math
import operator
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jumok_serve.columns import make_columns
from jumok_serve.errors import JumokError, ModelFailed
from jumok_serve.memory import padded_length
from jumok_serve.progress import Progress
from jumok_serve.search import (
    Constraints,
    Continuations,
    FinishedHypothesis,
    Search,
    best_continuations,
    each_rows_best,
    joined,
)
from jumok_serve.selecting import Choice
from jumok_serve.session import Booleans, Floats, Graphs, Integers
from jumok_serve.states import make_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The outcome for one sentence.

    Attributes:
        hypotheses: best first, or as they were drawn.
        queue_s: seconds from arrival to admission.
        encode_s: seconds of the encoder run that it was part of.
        decode_s: seconds from its admission to its last step, its encoding left out.
    """

    hypotheses: tuple[FinishedHypothesis, ...]
    queue_s: float
    encode_s: float
    decode_s: float


@dataclass(slots=True, kw_only=True, eq=False)
class Sentence:
    """One sentence on its way through the engine.

    Attributes:
        source_ids: token ids, end token included.
        search: the search for its translation.
        listed: ascending, the tokens that it may be translated with; None: all. Nobody looks at it but a model that is
            loaded for shortlists.
        deadline: by when it must be done, in `time.monotonic()` seconds, or None.
        future: where the outcome goes; cancelling it takes the sentence out before the next step.
        arrived: when it was submitted, in `time.monotonic()` seconds.
        admitted: when it left the queue.
        encode_s: seconds of the encoder run that it was part of.
        failure: why it cannot be decoded, or None.
        progress: who is told how far it has come, or None.
    """

    source_ids: Sequence[int]
    search: Search
    listed: Integers | None = None
    deadline: float | None = None
    future: "Future[Decoded]" = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)
    admitted: float = 0.0
    encode_s: float = 0.0
    failure: JumokError | None = None
    progress: Progress | None = None

    def abandoned(self, now: float) -> bool:
        """Whether nobody waits for it any more at the monotonic time `now`: cancelled, or past its deadline."""
        return self.future.cancelled() or (self.deadline is not None and now > self.deadline)


class Batch:
    """In-flight batching of sentences that share a beam size K.

    The sentence in slot b holds the consecutive rows b*K .. b*K+K-1 and slot b of memory and state. A sentence that
    joins takes a slot that one has left; slots that are still empty when the next step begins get the sentences of
    the last ones, so that a step has no row too many and nothing else is ever moved.

    Args:
        graphs: the model.
        beam_size: K.
        pad: id of the padding token.
    """

    def __init__(self, graphs: Graphs, beam_size: int, pad: int) -> None:
        self.beam_size = beam_size
        self.done: Sequence[Sentence] = ()
        """Those that need no further step after the last one."""
        self._pad = pad
        self._memory = graphs.make_slots("memory")
        self._state = make_state(graphs, beam_size)
        self._columns = make_columns(graphs)
        self._slots: list[Sentence | None] = []
        self._sentences: list[Sentence] | None = []  # by slot, without those that are empty; None: to be made anew
        self._together: _Together | None = None  # likewise
        self._joined: dict[int, _Joined] = {}  # by the number of sentences
        self._cancellations = _Cancellations()
        self._next_deadline = math.inf

    @property
    def graphs(self) -> Graphs:
        """The model; between two steps the same graphs in other sessions may take their place."""
        return self._state.graphs

    @graphs.setter
    def graphs(self, graphs: Graphs) -> None:
        self._state.graphs = graphs

    @property
    def sentences(self) -> Sequence[Sentence]:
        """Those that are decoded, by slot."""
        if self._sentences is None:
            self._sentences = [sentence for sentence in self._slots if sentence is not None]
        return self._sentences

    @property
    def rows(self) -> int:
        """Rows of the next step."""
        return len(self.sentences) * self.beam_size

    @property
    def longest_source(self) -> int:
        """Tokens of the longest source that is decoded."""
        return max((len(sentence.source_ids) for sentence in self.sentences), default=0)

    @property
    def padding(self) -> float:
        """Share of padding among the source positions of the next step."""
        return self._those_together().padding

    def _those_together(self) -> "_Together":
        if self._together is None:
            self._together = _Together(self.sentences, self.beam_size)
        return self._together

    def _forget(self) -> None:
        """Has what depends on the slots made anew when it is asked for."""
        self._sentences = self._together = None

    def admit(self, sentences: Sequence[Sentence]) -> None:
        """Encodes sentences and lets them take part from the next step on."""
        started = time.monotonic()
        lengths = np.array([len(sentence.source_ids) for sentence in sentences])
        ids = np.full((len(sentences), int(lengths.max())), self._pad)
        for padded, sentence in zip(ids, sentences, strict=True):
            padded[: len(sentence.source_ids)] = sentence.source_ids
        encoded, first_state = self.graphs.encode(ids, lengths)
        while self._slots and self._slots[-1] is None:
            self._slots.pop()
        used = len(self._slots)
        empty = [slot for slot, sentence in enumerate(self._slots) if sentence is None]
        slots = [*empty, *range(used, used + len(sentences))][: len(sentences)]
        self._memory.reserve(max(used, slots[-1] + 1), max(int(lengths.max()), self.longest_source), used)
        self._memory.join(slots, encoded)
        self._state.join(slots, first_state)
        self._columns.join(slots, [sentence.listed for sentence in sentences])
        self._slots += [None] * (slots[-1] + 1 - used)
        elapsed = time.monotonic() - started
        for slot, sentence in zip(slots, sentences, strict=True):
            sentence.encode_s = elapsed
            self._slots[slot] = sentence
            sentence.future.add_done_callback(self._cancellations.note)
        self._next_deadline = min(self._next_deadline, *_deadlines(sentences))
        self._forget()

    def abandoned(self, now: float) -> list[Sentence]:
        """The sentences that nobody waits for any more at the monotonic time `now`.

        They are looked at one by one only where one was cancelled or the first deadline has passed.
        """
        if not self._cancellations.present and now <= self._next_deadline:
            return []
        self._cancellations.present = False  # first, so that nobody who leaves from here on is missed the next time
        abandoned = [sentence for sentence in self.sentences if sentence.abandoned(now)]
        self._next_deadline = min(deadline for deadline in _deadlines(self.sentences) if deadline >= now)
        return abandoned

    def remove(self, leaving: Collection[Sentence]) -> None:
        """Takes out sentences; their rows are free at once."""
        if leaving:
            gone = set(leaving)
            self._slots = [None if sentence in gone else sentence for sentence in self._slots]
            self._forget()

    def _compact(self) -> None:
        """Fills empty slots with the last sentences."""
        if len(self.sentences) == len(self._slots):
            return
        last = len(self._slots) - 1
        for slot, sentence in enumerate(self._slots):
            while last > slot and self._slots[last] is None:
                last -= 1
            if sentence is None and last > slot:
                moved = self._slots[last]
                assert moved is not None
                self._memory.move(last, slot, len(moved.source_ids))
                self._state.move(last, slot)
                self._columns.move(last, slot)
                self._slots[slot], self._slots[last] = moved, None
        self._slots = [sentence for sentence in self._slots if sentence is not None]
        self._forget()

    def step(self) -> None:
        """Decodes one token of every row. Sentences that are `done` with it stay until they are removed."""
        self._compact()
        together, size = self._those_together(), self.beam_size
        asked = zip(*map(_ASKED, together.searches), strict=True)
        fed, parents, scores, positions, candidates, constraints = asked
        choice = self._choice(together, constraints, _table(scores, np.float32, size).ravel(), max(candidates))
        tokens, totals = self._state.step(
            _table(fed, np.int64, size),
            np.array(positions),
            _table(parents, np.int64, size),
            together.source_lengths,
            self._memory,
            self._columns,
            choice,
        )
        if together.drawing:
            rows = np.concatenate([np.arange(size) + slot * size for slot in together.drawing])
            parts = ((place * size, constraints[slot]) for place, slot in enumerate(together.drawing))
            tokens[rows, :1], totals[rows, :1] = self.graphs.sample(
                self._state.logits(),
                rows,
                choice.scores[rows],
                [draw for slot in together.drawing for draw in together.searches[slot].draws or ()],
                self._columns.places(joined(parts)),
            )
        self.done = self._advance(together, self._columns.tokens(tokens), totals)
        for progress, search in together.watched:
            progress.see(search)

    def _choice(
        self, together: "_Together", constraints: Sequence[Constraints], scores: Floats, candidates: int
    ) -> Choice:
        """What to ask of the selection; rows that draw are no concern of it."""
        columns, inputs = self._columns, self._columns.inputs(len(constraints))
        slots = (together.constrained_on_logits, together.constrained_on_log_probs)
        kept = self._joined.get(len(constraints))
        # Most constraints are those of an earlier step, if of other sentences.
        if (
            kept is None
            or kept.inputs is not inputs
            or kept.slots != slots
            or not all(map(operator.is_, constraints, kept.constraints))
        ):
            on_logits, on_log_probs = (
                columns.places(joined((slot * self.beam_size, constraints[slot]) for slot in those)) for those in slots
            )
            kept = self._joined[len(constraints)] = _Joined(slots, inputs, constraints, on_logits, on_log_probs)
        return Choice(
            scores=scores,
            candidates=candidates,
            on_logits=kept.on_logits,
            on_log_probs=kept.on_log_probs,
            renormalize=together.renormalize,
            with_logits=bool(together.drawing),
        )

    def _advance(self, together: "_Together", tokens: Integers, totals: Floats) -> list[Sentence]:
        """Hands each sentence what it asked for, unless the model computed no numbers for one of its rows.

        Returns:
            Those that need no further step.
        """
        size = self.beam_size
        failed = {row // size for row in self._failed(totals)}  # slots
        best = of_rows = Continuations([], [], [])
        if together.continuations_needed:
            best = best_continuations(tokens, totals, size, together.continuations_needed)
        if together.rows_alone:
            of_rows = each_rows_best(tokens, totals, size)
        done = []
        for slot, search in enumerate(together.searches):
            if slot in failed:
                together.sentences[slot].failure = ModelFailed("the model computed NaN for this text")
            else:
                seen = best if search.continuations_needed else of_rows
                search.advance(seen.tokens[slot], seen.scores[slot], seen.rows[slot])
            if slot in failed or search.finished:
                done.append(together.sentences[slot])
        return done

    def _failed(self, totals: Floats) -> list[int]:
        """The rows for which the model computed no numbers.

        A log-softmax of nothing but -inf is NaN too: that is not the model's fault, but constraints left no token.
        """
        if not math.isnan(totals.sum()):  # as it is if any of them is
            return []
        undefined = np.flatnonzero(np.isnan(totals).any(axis=1))
        best = self._state.logits().numpy()[undefined].max(axis=1)
        return [int(row) for row, value in zip(undefined, best, strict=True) if not np.isfinite(value)]


@dataclass(frozen=True, slots=True)
class _Joined:
    """The constraints of all sentences in one.

    Attributes:
        slots: of those whose constraints act on logits, and of those whose constraints act on log-probabilities.
        inputs: what says which columns there are.
        constraints: of every sentence.
        on_logits: those on columns of logits.
        on_log_probs: those on columns of log-probabilities.
    """

    slots: tuple[Sequence[int], Sequence[int]]
    inputs: Mapping[str, object]
    constraints: Sequence[Constraints]
    on_logits: Constraints
    on_log_probs: Constraints


class _Cancellations:
    """Whether a future was cancelled. Futures keep this alive, but not the batch with its buffers."""

    def __init__(self) -> None:
        self.present = False

    def note(self, future: "Future[Decoded]") -> None:
        """Is called when a future is done."""
        if future.cancelled():
            self.present = True


def _deadlines(sentences: Iterable[Sentence]) -> list[float]:
    """When they must be done, in `time.monotonic()` seconds, and the end of time, so that there is one."""
    return [math.inf, *(sentence.deadline for sentence in sentences if sentence.deadline is not None)]


class _Together:
    """What stays as it is while the same sentences are decoded together.

    Attributes:
        sentences: by slot.
        searches: theirs.
        source_lengths: theirs, [n].
        padding: what of the positions that all have together is none of these.
        drawing: slots of the sentences whose tokens are drawn.
        constrained_on_logits: slots of the others whose constraints act on logits.
        constrained_on_log_probs: slots of those whose constraints act on log-probabilities.
        renormalize: [n * K], whether a log-softmax follows these; None: nowhere.
        continuations_needed: most that any search asks for.
        rows_alone: whether any search asks for none, but for the best of every row.
        watched: searches whose progress somebody wants to see.
    """

    def __init__(self, sentences: Sequence[Sentence], beam_size: int) -> None:
        self.sentences = sentences
        self.searches = [sentence.search for sentence in sentences]
        self.source_lengths: Integers = np.array([len(sentence.source_ids) for sentence in sentences], np.int64)
        positions = len(sentences) * padded_length(int(self.source_lengths.max(initial=0)))
        self.padding = 1 - int(self.source_lengths.sum()) / positions if positions else 0.0
        self.drawing = [slot for slot, search in enumerate(self.searches) if search.draws is not None]
        choosing = [slot for slot, search in enumerate(self.searches) if search.draws is None]
        self.constrained_on_logits = [slot for slot in choosing if self.searches[slot].acts_on_logits]
        self.constrained_on_log_probs = [slot for slot in choosing if not self.searches[slot].acts_on_logits]
        renormalizes = [search.renormalizes for search in self.searches]
        self.renormalize: Booleans | None = np.repeat(renormalizes, beam_size) if any(renormalizes) else None
        needed = [search.continuations_needed for search in self.searches]
        self.continuations_needed = max(needed, default=0)
        self.rows_alone = not all(needed)
        self.watched = [(each.progress, each.search) for each in sentences if each.progress is not None]


_ASKED = operator.attrgetter("tokens", "parents", "scores", "position", "candidates_needed", "constraints")
"""What searches ask of each step, in one call."""


def _table(rows: Iterable[Sequence[float]], dtype: type[np.generic], beam_size: int) -> NDArray[Any]:
    """Values of the rows of each sentence, as [n, K]."""
    return np.fromiter(chain.from_iterable(rows), dtype).reshape(-1, beam_size)
