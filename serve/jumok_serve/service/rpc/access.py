"""Access control: number of open calls, tokens, rates."""

from jumok_proto.errors import OverloadedError, PermissionDeniedError, RateLimitedError, UnauthenticatedError
from jumok_serve.engine.admission import RETRY_AFTER_S
from jumok_serve.service.auth.rate_limit import RateLimiter
from jumok_serve.service.auth.tokens import SCOPES, TokenFile
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.call import HEALTH_METHODS, Call

SCOPES_BY_SERVICE = {
    "jumok.v1.TranslationService": frozenset({"translate"}),
    "jumok.v1.ModelService": SCOPES,
    "grpc.reflection.v1.ServerReflection": SCOPES,
    "grpc.reflection.v1alpha.ServerReflection": SCOPES,
}
"""Scopes that open a service; other services need ADMIN."""
ADMIN = frozenset({"admin"})
BEARER = "Bearer "


class AccessControl:
    """Admits or refuses calls by their number, token and rate.

    Args:
        tokens: accepted tokens; None: calls need none.
    """

    def __init__(self, limits: ServiceLimits, tokens: TokenFile | None = None) -> None:
        self._max_calls = limits.max_calls
        self._tokens = tokens
        rate = limits.requests_per_second
        self._limiter = None if rate is None else RateLimiter(rate, limits.request_burst)
        self.open_calls = 0
        """Number of open calls, health checks included."""

    def call_opened(self) -> None:
        """Count an open call."""
        self.open_calls += 1

    def call_closed(self) -> None:
        """Uncount an open call."""
        self.open_calls -= 1

    def admit(self, call: Call) -> None:
        """Identify the caller, and raise if the call is refused.

        Raises:
            OverloadedError: too many calls are open.
            UnauthenticatedError: no token, or an unknown one.
            PermissionDeniedError: the token lacks the scope.
            RateLimitedError: the caller exceeds its rate.
        """
        if call.method.startswith(HEALTH_METHODS):
            return
        if self.open_calls > self._max_calls:
            raise OverloadedError(
                f"{self._max_calls} calls are under way: no room for another", retry_after_s=RETRY_AFTER_S
            )
        if self._tokens is not None:
            self._authenticate(call, self._tokens)
        if self._limiter is not None:
            wait_s = self._limiter.take(call.caller or call.peer.rpartition(":")[0])
            if wait_s > 0:
                raise RateLimitedError(
                    f"more than {self._limiter.per_second:g} calls per second; wait {wait_s:.3g} s",
                    retry_after_s=wait_s,
                )

    @staticmethod
    def _authenticate(call: Call, tokens: TokenFile) -> None:
        credentials = call.metadata.get("authorization", "")
        if not isinstance(credentials, str) or not credentials.startswith(BEARER):
            raise UnauthenticatedError("this server needs a token: send the metadata 'authorization: Bearer TOKEN'")
        token = tokens.find(credentials.removeprefix(BEARER))
        if token is None:
            raise UnauthenticatedError("this server does not know the token")
        call.caller = token.name
        service = call.method.removeprefix("/").partition("/")[0]
        needed = SCOPES_BY_SERVICE.get(service, ADMIN)
        if not token.scopes & needed:
            raise PermissionDeniedError(
                f"token {token.name!r} has the scope {' and '.join(sorted(token.scopes))}, and {service} needs "
                f"{' or '.join(sorted(needed))}"
            )
