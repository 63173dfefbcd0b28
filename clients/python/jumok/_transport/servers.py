"""The servers of a client: addresses as callers write them, channels with credentials, and the policy of calls."""

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import grpc

from jumok._errors import call_error
from jumok._transport.retry import Attempts, Endpoints
from jumok._validation import check_timeout, invalid_field
from jumok_proto.errors import JumokError, UnavailableError

DEFAULT_PORT = 50051
ADDRESS_LISTS = ("ipv4:", "ipv6:")
"""Prefixes of gRPC targets that contain commas."""
TARGETS = (*ADDRESS_LISTS, "unix:", "unix-abstract:", "vsock:", "xds:")
"""Prefixes of gRPC targets that have no port, or one of their own."""
_HOST = re.compile(r"(dns:(//[^/]*/)?)?(\[[^\[\]]+\]|[^\[\]:/@\s]+)(:(?P<port>[^:]*))?")
MAX_MESSAGE_BYTES = 32 * 2**20
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
"""Called without a message, it asks for the health of a whole server; no package is needed to read the answer."""

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # an answer can be larger than its request
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A name with several addresses stands for several servers.
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),
    # A client does not wait because another one of its process failed to connect a moment ago.
    ("grpc.use_local_subchannel_pool", 1),
    # In a rolling restart a client finds the restarted server before the next one stops.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # When servers are replaced, their name has new addresses; gRPC would ask for these only every 30 seconds.
    ("grpc.dns_min_time_between_resolutions_ms", 200),
    # A connection that a network drops without a word is found, and made again, while calls are open.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),  # no bound
)


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


@dataclass(frozen=True, kw_only=True)
class Tls:
    """TLS settings; files are in PEM and are read when a client is made.

    Args:
        root_certificates: certificates that the server's is signed by; None: the public authorities of gRPC.
        client_certificate: certificate of the client, for mutual TLS.
        client_key: private key of the client's certificate.
        override_name: name in the server's certificate, if it differs from the address.
    """

    root_certificates: str | Path | None = None
    client_certificate: str | Path | None = None
    client_key: str | Path | None = field(default=None, repr=False)
    override_name: str | None = None

    def __post_init__(self) -> None:
        if (self.client_certificate is None) != (self.client_key is None):
            raise ValueError("client_certificate and client_key need each other: give both, or neither")

    def credentials(self) -> grpc.ChannelCredentials:
        """Make gRPC credentials; raise OSError for a file that cannot be read."""
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.root_certificates),
            private_key=_read(self.client_key),
            certificate_chain=_read(self.client_certificate),
        )


class Opener:
    """Opens channels with one set of credentials.

    Args:
        tls: TLS settings; None: plain text.
        token: the caller's token.

    Raises:
        ValueError: a token without TLS.
        OSError: a file cannot be read.
    """

    def __init__(self, tls: Tls | None, token: str | None) -> None:
        self.tls = tls is not None
        self._credentials = _credentials(tls, token)
        name = None if tls is None else tls.override_name
        self._options = (*CHANNEL_OPTIONS, *([] if name is None else [("grpc.ssl_target_name_override", name)]))

    def channel(self, address: str, package: Any = grpc) -> Any:
        """Open a channel of ``grpc`` to a server; of ``grpc.aio``: in the running event loop."""
        if self._credentials is None:
            return package.insecure_channel(address, options=self._options)
        return package.secure_channel(address, self._credentials, options=self._options)


def _credentials(tls: Tls | None, token: str | None) -> grpc.ChannelCredentials | None:
    if token is None:
        return None if tls is None else tls.credentials()
    if not token.isascii() or not token.isprintable() or not token.strip():
        raise ValueError("token: must be printable ASCII characters")  # a secret: not part of the message
    if tls is None:
        raise ValueError("token: the network could read it without TLS; give tls too")
    return grpc.composite_channel_credentials(tls.credentials(), grpc.access_token_call_credentials(token))


def _read(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()


class Servers:
    """The servers of a client.

    Arguments are those of the client. With 0 for ``max_attempts``, calls that the server did not read are not repeated
    either.

    Attributes:
        addresses: address of each server.
        endpoints: choice of the server of a call.
        opener: opens channels to them.
    """

    def __init__(
        self, server: str | Sequence[str], *, tls: Tls | None, token: str | None, timeout_s: float, max_attempts: int
    ) -> None:
        self.addresses = addresses(server)
        self._timeout_s = check_timeout(timeout_s)
        self._max_attempts = max_attempts
        self.endpoints = Endpoints(len(self.addresses))
        self.opener = Opener(tls, token)

    def timeout_s(self, timeout_s: float | None) -> float:
        """Give the timeout of a call; None stands for the client's own."""
        return self._timeout_s if timeout_s is None else check_timeout(timeout_s)

    def attempts(self, limit_s: float) -> Attempts:
        """Begin the attempts of a call, which may take this time."""
        return Attempts(self.endpoints, limit_s, self._max_attempts, time.monotonic())

    def failure(self, endpoint: int, error: grpc.RpcError | UnavailableError) -> JumokError:
        """Make the error of a call that failed at a server."""
        if isinstance(error, JumokError):
            return error
        return call_error(error, self.addresses[endpoint], tls=self.opener.tls)
