"""Continuous batching: sentences join and leave a batch between steps."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Protocol

import numpy as np

from jumok_serve.engine.sentence import CancellationWatch, Sentence
from jumok_serve.errors import ModelFailedError
from jumok_serve.runtime.decoders import make_decoder
from jumok_serve.runtime.graphs import Floats, Graphs, Integers
from jumok_serve.runtime.step_selection import SelectionParameters, StepSelection, make_columns
from jumok_serve.runtime.tensors import DecoderInputs, Slots, Tensors, padded_length
from jumok_serve.search.constraints import concatenate_constraints
from jumok_serve.search.step_arrays import BatchSearch

MAX_EMPTY_SHARE = 1 / 8
"""Largest share of a batch's slots that may be empty during a step, if all slots take part in it."""

CALL_TOKENS = 24
"""Fixed cost of an encoder call, in tokens: 12 to 19 on an idle machine (width 256 and 512, int8 and fp32). Between
decoder steps, which fill the caches, it is higher: of 16, 24, 32 and 48, 24 and 32 were fastest (width 256)."""

MAX_CALL_TOKENS = 512
"""Most tokens of a call, padding included: beyond it a token costs no less, from 1,000 on more, and memory grows."""


class SlotTable(Protocol):
    """A table with an entry for each slot of a batch.

    Its ``join(slots, ...)`` fills the slots; arguments differ, because a cache and a search start from different data.
    """

    def leave(self, slots: Sequence[int]) -> None:
        """Empty slots."""

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """Move the entries of some slots to other, disjoint slots."""


@dataclass(frozen=True, slots=True, eq=False)
class _EncoderRun:
    """Encoder outputs: the decoder's memory and first state, [B, ...]."""

    memory: Tensors
    first_state: Tensors


