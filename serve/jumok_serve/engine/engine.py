"""The engine: threads that admit waiting sentences and release finished ones between decoder steps."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from jumok_proto.errors import DeadlineExceededError, EngineFailedError, JumokError, UnavailableError
from jumok_serve.engine.admission import RETRY_AFTER_S
from jumok_serve.engine.batch import Batch, Decoded, Sentence
from jumok_serve.engine.counters import EngineCounters, Stage
from jumok_serve.engine.encoder_batches import encoder_groups
from jumok_serve.engine.limits import EngineLimits
from jumok_serve.engine.occupancy import Load, Occupancy
from jumok_serve.engine.scheduler import ENGINE_FAILED, SentenceQueue, given_up_by
from jumok_serve.engine.sentence import decoded, deliver, fail
from jumok_serve.runtime.graphs import Graphs

logger = logging.getLogger(__name__)

FIRST_RESTART_S = 0.1
MAX_RESTART_S = 10.0
"""How long an engine waits that could not be started anew; twice as long each time, up to the second."""


class Engine:
    """Decodes sentences in flight: what waits joins, and what is finished, cancelled or late leaves, between two steps.

    Each replica is a thread with batches of its own, one for every beam size in use, which take turns. All replicas
    run the same graphs, and take sentences from one queue; see `SentenceQueue`.

    A replica whose step fails for another reason than its sentences fails those that it has with EngineFailedError, lets go
    of its batches, and is started anew: it tries to decode, at once and then after a growing while, and takes sentences
    again when it can. Those that come meanwhile wait for other replicas, or for the first such trial; once that has
    failed, they fail. A trial that succeeds at once costs those that come next little, so that no text that makes
    a model fail can keep others from it.

    Args:
        graphs: the model, for a replica that is alone at work.
        pad: id of the padding token.
        limits: bounds of batches and queue.
        name: what the threads are called.
        replicas: how many there are, at least 1.
        shared: the same graphs, for replicas that work at the same time; default: `graphs`.
        trial: decodes something with graphs, or raises; default: a replica that has failed goes on at once.
    """

    def __init__(
        self,
        graphs: Graphs,
        *,
        pad: int,
        limits: EngineLimits,
        name: str,
        replicas: int = 1,
        shared: Graphs | None = None,
        trial: Callable[[Graphs], None] = lambda _: None,
    ) -> None:
        self._queue = SentenceQueue(limits, replicas)
        self._replicas = [
            _Replica(graphs, shared or graphs, pad, self._queue, number, f"engine {name} {number}", trial)
            for number in range(replicas)
        ]

    def submit(self, sentences: Sequence[Sentence]) -> None:
        """Queues sentences, all or none; their futures get the outcome.

        Raises:
            InvalidArgumentError: they would not fit into the queue if it were empty.
            OverloadedError: they do not fit into the queue now.
            DeadlineExceededError: they cannot be done before their deadline.
            EngineFailedError: the engine has failed, and cannot be started anew so far.
            UnavailableError: the engine is closing.
        """
        self._queue.add(sentences)

    def check_room(self, sentences: int) -> None:
        """Refuses so many sentences where `submit` would, whatever they are: a full queue costs no tokenizing then."""
        self._queue.check_room(sentences)

    @property
    def full(self) -> bool:
        """Whether the queue has no room worth mentioning."""
        return self._queue.full

    @property
    def ready(self) -> bool:
        """Whether it decodes: not where all replicas have failed and could not be started anew so far."""
        return self._queue.ready

    def on_ready_change(self, tell: Callable[[], None]) -> None:
        """Has `tell` called whenever `ready` may have changed, in a thread that it must not keep."""
        self._queue.tell_ready = tell

    def load(self) -> Load:
        """What there is to do now."""
        return self._queue.load()

    def counters(self) -> EngineCounters:
        """What was done so far."""
        return EngineCounters.sum([self._queue.counters, *(replica.counters for replica in self._replicas)])

    def close(self, *, drain: bool = True) -> None:
        """Stops taking sentences, finishes those it has (without `drain`: fails them), and ends the threads."""
        for sentence in self._queue.close(drain=drain):
            fail(sentence, UnavailableError("the model was stopped", retry_after_s=RETRY_AFTER_S))
        for replica in self._replicas:
            replica.thread.join()


class _Replica:
    """A thread that decodes what it takes from the queue."""

    def __init__(  # noqa: PLR0917 - the engine's own
        self,
        graphs: Graphs,
        shared: Graphs,
        pad: int,
        queue: SentenceQueue,
        number: int,
        name: str,
        trial: Callable[[Graphs], None],
    ) -> None:
        self._graphs_alone = graphs
        self._graphs_shared = shared
        self._graphs = graphs  # what the next step runs
        self._pad = pad
        self._queue = queue
        self._number = number
        self._trial = trial
        self._wait_s = FIRST_RESTART_S  # if it cannot be started anew
        self._joining: list[Sentence] = []  # taken from the queue, not yet encoded
        self._ahead: list[Sentence] = []  # encoded, and waiting for room to be decoded, in the order of their arrival
        self._new: dict[int, list[Sentence]] = {}  # by beam size: those that no step has decoded yet
        self.counters = EngineCounters()
        self.batches: dict[int, Batch] = {}
        self._spare: Batch | None = None  # the one that emptied last: its buffers may serve the next sentences
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while True:
            try:
                self._serve()
                return
            except JumokError as error:
                self._fail_all(error)
            except BaseException as error:  # whatever it is, nobody would ever learn that the thread has ended
                # What failed without any sentence would fail again, however often it is tried.
                if not self._start_anew(at_once=self._break_down(error) > 0):
                    return

    def _serve(self) -> None:
        """Decodes until the queue is closed and nothing is left."""
        while True:
            self._release()
            occupied = Occupancy(self.batches.values())
            if self._ahead:
                fitting = self._queue.fitting(self._number, occupied, self._ahead)
                self._join(fitting)
                self._ahead = self._ahead[len(fitting) :]
            taken: list[Sentence] | None = []
            if not self._ahead:
                taken = self._queue.take(self._number, occupied)
            if taken is None:
                return
            self._graphs = self._graphs_alone if self._queue.alone(self._number) else self._graphs_shared
            if taken:
                self._joining = taken
                self._admit(taken, self._queue.take_ahead(self._number, taken))
            for batch in list(self.batches.values()):
                if batch.size:
                    self._step(batch)

    def _break_down(self, error: BaseException) -> int:
        """Fails everything because of an error that nobody expected; says how many sentences were lost."""
        self._queue.step_aside(self._number)
        logger.error("the engine failed: its sentences are lost, and it is started anew", exc_info=error)
        failure = EngineFailedError("the engine failed while it translated", retry_after_s=RETRY_AFTER_S)
        failure.__cause__ = error
        return self._fail_all(failure)

    def _start_anew(self, *, at_once: bool) -> bool:
        """Waits until a trial succeeds, the first `at_once`; whether one did before the queue was closed."""
        failed = time.monotonic()
        while True:
            if at_once and self._try():
                self._queue.come_back(self._number)
                self._queue.tell_ready()
                logger.info("the engine was started anew, %.2f s after it failed", time.monotonic() - failed)
                return True
            at_once = True
            for sentence in self._queue.give_up(self._number, self._wait_s):
                self.counters.failed += 1
                fail(sentence, EngineFailedError(ENGINE_FAILED, retry_after_s=self._wait_s))
            self._queue.tell_ready()
            if self._queue.wait_for_close(self._wait_s):
                return False
            self._wait_s = min(2 * self._wait_s, MAX_RESTART_S)

    def _try(self) -> bool:
        """Whether a trial succeeds."""
        try:
            self._trial(self._graphs)
        except BaseException as error:
            logger.error("the engine cannot be started anew; the next trial is in %g s", self._wait_s, exc_info=error)
            return False
        return True

    def _release(self) -> None:
        """Lets those go whom nobody waits for any more."""
        for batch in list(self.batches.values()):
            abandoned = batch.abandoned(time.monotonic())
            for sentence in abandoned:
                self._tell_why(sentence)
            batch.remove(abandoned)
            self._ahead = [sentence for sentence in self._ahead if sentence not in abandoned]
            self._drop_if_empty(batch)

    def _admit(self, taken: list[Sentence], ahead: list[Sentence]) -> None:
        """Encodes sentences that are to be decoded from the next step on, and others ahead."""
        self._joining = [*taken, *ahead]
        order = {sentence: number for number, sentence in enumerate(self._joining)}
        encoded = set()
        for beam_size in {sentence.search.beam_size for sentence in self._joining}:
            if beam_size not in self.batches:
                self.batches[beam_size] = self._empty_batch(beam_size)
            self.batches[beam_size].graphs = self._graphs
            for group in encoder_groups([one for one in self._joining if one.search.beam_size == beam_size]):
                if staying := [sentence for sentence in group if not self._gone(sentence)]:
                    self.batches[beam_size].encode(sorted(staying, key=order.__getitem__))
                    encoded.update(staying)
            self._drop_if_empty(self.batches[beam_size])
        self._join([sentence for sentence in taken if sentence in encoded])
        self._ahead = [sentence for sentence in ahead if sentence in encoded]
        self._joining = []

    def _join(self, sentences: list[Sentence]) -> None:
        """Gives sentences that are encoded their slots."""
        for beam_size in {sentence.search.beam_size for sentence in sentences}:
            joining = [sentence for sentence in sentences if sentence.search.beam_size == beam_size]
            self.batches[beam_size].join(joining)
            self._new.setdefault(beam_size, []).extend(joining)
        for sentence in sentences:
            self.counters.queue_s.observe(sentence.admitted - sentence.arrived - sentence.encode_s)
            self.counters.source_tokens += len(sentence.source_ids)

    def _empty_batch(self, beam_size: int) -> Batch:
        spare, self._spare = self._spare, None
        return spare if spare and spare.beam_size == beam_size else Batch(self._graphs, beam_size, self._pad)

    def _step(self, batch: Batch) -> None:
        batch.graphs = self._graphs
        batch.step()
        self._wait_s = FIRST_RESTART_S
        self._count_step(batch)
        # Delivered first and removed then: if anything fails between the two, nobody is forgotten.
        for sentence in batch.done:
            outcome = decoded(sentence)
            self._count(outcome)  # before anybody can have it and look
            deliver(sentence, outcome)
        batch.remove(batch.done)
        self._drop_if_empty(batch)

    def _count_step(self, batch: Batch) -> None:
        self.counters.step_rows.observe(batch.rows)
        self.counters.step_padding.observe(batch.padding)
        new = self._new.pop(batch.beam_size, None)
        if new is not None:
            now = time.monotonic()
            for sentence in new:
                self.counters.first_token_s.observe(now - sentence.arrived)

    def _count(self, outcome: Decoded | None) -> None:
        if outcome is None:
            self.counters.failed += 1
            return
        tokens = len(outcome.hypotheses[0].token_ids) if outcome.hypotheses else 0
        self.counters.finished += 1
        self.counters.output_tokens += tokens
        if tokens:
            self.counters.token_s.observe(outcome.decode_s / tokens)

    def _drop_if_empty(self, batch: Batch) -> None:
        if batch.is_empty:
            self._spare = self.batches.pop(batch.beam_size)

    def _fail_all(self, error: JumokError) -> int:
        """Fails everything that runs here or was about to; says how many sentences these were."""
        running = [sentence for batch in self.batches.values() for sentence in batch.sentences]
        lost = list(dict.fromkeys([*self._joining, *self._ahead, *running]))
        self.batches, self._joining, self._ahead, self._new, self._spare = {}, [], [], {}, None
        self.counters.failed += len(lost)
        for sentence in lost:
            fail(sentence, error)
        return len(lost)

    def _gone(self, sentence: Sentence) -> bool:
        """Whether nobody waits for the sentence any more; then its caller is told why."""
        abandoned = sentence.abandoned(time.monotonic())
        if abandoned:
            self._tell_why(sentence)
        return abandoned

    def _tell_why(self, sentence: Sentence) -> None:
        """Tells the caller of an abandoned sentence, if still there, why there is no translation."""
        self.counters.given_up[Stage.DECODE, given_up_by(sentence, time.monotonic())] += 1
        fail(sentence, DeadlineExceededError("the deadline passed while the text was being translated"))
