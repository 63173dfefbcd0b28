"""The engine: one thread that admits waiting sentences and releases finished ones between decoder steps."""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jumok_serve.batch import Batch, Decoded, Sentence
from jumok_serve.errors import DeadlineExceeded, InvalidRequest, JumokError, Overloaded, Unavailable
from jumok_serve.memory import padded_source
from jumok_serve.session import Graphs

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0
"""What a refused caller is told to wait."""

SWEEP_INTERVAL_S = 0.05
"""How often the whole queue is searched for sentences that nobody waits for any more."""


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """Bounds of the engine.

    Attributes:
        max_batch_tokens: rows times source positions that are decoded at the same time, the padding of sources to a
            multiple of 8 included. A sentence that is over it by itself is decoded alone.
        max_queue_requests: sentences that may wait.
        max_queue_tokens: source tokens of the sentences that may wait.

    Raises:
        ValueError: a bound is less than 1.
    """

    max_batch_tokens: int = 4096
    max_queue_requests: int = 4096
    max_queue_tokens: int = 262_144

    def __post_init__(self) -> None:
        for name in ("max_batch_tokens", "max_queue_requests", "max_queue_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What an engine has to do at one moment; all zero when it is idle."""

    queued_requests: int
    queued_tokens: int
    running_sentences: int
    rows: int


class Engine:
    """Decodes sentences in flight: what waits joins, and what is finished, cancelled or late leaves, between two steps.

    Sentences are admitted in the order of their arrival, as far as `max_batch_tokens` allows; there is one batch for
    every beam size in use, and they take turns.

    Args:
        graphs: the model.
        pad: id of the padding token.
        limits: bounds of batch and queue.
        name: what the thread is called.
    """

    def __init__(self, graphs: Graphs, *, pad: int, limits: EngineLimits, name: str) -> None:
        self._graphs = graphs
        self._pad = pad
        self._limits = limits
        self._changed = threading.Condition()
        self._queue: deque[Sentence] = deque()
        self._queued_tokens = 0
        self._joining: list[Sentence] = []  # taken from the queue, not yet in a batch
        self._batches: dict[int, Batch] = {}
        self._closing = False
        self._aborting = False
        self._next_sweep = 0.0
        self._thread = threading.Thread(target=self._run, name=f"engine {name}", daemon=True)
        self._thread.start()

    def submit(self, sentences: Sequence[Sentence]) -> None:
        """Queues sentences, all or none; their futures get the outcome.

        Raises:
            InvalidRequest: they would not fit into the queue if it were empty.
            Overloaded: they do not fit into the queue now.
            Unavailable: the engine is closing.
        """
        tokens = sum(len(sentence.source_ids) for sentence in sentences)
        with self._changed:
            if self._closing:
                raise Unavailable("the model is being stopped", retry_after_s=RETRY_AFTER_S)
            for what, present, more, bound in (
                ("sentences", len(self._queue), len(sentences), self._limits.max_queue_requests),
                ("tokens", self._queued_tokens, tokens, self._limits.max_queue_tokens),
            ):
                if more > bound:
                    raise InvalidRequest(
                        f"a request takes at most {bound} {what} here, got {more}: send several", field="contents"
                    )
                if present + more > bound:
                    raise Overloaded(
                        f"the queue holds {present} of at most {bound} {what}: no room for {more} more",
                        retry_after_s=RETRY_AFTER_S,
                    )
            self._queue.extend(sentences)
            self._queued_tokens += tokens
            self._changed.notify()

    def load(self) -> Load:
        """What there is to do now."""
        with self._changed:
            batches = list(self._batches.values())
            return Load(
                queued_requests=len(self._queue),
                queued_tokens=self._queued_tokens,
                running_sentences=len(self._joining) + sum(len(batch.sentences) for batch in batches),
                rows=sum(sentence.search.beam_size for sentence in self._joining)
                + sum(batch.rows for batch in batches),
            )

    def close(self, *, drain: bool = True) -> None:
        """Stops taking sentences, finishes those it has (without `drain`: fails them), and ends the thread."""
        with self._changed:
            self._closing = True
            self._aborting = self._aborting or not drain
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._wait_for_work():
            try:
                if self._aborting:
                    raise Unavailable("the model was stopped", retry_after_s=RETRY_AFTER_S)
                self._take()
                self._admit()
                for batch in list(self._batches.values()):
                    self._step(batch)
            except Exception as error:
                self._fail_all(error)

    def _wait_for_work(self) -> bool:
        """Blocks until there is something to do; False once there is nothing left and the engine is closing."""
        with self._changed:
            while not self._queue and not self._batches:
                if self._closing:
                    return False
                self._changed.wait()
            return True

    def _take(self) -> None:
        """Takes what may be admitted now from the queue, in order."""
        costs = _Costs(self._batches)
        with self._changed:
            self._sweep()
            while self._queue:
                sentence = self._queue[0]
                if not self._drop_abandoned(sentence):
                    if not costs.add(sentence, self._limits.max_batch_tokens):
                        break
                    self._joining.append(sentence)
                self._queue.popleft()
                self._queued_tokens -= len(sentence.source_ids)

    def _sweep(self) -> None:
        """Drops abandoned sentences wherever they wait; not at every step, because it looks at them all."""
        now = time.monotonic()
        if now < self._next_sweep:
            return
        self._next_sweep = now + SWEEP_INTERVAL_S
        self._queue = deque(sentence for sentence in self._queue if not self._drop_abandoned(sentence))
        self._queued_tokens = sum(len(sentence.source_ids) for sentence in self._queue)

    @staticmethod
    def _drop_abandoned(sentence: Sentence) -> bool:
        """Whether nobody waits for the sentence any more; then its caller, if still there, is told why."""
        abandoned = sentence.abandoned(time.monotonic())
        if abandoned:
            _fail(sentence, DeadlineExceeded("the deadline passed while the text waited in the queue"))
        return abandoned

    def _admit(self) -> None:
        now = time.monotonic()
        for beam_size in {sentence.search.beam_size for sentence in self._joining}:
            joining = [sentence for sentence in self._joining if sentence.search.beam_size == beam_size]
            for sentence in joining:
                sentence.admitted = now
            batch = self._batches.get(beam_size) or Batch(self._graphs, beam_size, self._pad)
            for similar in _of_similar_length(joining):
                batch.admit(similar)
            with self._changed:
                self._batches[beam_size] = batch
                self._joining = [sentence for sentence in self._joining if sentence.search.beam_size != beam_size]

    def _step(self, batch: Batch) -> None:
        now = time.monotonic()
        for sentence in batch.remove(lambda sentence: sentence.abandoned(now)):
            _fail(sentence, DeadlineExceeded("the deadline passed while the text was being translated"))
        if batch.sentences:
            batch.step()
        # Delivered first and removed then: if anything fails between the two, nobody is forgotten.
        for sentence in batch.sentences:
            if sentence.done:
                _deliver(sentence)
        batch.remove(lambda sentence: sentence.done)
        if not batch.sentences:
            with self._changed:
                del self._batches[batch.beam_size]

    def _fail_all(self, error: Exception) -> None:
        """Fails everything that runs or was about to; without an intent to stop, the queue goes on afterwards."""
        with self._changed:
            batches, self._batches = self._batches, {}
            joining, self._joining = self._joining, []
            waiting: deque[Sentence] = deque()
            if self._aborting:
                waiting, self._queue, self._queued_tokens = self._queue, waiting, 0
        if not isinstance(error, JumokError):
            logger.error("a decoding step failed: its sentences are lost, the engine goes on", exc_info=error)
            failure = Unavailable("the model failed while it translated", retry_after_s=RETRY_AFTER_S)
            failure.__cause__ = error
            error = failure
        running = [sentence for batch in batches.values() for sentence in batch.sentences]
        for sentence in (*joining, *running, *waiting):
            _fail(sentence, error)


def _of_similar_length(sentences: Sequence[Sentence]) -> Iterator[list[Sentence]]:
    """Groups for the encoder, so that no source is padded to more than twice its length."""
    group: list[Sentence] = []
    for sentence in sorted(sentences, key=lambda sentence: len(sentence.source_ids)):
        if group and len(sentence.source_ids) > 2 * len(group[0].source_ids):
            yield group
            group = []
        group.append(sentence)
    yield group


class _Costs:
    """What the running sentences cost, rows times padded source positions, and what more of them would."""

    def __init__(self, batches: dict[int, Batch]) -> None:
        self._rows = {size: batch.rows for size, batch in batches.items()}
        self._longest = {size: padded_source(batch.longest_source) for size, batch in batches.items()}

    def add(self, sentence: Sentence, bound: int) -> bool:
        """Counts a sentence in if everything still fits, or if it is the only one."""
        size = sentence.search.beam_size
        rows = {**self._rows, size: self._rows.get(size, 0) + size}
        longest = {**self._longest, size: max(self._longest.get(size, 0), padded_source(len(sentence.source_ids)))}
        if any(self._rows.values()) and sum(rows[key] * longest[key] for key in rows) > bound:
            return False
        self._rows, self._longest = rows, longest
        return True


def _claim(sentence: Sentence) -> bool:
    """Whether the sentence's outcome may be set: its caller has not left, and nothing was set before."""
    future = sentence.future
    return not (future.done() or future.running()) and future.set_running_or_notify_cancel()


def _deliver(sentence: Sentence) -> None:
    """Hands a sentence its outcome."""
    if sentence.failure is not None:
        _fail(sentence, sentence.failure)
        return
    decoded = Decoded(
        hypotheses=tuple(sentence.search.hypotheses()),
        queue_s=sentence.admitted - sentence.arrived,
        encode_s=sentence.encode_s,
        decode_s=time.monotonic() - sentence.admitted - sentence.encode_s,
    )
    if _claim(sentence):
        sentence.future.set_result(decoded)


def _fail(sentence: Sentence, error: Exception) -> None:
    if _claim(sentence):
        sentence.future.set_exception(error)
