"""ASGI application of the HTTP APIs."""

import re
from collections import Counter
from collections.abc import Sequence
from email.utils import formatdate
from ipaddress import IPv6Address, ip_address

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
from jumok_serve.service.connections import bare_host
from jumok_serve.service.rpc.call import REQUEST_ID as REQUEST_ID_HEADER
from jumok_serve.service.rpc.call import request_id_from

CORS_AGE_S = 3600
LOOPBACK = "localhost"
"""Stands for all names and addresses of this machine itself."""
_PORT = re.compile(r":\d*\Z")


PIECE = 64 * 1024
"""Bytes of a response that are given to the connection at once."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change and translate nothing; pages elsewhere cannot read their responses."""


class Application:
    """Endpoints of all APIs; gives every request an id, and closes connections whose rest is unclear.

    Args:
        origins: web pages that may call, as ``https://example.org``; a ``*`` in one stands for any characters but
            ``/``, and alone for all pages.
        hosts: hosts that requests may name; `LOOPBACK`: this machine's; ``*``: any; empty: see `bound_to`.
        playground: True if there is a page to translate in.

    Attributes:
        stopping: True if each response closes its connection.
        responses: number of responses by status.
    """

    def __init__(
        self, site: Site, origins: Sequence[str] = (), *, hosts: Sequence[str] = (), playground: bool = True
    ) -> None:
        self.site = site
        self._hosts = frozenset(map(str.casefold, hosts))
        self._origins = re.compile("|".join(re.escape(origin).replace(r"\*", "[^/]*") for origin in origins) or "(?!)")
        self._all_origins = "*" in origins
        self.stopping = False
        self.responses = Counter[int]()
        cors = Middleware(
            CORSMiddleware,
            allow_origins=["*"] if self._all_origins else [],
            allow_origin_regex=self._origins.pattern,
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
        self._application.router.redirect_slashes = False  # to the host that the request names

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
            elif message["type"] == "http.response.body":
                rest = memoryview(message.get("body", b""))
                while len(rest) > PIECE:  # uvicorn waits between pieces until they are read
                    await send({**message, "body": bytes(rest[:PIECE]), "more_body": True})
                    rest = rest[PIECE:]
                message["body"] = bytes(rest)
            await send(message)

        if framings > 1:  # proxies may disagree about the end of such a request
            refusal = "the request states its length twice: send one header"
            await JSONResponse({"error": refusal}, 400)(scope, received, sent)
        elif (host := headers.get("host")) is not None and not self._is_own(host):
            refusal = f"this server is not {_shown(host)}: call its address, or name the host in http_hosts"
            await JSONResponse({"error": refusal}, 421)(scope, received, sent)
        elif scope["method"] not in SAFE and not self._may_call(headers.get("origin"), host):
            refusal = f"pages of {_shown(headers['origin'])} may not call: name the origin in http_origins"
            await JSONResponse({"error": refusal}, 403)(scope, received, sent)
        else:
            await self._application(scope, received, sent)

    def bound_to(self, address: str, host: str) -> None:
        """Take requests to this machine alone if only its programs and browsers can call, and need no token.

        Args:
            address: address that the port is bound to.
            host: its name in the settings, which requests may use too.
        """
        if not self._hosts and not self.site.backend.needs_token and _is_loopback(address):
            self._hosts = frozenset({LOOPBACK, host.casefold()})

    def _is_own(self, host: str) -> bool:
        """True if a request may name a host; a page elsewhere can give its own name this server's address."""
        name = host.casefold().rpartition(":")[0] if _PORT.search(host) else host.casefold()
        return (
            not self._hosts
            or "*" in self._hosts
            or name in self._hosts
            or (LOOPBACK in self._hosts and _is_loopback(name))
        )

    def _may_call(self, origin: str | None, host: str | None) -> bool:
        """True if a request that changes something comes from no page, from an own one, or from one that is named."""
        if origin is None or self._all_origins or self._origins.fullmatch(origin):
            return True
        return host is not None and origin.casefold().partition("://")[2] == host.casefold()


def _is_loopback(name: str) -> bool:
    """True if a host is this machine; browsers resolve all of ``localhost`` themselves."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ip_address(bare_host(name))
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def _shown(value: str) -> str:
    return repr(value if len(value) <= 100 else f"{value[:100]}...")


async def _refused(_: Request, error: Exception) -> Response:
    """Make the response to an unknown path or method."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)
