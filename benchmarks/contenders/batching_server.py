"""A server around CTranslate2 that batches requests: each ``translate_batch`` gets all queued sentences."""

import asyncio
from dataclasses import dataclass

from benchmarks.contenders.wire import Decode, decoder, read_arguments, serve

MAX_BATCH_SIZE = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class Waiting:
    """A sentence in the queue."""

    source: list[str]
    outcome: asyncio.Future[list[str]]


async def work(queue: asyncio.Queue[Waiting], decode: Decode, workers: int) -> None:
    """Decode one batch after another, split among CTranslate2's workers."""
    while True:
        batch = [await queue.get()]
        while len(batch) < MAX_BATCH_SIZE and not queue.empty():
            batch.append(queue.get_nowait())
        batch = [waiting for waiting in batch if not waiting.outcome.done()]  # cancelled calls
        if not batch:
            continue
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
                waiting.outcome.set_result(pieces)


async def main() -> None:
    """Serve."""
    arguments = read_arguments(__doc__)
    queue: asyncio.Queue[Waiting] = asyncio.Queue()

    async def translate(source: list[str]) -> list[str]:
        waiting = Waiting(source=source, outcome=asyncio.get_running_loop().create_future())
        queue.put_nowait(waiting)
        return await waiting.outcome

    worker = asyncio.create_task(work(queue, decoder(arguments), arguments.inter_threads))
    try:
        await serve(arguments, translate)
    finally:
        worker.cancel()


if __name__ == "__main__":
    asyncio.run(main())
