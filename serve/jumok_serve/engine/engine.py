"""The engine of a model: continuous batching by a scheduler and replicas."""

from collections.abc import Callable, Sequence

from jumok_proto.errors import UnavailableError
from jumok_serve.engine.admission import RETRY_AFTER_S
from jumok_serve.engine.limits import EngineLimits
from jumok_serve.engine.replica import Replica
from jumok_serve.engine.scheduler import Scheduler
from jumok_serve.engine.sentence import Sentence
from jumok_serve.engine.statistics import EngineCounters, Load
from jumok_serve.runtime.graphs import Graphs


class Engine:
    """Decodes sentences with continuous batching: they join and leave between two steps.

    All replicas run the same graphs and take sentences from one `Scheduler`. A failed replica restarts by itself (see
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
        self._scheduler = Scheduler(limits, replicas)
        self._replicas = [
            Replica(
                graphs,
                shared or graphs,
                pad=pad,
                scheduler=self._scheduler,
                number=number,
                name=f"engine {name} {number}",
                probe=probe,
            )
            for number in range(replicas)
        ]

    def submit(self, sentences: Sequence[Sentence]) -> None:
        """Queue sentences, all or none; errors are those of `Scheduler.add`."""
        self._scheduler.add(sentences)

    def check_room(self, sentences: int, caller: str) -> None:
        """Refuse sentences of a caller before tokenizing, if `submit` would refuse them."""
        self._scheduler.check_room(sentences, caller)

    def check_work(self, most: int) -> None:
        """Refuse a request that may take this many row steps, if `submit` would."""
        self._scheduler.check_work(most)

    def charge(self, caller: str, work: int) -> None:
        """Count work that is done beside the engine, in row steps; raises RateLimitedError."""
        self._scheduler.charge(caller, work)

    def is_full(self, caller: str) -> bool:
        """True if the queue has no room worth reading a caller's requests for."""
        return self._scheduler.is_full(caller)

    def is_crowded(self, caller: str) -> bool:
        """True if less than 1 / `RESERVE_SHARE` of the queue is free for a caller."""
        return self._scheduler.is_crowded(caller)

    @property
    def ready(self) -> bool:
        """True unless all replicas have failed and not yet recovered."""
        return self._scheduler.ready

    def on_ready_change(self, callback: Callable[[], None]) -> None:
        """Set the callback for changes of `ready`; it must not block.

        A later callback replaces an earlier one. Calls come from any thread.
        """
        self._scheduler.on_ready_change = callback

    def load(self) -> Load:
        """Return waiting and running work."""
        return self._scheduler.load()

    def counters(self) -> EngineCounters:
        """Return the counters of all threads."""
        return EngineCounters.sum([self._scheduler.counters, *(replica.counters for replica in self._replicas)])

    def close(self, *, drain: bool = True) -> None:
        """Refuse new sentences, finish the others and end the threads.

        Without `drain` the others fail at once.
        """
        for sentence in self._scheduler.close(drain=drain):
            sentence.fail(UnavailableError("the model was stopped", retry_after_s=RETRY_AFTER_S))
        for replica in self._replicas:
            replica.join()
