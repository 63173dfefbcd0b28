"""Port of HTTP: the ASGI application of all APIs, its listener and its connections."""

import asyncio
import logging
import re
import socket
import time
import weakref
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import Any

import h11
from grpc import StatusCode
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import is_ssl
from uvicorn.server import ServerState

from jumok_serve.http.apis.deepl import deepl_routes
from jumok_serve.http.apis.libretranslate import libretranslate_routes
from jumok_serve.http.apis.own_json import own_routes
from jumok_serve.http.playground.page import playground_routes
from jumok_serve.http.site import REQUEST_ID, EngineBackend, Site
from jumok_serve.service.auth.tls import TlsFiles
from jumok_serve.service.connections import HANDSHAKE_S, bare_host, format_address, listen
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.call import REQUEST_ID as REQUEST_ID_HEADER
from jumok_serve.service.rpc.call import request_id_from
from jumok_serve.service.server import Server, Services
from jumok_serve.share import account_of, peer_name

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

        refused = None
        coding = headers.get("content-encoding", "").strip().lower()
        if framings > 1:  # proxies may disagree about the end of such a request
            refused = 400, "the request states its length twice: send one header"
        elif (host := headers.get("host")) is not None and not self._is_own(host):
            refused = 421, f"this server is not {_shown(host)}: call its address, or name the host in http_hosts"
        elif scope["method"] not in SAFE and not self._may_call(headers.get("origin"), host):
            refused = 403, f"pages of {_shown(headers['origin'])} may not call: name the origin in http_origins"
        elif arriving and coding not in {"", "identity"}:
            refused = (
                415,
                f"the body has the content coding {_shown(coding)}: send it without Content-Encoding, as it is",
            )
        answer = self._application if refused is None else _refusal(scope["path"], *refused)
        await answer(scope, received, sent)

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


async def _refused(request: Request, error: Exception) -> Response:
    """Make the response to an unknown path or method."""
    assert isinstance(error, HTTPException)
    known = (error.headers or {}).get("Allow")
    problem = f"takes no {request.method}: send {known}" if known else "is unknown: check the address"
    return _refusal(
        request.url.path, error.status_code, f"the path {_shown(request.url.path)} {problem}", error.headers
    )


