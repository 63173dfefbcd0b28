"""Who may call what, and how often."""

from jumok_proto.errors import OverloadedError, PermissionDeniedError, RateLimitedError, UnauthenticatedError
from jumok_serve.engine.admission import RETRY_AFTER_S
from jumok_serve.service.auth.rate_limit import RateLimiter
from jumok_serve.service.auth.tokens import SCOPES, TokenFile
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.call import HEALTH, Call

SCOPES_BY_SERVICE = {
    "jumok.v1.TranslationService": frozenset({"translate"}),
    "jumok.v1.ModelService": SCOPES,
    "grpc.reflection.v1alpha.ServerReflection": SCOPES,
}
"""What a token needs one of; any other service is administration."""
ADMINISTRATION = frozenset({"admin"})
BEARER = "Bearer "


class Gate:
    """Admits calls by their number, their token and their caller's rate.

    Args:
        limits: of calls.
        tokens: those that are known; None: nobody needs any.
    """

    def __init__(self, limits: ServiceLimits, tokens: TokenFile | None = None) -> None:
        self._most = limits.max_calls
        self._tokens = tokens
        rate = limits.requests_per_second
        self._rate = None if rate is None else RateLimiter(rate, limits.request_burst)
        self.open_calls = 0
        """Calls that are under way, health checks among them."""

    def opened(self) -> None:
        """Count a call in."""
        self.open_calls += 1

    def closed(self) -> None:
        """Count a call out."""
        self.open_calls -= 1

    def admit(self, call: Call) -> None:
        """Find out who calls, and whether they may.

        Raises:
            OverloadedError: too many calls are open.
            UnauthenticatedError: the call needs a token.
            PermissionDeniedError: its token is for something else.
            RateLimitedError: its caller has called too often.
        """
        if call.method.startswith(HEALTH):
            return
        if self.open_calls > self._most:
            raise OverloadedError(f"{self._most} calls are under way: no room for another", retry_after_s=RETRY_AFTER_S)
        if self._tokens is not None:
            self._authenticate(call, self._tokens)
        if self._rate is not None:
            wait_s = self._rate.take(call.caller or call.peer.rpartition(":")[0])
            if wait_s > 0:
                raise RateLimitedError(
                    f"more than {self._rate.per_second:g} calls a second; wait {wait_s:.3g} s", retry_after_s=wait_s
                )

    @staticmethod
    def _authenticate(call: Call, tokens: TokenFile) -> None:
        credentials = call.metadata.get("authorization", "")
        if not isinstance(credentials, str) or not credentials.startswith(BEARER):
            raise UnauthenticatedError("this server wants a token: send the metadata 'authorization: Bearer TOKEN'")
        token = tokens.find(credentials.removeprefix(BEARER))
        if token is None:
            raise UnauthenticatedError("this server does not know the token")
        call.caller = token.name
        service = call.method.removeprefix("/").partition("/")[0]
        needed = SCOPES_BY_SERVICE.get(service, ADMINISTRATION)
        if not token.scopes & needed:
            raise PermissionDeniedError(
                f"token {token.name!r} has the scope {' and '.join(sorted(token.scopes))}, and {service} needs "
                f"{' or '.join(sorted(needed))}"
            )
