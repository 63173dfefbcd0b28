"""Arguments of gRPC servers: limits of connections, and of the calls of one connection."""

from jumok_serve.service.limits import ServiceLimits

STREAM_WINDOW = 16 * 1024
"""Bytes of a call that are received before its request is read; a read asks for the rest of the message."""
HANDSHAKE_S = 20.0
"""Time for TLS and the first frames of a connection."""
MAX_PENDING = 2048
"""Calls that wait for the event loop; each may hold metadata and a window."""

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
