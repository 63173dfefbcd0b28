"""Unary and streaming calls of tasks to one of several servers, with retries."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from jumok._concurrency import AsyncAlarm, AsyncBackground, AsyncCondition, AsyncEnd, AsyncLinks, async_cancellation
from jumok._files import FileOptions, FileReceiver, FileResult, FileSource, FileTarget, file_requests, written
from jumok._responses import TranslationUpdate, check_complete, is_empty, read_update, readable
from jumok._transport.retry import PATIENCE_S, PATIENCE_SHARE, Attempts, Silence, Watched
from jumok._transport.servers import HEALTH_CHECK, Servers
from jumok._validation import LONGEST_TIMEOUT_S, check_timeout
from jumok_proto.errors import CallCancelledError, JumokError, UnavailableError
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
    """The services of all servers, and the watch over calls to them.

    A server that stays silent is asked for its health, and left if it does not answer. A busy server answers a health
    check at once, so its calls stay where they are; a stopped one does not, nor does one behind a network that drops
    packets. Only clients of several servers watch: others have no server to go to.

    Args:
        servers: servers of the client.
        is_closed: returns True after the end of the connection.

    Attributes:
        stubs: services of each server.
    """

    def __init__(self, servers: Servers, is_closed: Callable[[], bool]) -> None:
        self.stubs = [AsyncStubs(servers.opener.channel(address, grpc.aio)) for address in servers.addresses]
        self._checks = [stubs.channel.unary_unary(HEALTH_CHECK, None, None) for stubs in self.stubs]
        self._addresses = servers.addresses
        self._is_closed = is_closed
        self._silence = Silence(servers.endpoints, len(servers.addresses))
        self._changes = AsyncCondition()
        self._alarm = AsyncAlarm(self._turn)

    @contextmanager
    def watch(self, endpoint: int, cancel: Callable[[], object], timeout_s: float) -> Iterator[Watched]:
        """Watch over a call until the end of the block, and cancel it there if it has not ended."""
        patience_s = min(PATIENCE_S, PATIENCE_SHARE * timeout_s)
        watched = Watched(endpoint, self._addresses[endpoint], patience_s, time.monotonic(), cancel)
        with self._changes:
            self._silence.calls.add(watched)
        try:
            if len(self._addresses) > 1:
                self._alarm.set(patience_s)
            with async_cancellation(lambda: watched.silent or self._is_closed()):
                yield watched
        except (grpc.RpcError, grpc.FutureCancelledError, CallCancelledError):
            if (error := watched.error()) is not None:
                raise error from None
            raise
        finally:
            with self._changes:
                self._silence.calls.discard(watched)
            cancel()

    async def answer(self, method: Any, endpoint: int, request: Any, timeout_s: float) -> Any:
        """Call a method and wait; raise UnavailableError if the server is silent."""
        if len(self._addresses) == 1:
            with async_cancellation(self._is_closed):
                return await method(request, timeout=timeout_s)
        call = method(request, timeout=timeout_s)
        with self.watch(endpoint, call.cancel, timeout_s):
            return await call

    def _turn(self) -> None:
        now = time.monotonic()
        with self._changes:
            checks, silent, wakes_at = self._silence.turn(now)
        for call in silent:
            call.cancel()
        for endpoint in checks:
            AsyncBackground(self._check, endpoint)
        if wakes_at is not None:
            self._alarm.set(wakes_at - now)

    async def _check(self, endpoint: int) -> None:
        code: grpc.StatusCode | None = None
        try:
            await self._checks[endpoint](b"", timeout=2 * PATIENCE_S)
        except grpc.RpcError as error:  # servers need not have this service: another status is an answer too
            code = error.code()
        except ValueError:  # the client was closed, and its calls have ended
            pass
        finally:
            with self._changes:
                answered = code is not grpc.StatusCode.DEADLINE_EXCEEDED
                self._silence.checked(endpoint, time.monotonic(), answered=answered)


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

    Shared by the tasks of a program.
    """

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self._end = AsyncEnd()
        self._links = AsyncLinks(lambda: AsyncLink(servers, self.is_closed))

    def is_closed(self) -> bool:
        """True after the end of the connection."""
        return self._end.is_set()

    def check_open(self) -> None:
        """Raise ValueError if the connection is closed, as a closed file does."""
        if self.is_closed():
            raise ValueError("the client is closed")

    async def call(
        self,
        method: "Callable[[AsyncStubs], grpc.aio.UnaryUnaryMultiCallable[Request, Response]]",
        request: Request,
        timeout_s: float | None,
    ) -> Response:
        """Call a method of the next server; ``method`` picks it from the server's stubs."""
        attempts = self.servers.attempts(self.servers.timeout_s(timeout_s))
        while True:
            self.check_open()
            link = self._links.get()
            remaining_s = attempts.begin(time.monotonic())
            try:
                response: Response | None = await link.answer(
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
        limit_s = self.servers.timeout_s(timeout_s)
        self.check_open()
        return self._updates(request, limit_s)

    def open_corpus(self, endpoint: int, requests: AsyncIterator[TranslateCorpusRequest]) -> AsyncCorpusCall:
        """Call TranslateCorpus of one server, given by its number."""
        self.check_open()
        link = self._links.get()
        return AsyncCorpusCall(
            link.stubs[endpoint].translation.TranslateCorpus(requests),
            lambda error: self.servers.failure(endpoint, error),
            lambda cancel: link.watch(endpoint, cancel, LONGEST_TIMEOUT_S),
        )

    async def translate_file(self, source: FileSource, target: FileTarget, options: FileOptions) -> FileResult:
        """Call TranslateFile of the next server, once."""
        requests = file_requests(source, options)
        timeout_s = options.get("timeout_s")
        limit_s = LONGEST_TIMEOUT_S if timeout_s is None else check_timeout(timeout_s)
        self.check_open()
        link, endpoint = self._links.get(), self.servers.endpoints.pick(time.monotonic())
        call = link.stubs[endpoint].files.TranslateFile(iter(requests), timeout=limit_s)
        try:
            with written(target) as out, link.watch(endpoint, call.cancel, limit_s) as watched:
                receiver = FileReceiver(out, options.get("on_progress"))
                async for response in call:
                    watched.heard()
                    receiver.receive(readable(response))
                return receiver.result()
        except (grpc.RpcError, UnavailableError) as error:
            raise self.servers.failure(endpoint, error) from None

    async def close(self) -> None:
        """Close the channels."""
        self._end.set()
        link = self._links.take()
        for stubs in [] if link is None else link.stubs:
            await stubs.channel.close(None)

    async def _updates(
        self, request: StreamTranslateTextRequest, limit_s: float
    ) -> AsyncGenerator[TranslationUpdate, None]:
        attempts = self.servers.attempts(limit_s)
        update: TranslationUpdate | None = None
        while update is None:
            self.check_open()
            link = self._links.get()
            remaining_s = attempts.begin(time.monotonic())
            call = link.stubs[attempts.endpoint].translation.StreamTranslateText(request, timeout=remaining_s)
            try:
                with link.watch(attempts.endpoint, call.cancel, remaining_s) as watched:
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
                    raise self.servers.failure(attempts.endpoint, error) from None
                await self._wait_to_retry(attempts, error)

    async def _wait_to_retry(self, attempts: Attempts, error: grpc.RpcError | UnavailableError) -> None:
        """Wait until the next attempt; raise the error of the last."""
        failed = self.servers.failure(attempts.endpoint, error)
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
