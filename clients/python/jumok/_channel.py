"""Addresses of servers, and channels to them."""

from collections.abc import Sequence

import grpc
import grpc.aio

from jumok._errors import invalid_field

MAX_MESSAGE_BYTES = 32 * 2**20

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # an answer can be larger than its request
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A name with several addresses is several servers, and a server that starts anew is soon found.
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5000),
)
ADDRESS_LISTS = ("ipv4:", "ipv6:")
"""Targets of gRPC that hold commas themselves."""


def addresses(server: str | Sequence[str]) -> tuple[str, ...]:
    """The addresses of one server or several, a channel for each; raise InvalidArgument where there is none."""
    if isinstance(server, str):
        found = [server] if server.startswith(ADDRESS_LISTS) else [part.strip() for part in server.split(",")]
    else:
        found = list(server)
    if not found or not all(isinstance(address, str) and address for address in found):
        raise invalid_field("server", f"must be an address such as localhost:50051, or several, got {server!r}")
    return tuple(dict.fromkeys(found))


def open_channel(address: str) -> grpc.Channel:
    """A channel for programs that wait for each answer."""
    return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)


def open_async_channel(address: str) -> grpc.aio.Channel:
    """A channel for programs built on asyncio."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
