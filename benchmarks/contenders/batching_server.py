"""A server around CTranslate2 that batches requests: each ``translate_batch`` gets all queued sentences."""

import asyncio
import time
from dataclasses import dataclass

from benchmarks.contenders.listening import serve
from benchmarks.contenders.wire import Decode, Service, Translated, decoder, read_arguments

MAX_BATCH_SIZE = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class Waiting:
    """A sentence in the queue."""

    source: list[str]
    outcome: asyncio.Future[Translated]


async def work(queue: asyncio.Queue[Waiting], decode: Decode, workers: int) -> None:
    """Decode one batch after another, split among CTranslate2's workers."""
    while True:
        batch = [await queue.get()]
        while len(batch) < MAX_BATCH_SIZE and not queue.empty():
            batch.append(queue.get_nowait())
        batch = [waiting for waiting in batch if not waiting.outcome.done()]  # cancelled calls
        if not batch:
            continue
        began = time.monotonic()
        sources = [waiting.source for waiting in batch]
        try:
            decoded = await asyncio.to_thread(decode, sources, max_batch_size=-(-len(batch) // workers))
        except RuntimeError as error:
            for waiting in batch:
                if not waiting.outcome.done():
                    waiting.outcome.set_exception(error)
            continue
        for waiting, pieces in zip(batch, decoded, strict=True):
            if not waiting.outcome.done():
                waiting.outcome.set_result(Translated(pieces=pieces, began=began))


async def main() -> None:
    """Serve."""
    arguments = read_arguments(__doc__)
    queue: asyncio.Queue[Waiting] = asyncio.Queue()

    async def translate(source: list[str]) -> Translated:
        waiting = Waiting(source=source, outcome=asyncio.get_running_loop().create_future())
        queue.put_nowait(waiting)
        return await waiting.outcome

    worker = asyncio.create_task(work(queue, decoder(arguments), arguments.inter_threads))
    try:
        await serve(Service(arguments.source, arguments.target, translate).answer, "CTranslate2")
    finally:
        worker.cancel()


if __name__ == "__main__":
    asyncio.run(main())
