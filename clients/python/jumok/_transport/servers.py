"""The servers of a client, and the policy of its calls: the same for tasks and threads."""

import time
from collections.abc import Sequence

import grpc

from jumok._errors import call_error
from jumok._transport.address import addresses
from jumok._transport.channel import Opener, Tls
from jumok._transport.retry import Attempts, Endpoints
from jumok._validation import check_timeout
from jumok_proto.errors import JumokError, UnavailableError


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
