"""The sentences of one beam size that are decoded together; they join and leave between steps."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from jumok_proto.errors import JumokError
from jumok_serve.engine.cancellation import Departures
from jumok_serve.engine.future import Future
from jumok_serve.engine.statistics import Progress
from jumok_serve.errors import ModelFailedError
from jumok_serve.runtime.binding import Tensors
from jumok_serve.runtime.decoder_step import make_decoder
from jumok_serve.runtime.graphs import Booleans, Floats, Graphs, Integers
from jumok_serve.runtime.output_columns import make_columns
from jumok_serve.runtime.slot_buffers import padded_length
from jumok_serve.runtime.step_inputs import DecoderInputs, SelectionParameters
from jumok_serve.search import (
    BatchSearch,
    Constraints,
    FinishedHypothesis,
    Search,
    SharedConstraints,
    concatenate_constraints,
)

MOST_EMPTY = 1 / 8
"""Share of a batch's slots that may be empty while a step is decoded, where all of them take part in it."""


class Decoded(NamedTuple):
    """The outcome for one sentence.

    Attributes:
        hypotheses: best first, or as they were drawn.
        queue_s: seconds from arrival to admission, its encoding left out.
        encode_s: seconds of the encoder run that it was part of.
        decode_s: seconds from its admission to its last step.
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
        admitted: when it got a slot, encoded.
        encode_s: seconds of the encoder run that it was part of.
        failure: why it cannot be decoded, or None.
        progress: who is told how far it has come, or None.
    """

    source_ids: Sequence[int]
    search: Search
    listed: Integers | None = None
    deadline: float | None = None
    future: Future[Decoded] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)
    admitted: float = 0.0
    encode_s: float = 0.0
    failure: JumokError | None = None
    progress: Progress | None = None

    def abandoned(self, now: float) -> bool:
        """Whether nobody waits for it any more at the monotonic time `now`: cancelled, or past its deadline."""
        return self.future.cancelled() or (self.deadline is not None and now > self.deadline)


@dataclass(frozen=True, slots=True, eq=False)
class _Encoded:
    """What the encoder gave for several sentences: memory and first state of the decoder, [B, ...]."""

    memory: Tensors
    first_state: Tensors


