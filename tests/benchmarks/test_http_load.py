"""The benchmark of HTTP beside gRPC: all APIs translate, and a refusal is an error."""

import asyncio

import pytest

from benchmarks import http_load
from tests.support.hang import HANG_S

TEXTS = ["A dog runs on the beach.", "Two men are talking."]


def test_all_apis_are_measured() -> None:
    seconds = asyncio.run(
        asyncio.wait_for(http_load.measure(http_load.MODEL, TEXTS, outstanding=2, sentences=4, rounds=1), HANG_S)
    )
    assert set(seconds) == {"gRPC", "own JSON", "LibreTranslate", "DeepL"}
    assert all(len(taken) == 1 and taken[0] > 0 for taken in seconds.values())


def test_an_answer_other_than_200_is_an_error() -> None:
    async def refused() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")
            writer.close()

        async with await asyncio.start_server(answer, "localhost", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ValueError, match="503 Busy"):
                await http_load.post_all(port, [b"GET / HTTP/1.1\r\n\r\n"], outstanding=1, sentences=1)

    asyncio.run(asyncio.wait_for(refused(), HANG_S))
