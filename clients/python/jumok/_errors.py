"""Conversion of gRPC's errors to those of `jumok_proto.errors`."""

import os
import re
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import cast

import grpc
from google.rpc import status_pb2

from jumok_proto.error_conversion import error_from_proto, make_error, read_details
from jumok_proto.errors import CallCancelledError, Details, JumokError, UnavailableError, name_parameter

PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Environment variables in which gRPC looks for a proxy, first to last."""
NO_PROXIES = ("no_grpc_proxy", "no_proxy")

UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

CAUSES = {
    "WRONG_VERSION_NUMBER|WRONG_SSL_VERSION|HTTP_REQUEST": "it answers without TLS: leave out tls (--tls, --tls-ca)",
    "is not in peer certificate|[Hh]ostname [Vv]erification": "its certificate is for another name: give that name as "
    "override_name (--tls-name)",
    "CERTIFICATE_VERIFY_FAILED|UNKNOWN_CA": "its certificate is not signed by an authority that this client "
    "trusts: give the authority's certificate as root_certificates (--tls-ca)",
    "CERTIFICATE_REQUIRED|BAD_CERTIFICATE": "it needs a certificate of this client: give client_certificate and "
    "client_key (--tls-certificate, --tls-key)",
    "DNS resolution failed|[Nn]ame or service not known|Domain name not found": "the name of the host is unknown",
    "Connection refused|No such file or directory": "no server listens there: start it, or name another (--server, "
    "JUMOK_SERVER)",
    "No route to host|Network is unreachable": "this machine has no route there",
    "[Tt]imeout|[Tt]imed out": "it does not answer",
    "http1.x server": "it speaks HTTP/1: give the port for gRPC (--port of the server), not the one for HTTP, "
    "or another address",
}
"""Explanations for users, by patterns in gRPC's messages."""

BROKEN = "Socket closed|Connection reset|[Bb]roken pipe|EOF|SETTINGS"
"""Words of gRPC if the other side ends a connection without a reason."""
REFUSED = "Connection refused"
LOCALHOST, LOOPBACK = "localhost", "127.0.0.1"
LOOK_S = 0.2
"""Time to connect to this machine, for an error message."""
UNREAD = "CANCELLED"
"""gRPC's message about a call that it ended because too many wait to be read; proxies say more."""
OF_CLIENT = "Exception "
"""Begin of gRPC's messages about errors in this process; other INTERNAL without details is not of a server either."""
OVERTAKEN = {"Internal error from Core": "the server ended the call while a request was being sent"}
"""The message of grpc.aio, in place of the status, if a call ends while a request is being sent."""
CLOSED = "it closed the connection"
WITHOUT_TLS = "if it uses TLS, give tls (--tls, --tls-ca)"
WITH_TLS = (
    "if it needs a certificate of this client, give client_certificate and client_key (--tls-certificate, --tls-key); "
    "if it has no TLS, leave out tls (--tls, --tls-ca)"
)


class UnreadCallError(CallCancelledError):
    """A server's gRPC ended the call before the server read it."""


def call_error(error: grpc.RpcError, server: str, *, tls: bool = False) -> JumokError:
    """Make the error of a failed call through a channel; ``tls`` says if it has TLS."""
    code = error.code()
    trailing = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    packed = dict(trailing).get("grpc-status-details-bin", b"")
    details = read_details(packed) if isinstance(packed, bytes) else Details()
    message = error.details() or f"the call failed with {code.name}"
    if not details.reason and code in UNREACHABLE:  # gRPC itself speaks, not a server
        message = _unreachable(code, message, server, tls=tls)
    if not details.reason and code is grpc.StatusCode.UNIMPLEMENTED:
        message = f"the server at {server} is older than this client, or no jumok server: {message}"
    if code is grpc.StatusCode.UNAUTHENTICATED:
        message = f"{message}; give this caller's token (token, --token, JUMOK_TOKEN) to the client of {server}"
    if not details.reason and code is grpc.StatusCode.INTERNAL and not message.startswith(OF_CLIENT):
        first = OVERTAKEN.get(message) or message.partition("\n")[0]
        return UnavailableError(f"the call was lost between {server} and a server: {first}", details=details, code=code)
    if not details.reason and code is grpc.StatusCode.CANCELLED and message == UNREAD:
        return UnreadCallError(
            f"the server at {server} has too many calls, and did not read this one: call again later, and send several "
            "texts in one call",
            details=details,
        )
    made = make_error(code, message, details)
    name_parameter(made)
    return made


def item_error(status: status_pb2.Status) -> JumokError:
    """Make the error of one item of a stream."""
    error = error_from_proto(status)
    name_parameter(error)
    return error


def _unreachable(code: grpc.StatusCode, message: str, server: str, *, tls: bool) -> str:
    """Say in the user's words why a server cannot be reached."""
    through, directly = way_to(server)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return (
            f"the server at {server} did not answer in time{through}: raise the timeout (timeout_s, --timeout), or see "
            f"'jumok health --server {server}'{directly}"
        )
    detail = re.sub(r"^.*last error: [A-Z_]+: ", "", message)
    if REFUSED in message and not through and _listens_elsewhere(server):
        address = server.replace(LOCALHOST, LOOPBACK)
        return (
            f"cannot reach a server at {server}: "
            f"{f'TLS with it fails; call {address} to see why' if tls else f'{CLOSED}; {WITHOUT_TLS}'}"
        )
    cause = None if through else _cause(message, tls=tls)
    return f"cannot reach a server at {server}{through}: {detail if cause is None else f'{cause} ({detail})'}{directly}"


def way_to(server: str) -> tuple[str, str]:
    """Name the proxy through which a server is called, and the way to call it directly; empty without a proxy."""
    proxy = _proxy(server, os.environ)
    if proxy is None:
        return "", ""
    variable, address = proxy
    return (
        f" through the proxy {address} (variable {variable})",
        f"; to call it directly, add {_host(server)} to no_proxy",
    )


def _cause(message: str, *, tls: bool) -> str | None:
    for said, cause in CAUSES.items():
        if re.search(said, message):
            return cause
    return f"{CLOSED}; {WITH_TLS if tls else WITHOUT_TLS}" if re.search(BROKEN, message) else None


def _listens_elsewhere(server: str) -> bool:
    """True if a program listens at the IPv4 address of localhost.

    Of several addresses of a name gRPC reports the last failure, often that of the IPv6 address without a server.
    """
    port = server.removeprefix(f"{LOCALHOST}:")
    if port == server or not port.isdecimal():
        return False
    with suppress(OSError), socket.create_connection((LOOPBACK, int(port)), timeout=LOOK_S):
        return True
    return False


def _proxy(server: str, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Give the variable and the proxy that gRPC calls a server through, without a password."""
    if server.startswith(("unix:", "unix-abstract:", "vsock:")):
        return None
    variable = next((name for name in PROXIES if environment.get(name)), None)
    if variable is None:
        return None
    excluded = next((environment[name] for name in NO_PROXIES if environment.get(name)), "")
    if any(name and _host(server).endswith(name) for name in map(str.strip, excluded.split(","))):
        return None
    return variable, re.sub(r"//[^/@]*@", "//", environment[variable])


def _host(server: str) -> str:
    return re.sub(r":\d+$", "", server.rpartition("/")[2]).strip("[]")
