"""One TranslateCorpus call, with the errors of jumok; for threads and for tasks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import TypeAlias

import grpc
import grpc.aio

from jumok._responses import is_empty
from jumok._transport.watch import Watched
from jumok_proto.errors import CallCancelledError, JumokError, UnavailableError
from jumok_proto.v1.translation_pb2 import TranslateCorpusRequest, TranslateCorpusResponse

OVERTAKEN = "Internal error from Core"
"""The message of grpc.aio, in place of the status, if a call ends while a request is being sent."""

Watch: TypeAlias = Callable[[Callable[[], object]], AbstractContextManager[Watched]]
"""Watches over the call that a function cancels."""
AsyncCall: TypeAlias = "grpc.aio.StreamStreamCall[TranslateCorpusRequest, TranslateCorpusResponse]"


class CorpusCall:
    """The responses of a call.

    gRPC's call object takes a lock when it is freed, and a program that ends may have stopped a daemon thread that
    holds this lock. So nothing may refer to a call that has ended. The error that gRPC raises is that object, with a
    traceback that refers to it, and so is not the cause of ours.
    """

    def __init__(
        self,
        call: "grpc.CallIterator[TranslateCorpusResponse]",
        describe: Callable[[grpc.RpcError], JumokError],
        watch: Watch,
    ) -> None:
        self._call: grpc.CallIterator[TranslateCorpusResponse] | None = call
        self._describe = describe
        self._watch = watch

    def __iter__(self) -> Iterator[TranslateCorpusResponse]:
        failure: JumokError | None = None
        try:
            if self._call is not None:
                with self._watch(self.cancel) as watched:
                    for response in self._call:
                        watched.heard()
                        if not is_empty(response):
                            yield response
        except grpc.RpcError as error:
            failure = self._describe(error)
            error.__traceback__ = None
        except UnavailableError as error:  # the server is silent
            failure = error
            error.__traceback__ = error.__context__ = None
        finally:
            self.cancel()
            self._call = None
        if failure is not None:
            raise failure

    def cancel(self) -> None:
        """End the call now, from any thread."""
        call = self._call
        if call is not None:
            call.cancel()  # type: ignore[no-untyped-call]


class AsyncCorpusCall:
    """The responses of a call; an iteration that ends early cancels the call."""

    def __init__(self, call: AsyncCall, describe: Callable[[grpc.RpcError], JumokError], watch: Watch) -> None:
        self._call = call
        self._describe = describe
        self._watch = watch

    async def __aiter__(self) -> AsyncIterator[TranslateCorpusResponse]:
        try:
            with self._watch(self._call.cancel) as watched:
                async for response in self._call:
                    watched.heard()
                    if not is_empty(response):
                        yield response
        except grpc.aio.AioRpcError as error:
            if error.details() == OVERTAKEN:
                raise UnavailableError("the server ended the call while a request was being sent") from None
            raise self._describe(error) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():  # the call was cancelled with its client, not this task
                raise CallCancelledError("the client was closed") from None
            raise
        finally:
            self._call.cancel()
