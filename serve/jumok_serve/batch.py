"""The sentences of one beam size that are decoded together; they join and leave between steps."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from onnxruntime import OrtValue

from jumok_serve.columns import make_columns
from jumok_serve.errors import JumokError, ModelFailed
from jumok_serve.memory import SlotBuffers
from jumok_serve.search import FinishedHypothesis, Search, joined
from jumok_serve.session import Floats, Graphs, Integers
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

    @property
    def done(self) -> bool:
        """Whether no further step is needed."""
        return self.failure is not None or self.search.finished

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
        self._graphs = graphs
        self._pad = pad
        self._memory = SlotBuffers(graphs.memory_specs, "S")
        self._state = make_state(graphs, beam_size)
        self._columns = make_columns(graphs)
        self._slots: list[Sentence | None] = []

    @property
    def sentences(self) -> list[Sentence]:
        """Those that are decoded, by slot."""
        return [sentence for sentence in self._slots if sentence is not None]

    @property
    def rows(self) -> int:
        """Rows of the next step."""
        return len(self.sentences) * self.beam_size

    @property
    def longest_source(self) -> int:
        """Tokens of the longest source that is decoded."""
        return max((len(sentence.source_ids) for sentence in self.sentences), default=0)

    def admit(self, sentences: Sequence[Sentence]) -> None:
        """Encodes sentences and lets them take part from the next step on."""
        started = time.monotonic()
        lengths = np.array([len(sentence.source_ids) for sentence in sentences])
        ids = np.full((len(sentences), int(lengths.max())), self._pad)
        for padded, sentence in zip(ids, sentences, strict=True):
            padded[: len(sentence.source_ids)] = sentence.source_ids
        encoded, first_state = self._graphs.encode(ids, lengths)
        memory = {name: value.numpy() for name, value in encoded.items()}
        while self._slots and self._slots[-1] is None:
            self._slots.pop()
        used = len(self._slots)
        empty = [slot for slot, sentence in enumerate(self._slots) if sentence is None]
        slots = [*empty, *range(used, used + len(sentences))][: len(sentences)]
        self._memory.reserve(max(used, slots[-1] + 1), max(int(lengths.max()), self.longest_source), used)
        for row, slot in enumerate(slots):
            self._memory.write(slot, memory, row)
        self._state.join(slots, first_state)
        self._columns.join(slots, [sentence.listed for sentence in sentences])
        self._slots += [None] * (slots[-1] + 1 - used)
        elapsed = time.monotonic() - started
        for slot, sentence in zip(slots, sentences, strict=True):
            sentence.encode_s = elapsed
            self._slots[slot] = sentence

    def remove(self, leaves: Callable[[Sentence], bool]) -> list[Sentence]:
        """Takes out the sentences for which `leaves` is true, and returns them; their rows are free at once."""
        removed = [sentence for sentence in self.sentences if leaves(sentence)]
        gone = set(map(id, removed))
        self._slots = [None if id(sentence) in gone else sentence for sentence in self._slots]
        return removed

    def _compact(self) -> None:
        """Fills empty slots with the last sentences."""
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

    def step(self) -> None:
        """Decodes one token of every row. Sentences that are done with it stay until they are removed."""
        self._compact()
        sentences = self.sentences
        searches = [sentence.search for sentence in sentences]
        steps = [search.next_step() for search in searches]
        logits = self._state.step(
            np.array([step.tokens for step in steps]),
            np.array([search.position for search in searches]),
            np.array([step.parents for step in steps]),
            np.array([len(sentence.source_ids) for sentence in sentences]),
            self._memory,
            self._columns,
        )
        tokens, totals = self._choose(logits, searches)
        beam_size = self.beam_size
        failed = {row // beam_size for row in self._failed(logits, totals)}  # slots
        for slot, (sentence, search) in enumerate(zip(sentences, searches, strict=True)):
            rows = slice(slot * beam_size, (slot + 1) * beam_size)
            if slot in failed:
                sentence.failure = ModelFailed("the model computed NaN for this text")
            else:
                search.advance(tokens[rows].tolist(), totals[rows].tolist())

    @staticmethod
    def _failed(logits: OrtValue, totals: Floats) -> list[int]:
        """The rows for which the model computed no numbers.

        A log-softmax of nothing but -inf is NaN too: that is not the model's fault, but constraints left no token.
        """
        undefined = np.flatnonzero(np.isnan(totals).any(axis=1))
        if not len(undefined):
            return []
        best = logits.numpy()[undefined].max(axis=1)
        return [int(row) for row, value in zip(undefined, best, strict=True) if not np.isfinite(value)]

    def _choose(self, logits: OrtValue, searches: Sequence[Search]) -> tuple[Integers, Floats]:
        """Every row's best candidates and their running scores, [R, C]; where a row draws, the one that it drew."""
        size, columns = self.beam_size, self._columns
        scores = np.array([score for search in searches for score in search.scores()], np.float32)
        constraints = [search.constraints() for search in searches]
        draws = [search.draws() for search in searches]
        drawing = [slot for slot, drawn in enumerate(draws) if drawn is not None]
        choosing = [slot for slot, drawn in enumerate(draws) if drawn is None]
        if choosing:
            renormalizes = [search.renormalizes for search in searches]
            on_logits = [slot for slot in choosing if searches[slot].acts_on_logits]
            on_log_probs = [slot for slot in choosing if not searches[slot].acts_on_logits]
            tokens, totals = self._graphs.select(
                logits,
                scores,
                max(searches[slot].candidates_needed for slot in choosing),
                on_logits=columns.places(joined((slot * size, constraints[slot]) for slot in on_logits)),
                on_log_probs=columns.places(joined((slot * size, constraints[slot]) for slot in on_log_probs)),
                renormalize=np.repeat(renormalizes, size) if any(renormalizes) else None,
            )
        else:
            tokens, totals = np.zeros((self.rows, 1), np.int64), np.zeros((self.rows, 1), np.float32)
        if drawing:
            rows = np.concatenate([np.arange(size) + slot * size for slot in drawing])
            tokens[rows, :1], totals[rows, :1] = self._graphs.sample(
                logits,
                rows,
                scores[rows],
                [draw for slot in drawing for draw in draws[slot] or ()],
                columns.places(joined((place * size, constraints[slot]) for place, slot in enumerate(drawing))),
            )
        return columns.tokens(tokens), totals
