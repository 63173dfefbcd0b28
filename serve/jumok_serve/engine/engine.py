"""The engine of a model: replicas, each a thread that decodes what the scheduler gives it."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from jumok_proto.errors import EngineFailedError, JumokError, UnavailableError
from jumok_serve.engine.batch import Batch, split_by_length
from jumok_serve.engine.request_queue import EngineLimits, Occupancy
from jumok_serve.engine.scheduler import ENGINE_FAILED, Scheduler
from jumok_serve.engine.sentence import Decoded, Lane, Sentence
from jumok_serve.engine.statistics import EngineCounters, Stage
from jumok_serve.interrupts import SHORT_TEXTS
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.share import RETRY_AFTER_S

logger = logging.getLogger(__name__)

FIRST_RESTART_S = 0.1
MAX_RESTART_S = 10.0
"""Seconds until the next restart of a failed replica; they double from the first to this bound."""

MAX_SPARES = 4
"""Emptied batches that a replica keeps, each of another beam size.

A new batch takes 1 ms until its steps are bound. Two callers with other beam sizes alternate between replicas: kept
batches made their p99 latency a sixth less (two cores, a model of 12 MiB, 2026-11-27)."""

SMALL_SPARE_POSITIONS = 1024
"""Most `Batch.most_positions` of kept batches; the one emptied last may have any number."""

LIGHT_SLICE_S = 0.05
"""Seconds of light steps between two steps of other sentences; a short text is done within.

