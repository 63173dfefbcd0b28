"""The sentences of one beam size that are decoded together; they join and leave between steps."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from onnxruntime import OrtValue

from jumok_serve.errors import JumokError, ModelFailed
from jumok_serve.manifest import TensorSpec
from jumok_serve.memory import SlotMemory
from jumok_serve.search import FinishedHypothesis, Search, joined
from jumok_serve.session import Floats, Graphs, Integers, Tensors

TIME_SLACK = 32
"""Cache entries beyond the longest row's that are carried along before the cache is cut to size."""


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
        deadline: by when it must be done, in `time.monotonic()` seconds, or None.
        future: where the outcome goes; cancelling it takes the sentence out before the next step.
        arrived: when it was submitted, in `time.monotonic()` seconds.
        admitted: when it left the queue.
        encode_s: seconds of the encoder run that it was part of.
        failure: why it cannot be decoded, or None.
    """

    source_ids: Sequence[int]
    search: Search
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

    Sentence b holds the consecutive rows b*K .. b*K+K-1 and one memory slot. Slots are dense: the last sentence moves
    into the place of one that leaves. Row changes of every kind (beam reordering, leaving, joining) are the `parents`
    of the next step.

    Args:
        graphs: the model.
        beam_size: K.
        pad: id of the padding token.
    """

    def __init__(self, graphs: Graphs, beam_size: int, pad: int) -> None:
        self.beam_size = beam_size
        self.sentences: list[Sentence] = []
        self._graphs = graphs
        self._pad = pad
        self._memory = SlotMemory(graphs.memory_specs)
        self._state: Tensors = {}
        self._previous: list[int] = []  # for every sentence, its first row in `_state`
        self._clear()

    def _clear(self) -> None:
        self._state = self._graphs.empty_state()
        self._previous = []

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
        used = len(self.sentences)
        self._memory.reserve(used + len(sentences), max(int(lengths.max()), self.longest_source), used)
        for row in range(len(sentences)):
            self._memory.write(used + row, memory, row)
        first_rows = self._append_state(first_state, len(sentences))
        elapsed = time.monotonic() - started
        for sentence in sentences:
            sentence.encode_s = elapsed
        self.sentences += sentences
        self._previous += first_rows

    def _append_state(self, first_state: Tensors, sentences: int) -> list[int]:
        """Appends the sentences' first states to the state's rows; where a model has none, any row will do."""
        if not first_state:
            return [0] * sentences
        before = next(iter(self._state.values())).shape()[0]
        appended = {}
        for name, value in self._state.items():
            rows = value.numpy()
            if name in first_state:
                first = first_state[name].numpy()
            else:  # such as a cache beside a recurrent state, which begins empty
                first = np.zeros((sentences, *rows.shape[1:]), rows.dtype)
            appended[name] = OrtValue.ortvalue_from_numpy(np.concatenate((rows, first)))
        self._state = appended
        return list(range(before, before + sentences))

    def remove(self, leaves: Callable[[Sentence], bool]) -> list[Sentence]:
        """Takes out the sentences for which `leaves` is true, and returns them; their rows are free at once."""
        removed = []
        slot = 0
        while slot < len(self.sentences):
            if not leaves(self.sentences[slot]):
                slot += 1
                continue
            removed.append(self.sentences[slot])
            last = len(self.sentences) - 1
            if slot != last:
                self._memory.move(last, slot)
                self.sentences[slot], self._previous[slot] = self.sentences[last], self._previous[last]
            self.sentences.pop()
            self._previous.pop()
        if removed and not self.sentences:
            self._clear()
        return removed

    def step(self) -> None:
        """Decodes one token of every row. Sentences that are done with it stay until they are removed."""
        searches = [sentence.search for sentence in self.sentences]
        steps = [search.next_step() for search in searches]
        positions = [search.position for search in searches]
        beam_size = self.beam_size
        fed = [token for step in steps for token in step.tokens]
        parents = [first + parent for first, step in zip(self._previous, steps, strict=True) for parent in step.parents]
        logits, self._state = self._graphs.step(
            np.array(fed),
            np.repeat(np.array(positions), beam_size),
            np.array(parents),
            np.array([len(sentence.source_ids) for sentence in self.sentences]),
            self._memory.view(len(self.sentences)),
            self._fitting_state(max(positions)),
        )
        self._previous = [slot * beam_size for slot in range(len(self.sentences))]
        tokens, totals = self._choose(logits, searches)
        failed = {row // beam_size for row in self._failed(logits, totals)}  # slots
        for slot, (sentence, search) in enumerate(zip(self.sentences, searches, strict=True)):
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
        size = self.beam_size
        scores = np.array([score for search in searches for score in search.scores()], np.float32)
        constraints = [search.constraints() for search in searches]
        draws = [search.draws() for search in searches]
        drawing = [slot for slot, drawn in enumerate(draws) if drawn is not None]
        choosing = [slot for slot, drawn in enumerate(draws) if drawn is None]
        if choosing:
            on_logits = [slot for slot in choosing if searches[slot].acts_on_logits]
            on_log_probs = [slot for slot in choosing if not searches[slot].acts_on_logits]
            tokens, totals = self._graphs.select(
                logits,
                scores,
                max(searches[slot].candidates_needed for slot in choosing),
                on_logits=joined((slot * size, constraints[slot]) for slot in on_logits),
                on_log_probs=joined((slot * size, constraints[slot]) for slot in on_log_probs),
                renormalize=np.repeat([search.renormalizes for search in searches], size),
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
                joined((place * size, constraints[slot]) for place, slot in enumerate(drawing)),
            )
        return tokens, totals

    def _fitting_state(self, longest: int) -> Tensors:
        """The state, its time axis cut where rows that have left made it much longer than any row needs."""
        specs = self._graphs.state_specs
        cached = max((_time(spec, self._state[spec.name]) for spec in specs), default=0)
        if cached <= longest + TIME_SLACK:
            return self._state
        return {spec.name: _cut(spec, self._state[spec.name], longest) for spec in specs}


def _time(spec: TensorSpec, value: OrtValue) -> int:
    return max((int(size) for axis, size in zip(spec.axes, value.shape(), strict=True) if axis == "T"), default=0)


def _cut(spec: TensorSpec, value: OrtValue, longest: int) -> OrtValue:
    place = tuple(slice(longest) if axis == "T" else slice(None) for axis in spec.axes)
    return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value.numpy()[place]))
