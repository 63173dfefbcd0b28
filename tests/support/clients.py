"""Calls of both clients, each by a client that lives no longer."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, closing
from operator import attrgetter
from typing import Any, Protocol

import jumok


class Call(Protocol):
    """Calls a method, such as ``glossaries.list``, of a client of a server; an iteration gives a list."""

    def __call__(
        self, method: str, server: str | Sequence[str], *arguments: Any, max_attempts: int = 1, **options: Any
    ) -> Any: ...


def wait(method: str, server: str | Sequence[str], *arguments: Any, max_attempts: int = 1, **options: Any) -> Any:
    """Call a method of ``Client``."""
    with jumok.Client(server, max_attempts=max_attempts) as client:
        found = attrgetter(method)(client)(*arguments, **options)
        if not isinstance(found, Generator):
            return found
        with closing(found):
            return list(found)


def await_(method: str, server: str | Sequence[str], *arguments: Any, max_attempts: int = 1, **options: Any) -> Any:
    """Call a method of ``AsyncClient``."""

    async def scenario() -> Any:
        async with jumok.AsyncClient(server, max_attempts=max_attempts) as client:
            found = attrgetter(method)(client)(*arguments, **options)
            if not isinstance(found, AsyncGenerator):
                return await found
            async with aclosing(found):
                return [each async for each in found]

    return asyncio.run(scenario())
