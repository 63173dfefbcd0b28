"""A TCP relay that can go silent, as a network that drops packets does."""

import asyncio
import threading
from types import TracebackType
from typing import Self


class Relay:
    """Relays connections on a free port of 127.0.0.1 to a server, in a thread of its own.

    A silent relay keeps connections open, accepts new ones, and drops all bytes.

    Args:
        server: ``host:port`` of the server.

    Attributes:
        address: ``host:port`` of the relay, in a ``with`` block.
        carried: bytes that it relayed, of both directions.
    """

    def __init__(self, server: str) -> None:
        self._host, _, self._port = server.rpartition(":")
        self._silent = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""
        self.carried = 0

    def silence(self, *, silent: bool = True) -> None:
        """Drop all bytes from now on, or none."""
        self._silent = silent

    def __enter__(self) -> Self:
        self._thread.start()
        self._listening = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._connected, "127.0.0.1", 0), self._loop
        ).result()
        host, port = self._listening.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._listening.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there = None
        try:
            there_reader, there = await asyncio.open_connection(self._host, int(self._port))
            await asyncio.gather(self._copy(reader, there), self._copy(there_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for each in (writer, there):
                if each is not None:
                    each.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            if not self._silent:
                self.carried += len(data)
                writer.write(data)
                await writer.drain()
        raise ConnectionResetError  # ends the other direction too