class Batch:
    """In-flight batching of sentences that share a beam size K.

    Sentences are encoded, join at once or later, and leave when they are done. Each has a slot of memory and state, and
    K consecutive rows of a step. One that joins takes a slot that another has left.

    Where `Graphs.by_slot`, the rows of a step are those of the sentences that there are. Elsewhere they are those of
    the slots, and where more than `MOST_EMPTY` of these are empty when the next step begins, the sentences of the last
    ones move there. Fewer are decoded as if they still had a sentence, of which nobody reads what comes of it: to move
    one costs as much as several steps of its rows, and the next to join take these slots.

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
        self._decoder = make_decoder(graphs, beam_size)
        self._columns = make_columns(graphs)
        self._searches = BatchSearch(beam_size)
        self._encoded: dict[Sentence, tuple[_Encoded, int]] = {}  # where those are that have not joined yet
        self._slots: list[Sentence | None] = []
        self._lengths: Integers = np.ones(0, np.int64)  # of the sources by slot, 1 where it is empty
        self._inputs: DecoderInputs | None = None  # these and what searches ask
        self._tokens = 0  # of all sources that are decoded
        self._empty: list[int] = []  # slots, ascending
        self._constrained: dict[int, _Constrained] = {}  # by the number of sentences
        self._stepping: Integers | None = None  # the slots of the next step, ascending; None: they are to be found
        self._longest: int | None = None  # source; likewise
        self._departures = Departures()
        self._watched = False  # whether somebody wants to see how far some sentence has come

    @property
    def graphs(self) -> Graphs:
        """The model; between two steps the same graphs in other sessions may take their place."""
        return self._decoder.graphs

    @graphs.setter
    def graphs(self, graphs: Graphs) -> None:
        self._decoder.graphs = graphs

    @property
    def sentences(self) -> Sequence[Sentence]:
        """Those that are decoded, by slot."""
        return [sentence for sentence in self._slots if sentence is not None]

    @property
    def size(self) -> int:
        """How many sentences are decoded."""
        return len(self._slots) - len(self._empty)

    @property
    def rows(self) -> int:
        """Rows of the next step, but for those of empty slots."""
        return self.size * self.beam_size

    @property
    def longest_source(self) -> int:
        """Tokens of the longest source that is decoded."""
        if self._longest is None:
            self._longest = int(np.maximum.reduce(self._lengths)) if self.size else 0
        return self._longest

    @property
    def padding(self) -> float:
        """Share of padding among the source positions of the next step."""
        positions = self.size * padded_length(self.longest_source)
        return 1 - self._tokens / positions if positions else 0.0

    @property
    def is_empty(self) -> bool:
        """Whether no sentence is decoded, or is encoded to be."""
        return not (self.size or self._encoded)

    def admit(self, sentences: Sequence[Sentence]) -> None:
        """Encodes sentences and lets them take part from the next step on."""
        self.encode(sentences)
        self.join(sentences)

    def encode(self, sentences: Sequence[Sentence]) -> None:
        """Runs the encoder for sentences that are to `join`."""
        started = time.monotonic()
        lengths = np.array([len(sentence.source_ids) for sentence in sentences])
        ids = np.full((len(sentences), int(lengths.max())), self._pad)
        for padded, sentence in zip(ids, sentences, strict=True):
            padded[: len(sentence.source_ids)] = sentence.source_ids
        encoded = _Encoded(*self.graphs.encode(ids, lengths))
        elapsed = time.monotonic() - started
        for row, sentence in enumerate(sentences):
            sentence.encode_s = elapsed
            self._encoded[sentence] = encoded, row
        self._departures.watch(sentences)

    def join(self, sentences: Sequence[Sentence]) -> None:
        """Lets sentences that are encoded take part from the next step on."""
        chosen = frozenset(sentences)  # by encoder run, as those of one are copied at once
        sentences = [sentence for sentence in self._encoded if sentence in chosen]
        lengths = np.array([len(sentence.source_ids) for sentence in sentences])
        used = len(self._slots)
        slots = [*self._empty, *range(used, used + len(sentences))][: len(sentences)]
        self._memory.reserve(max(used, slots[-1] + 1), max(int(lengths.max()), self.longest_source), used)
        placed = [self._encoded.pop(sentence) for sentence in sentences]
        first = 0
        for encoded, together in groupby(placed, key=itemgetter(0)):
            rows = [row for _, row in together]
            places = slots[first : first + len(rows)]
            self._memory.join(places, encoded.memory, rows)
            self._decoder.join(places, encoded.first_state, rows)
            first += len(rows)
        self._columns.join(slots, [sentence.listed for sentence in sentences])
        self._searches.join(slots, [sentence.search for sentence in sentences])
        self._slots += [None] * max(0, slots[-1] + 1 - used)
        if (more := len(self._slots) - len(self._lengths)) > 0:
            self._lengths = np.concatenate((self._lengths, np.ones(max(more, len(self._lengths)), np.int64)))
        self._lengths[slots] = lengths
        self._tokens += int(lengths.sum())
        self._empty = self._empty[len(sentences) :]
        self._stepping = self._longest = None
        now = time.monotonic()
        for slot, sentence in zip(slots, sentences, strict=True):
            sentence.admitted = now
            self._slots[slot] = sentence
        self._watched = any(sentence.progress for sentence in (*sentences, *(self.sentences if self._watched else ())))

    def abandoned(self, now: float) -> list[Sentence]:
        """The sentences that nobody waits for any more at the monotonic time `now`, whether they have joined or not.

        They are looked at one by one only where one was cancelled or the first deadline has passed.
        """
        if not self._departures.possible(now):
            return []
        everybody = (*self.sentences, *self._encoded)
        self._departures.look(everybody, now)
        return [sentence for sentence in everybody if sentence.abandoned(now)]

    def remove(self, leaving: Collection[Sentence]) -> None:
        """Takes out sentences; their rows are free at once."""
        slots = [self._slots.index(sentence) for sentence in leaving if self._encoded.pop(sentence, None) is None]
        if not slots:
            return
        for slot in slots:
            self._slots[slot] = None
        self._tokens -= int(np.add.reduce(self._lengths[slots]))
        self._lengths[slots] = 1  # memory may become shorter than they were
        self._searches.leave(slots)
        self._columns.leave(slots)
        self.done = ()
        self._empty = sorted([*self._empty, *slots])
        while self._slots and self._slots[-1] is None:
            self._slots.pop()
            self._empty.pop()
        self._stepping = self._longest = None

    def _slots_of_step(self) -> Integers:
        """The slots whose rows are decoded next."""
        if self._stepping is None and self.graphs.by_slot:
            self._stepping = np.array([slot for slot, sentence in enumerate(self._slots) if sentence is not None])
        elif self._stepping is None:
            self._compact()
            self._stepping = np.arange(len(self._slots))
        return self._stepping

    def _compact(self) -> None:
        """Fills empty slots with the last sentences, if there are many."""
        if len(self._empty) <= MOST_EMPTY * len(self._slots):
            return
        full = self.size
        free = [slot for slot in self._empty if slot < full]
        moved = [slot for slot in range(full, len(self._slots)) if self._slots[slot] is not None]
        if moved:
            self._memory.move(moved, free, int(self._lengths[moved].max()))
            for of_sentences in (self._decoder, self._columns, self._searches):
                of_sentences.move(moved, free)
            for slot, place in zip(moved, free, strict=True):
                self._slots[place] = self._slots[slot]
            self._lengths[free] = self._lengths[moved]
        self._lengths[full:] = 1
        self._slots, self._empty = self._slots[:full], []

    def step(self) -> None:
        """Decodes one token of every row. Sentences that are `done` with it stay until they are removed."""
        slots, searches, asked = self._slots_of_step(), self._searches, self._searches.arrays
        selection = self._selection(slots)
        inputs = self._inputs
        if inputs is None or inputs.tokens is not asked.tokens or inputs.lengths is not self._lengths:
            inputs = self._inputs = DecoderInputs(asked.tokens, asked.positions, asked.parents, self._lengths)
        tokens, totals = self._decoder.step(slots, inputs, self._memory, self._columns, selection)
        if selection.with_logits:
            self._draw(slots, selection, tokens, totals)
        others = searches.advance_steady(slots, self._columns.tokens(tokens), totals)
        failed = self._failed(totals, slots, others)
        finished = searches.advance([slot for slot in others if slot not in failed])
        self.done = [sentence for slot in (*finished, *failed) if (sentence := self._slots[slot]) is not None]
        for sentence in self.done[len(finished) :]:
            sentence.failure = ModelFailedError("the model computed NaN for this text")
        for slot, sentence in enumerate(self._slots if self._watched else ()):
            if sentence is not None and sentence.progress is not None:
                sentence.progress.see(searches.search(slot))

    def _draw(self, slots: Integers, selection: SelectionParameters, tokens: Integers, totals: Floats) -> None:
        """Puts what is drawn for rows [n * K, C] of slots [n] in the place of their best candidates."""
        size, searches = self.beam_size, self._searches
        places = np.flatnonzero(searches.arrays.draws[slots])
        drawing = slots[places].tolist()
        rows = (places[:, None] * size + np.arange(size)).reshape(-1)
        parts = ((place * size, searches.constraints[slot]) for place, slot in enumerate(drawing))
        tokens[rows, :1], totals[rows, :1] = self.graphs.sample(
            self._decoder.logits(),
            rows,
            selection.scores[rows],
            [draw for slot in drawing for draw in searches.search(slot).draws or ()],
            self._columns.to_columns(concatenate_constraints(parts)),
        )

    def _selection(self, slots: Integers) -> SelectionParameters:
        """What to ask of the selection; rows that draw are no concern of it."""
        columns, inputs = self._columns, self._columns.inputs(len(slots))
        searches, asked = self._searches, self._searches.arrays
        kept = self._constrained.get(len(slots))
        # Most constraints are those of an earlier step, if of other sentences.
        if kept is None or not kept.hold(inputs, searches, slots):
            draws, acting, renormalizes = asked.draws[slots], asked.on_logits[slots], asked.renormalizes[slots]
            constraints = [searches.constraints[slot] for slot in slots.tolist()]
            on_logits, on_log_probs = (
                columns.to_columns(
                    concatenate_constraints((place * self.beam_size, constraints[place]) for place in those.tolist())
                )
                for those in map(np.flatnonzero, (~draws & acting, ~draws & ~acting))
            )
            kept = self._constrained[len(slots)] = _Constrained(
                changes=searches.constraints_version,
                slots=slots,
                shared=searches.shared_constraints(slots),
                inputs=inputs,
                on_logits=on_logits,
                on_log_probs=on_log_probs,
                renormalize=np.repeat(renormalizes, self.beam_size) if renormalizes.any() else None,
                with_logits=bool(draws.any()),
            )
        return SelectionParameters(
            scores=asked.scores[slots].reshape(-1),
            candidates=int(np.maximum.reduce(asked.num_candidates[slots])),
            on_logits=kept.on_logits,
            on_log_probs=kept.on_log_probs,
            renormalize=kept.renormalize,
            with_logits=kept.with_logits,
        )

    def _failed(self, totals: Floats, slots: Integers, some: Sequence[int]) -> set[int]:
        """Those of some of the slots [n] that were decoded for which the model computed no numbers.

        A log-softmax of nothing but -inf is NaN too: that is not the model's fault, but constraints left no token.
        """
        if not some or not self._searches.has_nan:
            return set()
        places = slots.searchsorted(some)
        rows = (places[:, None] * self.beam_size + np.arange(self.beam_size)).reshape(-1)
        undefined = rows[np.isnan(totals[rows]).any(axis=1)]
        best = self._decoder.logits().numpy()[undefined].max(axis=1)
        return {int(slots[row // self.beam_size]) for row in undefined[~np.isfinite(best)]}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Constrained:
    """The constraints of all sentences in one.

    Attributes:
        changes: `BatchSearch.changes` as they were joined.
        slots: of the sentences, [n].
        shared: what they have in common, of whichever sentences they are; None: nothing.
        inputs: what says which columns there are.
        on_logits: those on columns of logits.
        on_log_probs: those on columns of log-probabilities.
        renormalize: [n * K], whether a log-softmax follows these; None: nowhere.
        with_logits: whether some rows draw.
    """

    changes: int
    slots: Integers
    shared: SharedConstraints | None
    inputs: Mapping[str, object]
    on_logits: Constraints
    on_log_probs: Constraints
    renormalize: Booleans | None
    with_logits: bool

    def hold(self, inputs: Mapping[str, object], searches: BatchSearch, slots: Integers) -> bool:
        """Whether they are those of as many slots at the next step."""
        if self.inputs is not inputs:
            return False
        if self.slots is slots and self.changes == searches.constraints_version:
            return True
        return self.shared is not None and self.shared.equals(searches.shared_constraints(slots))
