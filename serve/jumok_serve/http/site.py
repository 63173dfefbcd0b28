"""The exchange of request and response that all HTTP APIs share."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from google.rpc.status_pb2 import Status
from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from jumok_proto.errors import InternalError, JumokError, UnavailableError
from jumok_serve.engine.admission import RETRY_AFTER_S
from jumok_serve.http.backend import Backend, Sender
from jumok_serve.http.errors import describe
from jumok_serve.http.requests import Body, ClientDisconnectedError, Fields, parse_fields, peer_of
from jumok_serve.service.address import account_of
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.access import BEARER
from jumok_serve.service.rpc.request_reader import Intake

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

REQUEST_ID = "jumok.request_id"
"""Key of the request id in ASGI scopes."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """Parts that all endpoints share.

    Attributes:
        intake: bounds on the reading of bodies.
        timeout_s: time from a request's body to its response, in seconds.
        answering: tasks that make responses, or their events; a server that stops cancels those left.
    """

    backend: Backend
    limits: ServiceLimits
    intake: Intake
    timeout_s: float
    answering: set["asyncio.Task[Any]"] = field(default_factory=set)

    def begin(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        """Start a task of a response."""
        task = asyncio.create_task(work)
        self.answering.add(task)
        task.add_done_callback(self.answering.discard)
        return task


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """A request with its whole body."""

    site: Site
    scope: Scope
    headers: Headers
    body: bytes

    @cached_property
    def fields(self) -> Fields:
        """Fields of JSON object, or of query and form.

        Raises:
            InvalidArgumentError: neither of them.
        """
        most = self.site.intake.max_fields
        return parse_fields(self.headers, self.scope["query_string"], self.body, most)

    @property
    def path(self) -> Mapping[str, str]:
        """Parameters of the path."""
        parameters: Mapping[str, str] = self.scope["path_params"]
        return parameters

    def key(self, scheme: str = BEARER) -> str:
        """Return the key of the header ``Authorization``; empty: none of this scheme."""
        credentials = self.headers.get("authorization", "")
        return credentials[len(scheme) :].strip() if credentials.lower().startswith(scheme.lower()) else ""

    def sender(self, key: str = "") -> Sender:
        """Describe the sender, who has a key or none."""
        return Sender(
            peer=peer_of(self.scope),
            request_id=self.scope[REQUEST_ID],
            token=key,
            timeout_s=self.site.timeout_s,
        )


Answer = Callable[[Incoming], Coroutine[Any, Any, Response]]
Refuse = Callable[[JumokError, Status], Response]


class Endpoint:
    """ASGI application of one endpoint.

    Args:
        answer: makes the response; cancelled when the client leaves.
        refuse: makes the response of an error, which has the given status on the wire.
    """

    def __init__(self, site: Site, answer: Answer, refuse: Refuse) -> None:
        self._site = site
        self._answer = answer
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read a request and answer it."""
        body = Body(Headers(scope=scope), receive, self._site.intake, account_of(peer_of(scope)))
        try:
            response = await self._respond(scope, receive, body)
            await response(scope, receive, send)
        except ClientDisconnectedError:
            return
        finally:
            body.close()

    async def _respond(self, scope: Scope, receive: Receive, body: Body) -> Response:
        try:
            content = await body.read()
            incoming = Incoming(site=self._site, scope=scope, headers=Headers(scope=scope), body=content)
            return await unless_left(self._site.begin(self._answer(incoming)), receive)
        except asyncio.CancelledError:
            stopped = stopping()
            return self._refuse(stopped, describe(stopped, scope[REQUEST_ID]))
        except JumokError as error:
            return self._refuse(error, describe(error, scope[REQUEST_ID]))
        except ClientDisconnectedError:
            raise
        except Exception:
            logger.exception("request %s: %s failed", scope[REQUEST_ID], scope["path"])
            fault = InternalError()
            return self._refuse(fault, describe(fault, scope[REQUEST_ID]))


def stopping() -> UnavailableError:
    """Make the error of a request that a server does not finish because it stops."""
    return UnavailableError("the server is being stopped", retry_after_s=RETRY_AFTER_S)


class EventStream(StreamingResponse):
    """Response of server-sent events, which ends when the client leaves."""

    media_type = "text/event-stream"

    def __init__(self, site: Site, events: AsyncIterator[bytes]) -> None:
        super().__init__(events)
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        with suppress(ClientDisconnectedError):
            await unless_left(self._site.begin(self.stream_response(send)), receive)


async def unless_left(work: "asyncio.Task[Result]", receive: Receive) -> Result:
    """Wait for a task, and cancel it if the client leaves.

    Raises:
        ClientDisconnectedError: the client has left.
        CancelledError: of `asyncio`: the task was cancelled by others.
    """
    leaving = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnectedError
    finally:
        leaving.cancel()
        work.cancel()
    return work.result()


async def _left(receive: Receive) -> None:
    """Wait until the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass


def route(site: Site, path: str, methods: str, answer: Answer, refuse: Refuse) -> Route:
    """Make the route of an endpoint; ``methods`` are separated by spaces."""
    endpoint: Any = Endpoint(site, answer, refuse)
    return Route(path, endpoint, methods=methods.split())
