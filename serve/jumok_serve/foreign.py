"""Guard around native libraries, whose failures are not all ordinary exceptions."""

from types import TracebackType

from jumok_serve.errors import ForeignCodeError

_PASSED = (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)
"""Exceptions that a guard lets pass: they say nothing about the library."""


class ForeignCode:
    """Context that turns every failure of a native library into `ForeignCodeError`.

    Rust libraries raise panics as BaseException. It passes every ``except Exception``, so a call would never be
    answered. Every call of such a library is made within a guard.

    Args:
        library: its name, for the message.
    """

    __slots__ = ("_library",)

    def __init__(self, library: str) -> None:
        self._library = library

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, _PASSED):
            raise ForeignCodeError(f"{self._library} failed: {error}") from error