class SourceTable:
    """Sentences by slot, with source lengths and encoder memory.

    Attributes:
        sentences: by slot; None: empty.
        memory: encoder outputs, by slot.
        lengths: source lengths, 1 in an empty slot, [slots].
        tokens: source tokens of all sentences.
    """

    def __init__(self, graphs: Graphs) -> None:
        self.sentences: list[Sentence | None] = []
        self.memory: Slots = graphs.make_slots("memory")
        self.lengths: Integers = np.ones(0, np.int64)
        self.tokens = 0

    def join(self, slots: Sequence[int], sentences: Sequence[Sentence], longest: int) -> None:
        """Fill slots; the caller then copies the memory of each encoder run.

        `longest` is the longest source decoded so far.
        """
        lengths = [len(sentence.source_ids) for sentence in sentences]
        used, last = len(self.sentences), slots[-1] + 1
        self.memory.reserve(max(used, last), max(longest, *lengths), used)
        self.sentences += [None] * max(0, last - used)
        if (more := len(self.sentences) - len(self.lengths)) > 0:
            self.lengths = np.concatenate((self.lengths, np.ones(max(more, len(self.lengths)), np.int64)))
        self.lengths[slots] = lengths
        self.tokens += sum(lengths)
        for slot, sentence in zip(slots, sentences, strict=True):
            self.sentences[slot] = sentence

    def leave(self, slots: Sequence[int]) -> None:
        """See `SlotTable`."""
        for slot in slots:
            self.sentences[slot] = None
        self.tokens -= int(np.add.reduce(self.lengths[slots]))
        self.lengths[slots] = 1  # memory may become shorter than their sources

    def move(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """See `SlotTable`."""
        self.memory.move(slots, to, int(self.lengths[slots].max()))
        for slot, place in zip(slots, to, strict=True):
            self.sentences[place] = self.sentences[slot]
        self.lengths[to] = self.lengths[slots]

    def truncate(self, slots: int) -> None:
        """Drop the slots from number `slots` on."""
        self.lengths[slots : len(self.sentences)] = 1
        del self.sentences[slots:]


class Batch:
    """Sentences that share a beam size K, decoded together.

    Sentences are encoded, join at once or later, and leave when they are done. Each has a slot of KV cache and encoder
    memory, and K consecutive rows of a step.

    With `Graphs.by_slot`, a step has rows for occupied slots only. Otherwise it has rows for all slots. If more than
    `MAX_EMPTY_SHARE` of these are empty, the last sentences move there before the step. Fewer empty slots are decoded
    and ignored: a move costs as much as several steps of a sentence's rows, and the next sentences join there.

    Attributes:
        done: sentences that the last step finished.
        light: True if its sentences are light.
        step_work: estimated work of a step, in row steps.
        most_positions: source positions of its memory when that was largest, of all rows together.
    """

    def __init__(self, graphs: Graphs, beam_size: int, pad: int) -> None:
        self.beam_size = beam_size
        self.light = False
        self.step_work = self.most_positions = 0
        self.done: Sequence[Sentence] = ()
        self._pad = pad
        self._sources = SourceTable(graphs)
        self._decoder = make_decoder(graphs, beam_size)
        self._columns = make_columns(graphs)
        self._searches = BatchSearch(beam_size)
        self._tables: tuple[SlotTable, ...] = (self._sources, self._decoder, self._columns, self._searches)
        self._encoded: dict[Sentence, tuple[_EncoderRun, int]] = {}  # run and row of sentences that have not joined
        self._empty: list[int] = []  # slots, ascending
        self._inputs: DecoderInputs | None = None
        self._selection = StepSelection(beam_size)
        self._step_slots: Integers | None = None  # slots of the next step, ascending; None: to be found
        self._longest: int | None = None  # source; None: to be found
        self._padding: float | None = None  # None: to be found
        self._watch = CancellationWatch()
        self._has_progress = False  # a sentence reports its progress
        self._repeats = False  # the next step differs from the last in tokens and scores only

    @property
    def graphs(self) -> Graphs:
        """The model; between steps, sessions with the same graphs may replace it."""
        return self._decoder.graphs

    @graphs.setter
    def graphs(self, graphs: Graphs) -> None:
        self._repeats = self._repeats and graphs is self._decoder.graphs
        self._decoder.graphs = graphs

    @property
    def sentences(self) -> Sequence[Sentence]:
        """Sentences in slots, by slot."""
        return [sentence for sentence in self._sources.sentences if sentence is not None]

    @property
    def slots(self) -> int:
        """Number of slots, empty ones included."""
        return len(self._sources.sentences)

    @property
    def size(self) -> int:
        """Number of sentences in slots."""
        return self.slots - len(self._empty)

    @property
    def rows(self) -> int:
        """Rows of the next step, without those of empty slots."""
        return self.size * self.beam_size

    @property
    def longest_source(self) -> int:
        """Tokens of the longest source in a slot."""
        if self._longest is None:
            self._longest = int(np.maximum.reduce(self._sources.lengths)) if self.size else 0
        return self._longest

    @property
    def padding(self) -> float:
        """Share of padding among the source positions of the next step."""
        if self._padding is None:
            positions = self.size * padded_length(self.longest_source)
            self._padding = 1 - self._sources.tokens / positions if positions else 0.0
        return self._padding

    @property
    def is_empty(self) -> bool:
        """True if it has no sentences, neither in slots nor encoded."""
        return not (self.size or self._encoded)

    def admit(self, sentences: Sequence[Sentence]) -> None:
        """Encode sentences, and let them join."""
        self.encode(sentences)
        self.join(sentences)

    def encode(self, sentences: Sequence[Sentence]) -> None:
        """Run the encoder for sentences that are to `join`."""
        started = time.monotonic()
        lengths = np.array([len(sentence.source_ids) for sentence in sentences])
        ids = np.full((len(sentences), int(lengths.max())), self._pad)
        for padded, sentence in zip(ids, sentences, strict=True):
            padded[: len(sentence.source_ids)] = sentence.source_ids
        run = _EncoderRun(*self.graphs.encode(ids, lengths))
        elapsed = time.monotonic() - started
        for row, sentence in enumerate(sentences):
            sentence.encode_s = elapsed
            self._encoded[sentence] = run, row
        self._watch.watch(sentences)

    def join(self, sentences: Sequence[Sentence]) -> None:
        """Give slots to encoded sentences, which join the next step."""
        chosen = frozenset(sentences)  # in the order of encoder runs, so that each run is copied at once
        sentences = [sentence for sentence in self._encoded if sentence in chosen]
        used = self.slots
        slots = [*self._empty, *range(used, used + len(sentences))][: len(sentences)]
        self._sources.join(slots, sentences, self.longest_source)
        memory = self._sources.memory
        self.most_positions = max(self.most_positions, memory.capacity * memory.length * self.beam_size)
        self._empty = self._empty[len(sentences) :]
        first = 0
        for run, members in groupby((self._encoded.pop(sentence) for sentence in sentences), key=itemgetter(0)):
            rows = [row for _, row in members]
            of_run = slots[first : first + len(rows)]
            self._sources.memory.join(of_run, run.memory, rows)
            self._decoder.join(of_run, run.first_state, rows)
            first += len(rows)
        self._columns.join(slots, [sentence.allowed_tokens for sentence in sentences])
        self._searches.join(slots, [sentence.search for sentence in sentences])
        self.step_work += sum(sentence.plan.step_work for sentence in sentences)
        self._step_slots = self._longest = self._padding = None
        self._repeats = False
        now = time.monotonic()
        for sentence in sentences:
            sentence.admitted = now
        others = self.sentences if self._has_progress else ()
        self._has_progress = any(sentence.progress for sentence in (*sentences, *others))

    def abandoned(self, now: float) -> list[Sentence]:
        """Return the cancelled or late sentences at `now`, encoded ones included.

        Sentences are scanned only after a cancellation, or past the first deadline.
        """
        if not self.may_have_abandoned(now):
            return []
        sentences = (*self.sentences, *self._encoded)
        self._watch.reset(sentences, now)
        return [sentence for sentence in sentences if sentence.abandoned(now)]

    def may_have_abandoned(self, now: float) -> bool:
        """False if no sentence can be cancelled or late at `now`; takes no scan."""
        return self._watch.triggered(now)

    def remove(self, leaving: Collection[Sentence]) -> None:
        """Remove sentences; their slots are free at once."""
        present = self._sources.sentences
        slots = [present.index(sentence) for sentence in leaving if self._encoded.pop(sentence, None) is None]
        if not slots:
            return
        for slot in slots:
            if (sentence := present[slot]) is not None:
                self.step_work -= sentence.plan.step_work
        for table in self._tables:
            table.leave(slots)
        self.done = ()
        self._empty = sorted([*self._empty, *slots])
        while self._empty and self._empty[-1] == self.slots - 1:
            self._sources.truncate(self._empty.pop())
        self._step_slots = self._longest = self._padding = None
        self._repeats = False

    def _find_step_slots(self) -> Integers:
        """Return the slots whose rows are decoded next, [n]."""
        if self._step_slots is None and self.graphs.by_slot:
            occupied = [slot for slot, sentence in enumerate(self._sources.sentences) if sentence is not None]
            self._step_slots = np.array(occupied)
        elif self._step_slots is None:
            self._compact()
            self._step_slots = np.arange(self.slots)
        return self._step_slots

    def _compact(self) -> None:
        """Move the last sentences to empty slots, if these are many."""
        if len(self._empty) <= MAX_EMPTY_SHARE * self.slots:
            return
        size, empty = self.size, frozenset(self._empty)
        to = [slot for slot in self._empty if slot < size]
        moved = [slot for slot in range(size, self.slots) if slot not in empty]
        if moved:
            for table in self._tables:
                table.move(moved, to)
        self._sources.truncate(size)
        self._empty = []

    def step(self) -> None:
        """Decode one token of every row; done sentences stay until removed."""
        slots, searches, arrays = self._find_step_slots(), self._searches, self._searches.arrays
        if self._repeats:
            self._selection.renew_scores()
            self._advance(slots, *self._decoder.step_again())
            return
        selection = self._selection.parameters(slots, searches, self._columns)
        inputs, lengths = self._inputs, self._sources.lengths
        if inputs is None or inputs.tokens is not arrays.tokens or inputs.lengths is not lengths:
            inputs = self._inputs = DecoderInputs(arrays.tokens, arrays.positions, arrays.parents, lengths)
        tokens, totals = self._decoder.step(slots, inputs, self._sources.memory, self._columns, selection)
        if selection.with_logits:
            self._draw(slots, selection, tokens, totals)
        self._repeats = not (selection.with_logits or searches.has_boosts or self._has_progress)
        self._advance(slots, tokens, totals)

    def run_on(self, interrupted: Callable[[], bool]) -> int:
        """Step while the next step differs from the last in tokens and scores only; return the number of steps.

        Args:
            interrupted: asked before each step; True ends the run.
        """
        count = 0
        while self._repeats and not interrupted():
            self.step()
            count += 1
        return count

    def _advance(self, slots: Integers, tokens: Integers, totals: Floats) -> None:
        """Advance all searches by the candidates of a step, [n * K, C]."""
        searches, present = self._searches, self._sources.sentences
        unsteady = searches.advance_steady(slots, self._columns.tokens(tokens), totals)
        self.done = ()
        if unsteady:
            self._repeats = False
            failed = self._failed(totals, slots, unsteady)
            finished = searches.advance([slot for slot in unsteady if slot not in failed])
            self.done = [sentence for slot in (*finished, *failed) if (sentence := present[slot]) is not None]
            for sentence in self.done[len(finished) :]:
                sentence.failure = ModelFailedError("the model computed NaN for this text")
        for slot, sentence in enumerate(present if self._has_progress else ()):
            if sentence is not None and sentence.progress is not None:
                sentence.progress.update(searches.search(slot))

    def _draw(self, slots: Integers, selection: SelectionParameters, tokens: Integers, totals: Floats) -> None:
        """Replace the best candidates of sampling rows by drawn tokens.

        `tokens` and `totals` are the candidates of the rows in `slots`, [n * K, C].
        """
        size, searches = self.beam_size, self._searches
        indices = np.flatnonzero(searches.arrays.draws[slots])
        drawing = slots[indices].tolist()
        rows = (indices[:, None] * size + np.arange(size)).reshape(-1)
        parts = ((index * size, searches.constraints[slot]) for index, slot in enumerate(drawing))
        tokens[rows, :1], totals[rows, :1] = self.graphs.sample(
            self._decoder.logits(),
            rows,
            selection.scores[rows],
            [draw for slot in drawing for draw in searches.search(slot).draws or ()],
            self._columns.to_columns(concatenate_constraints(parts)),
        )

    def _failed(self, totals: Floats, slots: Integers, unsteady: Sequence[int]) -> set[int]:
        """Return the unsteady slots for which the model computed NaN.

        A log-softmax over nothing but -inf is NaN too. That is no failure of the model: constraints left no token.
        """
        if not self._searches.has_nan:
            return set()
        indices = slots.searchsorted(unsteady)
        rows = (indices[:, None] * self.beam_size + np.arange(self.beam_size)).reshape(-1)
        undefined = rows[np.isnan(totals[rows]).any(axis=1)]
        best = self._decoder.logits().numpy()[undefined].max(axis=1)
        return {int(slots[row // self.beam_size]) for row in undefined[~np.isfinite(best)]}


def split_by_length(sentences: Sequence[Sentence]) -> list[list[Sentence]]:
    """Split sentences into encoder batches at the lowest cost, shortest sentences first.

    A batch costs the tokens of its sentences, padded to the longest, plus `CALL_TOKENS`. In order of length, the
    batches of the cheapest split are runs, so dynamic programming finds it. A batch of more than `MAX_CALL_TOKENS` is
    cut into equal parts, if it has several sentences.
    """
    by_length: dict[int, list[Sentence]] = defaultdict(list)
    for sentence in sentences:
        by_length[len(sentence.source_ids)].append(sentence)
    lengths = sorted(by_length)
    cheapest = [0]  # cost of the split of the first n lengths
    starts = [0]  # start of its last batch
    for end, longest in enumerate(lengths, 1):
        rows = 0
        best, best_start = cheapest[end - 1] + CALL_TOKENS + longest * len(by_length[longest]), end - 1
        for start in range(end - 1, -1, -1):
            rows += len(by_length[lengths[start]])
            cost = cheapest[start] + CALL_TOKENS + rows * longest
            if cost < best:
                best, best_start = cost, start
        cheapest.append(best)
        starts.append(best_start)
    bounds = [len(lengths)]
    while bounds[-1]:
        bounds.append(starts[bounds[-1]])
    batches = []
    for start, end in pairwise(reversed(bounds)):
        batch = [sentence for length in lengths[start:end] for sentence in by_length[length]]
        parts = min(len(batch), -(-len(batch) * lengths[end - 1] // MAX_CALL_TOKENS))
        cuts = [len(batch) * part // parts for part in range(parts + 1)]
        batches += [batch[first:last] for first, last in pairwise(cuts)]
    return batches
