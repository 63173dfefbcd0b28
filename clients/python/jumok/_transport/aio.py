"""Unary and streaming calls of tasks to one of several servers, with retries."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from jumok._concurrency import AsyncEnd, AsyncLinks
from jumok._errors import call_error
from jumok._files import FileOptions, FileReceiver, FileResult, FileSource, FileTarget, file_requests, written
from jumok._responses import TranslationUpdate, check_complete, is_empty, read_update, readable
from jumok._transport.address import addresses
from jumok._transport.aio_watch import AsyncWatch
from jumok._transport.channel import Opener, Tls
from jumok._transport.retry import Attempts, Endpoints
from jumok._transport.watch import Watched
from jumok._validation import LONGEST_TIMEOUT_S, check_timeout
from jumok_proto.errors import JumokError, UnavailableError
from jumok_proto.v1.admin_pb2_grpc import AdminServiceStub
from jumok_proto.v1.file_pb2_grpc import FileServiceStub
from jumok_proto.v1.glossary_pb2_grpc import GlossaryServiceStub
from jumok_proto.v1.model_pb2_grpc import ModelServiceStub
from jumok_proto.v1.translation_pb2 import StreamTranslateTextRequest, TranslateCorpusRequest, TranslateCorpusResponse
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class AsyncStubs:
    """The services of one server."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.admin = AdminServiceStub(channel)
        self.translation = TranslationServiceStub(channel)
        self.files = FileServiceStub(channel)
        self.glossaries = GlossaryServiceStub(channel)
        self.models = ModelServiceStub(channel)


class AsyncLink:
    """The services of all servers, and the watch over calls to them."""

    def __init__(
        self, opener: Opener, servers: Sequence[str], endpoints: Endpoints, is_closed: Callable[[], bool]
    ) -> None:
        self.stubs = [AsyncStubs(opener.channel(server, grpc.aio)) for server in servers]
        self.watch = AsyncWatch([stubs.channel for stubs in self.stubs], servers, endpoints, is_closed)


class AsyncCorpusCall:
    """The responses of a TranslateCorpus call.

    gRPC's call object takes a lock when it is freed, and a program that ends may have stopped a daemon thread that
    holds this lock. So nothing may refer to a call that has ended. The error that gRPC raises is that object, with a
    traceback that refers to it, and so is not the cause of ours.

    Args:
        call: the call.
        describe: makes the error of a failure.
        watch: watches over the call that a function cancels.
    """

    def __init__(
        self,
        call: Any,
        describe: Callable[[grpc.RpcError | UnavailableError], JumokError],
        watch: Callable[[Callable[[], object]], AbstractContextManager[Watched]],
    ) -> None:
        self._call = call
        self._describe = describe
        self._watch = watch

    async def __aiter__(self) -> AsyncIterator[TranslateCorpusResponse]:
        failure: JumokError | None = None
        try:
            if self._call is not None:
                with self._watch(self.cancel) as watched:
                    async for response in self._call:
                        watched.heard()
                        if not is_empty(response):
                            yield response
        except (grpc.RpcError, UnavailableError) as error:
            failure = self._describe(error)
            error.__traceback__ = error.__context__ = None
        finally:
            self._call = None
        if failure is not None:
            raise failure

    def cancel(self) -> None:
        """End the call now."""
        call = self._call
        if call is not None:
            call.cancel()


