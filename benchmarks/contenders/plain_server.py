"""The simplest server around CTranslate2: every request calls ``translate_batch`` in a thread."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.contenders.listening import serve
from benchmarks.contenders.wire import Service, Translated, decoder, read_arguments


async def main() -> None:
    """Serve."""
    arguments = read_arguments(__doc__)
    decode = decoder(arguments)
    # Twice as many as CTranslate2 decodes at a time: it finds the next sentence in its own queue.
    threads = ThreadPoolExecutor(2 * arguments.inter_threads)

    def translate_now(source: list[str]) -> Translated:
        began = time.monotonic()
        [pieces] = decode([source])
        return Translated(pieces=pieces, began=began)

    async def translate(source: list[str]) -> Translated:
        return await asyncio.get_running_loop().run_in_executor(threads, translate_now, source)

    await serve(Service(arguments.source, arguments.target, translate).answer, "CTranslate2")


if __name__ == "__main__":
    asyncio.run(main())
