"""Addresses: notation, a check that they can be bound, and the party that a peer's address belongs to."""

import errno
import socket
import stat
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from urllib.parse import unquote

from jumok_serve.errors import ListenError

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
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound


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
    bound = socket.socket(socket.AF_UNIX)
    try:
        bound.bind(str(path))
    except BaseException:
        bound.close()
        raise
    return bound


def peer_name(host: str, port: int) -> str:
    """Return a peer's address in gRPC's notation, so that a caller has one account in all protocols."""
    if ":" not in host:
        return f"ipv4:{host}:{port}"
    mapped = IPv6Address(host.partition("%")[0]).ipv4_mapped
    return f"ipv6:[{host}]:{port}" if mapped is None else f"ipv4:{mapped}:{port}"


def account_of(peer: str) -> str:
    """Return the party of an address in gRPC's notation."""
    return _network(peer.rpartition(":")[0])


@lru_cache(4096)
def _network(address: str) -> str:
    """Return an address without its port; of IPv6 the network of 64 bits, which one host may have all of."""
    kind, _, host = address.partition(":")
    if kind != "ipv6":
        return address
    try:
        full = ip_address(unquote(host).strip("[]").partition("%")[0])
    except ValueError:
        return address
    return f"ipv6:{full.packed[:8].hex()}"
