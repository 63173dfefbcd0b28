"""The simplest server around CTranslate2: every request calls ``translate_batch`` in a thread."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from benchmarks.contenders.wire import decoder, read_arguments, serve


async def main() -> None:
    """Serve."""
    arguments = read_arguments(__doc__)
    decode = decoder(arguments)
    # Twice as many as CTranslate2 decodes at a time: it finds the next sentence in its own queue.
    threads = ThreadPoolExecutor(2 * arguments.inter_threads)

    async def translate(source: list[str]) -> list[str]:
        [pieces] = await asyncio.get_running_loop().run_in_executor(threads, decode, [source])
        return pieces

    await serve(arguments, translate)


if __name__ == "__main__":
    asyncio.run(main())
