"""Gate of all calls, in any protocol: admission, current call, observers."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Protocol

from jumok_proto.errors import JumokError, OverloadedError
from jumok_serve.engine.admission import RETRY_AFTER_S
from jumok_serve.service.rpc.access import AccessControl
from jumok_serve.service.rpc.call import CALL, Call, closed


class CallObserver(Protocol):
    """Observer of ended calls, called in the event loop."""

    def ended(self, call: Call) -> None:
        """Handle a call that has ended in any way."""


class CallGate:
    """Admits calls and observes their ends.

    Args:
        full: by method, a function that is true while the method's queue is full for a caller. Its calls are then
            refused before the request is read: under overload most are, and reading them would take time from the
            others.
    """

    def __init__(
        self,
        access: AccessControl,
        observers: Sequence[CallObserver] = (),
        full: Mapping[str, Callable[[str], bool]] = MappingProxyType({}),
    ) -> None:
        self._access = access
        self._observers = observers
        self._full = full

    @property
    def needs_token(self) -> bool:
        """True if calls need a token."""
        return self._access.needs_token

    @contextmanager
    def opened(self, call: Call) -> Iterator[None]:
        """Make a call the current one until its end; its code is set by then."""
        CALL.set(call)  # visible to the current task only
        self._access.call_opened()
        try:
            yield
        finally:
            self._access.call_closed(call)
            self._end(call)

    def _end(self, call: Call) -> None:
        call.duration_s = time.monotonic() - call.started
        for observer in self._observers:
            observer.ended(call)
        # The context of a timer keeps the call until the timer is due, a cancelled one too: some 100 at a time.
        call.request = call.response = None
        call.write = closed

    def identify(self, call: Call) -> None:
        """Find the caller of a call that is opened later; one that is refused now counts as an ended call.

        Raises:
            JumokError: the errors of `AccessControl.identify`.
        """
        try:
            self._access.identify(call)
        except JumokError as error:
            call.code, call.reason = error.code.name, error.reason
            self._end(call)
            raise

    def admit(self, call: Call) -> None:
        """Identify the caller, and raise if the call is refused.

        Raises:
            OverloadedError: the method's queue is full.
            JumokError: the other errors of `AccessControl.admit`.
        """
        self._access.admit(call)
        full = self._full.get(call.method)
        if full is not None and full(call.account):
            raise OverloadedError("the queue is full: no room for any text", retry_after_s=RETRY_AFTER_S)