def _refusal(path: str, status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Make the response to a request that reaches no endpoint, as the API of its path writes errors."""
    content: object = {"error": message}
    if path.startswith("/v1/"):
        code = {403: StatusCode.PERMISSION_DENIED, 404: StatusCode.NOT_FOUND, 405: StatusCode.UNIMPLEMENTED}
        name = code.get(status, StatusCode.INVALID_ARGUMENT).name
        content = {"error": {"code": status, "status": name, "message": message, "details": []}}
    elif path.startswith(("/v2/", "/v3/")):
        content = {"message": message}
    added = {"accept-encoding": "identity"} if status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE else headers
    return JSONResponse(content, status, headers=added)


HEAD_S = HANDSHAKE_S
"""Time for the head of a request, in seconds."""
MAX_HEAD_BYTES = 64 * 1024
"""Bytes of a request's head; texts may come in the query string."""
MAX_RECEIVE = 8 * 1024
"""Bytes that a connection receives at once; asyncio's 256 KiB each are memory that strangers can take."""
MAX_ARRIVING_HEADS_BYTES = 16 * 2**20
"""Bytes of all heads that are arriving, beyond which those of more than `MAX_RECEIVE` are refused: 2,000 strangers
could take 120 MiB with heads that have no end."""
MAX_HEADERS = 200
"""Header fields of a request, or trailer fields of its body: each takes ten microseconds of the event loop."""
_HEAD_END = re.compile(rb"\n\r?\n")
LINGER_S = 2.0
"""Time in which the rest of a refused request is read and thrown away, in seconds: else its client may not see why."""


class LingeringTransport:
    """Transport whose connection is closed once its client had time to read the last response.

    A socket that is closed with unread bytes resets the connection, and the client may lose the response.

    Attributes:
        linger: starts the wait; returns False if none is needed.
    """

    def __init__(self, transport: asyncio.Transport, linger: Callable[[], bool]) -> None:
        self._transport = transport
        self.linger = linger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        """Close the connection, now or after it lingered."""
        if not self.linger():
            self._transport.close()


class _OneAhead(FlowControl):
    """Flow control that reads nothing while a client's next request waits for the present one."""

    def __init__(self, transport: Any, received: h11.Connection) -> None:
        super().__init__(transport)
        self._received = received

    def resume_reading(self) -> None:
        """Read again, unless a request waits."""
        if self._received.their_state is not h11.DONE or not self._received.trailing_data[0]:
            super().resume_reading()


class BoundedConnection(H11Protocol):
    """Connection that is closed if its client is slow.

    Unlike its base class it bounds the time for a request's head, the time in which the client reads nothing of a
    response, and what it holds of heads, bodies and further requests.
    """

    def __init__(self, config: Config, state: ServerState, limits: ServiceLimits, listener: "BoundedListener") -> None:
        super().__init__(config, state, {})
        self._limits = limits
        self._listener = listener
        self._counted = 0  # bytes among these
        self._long_head = False  # was refused
        self._head: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._lingers_for = 0  # bytes that are still thrown away

    def connection_made(self, transport: Any) -> None:
        """Start to wait for a request."""
        transport.max_size = MAX_RECEIVE
        if is_ssl(transport):
            transport.set_read_buffer_limits(MAX_RECEIVE)  # while reading pauses
        lingering: Any = LingeringTransport(transport, self._linger)
        super().connection_made(lingering)
        self.flow = _OneAhead(lingering, self.conn)
        self._head = self.loop.call_later(HEAD_S, transport.abort)

    def _linger(self) -> bool:
        """Wait for the client's end if its request is refused before all of it has arrived; returns False if not."""
        begun = self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]
        arriving = begun or self.conn.their_state is h11.SEND_BODY or self._long_head
        if self._lingers_for or not arriving or self.transport.is_closing():
            return False
        self._lingers_for = 2 * self._limits.max_message_bytes
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.transport.resume_reading()
        self._unset_timers()
        self._head = self.loop.call_later(LINGER_S, self.transport.abort)
        return True

    def _unset_timers(self) -> None:
        for timer in (self._head, self._unread):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Read a piece of a request, or throw it away."""
        if self._lingers_for:
            self._lingers_for -= len(data)
            if self._lingers_for <= 0:
                self.transport.abort()
            return
        super().data_received(data)
        if self._lingers_for or self.transport.is_closing():
            return
        if self.conn.their_state is h11.IDLE:
            self._count_head(len(self.conn.trailing_data[0]))
            if self._counted > MAX_RECEIVE and self._listener.arriving_heads > MAX_ARRIVING_HEADS_BYTES:
                self._refuse(503, "too many long heads of requests are arriving: send texts in the body of a request")
                return
        else:
            self._count_head(0)
        if self.conn.their_state is h11.SEND_BODY:
            if self.conn.trailing_data[0].count(b"\n") > MAX_HEADERS:  # of a body's end; chunks have been taken out
                self.transport.abort()
            elif self.cycle.body:
                self.flow.pause_reading()  # until the piece has been taken
        idle = self.cycle is None or self.cycle.response_complete
        if not idle and self._head is not None:
            self._head.cancel()
            self._head = None
        elif idle and self._head is None and self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._head = self.loop.call_later(HEAD_S, self.transport.abort)

    def handle_events(self) -> None:
        """Read what has arrived, unless it is a head of too many lines."""
        if self.conn.their_state is h11.IDLE:
            head = _HEAD_END.split(self.conn.trailing_data[0], 1)[0]
            if head.count(b"\n") > MAX_HEADERS:
                self.send_400_response(f"a request takes at most {MAX_HEADERS} header fields")
                return
        super().handle_events()
        if self.conn.their_state is h11.IDLE:
            self.flow.resume_reading()  # the rest of a head

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, and say what is wrong with a long head."""
        waits = self.conn.our_state is h11.IDLE  # for a head, and not for a body
        self._long_head = waits and len(self.conn.trailing_data[0]) > MAX_HEAD_BYTES
        if self._long_head:
            self._refuse(431, f"the head of a request takes at most {MAX_HEAD_BYTES} bytes: send texts in its body")
        else:
            super().send_400_response(msg)

    def _refuse(self, status: int, text: str) -> None:
        """Answer with an error in plain text, and close the connection."""
        headers = [("content-type", "text/plain; charset=utf-8"), ("connection", "close")]
        response = h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode())
        for event in (response, h11.Data(data=text.encode()), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _count_head(self, size: int) -> None:
        self._listener.arriving_heads += size - self._counted
        self._counted = size

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._unset_timers()
        self._count_head(0)
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        if isinstance(self.transport, LingeringTransport):
            self.transport.linger = lambda: False  # no cycle keeps what was received

    def pause_writing(self) -> None:
        """Give the client time to read."""
        super().pause_writing()
        self._unread = self.loop.call_later(self._limits.upload_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the clock: the client has read."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class BoundedListener(socket.socket):
    """Listening socket that closes connections beyond the most as it accepts them.

    Connections count from here to the close of their sockets: asyncio shows those of TLS after the handshake only.

    Args:
        bound: socket that is bound to an address; not usable afterwards.

    Attributes:
        open_connections: number of open connections.
        arriving_heads: bytes of their heads that are arriving.
    """

    def __init__(self, bound: socket.socket, limits: ServiceLimits) -> None:
        super().__init__(fileno=bound.detach())
        self._limits = limits
        self._of_account = Counter[str]()
        self.open_connections = 0
        self.arriving_heads = 0

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection.

        Raises:
            ConnectionAbortedError: one connection too many, which is closed.
        """
        accepted, address = super().accept()
        account = "" if self.family == socket.AF_UNIX else account_of(peer_name(*address[:2]))
        too_many = bool(account) and self._of_account[account] >= self._limits.max_connections_of_address
        if too_many or self.open_connections >= self._limits.max_connections:
            accepted.close()
            raise ConnectionAbortedError
        self.open_connections += 1
        self._of_account[account] += 1
        return _Counted(accepted, lambda: self._closed_of(account)), address

    def _closed_of(self, account: str) -> None:
        self.open_connections -= 1
        self._of_account[account] -= 1
        if not self._of_account[account]:
            del self._of_account[account]


class _Counted(socket.socket):
    """Socket that is uncounted as it is closed."""

    def __init__(self, accepted: socket.socket, uncount: Callable[[], None]) -> None:
        super().__init__(fileno=accepted.detach())
        self._uncount = weakref.finalize(self, uncount)

    def close(self) -> None:
        """Close the connection."""
        super().close()
        self._uncount()


BACKLOG = 2048
TLS_S = 5.0
"""Time for the TLS handshake of a connection, in seconds."""
ACCEPTS = 1
"""Connections accepted at once. asyncio tries each of them, and logs each failure, when no more files can be opened."""
LAST_REQUESTS_S = 1.0
"""Seconds of a stop in which clients may still send a request on an open connection; its response closes it."""
POLL_S = 0.02


@dataclass(eq=False)
class HttpPort:
    """Serves an application over HTTP/1.1 in the running event loop."""

    application: Application
    _: KW_ONLY
    host: str
    port: int
    tls: TlsFiles | None = None
    _state: ServerState = field(default_factory=ServerState, init=False)
    _server: asyncio.Server | None = field(default=None, init=False)
    _listener: BoundedListener | None = field(default=None, init=False)

    @property
    def address(self) -> str:
        """``host:port``; after ``start`` with the actual port."""
        return format_address(self.host, self.port)

    @property
    def open_connections(self) -> int:
        """Number of open connections."""
        return 0 if self._listener is None else self._listener.open_connections

    @property
    def responses(self) -> Mapping[int, int]:
        """Number of responses by status."""
        return self.application.responses

    async def start(self) -> None:
        """Listen and serve.

        Raises:
            ListenError: the address cannot be bound.
            CredentialsError: the certificates are unusable.
        """
        limits = self.application.site.limits
        context = None if self.tls is None else self.tls.ssl_context()
        if context is not None:
            # asyncio up to Python 3.14 has no setting for it, and takes 256 KiB for a connection that sends nothing.
            SSLProtocol.max_size = MAX_RECEIVE
        bound = await asyncio.to_thread(listen, self.host, self.port, "--http-port")
        if bound.family != socket.AF_UNIX:
            address, self.port = bound.getsockname()[:2]
            self.application.bound_to(address, self.host)
        config = Config(
            self.application,
            http=BoundedConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.CRITICAL,  # the others are about clients; endpoints log failures
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=round(limits.max_idle_s),
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        config.load()
        listener = self._listener = BoundedListener(bound, limits)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: BoundedConnection(config, self._state, limits, listener),
            sock=listener,
            ssl=context,
            backlog=ACCEPTS,
            ssl_handshake_timeout=None if context is None else TLS_S,
        )
        listener.listen(BACKLOG)

    async def stop(self, grace_s: float) -> None:
        """Accept no connections, finish requests for ``grace_s`` seconds, then cancel them.

        Responses close their connections. Idle connections are closed after `LAST_REQUESTS_S`, as a request may be on
        its way. Bodies are refused if nothing of them arrives for as long. May be called again with less time.
        """
        if self._server is None:
            return
        self._server.close()
        self.application.stopping = True
        end = time.monotonic() + grace_s
        await self._wait_for_connections(min(LAST_REQUESTS_S, grace_s))
        for connection in list(self._state.connections):
            with suppress(h11.LocalProtocolError):  # it ends with an error already
                connection.shutdown()
        received = dict[asyncio.Task[Any], int]()
        while self._state.connections and time.monotonic() < end:
            await self._wait_for_connections(min(LAST_REQUESTS_S, end - time.monotonic()))
            for task, body in list(self.application.site.reading.items()):
                if received.get(task) == body.received:
                    task.cancel()
                received[task] = body.received
        for task in list(self.application.site.answering):
            task.cancel()
        await self._wait_for_connections(LAST_REQUESTS_S)
        for connection in list(self._state.connections):
            connection.transport.abort()

    async def _wait_for_connections(self, timeout_s: float) -> None:
        """Wait for the last connection to be closed; responses that are complete may still be on their way."""
        end = time.monotonic() + timeout_s
        while self._state.connections and time.monotonic() < end:
            await asyncio.sleep(POLL_S)


def make_http_front(
    server: Server,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    timeout_s: float = 300.0,
    origins: Sequence[str] = (),
    hosts: Sequence[str] = (),
    playground: bool = True,
) -> HttpPort:
    """Make the HTTP port of a server.

    Args:
        port: port; 0: any free one.
        timeout_s: time for a response once its request is read, in seconds.
        origins: web pages that may call; ``*``: all.
        hosts: hosts that requests may name; ``*``: any. Without them a server on a loopback address that needs no
            token takes loopback names alone, so that no page elsewhere reaches it by a name of its own.
        playground: True if there is a page to translate in.
    """
    application = make_application(server, timeout_s=timeout_s, origins=origins, hosts=hosts, playground=playground)
    return HttpPort(application, host=host, port=port, tls=server.tls)


def make_application(
    services: Services, *, timeout_s: float, origins: Sequence[str], hosts: Sequence[str] = (), playground: bool
) -> Application:
    """Make the HTTP application of services; arguments are those of `make_http_front`."""
    site = Site(
        backend=EngineBackend(services),
        limits=services.limits,
        intake=services.intake,
        unread=services.unread,
        timeout_s=timeout_s,
    )
    return Application(site, origins, hosts=hosts, playground=playground)
