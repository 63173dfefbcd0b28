"""Access control: number of open calls, tokens, rates."""

import time

from jumok_proto.errors import PermissionDeniedError, RateLimitedError, UnauthenticatedError
from jumok_serve.rate_limit import RateLimiter
from jumok_serve.service.auth.tokens import SCOPES, TokenFile
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.call import HEALTH_METHODS, Call
from jumok_serve.service.rpc.open_calls import OpenCalls

SCOPES_BY_SERVICE = {
    "jumok.v1.TranslationService": frozenset({"translate"}),
    "jumok.v1.FileService": frozenset({"translate"}),
    "jumok.v1.GlossaryService": frozenset({"translate"}),
    "jumok.v1.ModelService": SCOPES,
    "grpc.reflection.v1.ServerReflection": SCOPES,
    "grpc.reflection.v1alpha.ServerReflection": SCOPES,
}
"""Scopes that open a service; other services need ADMIN."""
ADMIN = frozenset({"admin"})
BEARER = "Bearer "
WATCHES = frozenset(
    {f"{HEALTH_METHODS}Watch"}
    | {f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in ("v1", "v1alpha")}
)
"""Calls that stay open and do no work; they do not use up the room of other calls."""
CORPUS = "/jumok.v1.TranslationService/TranslateCorpus"
"""Calls that keep a request in memory as long as they are open."""


class AccessControl:
    """Admits or refuses calls by their number, token and rate.

    Args:
        tokens: accepted tokens; None: calls need none.
    """

    def __init__(self, limits: ServiceLimits, tokens: TokenFile | None = None) -> None:
        self._calls = OpenCalls("calls", limits.max_calls, limits.max_calls_of_caller)
        self._corpora = OpenCalls("corpora", limits.max_corpora, max(1, limits.max_corpora // 2))
        half = max(1, limits.max_watches // 2)
        self._watches = OpenCalls("watches and reflections", limits.max_watches, half)
        self._checks = OpenCalls("health checks", limits.max_watches, half)
        self._tokens = tokens
        self._wrong_tokens = RateLimiter(limits.wrong_tokens_per_second)
        rate = limits.requests_per_second
        self._limiter = None if rate is None else RateLimiter(rate, limits.request_burst)
        self.open_calls = 0
        """Number of open calls, health checks included."""

    @property
    def needs_token(self) -> bool:
        """True if calls need a token."""
        return self._tokens is not None

    def call_opened(self) -> None:
        """Count an open call."""
        self.open_calls += 1

    def call_closed(self, call: Call) -> None:
        """Uncount an open call."""
        self.open_calls -= 1
        if call.counted_by is not None:
            call.counted_by.close(call.account)

    def identify(self, call: Call) -> None:
        """Find the caller by its token.

        Raises:
            UnauthenticatedError: no token, or an unknown one.
            PermissionDeniedError: the token lacks the scope.
            RateLimitedError: the address exceeds the rate of wrong tokens.
        """
        if self._tokens is not None and not call.method.startswith(HEALTH_METHODS):
            self._authenticate(call, self._tokens)

    def admit(self, call: Call) -> None:
        """Identify the caller, and raise if the call is refused.

        Raises:
            OverloadedError: too many calls are open, in all or of the caller.
            RateLimitedError: the caller exceeds its rate.
            JumokError: the errors of `identify`.
        """
        self.identify(call)
        health = call.method.startswith(HEALTH_METHODS)
        if call.method in WATCHES:
            calls = self._watches
        elif call.method == CORPUS:
            calls = self._corpora
        else:
            calls = self._checks if health else self._calls
        calls.open(call.account)
        call.counted_by = calls
        if self._limiter is not None and not health:
            _take(self._limiter, call, "calls")

    def _authenticate(self, call: Call, tokens: TokenFile) -> None:
        credentials = call.metadata.get("authorization", "")
        if not isinstance(credentials, str) or not credentials.startswith(BEARER):
            _take(self._wrong_tokens, call, "calls without a token")
            raise UnauthenticatedError("this server needs a token: send the metadata 'authorization: Bearer TOKEN'")
        token = tokens.find(credentials.removeprefix(BEARER))
        if token is None:
            _take(self._wrong_tokens, call, "calls with a wrong token")
            raise UnauthenticatedError("this server does not know the token")
        call.caller = token.name
        service = call.method.removeprefix("/").partition("/")[0]
        needed = SCOPES_BY_SERVICE.get(service, ADMIN)
        if not token.scopes & needed:
            raise PermissionDeniedError(
                f"token {token.name!r} has the scope {' and '.join(sorted(token.scopes))}, and {service} needs "
                f"{' or '.join(sorted(needed))}"
            )


def _take(limiter: RateLimiter, call: Call, what: str) -> None:
    """Count a call, or raise RateLimitedError."""
    wait_s = limiter.take(call.account, time.monotonic())
    if wait_s > 0:
        raise RateLimitedError(
            f"more than {limiter.per_second:g} {what} per second; wait {wait_s:.3g} s", retry_after_s=wait_s
        )
