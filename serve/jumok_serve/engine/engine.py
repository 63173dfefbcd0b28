"""The engine of a model: continuous batching by a scheduler and replicas."""

from collections.abc import Callable

from jumok_proto.errors import UnavailableError
from jumok_serve.engine.replica import Replica
from jumok_serve.engine.request_queue import EngineLimits
from jumok_serve.engine.scheduler import Scheduler
from jumok_serve.engine.statistics import EngineCounters
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.share import RETRY_AFTER_S


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
                graphs,
                shared or graphs,
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
