"""Limits of one request, one connection and one caller."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    """Limits of the service; ``jumok_serve.engine.request_queue.EngineLimits`` has those of queue and batch.

    Attributes:
        max_message_bytes: size of a request.
        max_open_bytes: requests of all calls that are read or answered, in bytes; one caller may have half. As many of
            responses that are not read.
        max_file_bytes: size of a file; at most 16 files are open, and take a bounded memory together.
        max_texts: texts of a request.
        max_characters: characters of a text before truncation, of a target prefix, and of a target.
        max_hypotheses: hypotheses of all texts of a request together; bounds the response.
        max_beam_hypotheses: beam size times hypotheses of a text; the default is the most that options allow.
        max_streams: open calls of one connection; further calls wait in the client.
        max_calls: open calls of all connections together, without health checks and corpora.
        max_calls_of_caller: open calls of a token, or without tokens of an address.
        max_corpora: open corpora, besides these calls; one caller may have half.
        max_watches: open health watches and reflections; as many health checks; one caller may have half.
        max_connections: connections of a port.
        max_connections_of_address: connections of a client address to a port; new ones are closed.
        upload_s: time for a request to arrive, in seconds. The largest file has it for each message of largest size,
            and a client for all responses that it may leave unread.
        silence_s: time between two messages of a corpus, in seconds, and for its client to read one.
        wrong_tokens_per_second: calls of an address without a right token, before they are told to wait.
        min_ping_interval_s: shortest time between a client's pings; a client that pings more often is disconnected.
        keepalive_s: silence of a connection, in seconds, after which the server pings the client.
        keepalive_timeout_s: time for the answer, in seconds; then the connection is closed.
        max_idle_s: time in seconds after which a connection without calls is closed.
        max_connection_age_s: age in seconds at which a connection takes no more calls; None: no limit.
        max_connection_grace_s: time for its open calls to end, in seconds; then they are cancelled.
        requests_per_second: sustained rate of each caller; None: no limit.
        request_burst: calls at once after a pause; None: calls of one second, at least 1.
    """

    max_message_bytes: int = 4 * 2**20
    max_open_bytes: int = 64 * 2**20
    max_file_bytes: int = 8 * 2**20
    max_texts: int = 1024
    max_characters: int = 100_000
    max_hypotheses: int = 4096
    max_beam_hypotheses: int = 4096
    max_streams: int = 1024
    max_calls: int = 8192
    max_calls_of_caller: int = 4096
    max_corpora: int = 256
    max_watches: int = 1024
    max_connections: int = 2048
    max_connections_of_address: int = 1024
    upload_s: float = 30.0
    silence_s: float = 600.0
    wrong_tokens_per_second: float = 10.0
    min_ping_interval_s: float = 5.0
    keepalive_s: float = 60.0
    keepalive_timeout_s: float = 20.0
    max_idle_s: float = 900.0
    max_connection_age_s: float | None = None
    max_connection_grace_s: float = 300.0
    requests_per_second: float | None = None
    request_burst: int | None = None
