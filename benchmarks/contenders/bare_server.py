"""jumok's engine behind a minimal server, without jumok's services.

The difference to ``jumok serve`` is the cost of these services.

No limits, tokens, metrics, logs, health or reflection.
"""

import argparse
import asyncio
from pathlib import Path

from benchmarks.contenders.listening import Context, serve
from jumok_proto.conversion import options_from_proto, response_to_proto
from jumok_proto.v1 import translation_pb2
from jumok_serve import Translator
from jumok_serve.search.options import DecodingOptions
from jumok_serve.service.handlers.waiting import LoopWakeups
from jumok_serve.tasks.parameters import TranslationParameters


async def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    wakeups = LoopWakeups()
    with Translator(parser.parse_args().bundle) as translator:

        async def answer(
            request: translation_pb2.TranslateTextRequest, context: Context
        ) -> translation_pb2.TranslateTextResponse:
            options = DecodingOptions(**options_from_proto(request.options))
            pending = translator.submit(list(request.contents), TranslationParameters(options=options))
            try:
                await wakeups.wait(pending.futures)
                return response_to_proto(pending.collect(), pending.timings())
            finally:
                pending.cancel()  # the caller may have left

        await serve(answer, "a bare engine")


if __name__ == "__main__":
    asyncio.run(main())
