"""ASGI application of the HTTP APIs."""

from collections import Counter
from collections.abc import Sequence
from email.utils import formatdate

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from jumok_serve.http.apis.deepl import deepl_routes
from jumok_serve.http.apis.libretranslate import libretranslate_routes
from jumok_serve.http.apis.own_json import own_routes
from jumok_serve.http.playground.page import playground_routes
from jumok_serve.http.site import REQUEST_ID, Site
from jumok_serve.service.rpc.call import REQUEST_ID as REQUEST_ID_HEADER
from jumok_serve.service.rpc.call import request_id_from

CORS_AGE_S = 3600


class Application:
    """Endpoints of all APIs; gives every request an id, and closes connections whose rest is unclear.

    Args:
        origins: web pages that may call, as ``https://example.org``; ``*``: all.
        playground: True if there is a page to translate in.

    Attributes:
        stopping: True if each response closes its connection.
        responses: number of responses by status.
    """

    def __init__(self, site: Site, origins: Sequence[str] = (), *, playground: bool = True) -> None:
        self.site = site
        self.stopping = False
        self.responses = Counter[int]()
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["authorization", "content-type", REQUEST_ID_HEADER],
            expose_headers=[REQUEST_ID_HEADER, "retry-after"],
            max_age=CORS_AGE_S,
        )
        page = playground_routes(site) if playground else []
        self._application = Starlette(
            routes=[*libretranslate_routes(site), *deepl_routes(site), *own_routes(site), *page],
            middleware=[cors] if origins else [],
            exception_handlers={HTTPException: _refused},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or the events of a host's start and end."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = scope[REQUEST_ID] = request_id_from({REQUEST_ID_HEADER: headers.get(REQUEST_ID_HEADER, "")})
        framings = len(headers.getlist("content-length")) + len(headers.getlist("transfer-encoding"))
        arriving = framings > 0

        async def received() -> Message:
            nonlocal arriving
            message = await receive()
            arriving = arriving and message.get("more_body", False)
            return message

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.responses[message["status"]] += 1
                added = MutableHeaders(scope=message)
                added["date"] = formatdate(usegmt=True)
                added[REQUEST_ID_HEADER] = request_id
                added["x-content-type-options"] = "nosniff"
                if arriving or self.stopping:  # the rest of a body is not read
                    added["connection"] = "close"
            await send(message)

        if framings > 1:  # proxies may disagree about the end of such a request
            refusal = JSONResponse({"error": "the request states its length twice: send one header"}, 400)
            await refusal(scope, received, sent)
        else:
            await self._application(scope, received, sent)


async def _refused(_: Request, error: Exception) -> Response:
    """Make the response to an unknown path or method."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)
