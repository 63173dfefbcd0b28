"""Addresses of servers, as callers write them."""

import re
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv6Address

from jumok._validation import invalid_field

DEFAULT_PORT = 50051
ADDRESS_LISTS = ("ipv4:", "ipv6:")
"""Prefixes of gRPC targets that contain commas."""
TARGETS = (*ADDRESS_LISTS, "unix:", "unix-abstract:", "vsock:", "xds:")
"""Prefixes of gRPC targets that have no port, or one of their own."""
_HOST = re.compile(r"(dns:(//[^/]*/)?)?(\[[^\[\]]+\]|[^\[\]:/@\s]+)(:(?P<port>[^:]*))?")


def addresses(server: str | Sequence[str]) -> tuple[str, ...]:
    """Split and check the addresses of servers; an address without a port gets the default port.

    Raises:
        InvalidArgumentError: no address, or one that is wrong.
    """
    if isinstance(server, str):
        found = [server] if server.startswith(ADDRESS_LISTS) else [part.strip() for part in server.split(",")]
    else:
        found = list(server)
    if not found or not all(isinstance(address, str) and address for address in found):
        raise invalid_field("server", f"must be an address such as localhost:50051, or several, got {server!r}")
    return tuple(dict.fromkeys(map(_checked, found)))


def one_address(server: str) -> str:
    """Check the address of one server; raise InvalidArgumentError for several."""
    found = addresses(server)
    if len(found) > 1:
        raise invalid_field("server", f"must be one server here, got {len(found)}: choose {' or '.join(found)}")
    return found[0]


def _checked(address: str) -> str:
    if address.startswith(TARGETS):
        return address
    web = re.fullmatch(r"(https?)://([^/]*)(/.*)?", address)
    if web is not None:
        over_tls = ", with TLS (tls, --tls)" if web[1] == "https" else ""
        raise invalid_field("server", f"must be host:port, got the URL {address!r}; write {web[2]!r}{over_tls}")
    with suppress(ValueError):
        IPv6Address(address)
        return f"[{address}]:{DEFAULT_PORT}"
    parts = _HOST.fullmatch(address)
    if parts is None:
        raise invalid_field("server", f"must be an address such as localhost:50051, got {address!r}")
    if parts["port"] is None:
        return f"{address}:{DEFAULT_PORT}"
    port = parts["port"]
    if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise invalid_field("server", f"port must be from 1 to 65535, got {port[:80]!r} in {address[:80]!r}")
    return address
