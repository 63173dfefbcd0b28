"""Bodies of HTTP requests, read within bounds of bytes and time."""

import asyncio

from starlette.datastructures import Headers
from starlette.types import Receive

from jumok_proto.errors import OverloadedError, ResourceExhaustedError
from jumok_serve.engine.admission import RETRY_AFTER_S
from jumok_serve.service.rpc.byte_budget import Arrival, ByteBudget
from jumok_serve.service.rpc.request_reader import Intake, too_slow


class ClientDisconnectedError(Exception):
    """The client has left."""


class Body:
    """Body of one request, which holds bytes of a budget as they arrive."""

    def __init__(self, receive: Receive, intake: Intake) -> None:
        self._receive = receive
        self._intake = intake
        self._budget = intake.budget
        self._caller = ""
        self._held = 0
        self._content = b""

    async def read(self, headers: Headers, budget: ByteBudget, caller: str) -> None:
        """Read all bytes.

        Args:
            budget: bytes of the requests that are in memory.
            caller: key of the sender's share of the budget.

        Raises:
            ResourceExhaustedError: too many bytes.
            DeadlineExceededError: the body does not arrive in time.
            OverloadedError: it arrives so slowly that others had to wait for its room.
            ClientDisconnectedError: the client has left.
        """
        self._check_size(int(headers.get("content-length", "0")))
        self._budget, self._caller = budget, caller
        try:
            async with asyncio.timeout(self._intake.upload_s) as timer:
                with budget.arriving(caller, Arrival(timer=timer)) as arrival:
                    self._content = await self._read(arrival)
        except TimeoutError:
            late = too_slow(arrival, self._intake.upload_s)
        else:
            return
        raise late

    def take(self) -> bytes:
        """Return the bytes, which are kept no longer."""
        content, self._content = self._content, b""
        return content

    async def _read(self, arrival: Arrival) -> bytes:
        content = bytearray()
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnectedError
            chunk = message.get("body", b"")
            more = message.get("more_body", False)
            arrival.received += len(chunk)
            self._check_size(arrival.received)
            await self._budget.take(self._caller, len(chunk), arrival)
            self._held += len(chunk)
            content += chunk
        return bytes(content)

    def _check_size(self, size: int) -> None:
        if size > self._intake.max_bytes:
            raise ResourceExhaustedError(f"a request takes at most {self._intake.max_bytes} bytes here: send several")

    def move(self, budget: ByteBudget, caller: str) -> None:
        """Hold bytes of another budget from now on.

        Raises:
            OverloadedError: there is no room.
        """
        size = self._held
        self.close()
        if not budget.take_now(caller, size):
            raise OverloadedError("too many bytes of this caller are in memory", retry_after_s=RETRY_AFTER_S)
        self._budget, self._caller, self._held = budget, caller, size

    def close(self) -> None:
        """Give back the bytes."""
        if self._held:
            self._budget.give_back(self._caller, self._held)
            self._held = 0
