"""How the calls of a program that waits reach a server, or one of several; again, where that can help."""

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from jumok import _calls
from jumok._corpus.sync import CorpusCall
from jumok._errors import call_error
from jumok._results import TranslationUpdate
from jumok._transport.channel import Tls, addresses, open_channel
from jumok._transport.retry import Attempts, Endpoints, check_attempts
from jumok_proto.errors import JumokError
from jumok_proto.v1.model_pb2_grpc import ModelServiceStub
from jumok_proto.v1.translation_pb2 import StreamTranslateTextRequest, TranslateCorpusRequest
from jumok_proto.v1.translation_pb2_grpc import TranslationServiceStub

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class Stubs:
    """The services of one server."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.translation = TranslationServiceStub(channel)
        self.models = ModelServiceStub(channel)


class Connection:
    """A channel to each server of a client, whose arguments these are. All threads of a program may share it."""

    def __init__(
        self, server: str | Sequence[str], *, tls: Tls | None, token: str | None, timeout_s: float, max_attempts: int
    ) -> None:
        self.servers = addresses(server)
        self._timeout_s = _calls.check_timeout(timeout_s)
        self.max_attempts = check_attempts(max_attempts)
        self.endpoints = Endpoints(len(self.servers))
        self._stubs = [Stubs(open_channel(address, tls=tls, token=token)) for address in self.servers]
        self._closed = threading.Event()

    def is_open(self) -> bool:
        """Whether it was not closed."""
        return not self._closed.is_set()

    def check_open(self) -> None:
        """Raise ValueError where it was closed."""
        _calls.check_open(self._closed.is_set())

    def limit(self, timeout_s: float | None) -> float:
        """Seconds that a call may take; None stands for the client's own limit."""
        return self._timeout_s if timeout_s is None else _calls.check_timeout(timeout_s)

    def call(
        self,
        method: "Callable[[Stubs], grpc.UnaryUnaryMultiCallable[Request, Response]]",
        request: Request,
        timeout_s: float | None,
    ) -> Response:
        """Call a method, which is named by what it is of a server's stubs."""
        attempts = self._attempts(timeout_s)
        while True:
            self.check_open()
            remaining_s = attempts.begin(time.monotonic())
            try:
                response = method(self._stubs[attempts.endpoint])(request, timeout=remaining_s)
            except grpc.RpcError as error:
                self._wait_to_repeat(attempts, error)
            else:
                attempts.succeeded()
                return response

    def stream(
        self, request: StreamTranslateTextRequest, timeout_s: float | None
    ) -> Generator[TranslationUpdate, None, None]:
        """Call StreamTranslateText when the first update is asked for; what is wrong already is raised here."""
        self.limit(timeout_s)
        self.check_open()
        return self._updates(request, timeout_s)

    def open_corpus(self, endpoint: int, requests: Iterator[TranslateCorpusRequest]) -> CorpusCall:
        """Call TranslateCorpus of one of the servers, by its number."""
        self.check_open()
        return CorpusCall(
            self._stubs[endpoint].translation.TranslateCorpus(requests),
            lambda error: call_error(error, self.servers[endpoint]),
        )

    def close(self) -> None:
        """Close the channels."""
        self._closed.set()
        for stubs in self._stubs:
            stubs.channel.close()

    def _updates(
        self, request: StreamTranslateTextRequest, timeout_s: float | None
    ) -> Generator[TranslationUpdate, None, None]:
        attempts = self._attempts(timeout_s)
        update: TranslationUpdate | None = None
        while update is None:
            self.check_open()
            remaining_s = attempts.begin(time.monotonic())
            call = self._stubs[attempts.endpoint].translation.StreamTranslateText(request, timeout=remaining_s)
            try:
                for response in call:
                    attempts.succeeded()
                    update = _calls.read_update(response, update.text if update else "")
                    yield update
                _calls.check_complete(update)
            except grpc.RpcError as error:
                if update is not None:  # what was given is not to come again
                    raise call_error(error, self.servers[attempts.endpoint]) from error
                self._wait_to_repeat(attempts, error)
            finally:
                call.cancel()  # type: ignore[no-untyped-call]

    def _attempts(self, timeout_s: float | None) -> Attempts:
        return Attempts(self.endpoints, self.limit(timeout_s), self.max_attempts, time.monotonic())

    def _wait_to_repeat(self, attempts: Attempts, error: grpc.RpcError) -> None:
        """Wait as long as it takes before the next attempt; raise the error of the last."""
        try:
            delay_s = attempts.failed(call_error(error, self.servers[attempts.endpoint]), time.monotonic())
        except JumokError as failure:
            raise failure from error
        self._closed.wait(delay_s)
