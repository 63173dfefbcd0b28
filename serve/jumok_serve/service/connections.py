"""Addresses, and the connections of a server."""

import asyncio
import errno
import logging
import os
import resource
import socket
import stat
import struct
import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jumok_serve.errors import ListenError
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.share import account_of, peer_name

UNIX = "unix:"
"""Prefix of a host that is the path of a Unix socket, which has no port."""


def format_address(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address; a Unix socket stays as it is."""
    if host.startswith(UNIX):
        return host
    return f"[{bare_host(host)}]:{port}" if ":" in host else f"{host}:{port}"


def bare_host(host: str) -> str:
    """Remove the brackets around an IPv6 address."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def check_address(host: str, port: int, setting: str) -> None:
    """Bind an address once, because gRPC logs failures instead of raising them.

    Raises:
        ListenError: the address cannot be bound.
    """
    listen(host, port, setting).close()
    if host.startswith(UNIX):
        Path(host.removeprefix(UNIX)).unlink()


def listen(host: str, port: int, setting: str) -> socket.socket:
    """Return a socket that is bound to an address.

    Raises:
        ListenError: the address cannot be bound.
    """
    address = format_address(host, port)
    try:
        return _bind_path(Path(host.removeprefix(UNIX))) if host.startswith(UNIX) else _bind(bare_host(host), port)
    except UnicodeError as error:
        raise ListenError(f"cannot listen on {address}: not a host name") from error
    except OSError as error:
        reason = f"cannot listen on {address}: {error.strerror or error}"
        raise ListenError(reason + _remedy(error, host, setting)) from error


def _remedy(error: OSError, host: str, setting: str) -> str:
    """Say which setting to change after a failure to bind, if it is known."""
    host_setting = setting.removesuffix("port") + "host"
    if error.errno == errno.EADDRINUSE:
        return f"; another program uses it, so choose another {host_setting if host.startswith(UNIX) else setting}"
    if error.errno == errno.EACCES and not host.startswith(UNIX):
        return f"; choose a {setting} above 1023"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"; give {host_setting} an address of this machine, or 0.0.0.0 for all"
    return ""


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    unbound = socket.socket(family, kind, protocol)
    unbound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return _bound(unbound, address)


def _bind_path(path: Path) -> socket.socket:
    """Bind a Unix socket, whose file gRPC would take from another program."""
    if path.exists():
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise OSError(errno.EEXIST, "the file exists and is no socket; choose another path")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)  # a server that accepts nothing would block it
            if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
                raise OSError(errno.EADDRINUSE, "the socket is in use")
        path.unlink()  # a server that was killed left it
    return _bound(socket.socket(socket.AF_UNIX), str(path))


def _bound(unbound: socket.socket, address: Any) -> socket.socket:
    try:
        unbound.bind(address)
    except BaseException:
        unbound.close()
        raise
    return unbound


logger = logging.getLogger(__name__)

STREAM_WINDOW = 16 * 1024
"""Bytes of a call that are received before its request is read; a read asks for the rest of the message."""
HANDSHAKE_S = 20.0
"""Time for TLS and the first frames of a connection, and for the answer to the server's settings."""
MAX_METADATA = 16 * 1024
"""Bytes of a call's metadata. Clients that do not answer the server's settings may send 16 MiB until they do."""
MAX_PENDING = 1024
"""Calls that wait for the event loop, as many as a connection may open. Each takes up to 50 KiB, and needs no token."""

INTERVAL_S = 0.5
"""Time between two looks at the number of connections."""
OTHER_FILES = 512
"""Open files besides connections: bundles, logs, pipes of child processes."""
FILES = Path("/proc/self/fd")
RECEIVED = struct.Struct("128xQ")
"""Received bytes in Linux' ``tcp_info``."""

Argument = tuple[str, int]


def channel_arguments(limits: ServiceLimits) -> tuple[Argument, ...]:
    """Make the arguments of a gRPC server."""
    arguments = [
        ("grpc.so_reuseport", 0),  # else a second server could share the port and its calls
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.max_send_message_length", -1),  # limits of requests bound responses
        ("grpc.max_concurrent_streams", limits.max_streams),
        # Otherwise gRPC refuses calls without a reason while the event loop is busy.
        ("grpc.server.max_pending_requests", min(limits.max_calls, MAX_PENDING)),
        ("grpc.server.max_pending_requests_hard_limit", min(limits.max_calls, MAX_PENDING)),
        ("grpc.max_allowed_incoming_connections", limits.max_connections),
        ("grpc.server_handshake_timeout_ms", _milliseconds(HANDSHAKE_S)),
        ("grpc.http2.settings_timeout", _milliseconds(HANDSHAKE_S)),  # else a minute
        ("grpc.absolute_max_metadata_size", MAX_METADATA),
        ("grpc.http2.lookahead_bytes", STREAM_WINDOW),
        ("grpc.http2.bdp_probe", 0),  # else each call may send 4 MiB before its request is read
        ("grpc.http2.min_ping_interval_without_data_ms", _milliseconds(limits.min_ping_interval_s)),
        ("grpc.keepalive_permit_without_calls", 1),  # else pings without a call are allowed every two hours
        ("grpc.keepalive_time_ms", _milliseconds(limits.keepalive_s)),
        ("grpc.keepalive_timeout_ms", _milliseconds(limits.keepalive_timeout_s)),
        ("grpc.http2.ping_timeout_ms", _milliseconds(limits.keepalive_timeout_s)),  # else a minute
        ("grpc.max_connection_idle_ms", _milliseconds(limits.max_idle_s)),
    ]
    if limits.max_connection_age_s is not None:
        arguments += [
            ("grpc.max_connection_age_ms", _milliseconds(limits.max_connection_age_s)),
            ("grpc.max_connection_age_grace_ms", _milliseconds(limits.max_connection_grace_s)),
        ]
    return tuple(arguments)


