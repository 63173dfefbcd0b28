"""Channels that belong to a process, or to an event loop: opened at their first use there.

The threads of a channel are not forked, and calls through an inherited channel would wait forever. So a forked process
opens channels of its own. Those it inherited are kept, because gRPC cannot close them there. gRPC cannot open channels
for asyncio in a process that inherited any.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from jumok_proto.errors import FailedPreconditionError

Link = TypeVar("Link")

_inherited: list[object] = []
_asynchronous: WeakSet[Any] = WeakSet()
_forked_with_links = False


class Links(Generic[Link]):
    """The link of this process.

    Args:
        open_link: opens the channels.
    """

    def __init__(self, open_link: Callable[[], Link]) -> None:
        self._open_link = open_link
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._link: Link | None = None

    def get(self) -> Link:
        """Give the link of this process."""
        link = self._link
        if link is not None and self._process == os.getpid():
            return link
        with self._lock:
            if self._process != os.getpid():
                _inherited.append(self._link)
                self._link, self._process = None, os.getpid()
            if self._link is None:
                self._link = self._open_link()
            return self._link

    def take(self) -> Link | None:
        """Give up the link of this process, if it is open; the caller closes it."""
        if self._process != os.getpid():
            return None
        with self._lock:
            link, self._link = self._link, None
            return link


class AsyncLinks(Generic[Link]):
    """The links of the event loops of this process; arguments are those of ``Links``."""

    def __init__(self, open_link: Callable[[], Link]) -> None:
        self._open_link = open_link
        self._process = os.getpid()
        self._links: WeakKeyDictionary[asyncio.AbstractEventLoop, Link] = WeakKeyDictionary()

    def get(self) -> Link:
        """Give the link of the running event loop.

        Raises:
            FailedPreconditionError: links were open when this process was forked, and gRPC cannot open others.
        """
        if _forked_with_links:
            raise FailedPreconditionError(
                "a client of asyncio was open when this process was forked, and gRPC has only one thread for all of "
                "them, in the parent: close such clients before the fork, or use Client here"
            )
        loop = asyncio.get_running_loop()
        link = self._links.get(loop)
        if link is None:
            link = self._links[loop] = self._open_link()
            _asynchronous.add(link)
        return link

    def take(self) -> Link | None:
        """Give up all links; returns that of the running event loop, which the caller closes."""
        if self._process != os.getpid():
            return None
        links, self._links = self._links, WeakKeyDictionary()
        return links.get(asyncio.get_running_loop())


def _after_fork() -> None:
    global _forked_with_links  # noqa: PLW0603 - of the process
    _inherited.extend(_asynchronous)
    _forked_with_links = _forked_with_links or bool(_asynchronous)


os.register_at_fork(after_in_child=_after_fork)