Others are encoded only before their own steps. Beside wide HTML, whose short sentences end many at a time, a step of
the others took 20 ms, and with half as many seconds most short texts waited for one (two cores, November 2026).
"""


@dataclass(eq=False, kw_only=True)
class Replica:
    """A thread with one batch per beam size; the batches take turns.

    Light sentences have batches of their own. While these decode, the others wait for at most `LIGHT_SLICE_S`.

    If a step fails for any reason but its sentences, the replica fails all its sentences with EngineFailedError and
    drops its batches. Then it decodes a probe, at once and after longer and longer waits, until one succeeds.

    Attributes:
        graphs: the model, used while no other replica works.
        shared: the same graphs, used while other replicas work.
        scheduler: shared by the engine's replicas.
        number: number of the replica, from 0.
        name: name of the thread.
        pad: padding token.
        probe: decodes something with graphs, or raises.
        batches: by lane: beam size, and True for light sentences.
        counters: counters that only this thread writes.
    """

    graphs: Graphs
    shared: Graphs
    scheduler: Scheduler
    number: int
    name: str
    pad: int
    probe: Callable[[Graphs], None]

    def __post_init__(self) -> None:
        self._graphs = self.graphs  # of the next step
        self._restart_s = FIRST_RESTART_S
        self._joining: list[Sentence] = []  # taken from the queue, not yet encoded
        self._ahead: list[Sentence] = []  # encoded, waiting for capacity, in the order of arrival
        self._new: dict[Lane, list[Sentence]] = {}  # by lane: before their first step
        self.counters = EngineCounters()
        self.batches: dict[Lane, Batch] = {}
        self._unchanged = False  # the next step has the sentences that the scheduler last heard of
        self._light_s = 0.0  # of light steps since the last other step
        self._has_light = False  # as long work knows
        self._spares: dict[int, Batch] = {}  # emptied, by beam size: their buffers and bound steps serve the next
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        self._graphs.sessions.placement.place_caller()
        while True:
            try:
                self._serve()
                return
            except JumokError as error:
                self._fail_all(error)
            except BaseException as error:  # of any kind: a thread that ends would go unnoticed
                # A failure without any sentence would repeat at once.
                if not self._restart(at_once=self._break_down(error) > 0):
                    return

    def _serve(self) -> None:
        """Decode until the scheduler is closed and nothing is left."""
        while True:
            self._remove_abandoned()
            self._note_light()  # before `_take`, which may wait for work
            if not (self._unchanged and self.scheduler.is_quiet) and not self._take():
                return
            self._note_light()
            self._step_all()

    def _note_light(self) -> None:
        """Note whether short texts are decoded, and let long work know."""
        light = any(batch.light and batch.size for batch in self.batches.values())
        if light is not self._has_light:
            self._has_light = light
            (SHORT_TEXTS.begin if light else SHORT_TEXTS.end)()

    def _take(self) -> bool:
        """Let sentences join as the scheduler decides; False if it is closed and nothing is left."""
        occupied = Occupancy(self.batches.values())
        work = self.scheduler.next_work(self.number, occupied, self._ahead, light=self._steps_light)
        if work is None:
            return False
        self._joining = [*work.taken, *work.ahead]
        self._join(work.ready)
        self._ahead = self._ahead[len(work.ready) :]
        self._use(self.graphs if work.alone else self.shared)
        if work.taken:
            self._admit(work.taken, work.ahead)
        # Only the scheduler knows which of two sets of sessions the next step runs on.
        self._unchanged = not (work.taken or self._ahead) and self.graphs is self.shared
        return True

    def _step_all(self) -> None:
        """Step the light batches, or in their turn the others."""
        light, started = self._steps_light, time.monotonic()
        for batch in [batch for batch in self.batches.values() if batch.size and batch.light is light]:
            self._step(batch)
        self._light_s = self._light_s + time.monotonic() - started if light else 0.0

    @property
    def _steps_light(self) -> bool:
        """True while it is the turn of light batches: others neither step nor get sentences."""
        return self._has_light and self._light_s < LIGHT_SLICE_S

    def _use(self, graphs: Graphs) -> None:
        """Run the next step with these graphs."""
        if graphs is not self._graphs:
            self._graphs = graphs
            graphs.sessions.placement.place_caller()

    def _break_down(self, error: BaseException) -> int:
        """Fail all sentences because of an unexpected error; return their number."""
        self.scheduler.set_aside(self.number)
        logger.error("the engine failed: its sentences are lost, and it restarts", exc_info=error)
        failure = EngineFailedError("the engine failed while it translated", retry_after_s=RETRY_AFTER_S)
        failure.__cause__ = error
        return self._fail_all(failure)

    def _restart(self, *, at_once: bool) -> bool:
        """Probe until it succeeds; False if the scheduler is closed first.

        With `at_once` the first probe does not wait.
        """
        failed = time.monotonic()
        while True:
            if at_once and self._recovered():
                self.scheduler.restore(self.number)
                self.scheduler.on_ready_change()
                logger.info("the engine restarted %.2f s after it failed", time.monotonic() - failed)
                return True
            at_once = True
            for sentence in self.scheduler.give_up(self.number, self._restart_s):
                self.counters.failed += 1
                sentence.fail(EngineFailedError(ENGINE_FAILED, retry_after_s=self._restart_s))
            self.scheduler.on_ready_change()
            if self.scheduler.wait_for_close(self._restart_s):
                return False
            self._restart_s = min(2 * self._restart_s, MAX_RESTART_S)

    def _recovered(self) -> bool:
        try:
            self.probe(self._graphs)
        except BaseException as error:
            logger.error("the engine cannot restart; the next attempt is in %g s", self._restart_s, exc_info=error)
            return False
        return True

    def _remove_abandoned(self) -> None:
        now = time.monotonic()
        for batch in list(self.batches.values()):
            abandoned = batch.abandoned(now)
            if not abandoned:
                continue
            for sentence in abandoned:
                sentence.abandon(Stage.DECODE, self.counters, now)
            batch.remove(abandoned)
            self._new = {lane: [one for one in new if one not in abandoned] for lane, new in self._new.items()}
            self._ahead = [sentence for sentence in self._ahead if sentence not in abandoned]
            self._unchanged = False
            self._drop_if_empty(batch)

    def _admit(self, taken: list[Sentence], ahead: list[Sentence]) -> None:
        """Encode sentences that join now, and those encoded ahead."""
        order = {sentence: number for number, sentence in enumerate(self._joining)}
        encoded = set()
        for lane in sorted({sentence.lane for sentence in self._joining}, key=lambda lane: not lane[1]):
            if lane not in self.batches:
                self.batches[lane] = self._empty_batch(lane)
            self.batches[lane].graphs = self._graphs
            for together in split_by_length([one for one in self._joining if one.lane == lane]):
                now = time.monotonic()
                if staying := [one for one in together if not one.abandon_if_due(Stage.DECODE, self.counters, now)]:
                    self.batches[lane].encode(sorted(staying, key=order.__getitem__))
                    encoded.update(staying)
            self._drop_if_empty(self.batches[lane])
        self._join([sentence for sentence in taken if sentence in encoded])
        self._ahead += [sentence for sentence in ahead if sentence in encoded]
        self._joining = []

    def _join(self, sentences: list[Sentence]) -> None:
        for lane in {sentence.lane for sentence in sentences}:
            joining = [sentence for sentence in sentences if sentence.lane == lane]
            self.batches[lane].join(joining)
            self._new.setdefault(lane, []).extend(joining)
        for sentence in sentences:
            self.counters.queue_s.observe(sentence.queue_s)
            self.counters.source_tokens += len(sentence.source_ids)

    def _empty_batch(self, lane: Lane) -> Batch:
        beam_size, light = lane
        batch = self._spares.pop(beam_size, None) or Batch(self._graphs, beam_size, self.pad)
        batch.light = light
        return batch

    def _step(self, batch: Batch) -> None:
        batch.graphs = self._graphs
        batch.step()
        self._restart_s = FIRST_RESTART_S
        self._count_steps(batch, 1)
        if self._unchanged and len(self.batches) == 1:
            steps = batch.run_on(lambda: not self.scheduler.is_quiet or batch.may_have_abandoned(time.monotonic()))
            self._count_steps(batch, steps)
        if not batch.done:
            return
        self._unchanged = False
        # Delivered before they are removed: a failure between the two loses no sentence.
        for sentence in batch.done:
            outcome = sentence.decoded()
            self._count(sentence, outcome)  # before its caller can read the counters
            sentence.deliver(outcome)
        batch.remove(batch.done)
        self._drop_if_empty(batch)

    def _count_steps(self, batch: Batch, steps: int) -> None:
        self.counters.step_rows.observe(batch.rows, steps)
        self.counters.step_padding.observe(batch.padding, steps)
        new = self._new.pop((batch.beam_size, batch.light), None)
        if new is not None:
            now = time.monotonic()
            for sentence in new:
                self.counters.first_token_s.observe(now - sentence.arrived)

    def _count(self, sentence: Sentence, outcome: Decoded | None) -> None:
        if outcome is None:
            self.counters.failed += 1
            return
        tokens = len(outcome.hypotheses[0].token_ids) if outcome.hypotheses else 0
        self.counters.finished += 1
        self.counters.texts += sentence.counts_as_text
        self.counters.output_tokens += tokens
        if tokens:
            self.counters.token_s.observe(outcome.decode_s / tokens)

    def _drop_if_empty(self, batch: Batch) -> None:
        if batch.is_empty:
            self._keep(self.batches.pop((batch.beam_size, batch.light)))

    def _keep(self, batch: Batch) -> None:
        """Keep an emptied batch, and as many small ones of other beam sizes as `MAX_SPARES` leaves."""
        others = [spare for size, spare in self._spares.items() if size != batch.beam_size]
        small = [spare for spare in others if spare.most_positions <= SMALL_SPARE_POSITIONS]
        self._spares = {spare.beam_size: spare for spare in (*small[1 - MAX_SPARES :], batch)}

    def _fail_all(self, error: JumokError) -> int:
        """Fail all sentences of the replica; return their number."""
        running = [sentence for batch in self.batches.values() for sentence in batch.sentences]
        lost = list(dict.fromkeys([*self._joining, *self._ahead, *running]))
        self.batches, self._joining, self._ahead, self._new, self._spares = {}, [], [], {}, {}
        self._unchanged = False
        self._note_light()
        self.counters.failed += len(lost)
        for sentence in lost:
            sentence.fail(error)
        return len(lost)


class Engine(Scheduler):
    """Decodes sentences with continuous batching: they join and leave between two steps.

    It is the scheduler of its replicas, which all run the same graphs. A failed replica restarts by itself (see
    `Replica`). Meanwhile sentences wait for other replicas, or for its first restart; if that fails, they fail. A
    restart that succeeds at once costs the next sentences little, so no text that breaks a model can keep others out.

    Args:
        graphs: the model with all threads, used if only one replica has work.
        shared: the same graphs, for replicas that work at the same time; default: `graphs`.
        probe: decodes something with graphs, or raises; default: a failed replica restarts at once.
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
        probe: Callable[[Graphs], None] = lambda _: None,
    ) -> None:
        super().__init__(limits, replicas)
        self._replicas = [
            Replica(
                graphs=graphs,
                shared=shared or graphs,
                pad=pad,
                scheduler=self,
                number=number,
                name=f"engine {name} {number}",
                probe=probe,
            )
            for number in range(replicas)
        ]
        self._counters = [replica.counters for replica in self._replicas]

    def counters(self) -> EngineCounters:
        """Return the counters of all threads."""
        return EngineCounters.sum([self.queue_counters, *self._counters])

    def close(self, *, drain: bool = True) -> None:
        """Refuse new sentences, finish the others and end the threads.

        Without `drain` the others fail at once.
        """
        for sentence in self.stop(drain=drain):
            sentence.fail(UnavailableError("the model was stopped", retry_after_s=RETRY_AFTER_S))
        for replica in self._replicas:
            replica.join()
        self._replicas = []  # each refers to its scheduler: without this cycle the graphs leave memory at once