def _milliseconds(seconds: float) -> int:
    return max(1, round(1000 * seconds))


def allow_connections(limits: ServiceLimits, ports: int) -> None:
    """Raise this process's limit of open files to its hard limit, or to what its connections need."""
    needed = ports * limits.max_connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    if allowed < needed:
        logger.warning(
            "%d connections need %d open files, and %d are allowed; raise 'ulimit -Hn', or lower max_connections",
            ports * limits.max_connections,
            needed,
            allowed,
        )


async def bound_addresses(port: int, most: int) -> None:
    """Close new connections of an address that has the most, until cancelled; grpcio 1.85 has no option for it.

    Sees connections in Linux' /proc; on other systems there is no bound.
    """
    known: list[str] = []
    if not FILES.is_dir():
        return
    files = OpenFiles()
    while True:
        await asyncio.sleep(INTERVAL_S)
        with suppress(OSError):  # the whole system has too many open files
            if len(files.numbers()) > most:
                known, closed = await asyncio.to_thread(close_excess, files, port, most, known)
                for account, number in closed.items():
                    logger.warning(
                        "closed %d connections of %s, which may have %d; raise max_connections_of_address for a proxy",
                        number,
                        account,
                        most,
                    )


class OpenFiles:
    """Open files of this process; seen also when it may open no more. Used by one thread at a time."""

    def __init__(self) -> None:
        self._nothing = os.open(os.devnull, os.O_RDONLY)
        self._copy = os.dup(self._nothing)  # a number that is kept for copies
        for number in (self._nothing, self._copy):
            weakref.finalize(self, os.close, number)  # a thread may still look when the server has stopped

    def numbers(self) -> Sequence[int]:
        """Return the numbers of open files, in order; new files have the first free number."""
        try:
            return sorted(map(int, os.listdir(FILES)))
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            return range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])  # all are in use

    @contextmanager
    def connection(self, number: int, port: int | None = None) -> Iterator[tuple[socket.socket, str]]:
        """Copy an open file that is a connection to a port, or to any; yields it with its peer.

        Raises:
            OSError: the file is no such connection.
        """
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            raise OSError
        os.dup2(number, self._copy, inheritable=False)
        try:
            connection = socket.socket(fileno=self._copy)
            try:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    raise OSError
                if port not in (None, connection.getsockname()[1]):
                    raise OSError
                yield connection, peer_name(*connection.getpeername()[:2])
            finally:
                connection.detach()
        finally:
            os.dup2(self._nothing, self._copy, inheritable=False)


def close_excess(files: OpenFiles, port: int, most: int, known: Sequence[str]) -> tuple[list[str], Counter[str]]:
    """Close each address's connections to a port beyond the most.

    Args:
        known: peers that were connected before, which are the last to be closed.

    Returns:
        Peers that stay connected, and the number of closed connections by address.
    """
    found: dict[str, int] = {}
    for number in files.numbers():
        with suppress(OSError), files.connection(number, port) as (_, peer):
            found[peer] = number
    left: list[str] = []
    of_account: Counter[str] = Counter()
    closed: Counter[str] = Counter()
    for peer in dict.fromkeys([*(peer for peer in known if peer in found), *found]):
        account = account_of(peer)
        of_account[account] += 1
        if of_account[account] <= most:
            left.append(peer)
            continue
        with suppress(OSError), files.connection(found[peer], port) as (connection, now):
            if now == peer:  # else it was closed, and its number given to another
                connection.shutdown(socket.SHUT_RDWR)
                closed[account] += 1
    return left, closed


def close_connections(files: OpenFiles, peers: Collection[str]) -> Counter[str]:
    """Close the connections of peers; returns the number of closed connections by address."""
    closed: Counter[str] = Counter()
    for number in files.numbers():
        with suppress(OSError), files.connection(number) as (connection, peer):
            if peer in peers:
                connection.shutdown(socket.SHUT_RDWR)
                closed[account_of(peer)] += 1
    return closed


def received_bytes(peers: Collection[str]) -> dict[str, int]:
    """Return the bytes that connections of peers have received; without those that the system does not show."""
    received: dict[str, int] = {}
    with suppress(OSError):  # no Linux, or too many open files
        files = OpenFiles()
        for number in files.numbers():
            with suppress(OSError, struct.error), files.connection(number) as (connection, peer):
                if peer in peers:
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RECEIVED.size)
                    (received[peer],) = RECEIVED.unpack(info)
    return received