class AsyncConnection:
    """A channel to each server of a client, for each event loop that uses it.

    Shared by the tasks of a program. Arguments are those of the client. With 0 for ``max_attempts``, calls that the
    server did not read are not repeated either.
    """

    def __init__(
        self, server: str | Sequence[str], *, tls: Tls | None, token: str | None, timeout_s: float, max_attempts: int
    ) -> None:
        self.servers = addresses(server)
        self._timeout_s = check_timeout(timeout_s)
        self.max_attempts = max_attempts
        self.endpoints = Endpoints(len(self.servers))
        self._opener = Opener(tls, token)
        self._end = AsyncEnd()
        self._links = AsyncLinks(lambda: AsyncLink(self._opener, self.servers, self.endpoints, self.is_closed))

    def is_closed(self) -> bool:
        """True after the end of the connection."""
        return self._end.is_set()

    def check_open(self) -> None:
        """Raise ValueError if the connection is closed, as a closed file does."""
        if self.is_closed():
            raise ValueError("the client is closed")

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
            link = self._links.get()
            remaining_s = attempts.begin(time.monotonic())
            try:
                response: Response | None = await link.watch.answer(
                    method(link.stubs[attempts.endpoint]), attempts.endpoint, request, remaining_s
                )
            except (grpc.RpcError, UnavailableError) as error:
                await self._wait_to_retry(attempts, error)
            else:
                attempts.succeeded()
                return readable(response)

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
        link = self._links.get()
        return AsyncCorpusCall(
            link.stubs[endpoint].translation.TranslateCorpus(requests),
            lambda error: self._failure(endpoint, error),
            lambda cancel: link.watch.over(endpoint, cancel, LONGEST_TIMEOUT_S),
        )

    async def translate_file(self, source: FileSource, target: FileTarget, options: FileOptions) -> FileResult:
        """Call TranslateFile of the next server, once."""
        requests = file_requests(source, options)
        timeout_s = options.get("timeout_s")
        limit_s = LONGEST_TIMEOUT_S if timeout_s is None else check_timeout(timeout_s)
        self.check_open()
        link, endpoint = self._links.get(), self.endpoints.pick(time.monotonic())
        call = link.stubs[endpoint].files.TranslateFile(iter(requests), timeout=limit_s)
        try:
            with written(target) as out, link.watch.over(endpoint, call.cancel, limit_s) as watched:
                receiver = FileReceiver(out, options.get("on_progress"))
                async for response in call:
                    watched.heard()
                    receiver.receive(readable(response))
                return receiver.result()
        except (grpc.RpcError, UnavailableError) as error:
            raise self._failure(endpoint, error) from None

    async def close(self) -> None:
        """Close the channels."""
        self._end.set()
        link = self._links.take()
        for stubs in [] if link is None else link.stubs:
            await stubs.channel.close(None)

    async def _updates(
        self, request: StreamTranslateTextRequest, timeout_s: float | None
    ) -> AsyncGenerator[TranslationUpdate, None]:
        attempts = self._attempts(timeout_s)
        update: TranslationUpdate | None = None
        while update is None:
            self.check_open()
            link = self._links.get()
            remaining_s = attempts.begin(time.monotonic())
            call = link.stubs[attempts.endpoint].translation.StreamTranslateText(request, timeout=remaining_s)
            try:
                with link.watch.over(attempts.endpoint, call.cancel, remaining_s) as watched:
                    async for response in call:
                        watched.heard()
                        if is_empty(response):
                            continue
                        attempts.succeeded()
                        update = read_update(response, update.text if update else "")
                        yield update
                check_complete(update)
            except (grpc.RpcError, UnavailableError) as error:
                if update is not None:  # an update must not come twice
                    raise self._failure(attempts.endpoint, error) from None
                await self._wait_to_retry(attempts, error)

    def _attempts(self, timeout_s: float | None) -> Attempts:
        return Attempts(self.endpoints, self.timeout_s(timeout_s), self.max_attempts, time.monotonic())

    def _failure(self, endpoint: int, error: grpc.RpcError | UnavailableError) -> JumokError:
        return (
            error if isinstance(error, JumokError) else call_error(error, self.servers[endpoint], tls=self._opener.tls)
        )

    async def _wait_to_retry(self, attempts: Attempts, error: grpc.RpcError | UnavailableError) -> None:
        """Wait until the next attempt; raise the error of the last."""
        failed = self._failure(attempts.endpoint, error)
        delay_s = attempts.failed(failed, time.monotonic(), closed=self.is_closed())
        if delay_s is None:
            raise failed.with_traceback(None) from None
        await self._end.wait(delay_s)


class AsyncConnected:
    """A client, which has a connection and closes it at the end of a ``with`` block."""

    _connection: AsyncConnection

    async def close(self) -> None:
        """Close the connection; running calls fail with CallCancelledError, later ones with ValueError."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
