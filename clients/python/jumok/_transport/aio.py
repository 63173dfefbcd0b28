"""Unary and streaming calls of tasks to one of several servers, with retries."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from jumok._errors import call_error
from jumok._responses import check_complete, read_update
from jumok._results import TranslationUpdate
from jumok._transport.channel import Tls, addresses, open_async_channel
from jumok._transport.closing import AsyncClosing, cancelled_at_exit
from jumok._transport.corpus_call import AsyncCorpusCall
from jumok._transport.retry import Attempts, Endpoints
from jumok._validation import check_count, check_open, check_timeout
from jumok_proto.errors import JumokError
from jumok_proto.v1.model_pb2_grpc import ModelServiceStub
from jumok_proto.v1.translation_pb2 import StreamTranslateTextRequest, TranslateCorpusRequest
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class AsyncStubs:
    """The services of one server."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.translation = TranslationServiceStub(channel)
        self.models = ModelServiceStub(channel)


class AsyncConnection:
    """A channel to each server of a client.

    Shared by the tasks of one event loop. Arguments are those of the client.
    """

    def __init__(
        self, server: str | Sequence[str], *, tls: Tls | None, token: str | None, timeout_s: float, max_attempts: int
    ) -> None:
        self.servers = addresses(server)
        self._timeout_s = check_timeout(timeout_s)
        self.max_attempts = check_count("max_attempts", max_attempts, least=1)
        self.endpoints = Endpoints(len(self.servers))
        self._stubs = [AsyncStubs(open_async_channel(address, tls=tls, token=token)) for address in self.servers]
        self._closing = AsyncClosing()

    def is_open(self) -> bool:
        """True until the connection is closed."""
        return not self._closing.closed

    def check_open(self) -> None:
        """Raise ValueError if the connection is closed."""
        check_open(self._closing.closed)

    def timeout_s(self, timeout_s: float | None) -> float:
        """Give the timeout of a call; None stands for the client's own."""
        return self._timeout_s if timeout_s is None else check_timeout(timeout_s)

    async def call(
        self,
        method: "Callable[[AsyncStubs], grpc.aio.UnaryUnaryMultiCallable[Request, Response]]",
        request: Request,
        timeout_s: float | None,
    ) -> Response:
        """Call a method of the next server; ``method`` picks it from the server's stubs."""
        attempts = self._attempts(timeout_s)
        while True:
            self.check_open()
            remaining_s = attempts.begin(time.monotonic())
            try:
                with self._closing.guard():
                    response = await method(self._stubs[attempts.endpoint])(request, timeout=remaining_s)
            except grpc.RpcError as error:
                await self._wait_to_retry(attempts, error)
            else:
                attempts.succeeded()
                return response

    def stream(
        self, request: StreamTranslateTextRequest, timeout_s: float | None
    ) -> AsyncGenerator[TranslationUpdate, None]:
        """Call StreamTranslateText when the first update is requested; wrong arguments raise here."""
        self.timeout_s(timeout_s)
        self.check_open()
        return self._updates(request, timeout_s)

    def open_corpus(self, endpoint: int, requests: AsyncIterator[TranslateCorpusRequest]) -> AsyncCorpusCall:
        """Call TranslateCorpus of one server, given by its number."""
        self.check_open()
        return AsyncCorpusCall(
            self._stubs[endpoint].translation.TranslateCorpus(requests),
            lambda error: call_error(error, self.servers[endpoint]),
        )

    async def close(self) -> None:
        """Close the channels."""
        self._closing.close()
        for stubs in self._stubs:
            await stubs.channel.close(None)

    async def _updates(
        self, request: StreamTranslateTextRequest, timeout_s: float | None
    ) -> AsyncGenerator[TranslationUpdate, None]:
        attempts = self._attempts(timeout_s)
        update: TranslationUpdate | None = None
        while update is None:
            self.check_open()
            remaining_s = attempts.begin(time.monotonic())
            call = self._stubs[attempts.endpoint].translation.StreamTranslateText(request, timeout=remaining_s)
            try:
                with self._closing.guard(), cancelled_at_exit(call):
                    async for response in call:
                        attempts.succeeded()
                        update = read_update(response, update.text if update else "")
                        yield update
                check_complete(update)
            except grpc.RpcError as error:
                if update is not None:  # an update must not come twice
                    raise call_error(error, self.servers[attempts.endpoint]) from error
                await self._wait_to_retry(attempts, error)

    def _attempts(self, timeout_s: float | None) -> Attempts:
        return Attempts(self.endpoints, self.timeout_s(timeout_s), self.max_attempts, time.monotonic())

    async def _wait_to_retry(self, attempts: Attempts, error: grpc.RpcError) -> None:
        """Wait until the next attempt; raise the error of the last."""
        try:
            delay_s = attempts.failed(call_error(error, self.servers[attempts.endpoint]), time.monotonic())
        except JumokError as failure:
            raise failure from error
        await self._closing.sleep(delay_s)
