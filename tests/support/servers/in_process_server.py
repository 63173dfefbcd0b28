"""Real server in a thread of the test process, so that tests can inspect its engine."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jumok_serve.engine.statistics import Load
from jumok_serve.service import Server
from jumok_serve.translator import Translator
from tests.support.hang import HANG_S

IDLE = Load(queued_requests=0, queued_tokens=0, running_sentences=0, rows=0)


@contextmanager
def serving(*translators: Translator, **settings: Any) -> Iterator[str]:
    """Serve in another thread; yields the address. Closes models loaded meanwhile."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)  # keeps no process from ending
    thread.start()

    async def start() -> Server:
        server = Server(translators, port=0, **settings)
        await server.start()
        return server

    async def end_others() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    try:
        server = asyncio.run_coroutine_threadsafe(start(), loop).result(HANG_S)
        try:
            yield server.address
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(HANG_S)
            for held in server.models.entries():
                if held.model not in translators:
                    held.model.close(drain=False)
    finally:
        asyncio.run_coroutine_threadsafe(end_others(), loop).result(HANG_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(HANG_S)
        loop.close()


def check_idle(translator: Translator) -> None:
    """Assert that queue and batch are empty within a few steps."""
    for _ in range(10):
        if translator.load() == IDLE:
            return
        translator.translate("a man", beam_size=1, max_length=1)
    assert translator.load() == IDLE
